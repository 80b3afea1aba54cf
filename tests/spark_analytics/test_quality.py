"""The checks: data that keep the promises pass; other data are reported and fail."""

import random
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from billing.lake.lake import Lake
from billing.lake.months import Month
from billing.lake.snapshot import started_at
from billing.lake.tables import SCHEMAS, USAGE_HOURLY, DayInput, LakeTables, PublishedDay, days_of
from billing.pricing.invoices import Invoices
from billing.pricing.plans import Customers
from spark_analytics.__main__ import main
from spark_analytics.batch import batch, digest_of
from spark_analytics.quality import ClientCounts, Difference, check, compare, compare_answered, report
from spark_analytics.rating import Rates, rate
from tests.billing.books import book
from tests.spark_analytics import lakes

BOOK = book("estimate")
ONE, TWO = "111111111111", "222222222222"
DAY = date(2026, 10, 31)
LAKE = {ONE: {"calls": 100}, TWO: {"calls": 50}}


@pytest.mark.parametrize(
    ("calls", "in_doubt", "verdict"), [(100, 0, "equal"), (98, 2, "within"), (98, 1, "breach"), (101, 5, "breach")]
)
def test_answered_calls_are_in_the_lake_but_for_those_in_doubt(calls: int, in_doubt: int, verdict: str) -> None:
    found = compare_answered({ONE: ClientCounts(calls, in_doubt)}, LAKE)
    assert found.verdict == verdict
    assert found.differences == ([] if verdict == "equal" else [Difference(ONE, "calls", calls, 100)])
    assert bool(found.advice) == (verdict == "breach")


def test_calls_of_an_account_that_the_lake_does_not_know_are_missing() -> None:
    found = compare_answered({"333333333333": ClientCounts(1)}, LAKE)
    assert (found.verdict, found.differences) == ("breach", [Difference("333333333333", "calls", 1, 0)])
    assert "not in the lake" in found.advice


@pytest.mark.parametrize(("same_read", "verdict"), [(True, "breach"), (False, "behind")])
def test_stages_are_equal_or_behind_or_wrong(same_read: bool, verdict: str) -> None:
    given = {"same_read": same_read, "run": "run it"}
    assert compare("a and b", LAKE, LAKE, ["calls"], **given).verdict == "equal"  # type: ignore[arg-type]
    found = compare("a and b", LAKE, {ONE: {"calls": 100}}, ["calls"], same_read=same_read, run="run it")
    assert (found.verdict, found.differences) == (verdict, [Difference(TWO, "calls", 50, 0)])
    assert "run it" in found.advice


