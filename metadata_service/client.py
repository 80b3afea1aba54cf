"""The frontend's view of the metadata: a store behind a cache.

The cache may be old: whoever acts on a cached queue names its ``queue_id`` and ``version``, and the backend
refuses what is older than it knows.  Then :meth:`MetadataClient.get` reads afresh.
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
    """Queues by account and name.  Keeps the ``limit`` queues that were used last; absent ones are not remembered."""

    def __init__(self, store: QueueStore, *, limit: int = 10_000) -> None:
        self._store = store
        self._limit = limit
        self._queues: OrderedDict[tuple[str, str], Queue] = OrderedDict()
        self._forgotten = 0
        """How often something was: a read that was under way then may bring what is old, and is not kept."""

    def cached(self, account: str, name: str) -> Queue | None:
        """The queue as it was seen last.  None says nothing: ask :meth:`get`."""
        key = (account, name)
        queue = self._queues.get(key)
        if queue is not None:
            self._queues.move_to_end(key)
            caches.counts[_HIT] += 1
        return queue

    async def get(self, account: str, name: str) -> Queue:
        """The queue as the store has it now.  Raises :class:`QueueNotFound`."""
        forgotten = self._forgotten
        caches.counts[_LOOKUPS.miss] += 1
        try:
            queue = await self._store.get_queue(account, name)
        except QueueNotFound:
            self.invalidate(account, name)
            raise
        return self.remember(queue) if forgotten == self._forgotten else queue

    async def by_id(self, queue_id: int) -> Queue | None:
        """As :meth:`QueueStore.get_queue_by_id`."""
        return await self._store.get_queue_by_id(queue_id)

    def invalidate(self, account: str, name: str) -> None:
        """Forget what is cached of this name."""
        self._forgotten += 1
        self._queues.pop((account, name), None)

    def outdate(self, account: str, name: str, queue_id: int, version: int) -> None:
        """Forget what is cached of this name, and what is being read of it, if it may be older than this."""
        known = self._queues.get((account, name))
        if known is None or (known.queue_id, known.version) < (queue_id, version):
            self.invalidate(account, name)

    def forget(self, names: Iterable[tuple[str, str]] | None) -> None:
        """The same for queues by account and name; None: for all."""
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
        """As :meth:`QueueStore.create_queue`."""
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
        """As :meth:`QueueStore.update_queue`, for the version of ``queue``."""
        return self.remember(
            await self._store.update_queue(
                queue.queue_id, queue.version, now_ms=now_ms, attributes=attributes, tags=tags
            )
        )

    async def delete(self, queue: Queue, *, now_ms: int) -> Queue:
        """As :meth:`QueueStore.delete_queue`."""
        self.invalidate(queue.account, queue.name)
        deleted = await self._store.delete_queue(queue.queue_id, now_ms=now_ms)
        self.invalidate(queue.account, queue.name)
        return deleted

    async def begin_purge(self, queue: Queue, *, now_ms: int, interval_seconds: float) -> Queue:
        """As :meth:`QueueStore.begin_purge`."""
        return self.remember(
            await self._store.begin_purge(queue.queue_id, now_ms=now_ms, interval_seconds=interval_seconds)
        )

    async def list_queues(self, account: str, *, prefix: str = "", after: str = "", limit: int) -> list[str]:
        """As :meth:`QueueStore.list_queues`."""
        return await self._store.list_queues(account, prefix=prefix, after=after, limit=limit)

    async def dead_letter_sources(self, account: str, dlq_arn: str, *, after: str = "", limit: int) -> list[str]:
        """As :meth:`QueueStore.dead_letter_sources`."""
        return await self._store.dead_letter_sources(account, dlq_arn, after=after, limit=limit)

    def remember(self, queue: Queue) -> Queue:
        """Cache ``queue`` unless something newer is cached: answers may arrive out of order."""
        key = (queue.account, queue.name)
        known = self._queues.get(key)
        if known is None or (known.queue_id, known.version) <= (queue.queue_id, queue.version):
            self._queues[key] = queue
            self._queues.move_to_end(key)
            if len(self._queues) > self._limit:
                self._queues.popitem(last=False)
        return queue
