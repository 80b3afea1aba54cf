"""Consumer groups: join, sync, heartbeat, leave; timeouts; takeovers."""

from __future__ import annotations

from typing import Any

import pytest

from backend.engine.timers import NEVER
from backend.stream_api import Departure, JoinedMember, JoinRequest, StreamError, SyncRequest
from backend.streams import snapshot
from backend.streams.coordinator import NEW_MEMBER_JOIN_MS
from backend.streams.members import subscribed_topics
from backend.streams.records import encode_head
from tests.backend.streams.group_machine import RANGE, GroupMachine, subscription
from tests.backend.streams.stream_machine import StreamChunks

NONE = StreamError.NONE
UNKNOWN = StreamError.UNKNOWN_MEMBER_ID
REBALANCE = StreamError.REBALANCE_IN_PROGRESS


# --- the first rebalance ------------------------------------------------------------------------------


def test_a_group_forms() -> None:
    machine = GroupMachine()
    first = machine.join(new_id="a")
    assert (first.error, first.member_id) == (StreamError.MEMBER_ID_REQUIRED, "a")
    assert machine.phase == "Empty"
    one = machine.begin_join("a", protocols=(("range", b"ma"),))
    assert machine.phase == "PreparingRebalance"
    two = machine.begin_join(machine.join(new_id="b").member_id, protocols=(("range", b"mb"),))
    assert one not in machine.answers
    machine.pass_time(6_000)
    leader, follower = machine.joined(one), machine.joined(two)
    assert leader.members == [JoinedMember("a", None, b"ma"), JoinedMember("b", None, b"mb")]
    assert follower.members == []
    for answer, member_id in ((leader, "a"), (follower, "b")):
        assert (answer.error, answer.member_id, answer.generation) == (NONE, member_id, 1)
        assert (answer.leader, answer.protocol, answer.protocol_type) == ("a", "range", "consumer")
    assert machine.phase == "CompletingRebalance"
    waiting = machine.begin_sync("b", 1)
    assert waiting not in machine.answers
    assert machine.journal[1:] == []  # nothing is journaled before the assignments are there
    synced = machine.sync("a", 1, assignments={"a": b"0", "b": b"1"})
    assert (synced.assignment, synced.protocol_type, synced.protocol) == (b"0", "consumer", "range")
    assert machine.synced(waiting).assignment == b"1"
    assert machine.sync("b", 1).assignment == b"1"
    assert len(machine.journal) == 2
    described = machine.coordinator.describe()
    assert (described.state, described.protocol_type, described.protocol) == ("Stable", "consumer", "range")
    assert [(one.member_id, one.metadata, one.assignment) for one in described.members] == [
        ("a", b"ma", b"0"),
        ("b", b"mb", b"1"),
    ]


def test_in_a_rebalance_the_last_assignments_are_described() -> None:
    machine = GroupMachine()
    machine.form("a", "b")
    machine.begin_join("a", protocols=(("range", b"new"),))
    assert machine.phase == "PreparingRebalance"
    members = machine.coordinator.describe().members
    assert [(one.member_id, one.metadata, one.assignment) for one in members] == [("a", b"", b"a"), ("b", b"", b"b")]


def test_the_first_rebalance_waits_for_more_members() -> None:
    machine = GroupMachine()
    tokens = [machine.begin_join(requires_known_member_id=False)]
    for _ in range(4):
        machine.pass_time(2_900)
        tokens.append(machine.begin_join(requires_known_member_id=False))
    assert machine.phase == "PreparingRebalance"
    machine.pass_time(5_900)
    assert {machine.joined(token).generation for token in tokens} == {1}


def test_the_first_rebalance_waits_no_longer_than_the_rebalance_timeout() -> None:
    machine = GroupMachine()
    first = machine.begin_join(requires_known_member_id=False, rebalance_timeout_ms=10_000)
    for _ in range(4):
        machine.pass_time(2_400)
        machine.begin_join(requires_known_member_id=False, rebalance_timeout_ms=10_000)
        assert first not in machine.answers
    machine.pass_time(400)
    assert first in machine.answers


