"""Schema versions of a keyspace: two releases on one, migration and rollback, interruptions, and waiting."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cassandra import DriverException
from cassandra.cluster import ControlConnection

from backend.extent_ids import ExtentId
from backend.journal.cassandra.tables import JOURNAL, CassandraTables
from metadata_service.cassandra import copy
from metadata_service.cassandra.driver.connection import CassandraConnection, Scope
from metadata_service.cassandra.schema import versions as cassandra_versions
from metadata_service.cassandra.schema.part import Part
from metadata_service.cassandra.schema.tables import METADATA
from metadata_service.cassandra.schema.versions import CassandraVersions
from metadata_service.cassandra.store import CassandraStore
from metadata_service.opening import CannotOpen
from metadata_service.schema import CannotRollBack, SchemaState, Step
from tests.metadata_service.cassandra.keyspace import KeyspaceSettings, opened, place_of
from tests.metadata_service.conformance import ACCOUNT, create
from tests.servers.cassandra_server import CassandraCluster
from tests.servers.waiting import until

STEP = Step(
    forward=(
        "CREATE TABLE IF NOT EXISTS {keyspace}.colours (name text PRIMARY KEY) WITH id = {id}",
        "ALTER TABLE {keyspace}.marks ADD IF NOT EXISTS colour text",
        "CREATE TABLE IF NOT EXISTS {keyspace}.shades (name text PRIMARY KEY) WITH id = {id}",
    ),
    back=(
        "ALTER TABLE {keyspace}.marks DROP IF EXISTS colour",
        "DROP TABLE IF EXISTS {keyspace}.colours",
        "DROP TABLE IF EXISTS {keyspace}.shades",
    ),
    lost=("SELECT name FROM {keyspace}.colours LIMIT 1",),
)
"""A step of no release."""
BEFORE, AFTER = METADATA.schema.version, METADATA.schema.version + 1


@contextmanager
def release_after(part: Part = METADATA) -> Iterator[None]:
    """Turn this process into the next release."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(part.schema, "steps", (*part.schema.steps, STEP))
        yield


@pytest.fixture
def place(cassandra: CassandraCluster, keyspace: str) -> KeyspaceSettings:
    return place_of(cassandra, keyspace)


@pytest.fixture
async def store(place: KeyspaceSettings) -> AsyncIterator[CassandraStore]:
    """A keyspace migrated to the version of the next release."""
    with release_after():
        async with opened(place) as store:
            await create(store, "orders")
            yield store


def versions(store: CassandraStore, part: Part = METADATA) -> CassandraVersions:
    return CassandraVersions(store.records, store.keyspace, part)


async def has_step(store: CassandraStore) -> bool:
    query = (
        "SELECT column_name FROM system_schema.columns"
        f" WHERE keyspace_name = '{store.keyspace.name}' AND table_name = '{{}}'"
    )
    ask = store.keyspace.connection.ask
    wanted = (("colours", "name"), ("marks", "colour"), ("shades", "name"))
    found = [(column,) in await ask(query.format(table), None) for table, column in wanted]
    assert len(set(found)) == 1, "a step is there whole, or not at all"
    return found[0]


def test_released_formats_do_not_change() -> None:
    """The fixture is the first release's statements: with other ids there would be two of each table."""
    connection: Any = SimpleNamespace(scope=Scope(""))
    asked = [
        part.complete(connection, "kept", 0, position, statement)
        for part in (METADATA, JOURNAL)
        for position, statement in enumerate(part.schema.steps[0].forward)
    ]
    assert ";\n".join(asked) + ";\n" == (Path(__file__).parents[2] / "fixtures" / "cassandra-1.cql").read_text()


async def test_both_releases_work_on_a_step_that_expands(store: CassandraStore, place: KeyspaceSettings) -> None:
    assert await versions(store).stored() == SchemaState(AFTER, BEFORE)
    assert await has_step(store)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(METADATA.schema, "steps", METADATA.schema.steps[:-1])
        async with opened(place) as before:
            await create(before, "other")
    assert await store.queues.list_queues(ACCOUNT, limit=10) == ["orders", "other"]
    assert await versions(store).stored() == SchemaState(AFTER, BEFORE)


async def test_one_step_back_and_forward_again(store: CassandraStore, place: KeyspaceSettings) -> None:
    for _ in range(2):  # it is one step, however often it is requested
        await versions(store).roll_back()
        assert await versions(store).stored() == SchemaState(BEFORE, BEFORE)
        assert not await has_step(store)
    async with opened(place) as again:
        assert await versions(again).stored() == SchemaState(AFTER, BEFORE)
        assert await has_step(again)
        assert await again.queues.list_queues(ACCOUNT, limit=10) == ["orders"]


async def test_a_step_back_that_would_lose_something_is_refused(store: CassandraStore) -> None:
    session = store.keyspace.connection.session
    session.execute(f"INSERT INTO {store.keyspace.name}.colours (name) VALUES ('red')", timeout=60)
    with pytest.raises(CannotRollBack, match="would lose it: nothing was changed"):
        await versions(store).roll_back()
    assert await versions(store).stored() == SchemaState(AFTER, BEFORE)
    assert await has_step(store)
    assert session.execute(f"SELECT name FROM {store.keyspace.name}.colours", timeout=60).one() == ("red",)


