"""The Cassandra store: the conformance suite, and tests of its own properties."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec
import pytest
from cassandra import InvalidRequest, OperationTimedOut
from cassandra.cluster import NoHostAvailable

from auth.credentials import AccessKey, ServiceKey, Tenant, TenantRole, new_access_key
from auth.encryption.data_keys import DataKey
from auth.tokens.service_keys import lasting_secret
from bench.servers.cassandra_server import QUICK_START, CassandraCluster
from metadata_service.cassandra import changes as cassandra_changes
from metadata_service.cassandra import queues as cassandra_queues
from metadata_service.cassandra.driver.connection import (
    CassandraConnection,
    CassandraSettings,
    ConnectionClosed,
    StatementFailed,
)
from metadata_service.cassandra.records import Records, VersionedRecord, Writes
from metadata_service.cassandra.schema.tables import METADATA
from metadata_service.cassandra.store import CassandraStore
from metadata_service.models import LogEntry, Queue, ShardEntry, partition_id
from metadata_service.opening import CannotOpen
from metadata_service.store import (
    ConditionFailed,
    MetadataStore,
    QueueExists,
    QueueNotFound,
    StoreUnavailable,
    TooManyQueues,
)
from tests.metadata_service.conformance import ACCOUNT, NOW_MS, ClusterConformance, StoreConformance, create, redrive_to

HOUR_MS = 3_600_000


class KeyspaceSettings(NamedTuple):
    """A keyspace, and the settings to reach it."""

    settings: CassandraSettings
    keyspace: str

    async def open(self, **options: Any) -> CassandraStore:
        return await CassandraStore.open(await CassandraConnection.open(self.settings), self.keyspace, **options)

    def but(self, **changes: Any) -> KeyspaceSettings:
        return self._replace(settings=msgspec.structs.replace(self.settings, **changes))


@pytest.fixture
def place(cassandra: CassandraCluster, keyspace: str) -> KeyspaceSettings:
    return place_of(cassandra, keyspace)


def place_of(cassandra: CassandraCluster, keyspace: str) -> KeyspaceSettings:
    settings = CassandraSettings(
        contact_points=tuple(cassandra.contact_points),
        port=cassandra.port,
        replication={"datacenter1": 1},
        attempt_seconds=5,  # the machine may have other work
        timeout_seconds=20,
    )
    return KeyspaceSettings(settings, keyspace)


@asynccontextmanager
async def opened(place: KeyspaceSettings) -> AsyncIterator[CassandraStore]:
    store = await place.open()
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def store(place: KeyspaceSettings) -> AsyncIterator[MetadataStore]:
    async with opened(place) as store:
        yield store


@pytest.fixture
async def stores(place: KeyspaceSettings) -> AsyncIterator[tuple[CassandraStore, CassandraStore]]:
    """The same keyspace, opened twice: like two processes, which share no lock."""
    async with opened(place) as one, opened(place) as other:
        yield one, other


@pytest.fixture(scope="module")
def shared(cassandra: CassandraCluster) -> KeyspaceSettings:
    """A keyspace that tests share and empty, because creating tables takes longer than most tests of the suite."""
    return place_of(cassandra, "conformance")


class TestCassandraConformance(StoreConformance, ClusterConformance):
    @pytest.fixture
    async def store(self, shared: KeyspaceSettings) -> AsyncIterator[MetadataStore]:
        async with opened(shared) as store:
            yield store
            for table in ("records", "marks"):
                store.keyspace.connection.session.execute(f"TRUNCATE {shared.keyspace}.{table}", timeout=60)


# --- the keyspace -----------------------------------------------------------------------------------------


async def test_all_is_there_after_reopening(place: KeyspaceSettings) -> None:
    async with opened(place) as store:
        queue = await create(store, "orders", redrive_to("arn:x"))
        entry = await store.new_incarnation("node")
        await store.put_tenant(Tenant(ACCOUNT, "root"))
        key = new_access_key(ACCOUNT)
        await store.put_access_key(key)
    async with opened(place) as again:
        assert await again.get_queue(ACCOUNT, "orders") == queue
        assert await again.logs() == [entry]
        assert await again.get_access_key(key.access_key_id) == key
        assert (await again.new_incarnation("node")).incarnation == 2
        assert (await create(again, "other")).queue_id > queue.queue_id


async def test_several_processes_that_open_a_new_keyspace_at_once_make_one(place: KeyspaceSettings) -> None:
    stores = await asyncio.gather(*(place.open() for _ in range(4)))
    queues = [await create(store, f"q{number}") for number, store in enumerate(stores)]
    for store in stores:
        assert [await store.get_queue_by_id(queue.queue_id) for queue in queues] == queues
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
            await store._records.transact("schema", ["version"], lambda rows: ({"version": None}, None))
    async with opened(place) as again:
        queue = await create(again, "orders")
        assert await again.get_queue_by_id(queue.queue_id) == queue
        assert await again._records.get("schema", "version") == str(METADATA.schema.version)
        assert table_ids(again) == before  # else two processes that create them at once would create two


async def test_a_node_that_has_not_heard_of_a_new_table_yet_is_asked_again(
    store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several processes open a new keyspace, and one finds tables that another is creating."""
    assert isinstance(store, CassandraStore)
    connection = store.keyspace.connection
    answers: list[str] = []

    class Session:
        def prepare(self, query: str) -> Any:
            if not answers:
                answers.append("unknown")
                raise InvalidRequest("table records does not exist")
            answers.append("known")
            return session.prepare(query)

    session = connection.session
    monkeypatch.setattr(connection, "session", Session())
    connection.prepare(f"SELECT key FROM {store.keyspace.name}.records WHERE space = ?")
    assert answers == ["unknown", "known"]
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
        if asked == ["schema", "schema"]:
            await transact(self, space, keys, decide)
            raise StoreUnavailable("whether it took effect is not known")
        return await transact(self, space, keys, decide)

    monkeypatch.setattr(Records, "transact", doubtful)
    async with opened(place) as store:
        assert asked == ["schema"] * 3
        await create(store, "q")


