"""Analytics of a month's usage, for operators and tenants (:mod:`billing.reports.analysis`).

The source is the batch's tables, and for hot partitions the records of storage.  Spark reduces each question to a few
lines for each account; texts and forecast are computed from those.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial, reduce
from pathlib import Path
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F

from billing.lake.lake import Lake
from billing.lake.months import Month
from billing.lake.tables import SCHEMAS, STORAGE_HOURLY, USAGE_HOURLY, LakeTables, days_of
from billing.pricing.estimate import Prices
from billing.pricing.forecast import DAYS_MAX, METHOD, Outlook, outlook, since_first_use
from billing.pricing.plans import STORAGE_METERS, Meter, is_counted
from billing.reports.analysis import (
    DEPTHS_MAX,
    LINES_MAX,
    Analysis,
    BusyQueue,
    Depth,
    EmptyReceives,
    Forecast,
    HotPartition,
    Measure,
    NoisyTenant,
    advice_on_receives,
    encode,
    path_of,
)
from spark_analytics import records
from spark_analytics.input_size import bytes_of_storage, bytes_of_tables
from spark_analytics.period import month_of
from spark_analytics.session import in_one_partition, meter_of_kind, read_files, session

STEP: Final = "analysis"
HELP: Final = "analyse a month's usage: busy queues, waste, depth, hot partitions, noisy tenants, a forecast"

HOT_TIMES: Final = 2.0
"""A partition that stores at least this multiple of its even share of a queue is hot."""
THROTTLED_SHARE: Final = 0.01
NOISY_SHARE: Final = 0.2
"""A tenant with at least this share of all calls affects the others."""

_SENDS: Final = ["SendMessage", "SendMessageBatch", "Produce", "sns:Publish", "sns:PublishBatch"]
_RECEIVE: Final = "ReceiveMessage"
_RECEIVES: Final = [_RECEIVE, "Fetch"]


# --- from tables to a few lines -----------------------------------------------------------------------------


def busiest(usage: DataFrame) -> DataFrame:
    """Queues by their calls, the first of each account."""
    sums = (
        usage.where("queue != ''")
        .groupBy("account", "queue")
        .agg(
            F.sum("calls").alias("calls"),
            _sum_of("messages", F.col("action").isin(_SENDS)).alias("messages_sent"),
            _sum_of("messages", F.col("action").isin(_RECEIVES)).alias("messages_received"),
            *(F.sum(name).alias(name) for name in ("throttled", "bytes_in", "bytes_out")),
        )
        .withColumn("share", F.try_divide(F.col("calls"), F.sum("calls").over(Window.partitionBy("account"))))
        .fillna(0.0, ["share"])
    )
    return _first(sums, F.col("calls"))


def empty_receives(usage: DataFrame) -> DataFrame:
    """Empty receives by queue: for each account, the queues with the most."""
    sums = (
        usage.where(F.col("action") == _RECEIVE)
        .groupBy("account", "queue")
        .agg(F.sum("calls").alias("receives"), F.sum("empty").alias("empty"))
        .where("empty > 0")
        .withColumn("ratio", F.col("empty") / F.col("receives"))
    )
    return _first(sums, F.col("empty"))


def depths(storage: DataFrame) -> DataFrame:
    """Depth and age by queue and day: for each account, the queues with the oldest messages."""
    days = (
        storage.groupBy("account", "queue", F.to_date("hour").alias("day"))
        .agg(F.max("messages_max").alias("messages"), F.max("oldest_age_ms_max").alias("oldest_age_ms"))
        .where("messages > 0")
    )
    queues = days.groupBy("account", "queue").agg(
        F.max("messages").alias("messages_max"),
        F.max("oldest_age_ms").alias("oldest_age_ms_max"),
        F.sort_array(F.collect_list(F.struct("day", "messages", "oldest_age_ms"))).alias("days"),
    )
    return _first(queues, F.col("oldest_age_ms_max"), DEPTHS_MAX)


def hot_partitions(stored: DataFrame) -> DataFrame:
    """Partitions that store much more than their share of a queue, from :func:`spark_analytics.records.storage`."""
    queue = Window.partitionBy("account", "queue_id")
    sums = (
        stored.groupBy("account", "queue", "queue_id", "partition")
        .agg(
            F.sum(F.col("byte_milliseconds").cast("decimal(38,0)")).alias("stored"),
            F.max("messages_max").alias("messages_max"),
        )
        .withColumn("partitions", F.count(F.lit(1)).over(queue))
        .withColumn("share", F.try_divide(F.col("stored"), F.sum("stored").over(queue)).cast("double"))
        .withColumn("times_even", F.col("share") * F.col("partitions"))
        .where((F.col("partitions") > 1) & (F.col("times_even") >= HOT_TIMES))
    )
    return _first(sums, F.col("times_even"))


def noisy(usage: DataFrame) -> DataFrame:
    """Load by account."""
    throttled = F.sum("throttled")
    return (
        usage.groupBy("account")
        .agg(
            F.sum(F.col("calls") + F.col("refused") + F.col("failed") + F.col("throttled")).alias("calls"),
            throttled.alias("throttled"),
        )
        .where("calls > 0")
        .withColumn("throttled_share", F.col("throttled") / F.col("calls"))
        .withColumn("share", F.col("calls") / F.sum("calls").over(Window.partitionBy()))
        .orderBy(F.desc("throttled_share"), F.desc("share"), "account")
    )


def daily(usage: DataFrame, storage: DataFrame) -> DataFrame:
    """Quantity of each meter that each account used, by day."""
    is_stream = F.col("kind") == "stream"
    meter = meter_of_kind()
    bytes_out = F.when(is_stream, "stream_bytes_out").otherwise("bytes_out")
    stored_as = F.when(is_stream, "stream_storage").otherwise("storage")
    day = F.to_date("hour").alias("day")
    amount = F.col("amount").cast("decimal(38,0)")
    requests = usage.select("account", day, meter.alias("meter"), F.col("chunks").alias("amount"))
    sent = usage.select("account", day, bytes_out.alias("meter"), F.col("bytes_out").alias("amount"))
    produced = usage.where(is_stream).select(
        "account", day, F.lit("stream_bytes_in").alias("meter"), F.col("bytes_in").alias("amount")
    )
    stored = storage.select("account", day, stored_as.alias("meter"), F.col("byte_milliseconds").alias("amount"))
    parts = [
        part.select("account", "day", "meter", amount.alias("amount")) for part in (requests, sent, produced, stored)
    ]
    return (
        in_one_partition(reduce(DataFrame.unionByName, parts))
        .groupBy("account", "meter", "day")
        .agg(F.sum("amount").alias("amount"))
    )


def _sum_of(name: str, which: Column) -> Column:
    return F.coalesce(F.sum(F.when(which, F.col(name))), F.lit(0))


def _first(lines: DataFrame, by: Column, lines_max: int = LINES_MAX) -> DataFrame:
    """The first lines of each account, in order."""
    rank = F.row_number().over(Window.partitionBy("account").orderBy(by.desc(), "queue"))
    return (
        lines.withColumn("rank", rank)
        .where(F.col("rank") <= lines_max)
        .drop("rank")
        .orderBy(by.desc(), "account", "queue")
    )


# --- advice -------------------------------------------------------------------------------------------------


def advice_on_noise(calls: int, throttled: int, share: float) -> str:
    """Recommended action for a tenant, as a sentence; empty if there is none."""
    sentences = []
    if throttled >= THROTTLED_SHARE * calls and throttled:
        sentences.append(
            f"{throttled:,} of {calls:,} calls were over a limit: its clients should back off and send in "
            "batches of 10; or raise its limits"
        )
    if share >= NOISY_SHARE:
        sentences.append(
            f"it makes {share:.0%} of all calls: set its limits so that the service has capacity for others"
        )
    return "; ".join(sentences) + "." if sentences else ""


Series = Mapping[str, Mapping[Meter, Mapping[date, int]]]
"""By account, meter and day."""


def series_of(rows: Iterable[Mapping[str, Any]], days: list[date]) -> Series:
    """The rows of :func:`daily`, with a zero for each of these days without usage."""
    found: defaultdict[str, dict[Meter, dict[date, int]]] = defaultdict(dict)
    for row in rows:
        of_meter = found[row["account"]].setdefault(row["meter"], dict.fromkeys(days, 0))
        if row["day"] in of_meter:
            of_meter[row["day"]] = int(row["amount"])
    return found


def forecasts(series: Series, month: Month, prices: Prices | None) -> list[Forecast]:
    """Forecast of each account."""
    first, last = month.first, month.next.first - timedelta(1)
    result = []
    for account, meters in sorted(series.items()):
        found: dict[Meter, Outlook] = {}
        used = since_first_use(meters)
        for meter in meters:
            seen = outlook(used[meter], first, last)
            if seen is not None:
                found[meter] = seen
        requests = [of for meter, of in used.items() if is_counted(meter)]
        stored = [of for meter, of in used.items() if meter in STORAGE_METERS]
        sent = [of for meter, of in used.items() if meter in ("bytes_out", "stream_bytes_out")]
        measured: list[tuple[Measure, Outlook | None]] = [
            ("requests", _together(requests, first, last)),
            ("byte_milliseconds", _together(stored, first, last)),
            ("bytes_out", _together(sent, first, last)),
        ]
        result += [Forecast(account, measure, *of) for measure, of in measured if of is not None]
        if prices is not None and found:
            bills = [
                prices.cost(account, month, {meter: int(of[at]) for meter, of in found.items()})
                for at in range(len(Outlook._fields) - 1)
            ]
            days_seen = max(of.days for of in found.values())
            so_far, low, likely, high = bills
            result.append(Forecast(account, "bill", so_far, low, likely, high, days_seen, prices.currency(account)))
    return result


def _together(meters: Sequence[Mapping[date, int]], first: date, last: date) -> Outlook | None:
    """Outlook of the sum of several meters; None: there are none, or too few days."""
    return outlook({day: sum(of[day] for of in meters) for day in meters[0]}, first, last) if meters else None


def waste(series: Series, month: Month, account: str, queue: str, empty: int, prices: Prices) -> Decimal:
    """Cost of empty receives: the amount that they add to the account's bill so far."""
    units: dict[Meter, int] = {
        meter: sum(amount for day, amount in days.items() if day >= month.first)
        for meter, days in series.get(account, {}).items()
    }
    meter: Meter = "requests_fifo" if queue.endswith(".fifo") else "requests_standard"
    less = {**units, meter: max(0, units.get(meter, 0) - empty)}
    return prices.cost(account, month, units) - prices.cost(account, month, less)


