"""The stream: folds read_stream records into the live tables (:mod:`billing.lake.live`), and sends budget alerts.

Two rules classify an read_stream record:

* It is *late* if it arrived (the time of its file) more than ``late_after`` past its minute, or if its minute is in the
  future.  Late records are counted only by account and day, in a table of their own: the batch, which reads all of a
  day's files, adds them to the other tables.
* A record that is not late counts once.  Spark keeps the ids of records that arrived within a watermark longer than
  ``late_after``: a repeat of a counted record arrived in that time, or is late itself.  So the state is bounded by the
  records of some hours, whatever the size of the month, and no repeat is ever counted.

Spark's checkpoint assigns files to batches, and a repeated batch has the same records; the live tables accept each
batch once.  So ``kill -9`` at any moment does not change the numbers.

Files of the compaction (``merged-…``) contain records that arrived before, and are skipped.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import StreamingQueryException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from billing.lake import live
from billing.lake.compact import PREFIX
from billing.lake.lake import Lake, LakeUnavailable
from billing.lake.live import DAYS, LATE, MINUTES, BillingFold, StoredMeter, WrongCheckpoint
from billing.lake.months import Month
from billing.lake.snapshot import Outrun
from billing.metering.usage import COUNTS
from billing.pricing import budgets as budgeting
from billing.pricing.budgets import Budget, Lines, Measured, Receiver, Webhook, load_budgets
from billing.pricing.estimate import METER_OF, Prices
from billing.pricing.plans import Meter, NoPrice
from spark_analytics import records
from spark_analytics.session import session, url_of

logger = logging.getLogger("holdfast.usage")

HELP: Final = "keep live tables of the month so far and the last minutes, and send budget alerts"

NAME: Final = "holdfast-stream"
CHECKPOINT: Final = "live/_checkpoint"
"""Default location of the checkpoint, in the lake."""
LATE_AFTER_SECONDS: Final = 7200
AHEAD_SECONDS: Final = 300
"""Maximum lead of a clock over the lake's; a larger one means a wrong clock."""
MARGIN_SECONDS: Final = 3600
"""Tolerance for files that are listed in another order than that of their times."""
FILES_MAX: Final = 2000
"""Default maximum number of files in one batch."""
UNMERGED: Final = f"[!{PREFIX[0]}]*"
"""Files as they were uploaded: their names are hexadecimal."""
POLL_SECONDS: Final = 5
"""Interval at which the stream polls for new records, and the job checks that the stream still runs."""
ALERT_POLL_SECONDS: Final = 60.0
"""Interval at which alerts are handled without new records: a receiver may answer again, or a batch may be done."""

WEBHOOK_VARIABLE: Final = "HOLDFAST_ALERT_WEBHOOK"
PARTITIONS: Final = 8
"""Default number of partitions of the kept ids."""

_STATE: Final = "spark.sql.streaming.stateStore"
_SETTINGS: Final = {
    f"{_STATE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",  # on disk
    f"{_STATE}.rocksdb.changelogCheckpointing.enabled": "true",  # a batch writes what it changed
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",  # ids may be forgotten with the next records
}
_ID: Final = ["node", "boot", "sequence", "slot"]


def read_stream(spark: SparkSession, lake: Lake, files_max: int) -> DataFrame:
    """Read the records as a stream, with the time when each ``arrived``; a batch has at most ``files_max`` files."""
    return (
        spark.readStream.schema(records.USAGE)
        .option("pathGlobFilter", UNMERGED)
        .option("maxFilesPerTrigger", files_max)
        .option("ignoreMissingFiles", True)  # merged meanwhile: the batch has them
        .parquet(url_of(lake, records.USAGE_FOLDER))
        .select(*records.USAGE.names, F.col("_metadata.file_modification_time").alias("arrived"))
    )


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


