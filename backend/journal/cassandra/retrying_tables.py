"""Tables with retries, for callers that can wait: all operations may be repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import random
from typing import Final, TypeVar

from backend.extent_ids import ExtentId
from backend.journal.cassandra.table_interface import (
    BLOCKS_PER_READ,
    ExtentBlock,
    StateRead,
    Tables,
    Unanswered,
    Written,
    put_row,
)

T = TypeVar("T")

TRIES: Final = 6
SECONDS_FIRST: Final = 0.05
SECONDS_MAX: Final = 1.0


def pause(tries: int) -> float:
    """Return the seconds before the next try: exponentially growing, with jitter."""
    return min(SECONDS_MAX, SECONDS_FIRST * (1 << min(tries - 1, 10))) * (0.5 + random() / 2)


class RetryingTables:
    """Tables that raise :class:`Unanswered` only after several failed tries.  Implements :class:`Tables`.

    Writes of a log's own rows and reads of its fence are passed through: for these the log itself decides.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def _again(self, ask: Callable[[], Awaitable[T]]) -> T:
        tries = 0
        while True:
            try:
                return await ask()
            except Unanswered:
                tries += 1
                if tries == TRIES:
                    raise
            await asyncio.sleep(pause(tries))

    def put_row(self, log_id: int, segment: int, row: int, data: bytes, done: Written) -> None:
        self._tables.put_row(log_id, segment, row, data, done)

    def put_row_at_all(self, log_id: int, segment: int, row: int, data: bytes, done: Written) -> None:
        self._tables.put_row_at_all(log_id, segment, row, data, done)

    async def rewrite(self, log_id: int, segment: int, row: int, data: bytes) -> None:
        """Store a row of a log that another process has written."""
        await self._again(lambda: put_row(self._tables, log_id, segment, row, data))

    def read_state(self, log_id: int, done: StateRead) -> None:
        self._tables.read_state(log_id, done)

    def at_consistency_all(self) -> RetryingTables:
        return RetryingTables(self._tables.at_consistency_all())

    async def row_sizes(self, log_id: int, segment: int) -> list[tuple[int, int]]:
        return await self._again(lambda: self._tables.row_sizes(log_id, segment))

    async def get_rows(self, log_id: int, segment: int, rows: Sequence[int]) -> dict[int, bytes]:
        return await self._again(lambda: self._tables.get_rows(log_id, segment, rows))

    async def add_segment(self, log_id: int, segment: int) -> None:
        await self._again(lambda: self._tables.add_segment(log_id, segment))

    async def segments(self, log_id: int) -> list[int]:
        return await self._again(lambda: self._tables.segments(log_id))

    async def drop_segment(self, log_id: int, segment: int) -> None:
        await self._again(lambda: self._tables.drop_segment(log_id, segment))

    async def put_file(self, log_id: int, file: int, blocks: Sequence[bytes]) -> None:
        await self._again(lambda: self._tables.put_file(log_id, file, blocks))

    async def get_bytes(self, log_id: int, file: int, offset: int, length: int) -> bytes:
        return await self._again(lambda: self._tables.get_bytes(log_id, file, offset, length))

    async def files(self, log_id: int) -> list[tuple[int, int]]:
        return await self._again(lambda: self._tables.files(log_id))

    async def drop_file(self, log_id: int, file: int, size_bytes: int) -> None:
        await self._again(lambda: self._tables.drop_file(log_id, file, size_bytes))

    async def add_extent(self, shard: int, extent: ExtentId) -> None:
        await self._again(lambda: self._tables.add_extent(shard, extent))

    async def put_blocks(self, extent: ExtentId, blocks: Sequence[ExtentBlock]) -> None:
        await self._again(lambda: self._tables.put_blocks(extent, blocks))

    async def get_blocks(
        self, extent: ExtentId, start: int, end: int, blocks_max: int = BLOCKS_PER_READ
    ) -> list[ExtentBlock]:
        return await self._again(lambda: self._tables.get_blocks(extent, start, end, blocks_max))

    async def extents(self, shard: int) -> list[ExtentId]:
        return await self._again(lambda: self._tables.extents(shard))

    async def drop_extent(self, shard: int, extent: ExtentId) -> None:
        await self._again(lambda: self._tables.drop_extent(shard, extent))
