"""A real node on a real disk, with real metadata, for tests."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from backend.api import NewMessage, PartitionSettings, Peer, Receive, ReceivedMessage, Target
from backend.journal.local.disk import Disk, RealDisk
from backend.journal.local.log import LocalLog, LogSettings
from backend.node import Node, NodeSettings
from metadata_service.sqlite.store import SQLiteStore


class FakeResolver:
    """Resolver of the queues that a test has created."""

    def __init__(self) -> None:
        self.known: dict[int, PartitionSettings] = {}

    async def settings(self, target: Target) -> PartitionSettings | None:
        found = self.known.get(target.partition)
        return found if found is not None and found.queue_id == target.queue_id else None

    async def target(self, arn: str, group: str | None = None) -> Target | None:
        for settings in self.known.values():
            if settings.arn == arn:
                return Target(settings.partition, settings.queue_id, settings.version)
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
        self, name: str, shards: Collection[int] = (), elsewhere: Peer | None = None, cluster: int = 0
    ) -> Node:
        log = LogSettings(segment_bytes=self.segment_bytes)
        settings = NodeSettings(name, log, shards=shards, cluster=cluster)
        node = self.nodes[name] = await Node.start(
            RealDisk(), str(self.folder / "journal"), self.store, self.resolver, settings=settings, elsewhere=elsewhere
        )
        return node

    async def stop(self, *names: str) -> None:
        for name in names or list(self.nodes):
            await self.nodes.pop(name).close()

    async def close(self) -> None:
        await self.stop()
        await self.store.close()

    def settings(self, partition: int) -> PartitionSettings:
        arn = f"arn:aws:sqs:us-east-1:000000000000:queue-{partition}"
        self.resolver.known[partition] = PartitionSettings(partition, partition, 1, arn, b"k" * 16)
        return self.resolver.known[partition]


class RestartableNode:
    """One node with its folder and other state that survives its restarts."""

    def __init__(self, folder: Path, segment_bytes: int = 1 << 20, checkpoint_segments: int = 2) -> None:
        self.folder = folder
        self.resolver = FakeResolver()
        self.settings = NodeSettings(
            log=LogSettings(segment_bytes=segment_bytes), checkpoint_segments=checkpoint_segments
        )
        self.node: Node
        self.store: SQLiteStore
        self.disk = RealDisk()

    async def start(self) -> None:
        self.store = SQLiteStore(self.folder / "metadata.db")
        self.node = await Node.start(
            self.disk, str(self.folder / "journal"), self.store, self.resolver, settings=self.settings
        )

    async def stop(self) -> None:
        await self.node.close()
        await self.store.close()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def queue(self, partition: int, *, fifo: bool = False, **values: Any) -> Target:
        arn = f"arn:aws:sqs:us-east-1:000000000000:queue-{partition}"
        settings = PartitionSettings(partition, partition, 1, arn, b"k" * 16, fifo=fifo, **values)
        self.resolver.known[partition] = settings
        await self.node.configure(settings)
        return Target(partition, partition, 1)

    async def send(self, target: Target, *bodies: str, group: str | None = None) -> None:
        await self.node.send(target, [NewMessage(body.encode(), group=group) for body in bodies])

    async def receive(
        self, target: Target, most: int = 10, visibility: int = 30, wait: float = 0
    ) -> list[ReceivedMessage]:
        return await self.node.receive(target, Receive(most, visibility, wait))


def disk_of(node: Node) -> Disk:
    """Disk that a serving node writes its log to."""
    assert node._incarnation is not None
    log = node._incarnation.log
    assert isinstance(log, LocalLog)
    return log._disk
