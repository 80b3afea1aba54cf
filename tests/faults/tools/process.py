"""A ``holdfast serve`` with injected faults."""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from tests.faults.tools.hooks import VARIABLE, FaultPlan, PlannedFault
from tests.servers.server import Server

SETTINGS = {"SEGMENT_BYTES": str(1 << 21)}
"""Settings with small segments, so that new segments, checkpoints and deletions of old segments are frequent."""


class FaultyServer(Server):
    """Server whose next start has the faults of :attr:`faults`."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None, data: Path | None = None) -> None:
        super().__init__(folder, {**SETTINGS, **(settings or {})})
        if data is not None:
            self.data = data
        self.faults: list[PlannedFault] = []
        self.seed = 0

    def command(self) -> list[str]:
        """Return the command line of the process, under the hooks."""
        _, _, _, *rest = super().command()
        return [sys.executable, "-m", "tests.faults.tools.crashing_serve", *rest]

    def start(self, timeout_seconds: float = 60.0) -> Self:
        self.seed += 1
        plan = FaultPlan(self.faults, str(self.data / "journal"), self.seed)
        self.settings.update(plan.environment())
        assert VARIABLE in self.settings
        return super().start(timeout_seconds)

    def lose_power(self) -> None:
        """Kill the server, and lose data that were not synced."""
        process = self.running()
        os.kill(process.pid, signal.SIGUSR1)
        process.wait(30)
        self.process = None

    def ended(self) -> bool:
        """Return whether the process has ended by itself.  If so it may be started again."""
        if self.process is None or self.process.poll() is None:
            return False
        self.process = None
        return True

    async def start_with(self, faults: Sequence[PlannedFault] = (), *, dies: bool = False) -> None:
        """Start with these faults, without blocking the event loop.  ``dies``: it may end while it starts."""
        self.faults = list(faults)
        try:
            await asyncio.to_thread(self.start)
        except RuntimeError:
            if not dies:
                raise
