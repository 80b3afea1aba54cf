"""The Cassandra store: the conformance suite, and tests of its own properties."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar
from unittest import mock

import msgspec
import pytest
from cassandra import InvalidRequest, OperationTimedOut
from cassandra.cluster import NoHostAvailable

from auth.credentials import AccessKey, ServiceKey, Tenant, TenantRole, new_access_key
from auth.encryption.data_keys import DataKey
from metadata_service.cassandra import changes as cassandra_changes
from metadata_service.cassandra import queues as cassandra_queues
from metadata_service.cassandra.driver.connection import (
    CassandraConnection,
    CassandraSettings,
    ConnectionClosed,
    StatementFailed,
)
from metadata_service.cassandra.driver.records import Records, VersionedRecord, Writes
from metadata_service.cassandra.places import place_mark, place_space
from metadata_service.cassandra.schema.tables import METADATA
from metadata_service.cassandra.store import CassandraStore
from metadata_service.cassandra.streams import STREAM_IDS
from metadata_service.cassandra.topics import SUBSCRIBERS
from metadata_service.models import LogEntry, NewQueue, Queue, ShardEntry, partition_id
from metadata_service.opening import CannotOpen
from metadata_service.store import (
    ConditionFailed,
    MetadataStore,
    QueueNotFound,
    StoreUnavailable,
    StreamNotFound,
    TopicNotFound,
)
from metadata_service.topics import NewSubscription, SubscriptionPage
from tests.closing import closing
from tests.metadata_service.conformance import (
    ACCOUNT,
    NOW_MS,
    ClusterConformance,
    LifetimeConformance,
    Opening,
    StoreConformance,
    create,
    create_stream,
    create_topic,
    redrive_to,
    subscribe,
)
from tests.servers.cassandra_server import QUICK_START, CassandraCluster
from tests.servers.waiting import until

HOUR_MS = 3_600_000
T = TypeVar("T")
Route = Callable[[Any, str, Callable[..., Awaitable[Any]]], None]
Attempt = Callable[[Sequence[tuple[Any, Sequence[Any]]]], Awaitable[bool]]


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
    async with closing(await place.open()) as store:
        yield store


@pytest.fixture
async def store(place: KeyspaceSettings) -> AsyncIterator[CassandraStore]:
    async with opened(place) as store:
        yield store


@pytest.fixture
async def other(place: KeyspaceSettings) -> AsyncIterator[CassandraStore]:
    """The same keyspace as another process has opened it, which shares no lock."""
    async with opened(place) as other:
        yield other


@pytest.fixture
def route(monkeypatch: pytest.MonkeyPatch) -> Route:
    """Routes the calls of a method through a function, which gets the method as its first argument."""

    def through(owner: Any, name: str, function: Callable[..., Awaitable[Any]]) -> None:
        monkeypatch.setattr(owner, name, partial(function, getattr(owner, name)))

    return through


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


# --- the keyspace -----------------------------------------------------------------------------------------


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
        await until(lambda: opening.done() or "did not answer in time; trying again for 30 s" in caplog.text)
    finally:
        node.resume()
    await (await opening).close()


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


# --- two processes ----------------------------------------------------------------------------------------


async def test_a_creation_that_loses_the_race_for_a_name_leaves_nothing(
    store: CassandraStore, other: CassandraStore
) -> None:
    for number in range(10):
        creations = [create(one, f"q{number}") for one in (store, other) * 2]
        outcomes = await asyncio.gather(*creations, return_exceptions=True)
        assert sum(isinstance(outcome, Queue) for outcome in outcomes) == 1
    assert await store.queues.collect(now_ms=NOW_MS) == 0


async def test_a_key_that_is_put_while_its_tenant_is_deleted_does_not_stay(
    store: CassandraStore, other: CassandraStore, route: Route
) -> None:
    tenant, key = Tenant(ACCOUNT, "root"), AccessKey("AKIAEXAMPLE000000000", "secret-secret", ACCOUNT, "AIDA")
    await store.credentials.create_tenant(tenant)

    async def delete_tenant_first(put: Any, *arguments: Any) -> None:
        await other.credentials.update_tenant(msgspec.structs.replace(tenant, state="deleting"))
        for listed in await other.credentials.list_access_keys(ACCOUNT):
            await other.credentials.delete_access_key(listed.access_key_id)
        await put(*arguments)

    route(store.credentials, "_put", delete_tenant_first)
    with pytest.raises(ValueError, match="no tenant"):
        await store.credentials.put_access_key(key)
    assert await other.credentials.get_access_key(key.access_key_id) is None
    assert await other.records.all(f"tenant/{ACCOUNT}", "access_key/") == []


async def test_a_process_sees_what_another_answered(store: CassandraStore, other: CassandraStore) -> None:
    log, later = await store.entries.new_incarnation("a"), await store.entries.new_incarnation("b")
    assert await other.entries.poll_entries() == ([log, later], [])
    (shard,) = await store.entries.update_shards([ShardEntry(shard=3, owner_log=1, epoch=1)])
    sealed = await store.entries.update_log(msgspec.structs.replace(log, state="sealed", sealed_seq=5))
    assert await other.entries.poll_entries() == ([sealed, later], [shard])
    assert await other.entries.logs() == [sealed, later]
    # A sealed log stays sealed.  Its later changes matter for decisions, and not for views.
    accepted = await store.entries.update_log(msgspec.structs.replace(sealed, accepted=True))
    (moved,) = await store.entries.update_shards([msgspec.structs.replace(shard, epoch=2)])
    assert [entry.state for entry in (await other.entries.poll_entries()).logs] == ["sealed", "open"]
    assert await other.entries.logs() == [accepted, later]
    assert await other.entries.shards() == [moved]
    assert await other.entries.poll_entries() == ([accepted, later], [moved])


async def test_entries_that_have_not_changed_are_not_read_again(
    store: CassandraStore, other: CassandraStore, route: Route
) -> None:
    """A view costs three small reads, a decision the version of the shards and the entry of each log."""
    entries = [await store.entries.new_incarnation(f"n{number}") for number in range(4)]
    shards = await store.entries.update_shards([ShardEntry(shard=shard, owner_log=1, epoch=1) for shard in range(256)])
    for entry in entries[2:]:
        await store.entries.update_log(msgspec.structs.replace(entry, state="sealed", sealed_seq=5))
    await other.entries.poll_entries()
    rows: list[int] = []

    async def counted(once: Any, *arguments: Any) -> Any:
        found = await once(*arguments)
        rows.append(len(found))
        return found

    route(other.keyspace, "_once", counted)
    assert (await other.entries.poll_entries()).shards == shards
    assert rows == [1, 0, 0]  # the version, no new log; neither of two logs has changed since its start
    rows.clear()
    assert await other.entries.shards() == shards
    assert rows == [1]
    rows.clear()
    assert len(await other.entries.logs()) == 4
    assert rows == [0, 2, 1, 1]  # no new log, copies of two, one of which was changed, and the entries of two
    rows.clear()
    await store.entries.update_shards([msgspec.structs.replace(shards[7], epoch=2)])
    assert (await other.entries.poll_entries()).shards[7].epoch == 2
    assert rows == [1, 257, 0, 0]


async def test_each_log_is_in_a_partition_of_its_own(store: CassandraStore) -> None:
    """The fence is the most frequent read."""
    entries = [await store.entries.new_incarnation("a") for _ in range(3)]
    connection = store.keyspace.connection
    fence = store.fence
    read = await asyncio.to_thread(connection.prepare, fence.statement)
    assert {read.bind(fence.values(entry.log_id)).routing_key for entry in entries} == {
        f"log/{entry.log_id}".encode() for entry in entries
    }
    await store.entries.update_log(msgspec.structs.replace(entries[1], state="recovering", recovering_by=1))
    states = [fence.state((await connection.ask(read, fence.values(entry.log_id)))[0][0]) for entry in entries]
    assert states == ["open", "recovering", "open"]
    assert await connection.ask(read, fence.values(9)) == []


# --- remains of a process that ended midway ---------------------------------------------------------------


async def ended(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait([task])


class Gate(asyncio.Event):
    """A place where calls wait until it is set."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = asyncio.Event()

    async def wait(self) -> Literal[True]:
        self.reached.set()
        return await super().wait()


