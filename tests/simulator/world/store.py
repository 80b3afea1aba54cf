"""The metadata in memory: log and shard entries as a store keeps them, and the queues as the frontend knows them.

It outlives processes like a database does.  A change takes a moment, may be refused before it is applied, and may be
applied without its caller hearing of it.
"""

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

import msgspec

from backend.api import PartitionSettings, Target
from metadata_service.models import ClusterEntry, Heartbeat, LogEntry, ShardEntry
from metadata_service.store import ConditionFailed, Entries, StoreUnavailable

T = TypeVar("T")


class SimStore:
    """Implements the stores of entries and of the cluster, and :class:`backend.lookups.Resolver`."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.failing = 0.0
        """Probability that a call fails, with either outcome."""
        self.failures = 0
        self.when_sealed: Callable[[LogEntry], None] | None = None
        """Called with each log when it is sealed."""
        self._logs: dict[int, LogEntry] = {}
        self._shards: dict[int, ShardEntry] = {}
        self._heartbeats: dict[str, Heartbeat] = {}
        self._cluster = ClusterEntry()
        self.queues: dict[int, PartitionSettings] = {}
        """Settings of each queue that exists, by partition."""

    async def _before(self) -> bool:
        """A moment passes.  Whether the change is applied but not answered."""
        await asyncio.sleep(self.random.uniform(0.0001, 0.003))
        if self.failing and self.random.random() < self.failing:
            self.failures += 1
            if self.random.random() < 0.5:
                raise StoreUnavailable("injected: not applied")
            return True
        return False

    async def _after(self, lost: bool) -> None:
        if lost:
            await asyncio.sleep(self.random.uniform(0.0001, 0.003))
            raise StoreUnavailable("injected: applied")

    async def decided(self, decide: Callable[[], T], *, changes: bool) -> T:
        """Have something else decided, as of the metadata's other tables."""
        lost = await self._before()
        decided = decide()
        await self._after(lost)
        return decided

    # --- entries ---

    async def new_incarnation(self, node: str) -> LogEntry:
        lost = await self._before()
        incarnation = 1 + max((entry.incarnation for entry in self._logs.values() if entry.node == node), default=0)
        entry = LogEntry(log_id=len(self._logs) + 1, node=node, incarnation=incarnation)
        self._logs[entry.log_id] = entry
        await self._after(lost)
        return entry

    async def logs(self, node: str | None = None) -> list[LogEntry]:
        await self._after(await self._before())
        return [entry for entry in self._logs.values() if node in (None, entry.node)]

    async def update_log(self, entry: LogEntry) -> LogEntry:
        lost = await self._before()
        stored = self._logs.get(entry.log_id)
        if stored is None or stored.version != entry.version:
            raise ConditionFailed(f"log {entry.log_id}")
        new = self._logs[entry.log_id] = msgspec.structs.replace(entry, version=entry.version + 1)
        if new.state == "sealed" and stored.state != "sealed" and self.when_sealed is not None:
            self.when_sealed(new)
        await self._after(lost)
        return new

    async def shards(self) -> list[ShardEntry]:
        await self._after(await self._before())
        return [self._shards[number] for number in sorted(self._shards)]

    async def poll_entries(self) -> Entries:
        await self._after(await self._before())
        return Entries(list(self._logs.values()), [self._shards[number] for number in sorted(self._shards)])

    async def update_shards(self, entries: Sequence[ShardEntry]) -> list[ShardEntry]:
        lost = await self._before()
        for entry in entries:
            stored = self._shards.get(entry.shard)
            if (stored.version if stored is not None else 0) != entry.version:
                raise ConditionFailed(f"shard {entry.shard}")
        new = [msgspec.structs.replace(entry, version=entry.version + 1) for entry in entries]
        for entry in new:
            self._shards[entry.shard] = entry
        await self._after(lost)
        return new

    # --- the cluster ---

    async def beat(self, heartbeat: Heartbeat) -> None:
        lost = await self._before()
        stored = self._heartbeats.get(heartbeat.node)
        if stored is None or (stored.incarnation, stored.count) < (heartbeat.incarnation, heartbeat.count):
            self._heartbeats[heartbeat.node] = heartbeat
        await self._after(lost)

    async def heartbeats(self) -> list[Heartbeat]:
        await self._after(await self._before())
        return [self._heartbeats[node] for node in sorted(self._heartbeats)]

    async def cluster(self) -> ClusterEntry:
        await self._after(await self._before())
        return self._cluster

    async def update_cluster(self, entry: ClusterEntry) -> ClusterEntry:
        lost = await self._before()
        if self._cluster.version != entry.version:
            raise ConditionFailed("the cluster's entry")
        new = self._cluster = msgspec.structs.replace(entry, version=entry.version + 1)
        await self._after(lost)
        return new

    # --- the resolver ---

    async def settings(self, target: Target) -> PartitionSettings | None:
        await self._after(await self._before())
        settings = self.queues.get(target.partition)
        return settings if settings is not None and settings.queue_id == target.queue_id else None

    async def target(self, arn: str, group: str | None = None) -> Target | None:
        await self._after(await self._before())
        for settings in self.queues.values():
            if settings.arn == arn:
                return Target(settings.partition, settings.queue_id, settings.version)
        return None
