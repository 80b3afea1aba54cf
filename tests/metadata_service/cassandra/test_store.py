"""The Cassandra store: the conformance suite, its keyspace, and how it is opened."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from unittest import mock

import pytest
from cassandra import InvalidRequest

from metadata_service.cassandra import queues as cassandra_queues
from metadata_service.cassandra.driver.connection import (
    CassandraConnection,
    CassandraSettings,
    ConnectionClosed,
)
from metadata_service.cassandra.driver.records import Records, VersionedRecord, Writes
from metadata_service.cassandra.schema.tables import METADATA
from metadata_service.cassandra.store import CassandraStore
from metadata_service.models import ShardEntry
from metadata_service.opening import CannotOpen
from metadata_service.store import (
    ConditionFailed,
    MetadataStore,
    StoreUnavailable,
)
from tests.metadata_service.cassandra.keyspace import KeyspaceSettings, opened, place_of
from tests.metadata_service.conformance import (
    ACCOUNT,
    ClusterConformance,
    LifetimeConformance,
    Opening,
    StoreConformance,
    create,
)
from tests.servers.cassandra_server import QUICK_START, CassandraCluster
from tests.servers.waiting import until


@pytest.fixture(scope="module")
def shared(cassandra: CassandraCluster) -> KeyspaceSettings:
    """A keyspace that tests share and empty, because creating tables takes longer than most tests of the suite."""
    return place_of(cassandra, "conformance")


class TestCassandraLifetime(LifetimeConformance):
    @pytest.fixture
    def opening(self, place: KeyspaceSettings) -> Opening:
        return lambda: opened(place)


class TestCassandraConformance(StoreConformance, ClusterConformance):
    @pytest.fixture
    async def store(self, shared: KeyspaceSettings) -> AsyncIterator[MetadataStore]:
        async with opened(shared) as store:
            yield store
            for table in ("records", "marks"):
                store.keyspace.connection.session.execute(f"TRUNCATE {shared.keyspace}.{table}", timeout=60)

    @pytest.fixture
    async def other(self, shared: KeyspaceSettings) -> AsyncIterator[MetadataStore]:
        async with opened(shared) as store:
            yield store


async def test_several_processes_that_open_a_new_keyspace_at_once_make_one(place: KeyspaceSettings) -> None:
    stores = await asyncio.gather(*(place.open() for _ in range(4)))
    queues = [await create(store, f"q{number}") for number, store in enumerate(stores)]
    for store in stores:
        assert [await store.queues.get_queue_by_id(queue.queue_id) for queue in queues] == queues
        await store.close()


def table_ids(store: CassandraStore) -> dict[str, Any]:
    query = f"SELECT table_name, id FROM system_schema.tables WHERE keyspace_name = '{store.keyspace.name}'"
    return dict(store.keyspace.connection.session.execute(query, timeout=60).all())


@pytest.mark.parametrize("lost", ["marks", "both", "version"])
async def test_an_opening_that_was_cut_off_is_finished_by_the_next(place: KeyspaceSettings, lost: str) -> None:
    async with opened(place) as store:
        session = store.keyspace.connection.session
        before = table_ids(store)
        if lost in ("marks", "both"):
            session.execute(f"DROP TABLE {place.keyspace}.marks", timeout=60)
        if lost == "both":
            session.execute(f"DROP TABLE {place.keyspace}.records", timeout=60)
        else:
            await store.records.transact("schema", ["version"], lambda rows: ({"version": None}, None))
    async with opened(place) as again:
        queue = await create(again, "orders")
        assert await again.queues.get_queue_by_id(queue.queue_id) == queue
        assert await again.records.get("schema", "version") == str(METADATA.schema.version)
        assert table_ids(again) == before  # else two processes that create them at once would create two


async def test_a_node_that_does_not_know_a_new_table_yet_is_retried(
    store: CassandraStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several processes open a new keyspace, and one finds tables that another is creating."""
    connection = store.keyspace.connection
    prepare = mock.Mock(side_effect=[InvalidRequest("table records does not exist"), mock.DEFAULT])
    prepare.return_value = known = connection.session.prepare("SELECT key FROM system.local")
    with monkeypatch.context() as patched:
        patched.setattr(connection, "session", mock.Mock(prepare=prepare))
        assert connection.prepare(f"SELECT key FROM {store.keyspace.name}.records WHERE space = ?") is known
    assert prepare.call_count == 2
    with pytest.raises(InvalidRequest):
        connection.prepare(f"SELECT key FROM {store.keyspace.name}.never_made WHERE space = ?")


