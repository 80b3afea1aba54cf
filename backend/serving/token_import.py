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
from functools import partial

from backend.api import (
    HANDOVER_PARTS,
    BackendError,
    Configure,
    Handover,
    HandOverTokens,
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
from backend.lookups import Resolver
from backend.serving.background import LogThrottle, Tasks
from backend.serving.partition import OpenPartition
from backend.serving.peers import Peers
from backend.serving.writer import PartitionWriter
from metadata_service.store import StoreError

logger = logging.getLogger(__name__)

RETRY_SECONDS = 0.2
WAIT_SECONDS = 5.0
"""Maximum time that a send waits for tokens."""


class TokenImport:
    """Token import, with at most one task for each partition that waits for tokens."""

    def __init__(self, writer: PartitionWriter, peers: Peers, resolver: Resolver, tasks: Tasks) -> None:
        self._writer = writer
        self._peers = peers
        self._resolver = resolver
        self._tasks = tasks
        self._log_throttle = LogThrottle()

    def wake(self, partition: OpenPartition) -> None:
        """Start the import if the partition waits for tokens."""
        if partition.fold.pending_token_sources and partition.token_import_task is None:
            partition.token_import_task = self._tasks.start(
                self._import_tokens(partition), f"the tokens for {partition.id}"
            )

    async def wait(self, partition: OpenPartition) -> bool:
        """Wait for the import; return whether all tokens are here, or enough that a retry may succeed."""
        self.wake(partition)
        if partition.token_import_task is None:
            return True
        done, _ = await asyncio.wait([partition.token_import_task], timeout=WAIT_SECONDS)
        return bool(done) and not partition.fold.pending_token_sources

    async def _import_tokens(self, partition: OpenPartition) -> None:
        try:
            while partition.fold.pending_token_sources and not partition.fold.dropped:
                stuck = False
                for source in partition.fold.pending_token_sources:
                    try:
                        await self._import_from(partition, source)
                        self._log_throttle.forget((partition.id, source))
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
                            logger.warning("partition %d waits for the tokens of %d: %s", partition.id, source, error)
                        stuck = True
                if stuck:
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            partition.token_import_task = None

    async def _still(self, partition: OpenPartition, source: int) -> bool:
        """Return whether the queue, whose tokens the partition waits for, still exists."""
        settings = partition.fold.settings
        assert settings is not None
        return await self._resolver.settings(Target(source, settings.queue_id)) is not None

    async def _import_from(self, partition: OpenPartition, source: int) -> None:
        """Fetch and journal all tokens of one source partition."""
        settings = partition.fold.settings
        assert settings is not None
        assert settings.routing is not None
        there = self._peers.owner_of(source)
        target = Target(source, settings.queue_id, settings.version)
        for part in range(HANDOVER_PARTS):
            handover = await self._ask(there, HandOverTokens(target, settings.routing.slot, part))
            await self._writer.write_all(partition, partial(partition.queue.import_tokens, handover))
        done = records.HandedOver(source, settings.map_version, handover.next_number)
        await self._writer.write_all(partition, lambda _: [done] if _same_map(partition, settings) else [])

    async def _ask(self, there: Peer, command: HandOverTokens) -> Handover:
        """Request a part; configure the source partition first if it does not know the map."""
        try:
            return await there.call(command)
        except (PartitionUnknown, SettingsStale):
            settings = await self._resolver.settings(command.target)
            if settings is None:
                raise PartitionGone(f"the queue of partition {command.partition} is deleted") from None
            await there.call(Configure(settings))
            return await there.call(command)


def _same_map(partition: OpenPartition, settings: PartitionSettings) -> bool:
    now = partition.fold.settings
    return now is not None and now.map_version == settings.map_version
