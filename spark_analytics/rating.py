"""The rating: prices a month's hourly tables, for each queue and tier.

A unit's tier depends on its place in the order in which its account used the meter in the month: by hours, and within
an hour by queue, its id and its tags.  To determine the tiers, only the sums of hours are ordered, one number for each
account, meter and hour.  They show that most hours are completely in one tier; queues are ordered only in the few hours
in which a tier ends, a handful for each account.

Money is :class:`DecimalType` throughout; :func:`billing.pricing.money.line_amount` computes the amount of a line.
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
from billing.lake.snapshot import new_run
from billing.lake.tables import STORAGE_HOURLY, USAGE_HOURLY, LakeTables
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
from spark_analytics.session import (
    JobFailed,
    frame_of,
    in_one_partition,
    meter_of_kind,
    read_files,
    session,
    write_files,
)

STEP: Final = "rating"
HELP: Final = "price a month's usage: for each queue and set of tags, tier by tier"

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
    USAGE_HOURLY: StructType(
        [*_HOURLY, *(StructField(name, LongType()) for name in ("chunks", "bytes_in", "bytes_out"))]
    ),
    STORAGE_HOURLY: StructType([*_HOURLY, StructField("byte_milliseconds", DecimalType(38, 0))]),
}
"""Columns that are read of the hourly tables."""
_OF: Final = ("queue", "queue_id", "tags")
_PLACED: Final = ("account", "plan", "segment", "meter", "tier")
_BROADCAST_ROWS: Final = 1_000_000
"""Maximum number of spans of hours that are broadcast to each executor; more are shuffled."""


def units_of(calls: DataFrame, storage: DataFrame) -> DataFrame:
    """Convert hourly tables to units of meters: ``account``, ``hour``, ``queue``, ``queue_id``, ``tags``, ``meter``,
    ``units``."""
    is_stream = F.col("kind") == "stream"
    requests = meter_of_kind()
    bytes_out = F.when(is_stream, "stream_bytes_out").otherwise("bytes_out")
    measured = F.array(
        F.struct(requests.alias("meter"), F.col("chunks").alias("units")),
        F.struct(bytes_out.alias("meter"), F.col("bytes_out").alias("units")),
    )
    produced = F.array(F.struct(F.lit("stream_bytes_in").alias("meter"), F.col("bytes_in").alias("units")))
    measured = F.when(is_stream, F.concat(measured, produced)).otherwise(measured)
    stored = F.when(is_stream, "stream_storage").otherwise("storage")
    named = ("account", "hour", "queue", "queue_id", "tags")
    of_calls = calls.select(*named, F.inline(measured))
    of_storage = storage.select(*named, stored.alias("meter"), F.col("byte_milliseconds").alias("units"))
    units = of_calls.withColumn("units", F.col("units").cast(_UNITS)).unionByName(of_storage)
    return in_one_partition(units).where(F.col("units") > 0)


class Rates(NamedTuple):
    """Inputs of a month's rating."""

    month: Month
    book: PriceBook
    customers: Customers
    begins: Mapping[str, datetime] = MappingProxyType({})
    """Starts of accounts' months that differ from their plan's (:func:`billing.pricing.billing_days.begins`)."""

    def days(self) -> list[date]:
        """Days (UTC) that the month needs."""
        return days_needed(self.month, self.book, self.customers, self.begins)

    def ends(self) -> datetime:
        """The end of the month for the last account (UTC)."""
        return month_hours(self.month, self.book, self.customers, self.begins)[1]


def rates_of(spark: SparkSession, by: Rates) -> DataFrame:
    """Make a row for each tier of each meter in each part of the month, for the plans that accounts have.

    ``opens``: start of the plan's month.  The first part ``starts`` when the first account's month does.  Raises
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
                for tier_number, tier in enumerate(segment.version.tiers(meter), 1):
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
                            segment.version.discount(meter),
                        )
                    )
    return frame_of(spark, rows, _RATES)


def named_of(spark: SparkSession, by: Rates) -> DataFrame:
    """Make a row for each account with its own plan or discount, or a month that does not start with its plan's."""
    rows = []
    for account in sorted({*by.customers.named, *by.begins} - {EVERYBODY_ELSE}):
        customer = by.customers.of(account)
        rows.append((account, customer.plan, customer.discount, by.begins.get(account)))
    return frame_of(spark, rows, _NAMED)


