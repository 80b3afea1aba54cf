"""``python -m tests.scale --keep docs/internals/ring.md``: the figures of 1,000 nodes and 10,000,000 queues.

The exit code is 1 if one of them exceeds its bound.
"""

import argparse
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from tests.scale.model import SHORT, WHOLE, BoundedFigure, rows, table

MARK = "<!-- figures -->"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.scale", description="The ring and the placement at scale.")
    parser.add_argument("--short", action="store_true", help="fewer nodes and queues")
    parser.add_argument("--keep", type=Path, help=f"write the table into this file, in place of what is below {MARK}")
    arguments = parser.parse_args()
    done: list[BoundedFigure] = []
    for row in rows(SHORT if arguments.short else WHOLE):
        done.append(row)
        print(f"{row.what}: {row.value:.4g} {row.unit}{'' if row.kept else f', above {row.limit:.4g}'}", flush=True)
    if arguments.keep is not None:
        head, mark, _ = arguments.keep.read_text().partition(MARK)
        assert mark, f"{arguments.keep} has no line {MARK}"
        arguments.keep.write_text(f"{head}{mark}\n\n{_facts()}\n\n{table(done)}")
    return 0 if all(row.kept for row in done) else 1


def _facts() -> str:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, commit {commit or 'unknown'}, {platform.system()} {platform.machine()}, "
        f"{os.cpu_count()} CPUs, Python {platform.python_version()}; one process, while the machine did other work too."
    )


if __name__ == "__main__":
    sys.exit(main())