async def held_up_creation(
    store: CassandraStore, route: Route, gate: Gate, make: Callable[[MetadataStore, str], Coroutine[Any, Any, T]]
) -> asyncio.Task[T]:
    """Start a creation that waits between its two phases: its id has a mark, its name has nothing yet."""

    async def mark_and_wait(mark: Any, *arguments: Any, **options: Any) -> None:
        await mark(*arguments, **options)
        await gate.wait()

    route(store.records, "mark", mark_and_wait)
    creation = asyncio.create_task(make(store, "orders"))
    await gate.reached.wait()
    return creation


async def test_a_creator_that_ends_between_the_phases_leaves_nothing_in_the_way(
    store: CassandraStore, other: CassandraStore, route: Route
) -> None:
    await ended(await held_up_creation(store, route, Gate(), create))
    left = await other.records.count("queue")
    assert await other.queues.get_queue_by_id(left) is None
    with pytest.raises(QueueNotFound):
        await other.queues.get_queue(ACCOUNT, "orders")
    with pytest.raises(QueueNotFound):
        await other.queues.delete_queue(left, now_ms=NOW_MS)
    queue = await create(other, "orders")
    assert await other.queues.get_queue_by_id(left) is None
    with pytest.raises(QueueNotFound):
        await other.queues.update_queue(left, 1, now_ms=NOW_MS, tags={})
    assert await other.queues.collect(now_ms=NOW_MS) == 1
    assert await other.queues.collect(now_ms=NOW_MS) == 0
    assert await other.queues.get_queue_by_id(queue.queue_id) == queue
    assert await other.queues.list_queues(ACCOUNT, limit=10) == ["orders"]


