"""The rating: from a month's tables of hours to what each queue's usage costs, tier by tier.

A unit's tier is its place in the order in which its account used the meter in the month: by hours, and within an hour
by queue, its id and its tags.  To know the tiers only the sums of hours are put in order, one number for each account,
meter and hour.  They say that most hours are in one tier as a whole, whoever used what in them; only in the few hours
in which a tier ends, a handful for each account, are queues put in order as well.

Money is :class:`DecimalType` throughout; what a line costs is what :func:`billing.pricing.money.line_amount` says.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec
from pyspark.sql import Column, DataFrame, Observation, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from billing.lake.lake import Lake
from billing.lake.months import Month
from billing.lake.tables import STORAGE_HOURLY, USAGE_HOURLY, LakeTables, new_run
from billing.pricing.billing_days import (
    EVERYBODY_ELSE,
    TABLES,
    batch_command,
    begins,
    days_in_words,
    days_needed,
    month_hours,
)
from billing.pricing.charges import RATED
from billing.pricing.closing import Closed
from billing.pricing.invoices import Invoices
from billing.pricing.money import BASIS_POINTS, PRICE_PLACES
from billing.pricing.plans import METERS, Customers, PriceBook
from billing.pricing.rated import FewerHours, Rated, Rating, check_hours, folder_of
from spark_analytics.input_size import bytes_of_tables, rows_of_tables
from spark_analytics.period import load_prices, month_of
from spark_analytics.session import JobFailed, frame_of, in_one_partition, read_files, session, write_files

STEP: Final = "rating"
HELP: Final = "what the usage of a month costs: for each queue and set of tags, tier by tier"

_UNITS: Final = DecimalType(38, 0)
_AMOUNT: Final = DecimalType(38, 15)
_NAMED: Final = StructType(
    [
        StructField("account", StringType()),
        StructField("plan", StringType()),
        StructField("own_discount", IntegerType()),
        StructField("begins", TimestampType()),
    ]
)
_RATES: Final = StructType(
    [
        StructField("plan", StringType()),
        StructField("meter", StringType()),
        StructField("segment", IntegerType()),
        StructField("opens", TimestampType()),
        StructField("starts", TimestampType()),
        StructField("ends", TimestampType()),
        StructField("version", DateType()),
        StructField("tier", IntegerType()),
        StructField("from_units", _UNITS),
        StructField("to_units", _UNITS),
        StructField("tier_starts", DecimalType(38, 9)),
        StructField("tier_ends", DecimalType(38, 9)),
        StructField("price", DecimalType(12, PRICE_PLACES)),
        StructField("per", DecimalType(20, 0)),
        StructField("discount", IntegerType()),
    ]
)
_HOURLY: Final = [
    StructField("account", StringType()),
    StructField("queue", StringType()),
    StructField("queue_id", LongType()),
    StructField("kind", StringType()),
    StructField("tags", MapType(StringType(), StringType())),
    StructField("hour", TimestampType()),
]
SCHEMAS: Final = {
    USAGE_HOURLY: StructType([*_HOURLY, StructField("chunks", LongType()), StructField("bytes_out", LongType())]),
    STORAGE_HOURLY: StructType([*_HOURLY, StructField("byte_milliseconds", DecimalType(38, 0))]),
}
"""Columns that are read of the hourly tables."""
_OF: Final = ("queue", "queue_id", "tags")
_PLACED: Final = ("account", "plan", "segment", "meter", "tier")
_BROADCAST_ROWS: Final = 1_000_000
"""So many spans of hours are given to each executor; more are shuffled."""


def units_of(calls: DataFrame, storage: DataFrame) -> DataFrame:
    """The tables of hours as units of meters: ``account``, ``hour``, ``queue``, ``queue_id``, ``tags``, ``meter``,
    ``units``."""
    kind = F.col("kind")
    requests = (
        F.when(kind == "fifo", "requests_fifo").when(kind == "fair", "requests_fair").otherwise("requests_standard")
    )
    measured = F.array(
        F.struct(requests.alias("meter"), F.col("chunks").alias("units")),
        F.struct(F.lit("bytes_out").alias("meter"), F.col("bytes_out").alias("units")),
    )
    named = ("account", "hour", "queue", "queue_id", "tags")
    of_calls = calls.select(*named, F.inline(measured))
    of_storage = storage.select(*named, F.lit("storage").alias("meter"), F.col("byte_milliseconds").alias("units"))
    units = of_calls.withColumn("units", F.col("units").cast(_UNITS)).unionByName(of_storage)
    return in_one_partition(units).where(F.col("units") > 0)


class Rates(NamedTuple):
    """By what a month is rated."""

    month: Month
    book: PriceBook
    customers: Customers
    begins: Mapping[str, datetime] = MappingProxyType({})
    """The beginnings of accounts' months that do not begin with their plan's
    (:func:`billing.pricing.billing_days.begins`)."""

    def days(self) -> list[date]:
        """The days (UTC) that have the month's hours."""
        return days_needed(self.month, self.book, self.customers, self.begins)

    def ends(self) -> datetime:
        """The end of the month for the last account (UTC)."""
        return month_hours(self.month, self.book, self.customers, self.begins)[1]


