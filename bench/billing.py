"""``python -m bench.billing``: the monthly batch and the rating at several sizes, on two cores and in four GiB.

For each size a month is generated (:mod:`spark_analytics.generator`): the batch computes its tables, started as an
operator would start it; then late records arrive, and the batch runs again; then the month is rated with the example
price book.  The tables and the rating are compared with an independent calculation by pyarrow over all raw records.
Fails if they differ, or if more memory was used.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Final, NamedTuple

from bench.machine import machine
from billing.lake.lake import Lake
from billing.lake.months import Month
from billing.lake.tables import STORAGE_HOURLY, USAGE_HOURLY
from billing.pricing.rated import Rated
from tests.servers import proc
from tests.spark_analytics.lake_sums import days, sums_of_raw, sums_of_tables

CORES: Final = 2
HEAP: Final = "3g"
MEMORY_MIB: Final = 4096
DAILY_SECONDS: Final = 600
MIB: Final = 1 << 20
POLL_SECONDS: Final = 0.2
PRICES: Final = "billing/pricing/prices.example.yaml"


class Ran(NamedTuple):
    """Resource usage of a process that has ended successfully."""

    seconds: float
    cpu_s: float
    rss_mib: float
    """Maximum of the process and its descendants together."""


def ran(*arguments: str) -> Ran:
    """Run one of Spark's jobs on two cores.  Raises :class:`RuntimeError` if it fails."""
    started = time.monotonic()
    cores = sorted(os.sched_getaffinity(0))[:CORES]
    command = [sys.executable, "-m", "spark_analytics", *arguments, "--master", f"local[{CORES}]", "--memory", HEAP]
    process = subprocess.Popen(
        ["taskset", "--cpu-list", ",".join(map(str, cores)), *command], stdout=subprocess.PIPE, text=True
    )
    cpu_s, rss_mib = [0.0], [0.0]

    def watch() -> None:
        while process.poll() is None:
            # One of them has just ended.
            with suppress(FileNotFoundError, ProcessLookupError):
                cpu_s.append(proc.cpu_seconds(process.pid))
                rss_mib.append(proc.rss_mib(process.pid))
            time.sleep(POLL_SECONDS)

    watching = threading.Thread(target=watch)
    watching.start()
    assert process.stdout is not None
    for line in process.stdout:
        print(" ", line, end="", flush=True)
    process.wait()
    seconds = time.monotonic() - started
    watching.join()
    if process.returncode:
        raise RuntimeError(f"{' '.join(arguments)} ended with {process.returncode}")
    return Ran(seconds, max(cpu_s), max(rss_mib))


def units_rated(lake: Lake, month: Month) -> tuple[int, tuple[int, int, int]]:
    """Return the number of invoice lines, and the units rated: requests, bytes sent, byte-milliseconds."""
    rated = Rated(lake).of(month)
    assert rated is not None
    units = dict.fromkeys(("requests", "bytes_out", "storage"), 0)
    sums = rated.lines.group_by("meter").aggregate([("units", "sum")])
    for meter, count in zip(sums["meter"].to_pylist(), sums["units_sum"].to_pylist(), strict=True):
        units["requests" if meter.startswith("requests") else meter] += int(count)
    return rated.lines.num_rows, (units["requests"], units["bytes_out"], units["storage"])


class BillingResult(NamedTuple):
    """A size, with its results."""

    records: int
    """Records of calls."""
    stored: int
    """Records of storage."""
    raw_mib: float
    rows: int
    """Rows of both tables."""
    tables_mib: float
    generated: Ran
    batch: Ran
    again: Ran
    """The batch after late records had arrived."""
    rated: Ran
    lines: int
    """Invoice lines of the rating."""


