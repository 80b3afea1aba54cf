"""The batch: sums up the records of a period in hourly tables, day by day.

A day without new records stays unchanged, and the time of this check is recorded; a day with late records is computed
again completely.  Each day is published when it is done (:mod:`billing.lake.tables`), so a batch can be killed at any
moment and run again.  The days of a small input are computed by one query for each table, because planning a query
takes longer than a small day.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from billing.lake.compact import PREFIX
from billing.lake.lake import Lake, LakeFile
from billing.lake.snapshot import new_run
from billing.lake.tables import (
    SCHEMAS,
    STORAGE_HOURLY,
    USAGE_HOURLY,
    DayInput,
    LakeTables,
    PublishedDay,
    days_of,
)
from billing.metering.usage import COUNTS
from billing.pricing.billing_days import days_to_sum_up
from billing.pricing.invoices import Invoices
from spark_analytics import records
from spark_analytics.input_size import bytes_of_files, is_small
from spark_analytics.period import add_period, load_prices, month_of, period_of
from spark_analytics.progress import Estimate, Step, print_step
from spark_analytics.session import SPARK_ERRORS, JobFailed, session, url_of
from spark_analytics.usage import storage_hourly, usage_hourly

STEP: Final = "batch"
HELP: Final = "sum up the records of a period by tenant, queue, tag, action and hour"

_DAY = re.compile(r"date=(\d{4}-\d{2}-\d{2})/", re.ASCII)
_ACCOUNT = re.compile(r"\d{12}\Z", re.ASCII)
FORMAT: Final = 1
"""Version of the computation: days that were computed with another one are computed again."""


class _Source(NamedTuple):
    """Source of a table, and its computation."""

    folder: str
    schema: StructType
    once: Callable[[DataFrame], DataFrame]
    hourly: Callable[[DataFrame], DataFrame]
    sums: Sequence[str]
    """The columns that are added up for its pointer."""


_SOURCES: Final[Mapping[str, _Source]] = {
    USAGE_HOURLY: _Source(records.USAGE_FOLDER, records.USAGE, records.usage_once, usage_hourly, COUNTS),
    STORAGE_HOURLY: _Source(
        records.STORAGE_FOLDER, records.STORAGE, records.storage_once, storage_hourly, ("byte_milliseconds",)
    ),
}


class Done(NamedTuple):
    """Outcome of a day of a table."""

    name: str
    day: date
    published: PublishedDay
    computed: bool
    """False: there were no new records, and the day is unchanged."""
    seconds: float


class Listed(NamedTuple):
    """State of a day of a table in the lake before it is computed."""

    there: PublishedDay | None
    """The published day, if there is one."""
    found: Sequence[LakeFile]
    """Its records."""
    computed: bool
    """True if it has to be computed; False: no new records."""


class Work(NamedTuple):
    """Work of a batch, listed once."""

    at: datetime
    """Time up to which all records are listed."""
    account: str | None
    again: bool
    days: Mapping[Step, Listed]
    """Days in the order of computation."""

    def sizes(self) -> dict[Step, int]:
        """Bytes to read for each day of each table; 0: no new records."""
        return {step: bytes_of_files(listed.found) if listed.computed else 0 for step, listed in self.days.items()}


def batch(
    spark: SparkSession,
    lake: Lake,
    first: date,
    last: date,
    *,
    account: str | None = None,
    again: bool = False,
    small: bool = False,
    report: Callable[[Done], object] = lambda done: None,
) -> list[Done]:
    """Compute the tables of these days (UTC), both included, from :func:`work_of`, as :func:`make_days` does."""
    return make_days(
        spark, lake, work_of(lake, days_of(first, last), account=account, again=again), small=small, report=report
    )


def make_days(
    spark: SparkSession,
    lake: Lake,
    work: Work,
    *,
    small: bool = False,
    report: Callable[[Done], object] = lambda done: None,
) -> list[Done]:
    """Compute and publish the tables of days; ``report`` is called for each day of each table.

    ``small``: one query computes all days of a table.  Raises :class:`JobFailed`,
    :class:`billing.lake.snapshot.Outrun` and
    :class:`billing.lake.lake.LakeUnavailable`; days that are already published stay published.
    """
    tables = LakeTables(lake)
    run = new_run(work.at)
    for name in _SOURCES:
        tables.sweep(name, work.at)
    together: dict[Step, pa.Table] = {}
    if small and work.account is None:
        for name in _SOURCES:
            together |= _rows_together(spark, lake, name, work)
    all_done = []
    for (name, day), listed in work.days.items():
        started = time.monotonic()
        rows = together.get((name, day))
        if rows is None and tables.day(name, day) != listed.there:  # another batch has published it since it was listed
            listed = _listed(lake, name, day, work.account, work.again)
        there, found, computed = listed
        if there is None or computed:
            if rows is not None:
                fresh = _store(lake, name, day, run, work.at, found, rows)
            else:
                others = None if work.account is None else there
                make = partial(_make, spark, lake, name, day, run, work.at, others, work.account)
                find = partial(records.files, lake, _SOURCES[name].folder, day, day)
                fresh = records.retry_if_compacted(make, found, find)
            tables.publish(name, day, fresh, over=there, durable=rows is not None)
            there = fresh
        elif there.read.at.date() <= day:  # the day was not over then, and may be now
            still = msgspec.structs.replace(there, read=msgspec.structs.replace(there.read, at=work.at))
            tables.publish(name, day, still, over=there)
            there = still
        done = Done(name, day, there, computed, time.monotonic() - started)
        all_done.append(done)
        report(done)
    return all_done


def _make(
    spark: SparkSession,
    lake: Lake,
    name: str,
    day: date,
    run: str,
    at: datetime,
    others: PublishedDay | None,
    account: str | None,
    found: Sequence[LakeFile],
) -> PublishedDay:
    """Write a day of a table: all of it, or one tenant's new rows and the published rows of the ``others``."""
    source = _SOURCES[name]
    if not found:
        return PublishedDay(run, (), 0, dict.fromkeys(source.sums, "0"), DayInput(0, 0, 0, digest_of(found), at))
    raw = records.read(spark, lake, found, source.schema, None if others is None else account)
    rows = source.hourly(source.once(raw))
    if others is not None and others.files:
        published = spark.read.parquet(*(url_of(lake, path) for path in others.files))
        rows = rows.unionByName(published.where(F.col("account") != account), allowMissingColumns=True)
    seen = Observation()
    observed = rows.observe(seen, F.count_if(F.to_date("hour") != F.lit(day)).alias("astray"), *_counts_of(name))
    _in_order(observed, name).write.parquet(url_of(lake, LakeTables.folder(name, run, day)), mode="overwrite")
    if seen.get["astray"]:
        raise JobFailed(
            f"{seen.get['astray']} rows of {name} belong to other days than {day}: files in {source.folder}/date={day} "
            "have records of other days; move them to the folders of their hours, and run this again"
        )
    return _written(lake, name, day, run, at, found, seen.get, others)


