"""Reads of batches in extents, by the extents' own indexes."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import OrderedDict
from typing import Final, NamedTuple

from backend.extent_ids import ExtentId, extent_name
from backend.journal.extents import ExtentStore
from backend.serving.background import LogThrottle
from backend.stream_api import NO_EPOCH
from backend.stream_commands import FetchedBatch
from backend.streams.commands import (
    ExtentPlace,
)
from backend.streams.extents import (
    FOOTER_BYTES,
    ExtentBatch,
    ExtentDamage,
    SparseIndex,
    decode_index,
    index_position,
    read_batches,
    scan,
)

logger = logging.getLogger(__name__)

INDEXES_KEPT: Final = 256
"""Indexes in memory, the least recently used are dropped; one has 24 bytes for each 64 KiB of its extent."""
UNLIMITED: Final = 1 << 62


class _Batches(NamedTuple):
    """Batches of a part of an extent, in order."""

    batches: list[FetchedBatch]
    position: int | None
    """Position to continue at, behind damage; None: the part was read to its end."""


class ExtentReader:
    """Reads extents of one incarnation."""

    def __init__(self, store: ExtentStore) -> None:
        self._store = store
        self._indexes: OrderedDict[tuple[ExtentId, int], SparseIndex] = OrderedDict()
        """By extent and length."""
        self._log_throttle = LogThrottle()

    async def read(self, place: ExtentPlace, bytes_max: int) -> list[FetchedBatch]:
        """Return batches from the place's offset on: about ``bytes_max`` of payloads, but at least one batch.

        Batches that cannot be read are returned without a payload.  Raises :class:`~backend.api.Unavailable`.
        """
        index = await self._index(place)
        start, end = index.range_of(place.offset, bytes_max)
        offset = place.offset
        while True:
            found = await self._read_range(place, index, start, end, offset, bytes_max)
            if found.batches or found.position is None:
                return found.batches or [_lost(offset, place.end_offset)]
            start = found.position
            _, end = index.range_of(index.offsets[bisect_left(index.positions, start)], bytes_max)

    async def _read_range(
        self, place: ExtentPlace, index: SparseIndex, start: int, end: int, offset: int, bytes_max: int
    ) -> _Batches:
        """Return the batches of a range of bytes that end behind ``offset``; gaps between them are lost batches."""
        buffer = await self._store.read(place.extent, end - start, start) if end > start else b""
        found: list[FetchedBatch] = []
        for item in read_batches(buffer, start, offset, bytes_max):
            if isinstance(item, ExtentDamage):
                self._report(place.extent, item)
                if not item.record_count:
                    return _Batches(found, index.position_after(item.position))
                base, batch = item.base_offset, _lost(item.base_offset, item.base_offset + item.record_count)
            else:
                base, batch = item.record.base_offset, _fetched(item)
            if base > offset:
                found.append(_lost(offset, base))
            found.append(batch)
            offset = batch.end_offset
        return _Batches(found, None)

    async def search(self, place: ExtentPlace, timestamp: int) -> FetchedBatch | None:
        """Return the first readable batch at or behind the place's offset whose largest timestamp is at least this
        one.
        """
        index = await self._index(place)
        start: int | None = index.position_by_time(timestamp)
        while start is not None and start < index.end_position:
            following = index.position_after(start)
            # An entry's position is the start of a batch, so the range holds whole batches.
            end = following if following is not None else index.end_position
            buffer = await self._store.read(place.extent, end - start, start)
            for item in read_batches(buffer, start, place.offset, UNLIMITED):
                if isinstance(item, ExtentDamage):
                    self._report(place.extent, item)
                elif item.payload is not None and item.record.max_timestamp >= timestamp:
                    return _fetched(item)
            start = following
        return None

    async def _index(self, place: ExtentPlace) -> SparseIndex:
        key = (place.extent, place.length)
        index = self._indexes.get(key)
        if index is None:
            index = await self._load_index(place.extent, place.length)
            self._indexes[key] = index
            if len(self._indexes) > INDEXES_KEPT:
                self._indexes.popitem(last=False)
        else:
            self._indexes.move_to_end(key)
        return index

    async def _load_index(self, extent: ExtentId, length: int) -> SparseIndex:
        footer = await self._store.read(extent, FOOTER_BYTES, length - FOOTER_BYTES)
        position = index_position(footer)
        if position is not None and position < length:
            index = decode_index(await self._store.read(extent, length - position, position))
            if index is not None:
                return index
        report = scan(await self._store.read(extent, length, 0), extent, length)
        for damage in report.damage:
            self._report(extent, damage)
        return report.sparse_index

    def _report(self, extent: ExtentId, damage: ExtentDamage) -> None:
        name = extent_name(extent)
        if self._log_throttle.should_log((name, damage.position), damage.what):
            logger.error("extent %s is damaged at %d: %s", name, damage.position, damage.what)


def _fetched(batch: ExtentBatch) -> FetchedBatch:
    record = batch.record
    return FetchedBatch(
        record.base_offset,
        record.record_count,
        record.leader_epoch,
        batch.payload,
        record.append_ms,
        record.max_timestamp,
    )


def _lost(offset: int, end_offset: int) -> FetchedBatch:
    return FetchedBatch(offset, end_offset - offset, NO_EPOCH, None)
