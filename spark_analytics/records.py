"""The records of a period as DataFrames, without duplicates.

Only the folders of the requested days (UTC) are read.  The files are listed once, at the beginning: files that arrive
later are not in the DataFrame, however often it is computed.

One shuffle (none for one partition) groups the records of the same hour and queue, so that deduplication, and sums by
any columns that include ``account``, ``queue_id`` and ``hour``, need no other.
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
        StructField("messages_max", LongType()),
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


def retry_if_compacted(
    make: Callable[[Sequence[LakeFile]], _T], found: Sequence[LakeFile], find: Callable[[], Sequence[LakeFile]]
) -> _T:
    """Call ``make`` with these files; again with the result of ``find`` if files were compacted meanwhile."""
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
    """Read these files, for one account or all; repeated records are included."""
    raw = read_files(spark, lake, [file.path for file in found], schema) if found else frame_of(spark, [], schema)
    return raw if account is None else raw.where(F.col("account") == account)


def read_with_day(spark: SparkSession, lake: Lake, found: Sequence[LakeFile], schema: StructType) -> DataFrame:
    """Read these files, at least one, with the ``day`` (UTC) of their folder."""
    rows = read_files(spark, lake, [file.path for file in found], schema, path_as="path")
    return rows.withColumn("day", F.to_date(F.regexp_extract("path", r"/date=([0-9-]+)/hour=", 1))).drop("path")


def usage_once(raw: DataFrame) -> DataFrame:
    """Remove repeated records of calls; adds each record's ``hour`` and its number of ``copies``.

    Records with the same id are the same in every column, so all columns distinguish them.
    """
    return _together(raw).groupBy(*raw.columns, "hour").agg(F.count(F.lit(1)).alias("copies"))


def storage_once(raw: DataFrame) -> DataFrame:
    """Add the ``hour`` to records of storage, and mark those that ``counts``.

    Of several records for the same minute of a partition, the latest one of the latest owner counts.  ``last``: the
    last counting record of a partition in the hour.
    """
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
