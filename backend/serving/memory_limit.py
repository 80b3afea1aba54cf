"""Limit on the memory that a node uses for stored messages.

Payloads stay on the disk, and the payload cache has a budget (:mod:`backend.serving.payload_cache`).  The rest grows
with the backlog: some 40 bytes for each message, more for each one in flight, and the tokens of recent sends.  Above
the limit all sends are refused; receives and deletes free memory.

Bytes are not counted by commands, but summed once a second.  So the sends of up to one second can exceed the limit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from backend.api import StorageFull
from backend.serving.partition import OpenPartition
from backend.serving.stream_partition import StreamPartition

logger = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
AT_ONCE = 5_000
"""Blocks and partitions summed before other tasks get a turn: about half a millisecond."""
RESUME_PERCENT = 95
"""Percentage of the limit at which sends are accepted again, so that the state does not alternate every second."""


class Memory:
    """Memory used by the partitions of a node."""

    def __init__(
        self,
        partitions: Mapping[int, OpenPartition],
        limit_bytes: int,
        streams: Mapping[int, StreamPartition],
    ) -> None:
        """``limit_bytes``: the limit; 0: no limit."""
        self._partitions = partitions
        self._streams = streams
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        """Memory used, as of the last sum."""
        self.full = False
        """Sends are refused."""

    def refusal(self) -> StorageFull:
        return StorageFull(f"stored messages use {self.used_bytes} bytes of memory, the limit is {self.limit_bytes}")

    async def watch(self) -> None:
        """Sum and check at intervals, for as long as the node serves."""
        while True:
            await self.refresh()
            await asyncio.sleep(CHECK_SECONDS)

    async def refresh(self) -> None:
        """Sum the used memory, and update :attr:`full`."""
        self.used_bytes = await self._added_up()
        if self.full:
            if self.used_bytes * 100 <= self.limit_bytes * RESUME_PERCENT:
                self.full = False
                logger.warning("sends are accepted again: stored messages use %d bytes of memory", self.used_bytes)
        elif self.used_bytes > self.limit_bytes:
            self.full = True
            logger.error("sends are refused: %s", self.refusal())

    async def _added_up(self) -> int:
        used_bytes = scanned = 0
        for partition in list(self._partitions.values()):
            used_bytes += partition.fold.memory_bytes()
            scanned += 1 + len(partition.fold.blocks)
            if scanned >= AT_ONCE:
                scanned = 0
                await asyncio.sleep(0)
        for stream in list(self._streams.values()):
            used_bytes += stream.fold.memory_bytes()
            scanned += 1
            if scanned >= AT_ONCE:
                scanned = 0
                await asyncio.sleep(0)
        return used_bytes