def _rows_together(spark: SparkSession, lake: Lake, name: str, work: Work) -> dict[Step, pa.Table]:
    """Compute all days of a table that have new records in one query; the rows also have ``records`` and ``copies``.

    Empty if a file was removed, is damaged, or has records of another day: then each day is computed by a query of its
    own.
    """
    source = _SOURCES[name]
    days = {
        day: listed.found for (of, day), listed in work.days.items() if of == name and listed.computed and listed.found
    }
    if not days:
        return {}
    files = [file for of_day in days.values() for file in of_day]
    seen = Observation()
    astray = F.count_if(~F.to_date("minute").eqNullSafe(F.col("day"))).alias("astray")
    try:
        with print_step(f"{name} of {len(days)} days"):
            raw = records.read_with_day(spark, lake, files, source.schema).observe(seen, astray).drop("day")
            found = _in_order(source.hourly(source.once(raw)), name, "records", "copies").toArrow()
    except SPARK_ERRORS:
        return {}
    if seen.get["astray"]:
        return {}
    dates = found["hour"].cast(pa.date32())
    return {(name, day): found.filter(pc.equal(dates, pa.scalar(day))) for day in days}


def _store(
    lake: Lake, name: str, day: date, run: str, at: datetime, found: Sequence[LakeFile], rows: pa.Table
) -> PublishedDay:
    """Write a day of a table that :func:`_rows_together` computed."""
    lake.write_table(f"{LakeTables.folder(name, run, day)}/part-0.parquet", rows.select(SCHEMAS[name].names))
    counts = {column: pc.sum(rows[column]).as_py() for column in ("records", "copies", *_SOURCES[name].sums)}
    return _written(lake, name, day, run, at, found, {"rows": rows.num_rows, **counts}, None)


