"""The batch: what its tables say is what an independent calculation says, however it is disturbed."""

import argparse
import io
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession

from billing.lake.lake import Lake
from billing.lake.months import Month
from billing.lake.tables import SCHEMAS, STORAGE_HOURLY, USAGE_HOURLY, LakeTables, PublishedDay
from billing.metering.usage import UsageRecord
from spark_analytics import __main__ as jobs
from spark_analytics import records
from spark_analytics.__main__ import main
from spark_analytics.batch import Done, all_records, arguments, batch, days_of_plans, late_days
from spark_analytics.period import add_period, month_of, period_of
from spark_analytics.session import SPARK_ERRORS, JobFailed
from spark_analytics.usage import storage_hourly, usage_hourly
from tests.billing.books import text_of
from tests.spark_analytics import lakes
from tests.tables import table

DAY = date(2026, 10, 31)
NEXT = date(2026, 11, 1)
ONE, TWO = "111111111111", "222222222222"


@pytest.fixture
def chance() -> random.Random:
    return random.Random(7)


def published(lake: Lake, name: str = USAGE_HOURLY, account: str | None = None) -> list[lakes.Row]:
    return lakes.in_order(LakeTables(lake).read(name, DAY, NEXT, account=account).to_pylist())


def usage_made(done: list[Done]) -> list[date]:
    return [one.day for one in done if one.computed and one.name == USAGE_HOURLY]


def test_records_are_counted_once_late_ones_too_and_nothing_is_done_twice(
    spark: SparkSession, lake: Lake, chance: random.Random
) -> None:
    first, second, late = lakes.calls(chance, DAY, 300), lakes.calls(chance, NEXT, 200), lakes.calls(chance, DAY, 50)
    lakes.bring(lake, first)
    lakes.bring(lake, second)
    lakes.bring(lake, first[100:180])  # a process was killed between storing and forgetting
    done = batch(spark, lake, DAY, NEXT)
    assert usage_made(done) == [DAY, NEXT]
    assert published(lake) == lakes.usage_hourly(first + second)
    stored = LakeTables(lake).day(USAGE_HOURLY, DAY)
    assert stored is not None
    assert (stored.read.records, stored.read.repeated) == (300, 80)
    assert stored.sums["calls"] == str(sum(record.counts[0] for record in first))

    open_to_others = [path for path in Path(lake.root).rglob("*") if path.stat().st_mode & 0o077]
    assert not open_to_others

    assert usage_made(batch(spark, lake, DAY, NEXT)) == []
    assert LakeTables(lake).day(USAGE_HOURLY, DAY) == stored

    lakes.bring(lake, late)
    assert usage_made(batch(spark, lake, DAY, NEXT)) == [DAY]
    assert published(lake) == lakes.usage_hourly(first + second + late)
    assert usage_made(batch(spark, lake, DAY, NEXT, again=True)) == [DAY, NEXT]
    assert published(lake) == lakes.usage_hourly(first + second + late)


def test_one_tenant_is_made_anew_and_the_others_stay_until_all_are(
    spark: SparkSession, lake: Lake, chance: random.Random
) -> None:
    first, late = lakes.calls(chance, DAY, 300), lakes.calls(chance, DAY, 100)
    lakes.bring(lake, first)
    batch(spark, lake, DAY, DAY, account=ONE)
    assert published(lake) == lakes.usage_hourly(first), "a day that was not published is made of all"
    lakes.bring(lake, late)
    batch(spark, lake, DAY, DAY, account=ONE)
    ones_late = [record for record in late if record.key.account == ONE]
    assert published(lake) == lakes.usage_hourly(first + ones_late)
    assert published(lake, account=TWO) == [row for row in lakes.usage_hourly(first) if row["account"] == TWO]
    assert usage_made(batch(spark, lake, DAY, DAY)) == [DAY], "the others' late records are not forgotten"
    assert published(lake) == lakes.usage_hourly(first + late)

    batch(spark, lake, NEXT, NEXT)
    second = lakes.calls(chance, NEXT, 50)
    lakes.bring(lake, second)
    batch(spark, lake, NEXT, NEXT, account="999999999999")
    assert published(lake) == lakes.usage_hourly(first + late), "who used nothing has no rows"
    assert usage_made(batch(spark, lake, NEXT, NEXT)) == [NEXT]
    assert published(lake) == lakes.usage_hourly(first + late + second)


