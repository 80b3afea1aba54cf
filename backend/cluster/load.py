"""Load of a node, measured at intervals, so that commands have no cost.

A partition's work follows from its fold: the next number has risen by one with each message that arrived, and messages
that arrived and are not stored any more were received and deleted.  So between two measurements it has handled ``2 *
arrived - change of stored`` messages, sent and received together; a purge also counts as if all had been received.
"""

from __future__ import annotations

import asyncio
import heapq
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from backend.node import Node
from metadata_service.models import BusyPartition

POLL_SECONDS: Final = 5.0
AT_ONCE: Final = 2_000
"""Partitions checked before other tasks get a turn: about a millisecond."""
BUSY_MAX: Final = 64
"""Maximum number of busy partitions that are reported."""
BUSY_RATE: Final = 250.0
"""Messages per second below which a partition is not reported."""


class Load:
    """Load of one node, as of the last :meth:`measure`."""

    def __init__(
        self,
        node: Node,
        folder: Path | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.process_time,
    ) -> None:
        """``folder``: the journal's folder; None: the journal is not on a disk of this machine."""
        self.cpu = 0.0
        """Fraction of a core that the process used."""
        self.storage = 0.0
        """Used fraction of the scarcest resource: the disk, or memory for messages; 1: no more messages are
        accepted.
        """
        self.busy: tuple[BusyPartition, ...] = ()
        """The partitions with the highest load, the busiest first."""
        self._node = node
        self._folder = folder
        self._clock = clock
        self._cpu = cpu
        self._checked_at: float | None = None
        self._cpu_before = 0.0
        self._before: dict[int, tuple[int, int]] = {}
        """By partition: epoch, and twice the next number less the stored messages."""

    async def measure(self) -> None:
        """Measure the load since the last call."""
        now, cpu = self._clock(), self._cpu()
        passed = 0.0 if self._checked_at is None else now - self._checked_at
        if passed:
            self.cpu = round(min(1.0, (cpu - self._cpu_before) / passed), 3)
        self.storage = round(max(self._node.memory_share, self._disk_share()), 3) if self._node.accepts_sends else 1.0
        self._checked_at, self._cpu_before = now, cpu
        self.busy = await self._busy(passed)

    def _disk_share(self) -> float:
        if self._folder is None:
            return 0.0
        usage = shutil.disk_usage(self._folder)
        return usage.used / (usage.used + usage.free)

    async def _busy(self, passed: float) -> tuple[BusyPartition, ...]:
        found: list[tuple[float, int, int]] = []
        seen: dict[int, tuple[int, int]] = {}
        for count, partition in enumerate(list(self._node.partitions.values()), 1):
            fold = partition.fold
            moved = 2 * fold.next_number - fold.visible - fold.delayed - len(fold.in_flight)
            epoch, before = self._before.get(partition.id, (-1, 0))
            seen[partition.id] = partition.epoch, moved
            if epoch == partition.epoch and moved - before > BUSY_RATE * passed and passed:
                assert fold.settings is not None
                found.append(((moved - before) / passed, partition.id, fold.settings.queue_id))
            if not count % AT_ONCE:
                await asyncio.sleep(0)
        self._before = seen
        return tuple(
            BusyPartition(number, queue_id, round(rate, 1))
            for rate, number, queue_id in heapq.nlargest(BUSY_MAX, found)
        )