def test_no_delay_if_the_setting_disables_it() -> None:
    machine = GroupMachine(initial_rebalance_delay_ms=0)
    token = machine.begin_join(requires_known_member_id=False)
    machine.pass_time(0)
    assert machine.joined(token).generation == 1


@pytest.mark.parametrize(
    ("members", "error"),
    [
        ({"session_timeout_ms": 5_999}, StreamError.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, StreamError.INVALID_SESSION_TIMEOUT),
        ({"protocols": ()}, StreamError.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, StreamError.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "stranger"}, UNKNOWN),
        ({"member_id": "stranger", "instance_id": "i"}, UNKNOWN),
    ],
)
def test_a_join_that_is_not_valid_is_refused(members: dict[str, Any], error: StreamError) -> None:
    machine = GroupMachine()
    assert machine.join(**members).error is error
    assert (machine.phase, machine.coordinator.due) == ("Empty", NEVER)


def test_members_need_a_protocol_in_common() -> None:
    machine = GroupMachine()
    machine.form("a", protocols=(("x", b""), ("y", b"")))
    known: dict[str, Any] = {"requires_known_member_id": False}
    refused = StreamError.INCONSISTENT_GROUP_PROTOCOL
    assert machine.join(protocols=(("z", b""),), **known).error is refused
    assert machine.join(protocols=(("x", b""),), protocol_type="connect", **known).error is refused
    assert machine.phase == "Stable"
    machine.begin_join(protocols=(("y", b""),), **known)
    assert machine.phase == "PreparingRebalance"
    assert machine.join("a", protocols=(("x", b""),)).error is refused


def test_the_protocol_with_most_votes_is_taken() -> None:
    machine = GroupMachine()
    first = [("x", b"x"), ("y", b"y"), ("z", b"")]
    tokens = [
        machine.begin_join(protocols=tuple(protocols), requires_known_member_id=False)
        for protocols in (
            first,
            first[:2],
            [("y", b"y"), ("x", b"")],
            [("y", b"y"), ("x", b"")],
            [*first[1:], first[0]],
        )
    ]
    machine.pass_time(9_000)
    assert {machine.joined(token).protocol for token in tokens} == {"y"}


def test_of_protocols_with_as_many_votes_the_first_is_taken() -> None:
    machine = GroupMachine()
    both = (("x", b""), ("y", b""))
    token = machine.begin_join(protocols=both, requires_known_member_id=False)
    machine.begin_join(protocols=both[::-1], requires_known_member_id=False)
    machine.pass_time(9_000)
    assert machine.joined(token).protocol == "x"


def test_an_id_that_was_given_out_may_be_used_as_long_as_a_session() -> None:
    machine = GroupMachine()
    for new_id in ("a", "b"):
        machine.join(new_id=new_id)
    machine.pass_time(9_999)
    machine.begin_join("a")
    machine.pass_time(1)
    assert machine.join("b").error is UNKNOWN
    machine.pass_time(3_000)
    assert [one.member_id for one in machine.coordinator.describe().members] == ["a"]


def test_a_pending_member_is_waited_for() -> None:
    machine = GroupMachine()
    machine.form("a", "b")
    machine.join(new_id="c")
    rejoin = [machine.begin_join("a"), machine.begin_join("b", protocols=(("range", b"new"),))]
    assert rejoin[0] not in machine.answers
    machine.begin_join("c")
    assert machine.joined(rejoin[0]).generation == 2
    machine.join(new_id="d")
    rejoin = [machine.begin_join(one, protocols=(("range", b"again"),)) for one in "abc"]
    assert machine.leave("d") == [NONE]
    assert machine.joined(rejoin[0]).generation == 3