def _begins(by: Rates) -> Column:
    """Start of an account's month, for rows with the columns of :func:`named_of` (null without one) and the plan's
    ``opens``."""
    return F.coalesce("begins", F.lit(by.begins.get(EVERYBODY_ELSE)).cast("timestamp"), "opens")


def hours_in_order(units: DataFrame, rates: DataFrame, named: DataFrame, by: Rates) -> DataFrame:
    """Sum up hours and assign them to tiers: a row for each tier that an hour touches.

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
    """Assign all units to tiers: :data:`_PLACED`, :data:`_OF` (tags as JSON) and ``units``.

    ``hours``: the result of :func:`hours_in_order`.  ``spans_are_few``: they are broadcast to the executors, so that
    the units need no shuffle.
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
    """Tags as JSON, sorted by name, because maps cannot be grouped."""
    by_name = F.map_from_entries(F.array_sort(F.map_entries("tags")))
    return F.when(F.size("tags") == 0, "{}").otherwise(F.to_json(by_name))


def spans_of(hours: DataFrame) -> DataFrame:
    """Spans of hours in which all of an account's usage of a meter is in one tier."""
    return (
        hours.where("whole").groupBy(*_PLACED).agg(F.min("hour").alias("first_hour"), F.max("hour").alias("last_hour"))
    )


def lines_of(units: DataFrame, rates: DataFrame, named: DataFrame, by: Rates) -> DataFrame:
    """Make lines, as :data:`billing.pricing.charges.RATED`, from the units of :func:`placed`."""
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
    """Divide a whole number of millionths by a whole number, rounded half up at the 15th place.

    Spark's own division of such wide decimals keeps six places.  So this divides in two steps: the whole part, and then
    the remainder, shifted by nine places.
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
    """Rate a month from the current tables, and publish the rating.

    Raises :class:`billing.pricing.plans.NoPrice`, :class:`billing.lake.snapshot.Outrun`,
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
        few = (
            2 * rows_of_tables(LakeTables(lake), by.days()) <= _BROADCAST_ROWS
        )  # a row has units of at most two meters: nothing is produced and fetched by one action
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
    """Runs of the batch that are published, by table and day, and the time up to which they have all usage."""
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
            if there.read.at.date() <= day:
                covers = min(covers, there.read.at)
    return read, covers


def _table(spark: SparkSession, lake: Lake, name: str, by: Rates) -> DataFrame:
    """Read the month's published days of a table."""
    days = by.days()
    files = LakeTables(lake).files(name, days[0], days[-1])
    schema = SCHEMAS[name]
    if not files:
        return frame_of(spark, [], schema)
    return read_files(spark, lake, files, schema)


def to_rate(lake: Lake, by: Rates) -> list[Rates]:
    """Months to rate: the month, and earlier closed ones with late usage.

    A closed month is rated by the prices of its closing, and again if it was rated by other prices since.
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
    """Add the starts of accounts' months after the month before, if that is closed."""
    return by._replace(begins=begins(by.month, by.book, by.customers, closings.get(by.month.previous)))


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--period", required=True, type=month_of, metavar="2026-11", help="the month; or this, or last (UTC)"
    )
    parser.add_argument("--plan", required=True, type=Path, metavar="FILE", help="the price book, a YAML file")
    parser.add_argument(
        "--accounts",
        type=Path,
        metavar="FILE",
        help="file that assigns plans to accounts (default: the book's only plan for all)",
    )


def input_bytes(options: argparse.Namespace, lake: Lake) -> int:
    """Current size of the input.

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
        print(f"{asked.month} is closed, and no usage was recorded for it since it was rated")
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
        why = "" if by.book is book else " again, by the prices of its closing, because of late usage"
        print(
            f"{by.month} rated{why}: {rating.lines:,} lines in {time.monotonic() - started:.1f} s, "
            f"of all usage before {rating.covers:%Y-%m-%d %H:%M} UTC",
            flush=True,
        )
        skipped = rating.skipped()
        if skipped:
            print(
                f"{by.month} is rated without {days_in_words(skipped)}, not summed up yet: run "
                f"`{batch_command(skipped)}`, and rate it again",
                file=sys.stderr,
            )
    return 0
