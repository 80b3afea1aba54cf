"""Consumer groups on a node: joins that wait for each other, offsets, crashes, and the end of sessions."""

from __future__ import annotations

import asyncio

import pytest

from backend.api import PartitionGone, PartitionUnknown, StorageFull, Target
from backend.stream_api import CommittedOffset, FetchedOffset, OffsetCommit, StreamError, SyncAnswer
from backend.stream_commands import (
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    DeleteOffsetsAnswer,
    DescribeGroup,
    FetchOffsets,
    ForgetTopic,
    LeaveAnswer,
    ListCommittedOffsets,
)
from backend.streams.offsets import CHECK_MS
from tests.backend.serving.streams.stream_node import TOPIC_ID, WAIT, StreamNode, waiting_calls
from tests.servers.waiting import until

OTHER_ID = bytes(16)


async def committed(node: StreamNode, target: Target, *partitions: int) -> list[int | None]:
    wanted = [(TOPIC_ID, partition) for partition in partitions or (0,)]
    found = await node.node.call(FetchOffsets(target, wanted))
    return [None if one is None else one.offset for one in found]


async def state(node: StreamNode, target: Target) -> str:
    return (await node.node.call(DescribeGroup(target))).state


# --- members --------------------------------------------------------------------------------------------


async def test_members_wait_for_each_other_and_for_the_leader(node: StreamNode) -> None:
    target = await node.group(7)
    generation = await node.stable(target)
    second = asyncio.create_task(node.join(target, new="second"))
    await waiting_calls(node, target, 1)
    assert await node.heartbeat(target, "member", generation) is StreamError.REBALANCE_IN_PROGRESS
    first = await node.join(target, "member")
    joined = await second
    assert (first.generation, joined.generation, joined.leader) == (generation + 1, generation + 1, "member")
    assert sorted(member.member_id for member in first.members) == ["member", "second"]
    assert joined.members == []
    syncing = asyncio.create_task(node.sync(target, "second", joined.generation))
    await waiting_calls(node, target, 1)
    assert (await node.sync(target, "member", first.generation, member=b"1", second=b"2")).assignment == b"1"
    assert (await syncing).assignment == b"2"
    assert await node.heartbeat(target, "second", joined.generation) is StreamError.NONE
    assert await state(node, target) == "Stable"


async def test_a_join_without_an_answer_in_time_has_to_be_repeated(node: StreamNode) -> None:
    target = await node.group(7)
    await node.stable(target)
    assert (await node.join(target, new="second", wait=0.01)).error is StreamError.REBALANCE_IN_PROGRESS
    first = await node.join(target, "member")
    assert first.error is StreamError.NONE
    assert (await node.sync(target, "member", first.generation - 1)).error is StreamError.ILLEGAL_GENERATION


async def test_waiting_calls_end_with_the_service(node: StreamNode) -> None:
    target = await node.group(7)
    await node.stable(target)
    waiting = asyncio.create_task(node.join(target, new="second"))
    await waiting_calls(node, target, 1)
    node.node.drain()
    async with asyncio.timeout(WAIT / 2):
        assert (await waiting).error is StreamError.REBALANCE_IN_PROGRESS
        assert (await node.join(target, new="third")).error is StreamError.REBALANCE_IN_PROGRESS


async def test_a_generation_survives_a_crash_with_full_sessions_and_without_a_rebalance(node: StreamNode) -> None:
    target = await node.group(7)
    generation = await node.stable(target)
    assert await node.commit(target, "member", generation, 5) == [StreamError.NONE]
    before = node.state(target)
    await node.crash()
    assert node.state(target) == before
    assert await state(node, target) == "Stable"
    assert await node.heartbeat(target, "member", generation) is StreamError.NONE
    assert await node.sync(target, "member", generation) == SyncAnswer(StreamError.NONE, b"all", "consumer", "range")
    assert await node.commit(target, "member", generation, 6) == [StreamError.NONE]
    assert await committed(node, target) == [6]


async def test_a_member_that_is_silent_is_removed(node: StreamNode) -> None:
    target = await node.group(7, session_timeout_min_ms=1)
    joined = await node.join(target, session_ms=100)
    await node.sync(target, "member", joined.generation)

    async def is_empty() -> bool:
        return node.opened_group(target).coordinator.phase.value == "Empty"

    async with asyncio.timeout(20):
        await until(is_empty)
    assert await node.heartbeat(target, "member", joined.generation) is StreamError.UNKNOWN_MEMBER_ID
    before = node.state(target)
    await node.crash()
    assert node.state(target) == before
    assert await state(node, target) == "Empty"


async def test_a_session_begins_when_a_group_is_opened(node: StreamNode) -> None:
    """The timer is set then, not with the first call."""
    target = await node.group(7, session_timeout_min_ms=1)
    joined = await node.join(target, session_ms=100)
    await node.sync(target, "member", joined.generation)
    await node.crash()

    async def is_empty() -> bool:
        return node.opened_group(target).coordinator.phase.value == "Empty"

    async with asyncio.timeout(20):
        await until(is_empty)


async def test_members_leave(node: StreamNode) -> None:
    target = await node.group(7)
    generation = await node.stable(target)
    expected = LeaveAnswer(StreamError.NONE, [StreamError.UNKNOWN_MEMBER_ID, StreamError.NONE])
    assert await node.leave(target, "stranger", "member") == expected
    assert await node.commit(target, "member", generation, 5) == [StreamError.UNKNOWN_MEMBER_ID]
    await node.crash()
    assert await state(node, target) == "Empty"