def test_a_member_may_join_when_only_an_id_that_was_given_out_is_left() -> None:
    machine = GroupMachine()
    machine.form("a")
    machine.join(new_id="b")
    assert machine.leave("a") == [NONE]
    assert machine.phase == "PreparingRebalance"
    refused = machine.join(requires_known_member_id=False, protocol_type="connect")
    assert refused.error is StreamError.INCONSISTENT_GROUP_PROTOCOL
    token = machine.begin_join(new_id="c", requires_known_member_id=False)
    machine.begin_join("b")
    assert machine.joined(token).generation == 2


def test_a_group_has_a_largest_size() -> None:
    machine = GroupMachine(members_max=2)
    machine.form("a", "b")
    full = machine.join(requires_known_member_id=False)
    assert (full.error, full.member_id) == (StreamError.GROUP_MAX_SIZE_REACHED, "")
    machine.begin_join("a")
    late = machine.begin_join(requires_known_member_id=False)  # b has not joined again yet
    assert machine.join("b").error is StreamError.GROUP_MAX_SIZE_REACHED
    assert machine.joined(late).generation == 2


# --- rebalances ---------------------------------------------------------------------------------------


def test_a_join_begins_a_rebalance_which_ends_when_all_have_joined() -> None:
    machine = GroupMachine()
    generation = machine.form("a", "b")
    newcomer = machine.begin_join(new_id="c", requires_known_member_id=False)
    assert [machine.heartbeat(one, generation) for one in "ab"] == [REBALANCE] * 2
    assert machine.sync("a", generation).error is REBALANCE
    tokens = [machine.begin_join(one) for one in "ab"]
    answers = [machine.joined(token) for token in (*tokens, newcomer)]
    assert {(one.generation, one.leader) for one in answers} == {(2, "a")}
    assert [len(one.members) for one in answers] == [3, 0, 0]
    assert machine.heartbeat("a", 1) is StreamError.ILLEGAL_GENERATION
    assert machine.heartbeat("a", 2) is NONE


def test_members_that_do_not_join_again_are_removed() -> None:
    machine = GroupMachine()
    machine.form("a", "b", session_timeout_ms=100_000)
    newcomer = machine.begin_join(new_id="c", requires_known_member_id=False)
    machine.begin_join("b")
    machine.pass_time(59_999)
    assert newcomer not in machine.answers
    machine.pass_time(1)
    assert machine.joined(newcomer).leader == "b"
    assert machine.join("a").error is UNKNOWN


@pytest.mark.parametrize(
    ("member", "protocols", "rebalances"),
    [
        ("b", RANGE, False),  # a follower that only asks
        ("b", (("range", b"other"),), True),
        ("a", RANGE, True),  # the leader: its topics may have changed
    ],
)
def test_a_join_in_a_stable_group(member: str, protocols: tuple[tuple[str, bytes], ...], rebalances: bool) -> None:
    machine = GroupMachine()
    machine.form("a", "b")
    token = machine.begin_join(member, protocols=protocols)
    assert machine.phase == ("PreparingRebalance" if rebalances else "Stable")
    if not rebalances:
        answer = machine.joined(token)
        assert (answer.generation, answer.leader, answer.members) == (1, "a", [])
        assert machine.sync("b", 1).assignment == b"b"


def test_a_join_between_join_and_sync_is_answered_again_if_nothing_has_changed() -> None:
    machine = GroupMachine()
    tokens = [machine.begin_join(new_id=one, requires_known_member_id=False) for one in "ab"]
    machine.pass_time(6_000)
    assert machine.join("a") == machine.joined(tokens[0])
    assert machine.join("b") == machine.joined(tokens[1])
    waiting = machine.begin_sync("b", 1)
    machine.begin_join("a", protocols=(("range", b"other"),))
    assert machine.synced(waiting).error is REBALANCE
    assert machine.phase == "PreparingRebalance"


