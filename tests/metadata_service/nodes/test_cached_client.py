"""The cache in front of the metadata."""

import asyncio
from typing import cast

import pytest

from metadata_service.models import NewQueue, Queue
from metadata_service.nodes import cached_client
from metadata_service.nodes.cached_client import MetadataClient
from metadata_service.store import (
    ConditionFailed,
    MetadataStore,
    QueueExists,
    QueueNotFound,
    QueueStore,
    StoreUnavailable,
)
from tests.metadata_service.conformance import ACCOUNT, NOW_MS, create, redrive_to
from tests.metadata_service.faulty import Faults


@pytest.fixture
def faults(store: MetadataStore) -> Faults:
    return Faults(store)


@pytest.fixture
def client(faults: Faults) -> MetadataClient:
    return MetadataClient(faults.store.queues)


async def test_a_queue_that_was_read_is_cached(store: MetadataStore, client: MetadataClient, faults: Faults) -> None:
    queue = await create(store, "orders")
    assert client.cached(ACCOUNT, "orders") is None
    assert await client.get(ACCOUNT, "orders") == queue
    faults.calls.clear()
    assert client.cached(ACCOUNT, "orders") == queue
    assert client.cached("111111111111", "orders") is None
    assert faults.calls == []


async def test_an_absent_queue_is_not_remembered(store: MetadataStore, client: MetadataClient) -> None:
    with pytest.raises(QueueNotFound):
        await client.get(ACCOUNT, "orders")
    queue = await create(store, "orders")
    assert await client.get(ACCOUNT, "orders") == queue