def start(
    spark: SparkSession,
    lake: Lake,
    checkpoint: str,
    folder: BatchFolder,
    late_after_seconds: int,
    every_seconds: int | None,
    *,
    files_max: int = FILES_MAX,
    partitions: int = PARTITIONS,
) -> StreamingQuery:
    """Start the query at its checkpoint, or from the beginning without one.

    ``every_seconds``: interval of batches; None: process the existing files and end.  ``partitions``: number of
    partitions of the kept ids, which a checkpoint fixes when it is created.
    """
    for name, value in (_SETTINGS | {"spark.sql.shuffle.partitions": str(partitions)}).items():
        spark.conf.set(name, value)
    writer = (
        once(read_stream(spark, lake, files_max), late_after_seconds)
        .writeStream.queryName(NAME)
        .option("checkpointLocation", checkpoint)
        .foreachBatch(folder)
    )
    if every_seconds is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{every_seconds} seconds").start()


# --- budgets ------------------------------------------------------------------------------------------------


def used(
    month_to_date: pa.Table, month: Month, prices: Prices | None, stored: Mapping[str, Mapping[StoredMeter, int]]
) -> dict[str, dict[Measured, Decimal]]:
    """Usage of each account, by meter; ``cost`` only with prices.

    ``stored``: byte-milliseconds by account and meter; they count towards ``cost``.
    """
    accounts: dict[str, dict[Measured, Decimal]] = {}
    units: dict[str, dict[Meter, int]] = {account: dict(of.items()) for account, of in stored.items()}
    for row in month_to_date.to_pylist():
        amounts = accounts.setdefault(
            row["account"], {"requests": Decimal(0), "messages": Decimal(0), "bytes_out": Decimal(0)}
        )
        amounts["requests"] += row["chunks"]
        amounts["messages"] += row["messages"]
        amounts["bytes_out"] += row["bytes_out"]
        if prices is not None:
            of = units.setdefault(row["account"], {})
            meter = METER_OF[row["kind"]]
            of[meter] = of.get(meter, 0) + row["chunks"]
            is_stream = row["kind"] == "stream"
            out: Meter = "stream_bytes_out" if is_stream else "bytes_out"
            of[out] = of.get(out, 0) + row["bytes_out"]
            if is_stream:
                of["stream_bytes_in"] = of.get("stream_bytes_in", 0) + row["bytes_in"]
    if prices is not None:
        for account, of in units.items():
            accounts.setdefault(account, {})["cost"] = prices.cost(account, month, of)
    return accounts


class BudgetWatch:
    """Checks whether budgets are passed, and sends alerts."""

    def __init__(self, lake: Lake, budgets: list[Budget], receivers: list[Receiver], prices: Prices | None) -> None:
        self._lake = lake
        self._budgets = budgets
        self._receivers = receivers
        self._prices = prices
        self._to_date = live.ToDate(lake)

    def check(self, now: datetime) -> int:
        """Now; returns how many crossings were new.  Raises :class:`LakeUnavailable` and :class:`NoPrice`."""
        if not self._budgets:
            return 0
        month = Month(now.year, now.month)
        found = []
        for one in (month.previous, month) if now.day == 1 else (month,):  # what comes after midnight
            stored = {} if self._prices is None else self._to_date.stored(one)
            amounts = used(self._to_date.read(one), one, self._prices, stored)
            found += budgeting.passed(self._budgets, one, amounts, now)
        return len(budgeting.watch(self._lake, found, month, self._receivers))


# --- the job ------------------------------------------------------------------------------------------------


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--once", action="store_true", help="process the existing files, and end (default: run until stopped)"
    )
    parser.add_argument(
        "--every", type=_number, default=30, metavar="SECONDS", help="interval of batches (default: 30)"
    )
    parser.add_argument(
        "--late-after",
        type=_number,
        default=LATE_AFTER_SECONDS,
        metavar="SECONDS",
        help="records that arrive later than this after their minute are left to the batch (default: 7200)",
    )
    parser.add_argument(
        "--files",
        type=_number,
        default=FILES_MAX,
        metavar="N",
        help="maximum number of files in one batch (default: 2000)",
    )
    parser.add_argument(
        "--partitions",
        type=_number,
        default=PARTITIONS,
        metavar="N",
        help="partitions of the deduplication state; cannot be changed later (default: 8)",
    )
    parser.add_argument(
        "--checkpoint", metavar="URL", help=f"location of the stream's checkpoint (default: {CHECKPOINT} in the lake)"
    )
    parser.add_argument("--budgets", type=Path, metavar="FILE", help="budgets of tenants (YAML)")
    parser.add_argument(
        "--webhook",
        metavar="URL",
        help=f"URL to POST each alert to, as JSON (default: {WEBHOOK_VARIABLE} in the environment; use that for "
        "a URL with a secret)",
    )
    parser.add_argument("--alerts", type=Path, metavar="FILE", help="file to append each alert to, as a line of JSON")
    parser.add_argument("--plan", type=Path, metavar="FILE", help="the price book, for budgets of cost")
    parser.add_argument(
        "--accounts", type=Path, metavar="FILE", help="file that assigns plans to accounts, if there are several"
    )