async def test_a_newer_schema_is_refused(place: KeyspaceSettings) -> None:
    async with opened(place) as store:
        newer = dict.fromkeys(("version", "oldest"), str(METADATA.schema.version + 1))
        await store._records.transact("schema", newer, lambda rows: (newer, None))
    with pytest.raises(CannotOpen, match="written by a newer Holdfast"):
        await place.open()


async def test_whose_quorum_decides_is_fixed_when_the_tables_are_made(place: KeyspaceSettings) -> None:
    local = place.but(scope="datacenter1")
    async with opened(local) as store:
        queue = await create(store, "orders")
        assert await store.get_queue_by_id(queue.queue_id) == queue
        assert await store.shards() == []
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


async def test_a_commit_log_that_loses_what_was_acknowledged_is_told_or_refused(
    place: KeyspaceSettings, caplog: pytest.LogCaptureFixture
) -> None:
    with CassandraCluster(commit_log="periodic", heap="256m", java_options=QUICK_START) as careless:
        theirs = place.but(port=careless.port)
        async with opened(theirs):
            assert "commitlog_sync is periodic at 127.0.0.1" in caplog.text
        with pytest.raises(CannotOpen, match="loses writes that were acknowledged"):
            await theirs.but(strict=True).open()
    caplog.clear()
    async with opened(place.but(strict=True)):
        assert "commitlog_sync" not in caplog.text


def test_settings_do_not_show_their_password() -> None:
    assert "secret" not in repr(CassandraSettings(contact_points=("a",), replication={}, password="secret"))


async def test_stores_share_a_connection_and_the_last_one_ends_it(place: KeyspaceSettings) -> None:
    connection = await CassandraConnection.open(place.settings)
    one = await CassandraStore.open(connection, place.keyspace)
    other = await CassandraStore.open(connection.share(), f"{place.keyspace}_c")
    assert await one.new_incarnation("node") == await other.new_incarnation("node")
    await one.close()
    await one.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await one.logs()
    assert len(await other.logs()) == 1
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


async def test_a_closed_store_says_so(place: KeyspaceSettings) -> None:
    async with opened(place) as store:
        await store.close()
        with pytest.raises(StoreUnavailable, match="closed"):
            await store.get_queue(ACCOUNT, "orders")
        with pytest.raises(StoreUnavailable, match="closed"):
            await create(store, "orders")


async def test_a_page_of_names_reads_no_more_than_it_gives(place: KeyspaceSettings) -> None:
    """Measured by the reads that Cassandra reports."""
    async with opened(place) as store:
        names = [f"q{number:03}" for number in range(120)]

        def fill(rows: dict[str, VersionedRecord]) -> tuple[Writes, None]:
            return {"account": "{}"} | {f"{kind}/{name}": "{}" for name in names for kind in ("queue", "held")}, None

        await store._records.transact(cassandra_queues._names(ACCOUNT), ["account"], fill)
        assert await store.list_queues(ACCOUNT, prefix="q", after="q040", limit=3) == ["q041", "q042", "q043"]
        bound = store._records._keys.bind((cassandra_queues._names(ACCOUNT), "queue/q041", "queue/~", 3))
        trace = store.keyspace.connection.session.execute(bound, timeout=60, trace=True).get_query_trace(60)
        assert "Read 3 live rows" in " ".join(event.description for event in trace.events)


async def test_all_shards_change_in_one_transaction(store: MetadataStore) -> None:
    entries = [ShardEntry(shard=shard, owner_log=1, epoch=1, live=((1, shard),) * 50) for shard in range(256)]
    stored = await store.update_shards(entries)
    assert await store.shards() == stored
    with pytest.raises(ConditionFailed, match="shard 255 "):
        await store.update_shards([*stored[:255], entries[255]])
    assert await store.shards() == stored


# --- two processes ----------------------------------------------------------------------------------------


async def test_of_two_creators_of_a_name_one_wins(stores: tuple[CassandraStore, CassandraStore]) -> None:
    for number in range(10):
        outcomes = await asyncio.gather(
            *(create(store, f"q{number}") for store in stores for _ in range(2)), return_exceptions=True
        )
        (winner,) = [outcome for outcome in outcomes if isinstance(outcome, Queue)]
        assert [one.queue for one in outcomes if isinstance(one, QueueExists)] == [winner] * 3
        for store in stores:
            assert await store.get_queue(ACCOUNT, f"q{number}") == winner
            assert await store.get_queue_by_id(winner.queue_id) == winner
    assert await stores[0].collect(now_ms=NOW_MS) == 0  # the losers left nothing


