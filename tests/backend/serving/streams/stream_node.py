"""A node with streams and groups on a real disk, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Any

from backend.api import SHARDS, AckLevel, Target, Unavailable
from backend.extent_ids import ExtentId
from backend.journal.cassandra.extents import CassandraExtents
from backend.journal.cassandra.log import CassandraLogSettings
from backend.journal.extents import ExtentStore
from backend.journal.local.extents import LocalExtents
from backend.serving.stream_partition import OpenGroup, OpenStream
from backend.stream_api import (
    Appended,
    Departure,
    GroupSettings,
    JoinAnswer,
    JoinRequest,
    NewBatch,
    OffsetCommit,
    StreamError,
    StreamSettings,
    SyncAnswer,
    SyncRequest,
)
from backend.stream_commands import (
    AppendBatch,
    CommitOffsets,
    ConfigureGroup,
    ConfigureStream,
    FetchBatches,
    Fetched,
    GroupHeartbeat,
    JoinGroup,
    LeaveAnswer,
    LeaveGroup,
    SyncGroup,
)
from backend.streams.snapshot import describe
from tests.backend.nodes import RestartableNode
from tests.backend.quorum_node import QuorumNode

TOPIC_ID = bytes(range(16))
ACCOUNT = "000000000000"
CLIENT = "client"
HOST = "10.0.0.1"
WAIT = 20.0
"""Seconds that a call waits which is expected to be answered before."""


class StreamNode(RestartableNode):
    """A node whose streams have one partition each."""

    async def kill(self) -> None:
        """End the node as a killed process ends: without a checkpoint."""
        incarnation = self.incarnation
        assert self.node._checkpoints is not None
        self.node._checkpoints.cancel()
        self.node._end(Unavailable("killed"))
        await incarnation.log.close()
        await self.store.close()

    async def crash(self) -> None:
        """Kill the node and start it again."""
        await self.kill()
        await self.start()

    # --- streams ----------------------------------------------------------------------------------------

    async def stream(self, partition: int, *, version: int = 1, **settings: Any) -> Target:
        known = StreamSettings(partition, partition, version, ACCOUNT, f"topic-{partition}", TOPIC_ID, 0, **settings)
        before = self.resolver.streams.get(partition)
        if before is None or before.version <= version:
            self.resolver.streams[partition] = known
        await self.node.call(ConfigureStream(known))
        return Target(partition, partition, version)

    async def append(
        self,
        target: Target,
        payload: bytes = b"payload",
        count: int = 1,
        *,
        timestamp: int = -1,
        producer: tuple[int, int, int] = (-1, -1, -1),
        level: AckLevel | None = None,
    ) -> Appended:
        batch = NewBatch(payload, count, len(payload), timestamp, timestamp, 0, *producer)
        return await self.node.call(AppendBatch(target, batch, level))

    async def fetch(self, target: Target, offset: int = 0, bytes_max: int = 1 << 20, wait: float = 0.0) -> Fetched:
        return await self.node.call(FetchBatches(target, offset, bytes_max, wait))

    async def fetch_all(self, target: Target, offset: int = 0, bytes_max: int = 1 << 20) -> list[tuple[int, bytes]]:
        """Return (base offset, payload) of all batches, read by several fetches; lost ones are empty."""
        found: list[tuple[int, bytes]] = []
        while (answer := await self.fetch(target, offset, bytes_max)).batches:
            found += [(batch.base_offset, batch.payload or b"") for batch in answer.batches]
            offset = answer.batches[-1].end_offset
        assert offset == answer.durable_end
        return found

    def opened(self, target: Target) -> OpenStream:
        stream = self.incarnation.shards.streams[target.partition]
        assert isinstance(stream, OpenStream)
        return stream

    def state(self, target: Target) -> dict[str, Any]:
        """Everything that the outcome of a command depends on."""
        return describe(self.incarnation.shards.streams[target.partition].fold)

    async def bind(self, target: Target) -> None:
        """Move all batches of a stream that are in the log, due or not."""
        binder, stream = self.incarnation.binder, self.opened(target)
        while len(stream.fold.tail):
            await binder._bind(stream)

    @property
    def extents(self) -> ExtentStore:
        return LocalExtents(self.disk, str(self.folder / "journal"))

    async def stored_extents(self) -> list[ExtentId]:
        return await listed(self.extents)

    # --- groups -----------------------------------------------------------------------------------------

    async def group(self, partition: int, **settings: Any) -> Target:
        settings = {"initial_rebalance_delay_ms": 0, **settings}
        await self.node.call(
            ConfigureGroup(GroupSettings(partition, partition, 1, ACCOUNT, f"group-{partition}", **settings))
        )
        return Target(partition, partition, 1)

    def opened_group(self, target: Target) -> OpenGroup:
        group = self.incarnation.shards.streams[target.partition]
        assert isinstance(group, OpenGroup)
        return group

    async def join(
        self, target: Target, member_id: str = "", *, new: str = "member", session_ms: int = 10_000, wait: float = WAIT
    ) -> JoinAnswer:
        request = JoinRequest(
            member_id, new, CLIENT, HOST, session_ms, 60_000, "consumer", (("range", b""),), None, False
        )
        return await self.node.call(JoinGroup(target, request, wait))

    async def sync(self, target: Target, member_id: str, generation: int, **assignments: bytes) -> SyncAnswer:
        return await self.node.call(SyncGroup(target, SyncRequest(member_id, generation, assignments), WAIT))

    async def heartbeat(self, target: Target, member_id: str, generation: int) -> StreamError:
        return await self.node.call(GroupHeartbeat(target, member_id, generation))

    async def leave(self, target: Target, *member_ids: str) -> LeaveAnswer:
        return await self.node.call(LeaveGroup(target, [Departure(one) for one in member_ids]))

    async def commit(
        self, target: Target, member_id: str, generation: int, offset: int, partition: int = 0
    ) -> list[StreamError]:
        commits: Sequence[OffsetCommit] = [OffsetCommit("orders", TOPIC_ID, partition, offset)]
        return await self.node.call(CommitOffsets(target, member_id, generation, None, commits))

    async def stable(self, target: Target) -> int:
        """Let one member join and sync; return the generation."""
        joined = await self.join(target)
        assert joined.error is StreamError.NONE
        synced = await self.sync(target, joined.member_id, joined.generation, member=b"all")
        assert synced == SyncAnswer(StreamError.NONE, b"all", "consumer", "range")
        return joined.generation


class QuorumStreamNode(QuorumNode, StreamNode):
    """The same node on tables in memory."""

    log = CassandraLogSettings(segment_bytes=1 << 20, idle_seconds=0.05)

    @property
    def extents(self) -> ExtentStore:
        return CassandraExtents(self.tables)


class OtherExtents:
    """Extents of another store, of which a test changes an operation."""

    def __init__(self, store: ExtentStore) -> None:
        self._store = store

    async def append(self, extent: ExtentId, offset: int, data: bytes) -> None:
        await self._store.append(extent, offset, data)

    async def read(self, extent: ExtentId, size_bytes: int, offset: int) -> bytes:
        return await self._store.read(extent, size_bytes, offset)

    async def delete(self, extents: Sequence[ExtentId]) -> None:
        await self._store.delete(extents)

    def list_extents(self, shards: Collection[int]) -> AsyncIterator[list[ExtentId]]:
        return self._store.list_extents(shards)


async def listed(extents: ExtentStore) -> list[ExtentId]:
    """Return all extents of a store."""
    return sorted([extent async for part in extents.list_extents(range(SHARDS)) for extent in part])


async def waiting_fetches(node: StreamNode, target: Target, number: int) -> None:
    """Wait until this many fetches wait."""
    while len(node.opened(target).waiters) != number:
        await asyncio.sleep(0.005)


async def waiting_calls(node: StreamNode, target: Target, number: int) -> None:
    """Wait until this many joins and syncs wait."""
    while len(node.opened_group(target).waiting) != number:
        await asyncio.sleep(0.005)
