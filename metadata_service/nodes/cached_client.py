"""The frontend's view of the metadata: a store behind a cache.

Cache entries may be stale: callers name the cached queue's ``queue_id`` and ``version``, and the backend
refuses versions older than it knows.  :meth:`MetadataClient.get` then reads from the store.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping

from metadata_service.models import NewQueue, Queue
from metadata_service.nodes.change_feed import POLL_SECONDS
from metadata_service.nodes.named_cache import NamedCache
from metadata_service.store import QueueExists, QueueNotFound, QueueStore
from metadata_service.topics import is_hidden
from telemetry import caches

ABSENT_SECONDS = POLL_SECONDS
"""Time for which :meth:`MetadataClient.find` does not look again for a queue that did not exist: as long as other
processes' changes may take to be seen."""


class MetadataClient(NamedCache[Queue]):
    """Cache of queues by account and name.  Keeps the ``limit`` most recently used queues."""

    def __init__(self, store: QueueStore, *, limit: int = 10_000) -> None:
        super().__init__("queues", limit)
        self._store = store
        self._absent: OrderedDict[tuple[str, str], float] = OrderedDict()
        """Names of queues that did not exist, with the time until which that counts, in the order of these times."""
        self._created = 0
        """Number of queues created here: a read that overlaps a creation does not show absence."""

    def _id(self, record: Queue) -> int:
        return record.queue_id

    async def get(self, account: str, name: str) -> Queue:
        """Read the queue from the store.  Raises :class:`QueueNotFound`."""
        forgotten = self._forgotten
        caches.counts[self._miss] += 1
        try:
            queue = await self._store.get_queue(account, name)
        except QueueNotFound:
            self.invalidate(account, name)
            raise
        return self.remember(queue) if forgotten == self._forgotten else queue

    async def find(self, account: str, name: str) -> Queue | None:
        """The queue, which may be cached; None if there is none, or was none :data:`ABSENT_SECONDS` ago."""
        queue = self.cached(account, name)
        if queue is not None:
            return queue
        now, created = asyncio.get_running_loop().time(), self._created
        if self.known_absent(account, name):
            return None
        try:
            return await self.get(account, name)
        except QueueNotFound:
            if created == self._created:
                self._absent[account, name] = now + ABSENT_SECONDS
                self._absent.move_to_end((account, name))
                if len(self._absent) > self._limit:
                    self._absent.popitem(last=False)
            return None

    def known_absent(self, account: str, name: str) -> bool:
        """True if :meth:`find` knows that there is no queue with this name."""
        until = self._absent.get((account, name))
        return until is not None and asyncio.get_running_loop().time() < until

    async def by_id(self, queue_id: int) -> Queue | None:
        """Delegate to :meth:`QueueStore.get_queue_by_id`."""
        return await self._store.get_queue_by_id(queue_id)

    async def create(self, new: NewQueue) -> Queue:
        """Call :meth:`QueueStore.create_queue` and cache the queue."""
        try:
            created = await self._store.create_queue(new)
        except QueueExists as error:
            self._note_created(error.queue)
            raise
        self._note_created(created)
        return created

    def _note_created(self, queue: Queue) -> None:
        self._created += 1
        self._absent.pop((queue.account, queue.name), None)
        self.remember(queue)

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

    async def list_queue_tags(self, account: str, *, after: str = "", limit: int) -> list[tuple[str, dict[str, str]]]:
        """Delegate to :meth:`QueueStore.list_queue_tags`."""
        return await self._store.list_queue_tags(account, after=after, limit=limit)

    async def dead_letter_sources(self, account: str, dlq_arn: str, *, after: str = "", limit: int) -> list[str]:
        """Delegate to :meth:`QueueStore.dead_letter_sources`."""
        return await self._store.dead_letter_sources(account, dlq_arn, after=after, limit=limit)


class NamedByClients:
    """The queues of a :class:`MetadataClient` that clients can name: all but the hidden ones."""

    def __init__(self, metadata: MetadataClient) -> None:
        self._metadata = metadata

    def cached(self, account: str, name: str) -> Queue | None:
        """The queue as cached; None if it is not cached, or hidden."""
        return None if is_hidden(name) else self._metadata.cached(account, name)

    def known_absent(self, account: str, name: str) -> bool:
        """True for a hidden queue, and if :meth:`MetadataClient.known_absent` is."""
        return is_hidden(name) or self._metadata.known_absent(account, name)

    async def find(self, account: str, name: str) -> Queue | None:
        """The queue, which may be cached; None if there is none, or was none lately, or it is hidden."""
        return None if is_hidden(name) else await self._metadata.find(account, name)

    async def get(self, account: str, name: str) -> Queue:
        """Read the queue from the store.  Raises :class:`QueueNotFound`, also for a hidden queue."""
        if is_hidden(name):
            raise QueueNotFound
        return await self._metadata.get(account, name)
