"""The streaming job: its options, its query, and what it does between the batches."""

from __future__ import annotations

import argparse
import logging
import math
import os
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from billing.lake import live
from billing.lake.lake import Lake, LakeUnavailable
from billing.pricing.budgets import Lines, Receiver, Webhook, load_budgets
from billing.pricing.estimate import Prices
from billing.pricing.plans import NoPrice
from spark_analytics.session import session, url_of
from spark_analytics.streaming.budget_watch import BudgetWatch
from spark_analytics.streaming.fold import MARGIN_SECONDS, NAME, BatchFolder, once
from spark_analytics.streaming.sources import FILES_MAX, KAFKA_VARIABLE, LakeFiles, Source, UsageTopic

logger = logging.getLogger("holdfast.usage")

HELP: Final = "keep live tables of the month so far and the last minutes, and send budget alerts"

LATE_AFTER_SECONDS: Final = 7200
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


def start(
    spark: SparkSession,
    source: Source,
    checkpoint: str,
    folder: BatchFolder,
    late_after_seconds: int,
    every_seconds: int | None,
    *,
    partitions: int = PARTITIONS,
) -> StreamingQuery:
    """Start the query over the records of a source at its checkpoint, or from the beginning without one.

    ``every_seconds``: interval of batches; None: process what is there and end.  ``partitions``: number of
    partitions of the kept ids, which a checkpoint fixes when it is created.
    """
    for name, value in (_SETTINGS | {"spark.sql.shuffle.partitions": str(partitions)}).items():
        spark.conf.set(name, value)
    writer = (
        once(source.read(spark), late_after_seconds)
        .writeStream.queryName(NAME)
        .option("checkpointLocation", checkpoint)
        .foreachBatch(folder)
    )
    if every_seconds is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{every_seconds} seconds").start()


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--once", action="store_true", help="process what is there, and end (default: run until stopped)"
    )
    parser.add_argument(
        "--from",
        dest="source",
        metavar="URL",
        help="topic with the usage stream, kafka://HOST:PORT/TOPIC (several HOST:PORT are separated by commas); "
        "default: the lake's files",
    )
    parser.add_argument(
        "--kafka-settings",
        type=Path,
        metavar="FILE",
        help="settings of Kafka's client for --from, such as the sign-in, in the form of its properties files "
        f"(default: the content of {KAFKA_VARIABLE} in the environment)",
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
        "--records",
        type=_number,
        metavar="N",
        help="with --from: maximum number of records in one batch (default: no maximum)",
    )
    parser.add_argument(
        "--partitions",
        type=_number,
        default=PARTITIONS,
        metavar="N",
        help="partitions of the deduplication state; cannot be changed later (default: 8)",
    )
    parser.add_argument(
        "--checkpoint",
        metavar="URL",
        help=f"location of the stream's checkpoint (default: {LakeFiles.checkpoint} in the lake, with --from "
        f"{UsageTopic.checkpoint})",
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
    source = source_of(options, lake, os.environ)
    while not source.is_there():
        if options.once:
            print("there are no records in the lake yet")
            return 0
        time.sleep(POLL_SECONDS)
    spark = session(
        "holdfast stream", lake, master=options.master, memory=options.memory, packages=source.missing_packages()
    )
    checkpoint = options.checkpoint or url_of(lake, source.checkpoint)
    folder = BatchFolder(spark, lake, options.late_after, _now)
    every = None if options.once else options.every
    query = start(
        spark,
        source,
        checkpoint,
        folder,
        options.late_after,
        every,
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


def source_of(options: argparse.Namespace, lake: Lake, variables: Mapping[str, str]) -> Source:
    """Return the source of records that the options name.  Raises :class:`ValueError`."""
    if options.source is None:
        if options.kafka_settings is not None or options.records is not None:
            raise ValueError("--kafka-settings and --records are for a topic: name it with --from")
        return LakeFiles(lake, options.files)
    settings = variables.get(KAFKA_VARIABLE, "")
    if options.kafka_settings is not None:
        try:
            settings = options.kafka_settings.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(
                f"the settings of Kafka's client, {options.kafka_settings}, cannot be read: {error}"
            ) from None
    return UsageTopic.parse(options.source, settings, options.records)


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
                    "%d records are left to the batch: they were found more than %d s after newer ones",
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
