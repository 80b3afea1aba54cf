"""A real node on a real disk, with real metadata, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from backend import api
from backend.incarnation import Incarnation
from backend.journal.local.disk import Disk, RealDisk
from backend.journal.local.log import LocalLog, LogSettings
from backend.node import Node, NodeSettings
from backend.stream_api import StreamSettings
from metadata_service.sqlite.store import SQLiteStore
from tests.backend import calls
from tests.backend.memory_backend import MemoryBackend

if TYPE_CHECKING:
    from tests.simulator.test_found import VirtualNode


def node_with(**settings: Any) -> pytest.MarkDecorator:
    """Set the settings of the node of a test."""
    return pytest.mark.parametrize("cluster", [settings], indirect=True, ids=["settings"])


def incarnation_of(node: Node | MemoryBackend) -> Incarnation:
    incarnation = node._incarnation
    assert incarnation is not None
    return incarnation


async def waiters(node: Node | MemoryBackend, partition: int, number: int) -> None:
    """Wait until this many receives wait at a partition."""
    while len(incarnation_of(node).partitions[partition].waiters) != number:
        await asyncio.sleep(0.005)


class FakeResolver:
    """Resolver of the queues and topics that a test has created."""

    def __init__(self) -> None:
        self.known: dict[int, api.PartitionSettings] = {}
        self.streams: dict[int, StreamSettings] = {}

    async def stream_settings(self, target: api.Target) -> StreamSettings | None:
        found = self.streams.get(target.partition)
        return found if found is not None and found.stream_id == target.queue_id else None

    async def settings(self, target: api.Target) -> api.PartitionSettings | None:
        found = self.known.get(target.partition)
        return found if found is not None and found.queue_id == target.queue_id else None

    async def target(self, arn: str, group: str | None = None) -> api.Target | None:
        for settings in self.known.values():
            if settings.arn == arn:
                return api.Target(settings.partition, settings.queue_id, settings.version)
        return None


class NodeMachine:
    """Several nodes over one folder and one metadata file, as the processes of one machine."""

    def __init__(self, folder: Path, segment_bytes: int = 1 << 20) -> None:
        self.folder = folder
        self.resolver = FakeResolver()
        self.store = SQLiteStore(folder / "metadata.db")
        self.nodes: dict[str, Node] = {}
        self.segment_bytes = segment_bytes

    async def start(
        self, name: str, shards: Collection[int] = (), peers: api.Peer | None = None, cluster: int = 0
    ) -> Node:
        log = LogSettings(segment_bytes=self.segment_bytes)
        settings = NodeSettings(name, log, shards=shards, cluster=cluster)
        node = self.nodes[name] = await Node.start(
            RealDisk(), str(self.folder / "journal"), self.store.entries, self.resolver, settings=settings, peers=peers
        )
        return node

    async def stop(self, *names: str) -> None:
        for name in names or list(self.nodes):
            await self.nodes.pop(name).close()

    async def close(self) -> None:
        await self.stop()
        await self.store.close()

    def settings(self, partition: int) -> api.PartitionSettings:
        arn = f"arn:aws:sqs:us-east-1:000000000000:queue-{partition}"
        self.resolver.known[partition] = api.PartitionSettings(partition, partition, 1, arn, b"k" * 16)
        return self.resolver.known[partition]


class RestartableNode:
    """One node with its folder and other state that survives its restarts."""

    def __init__(
        self, folder: Path, segment_bytes: int = 1 << 20, checkpoint_segments: int = 2, **settings: Any
    ) -> None:
        self.folder = folder
        self.resolver = FakeResolver()
        settings = {"log": LogSettings(segment_bytes=segment_bytes), **settings}
        self.settings = NodeSettings(checkpoint_segments=checkpoint_segments, **settings)
        self.node: Node
        self.store: SQLiteStore
        self.disk = RealDisk()

    async def start(self) -> None:
        self.store = SQLiteStore(self.folder / "metadata.db")
        self.node = await Node.start(
            self.disk,
            str(self.folder / "journal"),
            self.store.entries,
            self.resolver,
            settings=self.settings,
            streams=self.resolver,
        )

    async def stop(self) -> None:
        await self.node.close()
        await self.store.close()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def queue(self, partition: int, *, name: str = "", fifo: bool = False, **values: Any) -> api.Target:
        arn = f"arn:aws:sqs:us-east-1:000000000000:{name or f'queue-{partition}'}"
        settings = api.PartitionSettings(partition, partition, 1, arn, b"k" * 16, fifo=fifo, **values)
        self.resolver.known[partition] = settings
        await self.node.call(api.Configure(settings))
        return api.Target(partition, partition, 1)

    @property
    def incarnation(self) -> Incarnation:
        return incarnation_of(self.node)

    async def send(self, target: api.Target, *bodies: str, group: str | None = None) -> None:
        await self.node.call(api.Send(target, [api.NewMessage(body.encode(), group=group) for body in bodies]))

    async def receive(
        self, target: api.Target, messages_max: int = 10, visibility: int = 30, wait: float = 0, *options: Any
    ) -> list[api.ReceivedMessage]:
        return await calls.receive(self.node, target, messages_max, visibility, wait, *options)

    async def payloads(self, target: api.Target, messages_max: int = 10, visibility: int = 30) -> list[bytes]:
        return await calls.payloads(self.node, target, messages_max, visibility)

    async def delete(self, target: api.Target, *messages: api.ReceivedMessage) -> list[api.HandleOutcome]:
        return await calls.delete(self.node, target, *messages)

    async def take_all(self, target: api.Target) -> list[bytes]:
        """Receive and delete until nothing is visible; returns the payloads."""
        found: list[bytes] = []
        while messages := await self.receive(target):
            found += [message.payload for message in messages]
            await self.delete(target, *messages)
        return found

    async def count(self, target: api.Target) -> api.Counters:
        return await calls.count_messages(self.node, target)

    async def peek(self, target: api.Target, messages_max: int, after: int = 0) -> list[api.Peeked]:
        return await calls.peek(self.node, target, messages_max, after)


def restart(service: VirtualNode, *, power: bool = False) -> None:
    """Kill and restart a process in virtual time, or cut its power."""
    service.close()
    if power:
        service.disk.crash()
    else:
        service.disk.kill()
    service.start()


def disk_of(node: Node) -> Disk:
    """Disk that a serving node writes its log to."""
    log = incarnation_of(node).log
    assert isinstance(log, LocalLog)
    return log._disk