def measure(folder: Path, records: int, month: Month) -> BillingResult:
    """Measure one size.  Raises :class:`RuntimeError` if tables and records differ, or too much memory was used."""
    shutil.rmtree(folder, ignore_errors=True)
    lake = Lake(str(folder))
    of = ["--lake", str(folder), "--month", str(month)]
    generated = ran("generate", *of, "--records", str(records), "--part", "punctual")
    batch = ran("batch", *of)
    ran("generate", *of, "--records", str(records), "--part", "late")
    again = ran("batch", *of)
    expected, found = sums_of_raw(lake), sums_of_tables(lake, month.first, month.next.first - timedelta(days=1))
    if found != expected or expected[0] != records:
        raise RuntimeError(f"the tables say {found}, and the records {expected}")
    accounts = folder / "accounts.yaml"
    accounts.write_text("default: standard\n")
    prices = ["--plan", PRICES, "--accounts", str(accounts)]
    rated = ran("rate", "--lake", str(folder), "--period", str(month), *prices)
    lines, units = units_rated(lake, month)
    if units != (found[2]["chunks"], found[2]["bytes_out"], found[3]):
        raise RuntimeError(f"{units} are rated, and the tables say {found}")
    for what, took in (("batch", batch), ("rating", rated)):
        if took.rss_mib > MEMORY_MIB:
            raise RuntimeError(f"the {what} took {took.rss_mib:,.0f} MiB of memory, more than {MEMORY_MIB:,}")
    usage, storage = days(lake, USAGE_HOURLY), days(lake, STORAGE_HOURLY)
    published = {path for day in usage + storage for path in day.files}
    return BillingResult(
        records=records,
        stored=sum(day.read.records for day in storage),
        raw_mib=sum(file.size_bytes for kind in ("usage", "storage") for file in lake.files(kind)) / MIB,
        rows=sum(day.rows for day in usage + storage),
        tables_mib=sum(file.size_bytes for file in lake.files("tables") if file.path in published) / MIB,
        generated=generated,
        batch=batch,
        again=again,
        rated=rated,
        lines=lines,
    )


def table(measured: Sequence[BillingResult]) -> str:
    """Return the results as a table, with a line for each size."""
    head = (
        "records of calls, and of storage",
        "the lake, MiB",
        "tables: rows, MiB",
        "generation, s",
        "**batch, s**",
        "its CPU, s",
        "records a second",
        "CPU s a million",
        "memory, MiB",
        "batch after late records, s",
        "**rating, s**",
        "its CPU, s",
        "its lines",
        "its memory, MiB",
    )
    lines = [
        (
            f"{one.records / 1e6:g} and {one.stored / 1e6:.2f} million",
            f"{one.raw_mib:,.0f}",
            f"{one.rows / 1e6:.2f} million, {one.tables_mib:,.0f}",
            f"{one.generated.seconds:,.0f}",
            f"**{one.batch.seconds:,.0f}**",
            f"{one.batch.cpu_s:,.0f}",
            f"{(one.records + one.stored) / one.batch.seconds:,.0f}",
            f"{one.batch.cpu_s / (one.records + one.stored) * 1e6:.1f}",
            f"{one.batch.rss_mib:,.0f}",
            f"{one.again.seconds:,.0f}",
            f"**{one.rated.seconds:,.0f}**",
            f"{one.rated.cpu_s:,.0f}",
            f"{one.lines / 1e6:.2f} million",
            f"{one.rated.rss_mib:,.0f}",
        )
        for one in measured
    ]
    return _markdown(head, lines)


class FittedCost(NamedTuple):
    """A cost as a fixed part for each run, and a part that grows with the records."""

    fixed: float
    per_million: float
    """The cost of a million records, of calls and of storage together."""

    def growing(self, millions: float) -> float:
        return self.per_million * millions


def fit(points: Sequence[tuple[float, float]]) -> FittedCost:
    """Fit the cost by least squares over (millions of records, cost); neither part is negative.

    Raises :class:`statistics.StatisticsError` if there are fewer than two sizes.
    """
    slope, fixed = statistics.linear_regression(*zip(*points, strict=True))
    if slope < 0:
        return FittedCost(statistics.fmean(cost for _, cost in points), 0.0)
    if fixed < 0:
        return FittedCost(0.0, statistics.linear_regression(*zip(*points, strict=True), proportional=True).slope)
    return FittedCost(fixed, slope)