def test_a_repeated_join_takes_the_place_of_the_first() -> None:
    machine = GroupMachine()
    machine.form("a", "b")
    first = machine.begin_join("a")
    second = machine.begin_join("a")
    assert machine.joined(first).error is REBALANCE
    machine.begin_join("b")
    assert machine.joined(second).generation == 2
    first_sync, second_sync = machine.begin_sync("b", 2), machine.begin_sync("b", 2)
    assert machine.synced(first_sync).error is REBALANCE
    machine.sync("a", 2, assignments={"b": b"x"})
    assert machine.synced(second_sync).assignment == b"x"


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (SyncRequest("stranger", 1), UNKNOWN),
        (SyncRequest("a", 0), StreamError.ILLEGAL_GENERATION),
        (SyncRequest("a", 2), StreamError.ILLEGAL_GENERATION),
        (SyncRequest("a", 1, protocol_type="connect"), StreamError.INCONSISTENT_GROUP_PROTOCOL),
        (SyncRequest("a", 1, protocol="sticky"), StreamError.INCONSISTENT_GROUP_PROTOCOL),
        (SyncRequest("a", 1, protocol_type="consumer", protocol="range"), NONE),
        (SyncRequest("a", 1, instance_id="i"), UNKNOWN),
    ],
)
def test_a_sync_is_checked(request_: SyncRequest, error: StreamError) -> None:
    machine = GroupMachine()
    machine.form("a")
    machine.run(machine.coordinator.sync(1000, request_, machine.now))
    assert machine.synced(1000).error is error


def test_a_member_that_the_leader_forgot_gets_an_empty_assignment() -> None:
    machine = GroupMachine()
    for one in "ab":
        machine.begin_join(new_id=one, requires_known_member_id=False)
    machine.pass_time(6_000)
    waiting = machine.begin_sync("b", 1)
    machine.sync("a", 1, assignments={"a": b"0", "stranger": b"1"})
    assert machine.synced(waiting).assignment == b""
    assert [one.member_id for one in machine.fold.generation.members] == ["a", "b"]


def test_only_the_leader_assigns() -> None:
    machine = GroupMachine()
    for one in "ab":
        machine.begin_join(new_id=one, requires_known_member_id=False)
    machine.pass_time(6_000)
    waiting = machine.begin_sync("b", 1, assignments={"a": b"wrong", "b": b"wrong"})
    assert waiting not in machine.answers
    assert machine.sync("a", 1, assignments={"a": b"0", "b": b"1"}).assignment == b"0"
    assert machine.synced(waiting).assignment == b"1"


def test_members_that_do_not_sync_are_removed() -> None:
    machine = GroupMachine()
    for one in "ab":
        machine.begin_join(new_id=one, requires_known_member_id=False, session_timeout_ms=100_000)
    machine.pass_time(6_000)
    waiting = machine.begin_sync("b", 1)
    machine.pass_time(60_000)
    assert machine.synced(waiting).error is REBALANCE
    assert machine.phase == "PreparingRebalance"
    token = machine.begin_join("b")
    assert (machine.joined(token).leader, machine.joined(token).generation) == ("b", 2)


# --- sessions -----------------------------------------------------------------------------------------


def test_a_session_ends_unless_it_is_renewed() -> None:
    machine = GroupMachine()
    generation = machine.form("a", "b")
    for _ in range(5):
        machine.pass_time(9_999)
        assert machine.heartbeat("a", generation) in (NONE, REBALANCE)
    assert machine.phase == "PreparingRebalance"
    assert machine.heartbeat("b", generation) is UNKNOWN
    assert machine.joined(machine.begin_join("a")).generation == 2
    machine.pass_time(10_000)
    assert (machine.phase, machine.fold.generation.number) == ("Empty", 3)
    assert machine.fold.generation.members == ()


def test_a_waiting_member_needs_no_heartbeat() -> None:
    machine = GroupMachine()
    machine.form("a", "b", session_timeout_ms=10_000, rebalance_timeout_ms=50_000)
    waiting = machine.begin_join("a")
    for _ in range(4):
        machine.pass_time(9_000)
        assert machine.heartbeat("b", 1) is REBALANCE
    assert waiting not in machine.answers
    machine.begin_join("b")
    assert machine.joined(waiting).error is NONE


