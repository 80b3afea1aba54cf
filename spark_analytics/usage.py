"""Computation of the hourly tables from records without repetitions: by tenant, queue, tag, action and hour.

``docs/usage-records.md`` describes the tables.  Each row also has the number of its ``records`` and of their
``copies``.  These are summed up for the report of a run, and not stored.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from billing.lake.tables import SCHEMAS, STORAGE_HOURLY, USAGE_HOURLY
from billing.metering.usage import COUNTS

_WHOLE = "decimal(38,0)"


def usage_hourly(once: DataFrame) -> DataFrame:
    """Compute the table of calls from :func:`spark_analytics.records.usage_once`."""
    return once.groupBy(*_dimensions(USAGE_HOURLY)).agg(
        *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in COUNTS),
        F.count(F.lit(1)).alias("records"),
        F.sum("copies").alias("copies"),
    )


def storage_hourly(once: DataFrame) -> DataFrame:
    """Compute the table of storage from :func:`spark_analytics.records.storage_once`.

    A queue's numbers are the sums of its partitions; so ``messages_max`` is an upper bound, which assumes that all
    partitions had their maximum at the same time.
    """
    queue = _dimensions(STORAGE_HOURLY)
    counts = F.col("counts")
    partitions = once.groupBy(*queue, "partition").agg(
        F.sum(F.when(counts, F.col("byte_milliseconds").cast(_WHOLE))).alias("byte_milliseconds"),
        F.max(F.when(counts, F.col("messages_max"))).alias("messages_max"),
        F.sum(F.when(F.col("last"), F.col("messages"))).alias("messages_last"),
        F.max(F.when(counts, F.col("oldest_age_ms"))).alias("oldest_age_ms_max"),
        F.count_if(counts).alias("records"),
        F.count(F.lit(1)).alias("copies"),
    )
    return partitions.groupBy(*queue).agg(
        F.coalesce(F.sum("byte_milliseconds"), F.lit(0)).cast(_WHOLE).alias("byte_milliseconds"),
        F.coalesce(F.sum("messages_max"), F.lit(0)).alias("messages_max"),
        F.coalesce(F.sum("messages_last"), F.lit(0)).alias("messages_last"),
        F.coalesce(F.max("oldest_age_ms_max"), F.lit(0)).alias("oldest_age_ms_max"),
        F.sum("records").alias("records"),
        F.sum("copies").alias("copies"),
    )


def _dimensions(table: str) -> list[str]:
    """Columns that identify a row: its owner and its hour."""
    names: list[str] = SCHEMAS[table].names
    return names[: names.index("hour") + 1]
