"""Nodes whose storage is metered in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from backend import api
from backend.clocks.node_clock import SteadyClock
from backend.cluster.storage_meter import StorageMeter
from backend.journal.local.disk import RealDisk
from backend.node import Node, NodeSettings
from backend.stream_api import NewBatch, StreamSettings
from backend.stream_commands import AppendBatch, ConfigureStream
from billing.metering.storage import StorageRecord
from billing.metering.storage_file import finished_storage
from metadata_service.sqlite.store import SQLiteStore
from metadata_service.store import StoreError
from tests.backend.calls import send
from tests.backend.nodes import FakeResolver

Put = Callable[[Node, api.Target, int], Awaitable[None]]
"""Stores this number of bytes in a queue or a stream."""
HOUR = 1_763_726_400
"""2025-11-21T12:00:00Z"""


class MeterWorld:
    """Nodes of one machine in virtual time, with the files that their meters write."""

    def __init__(self, folder: Path) -> None:
        self.now = float(HOUR)
        self.folder = folder
        self.spool = folder / "usage"
        self.store = SQLiteStore(folder / "metadata.db")
        self.resolver = FakeResolver()
        self.nodes: dict[str, Node] = {}
        self.tags: dict[int, Mapping[str, str] | None] = {}

    async def node(self, name: str, shards: Any = ()) -> Node:
        clock = SteadyClock(lambda: self.now, lambda: self.now, lambda: self.now)
        settings = NodeSettings(name, shards=shards)
        node = self.nodes[name] = await Node.start(
            RealDisk(), str(self.folder / "journal"), self.store.entries, self.resolver, clock=clock, settings=settings
        )
        return node

    def meter(self, node: Node) -> StorageMeter:
        return StorageMeter(node, self.spool, "host-1", self._tags, wall=lambda: self.now)

    async def _tags(self, queue_id: int) -> Mapping[str, str] | None:
        if queue_id not in self.tags:
            raise StoreError("away")
        return self.tags[queue_id]

    async def queue(self, node: Node, partition: int, name: str = "queue", **values: Any) -> api.Target:
        arn = f"arn:aws:sqs:us-east-1:123456789012:{name}-{partition}"
        settings = api.PartitionSettings(partition, partition, 1, arn, b"k" * 16, **values)
        self.resolver.known[partition] = settings
        await node.call(api.Configure(settings))
        return api.Target(partition, partition, 1)

    async def stream(self, node: Node, partition: int) -> api.Target:
        settings = StreamSettings(partition, partition, 1, "123456789012", f"topic-{partition}", bytes(16), 0)
        self.resolver.streams[partition] = settings
        await node.call(ConfigureStream(settings))
        return api.Target(partition, partition, 1)

    async def until(self, meter: StorageMeter, second: float) -> None:
        """Advance the time to this second after the hour's start, as the meter's own loop would."""
        while True:
            turn = (self.now // 10 + 1) * 10
            if turn > HOUR + second:
                break
            self.now = turn
            await meter.turn()
        self.now = HOUR + second

    async def hand_over(self, target: api.Target, put: Put, shard: int) -> list[StorageRecord]:
        """Store 1,000 bytes on a node, hand the shard over to another after 133 s, and store 500 there after 325 s.

        ``target`` is of the node ``a``, which owns all shards.  Returns the records that count, up to 400 s.
        """
        first, second = self.nodes["a"], await self.node("b")
        meters = self.meter(first), self.meter(second)
        await put(first, target, 1000)

        async def until(second: float) -> None:
            while self.now < HOUR + second:
                self.now = min(HOUR + second, (self.now // 10 + 1) * 10)
                for meter in meters:
                    await meter.turn()

        await until(133)
        await first.ownership.hand_over({shard}, second.ownership.log_id)
        await second.ownership.take({shard})
        await until(325)
        await put(second, target, 500)
        await until(400)
        for meter in meters:
            await meter.close()
        records = counted_once(self.records())
        check_minutes(records)
        return records

    async def restart(self, node: Node, meter: StorageMeter) -> list[StorageRecord]:
        """Stop a node after 90 s, start it again 5 s later, and return the records that count, up to 300 s."""
        await self.until(meter, 90)
        await meter.close()
        await node.close()
        self.now += 5
        node = await self.node("a", range(api.SHARDS))
        return counted_once(await self.recorded(self.meter(node), 300))

    async def metered(self, size: int = 0, partition: int = 1) -> tuple[Node, StorageMeter, api.Target]:
        """Start a node that owns all shards, with its meter and a queue, and a message in it of this size."""
        node = await self.node("a", range(api.SHARDS))
        target = await self.queue(node, partition)
        if size:
            await store(node, target, size)
        return node, self.meter(node), target

    async def recorded(self, meter: StorageMeter, second: float) -> list[StorageRecord]:
        """Advance the time, end the meter, and return all records; none covers a minute of another."""
        await self.until(meter, second)
        await meter.close()
        records = self.records()
        check_minutes(records)
        return records

    def records(self) -> list[StorageRecord]:
        found: list[StorageRecord] = []
        for file in finished_storage(self.spool):
            found += file.records()
            assert file.lost == []
            file.close()
        return found

    async def close(self) -> None:
        for node in self.nodes.values():
            await node.close()
        await self.store.close()


async def store(node: Node, target: api.Target, size: int, count: int = 1) -> None:
    await send(node, target, *[b"x" * size] * count)


async def append(node: Node, target: api.Target, size: int, records: int = 1) -> None:
    await node.call(AppendBatch(target, NewBatch(b"x" * size, records, size), None))


def spans(records: list[StorageRecord]) -> list[tuple[int, int, int]]:
    """Return minute of the hour, minutes and byte-milliseconds of each record."""
    return sorted(((one.minute_s - HOUR) // 60, one.minutes, one.byte_milliseconds) for one in records)


def counted_once(records: list[StorageRecord]) -> list[StorageRecord]:
    """Deduplicate as a reader does: of each id the record with the latest epoch."""
    by_id: dict[tuple[int, int], StorageRecord] = {}
    for record in sorted(records, key=lambda one: (one.epoch, one.sequence)):
        by_id[record.partition, record.minute_s] = record
    return list(by_id.values())


def check_minutes(records: list[StorageRecord]) -> None:
    """Check that no two records cover the same minute of a partition."""
    minutes = [(one.partition, one.minute_s + 60 * at) for one in records for at in range(one.minutes)]
    assert len(minutes) == len(set(minutes))
