"""The batch: the tables of hours of a period, made of its records, day by day.

A day for which nothing new has come stays as it is, and it is written down that nothing had come by then; one for which
late records have come is made anew, whole.  Each day is published when it is done (:mod:`billing.lake.tables`), so a
batch may be killed at any moment, and run again.  The days of a small input are made by one query for each table, as
planning a query takes longer than the work of a small day.
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
from billing.lake.tables import (
    SCHEMAS,
    STORAGE_HOURLY,
    USAGE_HOURLY,
    DayInput,
    LakeTables,
    PublishedDay,
    days_of,
    new_run,
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
HELP: Final = "make usage by tenant, queue, tag, action and hour out of the records of a period"

_DAY = re.compile(r"date=(\d{4}-\d{2}-\d{2})/", re.ASCII)
_ACCOUNT = re.compile(r"\d{12}\Z", re.ASCII)
FORMAT: Final = 1
"""Version of the computation: days that were made with another one are made anew."""


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
    made: bool
    """Else nothing new had come, and it is as it was."""
    seconds: float


class Listed(NamedTuple):
    """State of a day of a table in the lake before it is made."""

    there: PublishedDay | None
    """The published day, if there is one."""
    found: Sequence[LakeFile]
    """Its records."""
    made: bool
    """It is to be made; else nothing new has come."""


class Work(NamedTuple):
    """Work of a batch, listed once."""

    at: datetime
    """All that had come by then is listed."""
    account: str | None
    again: bool
    days: Mapping[Step, Listed]
    """In the order in which they are made."""

    def sizes(self) -> dict[Step, int]:
        """The bytes to read for each day of each table; 0 where nothing has come, or nothing new."""
        return {step: bytes_of_files(listed.found) if listed.made else 0 for step, listed in self.days.items()}


def batch(
    spark: SparkSession,
    lake: Lake,
    first: date,
    last: date,
    *,
    account: str | None = None,
    again: bool = False,
    small: bool = False,
    told: Callable[[Done], object] = lambda done: None,
) -> list[Done]:
    """Make the tables of these days (UTC), both included, of :func:`work_of`, as :func:`make_days` does."""
    return make_days(
        spark, lake, work_of(lake, days_of(first, last), account=account, again=again), small=small, told=told
    )


def make_days(
    spark: SparkSession,
    lake: Lake,
    work: Work,
    *,
    small: bool = False,
    told: Callable[[Done], object] = lambda done: None,
) -> list[Done]:
    """Make the tables of days and publish them; ``told`` of each day of each table.

    ``small``: the days of a table are made by one query.  Raises :class:`JobFailed`,
    :class:`billing.lake.tables.Outrun` and
    :class:`billing.lake.lake.LakeUnavailable`; what was published before stays.
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
        if rows is None and tables.day(name, day) != listed.there:  # another batch was here since it was listed
            listed = _listed(lake, name, day, work.account, work.again)
        there, found, made = listed
        if there is None or made:
            if rows is not None:
                fresh = _store(lake, name, day, run, work.at, found, rows)
            else:
                beside = None if work.account is None else there
                make = partial(_make, spark, lake, name, day, run, work.at, beside, work.account)
                find = partial(records.files, lake, _SOURCES[name].folder, day, day)
                fresh = records.of_what_stays(make, found, find)
            tables.publish(name, day, fresh, over=there, durable=rows is not None)
            there = fresh
        elif there.read_at.date() <= day:  # it was not over then, and may be now
            still = msgspec.structs.replace(there, read=msgspec.structs.replace(there.read, at=work.at))
            tables.publish(name, day, still, over=there)
            there = still
        done = Done(name, day, there, made, time.monotonic() - started)
        all_done.append(done)
        told(done)
    return all_done


def _make(
    spark: SparkSession,
    lake: Lake,
    name: str,
    day: date,
    run: str,
    at: datetime,
    beside: PublishedDay | None,
    account: str | None,
    found: Sequence[LakeFile],
) -> PublishedDay:
    """A day of a table, written: all of it, or one tenant's rows ``beside`` those of the others that are published."""
    source = _SOURCES[name]
    if not found:
        return PublishedDay(run, (), 0, dict.fromkeys(source.sums, "0"), DayInput(0, 0, 0, digest_of(found), at))
    raw = records.read(spark, lake, found, source.schema, None if beside is None else account)
    rows = source.hourly(source.once(raw))
    if beside is not None and beside.files:
        others = spark.read.parquet(*(url_of(lake, path) for path in beside.files))
        rows = rows.unionByName(others.where(F.col("account") != account), allowMissingColumns=True)
    seen = Observation()
    observed = rows.observe(seen, F.count_if(F.to_date("hour") != F.lit(day)).alias("astray"), *_counts_of(name))
    _in_order(observed, name).write.parquet(url_of(lake, LakeTables.folder(name, run, day)), mode="overwrite")
    if seen.get["astray"]:
        raise JobFailed(
            f"{seen.get['astray']} rows of {name} are of other days than {day}: files in {source.folder}/date={day} "
            "have records of minutes that are not of that day; move them to the folders of their hours, and run this "
            "again"
        )
    return _written(lake, name, day, run, at, found, seen.get, beside)


