"""A whole cluster with topics and consumer groups, beside queues: the world of :mod:`tests.simulator.world.cluster`.

The nodes are processes of one machine, which share its disk: there are no extents on the *quorum* journal of the
simulator.  Where they are to be added, :func:`has_streams` says so; all else here is the same for both journals.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from random import Random
from typing import TypeVar
from unittest import mock

from backend.api import Command
from backend.extent_ids import ExtentId
from backend.journal.local.extents import LocalExtents
from tests.simulator.checks.model import Violation
from tests.simulator.streams.group_history import GroupHistory
from tests.simulator.streams.history import StreamHistory
from tests.simulator.streams.members import GroupClients
from tests.simulator.streams.producers import UNKNOWN, StreamClients
from tests.simulator.streams.world import drawn_groups, drawn_streams, patched, small_streams
from tests.simulator.world.cluster import SECONDS, ClusterWorld
from tests.simulator.world.fronts import Front
from tests.simulator.world.hosts import HOST
from tests.simulator.world.runs import Report
from tests.simulator.world.world import EPOCH

T = TypeVar("T")

CLOCKS_MS = 3_000
"""Bound on the difference of a shard's clock and the wall clock."""
SLEWED = 1.25
"""Bound on the speed of a shard's clock."""
OUTRUN_SECONDS = 3.0
"""Time by which an append to an extent is late, at most: enough for its shard to be taken over."""
READ_SECONDS = 120.0
"""Time in which everything can be read, when all faults have ended."""


def has_streams(*, local: bool) -> bool:
    """Return whether the journal of a simulated cluster can store streams."""
    return local


class StreamClusterWorld(ClusterWorld):
    """A cluster, with streams."""

    def __init__(self, seed: int, trace: bool = False) -> None:
        local = True
        assert has_streams(local=local)
        super().__init__(seed, local=local, trace=trace)
        random = Random(f"streams of cluster {seed}")
        self._limits = small_streams(random)
        self._random = random
        self.callers.pace *= random.choice((1.0, 4.0))
        self.topics = [StreamHistory(one, self._time_ms, self.counts) for one in drawn_streams(random, 1001)]
        self.consumer_groups = [
            GroupHistory(one, self._shard_ms, self.counts, speed_max=SLEWED) for one in drawn_groups(random, 2001)
        ]
        self.stream_clients = StreamClients(self, self.topics, Random(random.random()))
        self.members = GroupClients(self, self.consumer_groups, Random(random.random()), calls_end=False)
        self._pace = random.choice((0.01, 0.03))
        """Mean seconds between two calls."""
        self._outrun = random.choice((0.0, 0.2, 0.6))
        """Share of the appends to extents that are late, until another extent of the partition is there."""
        # Less often than with queues: these are a few partitions, and have to be served most of the time.
        if random.random() < 0.5:  # shards move all the time
            self.troubles.pause = 0.5
            self.troubles.faults = {"drain": 20, "kill": 1, "stop": 1, "map": 1}
        elif self.troubles.pause:
            self.troubles.pause = random.choice((2.0, 4.0))
        self._stream_calls: set[asyncio.Task[None]] = set()

    def _shard_ms(self) -> int:
        return int((EPOCH + self.loop.now) * 1000)

    def _time_ms(self) -> int:
        return self._shard_ms() + CLOCKS_MS

    # --- the clients' access ----------------------------------------------------------------------------

    async def call(self, command: Command[T]) -> T:
        front = HOST.get()
        assert isinstance(front, Front)
        return await front.backend.call(command)

    def begin_call(self, work: Coroutine[None, None, None]) -> None:
        """Make a call at one of the frontends."""
        front = self._random.choice(self.fronts)
        task = front.run(self.loop, self._watched(work))
        self._stream_calls.add(task)
        task.add_done_callback(self._stream_calls.discard, context=Context())

    async def _watched(self, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except UNKNOWN:
            self.counts["refused"] += 1
        except Violation as error:
            self.failed(error)

    async def _clients(self, step: Callable[[], None]) -> None:
        while not self.over:
            await asyncio.sleep(self._random.expovariate(1 / self._pace))
            step()

    # --- the run ----------------------------------------------------------------------------------------

    def _run(self, seconds: float) -> None:
        for step in (self.stream_clients.step, self.members.step):
            self.tasks.append(self.loop.create_task(self._clients(step)))
        super()._run(seconds)
        if not self.until(lambda: not self._stream_calls, READ_SECONDS):
            raise Violation("calls to streams and groups do not end")
        for read in (self.stream_clients.read_all, self.members.read_all):
            self.begin_call(read())
            if not self.until(lambda: not self._stream_calls, READ_SECONDS):
                raise Violation("streams and groups cannot be read")

    def run(self, seconds: float = SECONDS) -> Report:
        with patched(self._limits), mock.patch.object(LocalExtents, "append", self._late_append()):
            return super().run(seconds)

    def _extents_of(self, partition: int) -> set[str]:
        return {path for path in self.disk.paths() if f"/{partition:016x}-" in path}

    def _late_append(self) -> Callable[..., Coroutine[None, None, None]]:
        random, append = Random(f"extents of {self.seed}"), LocalExtents.append

        async def late(store: LocalExtents, extent: ExtentId, offset: int, data: bytes) -> None:
            until = self.loop.now + OUTRUN_SECONDS * (random.random() < self._outrun)
            known = self._extents_of(extent.partition)
            while self.loop.now < until and self._extents_of(extent.partition) <= known and not self.over:
                await asyncio.sleep(0.01)
            await append(store, extent, offset, data)

        return late
