"""Two servers that are measured in turn, so that the machine's other work affects both."""

from __future__ import annotations

from collections.abc import Sequence

from bench.load import Jobs, LoadGenerator, Window
from bench.report import LoadMeasurement, row_of
from bench.run import CONNECTIONS, BenchRun, quiet_memory
from bench.servers.servers import HOST, CpuMeter, ServerProcess
from tests.servers import proc

ROUNDS = 4


class Side:
    """One of the servers, with its measurements."""

    def __init__(self, scenario: str, server: ServerProcess, jobs: Jobs) -> None:
        self.server = server
        self.cpu_s = 0.0
        self._scenario = scenario
        self._jobs = jobs
        self._windows: list[Window] = []

    @property
    def calls(self) -> int:
        return sum(window.calls for window in self._windows)

    def mark(self) -> None:
        """Handle the begin or the end of a window; does nothing by default."""

    async def measure(self, warm_up_s: float, seconds: float) -> None:
        meter = CpuMeter(self.server)

        def mark() -> None:
            meter.mark()
            self.mark()

        async with LoadGenerator(HOST, self.server.port, CONNECTIONS) as load:
            with quiet_memory():
                self._windows.append(await load.closed(self._jobs, warm_up_s, seconds, mark))
        self.cpu_s += meter.cpu_s

    def row(self) -> LoadMeasurement:
        rss_mib = proc.rss_mib(self.server.pid)
        return row_of(self._scenario, self.server.name, CONNECTIONS, self._windows, self.cpu_s, rss_mib)


async def in_turn(run: BenchRun, sides: Sequence[Side]) -> list[LoadMeasurement]:
    """Measure each side as fast as it answers, on 32 connections, in alternating rounds."""
    for number in range(ROUNDS):
        for side in sides if number % 2 else reversed(sides):
            await side.measure(run.plan.warm_up_s, run.plan.measure_s / 2)
    return [run.add(side.row()) for side in sides]