def _counts_of(name: str) -> list[Column]:
    """Sums of a day's rows."""
    return [
        F.count(F.lit(1)).alias("rows"),
        *(F.sum(column).alias(column) for column in ("records", "copies", *_SOURCES[name].sums)),
    ]


def _in_order(rows: DataFrame, name: str, *more: str) -> DataFrame:
    """Select a table's columns and ``more``, and sort the rows as they are stored."""
    return rows.select(*SCHEMAS[name].names, *more).sortWithinPartitions("account", "queue", "hour")


def _written(
    lake: Lake,
    name: str,
    day: date,
    run: str,
    at: datetime,
    found: Sequence[LakeFile],
    counts: Mapping[str, Any],
    others: PublishedDay | None,
) -> PublishedDay:
    """A day that a run has written, with the sums of its rows (:func:`_counts_of`)."""
    if others is None:
        count, copies = counts["records"] or 0, counts["copies"] or 0
        read = DayInput(len(found), count, copies - count, digest_of(found), at)
    else:  # the late records of other tenants have not been read yet
        read = others.read
    sums = {column: str(int(counts[column] or 0)) for column in _SOURCES[name].sums}
    return PublishedDay(run, tuple(lake.paths(LakeTables.folder(name, run, day))), counts["rows"], sums, read)


def digest_of(found: Sequence[LakeFile]) -> str:
    """Digest of the names and sizes of a day's input files."""
    digest = sha256(str(FORMAT).encode())
    for file in found:
        digest.update(f"\n{file.path} {file.size_bytes}".encode())
    return digest.hexdigest()[:32]


Records = Mapping[str, Mapping[date, Sequence[LakeFile]]]
"""Files of records by table and day (UTC)."""


def all_records(lake: Lake) -> Records:
    """All of the lake's records.  Raises :class:`billing.lake.lake.LakeUnavailable`."""
    found: dict[str, dict[date, list[LakeFile]]] = {name: {} for name in _SOURCES}
    for name, source in _SOURCES.items():
        for file in lake.files(source.folder):
            day = _DAY.match(file.path.removeprefix(f"{source.folder}/"))
            if day is not None:
                found[name].setdefault(date.fromisoformat(day[1]), []).append(file)
    return found


def late_days(listed: Records, before: date, since: datetime) -> list[date]:
    """Earlier days with files that arrived after a time and that are not in their tables."""
    return sorted(
        {
            day
            for days in listed.values()
            for day, files in days.items()
            if day < before and any(file.modified >= since and not _is_merged(file) for file in files)
        }
    )


def _is_merged(file: LakeFile) -> bool:
    return file.path.rpartition("/")[2].startswith(PREFIX)


def work_of(
    lake: Lake,
    days: Sequence[date],
    *,
    account: str | None = None,
    again: bool = False,
    listed: Records | None = None,
    at: datetime | None = None,
) -> Work:
    """Work of :func:`make_days` for these days.

    ``account``: compute only this tenant's rows.  The published rows of the others stay; a day that was never published
    is computed for all tenants.  ``again``: also compute days without new records.  ``listed``: all records, listed
    after the time ``at``; None: list those of the days now.

    Raises :class:`billing.lake.lake.LakeUnavailable`.
    """
    at = at or datetime.now(UTC)
    steps = {
        (name, day): _listed(lake, name, day, account, again, None if listed is None else listed[name].get(day, ()))
        for day in days
        for name in _SOURCES
    }
    return Work(at, account, again, steps)


def _listed(
    lake: Lake, name: str, day: date, account: str | None, again: bool, found: Sequence[LakeFile] | None = None
) -> Listed:
    there = LakeTables(lake).day(name, day)
    if found is None:
        found = records.files(lake, _SOURCES[name].folder, day, day)
    same = there is not None and there.read.digest == digest_of(found)
    return Listed(there, found, account is not None or again or not same)


