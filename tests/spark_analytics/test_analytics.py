"""Analysis of months whose usage is known."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from billing.lake.lake import Lake, hour_of, table_of
from billing.lake.months import Month
from billing.metering.usage import COUNTS, UsageKey, UsageRecord
from billing.pricing.estimate import Prices
from billing.pricing.forecast import METHOD
from billing.pricing.plans import Customers
from billing.reports.analysis import LINES_MAX, Analysis, advice_on_receives, decode
from spark_analytics.__main__ import main
from spark_analytics.analytics import advice_on_noise, analyse, forecasts, series_of, waste
from spark_analytics.batch import batch
from tests.billing.books import book
from tests.spark_analytics import lakes

BOOK = book("estimate")
ONE, TWO = "111111111111", "222222222222"
MONTH = Month(2026, 11)
FIRST = date(2026, 11, 1)
DAYS = 6
NOW = datetime(2026, 11, 1 + DAYS, 9, tzinfo=UTC)


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Six days and a morning, all alike, of two tenants."""
    lake = Lake(str(tmp_path_factory.mktemp("month") / "lake"))
    sequence = 0
    for number in range(DAYS + 1):
        day = FIRST + timedelta(number)
        found: list[UsageRecord] = []
        for account, queue, queue_id, kind, action, counts in (
            (ONE, "orders", 7, "standard", "SendMessage", {"calls": 1000, "messages": 1000, "bytes_out": 10}),
            (
                ONE,
                "orders",
                7,
                "standard",
                "ReceiveMessage",
                {"calls": 5000, "messages": 900, "empty": 4000, "bytes_out": 90},
            ),
            (ONE, "orders.fifo", 8, "fifo", "ReceiveMessage", {"calls": 100, "messages": 99, "empty": 1}),
            (ONE, "", 0, "", "ListQueues", {"calls": 10}),
            (
                TWO,
                "jobs",
                9,
                "fair",
                "SendMessageBatch",
                {"calls": 300, "messages": 3000, "throttled": 100, "refused": 5},
            ),
        ):
            sequence += 1
            every = dict.fromkeys(COUNTS, 0) | {"chunks": counts["calls"]} | counts
            key = msgspec.convert((account, queue, queue_id, kind, action), UsageKey)
            found.append(UsageRecord("n", "b", sequence, 0, lakes.at(day, 8), key, tuple(every.values())))
        lake.write(hour_of(lakes.at(day, 8)), f"{number:032x}", table_of(found))
        more: dict[str, Any] = {"tags": []}
        stored = [
            lakes.stored(
                day, 8, 0, 1, byte_milliseconds=9000, messages_max=90 + number, oldest_age_ms=1000 * number, **more
            ),
            lakes.stored(day, 8, 0, 2, byte_milliseconds=500, messages_max=5, **more),
            lakes.stored(day, 8, 0, 3, byte_milliseconds=500, messages_max=5, **more),
            lakes.stored(day, 8, 0, 4, account=TWO, queue="jobs", queue_id=9, byte_milliseconds=10, **more),
        ]
        lakes.bring_stored(lake, f"s{number}", stored)
    batch(spark, lake, FIRST, FIRST + timedelta(DAYS))
    return lake


@pytest.fixture(scope="module")
def analysis(spark: SparkSession, lake: Lake) -> Analysis:
    return analyse(spark, lake, MONTH, NOW, Prices(BOOK, Customers("standard")))


def test_the_day_that_is_not_over_is_not_in_it(analysis: Analysis) -> None:
    assert analysis.days == [FIRST + timedelta(number) for number in range(DAYS)]
    assert (analysis.month, analysis.made_at, analysis.forecast_method) == ("2026-11", NOW, METHOD)


def test_the_busiest_queues(analysis: Analysis) -> None:
    assert [(one.account, one.queue, one.calls) for one in analysis.busiest] == [
        (ONE, "orders", 36_000),
        (TWO, "jobs", 1800),
        (ONE, "orders.fifo", 600),
    ]
    orders, jobs, _ = analysis.busiest
    assert (orders.messages_sent, orders.messages_received, orders.bytes_out, orders.throttled) == (6000, 5400, 600, 0)
    assert orders.share == pytest.approx(36_000 / 36_600)
    assert (jobs.messages_sent, jobs.messages_received, jobs.throttled, jobs.share) == (18_000, 0, 600, 1.0)


def test_empty_receives_with_what_to_do_and_what_they_cost(analysis: Analysis) -> None:
    orders, fifo = analysis.empty_receives
    assert (orders.queue, orders.receives, orders.empty, orders.ratio) == ("orders", 30_000, 24_000, 0.8)
    assert orders.advice == advice_on_receives(30_000, 24_000)
    assert "WaitTimeSeconds" in orders.advice
    assert orders.cost == 0  # within what is free
    assert orders.currency == "USD"
    assert (fifo.queue, fifo.empty, fifo.advice) == ("orders.fifo", 6, "")


def test_depth_and_age_day_by_day(analysis: Analysis) -> None:
    orders, jobs = analysis.depths
    assert (orders.queue, orders.messages_max, orders.oldest_age_ms_max) == ("orders", 105, 5000)
    assert orders.days == analysis.days
    assert orders.messages == [100 + number for number in range(DAYS)]
    assert orders.oldest_age_ms == [max(5, 1000 * number) for number in range(DAYS)]
    assert jobs.queue == "jobs"


