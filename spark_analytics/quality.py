"""Quality checks: a month's totals at each stage, and whether their differences are within the promises.

The stages are *answered* (the clients' counts, if known), the *lake* (its records, one for each id), the *tables* of
the batch, the *rated* usage, and the *invoices*.  The promise between consecutive stages:

* answered ≤ lake ≤ answered + in doubt, for each account; only calls in progress when a process was killed are in
  doubt, and without a kill there are none;
* lake = tables = rated = invoices, for each account, exactly.

A stage that was computed before new records arrived is *behind*, which is no breach: the report names the command to
run.  A stage that was computed from the same records with another result is a breach.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from billing.lake.lake import Lake, LakeFile
from billing.lake.months import Month
from billing.lake.tables import STORAGE_HOURLY, USAGE_HOURLY, LakeTables, days_of
from billing.metering.usage import COUNTS
from billing.pricing.billing_days import EVERYBODY_ELSE, TABLES, batch_command
from billing.pricing.invoices import Invoices
from billing.pricing.rated import Rated, RatedMonth, Rating
from spark_analytics import records
from spark_analytics.analytics import published
from spark_analytics.batch import digest_of
from spark_analytics.input_size import bytes_of_files, bytes_of_tables
from spark_analytics.period import month_of
from spark_analytics.session import session

STEP: Final = "checks"
HELP: Final = "compare a month's totals at each stage, from answered calls to invoices; fails on a breach"

STORED: Final = "byte_milliseconds"
PRODUCED: Final = "produced_bytes"
"""Part of ``bytes_in`` that is of streams, and so has a price."""
_RATED: Final = ("chunks", "bytes_out", PRODUCED, STORED)
_LISTED_MAX: Final = 20
"""Maximum number of accounts that are printed for each difference."""

Sums = Mapping[str, Mapping[str, int]]
"""Sums of counts, by account."""
Verdict = Literal["equal", "within", "behind", "breach"]


class ClientCounts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Counts by clients of one account."""

    calls: int
    """Answered with success."""
    in_doubt: int = 0
    """Calls without an answer."""


class Difference(NamedTuple):
    """Two stages differ for an account."""

    account: str
    name: str
    before: int
    after: int


class StageComparison(NamedTuple):
    """Outcome of one comparison."""

    between: str
    verdict: Verdict
    differences: list[Difference]
    advice: str
    """Recommended action; empty if there is none."""


# --- comparing ----------------------------------------------------------------------------------------------


def compare_answered(answered: Mapping[str, ClientCounts], lake: Sums) -> StageComparison:
    """Compare the answered calls with those in the lake, apart from calls of unknown outcome."""
    short, more, within = [], [], []
    for account, known in sorted(answered.items()):
        calls = lake.get(account, {}).get("calls", 0)
        difference = Difference(account, "calls", known.calls, calls)
        if calls < known.calls:
            short.append(difference)
        elif calls > known.calls + known.in_doubt:
            more.append(difference)
        elif calls != known.calls:
            within.append(difference)
    between = "answered and lake"
    if short or more:
        advice = []
        if short:
            advice.append(
                "answered calls are not in the lake: run `holdfast serve` on each machine that answered, so "
                "that it uploads its usage folder, and check again; if nothing waits for upload, they are lost"
            )
        if more:
            advice.append(
                "the lake has more calls than were answered or in doubt: find out which other clients use these "
                "accounts"
            )
        return StageComparison(between, "breach", short + more, "; ".join(advice) + ".")
    return StageComparison(between, "within" if within else "equal", within, "")


def compare(
    between: str, before: Sums, after: Sums, names: Sequence[str], *, same_read: bool, run: str
) -> StageComparison:
    """Compare the sums of two stages.

    ``same_read``: the later one was computed from everything that is now in the earlier one.  ``run``: command that
    recomputes it.
    """
    differences = [
        Difference(account, name, left, right)
        for account in sorted({*before, *after})
        for name in names
        if (left := before.get(account, {}).get(name, 0)) != (right := after.get(account, {}).get(name, 0))
    ]
    if not differences:
        return StageComparison(between, "equal", [], "")
    if not same_read:
        return StageComparison(between, "behind", differences, f"records arrived since: {run}.")
    return StageComparison(
        between,
        "breach",
        differences,
        f"they were computed from the same records and must be equal: do not close the month, {run} and check "
        "again; if they still differ, this is a bug in Holdfast: please report it with this output.",
    )


def total(sums: Sums, name: str) -> int:
    return sum(counts.get(name, 0) for counts in sums.values())


# --- totals of the stages -----------------------------------------------------------------------------------


def in_lake(spark: SparkSession, lake: Lake, first: date, last: date) -> Sums:
    """The records of these days (UTC), both included, one for each id."""
    return _together(
        _by_account(records.usage(spark, lake, first, last), COUNTS),
        _by_account(records.storage(spark, lake, first, last), [STORED]),
    )


