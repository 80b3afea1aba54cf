"""Long runs: ``python -m tests.fuzz --inputs 1000000 --keep docs/bad-input.md``.

Every target gets that many inputs, made by the grammar from a seed that is printed, so that a run can be repeated.
Among them are large ones, ``--large`` of each target.  Of each input the CPU time and the memory are measured, and held
against the budget (:mod:`tests.fuzz.budget`).  A finding ends its target's run: the input is printed, and the exit code
is 1.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import traceback
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random

from tests.behaviour import wire
from tests.behaviour.clockwork import real_seconds
from tests.fuzz.budget import Cost, feed_measured, measured
from tests.fuzz.door import Door, quiet
from tests.fuzz.grammar import Draws
from tests.fuzz.large import SIZES
from tests.fuzz.targets import PARSERS, Target

MARK = "<!-- results -->"
HEAD = "| target | inputs | taken | findings | seconds | RSS after, MiB | seed | commit |"
COSTS_MARK = "<!-- costs -->"
COSTS_HEAD = "| target | inputs | CPU, ms | memory, times | large inputs | CPU, ms | memory, times | seed | commit |"
LONG_RUN_INPUTS = 100_000
"""Shorter runs have no row in the table of long runs."""


@dataclass
class Result:
    """A row of each of the two tables."""

    target: str
    run: Run
    findings: int
    seconds: float
    rss_mib: int
    seed: int
    commit: str


@dataclass
class Run:
    """Results of a target's inputs."""

    inputs: int
    taken: int
    small: Cost
    large: Cost


def _parser(target: Target) -> Callable[[int, int, int], Run]:
    def run(inputs: int, large: int, seed: int) -> Run:
        draws = Draws(Random(seed))
        taken, small_cost = 0, Cost()
        tracemalloc.start()
        try:
            for number in range(inputs):
                given = target.make(draws)
                with told(number, given):
                    was_taken, cost = feed_measured(target.feed, given, target.size(given))
                taken += was_taken
                small_cost = small_cost.maximum(cost)
        finally:
            tracemalloc.stop()
        return Run(inputs, taken, small_cost, feed_large(target, large, seed))

    return run


def feed_large(target: Target, inputs: int, seed: int) -> Cost:
    """The maxima of so many large inputs.  Raises AssertionError, with the input in its text."""
    draws = Draws(Random(seed))
    maximum = Cost()
    for number in range(inputs):
        given = target.large(draws, draws.one(SIZES))
        with told(number, given):
            maximum = maximum.maximum(measured(partial(target.feed, given), target.size(given)))
    return maximum


@contextmanager
def told(number: int, given: object) -> Iterator[None]:
    """An error becomes one that has the input in its text."""
    try:
        yield
    except Exception as error:
        raise AssertionError(f"{error}; input {number}: {given!r}"[:20_000]) from error


def _door(protocol: wire.Protocol | None) -> Callable[[int, int, int], Run]:
    def run(inputs: int, large: int, seed: int) -> Run:
        door = Door(protocol, seed)
        door.run(inputs)
        return Run(door.tally.inputs, door.tally.taken, door.tally.cost, door.run_large(large))

    return run


RUNS: dict[str, Callable[[int, int, int], Run]] = {
    **{target.name: _parser(target) for target in PARSERS},
    "door-json": _door("json"),
    "door-query": _door("query"),
    "door-wild": _door(None),
}


def main() -> int:
    """Run the targets that are asked for; 1 when there was a finding."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description="Feed the parsers and the door bad input."
    )
    parser.add_argument("--inputs", type=int, default=100_000, help="for each target")
    parser.add_argument("--large", type=int, default=100, help="large inputs, for each target")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    parser.add_argument("--target", action="append", choices=sorted(RUNS), help="all, if left out; may be repeated")
    parser.add_argument("--keep", type=Path, help="put the rows into this file's table")
    given = parser.parse_args()
    quiet()
    print(f"seed {given.seed}", flush=True)
    commit = _commit()
    results = []
    for name in given.target or RUNS:
        started = real_seconds()
        findings, run = 0, Run(0, 0, Cost(), Cost())
        try:
            run = RUNS[name](given.inputs, given.large, given.seed)
        except AssertionError:
            findings = 1
            traceback.print_exc()
        result = Result(name, run, findings, real_seconds() - started, _rss_mib(), given.seed, commit)
        results.append(result)
        print(_row(result), flush=True)
        print(_cost_row(result), flush=True)
        if given.keep is not None:
            _keep(given.keep, result)
    return 1 if any(result.findings for result in results) else 0


def _row(result: Result) -> str:
    run = result.run
    return (
        f"| {result.target} | {run.inputs:,} | {run.taken:,} | {result.findings} | {result.seconds:,.0f} | "
        f"{result.rss_mib} | {result.seed} | {result.commit} |"
    )


def _cost_row(result: Result) -> str:
    small, large = result.run.small, result.run.large
    return (
        f"| {result.target} | {small.inputs:,} | {small.cpu_seconds * 1000:.1f} | {small.memory_factor:.1f} | "
        f"{large.inputs:,} | {large.cpu_seconds * 1000:.1f} | {large.memory_factor:.1f} | "
        f"{result.seed} | {result.commit} |"
    )


def _keep(path: Path, result: Result) -> None:
    """Put the rows into the file's tables, in place of the target's former ones."""
    text = path.read_text()
    if result.run.inputs >= LONG_RUN_INPUTS:
        text = _with_row(text, MARK, HEAD, result.target, _row(result))
    path.write_text(_with_row(text, COSTS_MARK, COSTS_HEAD, result.target, _cost_row(result)))


def _with_row(text: str, mark: str, head: str, target: str, row: str) -> str:
    before, _, after = text.partition(mark)
    table, heading, rest = after.partition("\n## ")
    rows = [line for line in table.splitlines() if line.startswith("| ") and not line.startswith("| target ")]
    kept = {one.split("|")[1].strip(): one for one in rows} | {target: row}
    lines = [
        f"Python {platform.python_version()} on {platform.system()} {platform.machine()}, {os.cpu_count()} cores; "
        f"last on {datetime.now(UTC):%Y-%m-%d}.",
        "",
        head,
        "|---|" + "---:|" * (head.count("|") - 2),
        *(kept[name] for name in RUNS if name in kept),
    ]
    return f"{before}{mark}\n\n" + "\n".join(lines) + "\n" + heading + rest


def _commit() -> str:
    """The tree that is fed; with a plus where it is not what was committed."""
    found = subprocess.run(
        ["git", "describe", "--always", "--abbrev=10", "--dirty=+", "--exclude=*"],
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() or "?"


def _rss_mib() -> int:
    """Resident memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) // 1024
    return 0


if __name__ == "__main__":
    sys.exit(main())
