"""``python -m tests.faults --minutes 20 --keep docs/faults.md``: faults on a real server for a chosen time.

The exit code is 1 when a promise was broken; what was seen then goes to standard error.  ``--seed`` chooses the same
faults again, though not the same moments: it is a real process.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import random
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from tests.faults.campaign import Campaign, Outcome

MARK = "<!-- results -->"


def table(outcome: Outcome) -> str:
    """The outcome as Markdown."""
    commit = _output("git", "rev-parse", "--short", "HEAD")
    counts = outcome.counts
    done = sum(row.done for row in outcome.rows.values())
    lines = [
        f"## {datetime.now(UTC):%Y-%m-%d}, commit {commit}",
        "",
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}; seed "
        f"{outcome.seed}, {outcome.seconds / 60:.0f} minutes, {outcome.rounds} rounds, {done} faults.",
        "",
        f"Calls answered {counts['answered']}, refused with 503 {counts['refused']}, in doubt {counts['in doubt']}, "
        f"no connection {counts['unreachable']}.  Messages acknowledged {counts['sent']} ({counts['repeated']} FIFO "
        f"calls repeated), received {counts['received']}, deletes acknowledged {counts['deleted']}; "
        f"{counts['move tasks']} move tasks.",
        "",
        f"**Promises broken: {len(outcome.violations)}.**",
        "",
        "| fault | done | step not reached |",
        "|---|---:|---:|",
        *(f"| {kind} | {row.done} | {row.not_reached} |" for kind, row in sorted(outcome.rows.items())),
        "",
    ]
    return "\n".join(lines)


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description="Faults on a real server.")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--keep", type=Path, help=f"write the table into this file, below its line {MARK}")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}, {arguments.minutes:g} minutes", flush=True)
    outcome = asyncio.run(Campaign(arguments.seed, arguments.minutes * 60).run())
    result = table(outcome)
    print(result)
    if arguments.keep is not None:
        head, mark, earlier = arguments.keep.read_text().partition(MARK)
        assert mark, f"{arguments.keep} has no line {MARK}"
        arguments.keep.write_text(f"{head}{mark}\n\n{result}{earlier}")
    for violation in outcome.violations:
        print(violation, file=sys.stderr)
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    sys.exit(main())
