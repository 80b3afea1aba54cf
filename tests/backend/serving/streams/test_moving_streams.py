"""Streams and groups move from one node to another: with their shard, or after the end of their node."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backend.api import SHARDS, NotOwner, StorageFull, Target, Unavailable, shard_of
from backend.extent_ids import ExtentId
from backend.node import Node
from backend.serving.stream_partition import OpenGroup, OpenStream
from backend.stream_api import GroupSettings, NewBatch, OffsetCommit, StreamError, StreamSettings
from backend.stream_commands import (
    AppendBatch,
    CommitOffsets,
    ConfigureGroup,
    ConfigureStream,
    DeleteRecords,
    FetchBatches,
    FetchOffsets,
)
from tests.backend.nodes import NodeMachine, incarnation_of
from tests.backend.quorum_node import QuorumMachine
from tests.backend.serving.streams.stream_node import ACCOUNT, TOPIC_ID, WAIT, OtherExtents, listed

STREAM, GROUP = Target(7, 7, 1), Target(8, 8, 1)
SHARDS_MOVED = [shard_of(7), shard_of(8)]


@pytest.fixture(params=[NodeMachine, QuorumMachine], ids=["files", "tables"])
async def machine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[NodeMachine]:
    machine: NodeMachine = request.param(tmp_path)
    yield machine
    await machine.close()


async def filled(machine: NodeMachine) -> tuple[Node, Node]:
    """Start two nodes; the first one has a stream with two batches, of which one is in an extent, and a group."""
    first = await machine.start("a", range(SHARDS))
    second = await machine.start("b")
    await first.call(ConfigureStream(StreamSettings(7, 7, 1, ACCOUNT, "orders", TOPIC_ID, 0)))
    await first.call(ConfigureGroup(GroupSettings(8, 8, 1, ACCOUNT, "readers")))
    await append(first, b"one")
    binder = incarnation_of(first).binder
    await binder._bind(opened(first))
    await append(first, b"two")
    commit = CommitOffsets(GROUP, "", -1, None, [OffsetCommit("orders", TOPIC_ID, 0, 1)])
    assert await first.call(commit) == [StreamError.NONE]
    return first, second


def opened(node: Node) -> OpenStream:
    stream = incarnation_of(node).shards.streams[7]
    assert isinstance(stream, OpenStream)
    return stream


async def append(node: Node, payload: bytes) -> int:
    return (await node.call(AppendBatch(STREAM, NewBatch(payload, 1, len(payload))))).base_offset


async def fetch(node: Node, offset: int = 0, wait: float = 0.0) -> list[tuple[bytes | None, int]]:
    """Return payload and epoch of each batch."""
    found: list[tuple[bytes | None, int]] = []
    while True:
        answer = await node.call(FetchBatches(STREAM, offset, 1 << 20, wait))
        found += [(batch.payload, batch.leader_epoch) for batch in answer.batches]
        if not answer.batches or answer.batches[-1].end_offset == answer.durable_end:
            return found
        offset = answer.batches[-1].end_offset


async def check_moved(node: Node) -> None:
    assert await fetch(node) == [(b"one", 1), (b"two", 1)]
    assert await append(node, b"three") == 2
    assert await fetch(node) == [(b"one", 1), (b"two", 1), (b"three", 2)]
    (found,) = await node.call(FetchOffsets(GROUP, [(TOPIC_ID, 0)]))
    assert found is not None
    assert found.offset == 1
    group = incarnation_of(node).shards.streams[8]
    assert isinstance(group, OpenGroup)
    assert group.epoch == 2


async def test_a_shard_is_handed_over_with_its_streams_and_groups(machine: NodeMachine) -> None:
    first, second = await filled(machine)
    waiting = asyncio.create_task(fetch(first, 2, WAIT))
    while not opened(first).waiters:
        await asyncio.sleep(0.005)
    await first.ownership.hand_over(SHARDS_MOVED, second.ownership.log_id)
    with pytest.raises(NotOwner):
        await asyncio.wait_for(waiting, WAIT / 2)
    with pytest.raises(NotOwner):
        await fetch(first)
    await second.ownership.take(SHARDS_MOVED)
    await check_moved(second)


async def test_a_node_takes_over_the_streams_of_one_that_has_ended(machine: NodeMachine) -> None:
    first, second = await filled(machine)
    ended = first.ownership.log_id
    incarnation = incarnation_of(first)
    assert first._checkpoints is not None
    first._checkpoints.cancel()
    first._end(Unavailable("killed"))
    await incarnation.log.close()
    del machine.nodes["a"]
    await second.ownership.seal(ended)
    await second.ownership.take(SHARDS_MOVED)
    await check_moved(second)


async def test_a_bind_that_a_hand_over_interrupts_is_done_by_the_new_owner(machine: NodeMachine) -> None:
    first, second = await filled(machine)

    class Slow(OtherExtents):
        async def append(self, extent: ExtentId, offset: int, data: bytes) -> None:
            await super().append(extent, offset, data)
            await first.ownership.hand_over(SHARDS_MOVED, second.ownership.log_id)

    opened(first).binder._failed = ExtentId(7, 1, 1)
    binder = incarnation_of(first).binder
    slow = binder._store = Slow(binder._store)
    with pytest.raises(NotOwner):
        await binder._bind(opened(first))
    await second.ownership.take(SHARDS_MOVED)
    await incarnation_of(second).binder.turn()
    assert await listed(slow) == [ExtentId(7, 1, 1), ExtentId(7, 2, 2)]
    await check_moved(second)


async def test_extents_that_the_former_owner_released_are_deleted_by_the_new_one(machine: NodeMachine) -> None:
    first, second = await filled(machine)
    await first.call(DeleteRecords(STREAM, 1))
    await first.ownership.hand_over(SHARDS_MOVED, second.ownership.log_id)
    await second.ownership.take(SHARDS_MOVED)
    extents = incarnation_of(second).binder._store
    assert await listed(extents) == [ExtentId(7, 1, 1)]
    await second.checkpoint()
    assert await listed(extents) == []
    assert await fetch(second, 1) == [(b"two", 1)]


@pytest.mark.parametrize("is_new", [False, True], ids=["continued", "new"])
@pytest.mark.parametrize("machine", [QuorumMachine], indirect=True, ids=["tables"])
async def test_a_node_taken_for_dead_damages_no_extent(machine: NodeMachine, is_new: bool) -> None:
    """It is in the middle of a bind when another node takes its streams over, and writes the rest afterwards."""
    first, second = await filled(machine)
    taken_for_dead = first.ownership.log_id

    class Late(OtherExtents):
        async def append(self, extent: ExtentId, offset: int, data: bytes) -> None:
            await super().append(extent, offset, data[: len(data) // 2])
            await second.ownership.seal(taken_for_dead)
            await second.ownership.take(SHARDS_MOVED)
            await incarnation_of(second).binder.turn()
            await super().append(extent, offset, data)

    if is_new:
        opened(first).binder._failed = ExtentId(7, 1, 1)
    binder = incarnation_of(first).binder
    late = binder._store = Late(binder._store)
    with contextlib.suppress(Unavailable):  # it may know by now
        await binder._bind(opened(first))
    with pytest.raises((Unavailable, NotOwner)):
        await append(first, b"never answered")
    await check_moved(second)
    assert await listed(late) == [ExtentId(7, 1, 1), ExtentId(7, 2, 2)]
    await second.checkpoint()
    assert await fetch(second) == [(b"one", 1), (b"two", 1), (b"three", 2)]


@pytest.mark.parametrize("machine", [QuorumMachine], indirect=True, ids=["tables"])
async def test_what_the_next_owner_has_deleted_does_not_count_as_lost(machine: NodeMachine) -> None:
    first, second = await filled(machine)
    await second.ownership.seal(first.ownership.log_id)
    await second.ownership.take(SHARDS_MOVED)
    assert await fetch(first) == [(b"one", 1), (b"two", 1)], "it does not know, and all of this is durable"
    await second.call(DeleteRecords(STREAM, 1))
    await second.checkpoint()
    assert await listed(incarnation_of(second).binder._store) == []
    with pytest.raises((Unavailable, NotOwner)):
        await fetch(first)
    assert await fetch(second, 1) == [(b"two", 1)]


async def test_after_a_hand_over_that_failed_its_streams_are_served_again(
    machine: NodeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await filled(machine)

    async def full() -> None:
        raise StorageFull("no space")

    with monkeypatch.context() as patched:
        patched.setattr(incarnation_of(first).writer, "durable", full)
        with pytest.raises(StorageFull):
            await first.ownership.hand_over(SHARDS_MOVED, second.ownership.log_id)
    assert await fetch(first) == [(b"one", 1), (b"two", 1)]
    assert await append(first, b"three") == 2
    await first.ownership.hand_over(SHARDS_MOVED, second.ownership.log_id)
    await second.ownership.take(SHARDS_MOVED)
    assert await fetch(second) == [(b"one", 1), (b"two", 1), (b"three", 1)]