def _rows_together(spark: SparkSession, lake: Lake, name: str, work: Work) -> dict[Step, pa.Table]:
    """The rows of the days of a table that are to be made, by one query, with the columns ``records`` and ``copies``.

    None if that cannot be done: then a file was removed or is damaged, or has records of another day, and each day is
    made alone.
    """
    source = _SOURCES[name]
    days = {day: listed.found for (of, day), listed in work.days.items() if of == name and listed.made and listed.found}
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
    """A day of a table, written: one of those of :func:`_rows_together`."""
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
    """The columns of a table, and ``more``, and its rows as they are stored."""
    return rows.select(*SCHEMAS[name].names, *more).sortWithinPartitions("account", "queue", "hour")


def _written(
    lake: Lake,
    name: str,
    day: date,
    run: str,
    at: datetime,
    found: Sequence[LakeFile],
    counts: Mapping[str, Any],
    beside: PublishedDay | None,
) -> PublishedDay:
    """A day that a run has written, by what its rows come to (:func:`_counts_of`)."""
    if beside is None:
        count, copies = counts["records"] or 0, counts["copies"] or 0
        read = DayInput(len(found), count, copies - count, digest_of(found), at)
    else:  # late records of the others are still to be read
        read = msgspec.structs.replace(beside.read, at=beside.read_at)
    sums = {column: str(int(counts[column] or 0)) for column in _SOURCES[name].sums}
    return PublishedDay(run, tuple(lake.paths(LakeTables.folder(name, run, day))), counts["rows"], sums, read)


def digest_of(found: Sequence[LakeFile]) -> str:
    """Digest of the names and sizes of the files that a day was made of."""
    told = sha256(str(FORMAT).encode())
    for file in found:
        told.update(f"\n{file.path} {file.size_bytes}".encode())
    return told.hexdigest()[:32]


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
    """The days before one for which files have come since a time, other than those that were made of them."""
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

    ``account``: make only this tenant's rows anew.  Those of the others stay as they are published, and a day that was
    never published is made of all.  ``again``: also days for which nothing new has come.  ``listed``: all records,
    which were listed after the time ``at``; else those of the days are, now.

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
    """Prints a line for each day of a table when it is done, with the time that the rest will take."""

    def __init__(self, work: Mapping[Step, int]) -> None:
        self._steps = len(work)
        self._done = 0
        self._estimate = Estimate(work)

    def __call__(self, done: Done) -> None:
        self._done += 1
        self._estimate.add((done.name, done.day), done.seconds)
        if not done.made:
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


def beside(options: argparse.Namespace, lake: Lake, first: date, last: date) -> list[date]:
    """The days outside the period that its months need as they are billed, in the time zones of plans.

    Of ``--month`` it is that month; of ``--days``, the last month and this one, which are what a clock rates.  Raises
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
        help="the price book: also the days that the month, or the last one and this one with --days, need beside "
        "those of UTC in the time zones of its plans",
    )
    parser.add_argument("--accounts", type=Path, metavar="FILE", help="with --plan: who has which plan")
    parser.add_argument("--account", metavar="ID", help="make only this tenant's usage anew (default: everybody's)")
    parser.add_argument("--again", action="store_true", help="also days for which nothing new has come")


def _span(options: argparse.Namespace) -> tuple[date, date]:
    """The first day and the last one, as far as they have begun.  Raises :class:`ValueError`."""
    first, last = period_of(options)
    last = min(last, datetime.now(UTC).date())
    if last < first:
        raise ValueError(f"{first} has not begun yet")
    return first, last


def _work(options: argparse.Namespace, lake: Lake) -> Work:
    """Work that the options ask for, listed once.

    Raises :class:`ValueError` and :class:`billing.lake.lake.LakeUnavailable`.
    """
    at = datetime.now(UTC)
    first, last = _span(options)
    others = {*beside(options, lake, first, last)}
    listed = None
    if options.days is not None:  # what comes for an earlier day is picked up, too
        listed = all_records(lake)
        others |= {*late_days(listed, first, datetime(first.year, first.month, first.day, tzinfo=UTC))}
    days = [*sorted(others), *days_of(first, last)]
    return work_of(lake, days, account=options.account, again=options.again, listed=listed, at=at)


def input_bytes(options: argparse.Namespace, lake: Lake) -> int:
    """The size of the records that are read; what is listed for it stays in the options.

    Raises :class:`ValueError` and :class:`billing.lake.lake.LakeUnavailable`.
    """
    options.work = _work(options, lake)
    return sum(options.work.sizes().values())


def run(options: argparse.Namespace, lake: Lake) -> int:
    if options.account is not None and not _ACCOUNT.match(options.account):
        raise ValueError(f"{options.account!r} is no account: it has 12 digits")
    work: Work = getattr(options, "work", None) or _work(options, lake)
    spark = session(
        "holdfast batch", lake, master=options.master, memory=options.memory, input_bytes=options.input_bytes
    )
    started = time.monotonic()
    done = make_days(spark, lake, work, small=is_small(options.input_bytes), told=_Progress(work.sizes()))
    made = [one.published for one in done if one.made]
    if not made:
        print("nothing new has come")
        return 0
    count = sum(one.read.records for one in made)
    seconds = time.monotonic() - started
    print(f"{len(made)} of {len(done)} made: {count:,} records in {seconds:.1f} s, {count / seconds:,.0f} a second")
    return 0
