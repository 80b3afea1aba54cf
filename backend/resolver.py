"""Metadata lookups of a node, by reads of the store."""

from __future__ import annotations

from typing import Protocol

from backend.api import PartitionSettings, Target
from backend.partition_settings import (
    PartitionDefaults,
    settings_of_partition,
    settings_of_stream_partition,
    target_for_message,
)
from backend.stream_api import StreamSettings
from metadata_service import arn as arns
from metadata_service.models import Queue
from metadata_service.store import QueueNotFound
from metadata_service.streams import Stream


class QueueReader(Protocol):
    """The reads of :class:`metadata_service.store.QueueStore` that a resolver needs."""

    async def get_queue(self, account: str, name: str) -> Queue: ...

    async def get_queue_by_id(self, queue_id: int) -> Queue | None: ...


class StoreResolver:
    """Implements :class:`backend.lookups.Resolver` by reading the store, uncached.

    A node's decisions cannot be undone.
    """

    def __init__(self, store: QueueReader, defaults: PartitionDefaults) -> None:
        self._store = store
        self._defaults = defaults

    async def settings(self, target: Target) -> PartitionSettings | None:
        queue = await self._store.get_queue_by_id(target.queue_id)
        return None if queue is None else settings_of_partition(queue, target.partition, self._defaults)

    async def target(self, arn: str, group: str | None = None) -> Target | None:
        parsed = arns.parse(arn)
        if parsed is None or parsed.region != self._defaults.region:
            return None
        try:
            queue = await self._store.get_queue(parsed.account, parsed.name)
        except QueueNotFound:
            return None
        return target_for_message(queue, group)


class StreamReader(Protocol):
    """The read of :class:`metadata_service.store.StreamStore` that a resolver needs."""

    async def get_stream_by_id(self, stream_id: int) -> Stream | None: ...


class StoreStreamResolver:
    """Implements :class:`backend.lookups.StreamResolver` by reading the store, uncached."""

    def __init__(self, store: StreamReader) -> None:
        self._store = store

    async def stream_settings(self, target: Target) -> StreamSettings | None:
        stream = await self._store.get_stream_by_id(target.queue_id)
        if stream is None or target.partition not in stream.partition_ids:
            return None
        return settings_of_stream_partition(stream, stream.partition_ids.index(target.partition))
