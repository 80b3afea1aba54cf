"""Compaction: copies the few live messages of an old segment into the current one, so that the old one can be deleted.

Messages are deleted in another order than they were sent: one that waits for days would keep its whole segment on the
disk.  When less than a quarter of a segment is live, the live messages are written again.  So the disk holds at most
about four times the live bytes, and a message is copied less often the longer it lives.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from backend.api import NotOwner, StorageFull
from backend.engine.records import Copied, Message, MessagePublished, PublicationCopied, subscription_of
from backend.journal.rows import segment_key
from backend.serving.background import PacedSlices, Slices
from backend.serving.partition import OpenPartition
from backend.serving.payload_cache import PayloadCache
from backend.serving.writer import PartitionWriter

LIVE_SHARE = 4
"""One quarter."""
BATCH = 64


class Compaction:
    """Compaction of an incarnation's segments.

    The number of live messages of a segment is known.  Their sizes are not kept, and are estimated from the queue's
    recent messages.
    """

    def __init__(
        self,
        partitions: Mapping[int, OpenPartition],
        writer: PartitionWriter,
        payload_cache: PayloadCache,
        segment_bytes: int,
    ) -> None:
        self._partitions = partitions
        self._writer = writer
        self._payload_cache = payload_cache
        self._segment_bytes = segment_bytes

    async def run(self, log_id: int, segment: int, *, eager: bool) -> bool:
        """Copy live messages out of sparse segments below the given one: out of all if ``eager``, otherwise out of one.

        Returns whether anything was copied.
        """
        copied = False
        for key in self._sparse(log_id, segment):
            try:
                await self._copy_out(key, Slices() if eager else PacedSlices())
            except StorageFull:
                return copied
            copied = True
            if not eager:
                break
        return copied

    def _sparse(self, log_id: int, segment: int) -> list[int]:
        """Return the keys of sparse segments, those with the fewest live bytes first."""
        current, end = segment_key(log_id, segment), segment_key(log_id + 1, 0)
        live: dict[int, float] = {}
        for partition in self._partitions.values():
            for key, count in partition.fold.segments.items():
                if not current <= key < end:
                    live[key] = live.get(key, 0.0) + count * partition.mean_bytes
        sparse = [key for key, size in live.items() if size * LIVE_SHARE < self._segment_bytes]
        return sorted(sparse, key=live.__getitem__)

    async def _copy_out(self, key: int, slices: Slices) -> None:
        for partition in list(self._partitions.values()):
            if key in partition.fold.segments:
                with contextlib.suppress(NotOwner):  # its next owner handles it
                    await self._copy_from(partition, key, slices)
        await self._writer.durable()

    async def _copy_from(self, partition: OpenPartition, key: int, slices: Slices) -> None:
        fold = partition.fold
        wanted: list[tuple[int, int]] = []
        for block in list(fold.blocks.values()):
            wanted += [
                (block.base + index, position)
                for index, position in enumerate(block.positions)
                if position >> 24 == key and position
            ]
            await slices.step()
        for start in range(0, len(wanted), BATCH):
            chunk = wanted[start : start + BATCH]
            for number, (head, payload) in (await self._payload_cache.load(partition, chunk)).items():
                await slices.step()
                partition.check_open()
                found = fold.locate(number)
                if found is None or found[0].positions[found[1]] >> 24 != key:
                    continue  # deleted, or copied, meanwhile
                self._writer.write(partition, _copy_of(head), partition.clock(), payload)
            await self._writer.durable()


def _copy_of(head: Message) -> Message:
    """Return the record that holds a message's head again."""
    kept = (head.number, head.sent_ms, head.deliver_ms, head.group, head.token, head.message_id, head.origin)
    if isinstance(head, MessagePublished):
        copied = PublicationCopied(*kept)
        copied.partitions, copied.queues, copied.subscriptions = head.partitions, head.queues, head.subscriptions
        copied.raw, copied.tokens, copied.also = head.raw, head.tokens, head.also
        return copied
    copy = Copied(*kept)
    subscription, copy.raw, copy.publication_number = subscription_of(head)
    copy.subscription = subscription or b""
    return copy
