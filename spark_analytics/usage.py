"""From records that are there once to the tables of hours: by tenant, queue, tag, action and hour.

The tables are described in ``docs/usage-records.md``.  Each row has beside its columns how many ``records`` it is made
of, and how many ``copies`` of them there were; both are added up for what a run says of itself, and are not stored.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from billing.lake.tables import SCHEMAS, STORAGE_HOURLY, USAGE_HOURLY
from billing.metering.usage import COUNTS

_WHOLE = "decimal(38,0)"


def usage_hourly(once: DataFrame) -> DataFrame:
    """The table of calls, of :func:`spark_analytics.records.usage_once`."""
    return once.groupBy(*_dimensions(USAGE_HOURLY)).agg(
        *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in COUNTS),
        F.count(F.lit(1)).alias("records"),
        F.sum("copies").alias("copies"),
    )


def storage_hourly(once: DataFrame) -> DataFrame:
    """The table of storage, of :func:`spark_analytics.records.storage_once`.

    A queue's messages are those of its partitions together; ``messages_most`` is what they would be if each partition
    had its most at the same time.
    """
    queue = _dimensions(STORAGE_HOURLY)
    counts = F.col("counts")
    partitions = once.groupBy(*queue, "partition").agg(
        F.sum(F.when(counts, F.col("byte_milliseconds").cast(_WHOLE))).alias("byte_milliseconds"),
        F.max(F.when(counts, F.col("messages_most"))).alias("messages_most"),
        F.sum(F.when(F.col("last"), F.col("messages"))).alias("messages_last"),
        F.max(F.when(counts, F.col("oldest_age_ms"))).alias("oldest_age_ms_most"),
        F.count_if(counts).alias("records"),
        F.count(F.lit(1)).alias("copies"),
    )
    return partitions.groupBy(*queue).agg(
        F.coalesce(F.sum("byte_milliseconds"), F.lit(0)).cast(_WHOLE).alias("byte_milliseconds"),
        F.coalesce(F.sum("messages_most"), F.lit(0)).alias("messages_most"),
        F.coalesce(F.sum("messages_last"), F.lit(0)).alias("messages_last"),
        F.coalesce(F.max("oldest_age_ms_most"), F.lit(0)).alias("oldest_age_ms_most"),
        F.sum("records").alias("records"),
        F.sum("copies").alias("copies"),
    )


def _dimensions(table: str) -> list[str]:
    """The columns that say whose row it is, and of which hour."""
    names: list[str] = SCHEMAS[table].names
    return names[: names.index("hour") + 1]
