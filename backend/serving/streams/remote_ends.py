"""Offsets of topic partitions on other nodes, for the lag of the groups on this node."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from backend.api import BackendError
from backend.serving.background import LogThrottle, Slices
from backend.serving.peers import Peers
from backend.serving.shards import Shards
from backend.serving.stream_partition import OpenGroup
from backend.stream_commands import PartitionEnds, ReadTopicEnds

logger = logging.getLogger(__name__)

REFRESH_SECONDS: Final = 15.0
STALE_SECONDS: Final = 60.0
"""Time after which offsets that cannot be refreshed are forgotten, so that no lag counts them."""
TOPICS_AT_ONCE: Final = 50
"""Topics of one call, which may have a thousand partitions each."""


class RemoteEnds:
    """The offsets as of the last refresh.  While a node cannot be called, those of the last complete one stay for a
    while.
    """

    def __init__(self, shards: Shards, peers: Peers) -> None:
        self.by_partition: dict[tuple[bytes, int], PartitionEnds] = {}
        """By topic id and number of the partition: those in which a group of this node has a position."""
        self._shards = shards
        self._peers = peers
        self._log_throttle = LogThrottle()
        self._refreshed_at = 0.0

    async def run(self) -> None:
        """Refresh for as long as the node serves."""
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            await self.refresh()

    async def refresh(self) -> None:
        """Ask the other nodes, if a group has a position in a partition that this node does not serve."""
        now, slices = asyncio.get_running_loop().time(), Slices()
        positions = await self._remote_positions()
        if not positions or self._peers.remote is None:
            self.by_partition = {}
            return
        topics = sorted({topic_id for topic_id, _ in positions})
        found: dict[tuple[bytes, int], PartitionEnds] = {}
        try:
            for first in range(0, len(topics), TOPICS_AT_ONCE):
                asked = ReadTopicEnds("", topics[first : first + TOPICS_AT_ONCE])
                for ends in await self._peers.remote.call(asked):
                    if (ends.topic_id, ends.number) in positions:
                        found[ends.topic_id, ends.number] = ends
                    await slices.step()
        except BackendError as error:
            if self._log_throttle.should_log(None, str(error)):
                logger.warning("the lag of consumer groups is not up to date: %s", error)
            if now >= self._refreshed_at + STALE_SECONDS:
                self.by_partition = {}
            return
        self._log_throttle.forget(None)
        self.by_partition, self._refreshed_at = found, now

    async def _remote_positions(self) -> set[tuple[bytes, int]]:
        slices = Slices()
        here = set()
        groups = []
        for stream in list(self._shards.streams.values()):
            if isinstance(stream, OpenGroup):
                groups.append(stream)
            elif stream.fold.settings is not None:
                here.add((stream.fold.settings.topic_id, stream.fold.settings.number))
            await slices.step()
        positions = set()
        for group in groups:
            for topic_id, _, number, _ in list(group.fold.offsets()):
                if (topic_id, number) not in here:
                    positions.add((topic_id, number))
                await slices.step()
        return positions