def costs(measured: Sequence[BillingResult]) -> dict[str, FittedCost]:
    """Fit seconds and CPU seconds of the batch and of the rating.  Raises :class:`statistics.StatisticsError`."""
    values: dict[str, Callable[[BillingResult], float]] = {
        "batch, s": lambda one: one.batch.seconds,
        "batch, CPU s": lambda one: one.batch.cpu_s,
        "rating, s": lambda one: one.rated.seconds,
        "rating, CPU s": lambda one: one.rated.cpu_s,
    }
    return {name: fit([(_millions(one), value(one)) for one in measured]) for name, value in values.items()}


def fixed_and_growing(found: Mapping[str, FittedCost]) -> str:
    """Return the two parts of each cost, a line for each."""
    lines = [(name, f"{cost.fixed:,.1f}", f"{cost.per_million:,.2f}") for name, cost in found.items()]
    return _markdown(("cost", "fixed, for a run over a month", "growing, for a million records more"), lines)


def sizing(measured: Sequence[BillingResult], batch: FittedCost, days: int) -> str:
    """Return the estimated needs of more records.  ``batch``: its CPU seconds for a month of ``days``.

    The fixed part is paid once, whatever the month contains, so only the growing part is projected; bytes are those of
    the largest size for each record, and memory is proportional to the cores.  A day's fixed part, which is the
    driver's, takes its time whatever the number of cores.
    """
    one = max(measured)
    left_seconds = max(DAILY_SECONDS - batch.fixed / days, 1.0)
    lines = []
    for times in (1, 10, 100, 1000):
        growing_s = batch.growing(times * _millions(one))
        daily_cores = max(1, math.ceil(growing_s / days / left_seconds))
        lines.append(
            (
                f"{times * one.records / 1e9:g} billion",
                f"{times * one.raw_mib / 1024:,.1f} GiB",
                f"{times * one.tables_mib / 1024:,.1f} GiB",
                f"{batch.fixed / 3600:,.2f} h",
                f"{growing_s / 3600:,.1f} h",
                f"{daily_cores:,} cores, {2 * daily_cores:,} GiB",
            )
        )
    head = ("records a month", "lake", "tables", "CPU a month: fixed", "growing", "a day's batch in ten minutes")
    return _markdown(head, lines)


def _millions(one: BillingResult) -> float:
    return (one.records + one.stored) / 1e6


def _markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["--:"] * len(head), *lines))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.billing", description="The monthly batch and rating at several sizes."
    )
    parser.add_argument(
        "--millions",
        type=float,
        nargs="+",
        default=[5, 15, 50],
        metavar="N",
        help="millions of records of calls, one number for each size; two sizes show the fixed part of the time",
    )
    parser.add_argument("--month", type=Month.parse, default=Month(2026, 10), help="(default: %(default)s)")
    parser.add_argument(
        "--folder", type=Path, default=Path(".cache/billing"), help="folder of the lakes (default: %(default)s)"
    )
    options = parser.parse_args()
    facts = machine(Path("."))
    measured: list[BillingResult] = []
    for millions in options.millions:
        folder = options.folder / f"{millions:g}"
        measured.append(measure(folder, int(millions * 1e6), options.month))
        shutil.rmtree(folder)
        print(f"\n{table(measured)}\n", flush=True)
    if len(measured) > 1:
        found = costs(measured)
        days_of_month = (options.month.next.first - options.month.first).days
        print(f"{fixed_and_growing(found)}\n\n{sizing(measured, found['batch, CPU s'], days_of_month)}\n")
    else:
        print("The fixed part of the time needs two sizes: give --millions two or more numbers.\n")
    print(facts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
