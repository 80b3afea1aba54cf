"""The journal's tables on a real Cassandra, through its official driver.

The driver has threads of its own.  What they learn is handed to the loop many at once, with one wake-up.  All
statements are idempotent (:mod:`backend.journal.tables`), so the driver may send one again, and does so to another
machine when the first has not answered for a moment.

Rows are written with the timestamp 1 and deleted with the timestamp 2, so that no clock can shadow a write or spare a
row from its delete.  Nothing has a time to live.  Whole partitions are deleted, so that no read walks over tombstones;
they are kept for :data:`GC_GRACE_SECONDS`, longer than any write is on its way (hints are kept for three hours).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from cassandra import ConsistencyLevel, OperationTimedOut, RequestExecutionException
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable, Session
from cassandra.connection import ConnectionBusy, ConnectionException
from cassandra.policies import (
    ConstantReconnectionPolicy,
    ConstantSpeculativeExecutionPolicy,
    DCAwareRoundRobinPolicy,
    TokenAwarePolicy,
)
from cassandra.protocol import RequestExecutionException as ExecutionMessage
from cassandra.protocol import ServerError
from cassandra.query import PreparedStatement, SimpleStatement, tuple_factory

from backend.journal.tables import CHUNK_BYTES, PART_CHUNKS, StateRead, Unanswered, Written, chunks_of

logger = logging.getLogger(__name__)

PROTOCOL: Final = 5
"""Of Cassandra 4.0 and later."""
GC_GRACE_SECONDS: Final = 86_400
WRITES_AT_ONCE: Final = 8
"""Chunks of a checkpoint under way at a time."""
PAGE_ROWS: Final = 10_000
"""More than any statement here asks for: a segment has 8192 rows."""
NAMES_MOST: Final = 5000
"""Asked for at once."""

TRANSIENT: Final = (
    RequestExecutionException,  # no quorum alive, none that answered in time, a machine that failed
    ExecutionMessage,
    ServerError,
    OperationTimedOut,
    NoHostAvailable,
    ConnectionException,
    ConnectionBusy,
)
"""What may pass by itself.  After any of them a write may have taken effect."""

SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS {keyspace}.journal (log int, segment int, number int, size int, data blob,"
    " PRIMARY KEY ((log, segment), number))",
    "CREATE TABLE IF NOT EXISTS {keyspace}.journal_segments (log int, segment int, PRIMARY KEY (log, segment))",
    "CREATE TABLE IF NOT EXISTS {keyspace}.checkpoints (log int, file int, part int, chunk int, data blob,"
    " PRIMARY KEY ((log, file, part), chunk))",
    "CREATE TABLE IF NOT EXISTS {keyspace}.checkpoint_files (log int, file int, size bigint, PRIMARY KEY (log, file))",
)


class UnsafeCommitLog(Exception):
    """The server answers writes that a crash of several machines can undo, and that was not to be accepted."""


class Fence(NamedTuple):
    """How the state in a log's entry is read.  Whoever keeps the entries says so; the read is at the level of rows."""

    statement: str
    """Selects one column of one row, of a table named with its keyspace."""
    values: Callable[[int], Sequence[Any]]
    """Of the statement, given the log's id."""
    state: Callable[[Any], str]
    """Given that column."""


class CassandraSettings(NamedTuple):
    contact_points: Sequence[str]
    keyspace: str
    fence: Fence
    port: int = 9042
    local_dc: str = "datacenter1"
    local_quorum: bool = False
    """Rows and fences are kept in one data centre.  Fixed when the cluster is made, for all that its logs rest on."""
    strict: bool = False
    """Refuse a server whose commit log is not synced before it answers."""
    request_seconds: float = 2.0
    speculative_seconds: float = 0.1
    """After so long without an answer the statement goes to another machine, too; twice."""


