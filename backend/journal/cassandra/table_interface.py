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
=================== ============================ ===============================================================

The fence is the state of the log's own entry in the metadata, read at the same level as rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Protocol

ROWS_MOST: Final = 1 << 13
"""Maximum rows of a segment: a position has 13 bits for the row, and 11 for the record in the row."""
RECORDS_MOST: Final = 1 << 11
PAGE_BYTES: Final = 4 << 20
"""Maximum bytes per query, except for a row that is larger by itself."""
CHUNK_BYTES: Final = 64 << 10
PART_CHUNKS: Final = 512
"""Blocks of a file in one Cassandra partition: 32 MiB."""


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

    def put_row_everywhere(self, log_id: int, segment: int, row: int, data: bytes, done: Written) -> None:
        """Store one row, with :class:`Unanswered` unless every replica of the row has it."""

    def read_state(self, log_id: int, done: StateRead) -> None:
        """Read the state in the log's entry, as some quorum has it after this call."""

    def everyone(self) -> Tables:
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

    async def put_file(self, log_id: int, file: int, chunks: Sequence[bytes]) -> None:
        """Store a checkpoint file, split into blocks of :data:`CHUNK_BYTES`, only the last one shorter.

        If it raises, parts of it may be there: that number is used up.
        """

    async def get_bytes(self, log_id: int, file: int, offset: int, length: int) -> bytes:
        """Return a part of a file; less if it is not all there."""

    async def files(self, log_id: int) -> list[tuple[int, int]]:
        """Return (file, size in bytes) of a log's checkpoint files, ascending, including incomplete ones."""

    async def drop_file(self, log_id: int, file: int, size_bytes: int) -> None:
        """Delete a file of this size, and then its name."""


def chunks_of(offset: int, length: int) -> range:
    """Return the blocks that hold this part of a file."""
    return range(offset // CHUNK_BYTES, (offset + length + CHUNK_BYTES - 1) // CHUNK_BYTES)


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