def test_a_first_join_is_given_up_in_the_end() -> None:
    machine = GroupMachine()
    machine.form("a", session_timeout_ms=1_000_000, rebalance_timeout_ms=1_000_000)
    newcomer = machine.begin_join(new_id="b", requires_known_member_id=False)
    machine.pass_time(NEW_MEMBER_JOIN_MS - 1)
    assert newcomer not in machine.answers
    machine.pass_time(1)
    assert machine.joined(newcomer).error is UNKNOWN


def test_members_leave() -> None:
    machine = GroupMachine()
    generation = machine.form("a", "b", "c")
    assert machine.leave("b", "stranger") == [NONE, UNKNOWN]
    assert machine.heartbeat("b", generation) is UNKNOWN
    assert machine.heartbeat("a", generation) is REBALANCE
    assert machine.leave("a") == [NONE]
    assert machine.joined(machine.begin_join("c")).leader == "c"
    assert machine.leave("c") == [NONE]
    assert machine.phase == "Empty"
    assert machine.heartbeat("c", 2) is UNKNOWN


def test_a_call_that_waits_is_answered_when_its_member_leaves() -> None:
    machine = GroupMachine()
    for one in "ab":
        machine.begin_join(new_id=one, requires_known_member_id=False)
    machine.pass_time(6_000)
    waiting = machine.begin_sync("b", 1)
    assert machine.leave("b") == [NONE]
    assert machine.synced(waiting).error is UNKNOWN
    waiting = machine.begin_join(new_id="c", requires_known_member_id=False)
    assert machine.leave("c") == [NONE]
    assert machine.joined(waiting).error is UNKNOWN


# --- static members -----------------------------------------------------------------------------------


def static(machine: GroupMachine, instance_id: str, new_id: str, **members: Any) -> int:
    return machine.begin_join(new_id=new_id, instance_id=instance_id, **members)


def formed(machine: GroupMachine, **members: Any) -> None:
    """Let static members i-a and i-b form a group, with ids a and b."""
    tokens = [static(machine, f"i-{one}", one, **members) for one in "ab"]
    machine.pass_time(6_000)
    assert machine.joined(tokens[0]).members[1].instance_id == "i-b"
    machine.begin_sync("b", 1, instance_id="i-b")
    machine.sync("a", 1, instance_id="i-a", assignments={"a": b"0", "b": b"1"})


@pytest.mark.parametrize("skips", [True, False])
@pytest.mark.parametrize("one", ["a", "b"])
def test_a_static_member_restarts_without_a_rebalance(one: str, skips: bool) -> None:
    machine = GroupMachine()
    formed(machine)
    answer = machine.joined(static(machine, f"i-{one}", "new", can_skip_assignment=skips))
    assert (answer.error, answer.member_id, answer.generation) == (NONE, "new", 1)
    assert answer.skip_assignment is (skips and one == "a")
    # Before version 9 it must not learn that it is the leader, for nobody waits for its assignments.
    assert answer.leader == ("new" if skips and one == "a" else "a")
    assert len(answer.members) == (2 if skips and one == "a" else 0)
    assert machine.sync("new", 1, instance_id=f"i-{one}").assignment == (b"0" if one == "a" else b"1")
    assert machine.phase == "Stable"
    assert machine.heartbeat(one, 1, f"i-{one}") is StreamError.FENCED_INSTANCE_ID
    assert machine.join(one, instance_id=f"i-{one}").error is StreamError.FENCED_INSTANCE_ID
    assert machine.sync(one, 1, instance_id=f"i-{one}").error is StreamError.FENCED_INSTANCE_ID
    assert machine.commit(one, 1, (0, 5), instance_id=f"i-{one}") == [StreamError.FENCED_INSTANCE_ID]
    assert machine.leave(Departure(one, f"i-{one}")) == [StreamError.FENCED_INSTANCE_ID]
    machine.restart()
    assert machine.heartbeat("new", 1, f"i-{one}") is NONE
    machine.pass_time(5_000)
    machine.heartbeat("b" if one == "a" else "a", 1)
    machine.pass_time(5_000)
    assert machine.heartbeat("new", 1, f"i-{one}") is UNKNOWN  # its session is as long as any


