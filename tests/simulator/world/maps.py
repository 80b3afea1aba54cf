"""Changes the maps of queues in a simulated cluster, and completes started changes, as the out-cluster manager does."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

from backend.api import BackendError
from frontend.sqs.protocol.errors import SqsError
from metadata_service.clusters.partition_map import NotPossible, changing, open_ones
from metadata_service.models import Queue
from metadata_service.store import ConditionFailed, StoreError
from tests.simulator.world.fronts import Front

if TYPE_CHECKING:
    from tests.simulator.world.cluster import ClusterWorld

LINGER_SECONDS = 3
"""A real partition stays for as long as a claim can last."""
POLL_SECONDS = 0.5
OPEN_MAX = 6
"""Partitions of a queue that take sends."""
REFUSED = (BackendError, StoreError, SqsError, ConditionFailed, NotPossible)


class Maps:
    """The acts on the queues whose maps change in this run."""

    def __init__(self, world: ClusterWorld, random: Random) -> None:
        self.acts: tuple[str, ...] = ("split", "drain", "move")
        self._world = world
        self._random = random

    def settled(self) -> bool:
        """True if all tokens are where they belong."""
        return not any(changing(queue.partitions) for queue in self._queues())

    def finished(self) -> bool:
        """True if all drained partitions have retired, too."""
        return self.settled() and all(one.state == "open" for queue in self._queues() for one in queue.partitions)

    def _queues(self) -> list[Queue]:
        queues = self._world.catalog.queues
        return [queues[queue_id] for queue_id in self._world.mapped if queue_id in queues]

    async def change(self, random: Random) -> None:
        if self._world.mapped:
            self.begin(random.choice(self._world.mapped), random)

    def begin(self, queue_id: int, random: Random, move: int | None = None) -> None:
        """Change this queue's map: put another partition in the place of this one, or do anything."""
        front = random.choice(self._world.fronts)
        front.run(self._world.loop, self._change(front, queue_id, random, move))

    async def _change(self, front: Front, queue_id: int, random: Random, move: int | None) -> None:
        try:
            queue = await front.stored(queue_id)
            now = open_ones(queue.partitions)
            some = [one.id for one in random.sample(now, random.randint(1, max(1, len(now) - 1)))]
            act = random.choice(self.acts)
            if move is not None:
                act, some = "move", [move]
            if act == "split" and len(now) < OPEN_MAX:
                await front.splits.split(queue, [0])
            elif act == "move":
                await front.splits.move(queue, dict.fromkeys(some, 0))
            else:
                await front.splits.drain(queue, some)
            self._world.event(act, queue_id, some)
        except REFUSED:
            self._world.counts["map not changed"] += 1

    async def run(self) -> None:
        """Complete started changes, also after the last fault."""
        world = self._world
        while True:
            await asyncio.sleep(POLL_SECONDS)
            for queue_id in world.mapped:
                front = self._random.choice(world.fronts)
                work = front.run(world.loop, self._finish(front, queue_id))
                while not work.done():
                    await asyncio.sleep(0.05)

    async def _finish(self, front: Front, queue_id: int) -> None:
        try:
            await front.splits.finish(queue_id, linger_seconds=LINGER_SECONDS)
        except REFUSED:
            self._world.counts["map not finished"] += 1
