"""Streams and groups behind a connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from backend.api import Command, NotOwner, PartitionUnknown, Target, Unavailable, shard_of
from backend.rpc.address import Address
from backend.rpc.client import RemoteBackend
from backend.rpc.cluster_client import ClusterBackend
from backend.rpc.connection import NotSent
from backend.rpc.server import BackendServer, serve_backend
from backend.serving.stream_partition import OpenStream
from backend.stream_api import (
    Appended,
    GroupSettings,
    JoinRequest,
    NewBatch,
    OffsetCommit,
    StreamError,
    StreamRefused,
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
    FetchedBatch,
    FetchOffsets,
    JoinGroup,
    SyncGroup,
)
from tests.backend.wired import SECRET, WiredCluster

STREAM, GROUP = Target(7, 7, 1), Target(8, 8, 1)
TOPIC_ID = bytes(range(16))
WAIT = 20.0


class _Cluster(WiredCluster):
    as_cluster = True


@pytest.fixture(params=[WiredCluster, _Cluster], ids=["node", "cluster"])
async def wired(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[WiredCluster]:
    wired: WiredCluster = request.param(tmp_path)
    await wired.start()
    yield wired
    await wired.stop()


async def test_a_stream_is_served_over_a_connection(wired: WiredCluster) -> None:
    backend = wired.backend
    append = AppendBatch(STREAM, NewBatch(b"\x00one\xff", 3, 5))
    with pytest.raises(PartitionUnknown):
        await backend.call(append)
    await backend.call(ConfigureStream(StreamSettings(7, 7, 1, "000000000000", "orders", TOPIC_ID, 0)))
    waiting = asyncio.create_task(backend.call(FetchBatches(STREAM, 0, 1 << 20, WAIT)))
    stream = wired.incarnation.shards.streams[7]
    assert isinstance(stream, OpenStream)
    while not stream.waiters:
        await asyncio.sleep(0.005)
    assert await backend.call(append) == Appended(0, -1, 0)
    assert await waiting == Fetched([FetchedBatch(0, 3, 1, b"\x00one\xff")], 3, 0)
    with pytest.raises(StreamRefused, match="offsets are 0 to 3, not 4") as raised:
        await backend.call(FetchBatches(STREAM, 4, 1 << 20, WAIT))
    assert raised.value.error is StreamError.OFFSET_OUT_OF_RANGE


async def test_a_fetch_whose_caller_leaves_waits_no_more(wired: WiredCluster) -> None:
    backend = wired.backend
    await backend.call(ConfigureStream(StreamSettings(7, 7, 1, "000000000000", "orders", TOPIC_ID, 0)))
    stream = wired.incarnation.shards.streams[7]
    assert isinstance(stream, OpenStream)
    waiting = asyncio.create_task(backend.call(FetchBatches(STREAM, 0, 1 << 20, WAIT)))
    while not stream.waiters:
        await asyncio.sleep(0.005)
    waiting.cancel()
    while stream.waiters:
        await asyncio.sleep(0.005)


async def test_a_group_is_served_over_a_connection(wired: WiredCluster) -> None:
    backend = wired.backend
    settings = GroupSettings(8, 8, 1, "000000000000", "readers", initial_rebalance_delay_ms=0)
    await backend.call(ConfigureGroup(settings))
    request = JoinRequest(
        "", "member", "client", "host", 10_000, 10_000, "consumer", (("range", b"\x00"),), None, False
    )
    joined = await backend.call(JoinGroup(GROUP, request, WAIT))
    assert (joined.error, joined.leader, [one.metadata for one in joined.members]) == (0, "member", [b"\x00"])
    sync = SyncRequest("member", joined.generation, {"member": b"\x01"})
    assert await backend.call(SyncGroup(GROUP, sync, WAIT)) == SyncAnswer(
        StreamError.NONE, b"\x01", "consumer", "range"
    )
    commits = [OffsetCommit("orders", TOPIC_ID, 0, 5)]
    commit = CommitOffsets(GROUP, "member", joined.generation, None, commits)
    assert await backend.call(commit) == [StreamError.NONE]
    stale = CommitOffsets(GROUP, "member", joined.generation - 1, None, commits)
    assert await backend.call(stale) == [StreamError.ILLEGAL_GENERATION]
    (found,) = await backend.call(FetchOffsets(GROUP, [(TOPIC_ID, 0)]))
    assert found is not None
    assert found.offset == 5


# --- order --------------------------------------------------------------------------------------------


class _Partition:
    """A node of a cluster that notes the batches that it gets, and appends to the partition if it owns it."""

    def __init__(self, name: str, owner: list[str]) -> None:
        self.name = name
        self.owner = owner
        """Name of the owner now, shared by all nodes."""
        self.knows: str | None = None
        """Owner that it names if it is not the owner itself."""
        self.refused: list[bytes] = []
        self.appended: list[bytes] = []
        self.refuses_first: set[bytes] = set()
        """Batches whose first attempt is refused although it is the owner."""

    def call(self, command: Command[Any]) -> Coroutine[Any, Any, Any]:
        assert isinstance(command, AppendBatch)
        return self._append(command.batch.payload)

    async def _append(self, payload: bytes) -> Appended:
        if self.owner[0] != self.name or payload in self.refuses_first:
            self.refuses_first.discard(payload)
            self.refused.append(payload)
            raise NotOwner(shard_of(STREAM.partition), self.knows)
        self.appended.append(payload)
        return Appended(len(self.appended) - 1, -1, 0)


class _Two:
    """Two nodes, one of which owns the partition, and a caller that is connected to both."""

    def __init__(self) -> None:
        self.owner = ["a"]
        self.nodes = {name: _Partition(name, self.owner) for name in "ab"}
        self.servers: dict[str, BackendServer] = {}
        self.backend: ClusterBackend

    async def start(self) -> None:
        for name, node in self.nodes.items():
            self.servers[name] = await serve_backend(node, secret=SECRET, host="127.0.0.1")
        self.backend = await ClusterBackend.connect(self._read, secret=SECRET)
        for member in self.backend._members.values():
            await member.backend.ready(10)

    async def _read(self) -> dict[str, Address]:
        return {name: server.address for name, server in self.servers.items()}

    async def append(self, payloads: list[bytes]) -> list[int]:
        """Append all at the same time; return their offsets."""
        calls = [self.backend.call(AppendBatch(STREAM, NewBatch(one, 1, len(one)))) for one in payloads]
        return [answer.base_offset for answer in await asyncio.gather(*calls)]

    async def close(self) -> None:
        await self.backend.close()
        for server in self.servers.values():
            await server.close()


@pytest.fixture
async def two() -> AsyncIterator[_Two]:
    two = _Two()
    await two.start()
    yield two
    await two.close()


BATCHES = [b"%d" % number for number in range(8)]


async def test_batches_keep_their_order_while_the_owner_is_looked_for(
    two: _Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = cycle("ba")

    def choose(members: Sequence[Any]) -> Any:
        """Choose another node for each call."""
        name = next(names)
        return next((one for one in members if one.name == name), members[0])

    monkeypatch.setattr("random.choice", choose)
    assert await two.append(BATCHES) == list(range(8))
    assert two.nodes["a"].appended == BATCHES


async def test_batches_keep_their_order_when_the_partition_moves(two: _Two) -> None:
    await two.append([b"before"])
    two.owner[0] = "b"
    two.nodes["a"].knows = "b"
    two.nodes["b"].refuses_first = {BATCHES[0], BATCHES[3]}  # it learns only now that it is the owner
    assert await two.append(BATCHES) == list(range(8))
    assert two.nodes["a"].refused[:8] == BATCHES, "they were under way together"
    assert two.nodes["b"].appended == BATCHES


async def test_batches_of_a_known_owner_are_under_way_together(two: _Two) -> None:
    await two.append([b"before"])
    release, arrived = asyncio.Event(), []
    node = two.nodes["a"]

    async def append(payload: bytes) -> Appended:
        arrived.append(payload)
        await release.wait()
        return Appended(len(arrived), -1, 0)

    node._append = append  # type: ignore[method-assign]
    appending = asyncio.create_task(two.append(BATCHES))
    async with asyncio.timeout(WAIT):
        while arrived != BATCHES:
            await asyncio.sleep(0.005)
    release.set()
    await appending


@pytest.mark.parametrize("producer", [-1, 5])
async def test_a_batch_behind_one_of_unknown_outcome_is_given_up_if_it_needs_that(two: _Two, producer: int) -> None:
    await two.append([b"before"])
    node, arrived = two.nodes["a"], asyncio.Event()
    node.refuses_first = {b"second"}  # so it is called again behind the first one
    append = node._append

    async def hang(payload: bytes) -> Appended:
        if payload == b"first":
            arrived.set()
            await asyncio.Event().wait()
        return await append(payload)

    node._append = hang  # type: ignore[method-assign]
    batches = [NewBatch(one, 1, 9, producer_id=producer, base_sequence=producer) for one in (b"first", b"second")]
    first, second = (asyncio.create_task(two.backend.call(AppendBatch(STREAM, one))) for one in batches)
    async with asyncio.timeout(WAIT):
        await arrived.wait()
        while not two.backend._order._lines[STREAM.partition].held:
            await asyncio.sleep(0.005)
    for connection in list(two.servers["a"].connections):
        connection.cut()
    with pytest.raises(Unavailable, match="not known"):
        await first
    if producer < 0:
        await second
        assert node.appended == [b"before", b"second"]
    else:
        with pytest.raises(NotSent, match="an earlier call for the partition has failed"):
            await second
        assert node.appended == [b"before"]
    assert (await two.append([b"after"]))[0] == len(node.appended) - 1, "later calls are not concerned"


async def test_batches_keep_their_order_while_no_node_can_be_called() -> None:
    node = _Partition("a", ["a"])
    server = await serve_backend(node, secret=SECRET, host="127.0.0.1")

    async def no_nodes() -> dict[str, Address]:
        return {}

    backend = await ClusterBackend.connect(no_nodes, secret=SECRET)
    backend._owners[shard_of(STREAM.partition)] = "a"  # it was the owner before it was away
    calls = [AppendBatch(STREAM, NewBatch(one, 1, len(one))) for one in BATCHES]
    waiting = [asyncio.create_task(backend.call(command)) for command in calls]
    await asyncio.sleep(0)
    await backend.know({"a": server.address})
    await asyncio.gather(*waiting)
    assert node.appended == BATCHES
    await backend.close()
    await server.close()


async def test_batches_keep_their_order_while_there_is_no_connection() -> None:
    node = _Partition("a", ["a"])
    server = await serve_backend(node, secret=SECRET, host="127.0.0.1")
    address = server.address
    await server.close()
    backend = await RemoteBackend.connect(address, secret=SECRET)
    calls = [AppendBatch(STREAM, NewBatch(one, 1, len(one))) for one in BATCHES]
    waiting = [asyncio.create_task(backend.call(command)) for command in calls[:4]]
    await asyncio.sleep(0)
    server = await serve_backend(node, secret=SECRET, host="127.0.0.1", port=address.port)
    await backend.ready(WAIT)
    # They are called when there is a connection, while the others have not been sent.
    waiting += [asyncio.create_task(backend.call(command)) for command in calls[4:]]
    await asyncio.gather(*waiting)
    assert node.appended == BATCHES
    await backend.close()
    await server.close()
