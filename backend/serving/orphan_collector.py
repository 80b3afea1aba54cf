"""Background collection of the remains of deleted queues.

A queue is deleted in the metadata first and in the backend afterwards.  A process that ends in between leaves an orphan
partition that no call names any more.

Two partitions also remember each other's transfers.  When one of them is dropped, the other forgets it an hour later:
partition ids are never reused, but a transfer that was on its way to the other can still arrive for some time, and must
not be accepted twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence

from backend.api import BackendError, Configure, Drop, Forget, NotOwner, PartitionGone, PartitionState, Peer, Target
from backend.engine.records import Forgotten
from backend.lookups import Resolver
from backend.serving.background import LogThrottle, Tasks
from backend.serving.partition import OpenPartition
from backend.serving.shards import Shards
from backend.serving.writer import PartitionWriter
from metadata_service.store import StoreError

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 0.01
"""Pause between two partitions that are checked after a start."""
RETRY_SECONDS = 5.0
FORGET_SECONDS = 3600.0
"""Time after which a dropped partition is forgotten by those that exchanged messages with it.

A call of the node that owned it can arrive this late: out of a connection that retransmits (Linux gives up after about
15 minutes), or from a node that was stopped for a while, and each call waits for a fence of its log first.
"""


class OrphanCollector:
    """Collection of orphans of one incarnation, in the background."""

    def __init__(self, shards: Shards, writer: PartitionWriter, node: Peer, resolver: Resolver, tasks: Tasks) -> None:
        """``node`` runs the commands."""
        self._shards = shards
        self._partitions = shards.partitions
        self._writer = writer
        self._node = node
        self._resolver = resolver
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._dropped: deque[tuple[float, int, list[int]]] = deque()
        """Dropped partitions that others still remember: time to forget, partition, the others; in order of time."""
        self._forgetting: asyncio.Task[None] | None = None

    async def run(self, opened: Sequence[int]) -> None:
        """Drop opened or stopped partitions whose queue is gone, and send the others their settings in case they
        changed.

        Partitions whose queue cannot be looked up now are tried again.
        """
        left: dict[int, int] = {}
        for number in opened:
            partition = self._partitions.get(number)
            if partition is not None and partition.fold.settings is not None:
                left[number] = partition.fold.settings.queue_id
        left.update((one.partition, one.queue_id) for one in self._shards.stopped.values() if one.queue_id)
        log_throttle = LogThrottle()
        while left:
            for number, queue_id in list(left.items()):
                try:
                    await self._check_partition(Target(number, queue_id))
                    del left[number]
                except NotOwner:
                    del left[number]  # its next owner checks it
                except (StoreError, BackendError) as error:
                    if log_throttle.should_log(None, str(error)):
                        logger.warning("the queue of partition %d cannot be looked up: %s", number, error)
                await asyncio.sleep(PAUSE_SECONDS)
            if left:
                await asyncio.sleep(RETRY_SECONDS)

    async def _check_partition(self, target: Target) -> None:
        current = await self._resolver.settings(target)
        partition = self._partitions.get(target.partition)
        if current is None:
            logger.info("partition %d is dropped: its queue was deleted", target.partition)
            await self._node.call(Drop(target))
        elif partition is not None:
            if current != partition.fold.settings:
                await self._node.call(Configure(current))
            # A retired partition is dropped when it leaves the queue's map, but that call may have failed.
            if current.state == PartitionState.RETIRED:
                await self._node.call(Forget(target))
            if target.partition not in self._partitions:
                return
            for peer in {**partition.fold.outgoing, **partition.fold.incoming}:
                if await self._was_dropped(peer, partition):
                    self.forget(peer, [target.partition])

    async def _was_dropped(self, peer: int, partition: OpenPartition) -> bool:
        """Return whether a partition of this node that exchanged messages with this one was dropped.

        In a shard that this node owns, one that is neither open nor damaged was dropped, or never opened: transfers to
        it are journaled before it is.  Forgotten, their numbers would begin anew, and it would not accept them again.
        """
        if not self._shards.owns(peer) or peer in self._partitions or self._shards.damage_of(peer) is not None:
            return False
        outgoing = partition.fold.outgoing.get(peer)
        if outgoing is None:
            return True
        settings = await self._resolver.settings(Target(peer, outgoing.queue_id))
        return settings is None or settings.state == PartitionState.RETIRED

    def forget(self, gone: int, peers: Iterable[int]) -> None:
        """Remove a dropped partition from the transfer state of the partitions that exchanged messages with it, when
        :data:`FORGET_SECONDS` have passed.
        """
        self._dropped.append((self._loop.time() + FORGET_SECONDS, gone, list(peers)))
        if self._forgetting is None:
            self._forgetting = self._tasks.start(self._forget_dropped(), "the orphan collector")

    async def _forget_dropped(self) -> None:
        while self._dropped:
            due, gone, peers = self._dropped[0]
            await asyncio.sleep(due - self._loop.time())
            self._dropped.popleft()
            for number in peers:
                partition = self._partitions.get(number)
                if partition is not None:
                    try:
                        await self._forget(partition, gone)
                    except PartitionGone:
                        continue
                    except BackendError:
                        break  # the next start finds it
        self._forgetting = None

    async def _forget(self, partition: OpenPartition, gone: int) -> None:
        fold = partition.fold
        if gone in fold.incoming or (gone in fold.outgoing and not fold.outgoing[gone].is_pending):
            await self._writer.write_all(partition, lambda _: [Forgotten([gone])])
