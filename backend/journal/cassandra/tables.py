"""The journal's tables on a real Cassandra, through its official driver.

The driver has its own threads.  Their results are passed to the loop in batches, with one wake-up.  All statements are
idempotent (:mod:`backend.journal.cassandra.table_interface`), so the driver may repeat one, and sends it to another
node when the first has not answered for a moment.

Rows are written with timestamp 1 and deleted with timestamp 2, so that no clock can shadow a write or keep a deleted
row.  Nothing has a time to live.  Whole partitions are deleted, so that no read scans tombstones; these are kept for
:data:`GC_GRACE_SECONDS`, longer than any write is in transit (hints are kept for three hours).
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from itertools import islice
from typing import Any, Final, Self

from cassandra import ConsistencyLevel
from cassandra.query import PreparedStatement

from backend.extent_ids import ExtentId
from backend.journal.cassandra.table_interface import (
    BLOCK_BYTES,
    BLOCKS_PER_READ,
    PART_BLOCKS,
    ExtentBlock,
    StateRead,
    Unanswered,
    Written,
    blocks_of,
)
from metadata_service.cassandra.driver import connection as cassandra_connection
from metadata_service.cassandra.driver.connection import HELD, CassandraConnection, FenceQuery, Rows
from metadata_service.cassandra.schema.part import Part
from metadata_service.schema import Schema, Step
from metadata_service.store import StoreError

logger = logging.getLogger(__name__)

GC_GRACE_SECONDS: Final = 86_400
WRITES_AT_ONCE: Final = 8
"""Blocks of a checkpoint file written at a time."""
EXTENT_WRITES_AT_ONCE: Final = 4
"""Blocks of an extent written at a time: a mebibyte, so that the rows of group commits wait little behind them."""
NAMES_MAX: Final = 5000
"""Maximum number of names in one query."""
HELD_POLL_SECONDS: Final = 0.02
"""Interval at which the state of a held log is read."""
HELD_SECONDS_MAX: Final = 1.2
"""Duration after which a hold is ended, because its holder no longer needs it, or has died."""

_ID = " WITH id = "


def _complete(connection: CassandraConnection, keyspace: str, step: int, position: int, statement: str) -> str:
    """Complete a statement with a fixed table id.

    Two processes that create a table at the same time would create two, one of which is lost with its content; with a
    fixed id they create the same one.
    """
    made = statement.partition(_ID)[0].format(keyspace=keyspace)
    table_id = uuid.uuid5(uuid.NAMESPACE_OID, f"holdfast journal {made}")
    return statement.format(keyspace=keyspace, id=table_id, grace=GC_GRACE_SECONDS)


_TABLES: Final = {
    "journal": "CREATE TABLE IF NOT EXISTS {keyspace}.journal (log int, segment int, number int, size int, data blob,"
    " PRIMARY KEY ((log, segment), number))",
    "journal_segments": "CREATE TABLE IF NOT EXISTS {keyspace}.journal_segments (log int, segment int,"
    " PRIMARY KEY (log, segment))",
    "checkpoints": "CREATE TABLE IF NOT EXISTS {keyspace}.checkpoints (log int, file int, part int, chunk int,"
    " data blob, PRIMARY KEY ((log, file, part), chunk))",
    "checkpoint_files": "CREATE TABLE IF NOT EXISTS {keyspace}.checkpoint_files (log int, file int, size bigint,"
    " PRIMARY KEY (log, file))",
}
_STREAM_TABLES: Final = {
    "stream_chunks": "CREATE TABLE IF NOT EXISTS {keyspace}.stream_chunks (partition bigint, epoch int, number int,"
    " start int, data blob, PRIMARY KEY ((partition, epoch, number), start))",
    "stream_extents": "CREATE TABLE IF NOT EXISTS {keyspace}.stream_extents (shard int, partition bigint, epoch int,"
    " number int, PRIMARY KEY (shard, partition, epoch, number))",
}


_OPTIONS = _ID + "{id} AND gc_grace_seconds = {grace}"
JOURNAL: Final = Part(
    "journal",
    Schema(
        Step(tuple(made + _OPTIONS for made in _TABLES.values())),
        Step(
            tuple(made + _OPTIONS for made in _STREAM_TABLES.values()),
            tuple(f"DROP TABLE IF EXISTS {{keyspace}}.{name}" for name in _STREAM_TABLES),
            tuple(f"SELECT * FROM {{keyspace}}.{name} LIMIT 1" for name in _STREAM_TABLES),
        ),
    ),
    _complete,
)
"""These tables, as a part of the keyspace with its own schema versions."""


class _Held:
    """A log that a read found held."""

    def __init__(self, since: float) -> None:
        self.since = since
        self.ending: asyncio.Task[None] | None = None


class CassandraTables:
    """Implements :class:`backend.journal.cassandra.journal.CheckedTables`.  Made by :meth:`open`."""

    def __init__(self, connection: CassandraConnection, keyspace: str, fence: FenceQuery) -> None:
        self._connection = connection
        self._keyspace = keyspace
        self._fence = fence
        self._level: int | None = None
        """Consistency level of reads; None: the connection's."""
        self._held: dict[int, _Held] = {}
        """Held logs whose state a caller waits for."""

    @classmethod
    async def open(cls, connection: CassandraConnection, keyspace: str, fence: FenceQuery) -> Self:
        """Open the tables in a keyspace that has them in this version's schema (:data:`JOURNAL`).

        ``fence`` comes from the store of the logs' entries, in the same keyspace.  The caller owns the connection.
        Raises :class:`StatementFailed`, or a permanent error.
        """
        tables = cls(connection, keyspace, fence)
        try:
            await asyncio.to_thread(tables._prepare)
        except Exception as error:  # the driver's errors have no common base
            raise _trouble(cassandra_connection.StatementFailed(error)) from error
        return tables

    def _prepare(self) -> None:
        """Prepare all statements.  Blocking."""
        keyspace = self._keyspace
        self._put_row = self._statement(
            f"INSERT INTO {keyspace}.journal (log, segment, number, size, data)"
            " VALUES (?, ?, ?, ?, ?) USING TIMESTAMP 1"
        )
        self._put_row_at_all = self._connection.prepare(self._put_row.query_string, consistency_all=True)
        self._state = self._statement(self._fence.statement)
        self._sizes = self._statement(f"SELECT number, size FROM {keyspace}.journal WHERE log = ? AND segment = ?")
        self._numbers = self._statement(
            f"SELECT number FROM {keyspace}.journal WHERE log = ? AND segment = ? AND number >= ?"
        )
        self._rows = self._statement(
            f"SELECT number, data FROM {keyspace}.journal WHERE log = ? AND segment = ? AND number IN ?"
        )
        self._drop_rows = self._statement(
            f"DELETE FROM {keyspace}.journal USING TIMESTAMP 2 WHERE log = ? AND segment = ?"
        )
        self._add_segment = self._statement(
            f"INSERT INTO {keyspace}.journal_segments (log, segment) VALUES (?, ?) USING TIMESTAMP 1"
        )
        self._segments = self._statement(
            f"SELECT segment FROM {keyspace}.journal_segments WHERE log = ? AND segment > ? LIMIT {NAMES_MAX}"
        )
        self._drop_segment = self._statement(
            f"DELETE FROM {keyspace}.journal_segments USING TIMESTAMP 2 WHERE log = ? AND segment = ?"
        )
        self._put_block = self._statement(
            f"INSERT INTO {keyspace}.checkpoints (log, file, part, chunk, data)"
            " VALUES (?, ?, ?, ?, ?) USING TIMESTAMP 1"
        )
        self._blocks = self._statement(
            f"SELECT chunk, data FROM {keyspace}.checkpoints"
            " WHERE log = ? AND file = ? AND part = ? AND chunk >= ? AND chunk <= ?"
        )
        self._drop_part = self._statement(
            f"DELETE FROM {keyspace}.checkpoints USING TIMESTAMP 2 WHERE log = ? AND file = ? AND part = ?"
        )
        self._add_file = self._statement(
            f"INSERT INTO {keyspace}.checkpoint_files (log, file, size) VALUES (?, ?, ?) USING TIMESTAMP 1"
        )
        self._files = self._statement(
            f"SELECT file, size FROM {keyspace}.checkpoint_files WHERE log = ? AND file > ? LIMIT {NAMES_MAX}"
        )
        self._drop_name = self._statement(
            f"DELETE FROM {keyspace}.checkpoint_files USING TIMESTAMP 2 WHERE log = ? AND file = ?"
        )
        of_extent = "partition = ? AND epoch = ? AND number = ?"
        self._add_extent = self._statement(
            f"INSERT INTO {keyspace}.stream_extents (shard, partition, epoch, number)"
            " VALUES (?, ?, ?, ?) USING TIMESTAMP 1"
        )
        self._put_extent_block = self._statement(
            f"INSERT INTO {keyspace}.stream_chunks (partition, epoch, number, start, data)"
            " VALUES (?, ?, ?, ?, ?) USING TIMESTAMP 1"
        )
        self._extent_blocks = self._statement(
            f"SELECT start, data FROM {keyspace}.stream_chunks WHERE {of_extent} AND start >= ? AND start < ? LIMIT ?"
        )
        self._extents = self._statement(
            f"SELECT partition, epoch, number FROM {keyspace}.stream_extents"
            f" WHERE shard = ? AND (partition, epoch, number) > (?, ?, ?) LIMIT {NAMES_MAX}"
        )
        self._drop_blocks = self._statement(f"DELETE FROM {keyspace}.stream_chunks USING TIMESTAMP 2 WHERE {of_extent}")
        self._drop_extent = self._statement(
            f"DELETE FROM {keyspace}.stream_extents USING TIMESTAMP 2 WHERE shard = ? AND {of_extent}"
        )

    def _statement(self, text: str) -> PreparedStatement:
        return self._connection.prepare(text)

    async def check(self) -> None:
        """Raise :class:`~metadata_service.cassandra.driver.connection.UnsafeCommitLog` in strict mode."""
        await self._connection.check_commit_logs()

    # --- queries ------------------------------------------------------------------------------------------

    async def _ask(self, statement: PreparedStatement, values: Sequence[Any]) -> Rows:
        bound = statement.bind(values)
        if self._level is not None:
            bound.consistency_level = self._level
        try:
            return await self._connection.ask(bound, None)
        except cassandra_connection.StatementFailed as error:
            raise _trouble(error) from error

    async def _insert(self, statement: PreparedStatement, rows: Iterable[Sequence[Any]], at_once: int) -> None:
        """Insert rows, this many at a time."""
        left = iter(rows)
        while group := list(islice(left, at_once)):
            await asyncio.gather(*(self._ask(statement, row) for row in group))

    async def _names(self, statement: PreparedStatement, log_id: int) -> list[Any]:
        """Return all rows of a log's name table, read in pages; the first column is the key."""
        found: list[Any] = []
        while True:
            page = await self._ask(statement, (log_id, found[-1][0] if found else 0))
            found += page
            if len(page) < NAMES_MAX:
                return found

    # --- rows and the fence ---------------------------------------------------------------------------------

    def put_row(self, log_id: int, segment: int, row: int, data: bytes, done: Written) -> None:
        self._connection.send(
            self._put_row,
            (log_id, segment, row, len(data), data),
            lambda found: done(_trouble(found) if isinstance(found, Exception) else None),
        )

    def put_row_at_all(self, log_id: int, segment: int, row: int, data: bytes, done: Written) -> None:
        self._connection.send(
            self._put_row_at_all,
            (log_id, segment, row, len(data), data),
            lambda found: done(_trouble(found) if isinstance(found, Exception) else None),
        )

    def read_state(self, log_id: int, done: StateRead) -> None:
        fence = self._fence

        def read(found: Rows | Exception) -> None:
            if isinstance(found, Exception):
                self._held.pop(log_id, None)  # it may have ended, and a later hold is not as old
                done(_trouble(found))
                return
            try:
                state = fence.state(found[0][0]) if found else None
            except Exception as error:  # an unreadable entry does not prove that the log is open
                done(error)
                return
            if state == HELD:
                self._wait(log_id, lambda: self.read_state(log_id, done))
                return
            self._held.pop(log_id, None)
            done(state)

        self._connection.send(self._state, fence.values(log_id), read)

    def _wait(self, log_id: int, again: Callable[[], None]) -> None:
        """Read a held log's state again soon, and end a hold that lasts too long.

        To a caller that waits for the state, the read just takes longer.
        """
        loop = asyncio.get_running_loop()
        held = self._held.setdefault(log_id, _Held(loop.time()))
        if held.ending is None and loop.time() - held.since > HELD_SECONDS_MAX:
            held.ending = loop.create_task(self._end_hold(log_id, held), name=f"the end of a hold of log {log_id}")
        loop.call_later(HELD_POLL_SECONDS, again)

    async def _end_hold(self, log_id: int, held: _Held) -> None:
        logger.warning("log %d was held for %.1f s: that is ended", log_id, HELD_SECONDS_MAX)
        try:
            await self._fence.end_hold(log_id)
        except StoreError as error:
            logger.warning("a hold of log %d cannot be ended now: %s", log_id, error)
        finally:
            held.since, held.ending = asyncio.get_running_loop().time(), None

    def at_consistency_all(self) -> CassandraTables:
        tables = copy(self)
        tables._level = ConsistencyLevel.ALL
        return tables

    async def row_sizes(self, log_id: int, segment: int) -> list[tuple[int, int]]:
        # If a replica has only part of a row, the size may be missing: then the row counts as absent.
        found = await self._ask(self._sizes, (log_id, segment))
        return [(number, size) for number, size in found if size is not None]

    async def numbers(self, log_id: int, segment: int, row_min: int) -> list[int]:
        """Return the rows of a segment from this one on, ascending."""
        return [number for (number,) in await self._ask(self._numbers, (log_id, segment, row_min))]

    async def get_rows(self, log_id: int, segment: int, rows: Sequence[int]) -> dict[int, bytes]:
        found = await self._ask(self._rows, (log_id, segment, list(rows)))
        return {number: data for number, data in found if data is not None}

    # --- segments -------------------------------------------------------------------------------------------

    async def add_segment(self, log_id: int, segment: int) -> None:
        await self._ask(self._add_segment, (log_id, segment))

    async def segments(self, log_id: int) -> list[int]:
        return [segment for (segment,) in await self._names(self._segments, log_id)]

    async def drop_segment(self, log_id: int, segment: int) -> None:
        await self._ask(self._drop_rows, (log_id, segment))
        await self._ask(self._drop_segment, (log_id, segment))

    # --- files of chunks --------------------------------------------------------------------------------------

    async def put_file(self, log_id: int, file: int, blocks: Sequence[bytes]) -> None:
        await self._ask(self._add_file, (log_id, file, sum(map(len, blocks))))
        rows = ((log_id, file, number // PART_BLOCKS, number, data) for number, data in enumerate(blocks))
        await self._insert(self._put_block, rows, WRITES_AT_ONCE)

    async def get_bytes(self, log_id: int, file: int, offset: int, length: int) -> bytes:
        wanted = blocks_of(offset, length)
        found: dict[int, bytes] = {}
        for part in range(wanted.start // PART_BLOCKS, (wanted.stop - 1) // PART_BLOCKS + 1):
            found.update(await self._ask(self._blocks, (log_id, file, part, wanted.start, wanted.stop - 1)))
        data = b"".join(found.get(number) or b"" for number in wanted)
        skipped = offset - wanted.start * BLOCK_BYTES
        return data[skipped : skipped + length]

    async def files(self, log_id: int) -> list[tuple[int, int]]:
        return [(file, size) for file, size in await self._names(self._files, log_id) if size is not None]

    async def drop_file(self, log_id: int, file: int, size_bytes: int) -> None:
        for part in range((size_bytes + PART_BLOCKS * BLOCK_BYTES - 1) // (PART_BLOCKS * BLOCK_BYTES)):
            await self._ask(self._drop_part, (log_id, file, part))
        await self._ask(self._drop_name, (log_id, file))

    # --- extents of streams -----------------------------------------------------------------------------------

    async def add_extent(self, shard: int, extent: ExtentId) -> None:
        await self._ask(self._add_extent, (shard, *extent))

    async def put_blocks(self, extent: ExtentId, blocks: Sequence[ExtentBlock]) -> None:
        rows = ((*extent, *block) for block in blocks)
        await self._insert(self._put_extent_block, rows, EXTENT_WRITES_AT_ONCE)

    async def get_blocks(
        self, extent: ExtentId, start: int, end: int, blocks_max: int = BLOCKS_PER_READ
    ) -> list[ExtentBlock]:
        found = await self._ask(self._extent_blocks, (*extent, start, end, blocks_max))
        # If a replica has only part of a row, the data may be missing: then the block counts as absent.
        return [ExtentBlock(start, data or b"") for start, data in found]

    async def extents(self, shard: int) -> list[ExtentId]:
        found = [ExtentId(-1, 0, 0)]
        while True:
            page = await self._ask(self._extents, (shard, *found[-1]))
            found += map(ExtentId._make, page)
            if len(page) < NAMES_MAX:
                return found[1:]

    async def drop_extent(self, shard: int, extent: ExtentId) -> None:
        await self._ask(self._drop_blocks, extent)
        await self._ask(self._drop_extent, (shard, *extent))


def _trouble(error: Exception) -> Exception:
    """Convert an error to the types of :class:`~backend.journal.cassandra.table_interface.Tables`."""
    if not isinstance(error, cassandra_connection.StatementFailed):
        return error
    return Unanswered(str(error)) if error.passing else error.error
