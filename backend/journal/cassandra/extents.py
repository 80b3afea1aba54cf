"""Extents on Cassandra: one table partition each, and a row for each block.

The key of a block is its offset in the extent.  An append only inserts rows behind those that exist, so acknowledged
bytes are never written again: a partial block at the end is continued by another row, not replaced.  Blocks end where a
multiple of :data:`EXTENT_BLOCK_BYTES` does, so a read knows the first place at which its first block can begin.

An append that was not acknowledged may leave any of its blocks, also later.  No reader goes behind the acknowledged
length, and the owner appends to that extent no more.  A deletion has a higher timestamp than all blocks, so the late
writes of a former owner do not bring an extent back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from typing import Final

from backend.api import Unavailable, shard_of
from backend.extent_ids import ExtentId
from backend.journal.cassandra.table_interface import (
    BLOCKS_PER_READ,
    EXTENT_BLOCK_BYTES,
    PAGE_BYTES,
    ExtentBlock,
    Tables,
    Unanswered,
)

END: Final = (1 << 31) - 1
"""Offset behind all blocks."""


class CassandraExtents:
    """Implements :class:`backend.journal.extents.ExtentStore`."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def append(self, extent: ExtentId, offset: int, data: bytes) -> None:
        try:
            if not offset:
                await self._tables.add_extent(shard_of(extent.partition), extent)
            await self._tables.put_blocks(extent, split_into_blocks(data, offset))
        except Unanswered as error:
            raise Unavailable(f"an extent cannot be written: {error}") from error

    async def read(self, extent: ExtentId, size_bytes: int, offset: int) -> bytes:
        try:
            data, is_whole = await _read(self._tables, extent, size_bytes, offset)
            if not is_whole:  # a single replica may have the rest
                tables = self._tables.at_consistency_all()
                data, _ = await _read(tables, extent, size_bytes, offset)
                if len(data) < size_bytes and await tables.get_blocks(extent, offset + size_bytes, END, 1):
                    data = data.ljust(size_bytes, b"\0")  # the extent does not end here: blocks are lost
        except Unanswered as error:
            raise Unavailable(f"an extent cannot be read: {error}") from error
        return data

    async def delete(self, extents: Sequence[ExtentId]) -> None:
        try:
            for extent in extents:
                await self._tables.drop_extent(shard_of(extent.partition), extent)
        except Unanswered as error:
            raise Unavailable(f"extents cannot be deleted: {error}") from error

    async def list_extents(self, shards: Collection[int]) -> AsyncIterator[list[ExtentId]]:
        for shard in sorted(shards):
            try:
                found = await self._tables.extents(shard)
            except Unanswered as error:
                raise Unavailable(f"the extents of shard {shard} cannot be listed: {error}") from error
            if found:
                yield found


def split_into_blocks(data: bytes, offset: int) -> list[ExtentBlock]:
    """Split data that is appended at an offset into blocks."""
    blocks: list[ExtentBlock] = []
    start = 0
    while start < len(data):
        end = start + EXTENT_BLOCK_BYTES - (offset + start) % EXTENT_BLOCK_BYTES
        blocks.append(ExtentBlock(offset + start, data[start:end]))
        start = end
    return blocks


async def _read(tables: Tables, extent: ExtentId, size_bytes: int, offset: int) -> tuple[bytes, bool]:
    """Return a range as far as it was found, and whether it is whole."""
    start, end = offset - offset % EXTENT_BLOCK_BYTES, offset + size_bytes
    blocks: list[ExtentBlock] = []
    while start < end:
        page_end = min(end, start + PAGE_BYTES)
        page = await tables.get_blocks(extent, start, page_end)
        blocks += page
        start = page[-1].start + 1 if len(page) == BLOCKS_PER_READ else page_end
    return _joined(blocks, size_bytes, offset)


def _joined(blocks: Iterable[ExtentBlock], size_bytes: int, offset: int) -> tuple[bytes, bool]:
    """Return a range up to the end of its last block, with zeros for missing blocks, and whether it is whole."""
    data = bytearray(size_bytes)
    covered = offset
    is_whole = True
    for block in blocks:
        end = block.start + len(block.data)
        if end <= covered:
            continue
        if block.start > covered:
            is_whole = False
        start = max(block.start, covered)
        end = min(end, offset + size_bytes)
        data[start - offset : end - offset] = memoryview(block.data)[start - block.start : end - block.start]
        covered = end
    del data[covered - offset :]
    return bytes(data), is_whole and covered == offset + size_bytes
