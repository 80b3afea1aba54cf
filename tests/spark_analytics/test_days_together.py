"""The days of a small input, made by one query for each table: the tables are those of days that are made alone."""

import random
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from billing.lake.lake import Lake, LakeFile
from billing.lake.tables import SCHEMAS, STORAGE_HOURLY, USAGE_HOURLY, LakeTables, PublishedDay, days_of
from spark_analytics import records
from spark_analytics.__main__ import main
from spark_analytics.batch import batch, make_days, work_of
from spark_analytics.input_size import SMALL
from spark_analytics.session import SPARK_ERRORS, JobFailed, read_files
from tests.spark_analytics import lakes

pytestmark = pytest.mark.long

FIRST, LAST = date(2026, 10, 29), date(2026, 11, 2)
DAYS = days_of(FIRST, LAST)
ONE = "111111111111"


@pytest.fixture
def small(spark: SparkSession) -> SparkSession:
    for name, value in SMALL.items():
        spark.conf.set(name, value)
    return spark


def bring(lake: Lake) -> None:
    """Records on four of five days, some of them twice, and of one day's storage by two owners."""
    chance = random.Random(11)
    for day in (DAYS[0], DAYS[1], DAYS[4]):
        made = lakes.calls(chance, day, 50)
        lakes.bring(lake, made)
        lakes.bring(lake, made[10:17])
    for day in (DAYS[1], DAYS[2]):
        stored = [lakes.stored(day, hour, 5, at, epoch=epoch) for hour in (0, 23) for at in (1, 2) for epoch in (1, 2)]
        lakes.bring_stored(lake, "one", stored)
        lakes.bring_stored(lake, "two", stored[:3])


@pytest.fixture
def both(tmp_path: Path) -> tuple[Lake, Lake]:
    """Two lakes with the same records."""
    alone, together = Lake(str(tmp_path / "alone")), Lake(str(tmp_path / "together"))
    bring(alone)
    bring(together)
    return alone, together


def pointers(lake: Lake) -> dict[tuple[str, date], Any]:
    """Published days, without the members that differ from one run to another."""
    found = {(name, day): LakeTables(lake).day(name, day) for name in SCHEMAS for day in LakeTables(lake).days(name)}
    return {
        step: (day.rows, day.sums, msgspec.structs.replace(day.read, at=None)) for step, day in found.items() if day
    }


def rows(lake: Lake) -> dict[str, list[lakes.Row]]:
    return {name: lakes.in_order(LakeTables(lake).read(name, FIRST, LAST).to_pylist()) for name in SCHEMAS}


def run_of(lake: Lake, name: str, day: date) -> str:
    found = LakeTables(lake).day(name, day)
    assert found is not None
    return found.run


def test_the_tables_are_those_of_days_that_are_made_alone(small: SparkSession, both: tuple[Lake, Lake]) -> None:
    alone, together = both

    def make(**given: Any) -> list[tuple[str, date]]:
        one, other = batch(small, alone, FIRST, LAST, **given), batch(small, together, FIRST, LAST, small=True, **given)
        assert [done[:2] + done[3:4] for done in one] == [done[:2] + done[3:4] for done in other]
        assert pointers(alone) == pointers(together)
        assert rows(alone) == rows(together)
        return [(done.name, done.day) for done in other if done.computed]

    assert len(make()) == 2 * len(DAYS)
    assert rows(together)[USAGE_HOURLY]
    assert len(rows(together)[STORAGE_HOURLY]) == 4
    open_to_others = [path for path in Path(together.root).rglob("*") if path.stat().st_mode & 0o077]
    assert not open_to_others
    before = run_of(together, USAGE_HOURLY, DAYS[0])
    assert make() == [], "nothing new"
    late = lakes.calls(random.Random(12), DAYS[1], 9)
    for lake in both:
        lakes.bring(lake, late)
    assert make() == [(USAGE_HOURLY, DAYS[1])], "late records"
    assert run_of(together, USAGE_HOURLY, DAYS[0]) == before
    assert len(make(again=True)) == 2 * len(DAYS)
    assert run_of(together, USAGE_HOURLY, DAYS[0]) != before
    for lake in both:
        lakes.bring(lake, lakes.calls(random.Random(13), DAYS[4], 9))
    assert len(make(account=ONE)) == 2 * len(DAYS), "one tenant's rows beside those of the others"
    assert make() == [(USAGE_HOURLY, DAYS[4])]


def test_days_are_a_query_for_each_table_and_nothing_is_shuffled(
    small: SparkSession, both: tuple[Lake, Lake], capsys: pytest.CaptureFixture[str]
) -> None:
    tracker = small.sparkContext.statusTracker()
    before = {*tracker.getJobIdsForGroup()}
    batch(small, both[1], FIRST, LAST, small=True)
    jobs = {*tracker.getJobIdsForGroup()} - before
    assert len(jobs) == 2
    stages = [stage for job in jobs if (info := tracker.getJobInfo(job)) for stage in info.stageIds]
    assert len(stages) == 2
    lines = [line.partition(":")[0] for line in capsys.readouterr().err.splitlines()]
    of = [f"{USAGE_HOURLY} of 3 days", f"{STORAGE_HOURLY} of 2 days"]
    assert lines == [word for step in of for word in (f"{step} …", step)]


