"""``python -m bench.against COMMIT``: CPU of the hot path of this checkout, beside that of an earlier commit.

Both servers and a raw ASGI application run at the same time, and are loaded in turn with a fixed number of calls, a
quarter of a second each.  So whatever else happens on the machine affects all of them alike, and differences of one
percent can be seen on a machine on which two runs of ``python -m bench`` differ by fifteen.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import uvloop

from bench.jobs import Sqs, counted
from bench.load import Jobs, LoadGenerator
from bench.run import CONNECTIONS, again
from bench.servers.servers import HERE, HOST, WORK, Asgi, Holdfast, ServerProcess
from tests.servers import proc

WARM_UP_ROUNDS = 3
CALLS = 1_500
"""Calls of SendMessage in one slice."""
BATCHES = 500
RECEIVES = 140
"""Pairs of ReceiveMessage of 10 and DeleteMessageBatch in one slice."""
TREE = "tree"


class EarlierHoldfast(Holdfast):
    """``holdfast serve`` of another checkout, with this checkout's interpreter and packages."""

    name = "earlier"

    @property
    def checkout(self) -> Path:
        return WORK / TREE


class CpuOfCalls:
    """CPU microseconds of a call, of each slice of one kind of call, by the server's name."""

    def __init__(self) -> None:
        self.slices: dict[str, list[float]] = {}

    def add(self, name: str, cpu_us: float) -> None:
        self.slices.setdefault(name, []).append(cpu_us)

    def median(self, name: str) -> float:
        return statistics.median(self.slices[name])

    def change(self, name: str, former: str) -> float:
        """Return the median of the ratios of slices that ran side by side, less 1."""
        pairs = zip(self.slices[name], self.slices[former], strict=True)
        return statistics.median(now / before for now, before in pairs) - 1


class LoadedServer:
    """A server and its load."""

    def __init__(self, server: ServerProcess, load: LoadGenerator) -> None:
        sqs = Sqs(server.signer)
        self.name = server.name
        self._pid, self._load = server.pid, load
        self._jobs: dict[str, Jobs] = {}
        if isinstance(server, Asgi):
            self._jobs["SendMessage"] = sqs.send(again("http://127.0.0.1/queue"))
            return
        one, ten, received = (server.create_queue(name) for name in ("one", "ten", "received"))
        self._jobs = {
            "SendMessage": sqs.send(again(one)),
            "SendMessageBatch of 10": sqs.send_batch(again(ten)),
            "filling": sqs.send_batch(again(received)),
            "ReceiveMessage of 10, DeleteMessageBatch": sqs.receive_and_delete(received),
        }

    async def slice(self, kind: str, count: int) -> float | None:
        """Run this number of jobs; return the server's CPU microseconds a call, None if it has no such jobs.

        Raises RuntimeError if a call fails.
        """
        jobs = self._jobs.get(kind)
        if jobs is None:
            return None
        before = proc.cpu_nanoseconds(self._pid)
        window = await self._load.drain(counted(jobs, count))
        if window.errors:
            raise RuntimeError(f"{kind} on {self.name}: {window.first_error}")
        return (proc.cpu_nanoseconds(self._pid) - before) / 1000 / window.calls


SLICES = {
    "SendMessage": CALLS,
    "SendMessageBatch of 10": BATCHES,
    "filling": RECEIVES + RECEIVES // 14,  # no receive may find an empty queue
    "ReceiveMessage of 10, DeleteMessageBatch": RECEIVES,
}


def main() -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.against", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("commit", help="the earlier commit; it has to run with the packages of this checkout")
    parser.add_argument("--rounds", type=int, default=100, help="slices of each kind for each server (default: 100)")
    options = parser.parse_args()
    commits = [_git("rev-parse", "--short", commit) for commit in (options.commit, "HEAD")]
    with _checked_out(options.commit):
        measured = uvloop.run(_measure(options.rounds))
    print(table(measured, *commits))
    return 0


def table(measured: dict[str, CpuOfCalls], earlier: str, now: str) -> str:
    """Return a Markdown table of medians, and of the change in percent."""
    lines = [
        f"| CPU µs a call | {earlier} | {now} | change | over a raw ASGI call, before and now |",
        "|---|---:|---:|---:|---:|",
    ]
    raw = measured["SendMessage"].median(Asgi.name)
    for kind, cpu in measured.items():
        before, after = cpu.median(EarlierHoldfast.name), cpu.median(Holdfast.name)
        change = cpu.change(Holdfast.name, EarlierHoldfast.name)
        lines.append(
            f"| {kind} | {before:.1f} | {after:.1f} | {change:+.1%} | {before / raw:.2f}, {after / raw:.2f} times |"
        )
    return "\n".join([*lines, f"| raw ASGI call under uvicorn | {raw:.1f} | {raw:.1f} | | |"])


async def _measure(rounds: int) -> dict[str, CpuOfCalls]:
    found: dict[str, CpuOfCalls] = {kind: CpuOfCalls() for kind in SLICES if kind != "filling"}
    async with AsyncExitStack() as stack:
        loaded = []
        for server in [stack.enter_context(kind()) for kind in (EarlierHoldfast, Holdfast, Asgi)]:
            load = await stack.enter_async_context(LoadGenerator(HOST, server.ports, CONNECTIONS))
            loaded.append(LoadedServer(server, load))
        for number in range(WARM_UP_ROUNDS + rounds):
            for kind, count in SLICES.items():
                for one in _in_turn(loaded, number):
                    cpu_us = await one.slice(kind, count)
                    if cpu_us is not None and kind in found and number >= WARM_UP_ROUNDS:
                        found[kind].add(one.name, cpu_us)
            print(f"\rround {number + 1} of {WARM_UP_ROUNDS + rounds}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return found


def _in_turn(loaded: Sequence[LoadedServer], number: int) -> Sequence[LoadedServer]:
    """Return the servers in another order every round, so that none is always first."""
    return loaded if number % 2 else loaded[::-1]


@contextmanager
def _checked_out(commit: str) -> Iterator[None]:
    WORK.mkdir(parents=True, exist_ok=True)
    _git("worktree", "add", "--force", "--detach", str(WORK / TREE), commit)
    try:
        yield
    finally:
        _git("worktree", "remove", "--force", str(WORK / TREE))
        shutil.rmtree(WORK, ignore_errors=True)


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=HERE.parent, check=True, capture_output=True, text=True)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
