"""Analytics of a month: what its usage tells, for operators and tenants (:mod:`billing.reports.analysis`).

Made from the tables of the batch, and hot partitions from the records of storage.  Spark brings each question down to
the few lines of each account that are told; the texts and the forecast are made of those.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F

from billing.lake.lake import Lake
from billing.lake.months import Month
from billing.lake.tables import SCHEMAS, STORAGE_HOURLY, USAGE_HOURLY, LakeTables, days_of
from billing.pricing.estimate import Prices
from billing.pricing.forecast import DAYS_MOST, METHOD, Outlook, outlook, since_first_use
from billing.pricing.plans import Meter
from billing.reports.analysis import (
    DEPTHS_MOST,
    LINES_MOST,
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
from spark_analytics.session import in_one_partition, read_files, session

STEP: Final = "analysis"
HELP: Final = "say what a month's usage tells: busy queues, waste, depth, hot partitions, noisy tenants, a forecast"

HOT_TIMES: Final = 2.0
"""A partition is hot from so many times its even part of the queue."""
THROTTLED_SHARE: Final = 0.01
NOISY_SHARE: Final = 0.2
"""Share of the whole from which on one tenant's load is felt by the others."""

_SENDS: Final = ["SendMessage", "SendMessageBatch"]
_RECEIVE: Final = "ReceiveMessage"


# --- from tables to a few lines -----------------------------------------------------------------------------


def busiest(usage: DataFrame) -> DataFrame:
    """Queues by their calls, the first of each account."""
    sums = (
        usage.where("queue != ''")
        .groupBy("account", "queue")
        .agg(
            F.sum("calls").alias("calls"),
            _sum_of("messages", F.col("action").isin(_SENDS)).alias("messages_sent"),
            _sum_of("messages", F.col("action") == _RECEIVE).alias("messages_received"),
            *(F.sum(name).alias(name) for name in ("throttled", "bytes_in", "bytes_out")),
        )
        .withColumn("share", F.try_divide(F.col("calls"), F.sum("calls").over(Window.partitionBy("account"))))
        .fillna(0.0, ["share"])
    )
    return _first(sums, F.col("calls"))


def empty_receives(usage: DataFrame) -> DataFrame:
    """Queues by what their receives find, those with the most empty ones of each account."""
    sums = (
        usage.where(F.col("action") == _RECEIVE)
        .groupBy("account", "queue")
        .agg(F.sum("calls").alias("receives"), F.coalesce(F.sum("empty"), F.lit(0)).alias("empty"))
        .where("empty > 0")
        .withColumn("ratio", F.col("empty") / F.col("receives"))
    )
    return _first(sums, F.col("empty"))


def depths(storage: DataFrame) -> DataFrame:
    """Queues' depth and age day by day: those of each account that had the oldest messages."""
    days = (
        storage.groupBy("account", "queue", F.to_date("hour").alias("day"))
        .agg(F.max("messages_most").alias("messages"), F.max("oldest_age_ms_most").alias("oldest_age_ms"))
        .where("messages > 0")
    )
    queues = days.groupBy("account", "queue").agg(
        F.max("messages").alias("messages_most"),
        F.max("oldest_age_ms").alias("oldest_age_ms_most"),
        F.sort_array(F.collect_list(F.struct("day", "messages", "oldest_age_ms"))).alias("days"),
    )
    return _first(queues, F.col("oldest_age_ms_most"), DEPTHS_MOST)


def hot_partitions(stored: DataFrame) -> DataFrame:
    """Partitions that store much more than their part of a queue, of :func:`spark_analytics.records.storage`."""
    queue = Window.partitionBy("account", "queue_id")
    sums = (
        stored.groupBy("account", "queue", "queue_id", "partition")
        .agg(
            F.sum(F.col("byte_milliseconds").cast("decimal(38,0)")).alias("stored"),
            F.max("messages_most").alias("messages_most"),
        )
        .withColumn("partitions", F.count(F.lit(1)).over(queue))
        .withColumn("share", F.try_divide(F.col("stored"), F.sum("stored").over(queue)).cast("double"))
        .withColumn("times_even", F.col("share") * F.col("partitions"))
        .where((F.col("partitions") > 1) & (F.col("times_even") >= HOT_TIMES))
    )
    return _first(sums, F.col("times_even"))


def noisy(usage: DataFrame) -> DataFrame:
    """Every account by what it takes."""
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
    meter = F.when(F.col("kind").isin("fifo", "fair"), F.concat(F.lit("requests_"), "kind")).otherwise(
        "requests_standard"
    )
    day = F.to_date("hour").alias("day")
    amount = F.col("amount").cast("decimal(38,0)")
    requests = usage.select("account", day, meter.alias("meter"), F.col("chunks").alias("amount"))
    sent = usage.select("account", day, F.lit("bytes_out").alias("meter"), F.col("bytes_out").alias("amount"))
    stored = storage.select("account", day, F.lit("storage").alias("meter"), F.col("byte_milliseconds").alias("amount"))
    parts = [part.select("account", "day", "meter", amount.alias("amount")) for part in (requests, sent, stored)]
    return (
        in_one_partition(parts[0].unionByName(parts[1]).unionByName(parts[2]))
        .groupBy("account", "meter", "day")
        .agg(F.sum("amount").alias("amount"))
    )


