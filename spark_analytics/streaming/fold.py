"""Sums of arriving records that are not late, each counted once, and their addition to the live tables."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from billing.lake import live
from billing.lake.lake import Lake, LakeUnavailable
from billing.lake.live import DAYS, LATE, MINUTES, BillingFold, WrongCheckpoint
from billing.lake.snapshot import Outrun
from billing.metering.usage import COUNTS

NAME: Final = "holdfast-stream"
"""Name of the query."""
AHEAD_SECONDS: Final = 300
"""Maximum lead of a clock over the lake's; a larger one means a wrong clock."""
MARGIN_SECONDS: Final = 3600
"""Tolerance for files that are listed in another order than that of their times."""

_ID: Final = ["node", "boot", "sequence", "slot"]


def once(arrived: DataFrame, late_after_seconds: int) -> DataFrame:
    """Remove repetitions of records that are not late."""
    horizon = late_after_seconds + AHEAD_SECONDS + MARGIN_SECONDS
    return arrived.withWatermark("arrived", f"{horizon} seconds").dropDuplicatesWithinWatermark(_ID)


def is_late(late_after_seconds: int) -> Column:
    """True for a record that is late."""
    behind = F.col("arrived").cast("double") - F.col("minute").cast("double")
    return (behind > late_after_seconds) | (behind < -AHEAD_SECONDS)


def fold_of(batch: DataFrame, late_after_seconds: int) -> BillingFold:
    """Compute the sums that a batch adds to the live tables, for each tenant, action and busy queue."""
    late = is_late(late_after_seconds)
    sums = (
        batch.groupBy(late.alias("late"), F.to_date("minute").alias("date"), "account", "kind", "action")
        .agg(*_sums(), F.max("minute").alias("minute"), F.max("arrived").alias("arrived"))
        .toArrow()
    )
    days, missed = (sums.filter(which) for which in (pc.invert(sums["late"]), sums["late"]))
    newest = pc.max(days["minute"]).as_py()
    if newest is None:
        minutes = MINUTES.empty_table()
    else:
        since = newest - timedelta(minutes=live.MINUTES_MAX)
        recent = batch.where(~late & (F.col("minute") > F.lit(since)))
        minutes = recent.groupBy("minute", "account", "queue", "action").agg(*_sums()).toArrow()
    missed_by_account = missed.group_by(["date", "account"]).aggregate(
        [("arrived", "max"), ("records", "sum"), ("calls", "sum")]
    )
    names = {"arrived": "arrived_max", "records": "records_sum", "calls": "calls_sum"}
    by_account = pa.table([missed_by_account[names.get(name, name)] for name in LATE.names], names=LATE.names)
    return BillingFold(_cast(days, DAYS), _cast(minutes, MINUTES), _cast(by_account, LATE))


def _sums() -> list[Column]:
    return [
        F.count(F.lit(1)).alias("records"),
        *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in COUNTS),
    ]


def _cast(table: pa.Table, schema: pa.Schema) -> pa.Table:
    return table.select(schema.names).cast(schema)


class BatchFolder:
    """Folds the batches of a query into the live tables."""

    def __init__(self, spark: SparkSession, lake: Lake, late_after_seconds: int, clock: Callable[[], datetime]) -> None:
        self._spark = spark
        self._lake = lake
        self._late_after_seconds = late_after_seconds
        self._clock = clock
        self.failed: Exception | None = None
        """Error that ended the query."""
        self.folded = False
        """True if a batch was folded in since the last check of budgets."""
        self.records = 0
        """Number of records folded in since the start, including late ones."""

    def __call__(self, batch: DataFrame, number: int) -> None:
        (stream,) = (query.id for query in self._spark.streams.active if query.name == NAME)
        batch = batch.persist()  # else each sum would read the state again
        try:
            more = fold_of(batch, self._late_after_seconds)
            if live.fold(self._lake, stream, number, more, self._clock()):
                self.records += more.records()
            self.folded = True
        except (LakeUnavailable, Outrun, WrongCheckpoint) as error:
            self.failed = error
            raise
        finally:
            batch.unpersist()