class _Cut(Exception):
    """The process has ended here."""


@contextmanager
def ending_at(part: Part, statement: str) -> Iterator[None]:
    """End the process before this change of the schema."""
    change_schema = CassandraConnection.change_schema

    def change(self: CassandraConnection, keyspace: str, *statements: str) -> None:
        if any(statement in one for one in statements):
            raise _Cut
        change_schema(self, keyspace, *statements)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CassandraConnection, "change_schema", change)
        yield


@pytest.mark.parametrize("statement", ["DROP IF EXISTS colour", "colours", "shades"])
async def test_a_way_back_that_was_cut_off_is_for_the_release_before_and_is_ended_by_the_next(
    store: CassandraStore, place: KeyspaceSettings, statement: str
) -> None:
    with ending_at(METADATA, statement), pytest.raises(_Cut):
        await versions(store).roll_back()
    assert await versions(store).stored() == SchemaState(BEFORE, BEFORE, leaving=AFTER)
    with pytest.raises(CannotOpen, match="has an incomplete rollback from version 2 of its schema to 1"):
        await place.open()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(METADATA.schema, "steps", METADATA.schema.steps[:-1])
        async with opened(place) as before:
            assert await before.queues.list_queues(ACCOUNT, limit=10) == ["orders"]
            with pytest.raises(CannotRollBack, match="which only a release that knows that version can complete"):
                await versions(before).roll_back()
    await versions(store).roll_back()
    assert await versions(store).stored() == SchemaState(BEFORE, BEFORE)
    assert not await has_step(store)


async def test_rows_written_between_two_halves_of_a_rollback_are_kept(store: CassandraStore) -> None:
    """Written by a process of the newer release that should not run any more."""
    with ending_at(METADATA, "colours"), pytest.raises(_Cut):
        await versions(store).roll_back()
    session = store.keyspace.connection.session
    session.execute(f"INSERT INTO {store.keyspace.name}.colours (name) VALUES ('red')", timeout=60)
    with pytest.raises(CannotRollBack, match="would lose it"):
        await versions(store).roll_back()
    assert await versions(store).stored() == SchemaState(AFTER, BEFORE)
    assert await has_step(store)


async def test_a_step_that_was_cut_off_is_taken_again(place: KeyspaceSettings) -> None:
    async with opened(place):
        pass
    with release_after():
        with ending_at(METADATA, "ADD IF NOT EXISTS colour"), pytest.raises(_Cut):
            await place.open()
        async with opened(place) as store:
            assert await versions(store).stored() == SchemaState(AFTER, BEFORE)
            assert await has_step(store)


async def test_a_step_concurrent_with_its_rollback_starts_again(place: KeyspaceSettings) -> None:
    """Otherwise it would record a step whose tables are gone."""
    async with opened(place) as before:
        with release_after(), pytest.MonkeyPatch.context() as patch:
            run, turns = CassandraVersions._run, []

            def then_back(self: CassandraVersions, version: int, statements: Any) -> None:
                run(self, version, statements)
                turns.append(statements)
                if len(turns) == 1:  # in the first thread: the second runs all of it, and rolls it back
                    asyncio.run_coroutine_threadsafe(there_and_back(), loop).result(60)

            async def there_and_back() -> None:
                other = versions(before)
                await other.migrate()
                await other.roll_back()

            loop = asyncio.get_running_loop()
            patch.setattr(CassandraVersions, "_run", then_back)
            await versions(before).migrate()
            assert turns == [STEP.forward, STEP.forward, STEP.back, STEP.forward]
            assert await versions(before).stored() == SchemaState(AFTER, BEFORE)
            assert await has_step(before)


async def test_the_journal_has_versions_of_its_own(place: KeyspaceSettings) -> None:
    async with opened(place) as store:
        await store.bring(JOURNAL)
        assert await versions(store, JOURNAL).stored() == JOURNAL.schema.stored(JOURNAL.schema.version)
        tables = set(await store.keyspace.tables() or ())
        assert {"journal", "journal_segments", "checkpoints", "checkpoint_files"} <= tables
        assert {"stream_chunks", "stream_extents"} <= tables
        with release_after(JOURNAL):
            await store.bring(JOURNAL)
            assert await versions(store, JOURNAL).stored() == SchemaState(3, 1)
            assert await versions(store).stored() == SchemaState(BEFORE, BEFORE)
            await versions(store, JOURNAL).roll_back()
        assert await versions(store, JOURNAL).stored() == SchemaState(2, 1)
        newer = {"journal/version": "9", "journal/oldest": "8"}
        await store.records.transact("schema", newer, lambda rows: (newer, None))
        with pytest.raises(CannotOpen, match=f"the journal in {place.keyspace} was written by a newer Holdfast"):
            await store.bring(JOURNAL)


