"""The frontend's view of the metadata: a store behind a cache.

Cache entries may be stale: callers name the cached queue's ``queue_id`` and ``version``, and the backend
refuses versions older than it knows.  :meth:`MetadataClient.get` then reads from the store.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

from metadata_service.models import Queue
from metadata_service.store import QueueExists, QueueNotFound, QueueStore
from telemetry import caches

_LOOKUPS = caches.places("queues")
_HIT = _LOOKUPS.hit


class MetadataClient:
    """Cache of queues by account and name.  Keeps the ``limit`` most recently used queues; absence is not cached."""

    def __init__(self, store: QueueStore, *, limit: int = 10_000) -> None:
        self._store = store
        self._limit = limit
        self._queues: OrderedDict[tuple[str, str], Queue] = OrderedDict()
        self._forgotten = 0
        """Number of invalidations: the result of a read that overlaps one may be stale and is not cached."""

    def cached(self, account: str, name: str) -> Queue | None:
        """The queue as cached; None if it is not cached, whether or not it exists (see :meth:`get`)."""
        key = (account, name)
        queue = self._queues.get(key)
        if queue is not None:
            self._queues.move_to_end(key)
            caches.counts[_HIT] += 1
        return queue

    async def get(self, account: str, name: str) -> Queue:
        """Read the queue from the store.  Raises :class:`QueueNotFound`."""
        forgotten = self._forgotten
        caches.counts[_LOOKUPS.miss] += 1
        try:
            queue = await self._store.get_queue(account, name)
        except QueueNotFound:
            self.invalidate(account, name)
            raise
        return self.remember(queue) if forgotten == self._forgotten else queue

    async def by_id(self, queue_id: int) -> Queue | None:
        """Delegate to :meth:`QueueStore.get_queue_by_id`."""
        return await self._store.get_queue_by_id(queue_id)

    def invalidate(self, account: str, name: str) -> None:
        """Drop the cached queue of this name."""
        self._forgotten += 1
        self._queues.pop((account, name), None)

    def outdate(self, account: str, name: str, queue_id: int, version: int) -> None:
        """Drop the cached queue of this name, and reads of it under way, if they may be older than this version."""
        known = self._queues.get((account, name))
        if known is None or (known.queue_id, known.version) < (queue_id, version):
            self.invalidate(account, name)

    def forget(self, names: Iterable[tuple[str, str]] | None) -> None:
        """Drop cached queues by account and name; None: all."""
        if names is None:
            self._forgotten += 1
            self._queues.clear()
            return
        for account, name in names:
            self.invalidate(account, name)

    async def create(
        self,
        account: str,
        name: str,
        attributes: Mapping[str, str],
        tags: Mapping[str, str],
        *,
        now_ms: int,
        hold_seconds: float,
        queues_most: int | None = None,
        clusters: Sequence[int] = (0,),
    ) -> Queue:
        """Call :meth:`QueueStore.create_queue` and cache the queue."""
        try:
            created = await self._store.create_queue(
                account,
                name,
                attributes,
                tags,
                now_ms=now_ms,
                hold_seconds=hold_seconds,
                queues_most=queues_most,
                clusters=clusters,
            )
        except QueueExists as error:
            self.remember(error.queue)
            raise
        return self.remember(created)

    async def update(
        self,
        queue: Queue,
        *,
        now_ms: int,
        attributes: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> Queue:
        """Call :meth:`QueueStore.update_queue` for the version of ``queue``, and cache the result."""
        return self.remember(
            await self._store.update_queue(
                queue.queue_id, queue.version, now_ms=now_ms, attributes=attributes, tags=tags
            )
        )

    async def delete(self, queue: Queue, *, now_ms: int) -> Queue:
        """Call :meth:`QueueStore.delete_queue` and drop the cached queue."""
        self.invalidate(queue.account, queue.name)
        deleted = await self._store.delete_queue(queue.queue_id, now_ms=now_ms)
        self.invalidate(queue.account, queue.name)
        return deleted

    async def begin_purge(self, queue: Queue, *, now_ms: int, interval_seconds: float) -> Queue:
        """Call :meth:`QueueStore.begin_purge` and cache the result."""
        return self.remember(
            await self._store.begin_purge(queue.queue_id, now_ms=now_ms, interval_seconds=interval_seconds)
        )

    async def list_queues(self, account: str, *, prefix: str = "", after: str = "", limit: int) -> list[str]:
        """Delegate to :meth:`QueueStore.list_queues`."""
        return await self._store.list_queues(account, prefix=prefix, after=after, limit=limit)

    async def dead_letter_sources(self, account: str, dlq_arn: str, *, after: str = "", limit: int) -> list[str]:
        """Delegate to :meth:`QueueStore.dead_letter_sources`."""
        return await self._store.dead_letter_sources(account, dlq_arn, after=after, limit=limit)

    def remember(self, queue: Queue) -> Queue:
        """Cache ``queue`` unless a newer version is cached: answers may arrive out of order."""
        key = (queue.account, queue.name)
        known = self._queues.get(key)
        if known is None or (known.queue_id, known.version) <= (queue.queue_id, queue.version):
            self._queues[key] = queue
            self._queues.move_to_end(key)
            if len(self._queues) > self._limit:
                self._queues.popitem(last=False)
        return queue