def rates_of(spark: SparkSession, by: Rates) -> DataFrame:
    """A row for each tier of each meter in each part of the month, of the plans that somebody has.

    ``opens``: when the plan's month does.  The first part ``starts`` with the first account's.  Raises
    :class:`billing.pricing.plans.NoPrice`.
    """
    rows = []
    month = by.month
    for name in by.customers.plans():
        plan = by.book.plan(name)
        opens, _ = plan.edges(month)
        for number, segment in enumerate(plan.segments(month)):
            starts = segment.starts if number else min([segment.starts, *by.begins.values()])
            for meter in METERS:
                for tier_number, tier in enumerate(segment.version.prices[meter], 1):
                    rows.append(
                        (
                            name,
                            meter,
                            number,
                            opens,
                            starts,
                            segment.ends,
                            segment.version.starts,
                            tier_number,
                            Decimal(plan.edge_units(meter, month, tier.starts)),
                            None if tier.ends is None else Decimal(plan.edge_units(meter, month, tier.ends)),
                            tier.starts,
                            tier.ends,
                            tier.price,
                            Decimal(plan.units_per(meter, month)),
                            segment.version.discounts[meter],
                        )
                    )
    return frame_of(spark, rows, _RATES)


def named_of(spark: SparkSession, by: Rates) -> DataFrame:
    """The accounts that have a plan or a discount of their own, or whose month begins when their plan's does not."""
    rows = []
    for account in sorted({*by.customers.named, *by.begins} - {EVERYBODY_ELSE}):
        customer = by.customers.of(account)
        rows.append((account, customer.plan, customer.discount, by.begins.get(account)))
    return frame_of(spark, rows, _NAMED)


def _begins(by: Rates) -> Column:
    """Time at which an account's month opens, for rows with the columns of :func:`named_of` (null without one) and
    the plan's ``opens``."""
    return F.coalesce("begins", F.lit(by.begins.get(EVERYBODY_ELSE)).cast("timestamp"), "opens")


