"""Import of tokens from other partitions, after a queue was split or one of its partitions began to drain.

A partition that journals a map by which it takes over tokens from other partitions requests these tokens, from any
node, and journals them.  The source must know that map first: from then on it accepts no call with an older map, so its
handover is complete.  Until the destination has everything, sends with tokens wait here.

No coordinator is needed: the import begins with the first call that brings the new map, and after a crash the
partition's owner continues it.  Journaling a token twice changes nothing.
"""

from __future__ import annotations

import asyncio
import logging

from backend.api import (
    HANDOVER_PARTS,
    BackendError,
    Handover,
    NotOwner,
    PartitionGone,
    PartitionSettings,
    PartitionUnknown,
    Peer,
    SettingsStale,
    StorageFull,
    Target,
    Unavailable,
)
from backend.engine import records
from backend.serving.background import LogThrottle
from backend.serving.host import PartitionHost
from backend.serving.partition import OpenPartition
from backend.serving.shards import shard_of
from metadata_service.store import StoreError

logger = logging.getLogger(__name__)

RETRY_SECONDS = 0.2
WAIT_SECONDS = 5.0
"""Maximum time that a send waits for tokens."""


class TokenImport:
    """Token import, with at most one task for each partition that waits for tokens."""

    def __init__(self, host: PartitionHost) -> None:
        self._node = host
        self._log_throttle = LogThrottle()

    def wake(self, partition: OpenPartition) -> None:
        """Start the import if the partition waits for tokens."""
        if partition.fold.awaiting and partition.token_import_task is None:
            partition.token_import_task = self._node.tasks.start(
                self._import_tokens(partition), f"the tokens for {partition.id}"
            )

    async def wait(self, partition: OpenPartition) -> bool:
        """Wait for the import; return whether the tokens are here, or so many have arrived that a retry may succeed."""
        self.wake(partition)
        if partition.token_import_task is None:
            return True
        done, _ = await asyncio.wait([partition.token_import_task], timeout=WAIT_SECONDS)
        return bool(done) and not partition.fold.awaiting

    async def _import_tokens(self, partition: OpenPartition) -> None:
        try:
            while partition.fold.awaiting and not partition.fold.dropped:
                stuck = False
                for source in partition.fold.awaiting:
                    try:
                        await self._adopt_from(partition, source)
                        self._log_throttle.settled((partition.id, source))
                    # The queue of one of the two was deleted, or this is an older map.
                    except PartitionGone:
                        if not await self._still(partition, source):
                            return
                        stuck = True
                    # A journal without a quorum recovers, or this task ends.
                    except (StorageFull, Unavailable):
                        stuck = True
                    except (BackendError, StoreError) as error:
                        if self._log_throttle.should_log((partition.id, source), str(error)):
                            logger.warning("partition %d awaits the tokens of %d: %s", partition.id, source, error)
                        stuck = True
                if stuck:
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            partition.token_import_task = None

    async def _still(self, partition: OpenPartition, source: int) -> bool:
        """Return whether the queue, whose tokens the partition waits for, still exists."""
        settings = partition.fold.settings
        assert settings is not None
        return await self._node.resolver.settings(Target(source, settings.queue_id)) is not None

    async def _adopt_from(self, partition: OpenPartition, source: int) -> None:
        """Fetch and journal all tokens of one source partition."""
        node, settings = self._node, partition.fold.settings
        assert settings is not None
        assert settings.routing is not None
        there = self._owner(source)
        target = Target(source, settings.queue_id, settings.version)
        for part in range(HANDOVER_PARTS):
            handover = await self._ask(there, target, settings.routing.slot, part)
            await node.write_all(partition, lambda now, handover=handover: partition.queue.adopt(handover, now))  # type: ignore[misc]
        done = records.HandedOver(source, settings.map_version, handover.next_number)
        await node.write_all(partition, lambda _: [done] if _same_map(partition, settings) else [])

    def _owner(self, source: int) -> Peer:
        node = self._node
        if node.shards.owns(source):
            return node
        if node.elsewhere is None:
            raise NotOwner(shard_of(source), node.shards.owners.get(shard_of(source)))
        return node.elsewhere

    async def _ask(self, there: Peer, target: Target, slot: int, part: int) -> Handover:
        """Request a part; configure the source partition first if it does not know the map."""
        try:
            return await there.hand_over(target, slot, part)
        except (PartitionUnknown, SettingsStale):
            settings = await self._node.resolver.settings(target)
            if settings is None:
                raise PartitionGone(f"the queue of partition {target.partition} is deleted") from None
            await there.configure(settings)
            return await there.hand_over(target, slot, part)


def _same_map(partition: OpenPartition, settings: PartitionSettings) -> bool:
    now = partition.fold.settings
    return now is not None and now.map_version == settings.map_version
