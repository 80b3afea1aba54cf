"""Metadata lookups of a node: settings of partitions, and targets of messages for other queues."""

from __future__ import annotations

from typing import Protocol

from backend.api import PartitionSettings, Target
from backend.partition_settings import PartitionDefaults, settings_of_partition, target_for_message
from metadata_service import arn as arns
from metadata_service.models import Queue
from metadata_service.store import QueueNotFound


class Resolver(Protocol):
    """Metadata lookups of a node."""

    async def settings(self, target: Target) -> PartitionSettings | None:
        """Return the settings of a queue's partition; None: the queue is deleted for good.

        A partition that no longer belongs to the queue gets settings with the state RETIRED.
        """

    async def target(self, arn: str, group: str | None = None) -> Target | None:
        """Return the target for a message to this queue, of this group if it has one; None: there is no such queue."""


class QueueReader(Protocol):
    """The reads of :class:`metadata_service.store.QueueStore` that a resolver needs."""

    async def get_queue(self, account: str, name: str) -> Queue: ...

    async def get_queue_by_id(self, queue_id: int) -> Queue | None: ...


class StoreResolver:
    """Implements :class:`Resolver` by reading the store, uncached: a node's decisions cannot be undone."""

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
