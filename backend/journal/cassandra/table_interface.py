"""The tables of a journal on Cassandra, and the interface to their storage.

Everything here is written once and never changed, and a deletion is final.  So every statement may be repeated, by any
process, at any time.  Reads and writes are at QUORUM (or all at LOCAL_QUORUM, fixed when the cluster is created): a
read that begins after a write was answered finds it.  A write without an answer may be found, or not, or found later.

=================== ============================ ===============================================================
table               key                          content
=================== ============================ ===============================================================
journal             (log, segment), row          one row of a log: a group commit
journal_segments    log, segment                 the segment may have rows; written before the first of them
checkpoints         (log, file, part), chunk     the bytes of a checkpoint file, in blocks of 64 KiB
checkpoint_files    log, file                    the file may have blocks, and its size; written before them
stream_chunks       (extent), start              the bytes of an extent of a stream, in blocks of at most 256 KiB
stream_extents      shard, extent                the extent may have blocks; written before the first of them
=================== ============================ ===============================================================

The key of an extent is its partition, epoch and number.

The fence is the state of the log's own entry in the metadata, read at the same level as rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from backend.extent_ids import ExtentId

ROWS_MAX: Final = 1 << 13
"""Maximum rows of a segment: a position has 13 bits for the row, and 11 for the record in the row."""
RECORDS_MAX: Final = 1 << 11
PAGE_BYTES: Final = 4 << 20
"""Maximum bytes per query, except for a row that is larger by itself."""
BLOCK_BYTES: Final = 64 << 10
PART_BLOCKS: Final = 512
"""Blocks of a file in one Cassandra partition: 32 MiB."""
EXTENT_BLOCK_BYTES: Final = 256 << 10
BLOCKS_PER_READ: Final = 1000
"""Maximum number of blocks of an extent in one query: appends of few bytes make small blocks."""


class ExtentBlock(NamedTuple):
    """Bytes of an extent that were appended together."""

    start: int
    """Offset of the first byte in the extent."""
    data: bytes


class Unanswered(Exception):
    """There was no quorum, or no answer in time: it is unknown whether a write took effect.  It may be repeated."""


class LogFenced(Exception):
    """Another process recovers this log, or has sealed it: rows not answered yet never will be."""


Written = Callable[[BaseException | None], None]
"""Called once, in the loop and never at once, with None, :class:`Unanswered`, or a permanent error."""
StateRead = Callable[[str | BaseException | None], None]
"""Called like :data:`Written`, with the state in the log's entry; None: there is no such entry."""


class Tables(Protocol):
    """The tables.  Used from one event loop.  Coroutines raise :class:`Unanswered`, or a permanent error."""

    def put_row(self, log_id: int, segment: int, row: int, data: bytes, done: Written) -> None:
        """Store one row of a log."""

    def put_row_at_all(self, log_id: int, segment: int, row: int, data: bytes, done: Written) -> None:
        """Store one row, with :class:`Unanswered` unless every replica of the row has it."""

    def read_state(self, log_id: int, done: StateRead) -> None:
        """Read the state in the log's entry, as some quorum has it after this call."""

    def at_consistency_all(self) -> Tables:
        """Return the same tables for reads at consistency ALL instead of a quorum.

        For callers that miss a row which has to exist: a replica outside the quorum may be the only one that has it.
        """

    async def row_sizes(self, log_id: int, segment: int) -> list[tuple[int, int]]:
        """Return (row, bytes) of the rows of a segment, ascending."""

    async def get_rows(self, log_id: int, segment: int, rows: Sequence[int]) -> dict[int, bytes]:
        """Return those of these rows that exist.  The caller ensures that they are at most a page."""

    async def add_segment(self, log_id: int, segment: int) -> None:
        """Record that the segment may have rows from now on."""

    async def segments(self, log_id: int) -> list[int]:
        """Return the segments that were added and not dropped, ascending."""

    async def drop_segment(self, log_id: int, segment: int) -> None:
        """Delete all rows of the segment, also those that arrive later, and then its name."""

    async def put_file(self, log_id: int, file: int, blocks: Sequence[bytes]) -> None:
        """Store a checkpoint file, split into blocks of :data:`BLOCK_BYTES`, only the last one shorter.

        If it raises, parts of it may be there: that number is used up.
        """

    async def get_bytes(self, log_id: int, file: int, offset: int, length: int) -> bytes:
        """Return a part of a file; less if it is not all there."""

    async def files(self, log_id: int) -> list[tuple[int, int]]:
        """Return (file, size in bytes) of a log's checkpoint files, ascending, including incomplete ones."""

    async def drop_file(self, log_id: int, file: int, size_bytes: int) -> None:
        """Delete a file of this size, and then its name."""

    async def add_extent(self, shard: int, extent: ExtentId) -> None:
        """Record that the extent, of a partition of this shard, may have blocks from now on."""

    async def put_blocks(self, extent: ExtentId, blocks: Sequence[ExtentBlock]) -> None:
        """Store blocks of an extent.  If it raises, any of them may be there, or appear later."""

    async def get_blocks(
        self, extent: ExtentId, start: int, end: int, blocks_max: int = BLOCKS_PER_READ
    ) -> list[ExtentBlock]:
        """Return the first blocks of an extent that begin in a range, ascending.

        The caller ensures that they are at most about a page.
        """

    async def extents(self, shard: int) -> list[ExtentId]:
        """Return the extents that were added and not dropped, ascending."""

    async def drop_extent(self, shard: int, extent: ExtentId) -> None:
        """Delete all blocks of the extent, also those that arrive later, and then its name."""


def blocks_of(offset: int, length: int) -> range:
    """Return the blocks that hold this part of a file."""
    return range(offset // BLOCK_BYTES, (offset + length + BLOCK_BYTES - 1) // BLOCK_BYTES)


def place(log_id: int, segment: int) -> str:
    """Return the location of rows as text."""
    return f"journal, log {log_id}, segment {segment}"


async def put_row(tables: Tables, log_id: int, segment: int, row: int, data: bytes) -> None:
    """Store a row by :meth:`Tables.put_row` and wait for the result.  Raises its error."""
    stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: BaseException | None) -> None:
        if stored.done():
            return
        if error is None:
            stored.set_result(None)
        else:
            stored.set_exception(error)

    tables.put_row(log_id, segment, row, data, done)
    await stored


def pages(rows: Iterable[tuple[int, int]]) -> Iterator[list[int]]:
    """Group rows, given with their sizes, into queries; yield the numbers of each, in order."""
    page: list[int] = []
    page_bytes = 0
    for number, size_bytes in rows:
        if page and page_bytes + size_bytes > PAGE_BYTES:
            yield page
            page, page_bytes = [], 0
        page.append(number)
        page_bytes += size_bytes
    if page:
        yield page
