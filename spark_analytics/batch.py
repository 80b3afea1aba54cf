"""The batch: the tables of hours of a period, made of its records, day by day.

A day for which nothing new has come stays as it is, and it is written down that nothing had come by then; one for which
late records have come is made anew, whole.  Each day is published when it is done (:mod:`billing.tables`), so a batch
may be killed at any moment, and run again.
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
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from billing.billing_days import days_to_sum_up
from billing.compact import PREFIX
from billing.invoices import Invoices
from billing.lake import Lake, LakeFile
from billing.tables import SCHEMAS, STORAGE_HOURLY, USAGE_HOURLY, Day, Read, Tables, days_of, new_run
from billing.usage import COUNTS
from spark_analytics import records
from spark_analytics.input_size import bytes_of_files
from spark_analytics.period import add_period, load_prices, month_of, period_of
from spark_analytics.progress import Estimate, Step
from spark_analytics.session import JobFailed, session, url_of
from spark_analytics.usage import storage_hourly, usage_hourly

STEP: Final = "batch"
HELP: Final = "make usage by tenant, queue, tag, action and hour out of the records of a period"

_DAY = re.compile(r"date=(\d{4}-\d{2}-\d{2})/", re.ASCII)
_ACCOUNT = re.compile(r"\d{12}\Z", re.ASCII)
FORMAT: Final = 1
"""Of what is computed: days that were made with another one are made anew."""


class _Source(NamedTuple):
    """What a table is made of, and how."""

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
    """What became of a day of a table."""

    name: str
    day: date
    published: Day
    made: bool
    """Else nothing new had come, and it is as it was."""
    seconds: float


def batch(
    spark: SparkSession,
    lake: Lake,
    first: date,
    last: date,
    *,
    account: str | None = None,
    again: bool = False,
    told: Callable[[Done], object] = lambda done: None,
) -> list[Done]:
    """Make the tables of these days (UTC), both included, and publish them; ``told`` of each day of each table.

    ``account``: make only this tenant's rows anew.  Those of the others stay as they are published, and a day that was
    never published is made of all.  ``again``: also days for which nothing new has come.

    Raises :class:`JobFailed`, :class:`billing.tables.Outrun` and :class:`billing.lake.LakeUnavailable`; what was
    published before stays.
    """
    tables = Tables(lake)
    now = datetime.now(UTC)
    run = new_run(now)
    for name in _SOURCES:
        tables.sweep(name, now)
    all_done = []
    for day in days_of(first, last):
        for name, source in _SOURCES.items():
            begun = time.monotonic()
            there = tables.day(name, day)
            found = records.files(lake, source.folder, day, day)
            made = there is None or account is not None or again or there.read.digest != digest_of(found)
            if there is None or made:
                beside = None if account is None else there
                make = partial(_make, spark, lake, name, day, run, now, beside, account)
                fresh = records.of_what_stays(make, found, partial(records.files, lake, source.folder, day, day))
                tables.publish(name, day, fresh, over=there)
                there = fresh
            elif there.read_at.date() <= day:  # it was not over then, and may be now
                still = msgspec.structs.replace(there, read=msgspec.structs.replace(there.read, at=now))
                tables.publish(name, day, still, over=there)
                there = still
            done = Done(name, day, there, made, time.monotonic() - begun)
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
    beside: Day | None,
    account: str | None,
    found: Sequence[LakeFile],
) -> Day:
    """A day of a table, written: all of it, or one tenant's rows ``beside`` those of the others that are published."""
    source = _SOURCES[name]
    if not found:
        return Day(run, (), 0, dict.fromkeys(source.sums, "0"), Read(0, 0, 0, digest_of(found), at))
    raw = records.read(spark, lake, found, source.schema, None if beside is None else account)
    rows = source.hourly(source.once(raw))
    if beside is not None and beside.files:
        others = spark.read.parquet(*(url_of(lake, path) for path in beside.files))
        rows = rows.unionByName(others.where(F.col("account") != account), allowMissingColumns=True)
    folder = Tables.folder(name, run, day)
    seen = _write(rows, name, day, url_of(lake, folder))
    if seen["astray"]:
        raise JobFailed(
            f"{seen['astray']} rows of {name} are of other days than {day}: files in {source.folder}/date={day} have "
            "records of minutes that are not of that day; move them to the folders of their hours, and run this again"
        )
    if beside is None:
        count, copies = seen["records"] or 0, seen["copies"] or 0
        read = Read(len(found), count, copies - count, digest_of(found), at)
    else:  # late records of the others are still to be read
        read = msgspec.structs.replace(beside.read, at=beside.read_at)
    sums = {column: str(int(seen[column] or 0)) for column in source.sums}
    return Day(run, tuple(lake.paths(folder)), seen["rows"], sums, read)


