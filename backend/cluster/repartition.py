"""Repartitioning of a queue: split, drain and move of partitions, and the steps that complete them.

Each begins with one conditional change of the queue's map (:mod:`metadata_service.clusters.partition_map`).  The
partitions do the rest: they hand their tokens over (:mod:`backend.serving.token_import`), and clients receive from a
draining one until it is empty.  :meth:`Splits.finish` checks their progress, and takes the next step when it is due: it
removes completed token handovers and retired partitions from the map.  Any process may call it, at any time and
repeatedly; after a crash between any two steps it continues there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from backend.api import (
    BackendError,
    Configure,
    Forget,
    PartitionGone,
    PartitionUnknown,
    Peer,
    PendingTokenSources,
    Retire,
    SettingsStale,
    Target,
)
from backend.lookups import Resolver
from metadata_service.clusters.partition_map import changing, drain, move, split, without, without_token_sources
from metadata_service.models import Partition, Queue
from metadata_service.queue_settings import is_fifo
from metadata_service.store import ConditionFailed, QueueNotFound

logger = logging.getLogger(__name__)

LINGER_SECONDS = 43_200
"""Time for which an empty partition stays in the map: the maximum duration of a claim, so that receipt handles of it
that clients still hold are recognized.
"""


class PartitionStore(Protocol):
    """The required methods of the metadata store (:class:`metadata_service.store.QueueStore`)."""

    async def new_partition_ids(self, cluster: int, count: int) -> list[int]: ...

    async def get_queue_by_id(self, queue_id: int) -> Queue | None: ...

    async def update_queue(
        self, queue_id: int, version: int, *, now_ms: int, partitions: Sequence[Partition] | None = None
    ) -> Queue: ...


class Splits:
    """Repartitioning with a store and a peer that reaches all partitions."""

    def __init__(self, store: PartitionStore, peer: Peer, resolver: Resolver, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._peer = peer
        self._resolver = resolver
        self._now_ms = now_ms

    async def split(self, queue: Queue, clusters: Sequence[int]) -> Queue:
        """Add partitions to the queue, one in each of these backend clusters (by number; repetition is allowed).

        Raises :class:`~metadata_service.clusters.partition_map.NotPossible`,
        :class:`~metadata_service.store.ConditionFailed` if the queue has changed since the caller read it, and
        :class:`~metadata_service.store.QueueNotFound`.
        """
        split(queue, range(len(clusters)))  # an impossible split must not consume ids
        return await self._change(queue, split(queue, await self._new_ids(clusters)))

    async def drain(self, queue: Queue, ids: Collection[int]) -> Queue:
        """Drain these partitions.  Raises the errors of :meth:`split`."""
        return await self._change(queue, drain(queue, ids))

    async def move(self, queue: Queue, clusters: Mapping[int, int]) -> Queue:
        """Replace these partitions (by id) by new ones, each in a backend cluster (by number), and drain the old ones.

        Raises the errors of :meth:`split`.
        """
        move(queue, dict.fromkeys(clusters, 0))
        new = await self._new_ids(list(clusters.values()))
        return await self._change(queue, move(queue, dict(zip(clusters, new, strict=True))))

    async def finish(self, queue_id: int, *, linger_seconds: int = LINGER_SECONDS) -> bool:
        """Take all steps that are due; return whether none is left: no partition waits for tokens, and none drains.

        Raises the errors of the stores and of :class:`~backend.api.Peer`; then it has to be called again.
        """
        queue = await self._store.get_queue_by_id(queue_id)
        if queue is None:
            return True
        try:
            if changing(queue.partitions):
                queue = await self._record_handovers(queue)
            return await self._retire(queue, linger_seconds)
        except ConditionFailed:  # another process has changed the queue meanwhile
            return False
        except QueueNotFound:
            return True

    # --- parts ----------------------------------------------------------------------------------------------

    async def _new_ids(self, clusters: Sequence[int]) -> list[int]:
        new = {
            cluster: iter(await self._store.new_partition_ids(cluster, list(clusters).count(cluster)))
            for cluster in sorted(set(clusters))
        }
        return [next(new[cluster]) for cluster in clusters]

    async def _change(self, queue: Queue, partitions: Sequence[Partition]) -> Queue:
        changed = await self._store.update_queue(
            queue.queue_id, queue.version, now_ms=self._now_ms(), partitions=partitions
        )
        try:
            for one in changed.partitions:
                await self._configure(_target(changed, one))
        except BackendError as error:
            # The next call that knows the new map configures them, or the next call of finish.
            logger.warning("partitions of queue %r do not have its new map yet: %s", queue.name, error)
        return changed

    async def _configure(self, target: Target) -> None:
        """Configure the partition with the current map."""
        settings = await self._resolver.settings(target)
        if settings is not None:
            await self._peer.call(Configure(settings))

    async def _record_handovers(self, queue: Queue) -> Queue:
        """Record completed token handovers in the map."""
        # All are called, because the first call with the new map starts a partition's token import.
        waiting = [
            await self._pending_token_sources(_target(queue, one))
            for one in queue.partitions
            if one.pending_token_sources
        ]
        if any(waiting):
            return queue
        return await self._store.update_queue(
            queue.queue_id, queue.version, now_ms=self._now_ms(), partitions=without_token_sources(queue.partitions)
        )

    async def _pending_token_sources(self, target: Target) -> list[int]:
        try:
            return await self._peer.call(PendingTokenSources(target))
        except (PartitionUnknown, SettingsStale):
            await self._configure(target)
            return await self._peer.call(PendingTokenSources(target))

    async def _retire(self, queue: Queue, linger_seconds: int) -> bool:
        """Retire partitions that are empty, and remove retired ones from the map."""
        draining = [one for one in queue.partitions if one.state == "draining"]
        if is_fifo(queue.attributes):
            linger_seconds = 0  # its successor delivers nothing while it exists
        # It must not retire before its tokens are handed over.
        sources = {source for one in queue.partitions for source in one.pending_token_sources}
        retired = [
            one
            for one in draining
            if one.id not in sources and await self._has_retired(_target(queue, one), linger_seconds)
        ]
        if retired:
            queue = await self._store.update_queue(
                queue.queue_id,
                queue.version,
                now_ms=self._now_ms(),
                partitions=without(queue.partitions, {one.id for one in retired}),
            )
            for one in retired:
                try:
                    await self._peer.call(Forget(Target(one.id, queue.queue_id)))
                except BackendError as error:
                    # It is dropped the next time its shard is opened.
                    logger.warning("the retired partition %d cannot be dropped now: %s", one.id, error)
        return len(retired) == len(draining) and not changing(queue.partitions)

    async def _has_retired(self, target: Target, linger_seconds: int) -> bool:
        try:
            try:
                return await self._peer.call(Retire(target, linger_seconds))
            except (PartitionUnknown, SettingsStale):
                await self._configure(target)
                return await self._peer.call(Retire(target, linger_seconds))
        except PartitionGone:  # it is already forgotten, but still in the map
            return True


def _target(queue: Queue, partition: Partition) -> Target:
    return Target(partition.id, queue.queue_id, queue.version)
