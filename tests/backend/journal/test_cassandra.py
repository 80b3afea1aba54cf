"""The journal on a real Cassandra."""

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from typing import Any

import msgspec
import pytest
from cassandra import ConsistencyLevel, InvalidRequest
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.policies import RoundRobinPolicy
from cassandra.query import PreparedStatement, tuple_factory

from backend.api import Unavailable
from backend.extent_ids import ExtentId
from backend.journal.cassandra import tables as tables_module
from backend.journal.cassandra.extents import CassandraExtents
from backend.journal.cassandra.journal import CassandraJournal
from backend.journal.cassandra.log import CassandraLogSettings
from backend.journal.cassandra.table_interface import BLOCK_BYTES, BLOCKS_PER_READ, PART_BLOCKS, ExtentBlock, put_row
from backend.journal.cassandra.tables import JOURNAL, CassandraTables
from metadata_service.cassandra.driver.connection import (
    CassandraConnection,
    CassandraSettings,
    FenceQuery,
    Rows,
    UnsafeCommitLog,
)
from metadata_service.models import LogEntry
from tests.backend.journal.conformance import JournalConformance, Writer, append, appended, in_world, taken_over
from tests.backend.journal.support import durable, numbers_in
from tests.backend.journal.test_conformance import SMALL_ROWS
from tests.servers.cassandra_server import CassandraCluster
from tests.servers.waiting import until


def fence_of(keyspace: str) -> FenceQuery:
    async def end_hold(log_id: int) -> None:
        raise AssertionError("nobody holds a log here")

    return FenceQuery(
        f"SELECT state FROM {keyspace}.log_entries WHERE log = ?", lambda log_id: (log_id,), str, end_hold
    )


async def make_tables(connection: CassandraConnection, keyspace: str) -> None:
    """Create the tables like :class:`CassandraVersions`, which stores its notes in records."""
    for number, step in enumerate(JOURNAL.schema.steps):
        await asyncio.to_thread(JOURNAL.run, connection, keyspace, number, step.forward)


class CassandraWorld:
    """World whose entries of logs are in a table of the test's own."""

    def __init__(self, settings: CassandraSettings, keyspace: str, session: Session) -> None:
        self.settings = settings
        self.keyspace = keyspace
        self.session = session
        self.tables: list[CassandraTables] = []
        self.log_settings = SMALL_ROWS._replace(idle_seconds=0.05)

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        async def connected() -> None:
            connection = await CassandraConnection.open(self.settings)
            try:
                await make_tables(connection, self.keyspace)
                self.tables.append(await CassandraTables.open(connection, self.keyspace, fence_of(self.keyspace)))
                await main
            finally:
                self.tables.clear()
                await connection.close()

        asyncio.run(connected())

    def journal(self) -> CassandraJournal:
        return CassandraJournal(self.tables[0], self.log_settings)

    async def set_state(self, entry: LogEntry, state: str) -> None:
        insert = "INSERT INTO log_entries (log, state) VALUES (%s, %s) IF NOT EXISTS"
        update = "UPDATE log_entries SET state = %s WHERE log = %s IF EXISTS"
        if not (await asyncio.to_thread(self.session.execute, insert, (entry.log_id, state))).was_applied:
            assert (await asyncio.to_thread(self.session.execute, update, (state, entry.log_id))).was_applied

    async def kill(self) -> None:
        """Kill the writer; requests that it has sent still arrive."""


@pytest.fixture
def world(cassandra: CassandraCluster, keyspace: str) -> Iterator[CassandraWorld]:
    settings = CassandraSettings(
        contact_points=tuple(cassandra.contact_points),
        port=cassandra.port,
        replication={"datacenter1": 1},
        attempt_seconds=5,  # the machine may be busy
        timeout_seconds=20,
    )
    profile = ExecutionProfile(load_balancing_policy=RoundRobinPolicy(), row_factory=tuple_factory, request_timeout=60)
    cluster = Cluster(
        cassandra.contact_points,
        port=cassandra.port,
        protocol_version=5,
        connect_timeout=60,
        control_connection_timeout=60,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
    )
    try:
        session = cluster.connect()
        session.execute(
            f"CREATE KEYSPACE {keyspace} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}",
            timeout=60,
        )
        session.set_keyspace(keyspace)
        session.execute("CREATE TABLE log_entries (log int PRIMARY KEY, state text)", timeout=60)
        yield CassandraWorld(settings, keyspace, session)
    finally:
        cluster.shutdown()