async def test_a_quota_is_exact(stores: tuple[CassandraStore, CassandraStore]) -> None:
    async def make(number: int) -> Queue:
        store = stores[number % 2]
        return await store.create_queue(ACCOUNT, f"q{number}", {}, {}, now_ms=NOW_MS, hold_seconds=60, queues_most=3)

    outcomes = await asyncio.gather(*map(make, range(8)), return_exceptions=True)
    assert sum(isinstance(outcome, Queue) for outcome in outcomes) == 3
    assert sum(isinstance(outcome, TooManyQueues) for outcome in outcomes) == 5


async def test_changes_of_two_processes_do_not_overwrite_each_other(
    stores: tuple[CassandraStore, CassandraStore],
) -> None:
    queue = await create(stores[0], "orders")

    async def add(store: CassandraStore, tag: str) -> None:
        while True:
            known = await store.get_queue(ACCOUNT, "orders")
            try:
                tags = {**known.tags, tag: ""}
                await store.update_queue(queue.queue_id, known.version, now_ms=NOW_MS, tags=tags)
            except ConditionFailed:
                continue
            return

    await asyncio.gather(*(add(stores[number % 2], f"t{number}") for number in range(8)))
    final = await stores[0].get_queue(ACCOUNT, "orders")
    assert set(final.tags) == {f"t{number}" for number in range(8)}
    assert final.version == 9


async def test_processes_that_start_at_once_have_the_same_secret(
    stores: tuple[CassandraStore, CassandraStore],
) -> None:
    for purpose in "abc":
        found = await asyncio.gather(*(lasting_secret(store, purpose, clock=lambda: 0) for store in stores * 3))
        assert len(set(found)) == 1
        assert len(await stores[0].list_service_keys(purpose)) == 1


async def test_ids_are_given_out_once(stores: tuple[CassandraStore, CassandraStore]) -> None:
    entries = await asyncio.gather(*(store.new_incarnation(node) for node in "ab" for store in stores * 2))
    assert {entry.log_id for entry in entries} == set(range(1, 9))
    assert sorted((entry.node, entry.incarnation) for entry in entries) == [
        (node, number) for node in "ab" for number in range(1, 5)
    ]
    ids = await asyncio.gather(*(store.new_data_key_id() for store in stores * 3))
    assert sorted(ids) == [1, 2, 3, 4, 5, 6]


