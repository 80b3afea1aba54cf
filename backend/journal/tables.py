"""The tables that a journal on Cassandra needs, and what is asked of whatever keeps them.

Everything here is written once and never changed; what is deleted never comes back.  So every statement may be sent
again, by anybody, at any time.  Reads and writes are at QUORUM (or all at LOCAL_QUORUM, fixed when the cluster is
made): a read that begins after a write was answered sees it.  A write that was not answered may be found, or not, or
found later.

=================== ============================ ====================================================================
table               key                          holds
=================== ============================ ====================================================================
journal             (log, segment), row          one row of a log: a group commit
journal_segments    log, segment                 that the segment may have rows; written before the first of them
checkpoints         (log, file, part), chunk     the bytes of a file of pieces, cut into chunks
checkpoint_files    log, file                    that the file may have chunks, and its size; written before them
=================== ============================ ====================================================================

The fence is the state of the log's own entry in the metadata, read at the same level as rows are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Protocol

ROWS_MOST: Final = 1 << 13
"""In a segment: a position has 13 bits for the row, and 11 for the record in the row."""
RECORDS_MOST: Final = 1 << 11
PAGE_BYTES: Final = 4 << 20
"""More is never asked for at once, but for a row that is larger by itself."""
CHUNK_BYTES: Final = 64 << 10
PART_CHUNKS: Final = 512
"""Chunks of a file that lie together: 32 MiB."""


class Unanswered(Exception):
    """There was no quorum, or no answer in time: whether a write took effect is not known.  It may be sent again."""


class LogFenced(Exception):
    """Somebody recovers this log, or has sealed it: what was not answered never will be."""


Written = Callable[[BaseException | None], None]
"""Called once, in the loop and never at once, with None, :class:`Unanswered`, or what will not pass by itself."""
StateRead = Callable[[str | BaseException | None], None]
"""As :data:`Written`, with the state that the log's entry has; None: there is no such entry."""


class Tables(Protocol):
    """Used from one event loop.  Coroutines raise :class:`Unanswered`, or what will not pass by itself."""

    def put_row(self, log_id: int, segment: int, row: int, data: bytes, done: Written) -> None:
        """Store one row of a log."""

    def put_row_everywhere(self, log_id: int, segment: int, row: int, data: bytes, done: Written) -> None:
        """The same, and :class:`Unanswered` unless every machine that is to have the row has it."""

    def read_state(self, log_id: int, done: StateRead) -> None:
        """The state in the log's entry, as some quorum has it after this call."""

    def everyone(self) -> Tables:
        """The same tables for reads that all machines have to answer which keep what is asked for, and not a quorum.

        For who misses something that has to be there: a machine that a quorum did not need may be the only one that has
        it.
        """

    async def row_sizes(self, log_id: int, segment: int) -> list[tuple[int, int]]:
        """(row, bytes) of the rows of a segment, ascending."""

    async def get_rows(self, log_id: int, segment: int, rows: Sequence[int]) -> dict[int, bytes]:
        """Those of these rows that there are.  The caller sees to it that they are not more than a page."""

    async def add_segment(self, log_id: int, segment: int) -> None:
        """Note that the segment may have rows from now on."""

    async def segments(self, log_id: int) -> list[int]:
        """Segments that were noted and not dropped, ascending."""

    async def drop_segment(self, log_id: int, segment: int) -> None:
        """Delete all rows of the segment, also those that arrive later, and then the note of it."""

    async def put_file(self, log_id: int, file: int, chunks: Sequence[bytes]) -> None:
        """Store a file of pieces, cut into chunks of :data:`CHUNK_BYTES`, only the last one shorter.

        If it raises, parts of it may be there: that number is used up.
        """

    async def get_bytes(self, log_id: int, file: int, offset: int, length: int) -> bytes:
        """That part of a file; less if it is not all there."""

    async def files(self, log_id: int) -> list[tuple[int, int]]:
        """(file, size in bytes) of the files of pieces that a log has, ascending; also such as are not whole."""

    async def drop_file(self, log_id: int, file: int, size_bytes: int) -> None:
        """Delete a file of this size, and then the note of it."""


def chunks_of(offset: int, length: int) -> range:
    """The chunks that this part of a file lies in."""
    return range(offset // CHUNK_BYTES, (offset + length + CHUNK_BYTES - 1) // CHUNK_BYTES)


def place(log_id: int, segment: int) -> str:
    """Where rows are, in words."""
    return f"journal, log {log_id}, segment {segment}"


async def put_row(tables: Tables, log_id: int, segment: int, row: int, data: bytes) -> None:
    """:meth:`Tables.put_row` for those who wait.  Raises what that says."""
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
    """Numbers of rows, each given with its bytes, as they are asked for together, in their order."""
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