async def test_a_journal_from_before_streams_gets_their_tables(
    place: KeyspaceSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(place) as store:

        async def tables() -> set[str]:
            return {"stream_chunks", "stream_extents"} & set(await store.keyspace.tables() or ())

        with monkeypatch.context() as patch:
            patch.setattr(JOURNAL.schema, "steps", JOURNAL.schema.steps[:1])
            await store.bring(JOURNAL)
            assert await tables() == set()
        with pytest.raises(CannotOpen, match=r"has version 1 of its schema, and this release reads version 2"):
            await copy.opened(store.keyspace.connection.share(), place.keyspace, JOURNAL)  # as for a backup
        await store.bring(JOURNAL)
        assert await versions(store, JOURNAL).stored() == SchemaState(2, 1)
        assert await tables() == {"stream_chunks", "stream_extents"}
        journal = await CassandraTables.open(store.keyspace.connection, place.keyspace, store.fence)
        await journal.add_extent(5, ExtentId(7, 1, 1))
        with pytest.raises(CannotRollBack, match="stream_extents"):
            await versions(store, JOURNAL).roll_back()
        assert await journal.extents(5) == [ExtentId(7, 1, 1)]
        await journal.drop_extent(5, ExtentId(7, 1, 1))
        await versions(store, JOURNAL).roll_back()
        assert await versions(store, JOURNAL).stored() == SchemaState(1, 1)
        assert await tables() == set()


async def test_a_node_that_is_down_for_a_moment_delays_the_tables(
    place: KeyspaceSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(place) as store:
        cluster = store.keyspace.connection.cluster
        refresh = cluster.refresh_keyspace_metadata
        failures = [DriverException("Keyspace metadata was not refreshed. See log for details.")]

        def refresh_later(keyspace: str) -> None:
            if failures:
                raise failures.pop()
            refresh(keyspace)

        monkeypatch.setattr(cluster, "refresh_keyspace_metadata", refresh_later)
        await store.bring(JOURNAL)
        assert not failures
        assert await versions(store, JOURNAL).stored() == JOURNAL.schema.stored(JOURNAL.schema.version)


def statements(store: CassandraStore, place: KeyspaceSettings) -> dict[str, str]:
    """The statement that would make each table: the driver's own objects are replaced whenever it reads the schema."""
    tables = store.keyspace.connection.cluster.metadata.keyspaces[place.keyspace].tables
    return {name: table.export_as_string() for name, table in tables.items()}


async def test_a_keyspace_from_before_versions_were_kept_is_one_of_the_first(place: KeyspaceSettings) -> None:
    async with opened(place) as store:
        await store.records.transact("schema", ["oldest"], lambda rows: ({"oldest": ""}, None))
        assert await versions(store).stored() == SchemaState(BEFORE, BEFORE)
        for number, step in enumerate(JOURNAL.schema.steps):
            JOURNAL.run(store.keyspace.connection, place.keyspace, number, step.forward)
        before = statements(store, place)
        await store.bring(JOURNAL)
        assert statements(store, place) == before
        assert (await versions(store, JOURNAL).stored()).version == JOURNAL.schema.version


async def test_a_waiting_process_continues_when_another_has_done_it(
    place: KeyspaceSettings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cassandra_versions, "POLL_SECONDS", 0.05)
    caplog.set_level(logging.WARNING)
    waiting = asyncio.create_task(place.open(wait=True))
    await until(lambda: "waiting for" in caplog.text)
    assert not waiting.done()
    async with opened(place) as store:
        waited = await asyncio.wait_for(waiting, 60)
        await create(waited, "orders")
        assert await store.queues.list_queues(ACCOUNT, limit=10) == ["orders"]
        caplog.clear()
        with release_after():
            once_more = asyncio.create_task(place.open(wait=True))
            await until(lambda: "to get version 2 of its schema" in caplog.text)
            bringing = asyncio.create_task(waited.bring(JOURNAL))
            await versions(store).migrate()
            await store.bring(JOURNAL)
            await asyncio.wait_for(asyncio.gather(bringing, once_more), 60)
        await once_more.result().close()
        await waited.close()


async def test_a_waiting_process_continues_although_no_change_of_the_schema_is_notified(
    place: KeyspaceSettings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ControlConnection, "_handle_schema_change", lambda control, event: None)
    monkeypatch.setattr(cassandra_versions, "POLL_SECONDS", 0.05)
    waiting = asyncio.create_task(place.open(wait=True))
    await until(lambda: "waiting for" in caplog.text)
    async with opened(place):
        await (await asyncio.wait_for(waiting, 60)).close()


async def test_the_error_of_a_wait_that_timed_out(place: KeyspaceSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cassandra_versions, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(cassandra_versions, "WAIT_SECONDS", 0.1)
    with pytest.raises(CannotOpen, match=f"waited 0 s for keyspace {place.keyspace} to be made: run holdfast schema"):
        await place.open(wait=True)
    async with opened(place):
        with release_after(), pytest.raises(CannotOpen, match="or set schema_migration to start"):
            await place.open(wait=True)
