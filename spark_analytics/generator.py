"""Synthetic records of a month, for measurements and tests.

Spark generates them, identically for the same seed, whatever the number of cores.  A few of the queues have most of the
calls (the busiest hundredth about a fifth), and most are idle most of the time.  Some records are stored twice, and
those of some hours of some nodes are late: they can be written later, after a batch has run.
"""

from __future__ import annotations

import argparse
from datetime import UTC, date, datetime
from typing import Final, Literal, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from billing.lake.lake import Lake
from spark_analytics.period import add_period, period_of
from spark_analytics.records import STORAGE, STORAGE_FOLDER, USAGE, USAGE_FOLDER
from spark_analytics.session import JobFailed, session, url_of

HELP: Final = "fill an empty lake with records of a period, made up, for trying things out"

NODES: Final = 20
RECORDS_OF_A_BUFFER: Final = 1000
RECORDS_OF_A_FILE: Final = 200_000
"""Approximate maximum; each hour has at least one file."""
LATE_DAYS: Final = 10
"""Interval of days with late records, from the first day."""
SKEW: Final = 3.0
"""A queue's share of the calls falls with its place among all, to the power of 1 / SKEW - 1."""

Part = Literal["all", "punctual", "late"]


class GeneratorParameters(NamedTuple):
    """Parameters of the generated records."""

    first: date
    last: date
    records: int
    """Number of records of calls, each counted once."""
    tenants: int = 1000
    queues: int = 100_000
    seed: int = 1
    repeated: float = 0.005
    """Fraction of records that are stored twice."""
    late: float = 0.01
    """Fraction of nodes' hours with late records, on days with late records."""

    @property
    def minutes(self) -> int:
        return ((self.last - self.first).days + 1) * 24 * 60

    @property
    def changing(self) -> int:
        """Number of queues whose storage changes each minute."""
        return max(1, self.records // (20 * self.minutes))

    @property
    def keeping(self) -> int:
        """Number of queues with a constant backlog."""
        return max(1, self.records * 60 // (20 * self.minutes))


def usage(spark: SparkSession, month: GeneratorParameters) -> DataFrame:
    """The records of calls, and whether they are ``late`` and ``repeated``."""
    chance = _Chance(month.seed)
    number = F.col("id")
    minute = _floor(number * month.minutes / F.lit(month.records))
    day = _floor(minute / (24 * 60))
    buffer = _floor(number / RECORDS_OF_A_BUFFER)
    node = F.pmod(buffer, F.lit(NODES))
    place = F.least(_floor(F.pow(chance.share(1, number), F.lit(SKEW)) * month.queues), F.lit(month.queues - 1))
    roll = chance.of(100, 2, number)
    calls = 1 + _floor(F.pow(chance.share(3, number), F.lit(4.0)) * 600)
    received = F.col("action") == "ReceiveMessage"
    empty = F.when(received, _floor(F.col("calls") * chance.share(4, number) * 0.7)).otherwise(0)
    whole = spark.range(0, month.records, 1, _tasks(month.records, month))
    return (
        whole.select(
            number,
            _time(month, minute).alias("minute"),
            place.alias("place"),
            buffer.alias("sequence"),
            F.pmod(number, F.lit(RECORDS_OF_A_BUFFER)).cast("int").alias("slot"),
            F.concat(F.lit("node-"), node.cast("string")).alias("node"),
            F.lpad(F.lower(F.hex(chance.any(5, node))), 16, "0").alias("boot"),
            F.when(roll < 35, "SendMessage")
            .when(roll < 70, "ReceiveMessage")
            .when(roll < 92, "DeleteMessage")
            .when(roll < 96, "SendMessageBatch")
            .when(roll < 98, "ChangeMessageVisibility")
            .otherwise("GetQueueAttributes")
            .alias("action"),
            calls.alias("calls"),
            (chance.share(6, number) < month.repeated).alias("repeated"),
            ((F.pmod(day, F.lit(LATE_DAYS)) == 0) & (chance.share(7, node, _floor(minute / 60)) < month.late)).alias(
                "late"
            ),
        )
        .withColumn("empty", empty)
        .select(
            "*",
            *_queue(month, chance, F.col("place"), F.col("action").startswith("Send")),
            _floor(F.when(chance.of(50, 8, number) == 0, F.col("calls") / 20).otherwise(0)).alias("refused"),
            _floor(F.when(chance.of(200, 9, number) == 0, F.col("calls") / 2).otherwise(0)).alias("throttled"),
            F.when(chance.of(5000, 10, number) == 0, 1).otherwise(0).cast("long").alias("failed"),
            (F.col("calls") + _floor(F.col("calls") * chance.of(3, 11, F.col("place")) / 2)).alias("chunks"),
            (F.col("calls") - F.col("empty")).alias("messages"),
            (F.col("calls") * (400 + chance.of(4000, 12, F.col("place")))).alias("bytes_in"),
            (F.col("calls") * F.when(received, 900 + chance.of(4000, 12, F.col("place"))).otherwise(300)).alias(
                "bytes_out"
            ),
        )
        .select(*(F.col(field.name).cast(field.dataType) for field in USAGE), "late", "repeated")
    )


def storage(spark: SparkSession, month: GeneratorParameters) -> DataFrame:
    """The records of storage: of queues that change each minute, and of some that only keep what they have."""
    chance = _Chance(month.seed)
    number = F.col("id")
    hours = month.minutes // 60

    def grid(queues: int, steps: int, first: int, minutes: int) -> DataFrame:
        # Time by time, so that each task writes the folders of few hours.
        whole = spark.range(0, queues * steps, 1, _tasks(queues * steps, month))
        return whole.select(
            (F.pmod(number, F.lit(queues)) + first).alias("place"),
            (_floor(number / queues) * minutes).alias("at"),
            F.lit(minutes).alias("minutes"),
        )

    both = grid(month.changing, month.minutes, 0, 1).unionAll(grid(month.keeping, hours, month.changing, 60))
    place = F.col("place")
    depth = (
        1
        + chance.of(1000, 20, place)
        + F.when(F.col("minutes") == 1, chance.of(500, 21, place, F.col("at"))).otherwise(0)
    )
    stored = both.withColumn("messages", depth).select(
        "*",
        *_queue(month, chance, place, F.lit(False)),
        _time(month, F.col("at")).alias("minute"),
        (place + 1).alias("partition"),
        (F.col("messages") * (200 + chance.of(4000, 12, place)) * 60_000 * F.col("minutes")).alias("byte_milliseconds"),
        (F.col("messages") + F.when(F.col("minutes") == 1, 20).otherwise(0)).alias("messages_max"),
        F.least(F.col("messages"), F.lit(10)).alias("in_flight"),
        F.lit(0).alias("delayed"),
        ((F.col("at") + F.col("minutes")) * 60_000).alias("oldest_age_ms"),
        F.lit(1).alias("epoch"),
        (F.col("at") + 1).alias("sequence"),
        F.concat(F.lit("backend-"), F.pmod(place, F.lit(NODES)).cast("string")).alias("node"),
    )
    return stored.select(*(F.col(field.name).cast(field.dataType) for field in STORAGE))


def generate(spark: SparkSession, lake: Lake, month: GeneratorParameters, part: Part = "all") -> None:
    """Write the month to the lake: all of it, or first the ``punctual`` records, and ``late`` the others.

    Raises :class:`JobFailed` if the lake has records already, which would be counted with these.
    """
    if part != "late" and (lake.files(USAGE_FOLDER) or lake.files(STORAGE_FOLDER)):
        raise JobFailed(f"there are records in {lake.root} already: give another folder, or remove it")
    calls = usage(spark, month)
    if part != "late":
        punctual = calls.where("not late")
        _bring(punctual, lake, USAGE_FOLDER)
        _bring(punctual.where("repeated"), lake, USAGE_FOLDER)
        _bring(storage(spark, month), lake, STORAGE_FOLDER)
    if part != "punctual":
        _bring(calls.where("late"), lake, USAGE_FOLDER)


def _bring(found: DataFrame, lake: Lake, folder: str) -> None:
    """Write records into the folders of their hours."""
    found.drop("late", "repeated").withColumns(
        {"date": F.date_format("minute", "yyyy-MM-dd"), "hour": F.date_format("minute", "HH")}
    ).write.partitionBy("date", "hour").parquet(url_of(lake, folder), mode="append")


class _Chance:
    """Pseudorandom numbers that are the same each time, derived from their purpose and arguments."""

    def __init__(self, seed: int) -> None:
        self._seed = F.lit(seed)

    def any(self, what: int, *of: Column) -> Column:
        """64 bits."""
        return F.xxhash64(self._seed, F.lit(what), *of)

    def of(self, count: int, what: int, *of: Column) -> Column:
        """A whole number below ``count``."""
        return F.pmod(self.any(what, *of), F.lit(count))

    def share(self, what: int, *of: Column) -> Column:
        """A number from 0 to 1."""
        return self.of(1 << 30, what, *of) / F.lit(1 << 30)


def _queue(month: GeneratorParameters, chance: _Chance, place: Column, is_send: Column) -> list[Column]:
    """Columns of a queue, by its place among all."""
    tenant = _floor(F.pow(chance.share(30, place), F.lit(2.0)) * month.tenants)
    flavour = chance.of(10, 31, place)
    kind = F.when(flavour < 2, "fifo").when((flavour < 3) & is_send, "fair").otherwise("standard")
    name = F.concat(F.lit("queue-"), place.cast("string"), F.when(flavour < 2, ".fifo").otherwise(""))
    team = F.concat(F.lit("team-"), chance.of(20, 32, place).cast("string"))
    tags = F.when(chance.of(3, 33, place) == 0, F.create_map()).otherwise(F.create_map(F.lit("team"), team))
    return [
        F.format_string("%012d", 100_000_000_000 + tenant).alias("account"),
        name.alias("queue"),
        (place + 1).alias("queue_id"),
        kind.alias("kind"),
        tags.cast("map<string,string>").alias("tags"),
    ]


def _floor(number: Column) -> Column:
    return F.floor(number).cast("long")


def _time(month: GeneratorParameters, minute: Column) -> Column:
    start = int(datetime(month.first.year, month.first.month, month.first.day, tzinfo=UTC).timestamp())
    return F.timestamp_seconds(minute * 60 + start)


def _tasks(records: int, month: GeneratorParameters) -> int:
    """As many as each make a few files: of hours of their own."""
    return max(1, min(month.minutes // 60, records // RECORDS_OF_A_FILE))


def arguments(parser: argparse.ArgumentParser) -> None:
    add_period(parser)
    parser.add_argument("--records", type=int, required=True, metavar="N", help="of calls")
    parser.add_argument("--tenants", type=int, default=1000, metavar="N", help="(default: %(default)s)")
    parser.add_argument(
        "--queues", type=int, default=100_000, metavar="N", help="of all tenants (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=1, metavar="N", help="another month for each (default: %(default)s)"
    )
    parser.add_argument(
        "--part",
        choices=["all", "punctual", "late"],
        default="all",
        help="of the month: records are late if they arrive after a batch of their day (default: %(default)s)",
    )


def run(options: argparse.Namespace, lake: Lake) -> int:
    for name in ("records", "tenants", "queues"):
        if getattr(options, name) < 1:
            raise ValueError(f"--{name} has to be at least 1")
    first, last = period_of(options)
    month = GeneratorParameters(first, last, options.records, options.tenants, options.queues, options.seed)
    spark = session("holdfast generate", lake, master=options.master, memory=options.memory)
    started = datetime.now(UTC)
    generate(spark, lake, month, options.part)
    files = [*lake.files(USAGE_FOLDER), *lake.files(STORAGE_FOLDER)]
    size = sum(file.size_bytes for file in files) / (1 << 20)
    print(f"{len(files):,} files, {size:,.0f} MiB, in {lake.root} after {datetime.now(UTC) - started}")
    return 0
