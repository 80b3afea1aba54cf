"""Background collection of what deleted queues have left behind.

A queue is deleted in the metadata first and in the backend afterwards.  A process that ends in between leaves an orphan
partition that no call names any more.  Two queues also remember each other's transfers, until one learns that the other
is gone for good: partition ids are never reused, so nothing more can arrive.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

from backend.api import BackendError, NotOwner, PartitionGone, PartitionState, Target
from backend.engine.records import Forgotten
from backend.serving.background import LogThrottle
from backend.serving.host import PartitionHost
from backend.serving.partition import OpenPartition
from metadata_service.store import StoreError

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 0.01
"""Pause between two partitions that are checked after a start."""
RETRY_SECONDS = 5.0


class OrphanCollector:
    """Collection of orphans of one incarnation, in the background."""

    def __init__(self, host: PartitionHost) -> None:
        self._node = host

    async def run(self, opened: Sequence[int]) -> None:
        """Drop opened or stopped partitions whose queue is gone, and send the others their settings in case they
        changed.

        Partitions whose queue cannot be looked up now are tried again.
        """
        left: dict[int, int] = {}
        for number in opened:
            partition = self._node.partitions.get(number)
            if partition is not None and partition.fold.settings is not None:
                left[number] = partition.fold.settings.queue_id
        left.update((one.partition, one.queue_id) for one in self._node.shards.stopped.values() if one.queue_id)
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
                        logger.warning("whether the queue of partition %d is gone is not known: %s", number, error)
                await asyncio.sleep(PAUSE_SECONDS)
            if left:
                await asyncio.sleep(RETRY_SECONDS)

    async def _check_partition(self, target: Target) -> None:
        node = self._node
        current = await node.resolver.settings(target)
        partition = node.partitions.get(target.partition)
        if current is None:
            logger.info("the queue of partition %d is gone, so is the partition", target.partition)
            await node.drop(target)
        elif partition is not None:
            if current != partition.fold.settings:
                await node.configure(current)
            # It is in the queue's map until it is forgotten here, so it is asked about.
            if current.state == PartitionState.RETIRED:
                await node.forget(target)
            if target.partition not in node.partitions:
                return
            # In a shard that this node owns, a partition that is neither open nor damaged was dropped.
            fold = partition.fold
            await self._forget(
                partition,
                [
                    peer
                    for peer in (*fold.outgoing, *fold.taken)
                    if node.shards.owns(peer) and peer not in node.partitions and node.shards.damage_of(peer) is None
                ],
            )

    async def forget(self, gone: int, peers: Iterable[int]) -> None:
        """Remove a dropped partition from the transfer state of the partitions that exchanged messages with it."""
        for number in peers:
            partition = self._node.partitions.get(number)
            if partition is not None:
                try:
                    await self._forget(partition, [gone])
                except PartitionGone:
                    continue
                except BackendError:
                    return  # the next start finds it

    async def _forget(self, partition: OpenPartition, gone: list[int]) -> None:
        fold = partition.fold
        known = [
            peer
            for peer in dict.fromkeys(gone)
            if peer in fold.taken or (peer in fold.outgoing and not fold.outgoing[peer].pending)
        ]
        if known:
            await self._node.write_all(partition, lambda _: [Forgotten(known)])