class _Progress:
    """Prints a line for each finished day of a table, with the estimated remaining time."""

    def __init__(self, work: Mapping[Step, int]) -> None:
        self._steps = len(work)
        self._done = 0
        self._estimate = Estimate(work)

    def __call__(self, done: Done) -> None:
        self._done += 1
        self._estimate.add((done.name, done.day), done.seconds)
        if not done.computed:
            became = "nothing new"
        elif not done.published.read.files:
            became = "no records"
        else:
            read = done.published.read
            became = f"{read.records:,} records and {read.repeated:,} again, {done.published.rows:,} rows"
            became += f" in {done.seconds:.1f} s"
        remaining = self._estimate.remaining_seconds()
        rest = "" if remaining is None else f", about {remaining:.0f} s more"
        print(f"{done.day} {done.name}: {became} ({self._done} of {self._steps}{rest})", flush=True)


def days_of_plans(options: argparse.Namespace, lake: Lake, first: date, last: date) -> list[date]:
    """Find the days outside the period that its months need, because months begin in the time zones of plans.

    With ``--month``, its month; with ``--days``, the last month and this one, because a scheduler rates these.  Raises
    :class:`ValueError` and :class:`billing.lake.lake.LakeUnavailable`.
    """
    if options.plan is None:
        if options.accounts is not None:
            raise ValueError("--accounts goes with --plan")
        return []
    if options.month is None and options.days is None:
        raise ValueError("--plan goes with --month or --days")
    book, customers = load_prices(options.plan, options.accounts)
    months = [options.month] if options.month is not None else [month_of("last"), month_of("this")]
    closed = Invoices(lake).closed()
    needed = {day for month in months for day in days_to_sum_up(month, book, customers, closed)}
    return sorted(day for day in needed if not first <= day <= last and day <= datetime.now(UTC).date())


def arguments(parser: argparse.ArgumentParser) -> None:
    add_period(parser)
    parser.add_argument(
        "--plan",
        type=Path,
        metavar="FILE",
        help="the price book: also sum up the days that the time zones of its plans need for the month (with "
        "--days: for the last month and this one)",
    )
    parser.add_argument(
        "--accounts", type=Path, metavar="FILE", help="with --plan: file that assigns plans to accounts"
    )
    parser.add_argument("--account", metavar="ID", help="only this tenant's usage (default: all tenants')")
    parser.add_argument("--again", action="store_true", help="also days without new records")


def _span(options: argparse.Namespace) -> tuple[date, date]:
    """First and last day of the period, up to today.  Raises :class:`ValueError`."""
    first, last = period_of(options)
    last = min(last, datetime.now(UTC).date())
    if last < first:
        raise ValueError(f"{first} has not started yet")
    return first, last


def _work(options: argparse.Namespace, lake: Lake) -> Work:
    """Work requested by the options, listed once.

    Raises :class:`ValueError` and :class:`billing.lake.lake.LakeUnavailable`.
    """
    at = datetime.now(UTC)
    first, last = _span(options)
    others = {*days_of_plans(options, lake, first, last)}
    listed = None
    if options.days is not None:  # also days before the period that got late records
        listed = all_records(lake)
        others |= {*late_days(listed, first, datetime(first.year, first.month, first.day, tzinfo=UTC))}
    days = [*sorted(others), *days_of(first, last)]
    return work_of(lake, days, account=options.account, again=options.again, listed=listed, at=at)


def input_bytes(options: argparse.Namespace, lake: Lake) -> int:
    """Size of the records to read; keeps the listed files in ``options.work``.

    Raises :class:`ValueError` and :class:`billing.lake.lake.LakeUnavailable`.
    """
    options.work = _work(options, lake)
    return sum(options.work.sizes().values())


def run(options: argparse.Namespace, lake: Lake) -> int:
    if options.account is not None and not _ACCOUNT.match(options.account):
        raise ValueError(f"{options.account!r} is not an account: it has 12 digits")
    work: Work = getattr(options, "work", None) or _work(options, lake)
    spark = session(
        "holdfast batch", lake, master=options.master, memory=options.memory, input_bytes=options.input_bytes
    )
    started = time.monotonic()
    done = make_days(spark, lake, work, small=is_small(options.input_bytes), report=_Progress(work.sizes()))
    made = [one.published for one in done if one.computed]
    if not made:
        print("no new records")
        return 0
    count = sum(one.read.records for one in made)
    seconds = time.monotonic() - started
    print(f"{len(made)} of {len(done)} computed: {count:,} records in {seconds:.1f} s, {count / seconds:,.0f} a second")
    return 0