def _sum_of(name: str, which: Column) -> Column:
    return F.coalesce(F.sum(F.when(which, F.col(name))), F.lit(0))


def _first(lines: DataFrame, by: Column, most: int = LINES_MOST) -> DataFrame:
    """The first lines of each account, and all of them in that order."""
    rank = F.row_number().over(Window.partitionBy("account").orderBy(by.desc(), "queue"))
    return (
        lines.withColumn("rank", rank).where(F.col("rank") <= most).drop("rank").orderBy(by.desc(), "account", "queue")
    )


# --- from lines to what is said -----------------------------------------------------------------------------


def advice_on_noise(calls: int, throttled: int, share: float) -> str:
    """Recommended action for a tenant, as a sentence; empty if there is none."""
    said = []
    if throttled >= THROTTLED_SHARE * calls and throttled:
        said.append(
            f"{throttled:,} of {calls:,} calls were over a limit: let its clients back off and send in batches of 10, "
            "or raise its limits"
        )
    if share >= NOISY_SHARE:
        said.append(
            f"it makes {share:.0%} of all calls: see that its limits are below what the service can carry beside it"
        )
    return "; ".join(said) + "." if said else ""


Series = Mapping[str, Mapping[Meter, Mapping[date, int]]]
"""By account, meter and day."""


def series_of(rows: Iterable[Mapping[str, Any]], days: list[date]) -> Series:
    """The rows of :func:`daily`, with a zero on each of these days on which nothing was used."""
    found: defaultdict[str, dict[Meter, dict[date, int]]] = defaultdict(dict)
    for row in rows:
        of_meter = found[row["account"]].setdefault(row["meter"], dict.fromkeys(days, 0))
        if row["day"] in of_meter:
            of_meter[row["day"]] = int(row["amount"])
    return found


def forecasts(series: Series, month: Month, prices: Prices | None) -> list[Forecast]:
    """Forecast of each account."""
    first, last = month.first, month.next.first - timedelta(1)
    said = []
    for account, meters in sorted(series.items()):
        found: dict[Meter, Outlook] = {}
        used = since_first_use(meters)
        for meter in meters:
            seen = outlook(used[meter], first, last)
            if seen is not None:
                found[meter] = seen
        requests = [of for meter, of in used.items() if meter.startswith("requests")]
        together = (
            outlook({day: sum(of[day] for of in requests) for day in requests[0]}, first, last) if requests else None
        )
        measured: list[tuple[Measure, Outlook | None]] = [
            ("requests", together),
            ("byte_milliseconds", found.get("storage")),
            ("bytes_out", found.get("bytes_out")),
        ]
        said += [Forecast(account, measure, *of) for measure, of in measured if of is not None]
        if prices is not None and found:
            bills = [
                prices.cost(account, month, {meter: int(of[at]) for meter, of in found.items()})
                for at in range(len(Outlook._fields) - 1)
            ]
            days_seen = max(of.days for of in found.values())
            so_far, low, likely, high = bills
            said.append(Forecast(account, "bill", so_far, low, likely, high, days_seen, prices.currency(account)))
    return said


def waste(series: Series, month: Month, account: str, queue: str, empty: int, prices: Prices) -> Decimal:
    """Cost of empty receives: the amount by which the account's bill so far would be less without them."""
    units: dict[Meter, int] = {
        meter: sum(amount for day, amount in days.items() if day >= month.first)
        for meter, days in series.get(account, {}).items()
    }
    meter: Meter = "requests_fifo" if queue.endswith(".fifo") else "requests_standard"
    less = {**units, meter: max(0, units.get(meter, 0) - empty)}
    return prices.cost(account, month, units) - prices.cost(account, month, less)


# --- the job ------------------------------------------------------------------------------------------------


def analyse(spark: SparkSession, lake: Lake, month: Month, now: datetime, prices: Prices | None = None) -> Analysis:
    """Days of a month that the batch has done, without the current day.

    Raises :class:`~billing.lake.lake.LakeUnavailable` and :class:`~billing.pricing.plans.NoPrice`.
    """
    find = partial(records.files, lake, records.STORAGE_FOLDER, month.first, month.next.first - timedelta(1))
    return records.of_what_stays(lambda found: _analyse(spark, lake, month, now, prices), find(), find)


def _analyse(spark: SparkSession, lake: Lake, month: Month, now: datetime, prices: Prices | None) -> Analysis:
    first, last = month.first, month.next.first - timedelta(1)
    before = first - timedelta(DAYS_MOST)
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
                    row["messages_most"],
                    row["oldest_age_ms_most"],
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
    parser.add_argument("--plan", type=Path, metavar="FILE", help="the price book, for what is said of money")
    parser.add_argument("--accounts", type=Path, metavar="FILE", help="who has which plan, where there are several")


def input_bytes(options: argparse.Namespace, lake: Lake) -> int:
    """The size of what is read, as it is now.  Raises :class:`billing.lake.lake.LakeUnavailable`."""
    month: Month = options.month
    first, last = month.first, month.next.first - timedelta(1)
    tables = LakeTables(lake)
    return bytes_of_tables(tables, days_of(first - timedelta(DAYS_MOST), last)) + bytes_of_storage(
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
    days = f"{len(made.days)} days that are over, up to {made.days[-1]}" if made.days else "no day that is over"
    print(f"{path_of(str(month))}: {days}; {len(made.noisy)} accounts used something on them")
    return 0