class TestCassandra(JournalConformance):
    """Conformance tests of the journal on Cassandra."""


def test_a_stall_is_logged_and_passes(world: CassandraWorld, cassandra: CassandraCluster) -> None:
    """The server hangs: calls fail with a retriable error, and succeed again when it continues."""
    world.settings = msgspec.structs.replace(world.settings, attempt_seconds=1)
    world.log_settings = CassandraLogSettings(stall_seconds=3)

    async def main() -> None:
        writer = Writer(world)
        log = await writer.begin()
        await appended(log, 1)
        cassandra.nodes[0].pause()
        try:
            await append(log, 2)
            with pytest.raises(Unavailable, match="not known"):
                await durable(log)
            with pytest.raises(Unavailable, match="no quorum"):
                log.append(b"")
            with pytest.raises(Unavailable, match="no quorum"):
                await log.wait_for_space(100)
            with pytest.raises(Unavailable, match="no quorum"):
                await durable(log)
            assert not log.has_space()
        finally:
            cassandra.nodes[0].resume()
        async with asyncio.timeout(60):
            await until(lambda: log.has_space())
            await appended(log, 3)
        assert not writer.failures
        await log.close()
        _, rows, _ = await taken_over(world, writer.entry)
        assert numbers_in(rows) == [1, 2, 3]

    world.run(main())


@in_world
async def test_a_permanent_error_ends_the_log(world: CassandraWorld) -> None:
    writer = Writer(world)
    log = await writer.begin()
    await appended(log, 1)
    await asyncio.to_thread(world.session.execute, "DROP TABLE journal", timeout=60)
    await append(log, 2)
    with pytest.raises(Unavailable):
        await durable(log)
    assert len(writer.failures) == 1
    assert isinstance(writer.failures[0], InvalidRequest)
    await log.close()


@in_world
async def test_the_tables_are_made_once(world: CassandraWorld) -> None:
    """Several processes create them at once, and none creates existing ones."""
    connection = await CassandraConnection.open(world.settings)
    query = f"SELECT table_name, id FROM system_schema.tables WHERE keyspace_name = '{world.keyspace}'"
    before = sorted(await connection.ask(query, None))
    assert len(before) == 7
    world.session.execute("DROP TABLE journal", timeout=60)
    world.session.execute("DROP TABLE checkpoints", timeout=60)
    others = [await CassandraConnection.open(world.settings) for _ in range(3)]
    await asyncio.gather(*(make_tables(other, world.keyspace) for other in others))
    assert sorted(await connection.ask(query, None)) == before
    for one in (connection, *others):
        await one.close()


@in_world
async def test_rows_have_the_timestamps_that_no_clock_can_shadow(world: CassandraWorld) -> None:
    """A row that arrives after its segment was deleted does not reappear, regardless of clock errors."""
    tables = world.tables[0]
    await tables.add_segment(5, 1)
    await put_row(tables, 5, 1, 0, b"row")
    await put_row(tables, 5, 1, 0, b"row")
    stamp = "SELECT writetime(data) FROM journal WHERE log = 5 AND segment = 1"
    assert (await asyncio.to_thread(world.session.execute, stamp)).one() == (1,)
    assert await tables.row_sizes(5, 1) == [(0, 3)]
    await tables.drop_segment(5, 1)
    await tables.drop_segment(5, 1)
    await put_row(tables, 5, 1, 0, b"row")
    await tables.add_segment(5, 1)
    assert await tables.row_sizes(5, 1) == []
    assert await tables.segments(5) == []


