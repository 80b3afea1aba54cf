"""Committed offsets of a group: commit, fetch, deletion, expiry."""

from __future__ import annotations

import pytest

from backend.stream_api import DAY_MS, CommittedOffset, FetchedOffset, StreamError
from backend.streams import snapshot
from backend.streams.offsets import CHECK_MS
from backend.streams.records import GroupDropped, OffsetsDeleted
from tests.backend.streams.group_machine import TOPIC_ID, GroupMachine, subscription
from tests.backend.streams.stream_machine import StreamChunks

NONE = StreamError.NONE
WEEK_MS = 7 * DAY_MS


def consumers(machine: GroupMachine, *topics: str) -> int:
    """Let one consumer of these topics form a group whose session never ends."""
    return machine.form("a", protocols=(("range", subscription(*topics)),), session_timeout_ms=1_800_000)


def alive(machine: GroupMachine, ms: int) -> None:
    """Let time pass in which the member sends heartbeats."""
    until = machine.now + ms
    while machine.now < until:
        machine.pass_time(min(1_700_000, until - machine.now))
        machine.heartbeat("a", 1)


def expire(machine: GroupMachine) -> None:
    machine.write(machine.offsets.expire(machine.now))


def test_the_last_offset_counts() -> None:
    machine = GroupMachine()
    generation = machine.form("a")
    assert machine.committed(0) == -1
    assert machine.commit("a", generation, (0, 5), (1, 7), leader_epoch=3, metadata="m") == [NONE] * 2
    assert machine.commit("a", generation, (0, 4)) == [NONE]
    assert [machine.committed(partition) for partition in (0, 1, 2)] == [4, 7, -1]
    assert machine.offsets.fetch_all() == [
        FetchedOffset("orders", TOPIC_ID, 0, CommittedOffset(4, -1, "", machine.now)),
        FetchedOffset("orders", TOPIC_ID, 1, CommittedOffset(7, 3, "m", machine.now)),
    ]
    machine.restart()
    assert [machine.committed(partition) for partition in (0, 1)] == [4, 7]


@pytest.mark.parametrize(
    ("phase", "member", "generation", "error"),
    [
        ("Empty", "", -1, NONE),
        ("Empty", "a", -1, NONE),
        ("Empty", "a", 1, StreamError.UNKNOWN_MEMBER_ID),
        ("Stable", "a", 1, NONE),
        ("Stable", "a", 0, StreamError.ILLEGAL_GENERATION),
        ("Stable", "a", 2, StreamError.ILLEGAL_GENERATION),
        ("Stable", "a", -1, StreamError.ILLEGAL_GENERATION),
        ("Stable", "", -1, StreamError.UNKNOWN_MEMBER_ID),
        ("Stable", "stranger", 1, StreamError.UNKNOWN_MEMBER_ID),
        ("PreparingRebalance", "a", 1, NONE),
        ("PreparingRebalance", "b", 1, StreamError.UNKNOWN_MEMBER_ID),
        ("PreparingRebalance", "", -1, StreamError.UNKNOWN_MEMBER_ID),
        ("CompletingRebalance", "a", 2, StreamError.REBALANCE_IN_PROGRESS),
        ("CompletingRebalance", "a", 1, StreamError.ILLEGAL_GENERATION),
    ],
)
def test_members_that_may_commit(phase: str, member: str, generation: int, error: StreamError) -> None:
    machine = GroupMachine()
    if phase != "Empty":
        machine.form("a", "b")
    if phase == "PreparingRebalance":
        machine.leave("b")
    if phase == "CompletingRebalance":
        for one in "ab":
            machine.begin_join(one)
    assert machine.phase == phase
    assert machine.commit(member, generation, (0, 5)) == [error]
    assert machine.committed(0) == (5 if error is NONE else -1)


def test_a_commit_keeps_the_session() -> None:
    machine = GroupMachine()
    generation = machine.form("a")
    for _ in range(3):
        machine.pass_time(9_000)
        assert machine.commit("a", generation, (0, 5)) == [NONE]
    assert machine.phase == "Stable"


def test_metadata_that_are_too_long_cost_their_offset_only() -> None:
    machine = GroupMachine(metadata_bytes_max=10)
    too_large = StreamError.OFFSET_METADATA_TOO_LARGE
    assert machine.commit("", -1, (0, 1), metadata="é" * 5) == [NONE]
    before = len(machine.journal)
    assert machine.commit("", -1, (0, 2), (1, 2), metadata="é" * 5 + "x") == [too_large] * 2
    assert len(machine.journal) == before
    assert machine.committed(0) == 1


def test_offsets_of_a_topic_without_consumers_are_deleted() -> None:
    machine = GroupMachine()
    generation = consumers(machine, "orders")
    for topic in ("orders", "bills"):
        machine.commit("a", generation, (len(topic), 1), topic=topic)
    wanted = [("orders", TOPIC_ID, 6), ("bills", TOPIC_ID, 5), ("bills", TOPIC_ID, 99)]
    error, written, errors = machine.offsets.delete(wanted)
    assert (error, errors) == (NONE, [StreamError.GROUP_SUBSCRIBED_TO_TOPIC, NONE, NONE])
    assert written == [OffsetsDeleted([(TOPIC_ID, 5)])]
    machine.leave("a")
    assert machine.offsets.delete(wanted)[2] == [NONE] * 3


