"""Statements of which it is not known whether they took effect."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest
from cassandra import OperationTimedOut
from cassandra.cluster import NoHostAvailable

from auth.credentials import ServiceKey, Tenant, TenantRole, new_access_key
from auth.encryption.data_keys import DataKey
from metadata_service.cassandra.driver.connection import (
    CassandraConnection,
    StatementFailed,
)
from metadata_service.cassandra.store import CassandraStore
from metadata_service.models import NewQueue, ShardEntry, partition_id
from metadata_service.store import (
    ConditionFailed,
    StoreUnavailable,
)
from tests.closing import closing
from tests.metadata_service.cassandra.keyspace import KeyspaceSettings, Route, ended, opened
from tests.metadata_service.conformance import (
    ACCOUNT,
    NOW_MS,
    create,
    redrive_to,
)
from tests.servers.waiting import until

Attempt = Callable[[Sequence[tuple[Any, Sequence[Any]]]], Awaitable[bool]]


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
