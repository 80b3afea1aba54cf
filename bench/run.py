"""The common part of all scenarios: the plan, the book, and the ways of loading a server."""

from __future__ import annotations

import gc
import itertools
import statistics
import sys
from collections.abc import Awaitable, Callable, Iterator

from bench.jobs import Sqs
from bench.load import Jobs, LoadGenerator, Mark, Window, quantile
from bench.plan import BenchPlan
from bench.report import Book, Figure, LoadMeasurement, row_of
from bench.servers.servers import HOST, CpuMeter, ServerProcess

CONNECTIONS = 32
HALF_LOAD_WINDOWS = 9
_SETTLE_SECONDS = 0.5


def _nothing() -> None:
    """Mark nothing."""


def again(url: str) -> Iterator[str]:
    """Yield the same queue for ever."""
    return itertools.repeat(url)


class BenchRun:
    """One run of the bench."""

    def __init__(self, plan: BenchPlan, book: Book) -> None:
        self.plan = plan
        self.book = book

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def figure(self, scenario: str, server: ServerProcess, name: str, value: float, unit: str) -> None:
        self.book.figures.append(Figure(scenario, server.name, name, round(value, 3), unit))
        self.say(f"  {scenario} {server.name}: {name} {value:.4g} {unit}")

    def add(self, row: LoadMeasurement) -> LoadMeasurement:
        self.book.rows.append(row)
        self.say(
            f"  {row.scenario} {row.server}: {row.calls_per_s:.0f} calls/s, {row.messages_per_s:.0f} messages/s, "
            f"p99 {row.p99_ms:.2f} ms, {row.cpu_us_per_call:.1f} µs of CPU a call, {row.errors} errors"
        )
        return row

    async def measured(
        self, scenario: str, server: ServerProcess, measure: Callable[[BenchRun, ServerProcess], Awaitable[None]]
    ) -> LoadMeasurement:
        """Return a scenario's row for this server.  It is measured now if the run has left it out."""
        row = self.book.row(scenario, server.name)
        if row is None:
            await measure(self, server)
            row = self.book.row(scenario, server.name)
            assert row is not None
        return row

    async def closed(
        self,
        scenario: str,
        server: ServerProcess,
        jobs: Jobs,
        *,
        by_part: bool = False,
        connections: int = CONNECTIONS,
        on_mark: Mark = _nothing,
    ) -> LoadMeasurement:
        """Load the server as fast as it answers.  ``by_part``: also report CPU by role.  ``on_mark`` is called at both
        ends of the window.
        """
        meter = CpuMeter(server)
        parts: list[dict[str, float]] = []

        def mark() -> None:
            meter.mark()
            if by_part:
                parts.append(server.parts())
            on_mark()

        async with LoadGenerator(HOST, server.ports, connections) as load:
            with quiet_memory():
                window = await load.closed(jobs, self.plan.warm_up_s, self.plan.measure_s, mark)
        for part, cpu_s in sorted(parts[1].items()) if parts else ():
            used = (cpu_s - parts[0].get(part, 0.0)) / max(window.messages, 1)
            self.figure(scenario, server, f"CPU of the {part}, a message", used * 1e6, "µs")
        return self.add(row_of(scenario, server.name, connections, [window], meter.cpu_s, server.rss_mib()))

    async def paced(self, scenario: str, server: ServerProcess, jobs: Jobs, rate: float, seconds: float) -> Window:
        """Load the server at a given rate of jobs, on 32 connections."""
        [window] = await self.paced_windows(scenario, server, jobs, rate, seconds, 1)
        return window

    async def paced_windows(
        self, scenario: str, server: ServerProcess, jobs: Jobs, rate: float, seconds: float, count: int
    ) -> list[Window]:
        """Load the server at a given rate of jobs in several windows of ``seconds``, which make one row."""
        windows = []
        cpu_s = 0.0
        meter = CpuMeter(server)
        async with LoadGenerator(HOST, server.ports, CONNECTIONS) as load:
            for number in range(count):
                with quiet_memory():
                    warm_up_s = self.plan.warm_up_s if number == 0 else _SETTLE_SECONDS
                    windows.append(await load.paced(jobs, rate, warm_up_s, seconds, meter.mark, seed=number + 1))
                cpu_s += meter.cpu_s
        self.add(row_of(scenario, server.name, CONNECTIONS, windows, cpu_s, server.rss_mib()))
        return windows

    async def half_load(self, scenario: str, server: ServerProcess, jobs: Jobs, calls_per_s: float) -> None:
        """Measure calls at half of ``calls_per_s`` in several windows, and the medians of their percentiles.

        The p99 of a single window is that of its few slowest moments, and differs by several times from one to the
        next on a virtual machine.
        """
        windows = await self.paced_windows(
            scenario, server, jobs, calls_per_s / 2, self.plan.measure_s / 2, HALF_LOAD_WINDOWS
        )
        latencies = [window.latencies() for window in windows]
        p99s = [quantile(each, 0.99) * 1000 for each in latencies]
        ratios = [quantile(each, 0.99) / quantile(each, 0.5) for each in latencies]
        self.figure(scenario, server, "p99, median of the windows", statistics.median(p99s), "ms")
        self.figure(scenario, server, "p99, lowest window", min(p99s), "ms")
        self.figure(scenario, server, "p99, highest window", max(p99s), "ms")
        self.figure(scenario, server, "p99 over p50, median of the windows", statistics.median(ratios), "times")

    async def fill(self, server: ServerProcess, sqs: Sqs, url: str, messages: int) -> Window:
        """Send this number of messages in batches."""
        async with LoadGenerator(HOST, server.ports, CONNECTIONS) as load:
            window = await load.drain(sqs.send_batch(again(url), messages))
        if window.errors:
            raise RuntimeError(f"filling a queue failed {window.errors} times: {window.first_error}")
        return window

    async def receive_rounds(
        self, scenario: str, server: ServerProcess, sqs: Sqs, url: str, waiting: int, depth: int, size: int, rounds: int
    ) -> LoadMeasurement:
        """Receive and delete ``size`` messages, ``rounds`` times, with the queue filled to ``depth`` before each.

        ``waiting`` messages are there at the beginning, and ``depth - size`` (about) at the end.  One additional round
        comes first and is not counted.
        """
        windows = []
        cpu_s = 0.0
        meter = CpuMeter(server)
        async with LoadGenerator(HOST, server.ports, CONNECTIONS) as load:
            for number in range(rounds + 1):
                if waiting < depth:
                    waiting += (await load.drain(sqs.send_batch(again(url), depth - waiting))).messages
                meter.mark()
                with quiet_memory():
                    window = await load.drain(sqs.receive_and_delete(url, size))
                meter.mark()
                waiting -= window.messages
                if number:
                    windows.append(window)
                    cpu_s += meter.cpu_s
        return self.add(row_of(scenario, server.name, CONNECTIONS, windows, cpu_s, server.rss_mib()))


class quiet_memory:
    """Disables garbage collection in the generator while it measures: its pauses would count as the server's."""

    def __enter__(self) -> None:
        gc.collect()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        gc.enable()