def in_tables(spark: SparkSession, lake: Lake, first: date, last: date) -> Sums:
    """The tables of these days (UTC), both included."""
    return _together(
        _by_account(published(spark, lake, USAGE_HOURLY, first, last), COUNTS),
        _by_account(published(spark, lake, STORAGE_HOURLY, first, last), [STORED]),
    )


def billable(spark: SparkSession, lake: Lake, rated: RatedMonth) -> Sums:
    """Sums of the month as it is billed: between its edges in the time zone of each account's plan."""
    rating = rated.rating
    found: dict[str, dict[str, int]] = {}
    for starts, ends in _edges(rating):
        last = (ends - timedelta(microseconds=1)).date()
        hours = (F.col("hour") >= F.lit(starts)) & (F.col("hour") < F.lit(ends))
        usage, storage = (
            published(spark, lake, table, starts.date(), last).where(hours) for table in (USAGE_HOURLY, STORAGE_HOURLY)
        )
        produced = F.when(F.col("kind") == "stream", F.col("bytes_in")).otherwise(0)
        counted = usage.withColumn(PRODUCED, produced)
        sums = _together(_by_account(counted, (*COUNTS, PRODUCED)), _by_account(storage, [STORED]))
        found |= {account: dict(counts) for account, counts in sums.items() if rating.edges(account) == (starts, ends)}
    return found


def _edges(rating: Rating) -> set[tuple[datetime, datetime]]:
    """All periods that are the month in some account's plan."""
    return {rating.edges(account) for account in (EVERYBODY_ELSE, *rating.customers.named, *rating.begins)}


def of_lines(lines: pa.Table) -> Sums:
    """Counts that lines of usage charge."""
    sums = lines.group_by(["account", "meter"]).aggregate([("units", "sum")])
    found: dict[str, dict[str, int]] = {}
    for row in sums.to_pylist():
        name = _COUNT_OF.get(row["meter"], "chunks")
        counts = found.setdefault(row["account"], {})
        counts[name] = counts.get(name, 0) + int(row["units_sum"])
    return found


_COUNT_OF: Final = {
    "storage": STORED,
    "stream_storage": STORED,
    "bytes_out": "bytes_out",
    "stream_bytes_out": "bytes_out",
    "stream_bytes_in": PRODUCED,
}


def _by_account(rows: DataFrame, names: Iterable[str]) -> DataFrame:
    return rows.groupBy("account").agg(*(F.sum(F.col(name).cast("decimal(38,0)")).alias(name) for name in names))


def _together(usage: DataFrame, storage: DataFrame) -> Sums:
    found: dict[str, dict[str, int]] = {}
    for row in usage.unionByName(storage, allowMissingColumns=True).collect():  # a row or two for each account
        counts: dict[str, Any] = row.asDict()
        found.setdefault(counts.pop("account"), {}).update(
            {name: int(n) for name, n in counts.items() if n is not None}
        )
    return found


def _behind(lake: Lake, tables: LakeTables, days: Iterable[date]) -> list[date]:
    """Days (UTC) whose tables do not include all current files."""
    found = []
    for day in days:
        for name, folder in _FOLDERS.items():
            files = records.files(lake, folder, day, day)
            there = tables.day(name, day)
            if (there is None and files) or (there is not None and there.read.digest != digest_of(files)):
                found.append(day)
                break
    return found


_FOLDERS: Final = {USAGE_HOURLY: records.USAGE_FOLDER, STORAGE_HOURLY: records.STORAGE_FOLDER}


# --- the job ------------------------------------------------------------------------------------------------


def check(
    spark: SparkSession, lake: Lake, month: Month, answered: Mapping[str, ClientCounts] | None
) -> tuple[dict[str, Sums], list[StageComparison]]:
    """Sums of the month at each existing stage, and the differences between the stages.

    Raises :class:`~billing.lake.lake.LakeUnavailable`.
    """
    days = _days(lake, month)

    def find() -> list[LakeFile]:
        return [file for folder in _FOLDERS.values() for file in records.files(lake, folder, days[0], days[-1])]

    return records.retry_if_compacted(lambda found: _check(spark, lake, month, answered), find(), find)


def _days(lake: Lake, month: Month) -> list[date]:
    """The days (UTC) of the month, and those that it was rated by in other time zones."""
    rating = Rated(lake).rating(month)
    own = days_of(month.first, month.next.first - timedelta(1))
    return sorted({*own, *(() if rating is None else rating.days())})