def _write(rows: DataFrame, name: str, day: date, where: str) -> Mapping[str, Any]:
    """Write a day's rows; returns what they come to, which is counted on the way."""
    seen = Observation()
    observed = rows.observe(
        seen,
        F.count(F.lit(1)).alias("rows"),
        F.count_if(F.to_date("hour") != F.lit(day)).alias("astray"),
        F.sum("records").alias("records"),
        F.sum("copies").alias("copies"),
        *(F.sum(column).alias(column) for column in _SOURCES[name].sums),
    )
    observed.select(*SCHEMAS[name].names).sortWithinPartitions("account", "queue", "hour").write.parquet(
        where, mode="overwrite"
    )
    return seen.get


def digest_of(found: Sequence[LakeFile]) -> str:
    """Of the names and sizes of files: what a day was made of."""
    told = sha256(str(FORMAT).encode())
    for file in found:
        told.update(f"\n{file.path} {file.size_bytes}".encode())
    return told.hexdigest()[:32]


def late_days(lake: Lake, before: date, since: datetime) -> list[date]:
    """The days before one for which files have come since a time, other than those that were made of them.

    All of the lake's records are listed for it.  Raises :class:`billing.lake.LakeUnavailable`.
    """
    found = set()
    for source in _SOURCES.values():
        for file in lake.files(source.folder):
            told = _DAY.match(file.path.removeprefix(f"{source.folder}/"))
            if told and file.modified >= since and not file.path.rpartition("/")[2].startswith(PREFIX):
                found.add(date.fromisoformat(told[1]))
    return sorted(day for day in found if day < before)


def work_of(lake: Lake, days: Sequence[date], *, account: str | None = None, again: bool = False) -> dict[Step, int]:
    """The bytes that :func:`batch` will read for each day of each table; 0 where nothing has come, or nothing new.

    Raises :class:`billing.lake.LakeUnavailable`.
    """
    tables = Tables(lake)
    work: dict[Step, int] = {}
    for day in days:
        for name, source in _SOURCES.items():
            there = tables.day(name, day)
            found = records.files(lake, source.folder, day, day)
            same = there is not None and there.read.digest == digest_of(found)
            made = account is not None or again or not same
            work[name, day] = bytes_of_files(found) if made else 0
    return work


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
    :class:`ValueError` and :class:`billing.lake.LakeUnavailable`.
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


def _others(options: argparse.Namespace, lake: Lake, first: date, last: date) -> list[date]:
    """The days outside the period that are made with it.

    Raises :class:`ValueError` and :class:`billing.lake.LakeUnavailable`.
    """
    found = set(beside(options, lake, first, last))
    if options.days is not None:  # what comes for an earlier day is picked up, too
        found |= {*late_days(lake, first, datetime(first.year, first.month, first.day, tzinfo=UTC))}
    return sorted(found)


def input_bytes(options: argparse.Namespace, lake: Lake) -> int:
    """The size of the records that are read.  Raises :class:`ValueError` and :class:`billing.lake.LakeUnavailable`."""
    first, last = _span(options)
    days = [*_others(options, lake, first, last), *days_of(first, last)]
    return sum(work_of(lake, days, account=options.account, again=options.again).values())


def run(options: argparse.Namespace, lake: Lake) -> int:
    first, last = _span(options)
    if options.account is not None and not _ACCOUNT.match(options.account):
        raise ValueError(f"{options.account!r} is no account: it has 12 digits")
    others = _others(options, lake, first, last)
    spark = session(
        "holdfast batch", lake, master=options.master, memory=options.memory, input_bytes=options.input_bytes
    )
    begun = time.monotonic()
    work = work_of(lake, [*others, *days_of(first, last)], account=options.account, again=options.again)
    told = _Progress(work)
    done = []
    for since, until in (*((day, day) for day in others), (first, last)):
        done += batch(spark, lake, since, until, account=options.account, again=options.again, told=told)
    made = [one.published for one in done if one.made]
    if not made:
        print("nothing new has come")
        return 0
    count = sum(one.read.records for one in made)
    seconds = time.monotonic() - begun
    print(f"{len(made)} of {len(done)} made: {count:,} records in {seconds:.1f} s, {count / seconds:,.0f} a second")
    return 0