def test_a_day_that_cannot_be_made_keeps_no_other_from_being_published(
    small: SparkSession, both: tuple[Lake, Lake]
) -> None:
    lake = both[1]
    damaged = lake.paths(f"usage/date={DAYS[1]}")[0]
    (Path(lake.root) / damaged).write_bytes(b"no Parquet")
    with pytest.raises(SPARK_ERRORS, match=damaged.rpartition("/")[2]):
        batch(small, lake, FIRST, LAST, small=True)
    assert LakeTables(lake).days(USAGE_HOURLY) == [DAYS[0]]


def test_a_record_in_the_folder_of_another_day_is_reported_and_the_days_before_are_published(
    small: SparkSession, both: tuple[Lake, Lake]
) -> None:
    lake = both[1]
    lakes.bring(lake, lakes.calls(random.Random(14), DAYS[3], 5))
    (Path(lake.root) / f"usage/date={DAYS[3]}").rename(Path(lake.root) / f"usage/date={DAYS[2]}")
    with pytest.raises(JobFailed, match=f"rows of usage_hourly belong to other days than {DAYS[2]}"):
        batch(small, lake, FIRST, LAST, small=True)
    assert LakeTables(lake).days(USAGE_HOURLY) == DAYS[:2]


def test_files_that_became_one_after_they_were_listed_are_counted_once(
    small: SparkSession, both: tuple[Lake, Lake]
) -> None:
    alone, together = both
    batch(small, alone, FIRST, LAST)
    work = work_of(together, DAYS)
    for day in (DAYS[0], DAYS[4]):
        path = together.paths(f"usage/date={day}")[0]
        folder, _, name = path.rpartition("/")
        (Path(together.root) / path).rename(Path(together.root) / folder / f"merged-{name}")
    make_days(small, together, work, small=True)
    assert rows(alone) == rows(together)


def test_a_day_that_another_batch_published_since_it_was_listed_is_looked_at_again(
    small: SparkSession, both: tuple[Lake, Lake]
) -> None:
    alone, together = both
    for lake in both:
        work = work_of(lake, DAYS)
        lakes.bring(lake, lakes.calls(random.Random(15), DAYS[0], 9))
        batch(small, lake, FIRST, DAYS[0])
        make_days(small, lake, work)
    assert rows(alone) == rows(together)
    assert pointers(alone)[USAGE_HOURLY, DAYS[0]][2].records == 59


@pytest.mark.parametrize("option", [["--days", "3"], ["--day", "today"]])
def test_the_lake_is_listed_once(
    option: list[str], spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(str(tmp_path))
    today = datetime.now(UTC).date()
    lakes.bring(lake, lakes.calls(random.Random(16), today, 9))
    late = today - timedelta(days=90)
    lakes.bring(lake, lakes.calls(random.Random(17), late, 9))
    listed: Counter[str] = Counter()
    files = Lake.files

    def counted(self: Lake, folder: str, hidden: bool = False) -> list[LakeFile]:
        listed[folder] += 1
        return files(self, folder, hidden)

    monkeypatch.setattr(Lake, "files", counted)
    assert main(["batch", "--lake", lake.url, *(str(today) if word == "today" else word for word in option)]) == 0
    of_records = {folder: times for folder, times in listed.items() if folder.startswith(("usage", "storage"))}
    whole = {"usage": 1, "storage": 1}
    assert of_records == (whole if option[0] == "--days" else {f"{name}/date={today}": 1 for name in whole})
    assert LakeTables(lake).days(USAGE_HOURLY) == (
        [late, *days_of(today - timedelta(2), today)] if option[0] == "--days" else [today]
    )


def test_few_rows_are_part_of_the_plan_and_many_are_read_by_spark(
    small: SparkSession, both: tuple[Lake, Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = both[0]
    paths = lake.paths("usage")

    def read() -> tuple[str, list[tuple[Any, ...]]]:
        found = read_files(small, lake, paths, records.USAGE, path_as="path")
        assert found.columns == [*records.USAGE.names, "path"]
        plan = found._jdf.queryExecution().executedPlan().toString()
        kept = [
            tuple(str(sorted(one.items()) if isinstance(one, dict) else one) for one in row[:-1])
            for row in found.collect()
        ]
        of = [row.path[row.path.index("/usage/") + 1 :] for row in found.select("path").distinct().collect()]
        assert sorted(of) == paths
        return plan, sorted(kept)

    plan, few = read()
    assert "FileScan" not in plan
    monkeypatch.setattr("spark_analytics.session._PLAN_BYTES_MAX", 0)
    plan, many = read()
    assert "FileScan" in plan
    assert few == many
    assert few


def test_a_day_of_files_without_records_is_published_empty(small: SparkSession, both: tuple[Lake, Lake]) -> None:
    lake = both[1]
    lakes.bring_stored(lake, "three", [lakes.stored(DAYS[3], 5, 0, 1)])
    path = lake.paths(f"storage/date={DAYS[3]}")[0]
    found = lake.read_table(path)
    lake.write_table(path, found.slice(0, 0))
    batch(small, lake, FIRST, LAST, small=True)
    day = LakeTables(lake).day(STORAGE_HOURLY, DAYS[3])
    assert isinstance(day, PublishedDay)
    assert (day.rows, day.sums, day.read.files, day.read.records) == (0, {"byte_milliseconds": "0"}, 1, 0)