def run(options: argparse.Namespace, lake: Lake) -> int:
    watch = _watch(options, lake)
    while not lake.paths(records.USAGE_FOLDER):
        if options.once:
            print("there are no records in the lake yet")
            return 0
        time.sleep(POLL_SECONDS)
    spark = session("holdfast stream", lake, master=options.master, memory=options.memory)
    checkpoint = options.checkpoint or url_of(lake, CHECKPOINT)
    folder = BatchFolder(spark, lake, options.late_after, _now)
    every = None if options.once else options.every
    query = start(
        spark,
        lake,
        checkpoint,
        folder,
        options.late_after,
        every,
        files_max=options.files,
        partitions=options.partitions,
    )
    try:
        status = _run_until_end(query, folder, watch)
        if options.once and status == 0:
            print(f"{live.NOW}: {folder.records:,} more records, each counted once")
        return status
    except KeyboardInterrupt:
        return 0
    finally:
        query.stop()


def _watch(options: argparse.Namespace, lake: Lake) -> BudgetWatch:
    """Raises :class:`ValueError`."""
    prices = Prices.load(options.plan, options.accounts) if options.plan else None
    try:
        budgets = [] if options.budgets is None else load_budgets(options.budgets)
    except OSError as error:
        raise ValueError(f"{error.filename} cannot be read: {error.strerror}") from None
    if prices is None and any(budget.measure == "cost" for budget in budgets):
        raise ValueError("there are budgets of cost, but no prices: give the price book with --plan")
    receivers: list[Receiver] = []
    webhook = webhook_of(options, os.environ)
    if webhook is not None:
        receivers.append(Webhook(webhook))
    if options.alerts is not None:
        receivers.append(Lines(options.alerts))
    return BudgetWatch(lake, budgets, receivers, prices)


def webhook_of(options: argparse.Namespace, variables: Mapping[str, str]) -> str | None:
    """Receiver of alerts."""
    return options.webhook or variables.get(WEBHOOK_VARIABLE) or None


def _run_until_end(query: StreamingQuery, folder: BatchFolder, watch: BudgetWatch) -> int:
    """Evaluate budgets and log records that Spark has skipped, until the query ends."""
    examined = -1
    checked_at = -math.inf
    ended = False
    while not ended:
        try:
            ended = bool(query.awaitTermination(POLL_SECONDS))
        except StreamingQueryException as error:
            print(folder.failed or error, file=sys.stderr)
            return 1
        examined = _log_skipped(query, examined)
        if not (ended or folder.folded or time.monotonic() - checked_at > ALERT_POLL_SECONDS):
            continue
        folder.folded = False
        checked_at = time.monotonic()
        try:
            watch.check(_now())
        except (LakeUnavailable, NoPrice) as error:
            logger.error("budgets cannot be evaluated now: %s", error)
            if ended:
                return 1
    return 0


def _log_skipped(query: StreamingQuery, examined: int) -> int:
    """Log records that Spark's own watermark has skipped since batch ``examined``; returns the last batch examined."""
    for progress in query.recentProgress:
        if progress.batchId > examined:
            examined = progress.batchId
            dropped = sum(operator.numRowsDroppedByWatermark for operator in progress.stateOperators)
            if dropped:
                logger.error(
                    "%d records are left to the batch: their files were found more than %d s after newer ones",
                    dropped,
                    MARGIN_SECONDS,
                )
    return examined


def _number(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def _now() -> datetime:
    return datetime.now(UTC)
