"""A small month and a large one: the same computation by other settings."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from billing.lake.lake import Lake, LakeFile
from billing.lake.months import Month
from billing.lake.tables import SCHEMAS, LakeTables
from billing.pricing.rated import Rated
from billing.reports.analysis import decode, path_of
from spark_analytics import __main__ as jobs
from spark_analytics.__main__ import main
from spark_analytics.input_size import (
    FOOTER_BYTES,
    INTERPRETED_BYTES,
    MIB,
    PARTITIONS_MAX,
    SMALL,
    SMALL_BYTES,
    bytes_of_files,
    is_small,
    settings_for,
    shuffle_partitions,
)
from spark_analytics.session import session
from tests.billing.books import text_of
from tests.spark_analytics import lakes
from tests.tables import table

MONTH = Month(2026, 10)


def test_partitions_grow_with_what_there_is_to_read_up_to_sparks_own_number() -> None:
    sizes = [0, SMALL_BYTES, SMALL_BYTES + 1, 20 * MIB, 127 * MIB, 200 * MIB, 10**12]
    assert [shuffle_partitions(size) for size in sizes] == [1, 1, 9, 20, 127, PARTITIONS_MAX, PARTITIONS_MAX]
    assert [is_small(size) for size in (None, 0, SMALL_BYTES, SMALL_BYTES + 1)] == [False, True, True, False]


def test_settings_follow_from_the_size_and_each_undoes_what_the_other_changed() -> None:
    small, large = settings_for(1000), settings_for(127 * MIB)
    assert small == SMALL
    assert large.keys() == small.keys(), "a session of both sizes has those of the last"
    between = settings_for(INTERPRETED_BYTES + 1)
    assert {name for name in small if between[name] != small[name]} == {"spark.sql.codegen.factoryMode"}
    assert large["spark.sql.shuffle.partitions"] == "127"
    assert large["spark.sql.adaptive.enabled"] == "true"
    assert settings_for(None) == {}, "Spark's own"


def test_a_month_of_few_records_in_many_files_is_small() -> None:
    hourly = [LakeFile(f"usage/{n}", 6800, datetime(2026, 10, 1, tzinfo=UTC)) for n in range(2 * 31 * 24)]
    assert sum(file.size_bytes for file in hourly) > SMALL_BYTES
    assert 0 < bytes_of_files(hourly) < SMALL_BYTES
    assert bytes_of_files([hourly[0]._replace(size_bytes=FOOTER_BYTES)]) > 0, "there is something"
    assert bytes_of_files([hourly[0]._replace(size_bytes=127 * MIB)]) > SMALL_BYTES


@pytest.fixture
def prices(tmp_path: Path) -> list[str]:
    plan = tmp_path / "prices.yaml"
    plan.write_text(text_of("tiers"))
    return ["--plan", str(plan)]


def bring(lake: Lake) -> None:
    """Two days of a month, the same each time, with records that are there twice."""
    chance = random.Random(7)
    for day in (date(2026, 10, 3), date(2026, 10, 20)):
        made = lakes.calls(chance, day, 40)
        lakes.bring(lake, made)
        lakes.bring(lake, made[:5])
        lakes.bring_stored(lake, "stored", [lakes.stored(day, 3, minute, at % 2) for at, minute in enumerate(range(6))])


def refreshed(lake: Lake, prices: list[str]) -> int:
    month = str(MONTH)
    batch = ["batch", "--lake", lake.url, "--month", month, *prices]
    rate, analyse = ["rate", "--period", month, *prices], ["analyse", "--month", month, *prices]
    return main([*batch, "then", *rate, "then", *analyse, "then", "check", "--month", month])


def results(lake: Lake) -> dict[str, Any]:
    """Rows of the month in the lake, in order, without the time and the run that made them."""
    tables = LakeTables(lake)
    found: dict[str, Any] = {}
    for name in SCHEMAS:
        rows = tables.read(name, MONTH.first, MONTH.next.first).to_pylist()
        days = [day for at in tables.days(name) if (day := tables.day(name, at))]
        found[name] = lakes.in_order(rows)
        found[f"{name} days"] = [(day.rows, day.sums, day.read.records, day.read.repeated) for day in days]
    rated = Rated(lake).of(MONTH)
    assert rated is not None
    found["rated"] = sorted(map(str, rated.lines.to_pylist()))
    kept = lake.read_bytes(path_of(str(MONTH)))
    assert kept is not None
    found["analysis"] = msgspec.structs.replace(decode(kept), made_at=datetime(2026, 11, 1, tzinfo=UTC))
    return found


def test_a_small_month_has_the_same_result_with_the_settings_of_a_large_one(
    spark: SparkSession,
    tmp_path: Path,
    prices: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    known: dict[str, dict[str, Any]] = {}
    for size in ("small", "large"):
        lake = Lake(str(tmp_path / size))
        bring(lake)
        if size == "large":
            for name in ("batch", "rate", "analyse", "check"):
                monkeypatch.setattr(f"{jobs.JOBS[name]}.input_bytes", lambda *_: 3 * MIB)
            monkeypatch.setattr("spark_analytics.rating._BROADCAST_ROWS", 0)
        assert refreshed(lake, prices) == 0
        assert spark.conf.get("spark.sql.shuffle.partitions") == ("1" if size == "small" else "12")
        assert spark.conf.get("spark.sql.adaptive.enabled") == ("false" if size == "small" else "true")
        known[size] = results(lake)
    assert known["small"] == known["large"]
    assert known["small"]["usage_hourly"]
    assert known["small"]["rated"]
    assert "rated: equal, exactly" in capsys.readouterr().out


def test_consecutive_jobs_share_a_session_and_each_reports_its_duration(
    spark: SparkSession, tmp_path: Path, prices: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    lake = Lake(str(tmp_path))
    bring(lake)
    tracker = spark.sparkContext.statusTracker()
    before = len(tracker.getJobIdsForGroup())
    assert refreshed(lake, prices) == 0
    message = [line.partition(":")[0] for line in capsys.readouterr().err.splitlines()]
    made = [word for table in SCHEMAS for word in (f"{table} of 2 days …", f"{table} of 2 days")]
    steps = [
        [f"{step} …", *(made if step == "batch" else ()), step] for step in ("batch", "rating", "analysis", "checks")
    ]
    assert message == [word for words in steps for word in words]
    assert len(tracker.getJobIdsForGroup()) - before < 25, "jobs are few, and all of this session"
    assert SparkSession.getActiveSession() == spark


@pytest.mark.parametrize(("given", "message"), table(__file__, "an error in a later job"))
def test_an_error_in_a_later_job_is_reported_before_the_first_one_begins(
    given: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("spark_analytics.batch.run", lambda *_: pytest.fail("it began"))
    monkeypatch.setenv("HOLDFAST_USAGE_LAKE", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        main(given)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_job_that_fails_is_the_last(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("spark_analytics.batch.run", lambda *_: 1)
    monkeypatch.setattr("spark_analytics.quality.run", lambda *_: pytest.fail("the batch had failed"))
    asked = ["batch", "--lake", str(tmp_path), "--day", "2026-10-01", "then", "check", "--month", "2026-10"]
    assert main(asked) == 1


@pytest.mark.parametrize(("size", "quick"), [(1000, True), (SMALL_BYTES + 1, False), (None, False)])
def test_only_what_is_small_is_started_to_end_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int | None, quick: bool
) -> None:
    settings: dict[str, Any] = {}

    class Builder:
        def appName(self, name: str) -> Builder:
            return self

        def config(self, *, map: dict[str, Any]) -> Builder:
            settings.update(map)
            return self

        getOrCreate: Callable[[Builder], None] = lambda self: None

    monkeypatch.setattr("spark_analytics.session.SparkSession.builder", Builder())
    session("test", input_bytes=size)
    assert settings["spark.master"] == ("local[2]" if quick else "local[*]")
    assert ("spark.driver.defaultJavaOptions" in settings) == quick
    session("test", master="local[4]", input_bytes=size)
    assert settings["spark.master"] == "local[4]", "what is asked for is done"
