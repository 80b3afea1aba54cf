"""Copies of the extents of streams in Cassandra, for a backup.

Every extent is copied as it is found after the moment of the backup.  What was appended after the moment, and extents
that no record of the backup names, do no harm: bytes behind an extent's recorded length are not read, and the first
start deletes the others.  The pin of a backup keeps the extents that its records name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import BinaryIO, Final

from backend.api import SHARDS
from backend.extent_ids import ExtentId
from backend.journal.cassandra.extents import END
from backend.journal.cassandra.table_interface import EXTENT_BLOCK_BYTES, PAGE_BYTES, ExtentBlock, Tables

BLOCKS_AT_ONCE: Final = PAGE_BYTES // EXTENT_BLOCK_BYTES


async def list_extents(tables: Tables) -> list[ExtentId]:
    """Return all extents of a cluster."""
    return [extent for shard in range(SHARDS) for extent in await tables.extents(shard)]


async def copy_extent(
    tables: Tables, extent: ExtentId, file: BinaryIO, before_read: Callable[[], Awaitable[None]]
) -> bool:
    """Copy an extent up to its last block; return whether it has any.

    Blocks that are nowhere become zeros, which no checksum accepts.  ``before_read`` is called before each query.
    """
    start = end = 0
    while True:
        await before_read()
        page = await tables.get_blocks(extent, start, END, BLOCKS_AT_ONCE)
        found = {block.start: block for block in page}
        if _has_gap(page, end):
            # A single replica may have the missing blocks.
            again = await tables.at_consistency_all().get_blocks(extent, start, page[-1].start + 1)
            found.update((block.start, block) for block in again)
        for _, block in sorted(found.items()):
            file.seek(block.start)
            file.write(block.data)
            end = max(end, block.start + len(block.data))
        if len(page) < BLOCKS_AT_ONCE:
            return end > 0
        start = page[-1].start + 1


def _has_gap(blocks: Iterable[ExtentBlock], end: int) -> bool:
    """Return whether bytes between these blocks, or between them and the end of those before, are missing."""
    for block in blocks:
        if block.start > end:
            return True
        end = max(end, block.start + len(block.data))
    return False
