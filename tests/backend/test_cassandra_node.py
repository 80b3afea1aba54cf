"""A node whose journal and metadata are in a real Cassandra: losing the node loses no data."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from backend import api
from backend.extent_ids import ExtentId
from backend.journal.cassandra.journal import CassandraJournal
from backend.journal.cassandra.log import CassandraLogSettings
from backend.journal.cassandra.tables import JOURNAL, CassandraTables
from backend.node import Node, NodeSettings
from backend.serving.stream_partition import OpenStream
from backend.serving.streams import binder as binder_module
from backend.stream_api import NewBatch, StreamSettings
from backend.stream_commands import AppendBatch, ConfigureStream, DeleteRecords, DropStream, FetchBatches
from metadata_service.cassandra.driver.connection import CassandraConnection, CassandraSettings
from metadata_service.cassandra.store import CassandraStore
from tests.backend.calls import all_payloads, delete, receive, send
from tests.backend.nodes import FakeResolver, incarnation_of
from tests.servers.cassandra_server import CassandraCluster
from tests.servers.waiting import until


class _Service:
    def __init__(self, server: CassandraCluster, keyspace: str) -> None:
        self.server = server
        self.keyspace = keyspace
        self.resolver = FakeResolver()
        self.stack = AsyncExitStack()

    async def start(self, name: str) -> Node:
        """Start a node like a process of its own: with its own connection for everything."""
        connection = await CassandraConnection.open(
            CassandraSettings(
                contact_points=tuple(self.server.contact_points),
                port=self.server.port,
                replication={"datacenter1": 1},
                attempt_seconds=5,
            )
        )
        store = await CassandraStore.open(connection, self.keyspace)
        self.stack.push_async_callback(store.close)
        await store.bring(JOURNAL)
        tables = await CassandraTables.open(connection, self.keyspace, store.fence)
        log = CassandraLogSettings(segment_bytes=16 << 10, row_bytes=4096)
        node = await Node.start_on(
            lambda: CassandraJournal(tables, log), store.entries, self.resolver, settings=NodeSettings(name=name)
        )
        self.stack.push_async_callback(node.close)
        return node


@pytest.fixture
async def service(cassandra: CassandraCluster, keyspace: str) -> AsyncIterator[_Service]:
    service = _Service(cassandra, keyspace)
    async with service.stack:
        yield service


async def a_queue(service: _Service, node: Node) -> api.Target:
    settings = api.PartitionSettings(7, 7, 1, "arn:aws:sqs:us-east-1:000000000000:queue-7", b"k" * 16)
    service.resolver.known[7] = settings
    await node.call(api.Configure(settings))
    return api.Target(7, 7, 1)


async def test_messages_outlive_their_node(service: _Service) -> None:
    node = await service.start("one")
    queue = await a_queue(service, node)
    bodies = [b"%d-" % number * 300 for number in range(60)]
    for start in range(0, 60, 10):
        await send(node, queue, *bodies[start : start + 10])
    gone = await receive(node, queue, 10, 600, 0)
    await delete(node, queue, *gone)
    await node.checkpoint()
    await send(node, queue, b"last")
    await node.close()
    again = await service.start("one")
    left = {*bodies, b"last"} - {message.payload for message in gone}
    assert sorted(await all_payloads(again, queue)) == sorted(left)
    assert not again.damage


async def fetched(node: Node, topic: api.Target, offset: int = 0) -> list[bytes | None]:
    """Return the payloads of all batches."""
    payloads: list[bytes | None] = []
    while (answer := await node.call(FetchBatches(topic, offset, 1 << 20, 0.0))).batches:
        payloads += [batch.payload for batch in answer.batches]
        offset = answer.batches[-1].end_offset
    return payloads


async def bind_all(node: Node) -> None:
    """Move all batches of the topic into extents."""
    binder = incarnation_of(node).binder
    stream = incarnation_of(node).shards.streams[8]
    assert isinstance(stream, OpenStream)
    while len(stream.fold.tail):
        await binder._bind(stream)


async def extents_of(node: Node) -> list[ExtentId]:
    store = incarnation_of(node).binder._store
    return sorted([extent async for part in store.list_extents(range(api.SHARDS)) for extent in part])


async def kill(node: Node) -> None:
    """End a node as a killed process ends: without a checkpoint."""
    log = incarnation_of(node).log
    assert node._checkpoints is not None
    node._checkpoints.cancel()
    node._end(api.Unavailable("killed"))
    await log.close()


async def test_streams_outlive_their_node_and_their_extents_are_deleted_in_time(
    service: _Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binder_module, "CHECK_SECONDS", 3600.0)  # the test binds
    node = await service.start("one")
    topic = api.Target(8, 8, 1)
    settings = StreamSettings(8, 8, 1, "000000000000", "orders", bytes(16), 0)
    service.resolver.streams[8] = settings
    await node.call(ConfigureStream(settings))
    payloads = [b"%d-" % number * 20_000 for number in range(40)]

    async def append(owner: Node, payload: bytes) -> None:
        await owner.call(AppendBatch(topic, NewBatch(payload, 1, len(payload))))

    for payload in payloads[:20]:
        await append(node, payload)
    await bind_all(node)
    for payload in payloads[20:30]:
        await append(node, payload)
    await bind_all(node)
    assert await extents_of(node) == [ExtentId(8, 1, 1)]
    assert await fetched(node, topic) == payloads[:30]
    await append(node, payloads[30])
    stray = ExtentId(8, 1, 9)
    await incarnation_of(node).binder._store.append(stray, 0, b"bytes of a bind whose record was not written")
    await kill(node)
    successor = await service.start("one")
    assert await fetched(successor, topic) == payloads[:31]
    for payload in payloads[31:]:
        await append(successor, payload)
    assert stray in await extents_of(successor)
    await bind_all(successor)
    await incarnation_of(successor).binder.turn()
    assert await extents_of(successor) == [ExtentId(8, 1, 1), ExtentId(8, 2, 2)]
    assert await fetched(successor, topic) == payloads
    await successor.call(DeleteRecords(topic, 35))
    await successor.checkpoint()
    assert await extents_of(successor) == [ExtentId(8, 2, 2)]
    assert await fetched(successor, topic, 35) == payloads[35:]
    await successor.call(DropStream(topic))
    await successor.checkpoint()
    assert await extents_of(successor) == []


async def test_a_zombie_answers_nothing_more(service: _Service) -> None:
    """A node is taken for dead and taken over by another process while it lives."""
    zombie = await service.start("one")
    queue = await a_queue(service, zombie)
    await send(zombie, queue, b"first", b"second")
    successor = await service.start("one")
    with pytest.raises(api.Unavailable):
        await send(zombie, queue, b"too late")
    assert sorted(await all_payloads(successor, queue)) == [b"first", b"second"]


async def test_without_a_quorum_it_refuses(
    service: _Service, cassandra: CassandraCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await service.start("one")
    queue = await a_queue(service, node)
    await send(node, queue, b"before")
    cassandra.nodes[0].pause()
    try:
        with pytest.raises(api.Unavailable):
            await send(node, queue, b"perhaps")
        with pytest.raises(api.Unavailable):
            await send(node, queue, b"never")
        assert (node.ready, node.accepts_sends) == (True, False)
    finally:
        cassandra.nodes[0].resume()
    await until(lambda: node.accepts_sends)
    await send(node, queue, b"after")
    assert set(await all_payloads(node, queue)) - {b"perhaps"} == {b"before", b"after"}