# --- the job ------------------------------------------------------------------------------------------------


def analyse(spark: SparkSession, lake: Lake, month: Month, now: datetime, prices: Prices | None = None) -> Analysis:
    """Days of a month that the batch has summed up, without the current day.

    Raises :class:`~billing.lake.lake.LakeUnavailable` and :class:`~billing.pricing.plans.NoPrice`.
    """
    find = partial(records.files, lake, records.STORAGE_FOLDER, month.first, month.next.first - timedelta(1))
    return records.retry_if_compacted(lambda found: _analyse(spark, lake, month, now, prices), find(), find)


def _analyse(spark: SparkSession, lake: Lake, month: Month, now: datetime, prices: Prices | None) -> Analysis:
    first, last = month.first, month.next.first - timedelta(1)
    before = first - timedelta(DAYS_MAX)
    over = [day for day in LakeTables(lake).days(USAGE_HOURLY) if before <= day <= last and day < now.date()]
    calls = published(spark, lake, USAGE_HOURLY, before, last).where(F.to_date("hour").isin(over))
    storage = published(spark, lake, STORAGE_HOURLY, before, last).where(F.to_date("hour").isin(over))
    series = series_of((row.asDict() for row in daily(calls, storage).toLocalIterator()), over)
    usage = calls.where(F.to_date("hour") >= F.lit(first)).persist()
    stored = storage.where(F.to_date("hour") >= F.lit(first))
    days = [day for day in over if day >= first]
    hot = hot_partitions(records.storage(spark, lake, days[0], days[-1])).collect() if days else []
    try:
        return Analysis(
            str(month),
            now,
            days,
            [BusyQueue(**_line(row)) for row in busiest(usage).collect()],
            [
                EmptyReceives(
                    **_line(row),
                    advice=advice_on_receives(row["receives"], row["empty"]),
                    cost=waste(series, month, row["account"], row["queue"], row["empty"], prices) if prices else None,
                    currency=prices.currency(row["account"]) if prices else "",
                )
                for row in empty_receives(usage).collect()
            ],
            [
                Depth(
                    row["account"],
                    row["queue"],
                    row["messages_max"],
                    row["oldest_age_ms_max"],
                    *([point[name] for point in row["days"]] for name in ("day", "messages", "oldest_age_ms")),
                )
                for row in depths(stored).collect()
            ],
            [HotPartition(**{name: row[name] for name in HotPartition.__struct_fields__}) for row in hot],
            [
                NoisyTenant(**_line(row), advice=advice_on_noise(row["calls"], row["throttled"], row["share"]))
                for row in noisy(usage).collect()
            ],
            forecasts(series, month, prices),
            METHOD,
        )
    finally:
        usage.unpersist()