class CassandraTables:
    """Implements :class:`backend.journal.cassandra_journal.Server`.  Made by :meth:`connect`."""

    def __init__(self, cluster: Cluster, session: Session, settings: CassandraSettings) -> None:
        self._cluster = cluster
        self._session = session
        self._settings = settings
        self._inbox = _Inbox(asyncio.get_running_loop())

    def _prepare(self) -> None:
        """Blocking."""
        keyspace = self._settings.keyspace
        self._put_row = self._statement(
            f"INSERT INTO {keyspace}.journal (log, segment, number, size, data)"
            " VALUES (?, ?, ?, ?, ?) USING TIMESTAMP 1"
        )
        self._state = self._statement(self._settings.fence.statement)
        self._sizes = self._statement(f"SELECT number, size FROM {keyspace}.journal WHERE log = ? AND segment = ?")
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
            f"SELECT segment FROM {keyspace}.journal_segments WHERE log = ? AND segment > ? LIMIT {NAMES_MOST}"
        )
        self._drop_segment = self._statement(
            f"DELETE FROM {keyspace}.journal_segments USING TIMESTAMP 2 WHERE log = ? AND segment = ?"
        )
        self._put_chunk = self._statement(
            f"INSERT INTO {keyspace}.checkpoints (log, file, part, chunk, data)"
            " VALUES (?, ?, ?, ?, ?) USING TIMESTAMP 1"
        )
        self._chunks = self._statement(
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
            f"SELECT file, size FROM {keyspace}.checkpoint_files WHERE log = ? AND file > ? LIMIT {NAMES_MOST}"
        )
        self._drop_name = self._statement(
            f"DELETE FROM {keyspace}.checkpoint_files USING TIMESTAMP 2 WHERE log = ? AND file = ?"
        )

    def _statement(self, text: str) -> PreparedStatement:
        statement = self._session.prepare(text)
        statement.is_idempotent = True
        statement.fetch_size = PAGE_ROWS
        return statement

    @classmethod
    async def connect(
        cls,
        settings: CassandraSettings,
        *,
        credentials: tuple[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> CassandraTables:
        """Connect, in the loop that will use the tables.  Raises :class:`Unanswered`, or what will not pass."""
        cluster = make_cluster(settings, credentials=credentials, tls=tls)
        try:
            tables = cls(cluster, await asyncio.to_thread(cluster.connect), settings)
            await asyncio.to_thread(tables._prepare)
        except BaseException as error:
            await asyncio.shield(asyncio.to_thread(cluster.shutdown))
            if isinstance(error, TRANSIENT):
                raise Unanswered(str(error)) from error
            raise
        return tables

    async def close(self) -> None:
        await asyncio.to_thread(self._cluster.shutdown)

    async def check(self) -> None:
        """Raises :class:`UnsafeCommitLog` in strict mode, :class:`Unanswered`."""
        asked = SimpleStatement(
            "SELECT value FROM system_views.settings WHERE name = 'commitlog_sync'", is_idempotent=True
        )
        for host in self._cluster.metadata.all_hosts():
            if not host.is_up:
                logger.warning("Cassandra at %s is down: how it syncs its commit log is not known", host.address)
                continue
            found = await self._ask(asked, (), host=host)
            mode = found[0][0] if found else "unknown"
            if mode not in ("batch", "group"):
                told = (
                    f"commitlog_sync of Cassandra at {host.address} is {mode}: writes are answered before they are on "
                    "the disk, and when several machines crash at once, acknowledged messages are lost; set it to "
                    "batch (or group) in cassandra.yaml"
                )
                if self._settings.strict:
                    raise UnsafeCommitLog(told)
                logger.error("%s", told)

    # --- asking -------------------------------------------------------------------------------------------

    def _send(
        self, statement: Any, values: Sequence[Any], done: Callable[[list[Any] | BaseException], None], host: Any = None
    ) -> None:
        """``done`` gets all rows, or the error, in the loop, once: the first that is heard.

        A statement that went to several machines is answered by each of them, and the driver tells of every answer.  It
        would therefore mix up pages, too: all that is asked for has to fit one.
        """
        inbox, told = self._inbox, False

        def answered(found: list[Any] | None) -> None:
            nonlocal told
            if not told:
                told = True
                inbox.put(done, found or [])

        def failed(error: Exception) -> None:
            nonlocal told
            if not told:
                told = True
                inbox.put(done, _trouble(error))

        try:
            future = self._session.execute_async(statement, values, host=host)
        except Exception as error:
            failed(error)
        else:
            future.add_callbacks(answered, failed)

    async def _ask(self, statement: Any, values: Sequence[Any], host: Any = None) -> list[Any]:
        answer: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()

        def done(found: list[Any] | BaseException) -> None:
            if answer.done():
                return
            if isinstance(found, BaseException):
                answer.set_exception(found)
            else:
                answer.set_result(found)

        self._send(statement, values, done, host)
        return await answer

    async def _names(self, statement: PreparedStatement, log_id: int) -> list[Any]:
        """What a log has, some at a time; the first column is the key."""
        found: list[Any] = []
        while True:
            page = await self._ask(statement, (log_id, found[-1][0] if found else 0))
            found += page
            if len(page) < NAMES_MOST:
                return found

    # --- rows and the fence ---------------------------------------------------------------------------------

    def put_row(self, log_id: int, segment: int, row: int, data: bytes, done: Written) -> None:
        self._send(
            self._put_row,
            (log_id, segment, row, len(data), data),
            lambda found: done(found if isinstance(found, BaseException) else None),
        )

    def read_state(self, log_id: int, done: StateRead) -> None:
        fence = self._settings.fence

        def read(found: list[Any] | BaseException) -> None:
            if not isinstance(found, BaseException):
                try:
                    done(fence.state(found[0][0]) if found else None)
                    return
                except Exception as error:  # an entry that cannot be understood does not say that the log is open
                    found = error
            done(found)

        self._send(self._state, fence.values(log_id), read)

    async def row_sizes(self, log_id: int, segment: int) -> list[tuple[int, int]]:
        # Of a row that a replica has by half, the size may be missing: then it is not there.
        found = await self._ask(self._sizes, (log_id, segment))
        return [(number, size) for number, size in found if size is not None]

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

    # --- files of pieces --------------------------------------------------------------------------------------

    async def put_file(self, log_id: int, file: int, chunks: Sequence[bytes]) -> None:
        await self._ask(self._add_file, (log_id, file, sum(map(len, chunks))))
        for start in range(0, len(chunks), WRITES_AT_ONCE):
            writes = [
                self._ask(self._put_chunk, (log_id, file, number // PART_CHUNKS, number, data))
                for number, data in enumerate(chunks[start : start + WRITES_AT_ONCE], start)
            ]
            await asyncio.gather(*writes)

    async def get_bytes(self, log_id: int, file: int, offset: int, length: int) -> bytes:
        wanted = chunks_of(offset, length)
        found: dict[int, bytes] = {}
        for part in range(wanted.start // PART_CHUNKS, (wanted.stop - 1) // PART_CHUNKS + 1):
            found.update(await self._ask(self._chunks, (log_id, file, part, wanted.start, wanted.stop - 1)))
        data = b"".join(found.get(number) or b"" for number in wanted)
        skipped = offset - wanted.start * CHUNK_BYTES
        return data[skipped : skipped + length]

    async def files(self, log_id: int) -> list[tuple[int, int]]:
        return [(file, size) for file, size in await self._names(self._files, log_id) if size is not None]

    async def drop_file(self, log_id: int, file: int, size_bytes: int) -> None:
        for part in range((size_bytes + PART_CHUNKS * CHUNK_BYTES - 1) // (PART_CHUNKS * CHUNK_BYTES)):
            await self._ask(self._drop_part, (log_id, file, part))
        await self._ask(self._drop_name, (log_id, file))


class _Inbox:
    """Brings results from the driver's threads into the loop: one wake-up for all that have gathered."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._items: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._awake = False

    def put(self, done: Callable[[Any], None], result: Any) -> None:
        """In any thread."""
        self._items.append((done, result))
        if not self._awake:
            self._awake = True
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._awake = False  # first: what comes from now on wakes the loop again
        items = self._items
        try:
            while items:
                done, result = items.popleft()
                done(result)
        finally:
            if items:
                self._loop.call_soon(self._drain)


def make_cluster(
    settings: CassandraSettings, *, credentials: tuple[str, str] | None = None, tls: ssl.SSLContext | None = None
) -> Cluster:
    """A connection to the servers, with what was measured to be needed: without TCP_NODELAY a row of 4 KiB takes
    40 ms, and without speculation a machine that hangs makes all calls wait for the timeout."""
    profile = ExecutionProfile(
        load_balancing_policy=TokenAwarePolicy(DCAwareRoundRobinPolicy(local_dc=settings.local_dc)),
        consistency_level=ConsistencyLevel.LOCAL_QUORUM if settings.local_quorum else ConsistencyLevel.QUORUM,
        request_timeout=settings.request_seconds,
        row_factory=tuple_factory,
        speculative_execution_policy=ConstantSpeculativeExecutionPolicy(settings.speculative_seconds, 2),
    )
    return Cluster(
        list(settings.contact_points),
        port=settings.port,
        protocol_version=PROTOCOL,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        reconnection_policy=ConstantReconnectionPolicy(1, None),
        idle_heartbeat_interval=2,
        idle_heartbeat_timeout=1,
        sockopts=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
        auth_provider=PlainTextAuthProvider(*credentials) if credentials is not None else None,
        ssl_context=tls,
    )


def create_tables(session: Session, keyspace: str) -> None:
    """Blocking.  Make the tables in a keyspace, unless they are there."""
    for text in SCHEMA:
        # Two processes that make a table at the same time would make two, one of which is lost with all that is in it:
        # with an id that is fixed they make the same.
        made = text.format(keyspace=keyspace)
        table_id = uuid.uuid5(uuid.NAMESPACE_OID, f"holdfast journal {made}")
        session.execute(f"{made} WITH id = {table_id} AND gc_grace_seconds = {GC_GRACE_SECONDS}", timeout=60)


def _trouble(error: Exception) -> Exception:
    return Unanswered(str(error) or type(error).__name__) if isinstance(error, TRANSIENT) else error
