"""Invalidation of changed queues, through a real Redis."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from unittest import mock

import msgspec
import pytest
from redis.exceptions import RedisError

from metadata_service.models import Queue
from metadata_service.nodes import invalidation as module
from metadata_service.nodes.cached_client import MetadataClient
from metadata_service.nodes.invalidation import CHANNEL, Invalidation, InvalidationChannel
from metadata_service.nodes.node import MetadataNode
from metadata_service.nodes.ring import RingView
from metadata_service.sqlite.store import SQLiteStore
from metadata_service.store import MetadataStore
from tests.closing import closing
from tests.metadata_service.conformance import ACCOUNT, NOW_MS, create
from tests.metadata_service.fleet import SECRET, nodes, remote
from tests.metadata_service.nodes.test_remote_store import queue_of
from tests.servers.redis_server import RedisServer
from tests.servers.waiting import until


@asynccontextmanager
async def listening(server: RedisServer, client: MetadataClient) -> AsyncIterator[InvalidationChannel]:
    """A channel whose subscription is active: a new subscriber drops its whole cache."""
    channel = InvalidationChannel(server.url, client, retry_seconds=0.01)
    channel.start()
    async with closing(channel), closing(channel):
        await until(lambda: client._forgotten > 0)
        yield channel


def newer(queue: Queue) -> Queue:
    return msgspec.structs.replace(queue, version=queue.version + 1)


async def test_an_announced_change_invalidates_the_queue(redis_server: RedisServer, store: MetadataStore) -> None:
    here, there = MetadataClient(store.queues), MetadataClient(store.queues)
    async with listening(redis_server, here) as telling, listening(redis_server, there):
        queue, other = await create(store, "orders"), await create(store, "other")
        for name in ("orders", "other"):
            await here.get(ACCOUNT, name)
            await there.get(ACCOUNT, name)
        changed = await here.update(queue, now_ms=NOW_MS, tags={"a": "b"})
        telling.publish(changed)
        await until(lambda: there.cached(ACCOUNT, "orders") is None)
        assert there.cached(ACCOUNT, "other") == other
        assert here.cached(ACCOUNT, "orders") == changed, "it knew"
        assert await there.get(ACCOUNT, "orders") == changed
        telling.publish(await here.delete(changed, now_ms=NOW_MS), deleted=True)
        await until(lambda: there.cached(ACCOUNT, "orders") is None)


async def test_a_message_that_arrives_late_or_twice_costs_nothing(
    redis_server: RedisServer, store: MetadataStore
) -> None:
    client = MetadataClient(store.queues)
    async with listening(redis_server, client) as channel:
        first = await create(store, "orders")
        await client.get(ACCOUNT, "orders")
        second = await client.update(first, now_ms=NOW_MS, tags={"a": "b"})
        channel.publish(first)
        channel.publish(first, deleted=True)
        channel.publish(second)
        channel.publish(newer(msgspec.structs.replace(second, name="last")))
        before = client._forgotten
        await until(lambda: client._forgotten > before)
        assert client.cached(ACCOUNT, "orders") == second


async def test_invalid_messages_are_logged_and_skipped(
    redis_server: RedisServer, store: MetadataStore, caplog: pytest.LogCaptureFixture
) -> None:
    client = MetadataClient(store.queues)
    async with listening(redis_server, client) as channel:
        queue = await create(store, "orders")
        await client.get(ACCOUNT, "orders")
        with redis_server.client as redis:
            redis.publish(CHANNEL, b'{"no":"invalidation"}')
        channel.publish(newer(queue))
        await until(lambda: client.cached(ACCOUNT, "orders") is None)
        assert "cannot be read" in caplog.text


async def test_after_an_outage_of_redis_invalidations_arrive_and_nothing_older_is_cached(
    redis_server: RedisServer, store: MetadataStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    client = MetadataClient(store.queues)
    async with listening(redis_server, client) as channel:
        queue = await create(store, "orders")
        await client.get(ACCOUNT, "orders")
        redis_server.kill()
        await until(lambda: "neither published nor received" in caplog.text)
        for _ in range(100):
            channel.publish(queue)
        assert client.cached(ACCOUNT, "orders") == queue
        redis_server.start()
        await until(lambda: client.cached(ACCOUNT, "orders") is None)
        await until(lambda: "are received again" in caplog.text)
        assert caplog.text.count("neither published nor received") == 1
        await client.get(ACCOUNT, "orders")
        await until(lambda: channel._pending.empty())
        channel.publish(newer(queue))
        await until(lambda: client.cached(ACCOUNT, "orders") is None)


@mock.patch.object(module, "PENDING_MAX", 3)
async def test_messages_that_cannot_be_published_are_dropped_in_the_end(store: MetadataStore) -> None:
    channel = InvalidationChannel("redis://127.0.0.1:1/0", MetadataClient(store.queues))
    queue = await create(store, "orders")
    for _ in range(10):
        channel.publish(queue)
    assert channel._pending.qsize() == 3
    await channel.close()


async def test_it_ends_although_the_client_of_redis_takes_its_end_for_an_error(store: MetadataStore) -> None:
    channel = InvalidationChannel("redis://127.0.0.1:1/0", MetadataClient(store.queues), retry_seconds=0)
    publishing = asyncio.Event()

    async def publish(*_: object) -> None:
        publishing.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise RedisError from None

    with mock.patch.object(channel._redis, "publish", publish):
        channel.start()
        channel.publish(await create(store, "orders"))
        await publishing.wait()
        async with asyncio.timeout(60):
            await channel.close()


async def test_a_node_reports_every_change(redis_server: RedisServer, tmp_path: Path) -> None:
    """Including those that it makes as a stand-in."""
    stores = [SQLiteStore(tmp_path / "metadata.sqlite") for _ in range(2)]
    unused = iter(stores)

    def make(view: RingView, name: str) -> MetadataNode:
        return MetadataNode(next(unused), view, name, SECRET, invalidation=redis_server.url)

    async with nodes(2, make) as running, remote(running.view) as (caller, far):
        with redis_server.client as redis, redis.pubsub() as channel:
            channel.subscribe(CHANNEL)
            assert channel.get_message(timeout=10) is not None

            async def next_invalidation() -> Invalidation:
                message = await asyncio.to_thread(channel.get_message, timeout=10)
                assert message is not None
                return msgspec.json.decode(message["data"], type=Invalidation)

            for node in ("m0", "m1"):
                name = queue_of(running.view, node)
                queue = await create(far, name)
                if node == "m1":
                    caller._avoid(running.view.members[1], caller._peers["m1"], "cut off from it")
                queue = await far.queues.update_queue(queue.queue_id, 1, now_ms=NOW_MS, tags={"a": "b"})
                assert await next_invalidation() == Invalidation(ACCOUNT, name, queue.queue_id, 2)
                queue = await far.queues.begin_purge(queue.queue_id, now_ms=NOW_MS, interval_seconds=0)
                assert await next_invalidation() == Invalidation(ACCOUNT, name, queue.queue_id, 3)
                await far.queues.get_queue(ACCOUNT, name)
                await far.queues.delete_queue(queue.queue_id, now_ms=NOW_MS)
                assert await next_invalidation() == Invalidation(ACCOUNT, name, queue.queue_id, 3, deleted=True)
    for store in stores:
        await store.close()