async def test_a_join_is_refused_without_a_trace_if_its_records_cannot_be_written(
    node: StreamNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = await node.group(7)

    def full(size_bytes: int, reserve: bool = False) -> None:
        raise StorageFull("no space")

    async def still_full(size_bytes: int, reserve: bool = False) -> None:
        raise StorageFull("no space")

    with monkeypatch.context() as patched:
        patched.setattr(node.incarnation.log, "check_space", full)
        patched.setattr(node.incarnation.log, "wait_for_space", still_full)
        with pytest.raises(StorageFull):
            await node.join(target)
    assert node.opened_group(target).waiting == {}
    assert await state(node, target) == "Empty"
    await node.stable(target)


# --- offsets --------------------------------------------------------------------------------------------


async def test_offsets_are_kept_over_checkpoints_and_crashes(node: StreamNode) -> None:
    target = await node.group(7)
    for partition in range(300):
        assert await node.commit(target, "", -1, partition, partition) == [StreamError.NONE]
    await node.node.checkpoint()
    await node.commit(target, "", -1, 1_000, 299)
    before = node.state(target)
    await node.crash()
    assert node.state(target) == before
    assert await committed(node, target, 0, 298, 299, 300) == [0, 298, 1_000, None]
    found = await node.node.call(ListCommittedOffsets(target))
    assert len(found) == 300
    assert isinstance(found[0], FetchedOffset)


async def test_a_commit_has_an_error_for_each_offset(node: StreamNode) -> None:
    target = await node.group(7, metadata_bytes_max=3)
    commits = [OffsetCommit("orders", TOPIC_ID, number, 5, 2, "x" * number) for number in (3, 4)]
    assert await node.node.call(CommitOffsets(target, "", -1, None, commits)) == [
        StreamError.NONE,
        StreamError.OFFSET_METADATA_TOO_LARGE,
    ]
    kept, missing = await node.node.call(FetchOffsets(target, [(TOPIC_ID, 3), (TOPIC_ID, 4)]))
    assert isinstance(kept, CommittedOffset)
    assert (kept.offset, kept.leader_epoch, kept.metadata, missing) == (5, 2, "xxx", None)


async def test_offsets_are_deleted_one_by_one_and_with_their_topic(node: StreamNode) -> None:
    target = await node.group(7)
    for partition in range(3):
        await node.commit(target, "", -1, partition, partition)
    answer = await node.node.call(DeleteOffsets(target, [("orders", TOPIC_ID, 0), ("orders", TOPIC_ID, 9)]))
    assert answer == DeleteOffsetsAnswer(StreamError.NONE, [StreamError.NONE] * 2)
    await node.node.call(ForgetTopic(target, OTHER_ID))
    assert await committed(node, target, 0, 1, 2) == [None, 1, 2]
    await node.node.call(ForgetTopic(target, TOPIC_ID))
    await node.crash()
    assert await committed(node, target, 0, 1, 2) == [None, None, None]


async def test_offsets_of_a_group_that_nobody_uses_expire_and_then_the_group(
    node: StreamNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = await node.group(7, offsets_retention_ms=1)
    await node.commit(target, "", -1, 5)
    group = node.opened_group(target)
    now = group.clock()
    await node.incarnation.groups.expire_due()
    assert await committed(node, target) == [5], "it was checked just now"
    monkeypatch.setattr(group, "clock", lambda: now + CHECK_MS + 1)
    await node.incarnation.groups.expire_due()
    with pytest.raises(PartitionUnknown):
        await committed(node, target)
    await node.crash()
    with pytest.raises(PartitionUnknown):
        await committed(node, target)
    again = await node.group(7)
    assert await committed(node, again) == [None]


# --- the group as a whole ---------------------------------------------------------------------------------


async def test_a_deleted_group_begins_anew(node: StreamNode) -> None:
    target = await node.group(7)
    generation = await node.stable(target)
    await node.commit(target, "member", generation, 5)
    assert await node.node.call(DeleteGroup(target)) is StreamError.NON_EMPTY_GROUP
    await node.leave(target, "member")
    assert await node.node.call(DeleteGroup(target)) is StreamError.NONE
    with pytest.raises(PartitionUnknown):
        await node.heartbeat(target, "member", generation)
    await node.group(7)
    assert await committed(node, target) == [None]
    await node.commit(target, "", -1, 6)
    await node.crash()
    assert await committed(node, target) == [6]


async def test_partitions_are_not_confused(node: StreamNode) -> None:
    stream, group = await node.stream(7), await node.group(8)
    with pytest.raises(PartitionGone):
        await node.fetch(group)
    with pytest.raises(PartitionGone):
        await node.heartbeat(stream, "member", 1)
    with pytest.raises(PartitionGone):
        await node.heartbeat(Target(8, 9, 1), "member", 1)
    with pytest.raises(PartitionGone):
        await node.group(7)
    with pytest.raises(PartitionGone):
        await node.stream(8)


async def test_nobody_gets_an_assignment_that_is_not_durable(node: StreamNode) -> None:
    """A sync is answered with its row, not before: another member's assignment may otherwise be lost in a crash."""
    target = await node.group(7)
    joined = await node.join(target)
    syncing = asyncio.create_task(node.sync(target, "member", joined.generation, member=b"all"))
    seq = node.incarnation.log.next_seq
    await syncing
    assert node.incarnation.log.durable_seq >= seq
