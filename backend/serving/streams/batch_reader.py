"""Reads of a stream's batches, which are in the log or in extents."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from backend.engine.records import UnknownRecord
from backend.journal.interface import Log
from backend.journal.rows import RecordView
from backend.journal.types import DamagedRecord
from backend.serving.stream_partition import OpenStream
from backend.serving.streams.extent_reader import ExtentReader
from backend.stream_commands import LARGEST_TIMESTAMP, FetchedBatch, TimestampFound
from backend.streams.commands import ExtentPlace, LogPlace
from backend.streams.records import Batches, decode_head

logger = logging.getLogger(__name__)


class BatchReader:
    """Reads batches of an incarnation's streams."""

    def __init__(self, log: Log, extents: ExtentReader) -> None:
        self._log = log
        self._extents = extents

    async def fetch(
        self, stream: OpenStream, offset: int, bytes_max: int, until: int, *, at_least_one: bool
    ) -> list[FetchedBatch]:
        """Return batches from the one with ``offset`` on that end at ``until`` at the latest, or are in an extent.

        Raises :class:`~backend.stream_api.StreamRefused` if the offset is not stored, or not any more when it was read;
        and :class:`~backend.api.Unavailable`.
        """
        found: list[FetchedBatch] = []
        left = bytes_max
        while offset < until:
            stream.check_open()
            if found and offset < stream.fold.log_start:
                break
            plan = stream.commands.fetch(offset, left, until, at_least_one=at_least_one and not found)
            if plan.extent is not None:
                part = await self._extents.read(plan.extent, left)
                if any(batch.payload is None for batch in part):
                    await self._check_ownership(stream)
                if plan.extent.offset < stream.fold.log_start:
                    continue  # it may have been deleted while it was read
                if (found or not at_least_one) and _size_of(part[:1]) > left:
                    break
            elif plan.batches:
                part = await self._from_log(stream, plan.batches)
                if not part:
                    continue  # they were moved into an extent, or deleted, while they were read
            else:
                break
            found += part
            offset = part[-1].end_offset
            left -= _size_of(part)
            if left <= 0:
                break
        return found

    async def _check_ownership(self, stream: OpenStream) -> None:
        """Check that batches which were not found are lost, and not deleted by the next owner of the shard.

        Raises :class:`~backend.api.NotOwner` and :class:`~backend.api.Unavailable`.
        """
        barrier = self._log.barrier()
        if barrier is not None:
            await barrier
        stream.check_open()

    async def _from_log(self, stream: OpenStream, places: Sequence[LogPlace]) -> list[FetchedBatch]:
        """Return batches of the log, without those that are not in the log any more and those behind them."""
        views = await self._log.read_many([place.position for place in places])
        found = []
        for place, view in zip(places, views, strict=True):
            record = batch_in(stream, place, view)
            if record is not None and isinstance(view, RecordView):
                found.append(
                    FetchedBatch(
                        record.base_offset,
                        record.record_count,
                        record.leader_epoch,
                        view.body,
                        record.append_ms,
                        record.max_timestamp,
                    )
                )
                continue
            if stream.closed or stream.fold.tail_base > place.base_offset:
                break
            logger.error("offset %d of partition %d is lost: %s", place.base_offset, stream.id, damage_in(view))
            epoch = stream.fold.epoch_at(place.base_offset)
            found.append(FetchedBatch(place.base_offset, place.end_offset - place.base_offset, epoch, None))
        return found

    async def search(self, stream: OpenStream, timestamp: int, from_offset: int, until: int) -> TimestampFound | None:
        """Return the first batch with at least this timestamp at or behind ``from_offset``; None: there is none."""
        while True:
            stream.check_open()
            if timestamp == LARGEST_TIMESTAMP:
                place = stream.commands.largest(until, from_offset)
            else:
                place = stream.commands.search(timestamp, until, from_offset)
            if place is None:
                return None
            batch = await self._first_in(stream, place.place, place.timestamp)
            if batch is not None and batch.end_offset > stream.fold.log_start:
                return TimestampFound(batch, place.timestamp, place.offset)
            if not _has_moved(stream, place.place):
                from_offset = place.place.end_offset  # the batch is lost, or lies below the offset

    async def _first_in(self, stream: OpenStream, place: LogPlace | ExtentPlace, timestamp: int) -> FetchedBatch | None:
        if isinstance(place, ExtentPlace):
            return await self._extents.search(place, timestamp)
        found = await self._from_log(stream, [place])
        return found[0] if found and found[0].payload is not None else None


def batch_in(stream: OpenStream, place: LogPlace, view: RecordView | DamagedRecord) -> Batches | None:
    """Return the head of the batch that was read at a place; None if another record, or damage, was read."""
    if not isinstance(view, RecordView) or view.partition != stream.id or view.kind != Batches.KIND:
        return None
    try:
        record = decode_head(view.kind, view.head)
    except UnknownRecord:
        return None
    assert isinstance(record, Batches)
    return record if (record.base_offset, record.end_offset) == (place.base_offset, place.end_offset) else None


def damage_in(view: RecordView | DamagedRecord) -> str:
    """Describe what was read in place of a batch."""
    return str(view) if isinstance(view, DamagedRecord) else "another record lies where it should be"


def _has_moved(stream: OpenStream, place: LogPlace | ExtentPlace) -> bool:
    """Return whether the batches of a place were moved, or deleted, since the place was determined."""
    if isinstance(place, LogPlace):
        return stream.fold.tail_base > place.base_offset
    return stream.fold.log_start > place.offset


def _size_of(batches: Sequence[FetchedBatch]) -> int:
    return sum(len(batch.payload) for batch in batches if batch.payload is not None)
