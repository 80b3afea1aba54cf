"""The journal on a real Cassandra."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest
from cassandra import ConsistencyLevel, InvalidRequest
from cassandra.cluster import Session
from cassandra.query import PreparedStatement

from backend.api import Unavailable
from backend.journal.cassandra_journal import CassandraJournal
from backend.journal.cassandra_log import CassandraLogSettings
from backend.journal.cassandra_tables import (
    CassandraSettings,
    CassandraTables,
    Fence,
    UnsafeCommitLog,
    create_tables,
    make_cluster,
)
from backend.journal.tables import CHUNK_BYTES, PART_CHUNKS, Unanswered, put_row
from bench.cassandra_server import CassandraCluster
from metadata_service.models import LogEntry
from tests.backend.journal.conformance import Conformance, Writer, append, durable, taken_over
from tests.backend.journal.support import numbers_in
from tests.backend.journal.test_conformance import SMALL_ROWS


def fence_of(keyspace: str) -> Fence:
    return Fence(f"SELECT state FROM {keyspace}.log_entries WHERE log = ?", lambda log_id: (log_id,), str)


class CassandraWorld:
    """The entries of logs are in a table of the test's own."""

    def __init__(self, settings: CassandraSettings, session: Session) -> None:
        self.settings = settings
        self.session = session
        self.tables: list[CassandraTables] = []
        self.log_settings = SMALL_ROWS._replace(idle_seconds=0.05)

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        async def connected() -> None:
            self.tables.append(await CassandraTables.connect(self.settings))
            try:
                await main
            finally:
                await self.tables.pop().close()

        asyncio.run(connected())

    def journal(self) -> CassandraJournal:
        return CassandraJournal(self.tables[0], self.log_settings)

    async def set_state(self, entry: LogEntry, state: str) -> None:
        insert = "INSERT INTO log_entries (log, state) VALUES (%s, %s) IF NOT EXISTS"
        update = "UPDATE log_entries SET state = %s WHERE log = %s IF EXISTS"
        if not (await asyncio.to_thread(self.session.execute, insert, (entry.log_id, state))).was_applied:
            assert (await asyncio.to_thread(self.session.execute, update, (state, entry.log_id))).was_applied

    async def kill(self) -> None:
        """What it has sent still arrives."""


@pytest.fixture
def world(cassandra: CassandraCluster, keyspace: str) -> Iterator[CassandraWorld]:
    settings = CassandraSettings(cassandra.contact_points, keyspace, fence_of(keyspace), cassandra.port)
    cluster = make_cluster(settings)
    try:
        session = cluster.connect()
        session.execute(
            f"CREATE KEYSPACE {keyspace} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}",
            timeout=60,
        )
        session.set_keyspace(keyspace)
        create_tables(session, keyspace)
        create_tables(session, keyspace)  # repeatable
        session.execute("CREATE TABLE log_entries (log int PRIMARY KEY, state text)", timeout=60)
        yield CassandraWorld(settings, session)
    finally:
        cluster.shutdown()


class TestCassandra(Conformance):
    """All that every journal promises."""


def test_a_stall_is_said_and_passes(world: CassandraWorld, cassandra: CassandraCluster) -> None:
    """The server hangs: calls are refused, with an error that says retry; and go on when it does."""
    world.settings = world.settings._replace(request_seconds=0.3)
    world.log_settings = CassandraLogSettings(stall_seconds=0.5)

    async def main() -> None:
        writer = Writer(world)
        log = await writer.begin()
        await append(log, 1)
        await durable(log)
        cassandra.nodes[0].pause()
        try:
            await append(log, 2)
            with pytest.raises(Unavailable, match="not known"):
                await durable(log)
            with pytest.raises(Unavailable, match="no quorum"):
                log.append(b"")
            with pytest.raises(Unavailable, match="no quorum"):
                await log.wait_room(100)
            with pytest.raises(Unavailable, match="no quorum"):
                await durable(log)
            assert not log.room()
        finally:
            cassandra.nodes[0].resume()
        async with asyncio.timeout(60):
            while not log.room():
                await asyncio.sleep(0.01)
            await append(log, 3)
            await durable(log)
        assert not writer.failures
        await log.close()
        _, rows, _ = await taken_over(world, writer.entry)
        assert numbers_in(rows) == [1, 2, 3]

    world.run(main())