def hours_in_order(units: DataFrame, rates: DataFrame, named: DataFrame, by: Rates) -> DataFrame:
    """The sums of hours with the tiers in which they are: a row for each tier that an hour touches.

    ``before``: the account's units of this meter in the month before this hour.  ``whole``: all of the hour is in this
    tier.  Hours outside the account's month are left out.
    """
    edges = rates.groupBy("plan").agg(F.min("opens").alias("opens"), F.max("ends").alias("month_ends"))
    sums = (
        units.groupBy("account", "meter", "hour")
        .agg(F.sum("units").cast(_UNITS).alias("units"))
        .join(F.broadcast(named.select("account", "plan", "begins")), "account", "left")
        .withColumn("plan", F.coalesce("plan", F.lit(by.customers.default)))
        .join(F.broadcast(edges), "plan")
        .where((F.col("hour") >= _begins(by)) & (F.col("hour") < F.col("month_ends")))
    )
    earlier = Window.partitionBy("account", "meter").orderBy("hour").rowsBetween(Window.unboundedPreceding, -1)
    sums = sums.withColumn("before", F.coalesce(F.sum("units").over(earlier), F.lit(0)).cast(_UNITS))
    return (
        sums.withColumn("after", (F.col("before") + F.col("units")).cast(_UNITS))
        .join(
            F.broadcast(rates.select("plan", "meter", "segment", "starts", "ends", "tier", "from_units", "to_units")),
            ["plan", "meter"],
        )
        .where("hour >= starts and hour < ends and from_units < after and (to_units is null or to_units > before)")
        .withColumn("whole", F.expr("from_units <= before and (to_units is null or after <= to_units)"))
        .select(*_PLACED, "hour", "before", "from_units", "to_units", "whole")
    )


def placed(units: DataFrame, hours: DataFrame, spans_are_few: bool) -> DataFrame:
    """All units in their tiers: :data:`_PLACED`, :data:`_OF` (tags as JSON) and ``units``.

    ``hours``: of :func:`hours_in_order`.  ``spans_are_few``: they are sent to where the units are, instead of shuffling
    these.
    """
    spans = spans_of(hours)
    in_spans = units.join(F.broadcast(spans) if spans_are_few else spans, ["account", "meter"]).where(
        "hour between first_hour and last_hour"
    )
    split = hours.where("not whole")
    which = split.select("account", "meter", "hour", "before").distinct()
    in_hour = Window.partitionBy("account", "meter", "hour").orderBy(*_OF)
    queues = (
        units.join(F.broadcast(which) if spans_are_few else which, ["account", "meter", "hour"])
        .withColumn("tags", _tags_json())
        .groupBy("account", "meter", "hour", "before", *_OF)
        .agg(F.sum("units").cast(_UNITS).alias("units"))
        .withColumn("ends", (F.col("before") + F.sum("units").over(in_hour)).cast(_UNITS))
        .withColumn("begins", (F.col("ends") - F.col("units")).cast(_UNITS))
        .drop("before", "units")
        .join(split.drop("before", "whole"), ["account", "meter", "hour"])
        .where("from_units < ends and (to_units is null or to_units > begins)")
        .withColumn("until", F.least("ends", F.coalesce("to_units", "ends")))
        .withColumn("units", (F.col("until") - F.greatest("begins", "from_units")).cast(_UNITS))
    )
    columns = (*_PLACED, *_OF, "units")
    return in_spans.withColumn("tags", _tags_json()).select(*columns).unionByName(queues.select(*columns))


def _tags_json() -> Column:
    """Tags as JSON, by name: maps are no keys."""
    by_name = F.map_from_entries(F.array_sort(F.map_entries("tags")))
    return F.when(F.size("tags") == 0, "{}").otherwise(F.to_json(by_name))


def spans_of(hours: DataFrame) -> DataFrame:
    """From which hour to which an account's usage of a meter is in one tier, as a whole."""
    return (
        hours.where("whole").groupBy(*_PLACED).agg(F.min("hour").alias("first_hour"), F.max("hour").alias("last_hour"))
    )


