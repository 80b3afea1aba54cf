"""Two processes on one store: neither keeps cached queues that the other has changed."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from metadata_service.models import NewQueue
from metadata_service.nodes.cached_client import MetadataClient
from metadata_service.nodes.cached_streams import StreamClient
from metadata_service.nodes.change_feed import FORGET_SECONDS, POLL_SECONDS, ChangeWatch
from metadata_service.sqlite import changes as sqlite
from metadata_service.sqlite.store import SQLiteStore
from metadata_service.store import StoreUnavailable
from metadata_service.streams import NewStream
from tests.metadata_service.conformance import ACCOUNT, NOW_MS
from tests.metadata_service.faulty import Faults
from tests.servers.waiting import until


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncIterator[tuple[SQLiteStore, SQLiteStore]]:
    """The same file, opened twice."""
    both = SQLiteStore(tmp_path / "metadata.sqlite"), SQLiteStore(tmp_path / "metadata.sqlite")
    yield both
    for store in both:
        await store.close()


@pytest.fixture
def other(stores: tuple[SQLiteStore, SQLiteStore]) -> MetadataClient:
    """Another process's view."""
    return MetadataClient(stores[1].queues)


@pytest.fixture
def client(stores: tuple[SQLiteStore, SQLiteStore]) -> MetadataClient:
    return MetadataClient(stores[0].queues)


@pytest.fixture
def watch(stores: tuple[SQLiteStore, SQLiteStore], client: MetadataClient) -> ChangeWatch:
    return ChangeWatch(stores[0].changes, client)


async def _made(client: MetadataClient, name: str) -> Any:
    return await client.create(NewQueue(ACCOUNT, name, {}, {}, now_ms=NOW_MS, hold_seconds=0))


@pytest.mark.parametrize("change", ["update", "delete", "purge"])
async def test_a_change_is_seen_at_the_next_look(
    client: MetadataClient, other: MetadataClient, watch: ChangeWatch, change: str
) -> None:
    await watch.poll()
    queue, untouched = await _made(client, "q"), await _made(client, "untouched")
    known = await other.get(ACCOUNT, "q")
    if change == "update":
        await other.update(known, now_ms=NOW_MS, attributes={"Policy": "{}"})
    elif change == "delete":
        await other.delete(known, now_ms=NOW_MS)
    else:
        await other.begin_purge(known, now_ms=NOW_MS, interval_seconds=0)
    assert client.cached(ACCOUNT, "q") == queue
    await watch.poll()
    assert client.cached(ACCOUNT, "q") is None
    assert client.cached(ACCOUNT, "untouched") == untouched


async def test_changes_of_streams_are_seen_too(stores: tuple[SQLiteStore, SQLiteStore], client: MetadataClient) -> None:
    streams, others = StreamClient(stores[0].streams), StreamClient(stores[1].streams)
    watch = ChangeWatch(stores[0].changes, client, streams)
    await watch.poll()
    stream = await streams.create(NewStream(ACCOUNT, "logs", {}, {}, NOW_MS))
    untouched = await streams.create(NewStream(ACCOUNT, "untouched", {}, {}, NOW_MS))
    grown = await others.add_partitions(stream, [0])
    assert streams.cached(ACCOUNT, "logs") == stream
    await watch.poll()
    assert streams.cached(ACCOUNT, "logs") is None
    assert await streams.get(ACCOUNT, "logs") == grown
    await others.delete(grown)
    await watch.poll()
    assert streams.cached_topic(ACCOUNT, stream.topic_id) is None
    assert streams.cached(ACCOUNT, "untouched") == untouched


async def test_changes_before_the_first_poll_invalidate_nothing(
    client: MetadataClient, other: MetadataClient, watch: ChangeWatch
) -> None:
    await other.update(await _made(other, "q"), now_ms=NOW_MS, tags={"a": "b"})
    queue = await client.get(ACCOUNT, "q")
    await watch.poll()
    await watch.poll()
    assert client.cached(ACCOUNT, "q") == queue


async def test_a_poll_that_missed_too_many_changes_invalidates_all(
    client: MetadataClient, other: MetadataClient, watch: ChangeWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_CHANGES_KEPT", 3)
    await watch.poll()
    await _made(client, "untouched")
    changed = await _made(other, "q")
    for number in range(4):
        assert client.cached(ACCOUNT, "untouched")
        changed = await other.update(changed, now_ms=NOW_MS, tags={"n": str(number)})
    await watch.poll()
    assert client.cached(ACCOUNT, "untouched") is None


async def test_only_so_many_changes_are_kept(stores: tuple[SQLiteStore, SQLiteStore], other: MetadataClient) -> None:
    queue = await _made(other, "q")
    for number in range(sqlite._CHANGES_KEPT + 5):
        queue = await other.update(queue, now_ms=NOW_MS, tags={"n": str(number)})
    last = (await stores[0].changes.queue_changes(None)).last
    assert last == sqlite._CHANGES_KEPT + 5
    kept = (await stores[0].changes.queue_changes(5)).names
    assert kept is not None
    assert len(kept) == sqlite._CHANGES_KEPT
    assert (await stores[0].changes.queue_changes(4)).names is None


async def test_now_and_then_all_is_forgotten(
    client: MetadataClient, watch: ChangeWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For changes without a record."""
    polls = int(FORGET_SECONDS / POLL_SECONDS)
    await _made(client, "q")
    for _ in range(polls - 1):
        await watch.poll()
        assert client.cached(ACCOUNT, "q") is not None
    await watch.poll()
    assert client.cached(ACCOUNT, "q") is None
    await client.get(ACCOUNT, "q")
    await watch.poll()
    assert client.cached(ACCOUNT, "q") is not None


async def test_while_the_store_is_unavailable_nothing_is_kept(
    stores: tuple[SQLiteStore, SQLiteStore], client: MetadataClient, other: MetadataClient, caplog: Any
) -> None:
    faults = Faults(stores[0])
    watch = ChangeWatch(cast(Any, faults.store.changes), client)
    await watch.poll()
    queue = await _made(client, "q")
    faults.fail("queue_changes")
    await watch.poll()
    await watch.poll()
    assert client.cached(ACCOUNT, "q") is None
    assert len(caplog.records) == 1
    faults.heal()
    await client.get(ACCOUNT, "q")
    await other.update(queue, now_ms=NOW_MS, tags={"a": "b"})
    await watch.poll()
    assert client.cached(ACCOUNT, "q") is None


async def test_it_looks_by_itself_until_it_is_closed(
    stores: tuple[SQLiteStore, SQLiteStore], client: MetadataClient, other: MetadataClient
) -> None:
    watch = ChangeWatch(stores[0].changes, client, poll_seconds=0.005)
    await watch.start()
    queue = await _made(client, "q")
    await other.update(queue, now_ms=NOW_MS, tags={"a": "b"})
    await until(lambda: client.cached(ACCOUNT, "q") is None)
    await watch.close()
    await stores[0].close()
    with pytest.raises(StoreUnavailable):
        await stores[0].changes.queue_changes(None)
