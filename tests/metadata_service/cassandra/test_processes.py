"""Several processes on one keyspace, and what those leave behind that end midway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Literal, TypeVar
from unittest import mock

import msgspec
import pytest

from auth.credentials import AccessKey, Tenant
from metadata_service.cassandra import changes as cassandra_changes
from metadata_service.cassandra import queues as cassandra_queues
from metadata_service.cassandra.places import place_mark, place_space
from metadata_service.cassandra.store import CassandraStore
from metadata_service.cassandra.streams import STREAM_IDS
from metadata_service.cassandra.topics import SUBSCRIBERS
from metadata_service.models import LogEntry, Queue, ShardEntry
from metadata_service.store import (
    ConditionFailed,
    MetadataStore,
    QueueNotFound,
    StoreUnavailable,
    StreamNotFound,
    TopicNotFound,
)
from metadata_service.topics import NewSubscription, SubscriptionPage
from tests.metadata_service.cassandra.keyspace import KeyspaceSettings, Route, ended
from tests.metadata_service.conformance import (
    ACCOUNT,
    NOW_MS,
    create,
    create_stream,
    create_topic,
    redrive_to,
    subscribe,
)
from tests.servers.waiting import until

T = TypeVar("T")
HOUR_MS = 3_600_000


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