def lines_of(units: DataFrame, rates: DataFrame, named: DataFrame, by: Rates) -> DataFrame:
    """The lines, as :data:`billing.pricing.charges.RATED`, of the units of :func:`placed`."""
    priced = rates.drop("from_units", "to_units")
    summed = units.groupBy(*_PLACED, *_OF).agg(F.sum("units").cast(_UNITS).alias("units"))
    lines = (
        summed.join(F.broadcast(priced), ["plan", "segment", "meter", "tier"])
        .join(F.broadcast(named.drop("plan")), "account", "left")
        .withColumn("discount", F.col("discount") + F.coalesce("own_discount", F.lit(0)))
        .withColumn("starts", F.greatest("starts", _begins(by)))
    )
    micros = (F.col("price") * F.lit(10**PRICE_PLACES)).cast(DecimalType(12, 0))
    return (
        lines.withColumn("cost", (F.col("units") * micros).cast(_UNITS))
        .withColumn("list", _micros_of(F.col("cost"), F.col("per")))
        .withColumn(
            "amount",
            _micros_of(
                (F.col("cost") * (F.lit(BASIS_POINTS) - F.col("discount")).cast(DecimalType(5, 0))).cast(_UNITS),
                (F.col("per") * F.lit(BASIS_POINTS)).cast(DecimalType(24, 0)),
            ),
        )
        .select(*RATED.names)
    )


def _micros_of(cost: Column, per: Column) -> Column:
    """A whole number of millionths, divided by a whole number: rounded half up at the 15th place.

    Spark's own division of decimals this wide keeps six places.  So it is divided as on paper: first what goes in
    whole, and then what is left, moved by nine places.
    """
    per = per.cast(DecimalType(24, 0))
    rest = (cost % per).cast(DecimalType(24, 0))
    whole = ((cost - rest) / per).cast(DecimalType(19, 0))
    moved = (rest * F.lit(Decimal(2 * 10**9))).cast(_UNITS)
    twice = (per * F.lit(Decimal(2))).cast(DecimalType(25, 0))
    doubled = (moved + per).cast(_UNITS)
    places = ((doubled - (doubled % twice)) / twice).cast(DecimalType(10, 0))
    return (
        whole * F.lit(Decimal("0.000001")).cast(DecimalType(6, 6))
        + places * F.lit(Decimal("0.000000000000001")).cast(DecimalType(15, 15))
    ).cast(_AMOUNT)


def rate(spark: SparkSession, lake: Lake, by: Rates) -> Rating:
    """Rate a month anew, out of the tables as they are, and let it count.

    Raises :class:`billing.pricing.plans.NoPrice`, :class:`billing.lake.tables.Outrun`,
    :class:`billing.pricing.rated.FewerHours` and
    :class:`billing.lake.lake.LakeUnavailable`.
    """
    started_at = datetime.now(UTC)
    over = Rated(lake).rating(by.month)
    run = new_run(started_at)
    read, covers = published(lake, by)
    rating = Rating(
        str(by.month), run, started_at, covers, read, by.book, by.customers, (), 0, Decimal(0), dict(by.begins)
    )
    if over is not None:
        check_hours(rating, over)
    rates = rates_of(spark, by)
    named = named_of(spark, by)
    units = units_of(_table(spark, lake, USAGE_HOURLY, by), _table(spark, lake, STORAGE_HOURLY, by))
    hours = hours_in_order(units, rates, named, by).persist()
    try:
        few = 2 * rows_of_tables(LakeTables(lake), by.days()) <= _BROADCAST_ROWS  # a row is units of two meters at most
        few = few or spans_of(hours).count() <= _BROADCAST_ROWS
        lines = lines_of(placed(units, hours, few), rates, named, by)
        seen = Observation()
        observed = lines.observe(seen, F.count(F.lit(1)).alias("lines"), F.sum("amount").alias("amount"))
        folder = folder_of(by.month, run)
        write_files(observed, lake, folder)
    finally:
        hours.unpersist()
    rating = msgspec.structs.replace(
        rating, files=tuple(lake.paths(folder)), lines=seen.get["lines"], amount=seen.get["amount"] or Decimal(0)
    )
    Rated(lake).publish(rating, over)
    return rating


