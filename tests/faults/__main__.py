"""``python -m tests.faults --minutes 20 --keep docs/faults.md``: faults on whole clusters, then on one process.

First every fault is injected into every form of several processes (:mod:`tests.faults.campaign.plans`), however long
that takes; then random faults into one real server, for the given time.  ``--forms`` selects forms.

A fault that breaks a promise, or takes too long, is recorded as that, and the others follow.  A summary is printed at
the end.  The exit code is 1 if a promise was broken; the observations then go to standard error.  ``--seed`` selects
the same faults again, though not at the same moments: these are real processes.
"""

import argparse
import asyncio
import logging
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from tests.faults.campaign import plans, whole
from tests.faults.campaign.campaign import Campaign, CampaignOutcome
from tests.faults.campaign.whole import FaultResults

MARK = "<!-- results -->"
ONE_PROCESS = "one-process"


def table(outcome: CampaignOutcome) -> str:
    """Format the outcome as Markdown."""
    counts = outcome.counts
    done = sum(row.done for row in outcome.rows.values())
    what = f"seed {outcome.seed}, {outcome.seconds / 60:.0f} minutes, {outcome.rounds} rounds, {done} faults"
    lines = [
        *heading("", what),
        f"Calls answered {counts['answered']}, refused with 503 {counts['refused']}, in doubt {counts['in doubt']}, "
        f"no connection {counts['unreachable']}.  Messages acknowledged {counts['sent']} ({counts['repeated']} FIFO "
        f"calls repeated), received {counts['received']}, deletes acknowledged {counts['deleted']}; "
        f"{counts['move tasks']} move tasks.  Publications acknowledged {counts['published']}, received "
        f"{counts['fanned out']} times from the subscribed queues.",
        "",
        f"**Promises broken: {len(outcome.violations)}.**",
        "",
        "| fault | done | step not reached |",
        "|---|---:|---:|",
        *(f"| {kind} | {row.done} | {row.not_reached} |" for kind, row in sorted(outcome.rows.items())),
        "",
    ]
    return "\n".join(lines)


def heading(of: str, what: str) -> list[str]:
    command = ("git", "rev-parse", "--short", "HEAD")
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}"
    return [f"## {datetime.now(UTC):%Y-%m-%d}, commit {commit}{of}", "", f"{machine}; {what}.", ""]


def of_forms(rows: list[FaultResults], seed: int, seconds: float) -> str:
    """Format the results of the faults on whole clusters as Markdown."""
    lines = [
        *heading(": whole clusters", f"seed {seed}, {seconds / 60:.0f} minutes, {len(rows)} faults"),
        f"**Promises broken: {sum(len(row.broken) for row in rows)}.**",
        "",
        whole.table(rows),
        "",
        whole.stream_table(rows),
        "",
        whole.publication_table(rows),
        "",
    ]
    return "\n".join(lines)


def run_forms(names: list[str], seed: int, only: str) -> list[FaultResults]:
    """Run the planned faults on these forms."""

    def show(row: FaultResults) -> None:
        print(f"{datetime.now(UTC):%H:%M:%S} {whole.table([row]).splitlines()[-1]}", flush=True)
        print(f"         {whole.stream_table([row]).splitlines()[-1]}", flush=True)
        print(f"         {whole.publication_table([row]).splitlines()[-1]}", flush=True)
        for one in row.broken:
            print(one, file=sys.stderr, flush=True)

    rows: list[FaultResults] = []
    for name in names:
        with tempfile.TemporaryDirectory(prefix="holdfast-faults-") as folder:
            try:
                rows += asyncio.run(plans.FORMS[name](Path(folder), seed, show, only))
            except Exception as error:  # the other forms run nevertheless
                rows.append(FaultResults(name, "all of them", broken=[f"not done: {error!r}"]))
                show(rows[-1])
    return rows


def summary(rows: list[FaultResults], seconds: float) -> str:
    """Summarize the faults on whole clusters in a few lines."""
    stalls = sorted(rows, key=lambda row: row.stall_seconds)[-3:]
    gaps = sorted((row.streams.gap_seconds, row.fault) for row in rows if row.streams is not None)
    deliveries = sorted((row.publications.delivery_seconds, row.fault) for row in rows if row.publications is not None)
    broken = [row for row in rows if row.broken]
    return "\n".join(
        [
            f"{len(rows)} faults in {seconds / 60:.1f} minutes, {sum(row.calls for row in rows)} calls, "
            f"{sum(row.lost for row in rows)} messages lost, {len(broken)} faults after which a promise was broken:",
            *(f"  BROKEN {row.form}: {row.fault}: {row.broken[0][:200]}" for row in broken),
            "longest stalls: " + "; ".join(f"{row.stall_seconds:.1f} s, {row.fault}" for row in reversed(stalls)),
            "longest gaps of the group: "
            + "; ".join(f"{seconds:.1f} s, {fault}" for seconds, fault in gaps[-3:][::-1]),
            "longest deliveries of publications: "
            + "; ".join(f"{seconds:.1f} s, {fault}" for seconds, fault in deliveries[-3:][::-1]),
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description="Faults on real servers.")
    forms = [*plans.FORMS, ONE_PROCESS]
    parser.add_argument("--forms", nargs="+", choices=forms, default=forms)
    parser.add_argument("--minutes", type=float, default=20.0, help="of the campaign on one process")
    parser.add_argument("--only", default="", help="only faults whose names contain this")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--keep", type=Path, help=f"write the tables into this file, below its line {MARK}")
    arguments = parser.parse_args()
    logging.disable(logging.ERROR)  # this process's messages about its own faults
    print(f"seed {arguments.seed}", flush=True)
    results: list[str] = []
    summaries: list[str] = []
    broken: list[str] = []
    started_at = time.monotonic()
    if names := [name for name in arguments.forms if name != ONE_PROCESS]:
        rows = run_forms(names, arguments.seed, arguments.only)
        seconds = time.monotonic() - started_at
        results.append(of_forms(rows, arguments.seed, seconds))
        summaries.append(summary(rows, seconds))
        broken += [f"{row.form}, {row.fault}: {one}" for row in rows for one in row.broken]
    if ONE_PROCESS in arguments.forms:
        outcome = asyncio.run(Campaign(arguments.seed, arguments.minutes * 60, arguments.only).run())
        results.append(table(outcome))
        broken += outcome.violations
    result = "\n".join(results)
    print(result)
    if arguments.keep is not None:
        head, mark, earlier = arguments.keep.read_text().partition(MARK)
        assert mark, f"{arguments.keep} has no line {MARK}"
        arguments.keep.write_text(f"{head}{mark}\n\n{result}{earlier}")
    for violation in broken:
        print(violation, file=sys.stderr)
    print("\n".join(summaries))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
