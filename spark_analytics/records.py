"""The records of a period as DataFrames, each of them once.

What is asked for is read by the folders of its days (UTC), and nothing else of the lake is looked at.  The files are
listed once, at the beginning: what comes later is not in the DataFrame, however often it is computed.

Records of the same hour of the same queue are brought together (one shuffle; none of one partition), so that taking
each once, and summing up by any columns that include ``account``, ``queue_id`` and ``hour``, needs no other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from typing import Final, TypeVar

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, MapType, StringType, StructField, StructType, TimestampType

from billing.lake.lake import Lake, LakeFile
from billing.lake.tables import days_of
from billing.metering.usage import COUNTS
from spark_analytics.session import SPARK_ERRORS, frame_of, is_one_partition, read_files

_T = TypeVar("_T")

USAGE_FOLDER: Final = "usage"
STORAGE_FOLDER: Final = "storage"

_OF = [
    StructField("account", StringType()),
    StructField("queue", StringType()),
    StructField("queue_id", LongType()),
    StructField("kind", StringType()),
]
_MINUTE = StructField("minute", TimestampType())
_TAGS = StructField("tags", MapType(StringType(), StringType()))
USAGE: Final = StructType(
    [
        _MINUTE,
        *_OF,
        StructField("action", StringType()),
        _TAGS,
        *(StructField(name, LongType()) for name in COUNTS),
        StructField("node", StringType()),
        StructField("boot", StringType()),
        StructField("sequence", LongType()),
        StructField("slot", IntegerType()),
    ]
)
STORAGE: Final = StructType(
    [
        _MINUTE,
        StructField("minutes", IntegerType()),
        *_OF,
        StructField("partition", LongType()),
        _TAGS,
        StructField("byte_milliseconds", LongType()),
        StructField("messages", LongType()),
        StructField("messages_most", LongType()),
        StructField("in_flight", LongType()),
        StructField("delayed", LongType()),
        StructField("oldest_age_ms", LongType()),
        StructField("epoch", LongType()),
        StructField("sequence", LongType()),
        StructField("node", StringType()),
    ]
)
"""The columns of the records, described in ``docs/usage-records.md``.  One that a file does not have is null."""


def usage(spark: SparkSession, lake: Lake, first: date, last: date, account: str | None = None) -> DataFrame:
    """The records of calls of these days, both included, of one account or all; each once, and with its ``hour``."""
    found = files(lake, USAGE_FOLDER, first, last)
    return usage_once(read(spark, lake, found, USAGE, account)).drop("copies")


def storage(spark: SparkSession, lake: Lake, first: date, last: date, account: str | None = None) -> DataFrame:
    """The records of storage of these days, both included, of one account or all; each once, and with its ``hour``."""
    found = files(lake, STORAGE_FOLDER, first, last)
    return storage_once(read(spark, lake, found, STORAGE, account)).where("counts").drop("counts", "last")


def files(lake: Lake, folder: str, first: date, last: date) -> list[LakeFile]:
    """The files of records of these days, both included."""
    return [file for day in days_of(first, last) for file in lake.files(f"{folder}/date={day}")]


def of_what_stays(
    make: Callable[[Sequence[LakeFile]], _T], found: Sequence[LakeFile], find: Callable[[], Sequence[LakeFile]]
) -> _T:
    """Call ``make`` with these files; again, with the result of ``find``, if files were compacted and removed
    while they were read."""
    while True:
        try:
            return make(found)
        except SPARK_ERRORS:
            listed, found = found, find()
            if set(listed) <= set(found):
                raise


def read(
    spark: SparkSession, lake: Lake, found: Sequence[LakeFile], schema: StructType, account: str | None = None
) -> DataFrame:
    """All that is in these files, of one account or all; a record as often as it is there."""
    raw = read_files(spark, lake, [file.path for file in found], schema) if found else frame_of(spark, [], schema)
    return raw if account is None else raw.where(F.col("account") == account)


def read_with_day(spark: SparkSession, lake: Lake, found: Sequence[LakeFile], schema: StructType) -> DataFrame:
    """All that is in these files, at least one, with the ``day`` (UTC) that their folder names."""
    rows = read_files(spark, lake, [file.path for file in found], schema, path_as="path")
    return rows.withColumn("day", F.to_date(F.regexp_extract("path", r"/date=([0-9-]+)/hour=", 1))).drop("path")


def usage_once(raw: DataFrame) -> DataFrame:
    """Records of calls, each once, with its ``hour`` and how many ``copies`` there were.

    Records with the same id are the same in every column, so they are told apart by all columns.
    """
    return _together(raw).groupBy(*raw.columns, "hour").agg(F.count(F.lit(1)).alias("copies"))


def storage_once(raw: DataFrame) -> DataFrame:
    """Records of storage with their ``hour``, and which of them ``counts``: of several for the same minute of a
    partition the one of the latest owner, and of its the latest.  ``last``: it is the last that counts of its partition
    in the hour."""
    in_order = Window.partitionBy("account", "queue_id", "hour", "partition").orderBy("minute", "epoch", "sequence")
    following = F.lead("minute").over(in_order)
    return (
        _together(raw)
        .withColumn("following", following)
        .withColumn("last", F.col("following").isNull())
        .withColumn("counts", F.col("last") | (F.col("following") != F.col("minute")))
        .drop("following")
    )


def _together(raw: DataFrame) -> DataFrame:
    hours = raw.withColumn("hour", F.date_trunc("hour", "minute"))
    return hours if is_one_partition(raw.sparkSession) else hours.repartition("account", "queue_id", "hour")