def ending_before(store: CassandraStore, route: Route, method: str, place: str) -> None:
    """End the process before this call of its records, at a place with this prefix."""

    async def ending(call: Any, space: str, *arguments: Any, **options: Any) -> Any:
        if space.startswith(place):
            raise StoreUnavailable("the process has ended")
        return await call(space, *arguments, **options)

    route(store.records, method, ending)


async def test_a_partially_started_log_is_claimed_like_any_other(
    store: CassandraStore, other: CassandraStore, route: Route
) -> None:
    """Its process ended, or is suspended, between the number and the log's own entry."""
    gate = Gate()

    async def held_up(transact: Any, space: str, *arguments: Any) -> Any:
        if space.startswith("log/"):
            await gate.wait()
        return await transact(space, *arguments)

    route(store.records, "transact", held_up)
    beginning = asyncio.create_task(store.entries.new_incarnation("a"))
    await gate.reached.wait()
    (started,) = await other.entries.logs("a")
    assert started == LogEntry(log_id=1, node="a", incarnation=1)
    assert (await other.entries.poll_entries()).logs == [started]
    successor = await other.entries.new_incarnation("a")
    sealed = await other.entries.update_log(msgspec.structs.replace(started, state="sealed", sealed_seq=0))
    gate.set()
    with pytest.raises(ConditionFailed, match="claimed before it was started"):
        await beginning
    assert await store.entries.logs() == [sealed, successor]


async def test_decisions_see_unreported_changes_of_a_dead_process(
    store: CassandraStore, other: CassandraStore, route: Route
) -> None:
    """And publishes it for views."""
    entry = await store.entries.new_incarnation("a")
    ending_before(store, route, "mark", "logs")
    with pytest.raises(StoreUnavailable):
        await store.entries.update_log(msgspec.structs.replace(entry, state="recovering", recovering_by=7))
    assert (await other.entries.poll_entries()).logs == [entry]
    (recovering,) = await other.entries.logs()
    assert (recovering.state, recovering.version) == ("recovering", 2)
    assert (await store.entries.poll_entries()).logs == [recovering]


