"""Metadata lookups of a node: settings of partitions, and targets of messages for other queues."""

from __future__ import annotations

from typing import Protocol

from backend.api import PartitionSettings, Target
from backend.stream_api import StreamSettings


class Resolver(Protocol):
    """Metadata lookups of a node."""

    async def settings(self, target: Target) -> PartitionSettings | None:
        """Return the settings of a queue's partition; None: the queue is deleted for good.

        A partition that no longer belongs to the queue gets settings with the state RETIRED.
        """

    async def target(self, arn: str, group: str | None = None) -> Target | None:
        """Return the target for a message to this queue, of this group if it has one; None: there is no such queue."""


class StreamResolver(Protocol):
    """Lookups of topics."""

    async def stream_settings(self, target: Target) -> StreamSettings | None:
        """Return the settings of a topic's partition; None: the topic is deleted for good.

        ``target`` names the topic's incarnation (``queue_id``) and the partition.
        """
