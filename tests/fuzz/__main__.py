"""Long runs: ``python -m tests.fuzz --inputs 1000000 --keep docs/bad-input.md``.

Every target gets that many inputs, made by the grammar from a seed that is printed, so that a run can be repeated.
A finding ends its target's run: the input is printed, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random

from tests.behaviour import wire
from tests.behaviour.clockwork import real_seconds
from tests.fuzz.door import Door, quiet
from tests.fuzz.grammar import Draws
from tests.fuzz.targets import PARSERS, Target

MARK = "<!-- results -->"


@dataclass
class Result:
    """A row of the table."""

    target: str
    inputs: int
    taken: int
    findings: int
    seconds: float
    rss_mib: int
    seed: int
    commit: str


def _parser(target: Target) -> Callable[[int, int], tuple[int, int]]:
    def run(inputs: int, seed: int) -> tuple[int, int]:
        draws = Draws(Random(seed))
        taken = 0
        for number in range(inputs):
            given = target.make(draws)
            try:
                taken += target.feed(given)
            except Exception as error:
                raise AssertionError(f"input {number}: {given!r}"[:20_000]) from error
        return inputs, taken

    return run


def _door(protocol: wire.Protocol | None) -> Callable[[int, int], tuple[int, int]]:
    def run(inputs: int, seed: int) -> tuple[int, int]:
        door = Door(protocol, seed)
        door.run(inputs)
        return door.tally.inputs, door.tally.taken

    return run


RUNS: dict[str, Callable[[int, int], tuple[int, int]]] = {
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
        inputs = taken = findings = 0
        try:
            inputs, taken = RUNS[name](given.inputs, given.seed)
        except AssertionError:
            findings = 1
            traceback.print_exc()
        result = Result(name, inputs, taken, findings, real_seconds() - started, _rss_mib(), given.seed, commit)
        results.append(result)
        print(_row(result), flush=True)
        if given.keep is not None:
            _keep(given.keep, result)
    return 1 if any(result.findings for result in results) else 0


def _row(result: Result) -> str:
    return (
        f"| {result.target} | {result.inputs:,} | {result.taken:,} | {result.findings} | {result.seconds:,.0f} | "
        f"{result.rss_mib} | {result.seed} | {result.commit} |"
    )


def _keep(path: Path, result: Result) -> None:
    """Put the row into the file's table, in place of the target's former one."""
    before, _, table = path.read_text().partition(MARK)
    rows = [line for line in table.splitlines() if line.startswith("| ") and not line.startswith("| target ")]
    kept = {row.split("|")[1].strip(): row for row in rows} | {result.target: _row(result)}
    lines = [
        f"Python {platform.python_version()} on {platform.system()} {platform.machine()}, {os.cpu_count()} cores; "
        f"last on {datetime.now(UTC):%Y-%m-%d}.",
        "",
        "| target | inputs | taken | findings | seconds | RSS after, MiB | seed | commit |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
        *(kept[name] for name in RUNS if name in kept),
    ]
    path.write_text(f"{before}{MARK}\n\n" + "\n".join(lines) + "\n")


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