def published(spark: SparkSession, lake: Lake, name: str, first: date, last: date) -> DataFrame:
    """The days of a table that the batch has published, of a period, both included.

    Raises :class:`~billing.lake.lake.LakeUnavailable`.
    """
    nothing = spark.createDataFrame(SCHEMAS[name].empty_table())
    files = LakeTables(lake).files(name, first, last)
    if not files:
        return nothing
    return read_files(spark, lake, files, nothing.schema)


def _line(row: Row) -> dict[str, Any]:
    return row.asDict()


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--month", type=month_of, required=True, metavar="2026-11", help="a month; or this, or last (UTC)"
    )
    parser.add_argument("--plan", type=Path, metavar="FILE", help="the price book, for costs")
    parser.add_argument(
        "--accounts", type=Path, metavar="FILE", help="file that assigns plans to accounts, if there are several"
    )


def input_bytes(options: argparse.Namespace, lake: Lake) -> int:
    """Current size of the input.  Raises :class:`billing.lake.lake.LakeUnavailable`."""
    month: Month = options.month
    first, last = month.first, month.next.first - timedelta(1)
    tables = LakeTables(lake)
    return bytes_of_tables(tables, days_of(first - timedelta(DAYS_MAX), last)) + bytes_of_storage(
        tables, days_of(first, last)
    )


def run(options: argparse.Namespace, lake: Lake) -> int:
    month: Month = options.month
    prices = Prices.load(options.plan, options.accounts) if options.plan else None
    spark = session(
        "holdfast analyse", lake, master=options.master, memory=options.memory, input_bytes=options.input_bytes
    )
    made = analyse(spark, lake, month, datetime.now(UTC), prices)
    lake.write_bytes(path_of(str(month)), encode(made))
    days = f"{len(made.days)} complete days, up to {made.days[-1]}" if made.days else "no complete day"
    print(f"{path_of(str(month))}: {days}; {len(made.noisy)} accounts used something on them")
    return 0