async def test_a_change_is_answered_when_the_others_can_know(
    store: CassandraStore, other: CassandraStore, route: Route, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await create(store, "orders")
    start = (await other.changes.queue_changes(None)).last
    ending_before(store, route, "transact", "queue_changes")
    with pytest.raises(StoreUnavailable):
        await store.queues.update_queue(queue.queue_id, 1, now_ms=NOW_MS, tags={"a": "b"})
    assert (await other.queues.get_queue(ACCOUNT, "orders")).version == 2
    assert await other.changes.queue_changes(start) == (start, [])
    monkeypatch.undo()
    await store.queues.update_queue(queue.queue_id, 2, now_ms=NOW_MS, tags={"a": "c"})
    assert (await other.changes.queue_changes(start)).names == [(ACCOUNT, "orders")]


async def test_notes_of_changes_go_together(store: CassandraStore, route: Route) -> None:
    transactions = []

    async def counted(transact: Any, space: str, *arguments: Any) -> Any:
        transactions.append(space)
        return await transact(space, *arguments)

    route(store.records, "transact", counted)
    start = (await store.changes.queue_changes(None)).last
    await asyncio.gather(*(store.changes.record(ACCOUNT, f"q{number}") for number in range(150)))
    assert len(transactions) == 2
    assert (await store.changes.queue_changes(start)).names == [(ACCOUNT, f"q{number}") for number in range(150)]


@mock.patch.object(cassandra_changes, "KEPT", 10)
async def test_only_so_many_changes_are_kept(store: CassandraStore, other: CassandraStore, route: Route) -> None:
    start = (await other.changes.queue_changes(None)).last
    for number in range(25):
        await store.changes.record(ACCOUNT, f"q{number}")
    last = start + 25
    assert await other.changes.queue_changes(last - 10) == (last, [(ACCOUNT, f"q{number}") for number in range(15, 25)])
    assert await other.changes.queue_changes(last - 11) == (last, None)

    async def overtaken(get: Any, *arguments: Any) -> Any:
        found = await get(*arguments)
        await store.changes.record(ACCOUNT, "more")
        return found

    route(other.records, "get", overtaken)
    assert await other.changes.queue_changes(last - 10) == (last, None)
    assert len(await store.records.all("queue_changes")) == 11


async def test_a_process_collects_now_and_then(store: CassandraStore, place: KeyspaceSettings) -> None:
    kinds = (cassandra_queues.IDS, STREAM_IDS)
    for kind in kinds:
        await store.records.mark(*place_mark(kind, 0, ACCOUNT, "q"))
    collecting = await place.open(collect_seconds=0.01)

    async def collected() -> bool:
        return not any([await store.records.marks(place_space(kind, 0)) for kind in kinds])

    await until(collected)
    await collecting.close()


async def test_a_creation_that_the_collector_has_given_up_takes_another_id(
    store: CassandraStore, other: CassandraStore, route: Route
) -> None:
    gate = Gate()
    creation = await held_up_creation(store, route, gate, create)
    given_up = await other.records.count("queue")
    assert await other.queues.collect(now_ms=NOW_MS) == 1
    gate.set()
    queue = await creation
    assert queue.queue_id > given_up
    assert await other.queues.get_queue_by_id(queue.queue_id) == queue
    assert await other.queues.get_queue(ACCOUNT, "orders") == queue
    assert await other.queues.collect(now_ms=NOW_MS) == 0


async def test_a_deletion_that_ends_between_the_phases_is_one(
    store: CassandraStore, other: CassandraStore, route: Route
) -> None:
    queue = await create(store, "orders", redrive_to("arn:x"))
    ending_before(store, route, "unmark", "")
    assert await store.queues.delete_queue(queue.queue_id, now_ms=NOW_MS) == queue
    assert await other.queues.get_queue_by_id(queue.queue_id) is None
    with pytest.raises(QueueNotFound):
        await other.queues.delete_queue(queue.queue_id, now_ms=NOW_MS)
    assert await other.queues.dead_letter_sources(ACCOUNT, "arn:x", limit=10) == []
    assert await other.queues.collect(now_ms=NOW_MS) == 1
    assert await other.queues.collect(now_ms=NOW_MS) == 0


async def test_a_creator_of_a_stream_that_ends_between_the_phases_leaves_nothing_in_the_way(
    store: CassandraStore, other: CassandraStore, route: Route
) -> None:
    await ended(await held_up_creation(store, route, Gate(), create_stream))
    left = await other.records.count("queue")
    assert await other.streams.get_stream_by_id(left) is None
    with pytest.raises(StreamNotFound):
        await other.streams.update_stream(left, 1, now_ms=NOW_MS, tags={})
    stream = await create_stream(other, "orders")
    with pytest.raises(StreamNotFound):
        await other.streams.add_partitions(left, 1, [0])
    with pytest.raises(StreamNotFound):
        await other.streams.delete_stream(left)
    assert await other.queues.collect(now_ms=NOW_MS) == 0, "the marks of streams are not those of queues"
    assert [await other.streams.collect() for _ in range(2)] == [1, 0]
    assert await other.streams.get_stream_by_id(stream.stream_id) == stream


async def test_a_creation_of_a_stream_that_the_collector_has_given_up_takes_another_id(
    store: CassandraStore, other: CassandraStore, route: Route
) -> None:
    gate = Gate()
    creation = await held_up_creation(store, route, gate, create_stream)
    given_up = await other.records.count("queue")
    assert await other.streams.collect() == 1
    gate.set()
    stream = await creation
    assert stream.stream_id > given_up
    assert await other.streams.get_stream_by_id(stream.stream_id) == stream
    assert await other.streams.list_streams(ACCOUNT, limit=10) == [stream]
    assert await other.streams.collect() == 0


async def test_a_deletion_of_a_stream_that_ends_between_the_phases_is_one(
    store: CassandraStore, other: CassandraStore, route: Route
) -> None:
    stream = await create_stream(store, "orders")
    ending_before(store, route, "unmark", "")
    assert await store.streams.delete_stream(stream.stream_id) == stream
    assert await other.streams.get_stream_by_id(stream.stream_id) is None
    with pytest.raises(StreamNotFound):
        await other.streams.delete_stream(stream.stream_id)
    assert [await other.streams.collect() for _ in range(2)] == [1, 0]


async def test_a_creator_of_a_topic_that_ends_between_the_phases_leaves_nothing_in_the_way(
    store: CassandraStore, other: CassandraStore, route: Route
) -> None:
    await ended(await held_up_creation(store, route, Gate(), create_topic))
    left = await other.records.count("queue")
    with pytest.raises(TopicNotFound):
        await other.topics.update_topic(left, 1, tags={})
    topic = await create_topic(other, "orders")
    with pytest.raises(TopicNotFound):
        await other.topics.delete_topic(left)
    assert await other.topics.topic_subscriptions(left, limit=10) == []
    assert await other.topics.collect() == 0
    assert [await other.queues.collect(now_ms=NOW_MS) for _ in range(2)] == [1, 0]
    assert await other.topics.get_topic(ACCOUNT, "orders") == topic
    assert await other.queues.get_queue_by_id(topic.topic_id) is not None


async def test_a_creation_of_a_topic_that_the_collector_has_given_up_takes_another_id(
    store: CassandraStore, other: CassandraStore, route: Route
) -> None:
    gate = Gate()
    creation = await held_up_creation(store, route, gate, create_topic)
    given_up = await other.records.count("queue")
    assert await other.queues.collect(now_ms=NOW_MS) == 1
    gate.set()
    topic = await creation
    assert topic.topic_id > given_up
    assert await other.topics.list_topics(ACCOUNT, limit=10) == [topic]
    assert await other.queues.collect(now_ms=NOW_MS) == 0


async def test_a_deletion_of_a_topic_that_ends_between_the_phases_is_one(
    store: CassandraStore, other: CassandraStore, route: Route
) -> None:
    topic = await create_topic(store, "orders")
    for number in range(3):
        await subscribe(store, topic, f"arn:{number}")
    attributes = {"HoldfastPushUrl": "http://e/"}
    await store.topics.create_subscription(
        NewSubscription(topic.topic_id, ACCOUNT, "http", "http://e/", {}, NOW_MS, queue_attributes=attributes)
    )
    ending_before(store, route, "unmark", "")
    assert (await store.topics.delete_topic(topic.topic_id)).subscriptions == 4
    assert await other.topics.topic_subscriptions(topic.topic_id, limit=10) == []
    assert await other.topics.owner_subscriptions(ACCOUNT, limit=10) == SubscriptionPage([], "")
    assert await other.queues.get_queue_by_id(topic.topic_id) is None
    again = await create_topic(other, "orders")
    kept = await subscribe(other, again, "arn:0")
    assert len(await other.queues.push_queues()) == 1
    assert [await other.topics.collect() for _ in range(2)] == [1, 0]
    assert await other.queues.push_queues() == []
    assert [await other.queues.collect(now_ms=NOW_MS) for _ in range(2)] == [1, 0]
    rows = await store.records.all(cassandra_queues.names_space(ACCOUNT), "subscription/")
    assert len(rows) == len(await store.records.all(cassandra_queues.names_space(ACCOUNT), "endpoint/")) == 1
    assert len(await store.records.marks(SUBSCRIBERS + ACCOUNT)) == 1
    assert await other.topics.topic_subscriptions(again.topic_id, limit=10) == [kept]


async def test_held_names_are_released_when_unused(store: CassandraStore) -> None:
    await store.credentials.put_tenant(Tenant(ACCOUNT, "root"))
    for name, ago_ms in (("old", HOUR_MS), ("new", 0)):
        queue = await create(store, name)
        await store.queues.delete_queue(queue.queue_id, now_ms=NOW_MS - ago_ms)
    assert await asyncio.gather(*(store.queues.collect(now_ms=NOW_MS) for _ in range(2))) in ([1, 0], [0, 1])
    held = [key for key, _ in await store.records.all(cassandra_queues.names_space(ACCOUNT), "held/")]
    assert held == ["held/new"]


async def test_an_account_that_is_listed_and_not_there_is_passed_over(store: CassandraStore) -> None:
    accounts = [f"{number:012}" for number in range(1, 8)]
    for account in accounts:
        await store.records.mark("accounts", account)
    for account in accounts[1::2]:
        await store.credentials.create_tenant(Tenant(account, "some"))
    assert [tenant.account for tenant in await store.credentials.list_tenants(limit=2)] == accounts[1:4:2]
    assert [tenant.account for tenant in await store.credentials.list_tenants(after=accounts[3], limit=2)] == [
        accounts[5]
    ]


# --- lost answers -----------------------------------------------------------------------------------------


def unanswered() -> StatementFailed:
    return StatementFailed(OperationTimedOut("told to"))


@pytest.mark.parametrize("arrives", [True, False])
async def test_a_transaction_that_is_lost_or_whose_answer_is_counts_once(
    store: CassandraStore, route: Route, arrives: bool
) -> None:
    seen: list[Any] = []

    async def lose_each_new_one(attempt: Attempt, statements: Any) -> bool:
        if statements in seen:
            return await attempt(statements)
        seen.append(statements)
        if arrives:
            await attempt(statements)
        raise unanswered()

    route(store.keyspace, "attempt", lose_each_new_one)
    queue = await store.queues.create_queue(
        NewQueue(ACCOUNT, "orders", {}, {}, now_ms=NOW_MS, hold_seconds=60, queues_max=1)
    )
    assert await store.queues.get_queue_by_id(queue.queue_id) == queue
    assert (await store.queues.update_queue(queue.queue_id, 1, now_ms=NOW_MS, tags={"a": "b"})).version == 2
    with pytest.raises(ConditionFailed):
        await store.queues.update_queue(queue.queue_id, 1, now_ms=NOW_MS, tags={})
    assert (await store.queues.begin_purge(queue.queue_id, now_ms=NOW_MS, interval_seconds=60)).purge_id == 1
    assert [await store.data_keys.new_data_key_id() for _ in range(3)] == [1, 2, 3]
    await store.credentials.put_tenant(Tenant(ACCOUNT, "root"))
    key = new_access_key(ACCOUNT)
    await store.credentials.put_access_key(key)
    assert await store.credentials.delete_access_key(key.access_key_id)
    await store.data_keys.add_data_key(DataKey(ACCOUNT, 1, "mk", b"w"))
    assert await store.data_keys.reserve_seals(1, 60, 100)
    assert not await store.data_keys.reserve_seals(1, 60, 100)
    assert (await store.queues.delete_queue(queue.queue_id, now_ms=NOW_MS)).purge_id == 1


async def test_a_lost_and_overtaken_write_is_decided_again(
    store: CassandraStore, other: CassandraStore, route: Route
) -> None:
    """A row that is unchanged shows that the lost attempt took no effect."""
    first, second = await store.entries.update_shards(
        [ShardEntry(shard=shard, owner_log=1, epoch=1) for shard in range(2)]
    )

    async def overtake(attempt: Attempt, statements: Any, overtaken: list[bool] = []) -> bool:  # noqa: B006
        if not overtaken:
            overtaken.append(True)
            await other.entries.update_shards([msgspec.structs.replace(second, epoch=7)])
            raise unanswered()
        return await attempt(statements)

    route(store.keyspace, "attempt", overtake)
    with pytest.raises(ConditionFailed, match="shard 1 "):
        await store.entries.update_shards([msgspec.structs.replace(entry, epoch=2) for entry in (first, second)])
    assert [entry.epoch for entry in await other.entries.shards()] == [1, 7]


async def test_a_late_attempt_changes_nothing(store: CassandraStore, route: Route) -> None:
    """A suspended node held it: the next attempt was applied, and its result is gone by then."""
    late: list[Callable[[], Awaitable[bool]]] = []

    async def hold_up_each_new_one(attempt: Attempt, statements: Any, seen: list[Any] = []) -> bool:  # noqa: B006
        if statements not in seen:
            seen.append(statements)
            late.append(lambda: attempt(statements))
            raise unanswered()
        return await attempt(statements)

    route(store.keyspace, "attempt", hold_up_each_new_one)
    await store.credentials.create_tenant(Tenant(ACCOUNT, "root"))
    key, role = new_access_key(ACCOUNT), TenantRole(ACCOUNT, "worker", "AROA")
    await store.credentials.put_access_key(key)
    assert await store.credentials.delete_access_key(key.access_key_id)
    await store.credentials.put_role(role)
    assert await store.credentials.delete_role(ACCOUNT, "worker")
    await store.credentials.put_service_key(ServiceKey("k", "session", b"s", 1))
    await store.credentials.delete_service_key("k")
    await store.data_keys.add_data_key(DataKey(ACCOUNT, await store.data_keys.new_data_key_id(), "mk", b"w"))
    assert await store.data_keys.destroy_data_keys(ACCOUNT) == 1
    queue = await create(store, "orders", redrive_to("arn:x"), hold_seconds=0)
    await store.queues.delete_queue(queue.queue_id, now_ms=NOW_MS)

    assert len(late) > 15
    assert not any([await attempt() for attempt in late])
    assert await store.credentials.get_access_key(key.access_key_id) is None
    assert await store.credentials.list_access_keys(ACCOUNT) == []
    assert await store.credentials.list_roles(ACCOUNT) == []
    assert await store.credentials.list_service_keys("session") == []
    assert await store.data_keys.data_keys() == []
    assert not await store.data_keys.reserve_seals(1, 1, 100)
    assert await store.queues.list_queues(ACCOUNT, limit=10) == []
    assert await store.queues.dead_letter_sources(ACCOUNT, "arn:x", limit=10) == []
    await store.credentials.put_access_key(key)
    assert await store.credentials.list_access_keys(ACCOUNT) == [key]


async def test_an_unknown_outcome_is_reported_as_unknown(
    store: CassandraStore, other: CassandraStore, route: Route
) -> None:
    """The attempt took effect, its answer was lost, and another process has changed the queue since."""
    queue = await create(store, "orders")

    async def overtake(attempt: Attempt, statements: Any, overtaken: list[bool] = []) -> bool:  # noqa: B006
        applied = await attempt(statements)
        if not overtaken:
            overtaken.append(applied)
            await other.queues.update_queue(queue.queue_id, 2, now_ms=NOW_MS, tags={"b": ""})
            raise unanswered()
        return applied

    route(store.keyspace, "attempt", overtake)
    with pytest.raises(StoreUnavailable, match="not known"):
        await store.queues.update_queue(queue.queue_id, 1, now_ms=NOW_MS, tags={"a": ""})
    assert (await store.queues.get_queue(ACCOUNT, "orders")).tags == {"b": ""}


async def test_an_unreachable_node_is_no_reason_to_refuse_and_is_checked_when_it_returns(
    place: KeyspaceSettings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with closing(await CassandraConnection.open(place.but(strict=True).settings)) as connection:
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
        assert caplog.text.count("the Cassandra node at 127.0.0.1 is down") == 1
        assert "is up again" not in caplog.text, "it has not answered"
        answer = [("periodic",)]
        for listener in connection.cluster._listeners:  # like the driver when the node is back
            await asyncio.to_thread(listener.on_up, host)
        await until(lambda: "this process would not start now" in caplog.text)
        assert "commitlog_sync is periodic at 127.0.0.1" in caplog.text
        assert caplog.text.count("the Cassandra node at 127.0.0.1 is up again") == 1
        assert "commitlog_sync" not in told


async def test_concurrent_creations_of_one_account_take_turns(store: CassandraStore, other: CassandraStore) -> None:
    made = await asyncio.gather(*(create((store, other)[number % 2], f"q{number}") for number in range(32)))
    assert len({queue.queue_id for queue in made}) == 32
    assert len({one.id for queue in made for one in queue.partitions}) == 32
    assert len(await store.queues.list_queues(ACCOUNT, limit=100)) == 32


async def test_waiting_requests_for_numbers_share_a_transaction(store: CassandraStore, route: Route) -> None:
    attempts = 0

    async def count(attempt: Attempt, statements: Any) -> bool:
        nonlocal attempts
        attempts += 1
        return await attempt(statements)

    route(store.keyspace, "attempt", count)
    given = await asyncio.gather(*(store.queues.new_partition_ids(7, number % 3 + 1) for number in range(30)))
    assert sorted(one for ids in given for one in ids) == [partition_id(7, number) for number in range(1, 61)]
    assert attempts <= 3
    gone = asyncio.create_task(store.queues.new_partition_ids(7, 1))
    await ended(gone)
    (left,) = await store.queues.new_partition_ids(7, 1)
    assert left > partition_id(7, 60)


async def test_the_time_of_a_transaction_begins_with_its_turn(place: KeyspaceSettings, route: Route) -> None:
    async with opened(place.but(attempt_seconds=2, timeout_seconds=4)) as store:
        reached = asyncio.Event()

        async def dawdle(attempt: Attempt, statements: Any) -> bool:
            if not reached.is_set():
                reached.set()
                await asyncio.sleep(4.2)
            return await attempt(statements)

        route(store.keyspace, "attempt", dawdle)
        first = asyncio.create_task(store.credentials.put_tenant(Tenant(ACCOUNT, "one")))
        await reached.wait()
        await store.credentials.put_tenant(Tenant(ACCOUNT, "two"))
        await first
        tenant = await store.credentials.get_tenant(ACCOUNT)
        assert tenant is not None
        assert tenant.name == "two"


async def test_the_wait_for_another_transaction_ends(place: KeyspaceSettings, route: Route) -> None:
    async with opened(place.but(attempt_seconds=2, timeout_seconds=3)) as store:
        reached, never = asyncio.Event(), asyncio.Event()

        async def hang(attempt: Attempt, statements: Any) -> bool:
            reached.set()
            return await never.wait()

        route(store.keyspace, "attempt", hang)
        first = asyncio.create_task(store.credentials.put_tenant(Tenant(ACCOUNT, "root")))
        await reached.wait()
        with pytest.raises(StoreUnavailable, match="are waiting"):
            await store.credentials.put_tenant(Tenant(ACCOUNT, "root"))
        await ended(first)


# --- a node that hangs or ends -----------------------------------------------------------------------------


async def until_it_works(call: Callable[[], Awaitable[Any]]) -> Any:
    async with asyncio.timeout(60):
        while True:
            try:
                return await call()
            except StoreUnavailable:
                continue


async def test_while_cassandra_hangs_each_call_fails_in_time(
    cassandra: CassandraCluster, place: KeyspaceSettings
) -> None:
    (node,) = cassandra.nodes
    async with opened(place.but(attempt_seconds=2, timeout_seconds=3)) as store:
        queue = await create(store, "orders")
        node.pause()
        try:
            started_at = time.monotonic()
            outcomes = await asyncio.gather(
                store.queues.get_queue(ACCOUNT, "orders"),
                store.entries.shards(),
                store.credentials.record_uses({"key": 1}),
                *(create(store, f"q{number}") for number in range(30)),
                return_exceptions=True,
            )
            took = time.monotonic() - started_at
        finally:
            node.resume()
        assert all(isinstance(outcome, StoreUnavailable) for outcome in outcomes)
        assert took < 20, "and not one after the other"
        assert await until_it_works(lambda: store.queues.get_queue(ACCOUNT, "orders")) == queue
        again = await until_it_works(lambda: create(store, "again"))
        assert await store.queues.get_queue_by_id(again.queue_id) == again
        names = await store.queues.list_queues(ACCOUNT, limit=100)
        assert {"orders", "again"} <= set(names)
        for name in names:  # the other queues may exist or not, but are complete
            one = await store.queues.get_queue(ACCOUNT, name)
            assert await store.queues.get_queue_by_id(one.queue_id) == one


async def test_acknowledged_writes_outlive_a_kill_and_the_store_reconnects(
    cassandra: CassandraCluster, place: KeyspaceSettings
) -> None:
    (node,) = cassandra.nodes
    async with opened(place) as store:
        queue = await create(store, "orders")
        entry = await store.entries.new_incarnation("node")
        node.kill()
        try:
            with pytest.raises(StoreUnavailable):
                await create(store, "other")
        finally:
            await asyncio.to_thread(node.start)
        assert await until_it_works(lambda: store.queues.get_queue(ACCOUNT, "orders")) == queue
        assert await until_it_works(store.entries.logs) == [entry]
        other = await until_it_works(lambda: create(store, "another"))
        assert await store.queues.get_queue_by_id(other.queue_id) == other


@pytest.mark.long
async def test_one_of_three_nodes_may_die_and_without_two_each_change_fails(
    keyspace: str, caplog: pytest.LogCaptureFixture
) -> None:
    with CassandraCluster(3, heap="256m", java_options=QUICK_START) as cassandra:
        replicated = place_of(cassandra, keyspace).but(
            replication={"datacenter1": 3}, attempt_seconds=2, timeout_seconds=5
        )
        _, other, last = cassandra.nodes
        async with opened(replicated) as store:
            queue = await create(store, "orders")
            (shard,) = await store.entries.update_shards([ShardEntry(shard=1, owner_log=1, epoch=1)])
            other.kill()
            second = await until_it_works(lambda: create(store, "second"))
            assert await store.queues.get_queue_by_id(second.queue_id) == second
            assert await store.entries.shards() == [shard]
            last.pause()  # it keeps its connections
            with pytest.raises(StoreUnavailable) as raised:
                await create(store, "third")
            with pytest.raises(StoreUnavailable, match=r"cannot be used: (too few nodes of|no node of|)\s?Cassandra"):
                await store.entries.shards()
            assert "127.0.0" not in str(raised.value), "whoever is told needs no addresses"

            await until(lambda: f"the Cassandra node at {last.host} is down" in caplog.text)
            last.resume()
            await until(lambda: f"the Cassandra node at {last.host} is up again" in caplog.text)
            await asyncio.to_thread(other.start)
            await until(lambda: f"the Cassandra node at {other.host} is up again" in caplog.text)
            for node in (other, last):
                for how in ("down", "up again"):
                    assert caplog.text.count(f"the Cassandra node at {node.host} is {how}") == 1
            assert not [one for one in caplog.records if one.name.startswith("cassandra.")], "the driver says nothing"
            await until_it_works(lambda: create(store, "fourth"))
            assert await until_it_works(store.entries.shards) == [shard]
            names = await store.queues.list_queues(ACCOUNT, limit=10)
            assert {"fourth", "orders", "second"} <= set(names) <= {"fourth", "orders", "second", "third"}
            assert await store.queues.get_queue(ACCOUNT, "orders") == queue
