"""A node whose journal and metadata are in a real Cassandra: losing the node loses no data."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from backend.api import NewMessage, PartitionSettings, Receive, Target, Unavailable
from backend.journal.cassandra.journal import CassandraJournal
from backend.journal.cassandra.log import CassandraLogSettings
from backend.journal.cassandra.tables import JOURNAL, CassandraTables
from backend.node import Node, NodeSettings
from bench.servers.cassandra_server import CassandraCluster
from metadata_service.cassandra.driver.connection import CassandraConnection, CassandraSettings
from metadata_service.cassandra.store import CassandraStore
from tests.backend.nodes import FakeResolver


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
            lambda: CassandraJournal(tables, log), store, self.resolver, settings=NodeSettings(name=name)
        )
        self.stack.push_async_callback(node.close)
        return node


@pytest.fixture
async def service(cassandra: CassandraCluster, keyspace: str) -> AsyncIterator[_Service]:
    service = _Service(cassandra, keyspace)
    async with service.stack:
        yield service


async def a_queue(service: _Service, node: Node) -> Target:
    settings = PartitionSettings(7, 7, 1, "arn:aws:sqs:us-east-1:000000000000:queue-7", b"k" * 16)
    service.resolver.known[7] = settings
    await node.configure(settings)
    return Target(7, 7, 1)


async def drained(node: Node, queue: Target) -> list[bytes]:
    found: list[bytes] = []
    while messages := await node.receive(queue, Receive(10, 600, 0)):
        found += [message.payload for message in messages]
    return found


async def test_messages_outlive_their_node(service: _Service) -> None:
    node = await service.start("one")
    queue = await a_queue(service, node)
    bodies = [b"%d-" % number * 300 for number in range(60)]
    for start in range(0, 60, 10):
        await node.send(queue, [NewMessage(body) for body in bodies[start : start + 10]])
    gone = await node.receive(queue, Receive(10, 600, 0))
    await node.delete(queue, [message.handle for message in gone])
    await node.checkpoint()
    await node.send(queue, [NewMessage(b"last")])
    await node.close()
    again = await service.start("one")
    left = {*bodies, b"last"} - {message.payload for message in gone}
    assert sorted(await drained(again, queue)) == sorted(left)
    assert not again.damage


async def test_a_zombie_answers_nothing_more(service: _Service) -> None:
    """A node is taken for dead and taken over by another process while it lives."""
    zombie = await service.start("one")
    queue = await a_queue(service, zombie)
    await zombie.send(queue, [NewMessage(b"first"), NewMessage(b"second")])
    successor = await service.start("one")
    with pytest.raises(Unavailable):
        await zombie.send(queue, [NewMessage(b"too late")])
    assert sorted(await drained(successor, queue)) == [b"first", b"second"]


async def test_a_node_without_a_quorum_refuses_and_goes_on(
    service: _Service, cassandra: CassandraCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await service.start("one")
    queue = await a_queue(service, node)
    await node.send(queue, [NewMessage(b"before")])
    cassandra.nodes[0].pause()
    try:
        with pytest.raises(Unavailable):
            await node.send(queue, [NewMessage(b"perhaps")])
        with pytest.raises(Unavailable):
            await node.send(queue, [NewMessage(b"never")])
        assert (node.ready, node.room) == (True, False)
    finally:
        cassandra.nodes[0].resume()
    async with asyncio.timeout(60):
        while not node.room:
            await asyncio.sleep(0.01)
    await node.send(queue, [NewMessage(b"after")])
    assert set(await drained(node, queue)) - {b"perhaps"} == {b"before", b"after"}