async def test_a_key_that_is_put_while_its_tenant_is_deleted_does_not_stay(
    stores: tuple[CassandraStore, CassandraStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = stores
    tenant, key = Tenant(ACCOUNT, "root"), AccessKey("AKIAEXAMPLE000000000", "secret-secret", ACCOUNT, "AIDA")
    await one.create_tenant(tenant)
    put = one._put

    async def delete_tenant_first(*arguments: Any) -> None:
        await other.update_tenant(msgspec.structs.replace(tenant, state="deleting"))
        for listed in await other.list_access_keys(ACCOUNT):
            await other.delete_access_key(listed.access_key_id)
        await put(*arguments)

    monkeypatch.setattr(one, "_put", delete_tenant_first)
    with pytest.raises(ValueError, match="no tenant"):
        await one.put_access_key(key)
    assert await other.get_access_key(key.access_key_id) is None
    assert await other._records.all(f"tenant/{ACCOUNT}", "access_key/") == []


async def test_a_process_sees_what_another_answered(stores: tuple[CassandraStore, CassandraStore]) -> None:
    one, other = stores
    log, later = await one.new_incarnation("a"), await one.new_incarnation("b")
    assert await other.poll_entries() == ([log, later], [])
    (shard,) = await one.update_shards([ShardEntry(shard=3, owner_log=1, epoch=1)])
    sealed = await one.update_log(msgspec.structs.replace(log, state="sealed", sealed_seq=5))
    assert await other.poll_entries() == ([sealed, later], [shard])
    assert await other.logs() == [sealed, later]
    # A sealed log stays sealed.  Its later changes matter for decisions, and not for views.
    accepted = await one.update_log(msgspec.structs.replace(sealed, accepted=True))
    (moved,) = await one.update_shards([msgspec.structs.replace(shard, epoch=2)])
    assert [entry.state for entry in (await other.poll_entries()).logs] == ["sealed", "open"]
    assert await other.logs() == [accepted, later]
    assert await other.shards() == [moved]
    assert await other.poll_entries() == ([accepted, later], [moved])


async def test_entries_that_have_not_changed_are_not_read_again(
    stores: tuple[CassandraStore, CassandraStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A view costs three small reads, a decision the version of the shards and the entry of each log."""
    one, other = stores
    entries = [await one.new_incarnation(f"n{number}") for number in range(4)]
    shards = await one.update_shards([ShardEntry(shard=shard, owner_log=1, epoch=1) for shard in range(256)])
    for entry in entries[2:]:
        await one.update_log(msgspec.structs.replace(entry, state="sealed", sealed_seq=5))
    await other.poll_entries()
    rows: list[int] = []
    once = other.keyspace._once

    async def counted(*arguments: Any) -> Any:
        found = await once(*arguments)
        rows.append(len(found))
        return found

    monkeypatch.setattr(other.keyspace, "_once", counted)
    assert (await other.poll_entries()).shards == shards
    assert rows == [1, 0, 0]  # the version, no new log; neither of two logs has changed since its start
    rows.clear()
    assert await other.shards() == shards
    assert rows == [1]
    rows.clear()
    assert len(await other.logs()) == 4
    assert rows == [0, 2, 1, 1]  # no new log, copies of two, one of which was changed, and the entries of two
    rows.clear()
    await one.update_shards([msgspec.structs.replace(shards[7], epoch=2)])
    assert (await other.poll_entries()).shards[7].epoch == 2
    assert rows == [1, 257, 0, 0]


async def test_each_log_is_in_a_partition_of_its_own(store: CassandraStore) -> None:
    """The fence is the most frequent read."""
    entries = [await store.new_incarnation("a") for _ in range(3)]
    connection = store.keyspace.connection
    fence = store.fence
    read = await asyncio.to_thread(connection.prepare, fence.statement)
    assert {read.bind(fence.values(entry.log_id)).routing_key for entry in entries} == {
        f"log/{entry.log_id}".encode() for entry in entries
    }
    await store.update_log(msgspec.structs.replace(entries[1], state="recovering", recovering_by=1))
    states = [fence.state((await connection.ask(read, fence.values(entry.log_id)))[0][0]) for entry in entries]
    assert states == ["open", "recovering", "open"]
    assert await connection.ask(read, fence.values(9)) == []


# --- remains of a process that ended midway ---------------------------------------------------------------


class LogGate:
    """Delays the creation of a log between its number and its entry."""

    def __init__(self, store: CassandraStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.open = asyncio.Event(), asyncio.Event()
        transact = store._records.transact

        async def held_up(space: str, *arguments: Any) -> Any:
            if space.startswith("log/"):
                self.reached.set()
                await self.open.wait()
            return await transact(space, *arguments)

        monkeypatch.setattr(store._records, "transact", held_up)


class Gate:
    """Delays a creation between its two phases: its id has a mark, its name has no queue yet."""

    def __init__(self, store: CassandraStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.open = asyncio.Event(), asyncio.Event()
        self._mark = store._records.mark
        monkeypatch.setattr(store._records, "mark", self._mark_and_wait)

    async def _mark_and_wait(self, *arguments: Any, **options: Any) -> None:
        await self._mark(*arguments, **options)
        self.reached.set()
        await self.open.wait()


async def ended(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait([task])


async def test_a_creator_that_ends_between_the_phases_leaves_nothing_in_the_way(
    stores: tuple[CassandraStore, CassandraStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = stores
    gate = Gate(one, monkeypatch)
    creation = asyncio.create_task(create(one, "orders"))
    await gate.reached.wait()
    await ended(creation)
    left = await other._records.count("queue")
    assert await other.get_queue_by_id(left) is None
    with pytest.raises(QueueNotFound):
        await other.get_queue(ACCOUNT, "orders")
    with pytest.raises(QueueNotFound):
        await other.delete_queue(left, now_ms=NOW_MS)
    queue = await create(other, "orders")
    assert await other.get_queue_by_id(left) is None
    with pytest.raises(QueueNotFound):
        await other.update_queue(left, 1, now_ms=NOW_MS, tags={})
    assert await other.collect(now_ms=NOW_MS) == 1
    assert await other.collect(now_ms=NOW_MS) == 0
    assert await other.get_queue_by_id(queue.queue_id) == queue
    assert await other.list_queues(ACCOUNT, limit=10) == ["orders"]


async def ending_before(store: CassandraStore, monkeypatch: pytest.MonkeyPatch, method: str, place: str) -> None:
    """End the process before this call of its records, at a place with this prefix."""
    real = getattr(store._records, method)

    async def ended(space: str, *arguments: Any, **options: Any) -> Any:
        if space.startswith(place):
            raise StoreUnavailable("the process has ended")
        return await real(space, *arguments, **options)

    monkeypatch.setattr(store._records, method, ended)


async def test_a_log_that_was_not_begun_whole_is_claimed_as_any_other(
    stores: tuple[CassandraStore, CassandraStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process ended, or is suspended, between the number and the log's own entry."""
    one, other = stores
    gate = LogGate(one, monkeypatch)
    beginning = asyncio.create_task(one.new_incarnation("a"))
    await gate.reached.wait()
    (started,) = await other.logs("a")
    assert started == LogEntry(log_id=1, node="a", incarnation=1)
    assert (await other.poll_entries()).logs == [started]
    successor = await other.new_incarnation("a")
    sealed = await other.update_log(msgspec.structs.replace(started, state="sealed", sealed_seq=0))
    gate.open.set()
    with pytest.raises(ConditionFailed, match="claimed before it was started"):
        await beginning
    assert await one.logs() == [sealed, successor]


async def test_who_decides_sees_what_a_process_that_ended_has_told_nobody(
    stores: tuple[CassandraStore, CassandraStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And publishes it for views."""
    one, other = stores
    entry = await one.new_incarnation("a")
    await ending_before(one, monkeypatch, "mark", "logs")
    with pytest.raises(StoreUnavailable):
        await one.update_log(msgspec.structs.replace(entry, state="recovering", recovering_by=7))
    assert (await other.poll_entries()).logs == [entry]
    (recovering,) = await other.logs()
    assert (recovering.state, recovering.version) == ("recovering", 2)
    assert (await one.poll_entries()).logs == [recovering]


async def test_a_change_is_answered_when_the_others_can_know(
    stores: tuple[CassandraStore, CassandraStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = stores
    queue = await create(one, "orders")
    start = (await other.queue_changes(None)).last
    await ending_before(one, monkeypatch, "transact", "queue_changes")
    with pytest.raises(StoreUnavailable):
        await one.update_queue(queue.queue_id, 1, now_ms=NOW_MS, tags={"a": "b"})
    assert (await other.get_queue(ACCOUNT, "orders")).version == 2
    assert await other.queue_changes(start) == (start, [])
    monkeypatch.undo()
    await one.update_queue(queue.queue_id, 2, now_ms=NOW_MS, tags={"a": "c"})
    assert (await other.queue_changes(start)).names == [(ACCOUNT, "orders")]


async def test_notes_of_changes_go_together(store: CassandraStore, monkeypatch: pytest.MonkeyPatch) -> None:
    transactions = []
    transact = store._records.transact

    async def counted(space: str, *arguments: Any) -> Any:
        transactions.append(space)
        return await transact(space, *arguments)

    monkeypatch.setattr(store._records, "transact", counted)
    start = (await store.queue_changes(None)).last
    await asyncio.gather(*(store._record_change(ACCOUNT, f"q{number}") for number in range(150)))
    assert len(transactions) == 2
    assert (await store.queue_changes(start)).names == [(ACCOUNT, f"q{number}") for number in range(150)]


async def test_only_so_many_changes_are_kept(
    stores: tuple[CassandraStore, CassandraStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = stores
    monkeypatch.setattr(cassandra_changes, "KEPT", 10)
    start = (await other.queue_changes(None)).last
    for number in range(25):
        await one._record_change(ACCOUNT, f"q{number}")
    last = start + 25
    assert await other.queue_changes(last - 10) == (last, [(ACCOUNT, f"q{number}") for number in range(15, 25)])
    assert await other.queue_changes(last - 11) == (last, None)
    get = other._records.get

    async def overtaken(*arguments: Any) -> Any:
        found = await get(*arguments)
        await one._record_change(ACCOUNT, "more")
        return found

    monkeypatch.setattr(other._records, "get", overtaken)
    assert await other.queue_changes(last - 10) == (last, None)
    assert len(await one._records.all("queue_changes")) == 11


async def test_a_process_collects_now_and_then(place: KeyspaceSettings) -> None:
    async with opened(place) as other:
        await other._records.mark(*cassandra_queues._id(0), f'["{ACCOUNT}","q"]')
        store = await place.open(collect_seconds=0.01)
        async with asyncio.timeout(30):
            while await other._records.marks(cassandra_queues._ids(0)):
                await asyncio.sleep(0.01)
        await store.close()


async def test_a_creation_that_the_collector_has_given_up_takes_another_id(
    stores: tuple[CassandraStore, CassandraStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = stores
    gate = Gate(one, monkeypatch)
    creation = asyncio.create_task(create(one, "orders"))
    await gate.reached.wait()
    given_up = await other._records.count("queue")
    assert await other.collect(now_ms=NOW_MS) == 1
    gate.open.set()
    queue = await creation
    assert queue.queue_id > given_up
    assert await other.get_queue_by_id(queue.queue_id) == queue
    assert await other.get_queue(ACCOUNT, "orders") == queue
    assert await other.collect(now_ms=NOW_MS) == 0


async def test_a_deletion_that_ends_between_the_phases_is_one(
    stores: tuple[CassandraStore, CassandraStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = stores
    queue = await create(one, "orders", redrive_to("arn:x"))

    async def unavailable(*arguments: Any, **options: Any) -> None:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(one._records, "unmark", unavailable)
    assert await one.delete_queue(queue.queue_id, now_ms=NOW_MS) == queue
    assert await other.get_queue_by_id(queue.queue_id) is None
    with pytest.raises(QueueNotFound):
        await other.delete_queue(queue.queue_id, now_ms=NOW_MS)
    assert await other.dead_letter_sources(ACCOUNT, "arn:x", limit=10) == []
    assert await other.collect(now_ms=NOW_MS) == 1
    assert await other.collect(now_ms=NOW_MS) == 0


async def test_held_names_are_let_go_when_nobody_asks_for_them(store: CassandraStore) -> None:
    await store.put_tenant(Tenant(ACCOUNT, "root"))
    for name, ago_ms in (("old", HOUR_MS), ("new", 0)):
        queue = await create(store, name)
        await store.delete_queue(queue.queue_id, now_ms=NOW_MS - ago_ms)
    assert await asyncio.gather(*(store.collect(now_ms=NOW_MS) for _ in range(2))) in ([1, 0], [0, 1])
    held = [key for key, _ in await store._records.all(cassandra_queues._names(ACCOUNT), "held/")]
    assert held == ["held/new"]


async def test_an_account_that_is_listed_and_not_there_is_passed_over(store: CassandraStore) -> None:
    accounts = [f"{number:012}" for number in range(1, 8)]
    for account in accounts:
        await store._records.mark("accounts", account)
    for account in accounts[1::2]:
        await store.create_tenant(Tenant(account, "some"))
    assert [tenant.account for tenant in await store.list_tenants(limit=2)] == accounts[1:4:2]
    assert [tenant.account for tenant in await store.list_tenants(after=accounts[3], limit=2)] == [accounts[5]]


# --- lost answers -----------------------------------------------------------------------------------------

Attempt = Callable[[Sequence[tuple[Any, Sequence[Any]]]], Awaitable[bool]]


def losing(
    store: CassandraStore, monkeypatch: pytest.MonkeyPatch, lose: Callable[[Attempt, Any], Awaitable[bool]]
) -> None:
    """Route the transactions of ``store`` through ``lose`` from now on."""
    attempt = store.keyspace.attempt
    monkeypatch.setattr(store.keyspace, "attempt", lambda statements: lose(attempt, statements))


def unanswered() -> StatementFailed:
    return StatementFailed(OperationTimedOut("told to"))


async def test_a_transaction_whose_answer_is_lost_counts_once(
    store: CassandraStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def after_each_new_one(attempt: Attempt, statements: Any, seen: list[Any] = []) -> bool:  # noqa: B006
        applied = await attempt(statements)
        if statements not in seen:
            seen.append(statements)
            raise unanswered()
        return applied

    losing(store, monkeypatch, after_each_new_one)
    queue = await store.create_queue(ACCOUNT, "orders", {}, {}, now_ms=NOW_MS, hold_seconds=60, queues_most=1)
    assert (await store.update_queue(queue.queue_id, 1, now_ms=NOW_MS, tags={"a": "b"})).version == 2
    with pytest.raises(ConditionFailed):
        await store.update_queue(queue.queue_id, 1, now_ms=NOW_MS, tags={})
    assert (await store.begin_purge(queue.queue_id, now_ms=NOW_MS, interval_seconds=60)).purge_id == 1
    assert [await store.new_data_key_id() for _ in range(3)] == [1, 2, 3]
    await store.put_tenant(Tenant(ACCOUNT, "root"))
    key = new_access_key(ACCOUNT)
    await store.put_access_key(key)
    assert await store.delete_access_key(key.access_key_id)
    await store.add_data_key(DataKey(ACCOUNT, 1, "mk", b"w"))
    assert await store.reserve_seals(1, 60, 100)
    assert not await store.reserve_seals(1, 60, 100)
    assert (await store.delete_queue(queue.queue_id, now_ms=NOW_MS)).purge_id == 1


async def test_a_transaction_that_was_lost_on_its_way_is_sent_again(
    store: CassandraStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = []

    async def before_each_new_one(attempt: Attempt, statements: Any) -> bool:
        if statements not in lost:
            lost.append(statements)
            raise unanswered()
        return await attempt(statements)

    losing(store, monkeypatch, before_each_new_one)
    queue = await create(store, "orders")
    assert await store.get_queue_by_id(queue.queue_id) == queue
    assert lost


async def test_what_was_lost_and_then_overtaken_is_decided_anew(
    stores: tuple[CassandraStore, CassandraStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that is unchanged shows that the lost attempt took no effect."""
    one, other = stores
    first, second = await one.update_shards([ShardEntry(shard=shard, owner_log=1, epoch=1) for shard in range(2)])

    async def overtake(attempt: Attempt, statements: Any, overtaken: list[bool] = []) -> bool:  # noqa: B006
        if not overtaken:
            overtaken.append(True)
            await other.update_shards([msgspec.structs.replace(second, epoch=7)])
            raise unanswered()
        return await attempt(statements)

    losing(one, monkeypatch, overtake)
    with pytest.raises(ConditionFailed, match="shard 1 "):
        await one.update_shards([msgspec.structs.replace(entry, epoch=2) for entry in (first, second)])
    assert [entry.epoch for entry in await other.shards()] == [1, 7]


async def test_an_attempt_that_comes_after_all_changes_nothing(
    store: CassandraStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A suspended node held it: the next attempt was applied, and its result is gone by then."""
    late: list[Callable[[], Awaitable[bool]]] = []

    async def hold_up_each_new_one(attempt: Attempt, statements: Any, seen: list[Any] = []) -> bool:  # noqa: B006
        if statements not in seen:
            seen.append(statements)
            late.append(lambda: attempt(statements))
            raise unanswered()
        return await attempt(statements)

    losing(store, monkeypatch, hold_up_each_new_one)
    await store.create_tenant(Tenant(ACCOUNT, "root"))
    key, role = new_access_key(ACCOUNT), TenantRole(ACCOUNT, "worker", "AROA")
    await store.put_access_key(key)
    assert await store.delete_access_key(key.access_key_id)
    await store.put_role(role)
    assert await store.delete_role(ACCOUNT, "worker")
    await store.put_service_key(ServiceKey("k", "session", b"s", 1))
    await store.delete_service_key("k")
    await store.add_data_key(DataKey(ACCOUNT, await store.new_data_key_id(), "mk", b"w"))
    assert await store.destroy_data_keys(ACCOUNT) == 1
    queue = await create(store, "orders", redrive_to("arn:x"), hold_seconds=0)
    await store.delete_queue(queue.queue_id, now_ms=NOW_MS)

    assert len(late) > 15
    assert not any([await attempt() for attempt in late])
    assert await store.get_access_key(key.access_key_id) is None
    assert await store.list_access_keys(ACCOUNT) == []
    assert await store.list_roles(ACCOUNT) == []
    assert await store.list_service_keys("session") == []
    assert await store.data_keys() == []
    assert not await store.reserve_seals(1, 1, 100)
    assert await store.list_queues(ACCOUNT, limit=10) == []
    assert await store.dead_letter_sources(ACCOUNT, "arn:x", limit=10) == []
    await store.put_access_key(key)
    assert await store.list_access_keys(ACCOUNT) == [key]


async def test_an_outcome_that_cannot_be_told_is_not_told(
    stores: tuple[CassandraStore, CassandraStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt took effect, its answer was lost, and another process has changed the queue since."""
    one, other = stores
    queue = await create(one, "orders")

    async def overtake(attempt: Attempt, statements: Any, overtaken: list[bool] = []) -> bool:  # noqa: B006
        applied = await attempt(statements)
        if not overtaken:
            overtaken.append(applied)
            await other.update_queue(queue.queue_id, 2, now_ms=NOW_MS, tags={"b": ""})
            raise unanswered()
        return applied

    losing(one, monkeypatch, overtake)
    with pytest.raises(StoreUnavailable, match="not known"):
        await one.update_queue(queue.queue_id, 1, now_ms=NOW_MS, tags={"a": ""})
    assert (await one.get_queue(ACCOUNT, "orders")).tags == {"b": ""}


async def test_a_node_that_is_away_is_no_reason_to_refuse_and_is_looked_at_when_it_comes(
    place: KeyspaceSettings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    connection = await CassandraConnection.open(place.but(strict=True).settings)
    try:
        told = caplog.text
        answer: list[tuple[str]] | StatementFailed = StatementFailed(
            NoHostAvailable("Host has been marked down or removed", {})
        )

        async def ask(*_: Any, **__: Any) -> list[tuple[str]]:
            if isinstance(answer, StatementFailed):
                raise answer
            return answer

        monkeypatch.setattr(connection, "ask", ask)
        await connection.check_commit_logs()
        (host,) = connection.cluster.metadata.all_hosts()
        for _ in range(3):  # like the driver when the node cannot be connected to
            for listener in connection.cluster._listeners:
                await asyncio.to_thread(listener.on_down, host)
                await asyncio.to_thread(listener.on_up, host)
        await connection.check_commit_logs()
        assert caplog.text.count("the node of Cassandra at 127.0.0.1 is away") == 1
        assert "is back" not in caplog.text, "it has not answered"
        answer = [("periodic",)]
        for listener in connection.cluster._listeners:  # like the driver when the node is back
            await asyncio.to_thread(listener.on_up, host)
        async with asyncio.timeout(60):
            while "this process would not start now" not in caplog.text:
                await asyncio.sleep(0.01)
        assert "commitlog_sync is periodic at 127.0.0.1" in caplog.text
        assert caplog.text.count("the node of Cassandra at 127.0.0.1 is back") == 1
        assert "commitlog_sync" not in told
    finally:
        await connection.close()


async def test_many_who_create_queues_of_one_account_take_turns(stores: tuple[CassandraStore, CassandraStore]) -> None:
    made = await asyncio.gather(*(create(stores[number % 2], f"q{number}") for number in range(32)))
    assert len({queue.queue_id for queue in made}) == 32
    assert len({one.id for queue in made for one in queue.partitions}) == 32
    assert len(await stores[0].list_queues(ACCOUNT, limit=100)) == 32


async def test_those_who_wait_for_numbers_share_a_transaction(
    place: KeyspaceSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(place) as store:
        attempts = 0

        async def count(attempt: Attempt, statements: Any) -> bool:
            nonlocal attempts
            attempts += 1
            return await attempt(statements)

        losing(store, monkeypatch, count)
        given = await asyncio.gather(*(store.new_partition_ids(7, number % 3 + 1) for number in range(30)))
        assert sorted(one for ids in given for one in ids) == [partition_id(7, number) for number in range(1, 61)]
        assert attempts <= 3
        gone = asyncio.create_task(store.new_partition_ids(7, 1))
        await ended(gone)
        (left,) = await store.new_partition_ids(7, 1)
        assert left > partition_id(7, 60)


async def test_the_time_of_a_transaction_begins_with_its_turn(
    place: KeyspaceSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(place.but(attempt_seconds=2, timeout_seconds=4)) as store:
        reached = asyncio.Event()

        async def dawdle(attempt: Attempt, statements: Any) -> bool:
            if not reached.is_set():
                reached.set()
                await asyncio.sleep(4.2)
            return await attempt(statements)

        losing(store, monkeypatch, dawdle)
        first = asyncio.create_task(store.put_tenant(Tenant(ACCOUNT, "one")))
        await reached.wait()
        await store.put_tenant(Tenant(ACCOUNT, "two"))
        await first
        tenant = await store.get_tenant(ACCOUNT)
        assert tenant is not None
        assert tenant.name == "two"


async def test_who_waits_for_another_transaction_does_not_wait_forever(
    place: KeyspaceSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(place.but(attempt_seconds=2, timeout_seconds=3)) as store:
        reached, never = asyncio.Event(), asyncio.Event()

        async def hang(attempt: Attempt, statements: Any) -> bool:
            reached.set()
            return await never.wait()

        losing(store, monkeypatch, hang)
        first = asyncio.create_task(store.put_tenant(Tenant(ACCOUNT, "root")))
        await reached.wait()
        with pytest.raises(StoreUnavailable, match="are waiting"):
            await store.put_tenant(Tenant(ACCOUNT, "root"))
        await ended(first)


# --- a node that hangs or ends -----------------------------------------------------------------------------


async def until_it_works(call: Callable[[], Awaitable[Any]]) -> Any:
    async with asyncio.timeout(60):
        while True:
            try:
                return await call()
            except StoreUnavailable:
                continue


async def until_it_is(condition: Callable[[], bool]) -> bool:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)
    return True


async def test_while_cassandra_hangs_each_call_says_so_in_time(
    cassandra: CassandraCluster, place: KeyspaceSettings
) -> None:
    (node,) = cassandra.nodes
    async with opened(place.but(attempt_seconds=2, timeout_seconds=3)) as store:
        queue = await create(store, "orders")
        node.pause()
        try:
            started_at = time.monotonic()
            outcomes = await asyncio.gather(
                store.get_queue(ACCOUNT, "orders"),
                store.shards(),
                store.record_uses({"key": 1}),
                *(create(store, f"q{number}") for number in range(30)),
                return_exceptions=True,
            )
            took = time.monotonic() - started_at
        finally:
            node.resume()
        assert all(isinstance(outcome, StoreUnavailable) for outcome in outcomes)
        assert took < 20, "and not one after the other"
        assert await until_it_works(lambda: store.get_queue(ACCOUNT, "orders")) == queue
        again = await until_it_works(lambda: create(store, "again"))
        assert await store.get_queue_by_id(again.queue_id) == again
        names = await store.list_queues(ACCOUNT, limit=100)
        assert {"orders", "again"} <= set(names)
        for name in names:  # the other queues may exist or not, but are complete
            one = await store.get_queue(ACCOUNT, name)
            assert await store.get_queue_by_id(one.queue_id) == one


async def test_what_was_answered_outlives_a_kill_and_the_store_finds_the_node_again(
    cassandra: CassandraCluster, place: KeyspaceSettings
) -> None:
    (node,) = cassandra.nodes
    async with opened(place) as store:
        queue = await create(store, "orders")
        entry = await store.new_incarnation("node")
        node.kill()
        try:
            with pytest.raises(StoreUnavailable):
                await create(store, "other")
        finally:
            await asyncio.to_thread(node.start)
        assert await until_it_works(lambda: store.get_queue(ACCOUNT, "orders")) == queue
        assert await until_it_works(store.logs) == [entry]
        other = await until_it_works(lambda: create(store, "another"))
        assert await store.get_queue_by_id(other.queue_id) == other


@pytest.mark.slow
async def test_of_three_nodes_one_may_die_and_with_two_away_each_change_says_so(
    keyspace: str, caplog: pytest.LogCaptureFixture
) -> None:
    with CassandraCluster(3, heap="256m", java_options=QUICK_START) as cassandra:
        replicated = place_of(cassandra, keyspace).but(
            replication={"datacenter1": 3}, attempt_seconds=2, timeout_seconds=5
        )
        _, other, last = cassandra.nodes
        async with opened(replicated) as store:
            queue = await create(store, "orders")
            (shard,) = await store.update_shards([ShardEntry(shard=1, owner_log=1, epoch=1)])
            other.kill()
            second = await until_it_works(lambda: create(store, "second"))
            assert await store.get_queue_by_id(second.queue_id) == second
            assert await store.shards() == [shard]
            last.pause()  # it keeps its connections
            with pytest.raises(StoreUnavailable) as raised:
                await create(store, "third")
            with pytest.raises(StoreUnavailable, match=r"cannot be used: (too few nodes of|no node of|)\s?Cassandra"):
                await store.shards()
            assert "127.0.0" not in str(raised.value), "whoever is told needs no addresses"

            def said(text: str) -> bool:
                return text in caplog.text

            assert await until_it_is(lambda: said(f"the node of Cassandra at {last.host} is away"))
            last.resume()
            assert await until_it_is(lambda: said(f"the node of Cassandra at {last.host} is back"))
            await asyncio.to_thread(other.start)
            assert await until_it_is(lambda: said(f"the node of Cassandra at {other.host} is back"))
            for node in (other, last):
                for how in ("away", "back"):
                    assert caplog.text.count(f"the node of Cassandra at {node.host} is {how}") == 1
            assert not [one for one in caplog.records if one.name.startswith("cassandra.")], "the driver says nothing"
            await until_it_works(lambda: create(store, "fourth"))
            assert await until_it_works(store.shards) == [shard]
            names = await store.list_queues(ACCOUNT, limit=10)
            assert {"fourth", "orders", "second"} <= set(names) <= {"fourth", "orders", "second", "third"}
            assert await store.get_queue(ACCOUNT, "orders") == queue