async def test_an_absent_queue_is_looked_for_now_and_then(
    store: MetadataStore, client: MetadataClient, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not client.known_absent(ACCOUNT, "orders")
    assert await client.find(ACCOUNT, "orders") is None
    assert client.known_absent(ACCOUNT, "orders")
    faults.calls.clear()
    assert await client.find(ACCOUNT, "orders") is None
    assert faults.calls == []
    monkeypatch.setattr(cached_client, "ABSENT_SECONDS", -1)
    assert await client.find(ACCOUNT, "others") is None
    assert not client.known_absent(ACCOUNT, "others")
    queue = await client.create(NewQueue(ACCOUNT, "orders", {}, {}, now_ms=NOW_MS, hold_seconds=60))
    assert await client.find(ACCOUNT, "orders") == queue
    assert not client.known_absent(ACCOUNT, "orders")


async def test_changes_made_through_the_client_are_seen_at_once(store: MetadataStore, client: MetadataClient) -> None:
    queue = await client.create(NewQueue(ACCOUNT, "orders", {}, {}, now_ms=NOW_MS, hold_seconds=60))
    assert client.cached(ACCOUNT, "orders") == queue
    queue = await client.update(queue, now_ms=NOW_MS, attributes={"DelaySeconds": "1"})
    assert client.cached(ACCOUNT, "orders") == queue
    assert queue.version == 2
    queue = await client.begin_purge(queue, now_ms=NOW_MS, interval_seconds=60)
    assert client.cached(ACCOUNT, "orders") == queue
    assert queue.purge_id == 1
    assert await store.queues.get_queue_by_id(queue.queue_id) == queue
    await client.delete(queue, now_ms=NOW_MS)
    assert client.cached(ACCOUNT, "orders") is None
    assert await store.queues.get_queue_by_id(queue.queue_id) is None


async def test_a_queue_in_the_way_of_a_creation_is_cached(store: MetadataStore, client: MetadataClient) -> None:
    queue = await create(store, "orders")
    with pytest.raises(QueueExists):
        await client.create(NewQueue(ACCOUNT, "orders", {}, {}, now_ms=NOW_MS, hold_seconds=60))
    assert client.cached(ACCOUNT, "orders") == queue


async def test_get_replaces_what_is_old(store: MetadataStore, client: MetadataClient) -> None:
    queue = await client.create(NewQueue(ACCOUNT, "orders", {}, {}, now_ms=NOW_MS, hold_seconds=0))
    changed = await store.queues.update_queue(queue.queue_id, 1, now_ms=NOW_MS, tags={"a": "b"})
    assert client.cached(ACCOUNT, "orders") == queue
    with pytest.raises(ConditionFailed):
        await client.update(queue, now_ms=NOW_MS, tags={})
    assert await client.get(ACCOUNT, "orders") == changed
    assert client.cached(ACCOUNT, "orders") == changed

    await store.queues.delete_queue(queue.queue_id, now_ms=NOW_MS)
    anew = await create(store, "orders", hold_seconds=0)
    assert await client.get(ACCOUNT, "orders") == anew
    await store.queues.delete_queue(anew.queue_id, now_ms=NOW_MS)
    with pytest.raises(QueueNotFound):
        await client.get(ACCOUNT, "orders")
    assert client.cached(ACCOUNT, "orders") is None


async def test_an_older_answer_does_not_replace_a_newer_one(store: MetadataStore, client: MetadataClient) -> None:
    old = await client.create(NewQueue(ACCOUNT, "orders", {}, {}, now_ms=NOW_MS, hold_seconds=0))
    newer = await client.update(old, now_ms=NOW_MS, tags={"a": "b"})
    client.remember(old)
    assert client.cached(ACCOUNT, "orders") == newer


async def test_the_cache_is_bounded(store: MetadataStore) -> None:
    client = MetadataClient(store.queues, limit=3)
    for name in "abc":
        await client.create(NewQueue(ACCOUNT, name, {}, {}, now_ms=NOW_MS, hold_seconds=60))
    assert client.cached(ACCOUNT, "a") is not None
    await client.create(NewQueue(ACCOUNT, "d", {}, {}, now_ms=NOW_MS, hold_seconds=60))
    assert [name for name in "abcd" if client.cached(ACCOUNT, name)] == ["a", "c", "d"]


async def test_a_failing_deletion_forgets_the_queue(client: MetadataClient, faults: Faults) -> None:
    queue = await client.create(NewQueue(ACCOUNT, "orders", {}, {}, now_ms=NOW_MS, hold_seconds=60))
    faults.fail("delete_queue", "after")
    with pytest.raises(StoreUnavailable):
        await client.delete(queue, now_ms=NOW_MS)
    assert client.cached(ACCOUNT, "orders") is None


async def test_lists_are_read_from_the_store(client: MetadataClient) -> None:
    await client.create(NewQueue(ACCOUNT, "dlq", {}, {}, now_ms=NOW_MS, hold_seconds=60))
    await client.create(NewQueue(ACCOUNT, "source", redrive_to("arn:dlq"), {}, now_ms=NOW_MS, hold_seconds=60))
    assert await client.list_queues(ACCOUNT, prefix="s", limit=10) == ["source"]
    assert await client.dead_letter_sources(ACCOUNT, "arn:dlq", limit=10) == ["source"]


@pytest.mark.parametrize("forget", ["delete", "names", "all"])
async def test_entries_invalidated_during_a_read_are_not_kept(store: MetadataStore, forget: str) -> None:
    """The answer to the read arrives after the invalidation."""
    queue = await create(store, "orders")
    read, answered = asyncio.Event(), asyncio.Event()

    class Slow:
        async def get_queue(self, account: str, name: str) -> Queue:
            found = await store.queues.get_queue(account, name)
            read.set()
            await answered.wait()
            return found

        async def delete_queue(self, queue_id: int, *, now_ms: int) -> Queue:
            return await store.queues.delete_queue(queue_id, now_ms=now_ms)

    client = MetadataClient(cast(QueueStore, Slow()))
    asked = asyncio.ensure_future(client.get(ACCOUNT, "orders"))
    await read.wait()
    if forget == "delete":
        await client.delete(queue, now_ms=NOW_MS)
    else:
        client.forget([(ACCOUNT, "orders")] if forget == "names" else None)
    answered.set()
    assert await asked == queue
    assert client.cached(ACCOUNT, "orders") is None