def test_a_static_member_that_changes_the_protocol_begins_a_rebalance() -> None:
    machine = GroupMachine()
    formed(machine, protocols=(("x", b""), ("y", b"")))
    token = static(machine, "i-b", "new", protocols=(("y", b""),))
    assert machine.phase == "PreparingRebalance"
    machine.begin_join("a", instance_id="i-a", protocols=(("x", b""), ("y", b"")))
    assert machine.joined(token).protocol == "y"


def test_a_static_member_that_restarts_while_a_call_of_it_waits_fences_that_call() -> None:
    machine = GroupMachine()
    first = static(machine, "i-a", "a")
    second = static(machine, "i-a", "a2")
    assert machine.joined(first).error is StreamError.FENCED_INSTANCE_ID
    static(machine, "i-b", "b")
    machine.pass_time(6_000)
    assert machine.joined(second).leader == "a2"
    waiting = machine.begin_sync("b", 1, instance_id="i-b")
    static(machine, "i-b", "b2")
    assert machine.synced(waiting).error is StreamError.FENCED_INSTANCE_ID
    assert machine.phase == "PreparingRebalance"


def test_a_static_member_that_does_not_join_again_stays_until_its_session_ends() -> None:
    machine = GroupMachine()
    formed(machine, session_timeout_ms=100_000, rebalance_timeout_ms=20_000)
    token = machine.begin_join(
        "b",
        instance_id="i-b",
        protocols=(("range", b"other"),),
        session_timeout_ms=100_000,
        rebalance_timeout_ms=20_000,
    )
    machine.pass_time(19_999)
    assert token not in machine.answers
    machine.pass_time(1)
    answer = machine.joined(token)
    assert (answer.generation, answer.leader, len(answer.members)) == (2, "b", 2)
    machine.sync("b", 2, instance_id="i-b", assignments={"a": b"0", "b": b"1"})
    assert machine.sync("a", 2, instance_id="i-a").assignment == b"0"


def test_a_rebalance_waits_if_no_static_member_joins() -> None:
    machine = GroupMachine()
    formed(machine, session_timeout_ms=100_000, rebalance_timeout_ms=20_000)
    newcomer = machine.begin_join(new_id="c", requires_known_member_id=False, rebalance_timeout_ms=20_000)
    machine.leave("c")
    machine.pass_time(50_000)
    assert machine.joined(newcomer).error is UNKNOWN
    assert (machine.phase, machine.coordinator.generation) == ("PreparingRebalance", 1)
    machine.pass_time(50_000)
    assert (machine.phase, machine.coordinator.generation) == ("Empty", 2)


def test_static_members_are_removed_by_their_instance_ids() -> None:
    machine = GroupMachine()
    formed(machine)
    left = machine.leave(Departure("", "i-b"), Departure("", "i-b"), Departure("", "i-z"), Departure(""))
    assert left == [NONE, UNKNOWN, UNKNOWN, UNKNOWN]
    assert [one.member_id for one in machine.coordinator.describe().members] == ["a"]


# --- takeover -----------------------------------------------------------------------------------------


async def test_a_takeover_ends_no_session() -> None:
    machine = GroupMachine()
    generation = machine.form("a", "b", protocols=(("x", b"1"), ("y", b"2")))
    machine.pass_time(9_000)
    copy = await StreamChunks().copy_group(machine.fold)
    assert snapshot.describe(copy) == snapshot.describe(machine.replayed()) == snapshot.describe(machine.fold)
    described = machine.coordinator.describe()
    machine.restart(copy)
    assert machine.coordinator.describe() == described
    machine.pass_time(9_999)
    assert [machine.heartbeat(one, generation) for one in "ab"] == [NONE] * 2
    follower = machine.join("b", protocols=(("x", b"1"), ("y", b"2")))
    assert (follower.generation, follower.leader, machine.phase) == (generation, "a", "Stable")
    assert machine.sync("b", generation).assignment == b"b"
    machine.pass_time(10_000)
    assert machine.phase == "Empty"


