"""Background collection of partitions whose topic was deleted.

A topic is deleted in the metadata first and in the backend afterwards.  A process that ends in between leaves
partitions that no call names any more.  So a node looks up the topic of each partition that it opens.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from backend.api import BackendError, NotOwner, Peer, Target
from backend.lookups import StreamResolver
from backend.serving.background import LogThrottle
from backend.serving.shards import Shards
from backend.serving.stream_partition import OpenStream, StreamPartition
from backend.stream_commands import ConfigureStream, DropStream
from metadata_service.store import StoreError

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 0.01
"""Pause between two partitions that are checked after a start."""
RETRY_SECONDS = 5.0


class DeletedTopics:
    """Collection of the partitions of deleted topics of one incarnation."""

    def __init__(self, shards: Shards, node: Peer, resolver: StreamResolver) -> None:
        self._shards = shards
        self._node = node
        self._resolver = resolver

    async def run(self, opened: Iterable[StreamPartition]) -> None:
        """Drop opened partitions whose topic is gone, and send the others their settings in case they changed.

        Partitions whose topic cannot be looked up now are tried again.
        """
        left = [stream for stream in opened if isinstance(stream, OpenStream) and not stream.fold.dropped]
        log_throttle = LogThrottle()
        while left:
            again = []
            for stream in left:
                try:
                    await self._check(stream)
                except NotOwner:
                    pass  # its next owner checks it
                except (StoreError, BackendError) as error:
                    again.append(stream)
                    if log_throttle.should_log(None, str(error)):
                        logger.warning("the topic of partition %d cannot be looked up: %s", stream.id, error)
                await asyncio.sleep(PAUSE_SECONDS)
            left = again
            if left:
                await asyncio.sleep(RETRY_SECONDS)

    async def _check(self, stream: OpenStream) -> None:
        known = stream.fold.settings
        assert known is not None
        target = Target(stream.id, known.stream_id)
        current = await self._resolver.stream_settings(target)
        if self._shards.streams.get(stream.id) is not stream or stream.fold.dropped:
            return
        if current is None:
            logger.info("partition %d is dropped: its topic was deleted", stream.id)
            await self._node.call(DropStream(target))
        elif current != known:
            await self._node.call(ConfigureStream(current))
