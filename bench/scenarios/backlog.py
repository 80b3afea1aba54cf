"""The cost of a backlog: memory, receives, checkpoints, and the time of a restart."""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
import time
from array import array
from pathlib import Path

from bench.jobs import Groups, Sqs
from bench.load import Job, Jobs, Window, quantile
from bench.run import BenchRun, again
from bench.scenarios.core import GROUPS
from bench.servers.servers import Holdfast, ServerProcess
from tests.servers import proc

PIECE = "ckpt"
"""Part of the name of each file of checkpoint chunks."""

ROUND = 5_000
"""Messages received in one round: half of the smallest depth, so that all depths are measured alike."""


async def standard(run: BenchRun, server: ServerProcess) -> None:
    await _backlog(run, server, "backlog-standard", server.create_queue("backlog"), Sqs(server.signer))


async def fifo(run: BenchRun, server: ServerProcess) -> None:
    sqs = Sqs(server.signer, Groups(GROUPS))
    await _backlog(run, server, "backlog-fifo", server.create_queue("backlog.fifo"), sqs)


async def _backlog(run: BenchRun, server: ServerProcess, scenario: str, url: str, sqs: Sqs) -> None:
    plan = run.plan
    waiting = 0
    for depth in plan.depths if server.name == "holdfast" else plan.rival_depths:
        filled = await run.fill(server, sqs, url, depth - waiting)
        name = f"{depth:,} waiting"
        run.figure(scenario, server, f"filled up to {depth:,}", filled.messages / filled.seconds, "messages/s")
        run.figure(scenario, server, f"RSS with {name}", proc.rss_mib(server.pid), "MiB")
        await run.receive_rounds(f"{scenario} {depth:,}", server, sqs, url, depth, depth, ROUND, plan.depth_rounds)
        waiting = _waiting(server, url)
        if depth == plan.restart_depth and isinstance(server, Holdfast):
            await _checkpoints(run, server, scenario, url, sqs)
            _restart(run, server, scenario, url, name)
            waiting = _waiting(server, url)


def _waiting(server: ServerProcess, url: str) -> int:
    answer = server.call(
        "GetQueueAttributes", {"QueueUrl": url, "AttributeNames": ["ApproximateNumberOfMessages"]}, timeout_s=300
    )
    return int(answer["Attributes"]["ApproximateNumberOfMessages"])


def _restart(run: BenchRun, server: ServerProcess, scenario: str, url: str, name: str) -> None:
    server.kill()
    started_at = time.perf_counter()
    server.start()
    run.figure(scenario, server, "first answer after kill -9", time.perf_counter() - started_at, "s")
    answer = server.call("ReceiveMessage", {"QueueUrl": url, "VisibilityTimeout": 0}, timeout_s=300)
    if not answer.get("Messages"):
        raise RuntimeError(f"nothing was received after a restart with {name}")
    run.figure(scenario, server, "restart after kill -9", time.perf_counter() - started_at, "s")
    run.figure(scenario, server, f"RSS after a restart with {name}", proc.rss_mib(server.pid), "MiB")


async def _checkpoints(run: BenchRun, server: Holdfast, scenario: str, url: str, sqs: Sqs) -> None:
    """Measure latencies at half load, of calls during which a checkpoint was written, and of the others."""
    traffic = _traffic(sqs, url)
    closed = await run.closed(f"{scenario} traffic", server, traffic)
    watch = CheckpointWatch(server.data)
    jobs_per_s = closed.calls_per_s / _CALLS_PER_JOB
    watching = asyncio.ensure_future(watch.run())
    try:
        window = await run.paced(f"{scenario} half traffic", server, traffic, jobs_per_s / 2, run.plan.checkpoint_s)
    finally:
        watching.cancel()
    inside, outside = split(window, watch.intervals())
    run.figure(scenario, server, "checkpoints written", len(watch.intervals()), "")
    run.figure(scenario, server, "seconds with a checkpoint", sum(b - a for a, b in watch.intervals()), "s")
    run.figure(scenario, server, "p99 outside checkpoints", quantile(outside, 0.99) * 1000, "ms")
    if inside:
        run.figure(scenario, server, "p99 in checkpoints", quantile(inside, 0.99) * 1000, "ms")
        ratio = quantile(inside, 0.99) / quantile(outside, 0.99)
        run.figure(scenario, server, "p99 in checkpoints over p99 outside", ratio, "times")
        each = [quantile(calls, 0.99) for interval in watch.intervals() if (calls := split(window, [interval])[0])]
        name = "p99 in a checkpoint over p99 outside, median of the checkpoints"
        run.figure(scenario, server, name, statistics.median(each) / quantile(outside, 0.99), "times")
    else:
        run.say(f"  {scenario}: no checkpoint was written in {run.plan.checkpoint_s:.0f} s")


_CALLS_PER_JOB = 1.5


def _traffic(sqs: Sqs, url: str) -> Jobs:
    """Alternate a SendMessageBatch and a ReceiveMessage with its DeleteMessageBatch: the depth stays, the log grows."""
    turns = itertools.cycle([sqs.send_batch(again(url)), sqs.receive_and_delete(url)])

    def jobs() -> Job | None:
        return next(turns)()

    return jobs


class CheckpointWatch:
    """Checks 50 times a second for checkpoint chunks being written into a data folder."""

    POLL_SECONDS = 0.02
    MARGIN_SECONDS = 0.5
    """Time before and after each change that counts as the checkpoint's: its chunks are computed before they are
    written.
    """

    def __init__(self, data: Path) -> None:
        self._data = data
        self._before: set[tuple[str, int]] | None = None
        self._polled_at = 0.0
        self._changes: list[tuple[float, float]] = []

    async def run(self) -> None:
        while True:
            self.poll()
            await asyncio.sleep(self.POLL_SECONDS)

    def poll(self) -> None:
        """Record new chunks as written since the last check.  A chunk that was only deleted is no checkpoint."""
        now = time.perf_counter()
        pieces = self._pieces()
        if self._before is not None and pieces - self._before:
            self._changes.append((self._polled_at, now))
        self._before, self._polled_at = pieces, now

    def intervals(self) -> list[tuple[float, float]]:
        """Return begin and end of each observed checkpoint, by time.perf_counter()."""
        found: list[tuple[float, float]] = []
        for first, last in self._changes:
            started_at, ended = first - self.MARGIN_SECONDS, last + self.MARGIN_SECONDS
            if found and started_at < found[-1][1]:
                started_at = found.pop()[0]
            found.append((started_at, ended))
        return found

    def _pieces(self) -> set[tuple[str, int]]:
        pieces = set()
        for folder in os.scandir(self._data / "journal"):
            if folder.is_dir():
                for file in os.scandir(folder):
                    if PIECE in file.name:
                        pieces.add((file.path, file.stat().st_size))
        return pieces


def split(window: Window, intervals: list[tuple[float, float]]) -> tuple[array[float], array[float]]:
    """Return sorted latencies of the calls that overlap one of the intervals, and of those that do not."""
    inside, outside = array("d"), array("d")
    spans = [(started_at - window.started_at, ended - window.started_at) for started_at, ended in intervals]
    for samples in window.samples.values():
        for ended, latency in zip(samples.ended, samples.latency, strict=True):
            overlaps = any(ended > a and ended - latency < b for a, b in spans)
            (inside if overlaps else outside).append(latency)
    return array("d", sorted(inside)), array("d", sorted(outside))