def test_a_takeover_between_join_and_sync_returns_to_the_last_generation() -> None:
    machine = GroupMachine()
    machine.form("a", "b")
    machine.begin_join(new_id="c", requires_known_member_id=False)
    for one in "ab":
        machine.begin_join(one)
    assert machine.coordinator.generation == 2
    machine.restart()
    assert machine.sync("a", 2, assignments={"a": b"all"}).error is StreamError.ILLEGAL_GENERATION
    assert machine.commit("a", 2, (0, 1)) == [StreamError.ILLEGAL_GENERATION]
    assert machine.heartbeat("c", 2) is UNKNOWN
    assert machine.heartbeat("b", 1) is NONE
    assert machine.joined(machine.begin_join("b")).generation == 1
    assert machine.sync("b", 1).assignment == b"b"


def test_a_takeover_in_the_first_rebalance_leaves_an_empty_group() -> None:
    machine = GroupMachine()
    machine.begin_join(new_id="a", requires_known_member_id=False)
    machine.join(new_id="b")
    machine.restart()
    assert machine.phase == "Empty"
    assert [machine.join(one).error for one in "ab"] == [UNKNOWN] * 2


# --- deletion and the rest ----------------------------------------------------------------------------


def test_a_group_with_members_is_not_deleted() -> None:
    machine = GroupMachine()
    generation = machine.form("a")
    assert machine.coordinator.delete(machine.now).error is StreamError.NON_EMPTY_GROUP
    machine.commit("a", generation, (0, 1))
    machine.leave("a")
    assert machine.run(machine.coordinator.delete(machine.now)).error is NONE
    assert machine.phase == "Dead"
    assert machine.fold.memory_bytes() < 5000
    gone = StreamError.COORDINATOR_NOT_AVAILABLE
    assert machine.join().error is gone
    assert machine.sync("a", 1).error is gone
    assert machine.heartbeat("a", 1) is gone
    assert machine.commit("a", -1, (0, 1)) == [gone]
    assert machine.coordinator.leave([Departure("a")], machine.now).error is gone
    assert machine.coordinator.delete(machine.now).error is StreamError.GROUP_ID_NOT_FOUND


def test_the_bound_on_the_bytes_of_a_record_holds() -> None:
    machine = GroupMachine()
    protocols = tuple((f"protocol-é{number}", b"m" * 1000) for number in range(5))
    request = JoinRequest("", "", "client é", "/host", 10_000, 60_000, "consumer", protocols)
    before = machine.coordinator.record_bytes_max(request)
    for one in ("a", "b", "ccc"):
        machine.begin_join(new_id=one, protocols=protocols, requires_known_member_id=False, client_id="é" * 50)
    machine.pass_time(9_000)
    sync = SyncRequest("a", 1, dict.fromkeys(("a", "b", "ccc"), b"x" * 5000))
    bound = machine.coordinator.record_bytes_max(sync)
    (record,) = machine.run(machine.coordinator.sync(1000, sync, machine.now)).records
    assert before + 5000 < len(encode_head(record)) <= bound
    assert len(encode_head(record)) <= machine.coordinator.record_bytes_max()


@pytest.mark.parametrize(
    ("metadata", "topics"),
    [
        ([subscription("orders", "é")], {"orders", "é"}),
        ([subscription("a"), subscription("b"), subscription()], {"a", "b"}),
        ([], set()),
        ([subscription("a"), b""], None),
        ([b"\0\0\0\0\0\1\0\5abc"], None),
        ([b"\0\0\0\0\0\1\xff\xff"], None),
        ([b"\0\0\x7f\xff\xff\xff"], None),
        ([b"\0\0\0\0\0\1\0\1\xff"], None),
    ],
)
def test_topics_of_subscriptions(metadata: list[bytes], topics: set[str] | None) -> None:
    assert subscribed_topics(metadata) == topics
