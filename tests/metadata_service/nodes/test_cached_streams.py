"""The cache of streams, and the ids of producers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from metadata_service.nodes.cached_streams import StreamClient
from metadata_service.nodes.producer_ids import ProducerIds
from metadata_service.sqlite.store import SQLiteStore
from metadata_service.store import ConditionFailed, StoreUnavailable, StreamExists, StreamNotFound, StreamStore
from metadata_service.streams import NewStream, Stream
from tests.metadata_service.conformance import ACCOUNT, NOW_MS, create_stream
from tests.metadata_service.faulty import Faults

OTHER = "111111111111"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    store = SQLiteStore(tmp_path / "metadata.sqlite")
    yield store
    await store.close()


@pytest.fixture
def faults(store: SQLiteStore) -> Faults:
    return Faults(store)


@pytest.fixture
def client(faults: Faults) -> StreamClient:
    return StreamClient(faults.store.streams)


async def test_a_stream_that_was_read_is_cached_by_name_and_topic_id(
    store: SQLiteStore, client: StreamClient, faults: Faults
) -> None:
    stream = await create_stream(store, "logs")
    assert client.cached(ACCOUNT, "logs") is client.cached_topic(ACCOUNT, stream.topic_id) is None
    assert await client.get_topic(ACCOUNT, stream.topic_id) == stream
    faults.calls.clear()
    assert client.cached(ACCOUNT, "logs") == stream
    assert client.cached_topic(ACCOUNT, stream.topic_id) == stream
    assert client.cached(OTHER, "logs") is None
    assert client.cached_topic(OTHER, stream.topic_id) is None
    assert faults.calls == []


@pytest.mark.parametrize("change", ["random", "number", "short", "account", "group"])
async def test_another_topic_id_finds_nothing(store: SQLiteStore, client: StreamClient, change: str) -> None:
    stream = await create_stream(store, "logs")
    topic_id = {
        "random": bytes([stream.topic_id[0] ^ 1]) + stream.topic_id[1:],
        "number": stream.topic_id[:-1] + b"\x09",
        "short": stream.topic_id[1:],
        "group": stream.topic_id[:8] + b"\xff" * 8,
    }.get(change, stream.topic_id)
    with pytest.raises(StreamNotFound):
        await client.get_topic(OTHER if change == "account" else ACCOUNT, topic_id)
    assert client.cached(ACCOUNT, "logs") is None


async def test_changes_made_through_the_client_are_seen_at_once(store: SQLiteStore, client: StreamClient) -> None:
    stream = await client.create(NewStream(ACCOUNT, "logs", {}, {}, NOW_MS))
    assert client.cached(ACCOUNT, "logs") == stream
    stream = await client.update(stream, now_ms=NOW_MS, settings={"retention.ms": "1"})
    assert client.cached(ACCOUNT, "logs") == stream
    stream = await client.add_partitions(stream, [0, 0])
    assert client.cached_topic(ACCOUNT, stream.topic_id) == stream
    assert (stream.partitions, stream.version) == (3, 3)
    assert await client.by_id(stream.stream_id) == stream
    await client.delete(stream)
    assert client.cached(ACCOUNT, "logs") is client.cached_topic(ACCOUNT, stream.topic_id) is None
    with pytest.raises(StreamNotFound):
        await client.get(ACCOUNT, "logs")


async def test_a_stream_made_anew_has_another_topic_id(store: SQLiteStore, client: StreamClient) -> None:
    old = await client.create(NewStream(ACCOUNT, "logs", {}, {}, NOW_MS))
    await store.streams.delete_stream(old.stream_id)
    anew = await create_stream(store, "logs")
    assert await client.get(ACCOUNT, "logs") == anew
    assert client.cached_topic(ACCOUNT, old.topic_id) is None
    assert client.cached_topic(ACCOUNT, anew.topic_id) == anew
    with pytest.raises(StreamNotFound):
        await client.get_topic(ACCOUNT, old.topic_id)
    client.remember(old)
    assert client.cached(ACCOUNT, "logs") == anew, "the older incarnation is late"


async def test_a_stream_in_the_way_of_a_creation_is_cached(store: SQLiteStore, client: StreamClient) -> None:
    stream = await create_stream(store, "logs")
    with pytest.raises(StreamExists):
        await client.create(NewStream(ACCOUNT, "logs", {}, {}, NOW_MS))
    assert client.cached(ACCOUNT, "logs") == stream


async def test_a_change_from_an_old_version_is_refused(store: SQLiteStore, client: StreamClient) -> None:
    stream = await client.create(NewStream(ACCOUNT, "logs", {}, {}, NOW_MS))
    await store.streams.add_partitions(stream.stream_id, 1, [0])
    with pytest.raises(ConditionFailed):
        await client.add_partitions(stream, [0])


async def test_the_cache_is_bounded(store: SQLiteStore) -> None:
    client = StreamClient(store.streams, limit=2)
    streams = [await client.create(NewStream(ACCOUNT, name, {}, {}, NOW_MS)) for name in "ab"]
    assert client.cached(ACCOUNT, "a") is not None
    streams.append(await client.create(NewStream(ACCOUNT, "c", {}, {}, NOW_MS)))
    assert [name for name in "abc" if client.cached(ACCOUNT, name)] == ["a", "c"]
    assert client.cached_topic(ACCOUNT, streams[1].topic_id) is None
    assert client.cached_topic(ACCOUNT, streams[2].topic_id) == streams[2]


async def test_listed_streams_are_cached(store: SQLiteStore, client: StreamClient) -> None:
    streams = [await create_stream(store, name) for name in "abc"]
    assert await client.list_streams(ACCOUNT, limit=2) == streams[:2]
    assert [client.cached(ACCOUNT, name) for name in "abc"] == [*streams[:2], None]


@pytest.mark.parametrize("read", ["get", "get_topic", "list_streams"])
async def test_entries_invalidated_during_a_read_are_not_kept(store: SQLiteStore, read: str) -> None:
    """The answer to the read arrives after the invalidation."""
    stream = await create_stream(store, "logs")
    started, answered = asyncio.Event(), asyncio.Event()

    class SlowStreams:
        async def get_stream(self, account: str, name: str) -> Stream:
            return await self.get_stream_by_id(stream.stream_id)

        async def get_stream_by_id(self, stream_id: int) -> Stream:
            started.set()
            await answered.wait()
            return stream

        async def list_streams(self, account: str, *, after: str, limit: int) -> list[Stream]:
            return [await self.get_stream_by_id(stream.stream_id)]

    client = StreamClient(cast(StreamStore, SlowStreams()))
    reads: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
        "get": partial(client.get, ACCOUNT, "logs"),
        "get_topic": partial(client.get_topic, ACCOUNT, stream.topic_id),
        "list_streams": partial(client.list_streams, ACCOUNT, limit=1),
    }
    asked = asyncio.create_task(reads[read]())
    await started.wait()
    client.forget([(ACCOUNT, "logs")])
    answered.set()
    assert await asked in (stream, [stream])
    assert client.cached(ACCOUNT, "logs") is None


async def test_the_cluster_of_groups_is_read_once(client: StreamClient, faults: Faults) -> None:
    assert [await client.group_cluster(ACCOUNT, number) for number in (3, 4)] == [3, 3]
    assert faults.calls == ["group_cluster"]
    assert await client.group_cluster(OTHER, 4) == 4


async def test_producer_ids_of_processes_differ(store: SQLiteStore, faults: Faults) -> None:
    processes = [ProducerIds(store.streams, block=10), ProducerIds(faults.store.streams, block=10)]
    given = await asyncio.gather(*(processes[number % 2].allocate() for number in range(100)))
    assert sorted(given) == list(range(1, 101))
    assert faults.calls == ["allocate_producer_ids"] * 5
    faults.fail("allocate_producer_ids", "after")
    with pytest.raises(StoreUnavailable):
        await processes[1].allocate()
    faults.heal()
    assert await processes[1].allocate() == 111, "the numbers whose allocation was in doubt are lost"


async def test_records_survive_the_way_between_processes(store: SQLiteStore) -> None:
    stream = await create_stream(store, "logs", 3)
    assert msgspec.json.decode(msgspec.json.encode(stream), type=Stream) == stream