def test_offsets_of_a_group_whose_subscriptions_are_unknown_are_not_deleted() -> None:
    machine = GroupMachine()
    machine.commit("", -1, (0, 1))
    machine.form("a")
    assert machine.offsets.delete([("orders", TOPIC_ID, 0)])[2] == [StreamError.GROUP_SUBSCRIBED_TO_TOPIC]
    machine.leave("a")
    machine.form("b", protocol_type="connect")
    assert machine.offsets.delete([("orders", TOPIC_ID, 0)]) == (StreamError.NON_EMPTY_GROUP, [], [])
    machine.leave("b")
    machine.run(machine.coordinator.delete(machine.now))
    assert machine.offsets.delete([])[0] is StreamError.GROUP_ID_NOT_FOUND


def test_the_offsets_of_a_deleted_topic_are_deleted() -> None:
    machine = GroupMachine()
    machine.commit("", -1, *((partition, 1) for partition in range(600)))
    machine.write(machine.offsets.delete_topic(bytes(16)))
    assert len(machine.offsets.fetch_all()) == 600
    machine.write(machine.offsets.delete_topic(TOPIC_ID))
    assert machine.offsets.fetch_all() == []
    assert machine.fold.blocks == {}


# --- expiry -------------------------------------------------------------------------------------------


def test_offsets_of_a_consumer_without_a_group_expire_after_their_commit() -> None:
    machine = GroupMachine()
    machine.commit("", -1, (0, 1))
    machine.pass_time(1000)
    machine.commit("", -1, (1, 1))
    machine.commit("", -1, (2, 1), retention_ms=5)
    machine.pass_time(5)
    expire(machine)
    assert machine.committed(2) == -1
    machine.pass_time(WEEK_MS - 1006)
    expire(machine)
    assert machine.committed(0) == 1
    machine.pass_time(1)
    expire(machine)
    assert [machine.committed(partition) for partition in (0, 1)] == [-1, 1]
    machine.pass_time(1000)
    expire(machine)
    assert machine.phase == "Dead"
    assert isinstance(machine.journal[-1][0], GroupDropped)
    assert machine.offsets.expire(machine.now) == []


def test_offsets_of_a_group_without_members_expire_after_the_last_one_left() -> None:
    machine = GroupMachine()
    generation = consumers(machine, "orders")
    machine.commit("a", generation, (0, 1))
    alive(machine, WEEK_MS)
    machine.leave("a")
    machine.pass_time(1000)
    machine.commit("", -1, (1, 1))  # by a tool
    machine.pass_time(WEEK_MS - 1001)
    expire(machine)
    assert machine.committed(0) == 1
    machine.restart()
    machine.pass_time(1)
    expire(machine)
    assert [machine.committed(partition) for partition in (0, 1)] == [-1, 1]


def test_offsets_that_consumers_use_do_not_expire() -> None:
    machine = GroupMachine()
    generation = consumers(machine, "orders")
    machine.commit("a", generation, (0, 1))
    alive(machine, WEEK_MS)
    expire(machine)
    assert machine.committed(0) == 1


def test_offsets_of_topics_without_subscribers_expire() -> None:
    machine = GroupMachine()
    generation = consumers(machine, "orders")
    machine.commit("a", generation, (0, 1), topic="bills")
    alive(machine, WEEK_MS)
    expire(machine)
    assert machine.committed(0) == -1


def test_offsets_do_not_expire_in_a_rebalance_or_if_subscriptions_are_unknown() -> None:
    machine = GroupMachine()
    generation = machine.form("a", session_timeout_ms=1_800_000)
    machine.commit("a", generation, (0, 1))
    alive(machine, WEEK_MS)
    expire(machine)
    assert machine.committed(0) == 1
    machine.begin_join(new_id="b", requires_known_member_id=False)
    assert machine.phase == "PreparingRebalance"
    expire(machine)
    assert machine.committed(0) == 1


def test_an_unused_group_is_dropped_after_a_while() -> None:
    machine = GroupMachine()
    machine.pass_time(CHECK_MS - 1)
    expire(machine)
    assert machine.phase == "Empty"
    machine.join(new_id="a")
    machine.pass_time(1)
    expire(machine)
    assert machine.phase == "Empty"  # somebody is about to join
    machine.pass_time(10_000)
    expire(machine)
    assert machine.phase == "Dead"


# --- checkpoints --------------------------------------------------------------------------------------


async def test_a_checkpoint_of_a_group_costs_what_has_changed() -> None:
    machine = GroupMachine()
    generation = machine.form("a", "b")
    machine.commit("a", generation, *((partition, partition) for partition in range(1000)))
    chunks = StreamChunks()
    assert snapshot.describe(await chunks.copy_group(machine.fold)) == snapshot.describe(machine.fold)
    assert len(chunks.stored) == 1 + 4 + 1
    machine.commit("b", generation, (300, 301))
    copy = await chunks.copy_group(machine.fold)
    assert len(chunks.stored) == 6 + 2
    assert snapshot.describe(copy) == snapshot.describe(machine.fold) == snapshot.describe(machine.replayed())
    machine.leave("a", "b")
    copy = await chunks.copy_group(machine.fold)
    assert len(chunks.stored) == 8 + 2
    assert snapshot.describe(copy) == snapshot.describe(machine.fold)
    assert machine.fold.stored_byte_ms(machine.now) == 0