@in_world
async def test_statements_ask_a_quorum_and_may_be_repeated(world: CassandraWorld) -> None:
    tables = world.tables[0]
    statements = [one for one in vars(tables).values() if isinstance(one, PreparedStatement)]
    assert len(statements) > 10
    assert tables._put_row_at_all.consistency_level == ConsistencyLevel.ALL
    for statement in statements:
        assert statement.is_idempotent
        if statement is not tables._put_row_at_all:
            assert statement.consistency_level == ConsistencyLevel.QUORUM
    connection = await CassandraConnection.open(msgspec.structs.replace(world.settings, scope="datacenter1"))
    local = await CassandraTables.open(connection, world.keyspace, fence_of(world.keyspace))
    assert local._put_row_at_all.consistency_level == ConsistencyLevel.ALL
    for statement in vars(local).values():
        if isinstance(statement, PreparedStatement) and statement is not local._put_row_at_all:
            assert statement.consistency_level == ConsistencyLevel.LOCAL_QUORUM
    await connection.close()


@in_world
async def test_large_files_lie_in_several_partitions(world: CassandraWorld) -> None:
    tables = world.tables[0]
    chunk = bytes(range(256)) * (BLOCK_BYTES // 256)
    chunks = [chunk] * (PART_BLOCKS + 1) + [b"end"]
    await tables.put_file(5, 1, chunks)
    size_bytes = sum(map(len, chunks))
    assert await tables.files(5) == [(1, size_bytes)]
    at = PART_BLOCKS * BLOCK_BYTES - 5
    assert await tables.get_bytes(5, 1, at, 10) == chunk[-5:] + chunk[:5]
    assert await tables.get_bytes(5, 1, size_bytes - 3, 10) == b"end"
    await tables.drop_file(5, 1, size_bytes)
    assert await tables.files(5) == []
    assert await tables.get_bytes(5, 1, at, 10) == b""


@in_world
async def test_extents_of_many_small_blocks_are_read_and_listed_in_pages(
    world: CassandraWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables_module, "NAMES_MAX", 3)
    tables = await CassandraTables.open(world.tables[0]._connection, world.keyspace, fence_of(world.keyspace))
    extent = ExtentId(7, 1, 1)
    blocks = [ExtentBlock(2 * number, b"%02d" % (number % 100)) for number in range(BLOCKS_PER_READ + 5)]
    await tables.put_blocks(extent, blocks)
    assert await tables.get_blocks(extent, 0, 4 * BLOCKS_PER_READ) == blocks[:BLOCKS_PER_READ]
    assert await tables.get_blocks(extent, 3, 9) == blocks[2:5]
    content = b"".join(block.data for block in blocks)
    assert await CassandraExtents(tables).read(extent, len(content), 0) == content
    extents = [ExtentId(partition, epoch, 1) for partition in (7, 9) for epoch in range(4)]
    for one in reversed(extents):
        await tables.add_extent(5, one)
    assert await tables.extents(5) == extents
    await tables.drop_extent(5, extents[2])
    assert await tables.extents(5) == extents[:2] + extents[3:]
    assert await tables.extents(6) == []


@in_world
async def test_an_unsynced_commit_log_is_refused(
    world: CassandraWorld, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes discovered after the connection was opened are covered: each incarnation checks again."""
    tables = world.tables[0]
    connection = tables._connection
    await tables.check()
    assert not caplog.records
    real = connection.ask

    async def periodic(*arguments: Any, **options: Any) -> Rows:
        assert await real(*arguments, **options) == [("batch",)]
        return [("periodic",)]

    monkeypatch.setattr(connection, "ask", periodic)
    await tables.check()
    assert "commitlog_sync is periodic at 127.0.0.1" in caplog.text
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    connection.settings = msgspec.structs.replace(connection.settings, strict=True)
    with pytest.raises(UnsafeCommitLog, match="batch"):
        await CassandraJournal(tables).prepare()
