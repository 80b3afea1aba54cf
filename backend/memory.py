"""The memory that a node uses for what it stores, and a bound on it.

Bodies stay on the disk, and what is kept of them in memory has a budget (:mod:`backend.windows`).  What grows with the
backlog is the rest: some 40 bytes for each message, more for each that is in flight, and the tokens of recent sends.
Beyond the bound no more messages are taken, by any queue; what is received and deleted makes room again.

Nobody counts at each command: it is added up once a second.  So the bound is exceeded by what is sent within a second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from backend.api import StorageFull
from backend.partition import Partition

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
AT_ONCE = 5_000
"""Blocks and partitions that are added up before others have a turn: about half a millisecond."""
AGAIN_PERCENT = 95
"""So much of the bound may be used when messages are taken again, so that it does not come and go each second."""


class Memory:
    """What the partitions of a node use."""

    def __init__(self, partitions: Mapping[int, Partition], most_bytes: int) -> None:
        """``most_bytes``: the bound; 0: there is none."""
        self._partitions = partitions
        self.most_bytes = most_bytes
        self.used_bytes = 0
        """When it was last added up."""
        self.full = False
        """Nothing may be sent."""

    def refusal(self) -> StorageFull:
        return StorageFull(f"what is stored takes {self.used_bytes} bytes of memory, and {self.most_bytes} are allowed")

    async def watch(self) -> None:
        """Look again and again; for as long as the node serves."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Add up, and see whether messages may be taken."""
        self.used_bytes = await self._added_up()
        if self.full:
            if self.used_bytes * 100 <= self.most_bytes * AGAIN_PERCENT:
                self.full = False
                logger.warning("messages are taken again: %d bytes of memory are used for them", self.used_bytes)
        elif self.used_bytes > self.most_bytes:
            self.full = True
            logger.error("no more messages are taken: %s", self.refusal())

    async def _added_up(self) -> int:
        used_bytes = looked_at = 0
        for partition in list(self._partitions.values()):
            used_bytes += partition.fold.memory_bytes()
            looked_at += 1 + len(partition.fold.blocks)
            if looked_at >= AT_ONCE:
                looked_at = 0
                await asyncio.sleep(0)
        return used_bytes