def test_a_hot_partition(analysis: Analysis) -> None:
    (hot,) = analysis.hot_partitions
    assert (hot.account, hot.queue, hot.partition, hot.partitions, hot.messages_max) == (ONE, "orders", 1, 3, 95)
    assert hot.share == pytest.approx(0.9)
    assert hot.times_even == pytest.approx(2.7)


def test_noisy_tenants(analysis: Analysis) -> None:
    two, one = analysis.noisy
    assert (two.account, two.calls, two.throttled) == (TWO, DAYS * 405, 600)
    assert two.throttled_share == pytest.approx(100 / 405)
    assert two.share == pytest.approx(405 / (405 + 6110))
    assert "over a limit" in two.advice
    assert "of all calls" in one.advice


def test_the_forecast_of_days_that_are_all_alike_is_thirty_of_them(analysis: Analysis) -> None:
    found = {(one.account, one.measure): one for one in analysis.forecasts}
    requests = found[ONE, "requests"]
    assert [int(one) for one in (requests.so_far, requests.low, requests.likely, requests.high)] == [
        36_660,
        *[183_300] * 3,
    ]
    assert requests.days == DAYS
    assert found[ONE, "byte_milliseconds"].likely == 300_000
    assert found[ONE, "bytes_out"].likely == 3000
    bill = found[TWO, "bill"]
    # 300 x 30 fair requests at 0.42 a million are 0.00378: nothing in cents.
    assert bill.so_far == bill.likely == 0
    assert bill.currency == "USD"


def test_a_bill_is_forecast_and_waste_is_priced_by_the_plan() -> None:
    prices = Prices(BOOK, Customers("standard"))
    days = [FIRST + timedelta(number) for number in range(10)]
    series = series_of(
        [{"account": ONE, "meter": "requests_standard", "day": day, "amount": Decimal(100_000)} for day in days], days
    )
    (_, bill) = forecasts(series, MONTH, prices)
    # A million so far is free; of three million two cost 0.40 each, and 20 percent are on top.
    assert bill.measure == "bill"
    assert [bill.so_far, bill.low, bill.likely, bill.high] == [0, *[Decimal("0.96")] * 3]
    dear = series_of(
        [{"account": ONE, "meter": "requests_standard", "day": day, "amount": Decimal(500_000)} for day in days], days
    )
    # Of five million two cost 0.40 and two 0.30: without the last three million there is one of 0.40.
    assert waste(dear, MONTH, ONE, "orders", 3_000_000, prices) == Decimal("1.68") - Decimal("0.48")
    assert waste(dear, MONTH, ONE, "orders.fifo", 3_000_000, prices) == 0


def test_it_is_kept_in_the_lake_and_a_month_without_anything_too(
    lake: Lake, spark: SparkSession, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = lakes.merge_while_read(monkeypatch, times=1)
    assert main(["analyse", "--lake", lake.root, "--month", "2026-11"]) == 0
    assert "analytics/month=2026-11.json: " in (output := capsys.readouterr().out)
    assert " complete days, up to 2026-11-" in output
    kept = lake.read_bytes("analytics/month=2026-11.json")
    assert kept is not None
    assert [one.queue for one in decode(kept).busiest] == ["orders", "jobs", "orders.fifo"]
    assert decode(kept).empty_receives[0].cost is None
    assert gone, "the first try failed"
    assert [hot.share for hot in decode(kept).hot_partitions] == [pytest.approx(0.9)]
    nothing = analyse(spark, lake, Month(2026, 3), NOW)
    assert (nothing.days, nothing.busiest, nothing.noisy, nothing.forecasts) == ([], [], [], [])


def test_each_account_has_its_first_lines(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    found = [
        UsageRecord(
            "n",
            "b",
            1,
            slot,
            lakes.at(FIRST),
            UsageKey(account, f"q{n:03}", slot + 1, "standard", "SendMessage"),
            (n, *[0] * 8),
        )
        for slot, (account, n) in enumerate((account, n) for account in (ONE, TWO) for n in range(1, LINES_MAX + 6))
    ]
    lake.write(hour_of(lakes.at(FIRST)), "f" * 32, table_of(found))
    batch(spark, lake, FIRST, FIRST)
    busiest = analyse(spark, lake, MONTH, NOW).busiest
    assert len(busiest) == 2 * LINES_MAX
    assert [(one.account, one.calls) for one in busiest[:2]] == [(ONE, LINES_MAX + 5), (TWO, LINES_MAX + 5)]
    assert min(one.calls for one in busiest) == 6


@pytest.mark.parametrize(
    ("calls", "throttled", "share", "part"),
    [(100, 0, 0.1, ""), (1000, 9, 0.1, ""), (1000, 10, 0.1, "over a limit"), (1000, 0, 0.2, "20% of all calls")],
)
def test_advice_on_noise(calls: int, throttled: int, share: float, part: str) -> None:
    advice = advice_on_noise(calls, throttled, share)
    assert (part in advice) if part else advice == ""
