"""Nodes of Cassandra that hang or end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from metadata_service.models import ShardEntry
from metadata_service.store import (
    StoreUnavailable,
)
from tests.metadata_service.cassandra.keyspace import KeyspaceSettings, opened, place_of
from tests.metadata_service.conformance import (
    ACCOUNT,
    create,
)
from tests.servers.cassandra_server import QUICK_START, CassandraCluster
from tests.servers.waiting import until


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