async def test_a_schema_of_which_it_is_not_known_whether_it_was_written_is_written_again(
    place: KeyspaceSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many processes open a new keyspace of a Cassandra that has just started."""
    asked: list[str] = []
    transact = Records.transact

    async def doubtful(self: Records, space: str, keys: Any, decide: Any) -> Any:
        asked.append(space)
        answer = await transact(self, space, keys, decide)
        if asked == ["schema", "schema"]:
            raise StoreUnavailable("whether it took effect is not known")
        return answer

    monkeypatch.setattr(Records, "transact", doubtful)
    async with opened(place) as store:
        assert asked == ["schema"] * 3
        await create(store, "q")


async def test_a_newer_schema_is_refused(place: KeyspaceSettings) -> None:
    async with opened(place) as store:
        newer = dict.fromkeys(("version", "oldest"), str(METADATA.schema.version + 1))
        await store.records.transact("schema", newer, lambda rows: (newer, None))
    with pytest.raises(CannotOpen, match="written by a newer Holdfast"):
        await place.open()


async def test_the_deciding_quorum_is_fixed_when_the_tables_are_made(place: KeyspaceSettings) -> None:
    local = place.but(scope="datacenter1")
    async with opened(local) as store:
        queue = await create(store, "orders")
        assert await store.queues.get_queue_by_id(queue.queue_id) == queue
        assert await store.entries.shards() == []
    with pytest.raises(CannotOpen, match=r"data centre datacenter1.*the quorum of all replicas.*cannot be changed"):
        await place.open()


async def test_settings_that_cannot_be_say_so(place: KeyspaceSettings) -> None:
    for changes, message in (
        ({"replication": {}}, "do not say in which data centres"),
        ({"replication": {"nowhere": 3}}, "no data centre nowhere: Cassandra has datacenter1"),
        ({"port": 1}, "no Cassandra can be reached at 127.0.0.1, port 1"),
    ):
        with pytest.raises(CannotOpen, match=message):
            await place.but(**changes).open()
    with pytest.raises(CannotOpen, match="cannot be a keyspace"):
        await place._replace(keyspace="x; DROP").open()


async def test_a_node_that_stands_still_is_waited_for(
    cassandra: CassandraCluster, place: KeyspaceSettings, caplog: pytest.LogCaptureFixture
) -> None:
    (node,) = cassandra.nodes
    node.pause()
    try:
        opening = asyncio.create_task(CassandraConnection.open(place.settings))
        await until(lambda: opening.done() or "did not answer in time; trying again for " in caplog.text)
    finally:
        node.resume()
    await (await opening).close()


async def test_a_node_that_never_answers_is_waited_for_in_vain(
    cassandra: CassandraCluster, place: KeyspaceSettings, caplog: pytest.LogCaptureFixture
) -> None:
    (node,) = cassandra.nodes
    node.pause()
    try:
        with pytest.raises(CannotOpen, match="did not answer in time"):
            await CassandraConnection.open(place.settings, wait_seconds=8)
    finally:
        node.resume()
    assert "did not answer in time; trying again for " in caplog.text


async def test_a_commit_log_that_loses_what_was_acknowledged_is_reported_or_refused(
    place: KeyspaceSettings, caplog: pytest.LogCaptureFixture
) -> None:
    with CassandraCluster(commit_log="periodic", heap="256m", java_options=QUICK_START) as careless:
        unsafe = place.but(port=careless.port)
        async with opened(unsafe):
            assert "commitlog_sync is periodic at 127.0.0.1" in caplog.text
        with pytest.raises(CannotOpen, match="loses writes that were acknowledged"):
            await unsafe.but(strict=True).open()
    caplog.clear()
    async with opened(place.but(strict=True)):
        assert "commitlog_sync" not in caplog.text


def test_settings_do_not_show_their_password() -> None:
    assert "secret" not in repr(CassandraSettings(contact_points=("a",), replication={}, password="secret"))


async def test_stores_share_a_connection_and_the_last_one_ends_it(place: KeyspaceSettings) -> None:
    connection = await CassandraConnection.open(place.settings)
    one = await CassandraStore.open(connection, place.keyspace)
    other = await CassandraStore.open(connection.share(), f"{place.keyspace}_c")
    assert await one.entries.new_incarnation("node") == await other.entries.new_incarnation("node")
    await one.close()
    await one.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await one.entries.logs()
    assert len(await other.entries.logs()) == 1
    assert not connection.cluster.is_shutdown
    await other.close()
    assert connection.cluster.is_shutdown
    with pytest.raises(ConnectionClosed):
        await connection.ask("SELECT key FROM system.local", None)


async def test_a_connection_that_opens_nothing_is_ended(place: KeyspaceSettings) -> None:
    connection = await CassandraConnection.open(place.settings)
    with pytest.raises(CannotOpen):
        await CassandraStore.open(connection, "x; DROP")
    assert connection.cluster.is_shutdown


async def test_a_page_of_names_reads_no_more_than_it_gives(store: CassandraStore) -> None:
    """Measured by the reads that Cassandra reports."""
    names = [f"q{number:03}" for number in range(120)]

    def fill(rows: dict[str, VersionedRecord]) -> tuple[Writes, None]:
        return {"account": "{}"} | {f"{kind}/{name}": "{}" for name in names for kind in ("queue", "held")}, None

    await store.records.transact(cassandra_queues.names_space(ACCOUNT), ["account"], fill)
    assert await store.queues.list_queues(ACCOUNT, prefix="q", after="q040", limit=3) == ["q041", "q042", "q043"]
    bound = store.records._keys.bind((cassandra_queues.names_space(ACCOUNT), "queue/q041", "queue/~", 3))
    trace = store.keyspace.connection.session.execute(bound, timeout=60, trace=True).get_query_trace(60)
    assert "Read 3 live rows" in " ".join(event.description for event in trace.events)


async def test_all_shards_change_in_one_transaction(store: CassandraStore) -> None:
    entries = [ShardEntry(shard=shard, owner_log=1, epoch=1, live=((1, shard),) * 50) for shard in range(256)]
    stored = await store.entries.update_shards(entries)
    assert await store.entries.shards() == stored
    with pytest.raises(ConditionFailed, match="shard 255 "):
        await store.entries.update_shards([*stored[:255], entries[255]])
    assert await store.entries.shards() == stored