def test_a_lake_and_its_tables_are_compared_and_a_breach_fails(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = Lake(str(tmp_path / "lake"))
    chance = random.Random(3)
    first, late = lakes.calls(chance, DAY, 200), lakes.calls(chance, DAY, 20)
    lakes.bring(lake, first)
    lakes.bring(lake, first[:30])
    lakes.bring_stored(
        lake, "s", [lakes.stored(DAY, 3, 0, 1), lakes.stored(DAY, 3, 0, 1, epoch=2, byte_milliseconds=7)]
    )
    batch(spark, lake, DAY, DAY)
    tables = LakeTables(lake)
    published = tables.day(USAGE_HOURLY, DAY)
    assert published is not None
    wrong = msgspec.structs.replace(published, files=(), run="99990101T000000-00000000")
    tables.publish(USAGE_HOURLY, DAY, wrong, over=published)
    answered = tmp_path / "answered.json"
    answered.write_bytes(msgspec.json.encode({TWO: {"calls": 10**9}}))
    given = ["check", "--lake", lake.root, "--month", "2026-10", "--answered", str(answered)]
    assert main(given) == 1
    output = capsys.readouterr().out
    assert "answered and lake: THE PROMISE IS BROKEN" in output
    assert "lake and tables: THE PROMISE IS BROKEN" in output
    assert "do not close the month" in output
    assert f"{sum(one.counts[0] for one in first):,}" in output

    lakes.bring(lake, late)
    sums = {one: sum(of.counts[0] for of in first + late if of.key.account == one) for one in (ONE, TWO)}
    answered.write_bytes(msgspec.json.encode({ONE: {"calls": sums[ONE]}, TWO: {"calls": sums[TWO] - 3, "in_doubt": 3}}))
    assert main(given) == 0
    output = capsys.readouterr().out
    assert "answered and lake: within the promise" in output
    assert "lake and tables: the later one is out of date" in output
    assert f"batch --day {DAY}" in output


def test_the_days_beside_a_month_that_it_is_rated_by_are_compared_too(spark: SparkSession, tmp_path: Path) -> None:
    lake, chance, november = Lake(str(tmp_path / "lake")), random.Random(7), Month(2026, 11)
    lakes.bring(lake, [*lakes.calls(chance, DAY, 50), *lakes.calls(chance, date(2026, 11, 3), 50)])
    batch(spark, lake, DAY, DAY)
    batch(spark, lake, date(2026, 11, 3), date(2026, 11, 3))
    rate(spark, lake, Rates(november, book("zones"), Customers("berlin")))
    _, findings = check(spark, lake, november, None)
    assert {one.between: one.verdict for one in findings} == {
        "lake and tables": "equal",
        f"lake and tables of {DAY}": "equal",
        "tables and rated": "equal",
    }
    lakes.bring(lake, lakes.calls(chance, DAY, 5))
    _, findings = check(spark, lake, november, None)
    (behind,) = [one for one in findings if one.verdict == "behind"]
    assert behind.between == f"lake and tables of {DAY}"
    assert f"run `python -m spark_analytics batch --day {DAY}`" in behind.advice


def test_ratings_and_invoices_equal_the_tables_and_late_usage_is_behind_until_it_is_corrected(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(str(tmp_path / "lake"))
    chance = random.Random(5)
    month, by = Month(2026, 10), Rates(Month(2026, 10), BOOK, Customers("standard"))
    invoices = Invoices(lake)
    output: list[str] = []

    def verdicts() -> dict[str, str]:
        stages, findings = check(spark, lake, month, None)
        output.append(report(month, stages, findings))
        return {found.between: found.verdict for found in findings}

    lakes.bring(lake, lakes.calls(chance, DAY, 100))
    lakes.bring_stored(lake, "s", [lakes.stored(DAY, 3, 0, 1, byte_milliseconds=10**18)])
    batch(spark, lake, DAY, DAY)
    publish_the_rest(lake, month)
    rate(spark, lake, by)
    invoices.close("2026-10", datetime(2026, 11, 2, tzinfo=UTC))
    equal = {"lake and tables": "equal", "tables and rated": "equal", "rated and invoices": "equal"}
    with monkeypatch.context() as meanwhile:
        gone = lakes.merge_while_read(meanwhile, times=1)
        assert verdicts() == equal
        assert gone, "the first try failed"
    assert output[0].count("equal, exactly") == 3
    lakes.bring(lake, lakes.calls(chance, DAY, 10))
    batch(spark, lake, DAY, DAY)
    assert verdicts() == equal | {"tables and rated": "behind"}
    rate(spark, lake, by)
    assert verdicts() == equal | {"rated and invoices": "behind"}


def publish_the_rest(lake: Lake, month: Month) -> None:
    """Nothing was used on the other days: a month is closed only when the batch has done all of it."""
    tables = LakeTables(lake)
    run = "20261102T000000-00000000"
    for name in SCHEMAS:
        for day in days_of(month.first, month.next.first - timedelta(1)):
            if tables.day(name, day) is None:
                read = DayInput(0, 0, 0, digest_of([]), started_at(run))
                tables.publish(name, day, PublishedDay(run, (), 0, {}, read))


def test_arguments_are_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "wrong.json").write_text('{"111111111111": {"answered": 1}}')
    for name, output in (("none.json", "cannot be read"), ("wrong.json", "does not hold counts of clients")):
        with pytest.raises(SystemExit):
            main(["check", "--lake", str(tmp_path), "--month", "2026-10", "--answered", str(tmp_path / name)])
        assert output in capsys.readouterr().err