def test_what_cannot_pass_by_itself_ends_the_log(world: CassandraWorld) -> None:
    async def main() -> None:
        writer = Writer(world)
        log = await writer.begin()
        await append(log, 1)
        await durable(log)
        await asyncio.to_thread(world.session.execute, "DROP TABLE journal", timeout=60)
        await append(log, 2)
        with pytest.raises(Unavailable):
            await durable(log)
        assert len(writer.failures) == 1
        assert isinstance(writer.failures[0], InvalidRequest)
        await log.close()

    world.run(main())


def test_a_cluster_that_does_not_answer_is_said(world: CassandraWorld) -> None:
    nobody = world.settings._replace(port=1)

    async def main() -> None:
        with pytest.raises(Unanswered):
            await CassandraTables.connect(nobody)

    asyncio.run(main())


def test_rows_have_the_timestamps_that_no_clock_can_shadow(world: CassandraWorld) -> None:
    """A row that arrives after its segment was deleted does not come back, however the clocks go."""

    async def main() -> None:
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

    world.run(main())


def test_statements_ask_a_quorum_and_may_be_repeated(world: CassandraWorld) -> None:
    async def main() -> None:
        tables = world.tables[0]
        statements = [one for one in vars(tables).values() if isinstance(one, PreparedStatement)]
        assert len(statements) > 10
        for statement in statements:
            assert statement.is_idempotent
            assert statement.consistency_level is None, "none has a level of its own, so it is the profile's"
        assert tables._cluster.profile_manager.default.consistency_level == ConsistencyLevel.QUORUM
        local = make_cluster(world.settings._replace(local_quorum=True))
        assert local.profile_manager.default.consistency_level == ConsistencyLevel.LOCAL_QUORUM
        local.shutdown()

    world.run(main())


def test_large_files_lie_in_several_partitions(world: CassandraWorld) -> None:
    async def main() -> None:
        tables = world.tables[0]
        chunk = bytes(range(256)) * (CHUNK_BYTES // 256)
        chunks = [chunk] * (PART_CHUNKS + 1) + [b"end"]
        await tables.put_file(5, 1, chunks)
        size_bytes = sum(map(len, chunks))
        assert await tables.files(5) == [(1, size_bytes)]
        at = PART_CHUNKS * CHUNK_BYTES - 5
        assert await tables.get_bytes(5, 1, at, 10) == chunk[-5:] + chunk[:5]
        assert await tables.get_bytes(5, 1, size_bytes - 3, 10) == b"end"
        await tables.drop_file(5, 1, size_bytes)
        assert await tables.files(5) == []
        assert await tables.get_bytes(5, 1, at, 10) == b""

    world.run(main())


def test_a_commit_log_that_is_not_synced_is_said_and_refused_when_told_so(
    world: CassandraWorld, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        tables = world.tables[0]
        await tables.check()
        assert not caplog.records
        real = tables._ask

        async def periodic(statement: Any, values: Any, host: Any = None) -> Any:
            assert (await real(statement, values, host=host)) == [("batch",)]
            return [("periodic",)]

        monkeypatch.setattr(tables, "_ask", periodic)
        await tables.check()
        assert "commitlog_sync" in caplog.text
        assert "periodic" in caplog.text
        assert [record.levelno for record in caplog.records] == [logging.ERROR]
        tables._settings = tables._settings._replace(strict=True)
        with pytest.raises(UnsafeCommitLog, match="batch"):
            await CassandraJournal(tables).prepare()

    world.run(main())
