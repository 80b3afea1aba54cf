"""The cleaner: copies the few living messages of an old segment into the current one, so that the old one may go.

Messages die in another order than they were sent in: one that waits for days would keep its whole segment on the disk.
When less than a quarter of a segment lives, what lives is written again.  So the disk holds at most about four times
what lives, and each message is copied the more rarely the longer it lives.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from backend.api import StorageFull
from backend.engine.records import Copied
from backend.journal.pins import Pins
from backend.journal.rows import segment_key
from backend.partition import Partition

if TYPE_CHECKING:
    from backend.incarnation import Incarnation

LIVE_SHARE = 4
"""One quarter."""
BATCH = 64
BLOCKS_AT_ONCE = 16
MESSAGE_BYTES_LEAST = 192


class Cleaner:
    """Cleans segments of an incarnation."""

    def __init__(self, node: Incarnation, segment_bytes: int) -> None:
        self._node = node
        self._segment_bytes = segment_bytes

    async def clean(self, pins: Pins, log_id: int, segment: int, *, eager: bool) -> bool:
        """Copy what lives out of sparse segments below the given one; all of them when ``eager``, else one.

        Returns whether anything was copied.
        """
        copied = False
        for key in self._sparse(segment_key(log_id, segment)):
            try:
                await self._copy_out(key)
            except StorageFull:
                return copied
            copied = True
            if not eager:
                break
        return copied

    def _sparse(self, current: int) -> list[int]:
        """Keys of the segments to be cleaned, those with the fewest living messages first."""
        living: dict[int, int] = {}
        for partition in self._node.partitions.values():
            for key, count in partition.fold.segments.items():
                if key < current:
                    living[key] = living.get(key, 0) + count
        # How many messages a segment holds is not kept: the fullest one is the measure, at most what fits at all.
        fullest = min(max(living.values(), default=0), self._segment_bytes // MESSAGE_BYTES_LEAST)
        sparse = [key for key, count in living.items() if count * LIVE_SHARE < fullest]
        return sorted(sparse, key=living.__getitem__)

    async def _copy_out(self, key: int) -> None:
        for partition in list(self._node.partitions.values()):
            if key in partition.fold.segments:
                await self._copy_from(partition, key)
        await self._node.durable()

    async def _copy_from(self, partition: Partition, key: int) -> None:
        node, fold = self._node, partition.fold
        wanted: list[tuple[int, int]] = []
        for count, block in enumerate(list(fold.blocks.values()), 1):
            wanted += [
                (block.base + index, position)
                for index, position in enumerate(block.positions)
                if position >> 24 == key and position
            ]
            if count % BLOCKS_AT_ONCE == 0:
                await asyncio.sleep(0)
        for start in range(0, len(wanted), BATCH):
            chunk = wanted[start : start + BATCH]
            for number, (head, payload) in (await node.load(partition, chunk)).items():
                found = fold.locate(number)
                if found is None or found[0].positions[found[1]] >> 24 != key:
                    continue  # it died, or was copied, meanwhile
                copy = Copied(
                    head.number, head.sent_ms, head.deliver_ms, head.group, head.token, head.message_id, head.origin
                )
                node.write(partition, copy, node.clock(), payload)
            await node.durable()