def test_the_time_up_to_which_a_day_is_known_advances_without_records_but_not_by_a_batch_of_one_tenant(
    spark: SparkSession, lake: Lake, chance: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    evening, hour = datetime(2026, 10, 31, 22, 15, tzinfo=UTC), timedelta(hours=1)
    clock = iter(evening + number * hour for number in range(5))

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return next(clock)

    monkeypatch.setattr("spark_analytics.batch.datetime", Clock)

    def day() -> PublishedDay:
        stored = LakeTables(lake).day(USAGE_HOURLY, DAY)
        assert stored is not None
        return stored

    first = lakes.calls(chance, DAY, 20)
    lakes.bring(lake, first)
    batch(spark, lake, DAY, DAY)
    made = day()
    assert made.read.at == evening
    lakes.bring(lake, lakes.calls(chance, DAY, 20))
    batch(spark, lake, DAY, DAY, account=ONE)
    assert day().run != made.run
    assert day().read.at == evening, "nobody has looked at what the others have"
    batch(spark, lake, DAY, DAY)
    made = day()
    assert made.read.at == evening + 2 * hour
    assert made.read.at.date() > DAY
    assert usage_made(batch(spark, lake, DAY, DAY)) == []
    assert day() == made, "it was over"

    lake.remove(f"tables/usage_hourly/days/{DAY}.json")
    before = msgspec.structs.replace(made, read=msgspec.structs.replace(made.read, at=evening))
    LakeTables(lake).publish(USAGE_HOURLY, DAY, before)
    assert usage_made(batch(spark, lake, DAY, DAY)) == [], "nothing more came"
    assert day() == msgspec.structs.replace(made, read=msgspec.structs.replace(made.read, at=evening + 4 * hour))


def test_late_records_of_earlier_days_are_found(lake: Lake, chance: random.Random) -> None:
    lakes.bring(lake, lakes.calls(chance, DAY, 5))
    lakes.bring_stored(lake, "one", [lakes.stored(DAY - timedelta(days=90), 5, 0, 1)])
    lakes.bring(lake, lakes.calls(chance, DAY - timedelta(days=40), 1))
    lakes.bring(lake, lakes.calls(chance, DAY - timedelta(days=50), 1))
    long_ago = datetime(2026, 9, 20, tzinfo=UTC)
    for path in lake.paths("usage"):
        if f"date={DAY - timedelta(days=50)}" in path:
            os.utime(Path(lake.root) / path, (long_ago.timestamp(), long_ago.timestamp()))
    merged = (Path(lake.root) / lake.paths(f"usage/date={DAY - timedelta(days=50)}")[0]).with_name("merged-1.parquet")
    merged.write_bytes(b"")
    since = long_ago + timedelta(days=1)
    assert late_days(all_records(lake), DAY, since) == [DAY - timedelta(days=90), DAY - timedelta(days=40)]


def test_the_batch_of_the_last_days_also_computes_earlier_days_with_new_files(
    spark: SparkSession, lake: Lake, chance: random.Random, capsys: pytest.CaptureFixture[str]
) -> None:
    late = datetime.now(UTC).date() - timedelta(days=90)
    found = lakes.calls(chance, late, 20)
    lakes.bring(lake, found)
    assert main(["batch", "--lake", lake.url, "--days", "1"]) == 0
    assert f"{late} usage_hourly: 20 records" in capsys.readouterr().out
    rows = LakeTables(lake).read(USAGE_HOURLY, late, late).to_pylist()
    assert lakes.in_order(rows) == lakes.usage_hourly(found)
    assert main(["batch", "--lake", lake.url, "--days", "1"]) == 0
    assert f"{late} usage_hourly: nothing new" in capsys.readouterr().out


def test_with_prices_a_month_has_the_days_beside_it_that_its_time_zones_need(lake: Lake, tmp_path: Path) -> None:
    plan, accounts = tmp_path / "prices.yaml", tmp_path / "accounts.yaml"
    plan.write_text(text_of("zones"))
    accounts.write_text("default: berlin")
    parser = argparse.ArgumentParser()
    arguments(parser)
    given = ["--plan", str(plan), "--accounts", str(accounts)]

    def found(*options: str) -> list[date]:
        parsed = parser.parse_args(options)
        return days_of_plans(parsed, lake, *period_of(parsed))

    assert found("--month", "2026-10") == []
    assert found("--month", "2026-10", *given) == [date(2026, 9, 30)]
    last = month_of("last")
    days = found("--days", "1", *given)
    assert days[0] == last.first - timedelta(days=1), "what a clock rates is the last month and this one"
    assert set(days) >= {last.first - timedelta(days=number) for number in (1, 0, -1)}
    for wrong, message in (
        (["--accounts", "x", "--month", "2026-10"], "with --plan"),
        (["--day", "2026-10-01"], "--mon"),
    ):
        with pytest.raises(ValueError, match=message):
            found(*wrong, *(given[:2] if "--day" in wrong else []))


def test_storage_of_the_latest_owner_counts(spark: SparkSession, lake: Lake) -> None:
    tags_later = [("team", "b")]
    found = [
        # Two partitions of one queue; the second one is idle but for its backlog.
        lakes.stored(DAY, 5, 0, 1, byte_milliseconds=2**62, messages=5, messages_max=9, oldest_age_ms=70),
        lakes.stored(DAY, 5, 1, 1, byte_milliseconds=2**62, messages=4, messages_max=5, oldest_age_ms=90),
        lakes.stored(DAY, 5, 0, 2, minutes=60, byte_milliseconds=2**62, messages=3, messages_max=3),
        # The same minute by an old owner and by the new one, who said it twice.
        lakes.stored(DAY, 5, 2, 1, epoch=1, sequence=9, byte_milliseconds=10, messages=100, messages_max=100),
        lakes.stored(DAY, 5, 2, 1, epoch=2, sequence=1, byte_milliseconds=20, messages=100, messages_max=100),
        lakes.stored(DAY, 5, 2, 1, epoch=2, sequence=2, byte_milliseconds=30, messages=2, messages_max=4),
        # The tags change within the hour.
        lakes.stored(DAY, 5, 3, 1, epoch=2, sequence=3, tags=tags_later, byte_milliseconds=5, messages=1),
        lakes.stored(DAY, 6, 0, 1, epoch=2, sequence=4, tags=tags_later, byte_milliseconds=6, messages=0),
        lakes.stored(DAY, 5, 0, 3, account=TWO, queue="jobs", queue_id=9, kind="fifo", tags=[], byte_milliseconds=7),
    ]
    lakes.bring_stored(lake, "one", found)
    lakes.bring_stored(lake, "two", found[3:7])
    batch(spark, lake, DAY, DAY)

    def row(hour: int, tags: list[tuple[str, str]], *values: int, **given: object) -> lakes.Row:
        whose = {"account": ONE, "queue": "orders", "queue_id": 7, "kind": "standard", "tags": tags, **given}
        names = ("byte_milliseconds", "messages_max", "messages_last", "oldest_age_ms_max")
        at = datetime(DAY.year, DAY.month, DAY.day, hour, tzinfo=UTC)
        return {**whose, "hour": at, **dict(zip(names, (Decimal(values[0]), *values[1:]), strict=True))}

    assert published(lake, STORAGE_HOURLY) == lakes.in_order(
        [
            row(5, [("team", "a")], 3 * 2**62 + 30, 9 + 3, 0 + 3, 90),
            row(5, tags_later, 5, 1, 1, 5),
            row(6, tags_later, 6, 1, 0, 5),
            row(5, [], 7, 1, 1, 5, account=TWO, queue="jobs", queue_id=9, kind="fifo"),
        ]
    )
    stored = LakeTables(lake).day(STORAGE_HOURLY, DAY)
    assert stored is not None
    assert (stored.read.records, stored.read.repeated) == (7, 2 + 4)
    assert stored.sums == {"byte_milliseconds": str(3 * 2**62 + 48)}


KILLED = """
import os, runpy, signal, sys
from billing.lake.tables import LakeTables

publish, main, left = LakeTables.publish, sys.argv.pop(1), [int(sys.argv.pop(1))]

def publish_or_die(*given, **named):
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    left[0] -= 1
    publish(*given, **named)

LakeTables.publish = publish_or_die
runpy.run_path(main, run_name="__main__")
"""


@pytest.mark.long
def test_a_batch_that_was_submitted_and_is_killed_between_its_steps_is_done_again(
    spark: SparkSession, lake: Lake, chance: random.Random, tmp_path: Path
) -> None:
    first, second = lakes.calls(chance, DAY, 100), lakes.calls(chance, NEXT, 100)
    lakes.bring(lake, first + second)
    lakes.bring_stored(lake, "one", [lakes.stored(NEXT, 5, 0, 1)])
    (tmp_path / "killed.py").write_text(KILLED)
    submit = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[2]", "--driver-memory", "512m"]
    submit += ["--conf", "spark.ui.enabled=false"]
    job = ["batch", "--lake", lake.url, "--from", str(DAY), "--to", str(NEXT)]
    killed = subprocess.run(
        [*submit, str(tmp_path / "killed.py"), jobs.__file__, "2", *job],
        env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        stdout=subprocess.PIPE,
        check=False,
        timeout=110,
    )
    assert killed.returncode == 128 + signal.SIGKILL
    # spark-submit writes what the job says on stderr to stdout, too
    results = [line for line in killed.stdout.splitlines() if line.startswith(b"20")]
    assert results[0].startswith(f"{DAY} usage_hourly: 100 records".encode())
    # The first day is there; of the second everything is written, and nothing published.
    assert published(lake) == lakes.usage_hourly(first)
    orphans = set(lake.paths("tables/usage_hourly/runs")) - set(LakeTables(lake).files(USAGE_HOURLY, DAY, NEXT))
    assert any(f"date={NEXT}" in path for path in orphans)
    assert usage_made(batch(spark, lake, DAY, NEXT)) == [NEXT]
    assert published(lake) == lakes.usage_hourly(first + second)
    assert len(published(lake, STORAGE_HOURLY)) == 1


def test_a_record_in_the_folder_of_another_day_is_reported_and_nothing_is_published(
    spark: SparkSession, lake: Lake, chance: random.Random
) -> None:
    lakes.bring(lake, lakes.calls(chance, NEXT, 5))
    (Path(lake.root) / f"usage/date={NEXT}").rename(Path(lake.root) / f"usage/date={DAY}")
    with pytest.raises(JobFailed, match=f"rows of usage_hourly belong to other days than {DAY}"):
        batch(spark, lake, DAY, DAY)
    assert LakeTables(lake).days(USAGE_HOURLY) == []


def test_files_that_become_one_while_they_are_read_are_counted_once(
    spark: SparkSession,
    lake: Lake,
    chance: random.Random,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = lakes.calls(chance, DAY, 60)
    lakes.bring(lake, found)
    gone = lakes.merge_while_read(monkeypatch)
    batch(spark, lake, DAY, DAY)
    assert gone
    assert published(lake) == lakes.usage_hourly(found)
    monkeypatch.undo()
    damaged = lake.paths("usage")[0]
    (Path(lake.root) / damaged).write_bytes(b"no Parquet")
    with pytest.raises(SPARK_ERRORS):
        batch(spark, lake, DAY, DAY)
    assert main(["batch", "--lake", lake.url, "--day", str(DAY)]) == 1
    stored = capsys.readouterr().err
    assert damaged in stored
    assert "\tat " not in stored
    assert published(lake) == lakes.usage_hourly(found)


def test_records_of_a_period_are_read_each_once(spark: SparkSession, lake: Lake, chance: random.Random) -> None:
    first, second = lakes.calls(chance, DAY, 40), lakes.calls(chance, NEXT, 40)
    lakes.bring(lake, first + second)
    lakes.bring(lake, first[:7])
    lakes.bring_stored(lake, "one", [lakes.stored(DAY, 5, 0, 1, epoch=epoch) for epoch in (1, 3, 2)])

    def ids(found: DataFrame) -> list[tuple[Any, ...]]:
        return sorted((row.node, row.boot, row.sequence, row.slot) for row in found.collect())

    def ids_of(found: list[UsageRecord]) -> list[tuple[Any, ...]]:
        return sorted((record.node, record.boot, record.sequence, record.slot) for record in found)

    usage = records.usage(spark, lake, DAY, NEXT)
    assert usage.columns == [*records.USAGE.names, "hour"]
    assert ids(usage) == ids_of(first + second)
    assert ids(records.usage(spark, lake, DAY, DAY)) == ids_of(first)
    ones = [record for record in second if record.key.account == ONE]
    assert ids(records.usage(spark, lake, NEXT, NEXT, ONE)) == ids_of(ones)
    assert ids(records.usage(spark, lake, DAY - timedelta(days=2), DAY - timedelta(days=1))) == []
    storage = records.storage(spark, lake, DAY, NEXT)
    assert storage.columns == [*records.STORAGE.names, "hour"]
    assert [row.epoch for row in storage.collect()] == [3]


@pytest.mark.parametrize(
    ("schema", "once", "hourly", "name"),
    [
        (records.USAGE, records.usage_once, usage_hourly, USAGE_HOURLY),
        (records.STORAGE, records.storage_once, storage_hourly, STORAGE_HOURLY),
    ],
)
def test_the_plan_shuffles_once_and_is_sparks_alone(
    spark: SparkSession,
    tmp_path: Path,
    schema: Any,
    once: Callable[[DataFrame], DataFrame],
    hourly: Callable[[DataFrame], DataFrame],
    name: str,
) -> None:
    spark.createDataFrame([], schema).write.parquet(f"{tmp_path}/raw")
    planned = hourly(once(spark.read.schema(schema).parquet(f"{tmp_path}/raw")))
    stored = io.StringIO()
    with redirect_stdout(stored):
        planned.explain()
    plan = stored.getvalue()
    assert plan.count("Exchange") == plan.count("Exchange hashpartitioning(account") == 1, plan
    assert plan.count("HashAggregate") == 2, plan
    assert not re.search("Python|Arrow|Pandas|SortAggregate|ObjectHash|Broadcast|Collect|RDD", plan), plan
    assert planned.columns == [*SCHEMAS[name].names, "records", "copies"]


def test_the_columns_of_records_are_those_that_are_written() -> None:
    from billing.lake.lake import SCHEMA

    assert sorted(records.USAGE.names) == sorted(SCHEMA.names)


@pytest.mark.parametrize(("given", "message"), table(__file__, "a period that is none is told"))
def test_the_error_of_an_invalid_period(
    given: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["batch", "--lake", str(tmp_path), *given])
    assert message in capsys.readouterr().err


def test_days_are_counted_up_to_today() -> None:
    parser = argparse.ArgumentParser()
    add_period(parser)
    before = datetime.now(UTC).date()
    first, last = period_of(parser.parse_args(["--days", "35"]))
    assert before <= last <= datetime.now(UTC).date()
    assert (last - first).days == 34
    assert period_of(parser.parse_args(["--days", "1"]))[0] >= before


def test_months_are_named_by_the_clock() -> None:
    before, this, after = datetime.now(UTC), month_of("this"), datetime.now(UTC)
    assert this in (Month(before.year, before.month), Month(after.year, after.month))
    assert month_of("last").next in (this, this.next)
    assert month_of("2026-11") == Month(2026, 11)


def test_a_batch_shows_how_far_it_is(
    spark: SparkSession, lake: Lake, chance: random.Random, capsys: pytest.CaptureFixture[str]
) -> None:
    lakes.bring(lake, lakes.calls(chance, DAY, 10))
    assert main(["batch", "--lake", lake.url, "--from", str(DAY), "--to", str(NEXT)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert re.match(
        rf"{DAY} usage_hourly: 10 records and 0 again, \d+ rows in .* s \(1 of 4, about \d+ s more\)", lines[0]
    )
    assert lines[1].startswith(f"{DAY} storage_hourly: no records (2 of 4")
    assert lines[-1].startswith("4 of 4 computed: 10 records in ")
    assert main(["batch", "--lake", lake.url, "--day", str(DAY)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (lines[0], lines[-1]) == (f"{DAY} usage_hourly: nothing new (1 of 2, about 0 s more)", "no new records")