def _check(
    spark: SparkSession, lake: Lake, month: Month, answered: Mapping[str, ClientCounts] | None
) -> tuple[dict[str, Sums], list[StageComparison]]:
    tables = LakeTables(lake)
    stages: dict[str, Sums] = {}
    findings = []
    first, last = month.first, month.next.first - timedelta(1)
    spans = [(first, last), *((day, day) for day in _days(lake, month) if not first <= day <= last)]
    if answered is not None:
        stages["answered"] = {account: {"calls": known.calls} for account, known in answered.items()}
    compared = []
    for since, until in spans:
        # The tables' inputs are read first: records that arrive meanwhile are then missing in them, not in the lake.
        behind = _behind(lake, tables, days_of(since, until))
        compared.append((behind, in_tables(spark, lake, since, until), in_lake(spark, lake, since, until)))
    _, stages["tables"], stages["lake"] = compared[0]
    if answered is not None:
        findings.append(compare_answered(answered, stages["lake"]))
    for (since, until), (behind, sums, records_of) in zip(spans, compared, strict=True):
        between = "lake and tables" if since == first else f"lake and tables of {since}"
        batch = f"run `{batch_command(behind or days_of(since, until))}`"
        findings.append(compare(between, records_of, sums, [*COUNTS, STORED], same_read=not behind, run=batch))
    rated = Rated(lake).of(month)
    if rated is None:
        return stages, findings
    stages["rated"] = of_lines(rated.lines)
    billed = billable(spark, lake, rated)
    same = all(
        rated.rating.read.get(name, {}).get(str(day))
        == (None if (there := tables.day(name, day)) is None else there.run)
        for name in TABLES
        for day in rated.rating.days()
    )
    again = f"run `python -m spark_analytics rate --period {month}`"
    findings.append(compare("tables and rated", billed, stages["rated"], _RATED, same_read=same, run=again))
    invoices = Invoices(lake)
    lines = invoices.charged(month)
    if lines is None:
        return stages, findings
    charged = [closed.rated[str(month)] for closed in invoices.closed().values() if str(month) in closed.rated]
    stages["invoices"] = of_lines(lines.filter(pc.equal(lines["category"], "usage")))
    findings.append(
        compare(
            "rated and invoices",
            stages["rated"],
            stages["invoices"],
            _RATED,
            same_read=charged[-1] == rated.rating.run,
            run="the next month that is closed corrects it",
        )
    )
    return stages, findings


def report(month: Month, stages: Mapping[str, Sums], findings: Iterable[StageComparison]) -> str:
    """Format the results for people."""
    names = ("calls", "chunks", "messages", "bytes_out", STORED)
    rows: list[tuple[str, ...]] = [("stage", *names)]
    for stage in ("answered", "lake", "tables", "rated", "invoices"):
        if stage in stages:
            known = {name for counts in stages[stage].values() for name in counts}
            rows.append((stage, *(f"{total(stages[stage], name):,}" if name in known else "-" for name in names)))
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = [f"Month {month}, UTC", ""]
    lines += [
        "  ".join(
            [row[0].ljust(widths[0]), *(one.rjust(width) for one, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]
    for found in findings:
        lines += ["", f"{found.between}: {_VERDICTS[found.verdict]}"]
        lines += [
            f"  account {one.account}: {one.name} {one.before:,} and {one.after:,} ({one.after - one.before:+,})"
            for one in found.differences[:_LISTED_MAX]
        ]
        if len(found.differences) > _LISTED_MAX:
            lines.append(f"  and {len(found.differences) - _LISTED_MAX} more")
        if found.advice:
            lines.append(f"  {found.advice[0].upper()}{found.advice[1:]}")
    return "\n".join(lines)


_VERDICTS: Final[Mapping[Verdict, str]] = {
    "equal": "equal, exactly",
    "within": "within the promise: calls in doubt may be counted",
    "behind": "the later one is out of date",
    "breach": "THE PROMISE IS BROKEN",
}


def load_answered(path: Path) -> dict[str, ClientCounts]:
    """Counts by clients, by account: ``{"000000000001": {"calls": 120, "in_doubt": 2}}``.

    Raises :class:`ValueError`.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, ClientCounts])
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise ValueError(
            f'{path} does not hold counts of clients, {{"000000000001": {{"calls": 120, "in_doubt": 2}}}}: {error}'
        ) from None


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--month", type=month_of, required=True, metavar="2026-11", help="a month; or this, or last (UTC)"
    )
    parser.add_argument("--answered", type=Path, metavar="FILE", help="the clients' counts (JSON), if known")


def input_bytes(options: argparse.Namespace, lake: Lake) -> int:
    """Current size of the input.  Raises :class:`billing.lake.lake.LakeUnavailable`."""
    days = _days(lake, options.month)
    files = (file for folder in _FOLDERS.values() for file in records.files(lake, folder, days[0], days[-1]))
    return bytes_of_files(files) + bytes_of_tables(LakeTables(lake), days)


def run(options: argparse.Namespace, lake: Lake) -> int:
    answered = None if options.answered is None else load_answered(options.answered)
    spark = session(
        "holdfast check", lake, master=options.master, memory=options.memory, input_bytes=options.input_bytes
    )
    stages, findings = check(spark, lake, options.month, answered)
    print(report(options.month, stages, findings))
    return 1 if any(found.verdict == "breach" for found in findings) else 0