def published(lake: Lake, by: Rates) -> tuple[dict[str, dict[str, str]], datetime]:
    """The runs of the batch whose tables are there, by table and day, and until when they have all usage."""
    tables = LakeTables(lake)
    read: dict[str, dict[str, str]] = {}
    covers = by.ends()
    for name in TABLES:
        runs = read[name] = {}
        for day in by.days():
            there = tables.day(name, day)
            if there is None:
                covers = min(covers, datetime(day.year, day.month, day.day, tzinfo=UTC))
                continue
            runs[str(day)] = there.run
            if there.read_at.date() <= day:
                covers = min(covers, there.read_at)
    return read, covers


def _table(spark: SparkSession, lake: Lake, name: str, by: Rates) -> DataFrame:
    """The rows of the month's published days."""
    days = by.days()
    files = LakeTables(lake).files(name, days[0], days[-1])
    schema = SCHEMAS[name]
    if not files:
        return frame_of(spark, [], schema)
    return read_files(spark, lake, files, schema)


def to_rate(lake: Lake, by: Rates) -> list[Rates]:
    """Months to rate: the month, and those before it that are closed and for which late usage has come.

    A month that is closed is rated by the prices of when it was closed, and again if somebody has rated it by others.
    """
    rated = Rated(lake)
    closings = Invoices(lake).closed()
    found = []
    for month, closed in closings.items():
        then = _after(closings, Rates(month, closed.book, closed.customers))
        rating = rated.rating(month)
        if month <= by.month and (
            rating is None
            or (rating.book, rating.customers) != (closed.book, closed.customers)
            or rating.read != published(lake, then)[0]
        ):
            found.append(then)
        if month == by.month:
            return found
    return [*found, _after(closings, by)]


def _after(closings: Mapping[Month, Closed], by: Rates) -> Rates:
    """With when it begins after the month before, if that is closed."""
    return by._replace(begins=begins(by.month, by.book, by.customers, closings.get(by.month.previous)))


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--period", required=True, type=month_of, metavar="2026-11", help="the month; or this, or last (UTC)"
    )
    parser.add_argument("--plan", required=True, type=Path, metavar="FILE", help="the price book, a YAML file")
    parser.add_argument(
        "--accounts", type=Path, metavar="FILE", help="who has which plan (default: everybody the book's only plan)"
    )


def input_bytes(options: argparse.Namespace, lake: Lake) -> int:
    """The size of what is read, as it is now.

    Raises :class:`ValueError` for prices that cannot be read, and :class:`billing.lake.lake.LakeUnavailable`.
    """
    asked = Rates(options.period, *load_prices(options.plan, options.accounts))
    months = to_rate(lake, asked) or [asked]
    return bytes_of_tables(LakeTables(lake), sorted({day for by in months for day in by.days()}))


def run(options: argparse.Namespace, lake: Lake) -> int:
    book, customers = load_prices(options.plan, options.accounts)
    asked = Rates(options.period, book, customers)
    months = to_rate(lake, asked)
    if not months:
        print(f"{asked.month} is closed, and no usage has come for it since it was rated")
        return 0
    spark = session(
        "holdfast rating", lake, master=options.master, memory=options.memory, input_bytes=options.input_bytes
    )
    for by in months:
        started = time.monotonic()
        try:
            rating = rate(spark, lake, by)
        except FewerHours as error:
            raise JobFailed(str(error)) from None
        why = "" if by.book is book else " again, by the prices of when it was closed, as usage has come since"
        print(
            f"{by.month} rated{why}: {rating.lines:,} lines in {time.monotonic() - started:.1f} s, "
            f"of all usage before {rating.covers:%Y-%m-%d %H:%M} UTC",
            flush=True,
        )
        skipped = rating.skipped()
        if skipped:
            print(
                f"{by.month} is rated without {days_in_words(skipped)}, which is not summed up: run "
                f"`{batch_command(skipped)}`, and rate it again",
                file=sys.stderr,
            )
    return 0
