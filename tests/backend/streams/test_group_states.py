"""A group with simulated members that restart, fall silent and repeat calls, and with takeovers at any point.

Promises: in a generation each partition has one member at a time; nobody commits in an old generation; a committed
offset is the last one that was committed; every call is answered; a takeover ends no session.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from backend.stream_api import JoinAnswer, StreamError, SyncAnswer
from backend.streams import snapshot
from backend.streams.group import GroupFold
from tests.backend.streams.group_machine import GroupMachine
from tests.backend.streams.stream_machine import StreamChunks
from tests.backend.streams.test_stream_states import finished

PARTITIONS = 5
SESSION_MS = 10_000


class SimulatedMember:
    """A client.  It knows only what it was answered."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.instance_id = f"i-{number}" if number % 2 else None
        self.lives = 0
        self.protocols: tuple[tuple[str, bytes], ...] = (("range", b"v0"),)
        self.waiting: int | None = None
        """Token of its call in progress."""
        self.restart()

    def restart(self) -> None:
        self.member_id = ""
        self.generation = -1
        self.former_generation = -1
        """The generation before, in which a commit may still be under way."""
        self.owned: set[int] = set()
        self.leads: list[str] | None = None
        """Ids of the members whose assignments it has to compute."""
        self.skips = False
        self.waiting = None

    @property
    def name(self) -> str:
        """Identity of the client: ids of a static member change, the member does not."""
        return self.instance_id or self.member_id


class GroupStates(RuleBasedStateMachine):
    """Operations of members, of the coordinator's node, and of time."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = GroupMachine(members_max=4)
        self.members = [SimulatedMember(number) for number in range(6)]
        self.chunks = StreamChunks()
        self.checkpoint: tuple[bytes, int] | None = None
        self.durable = len(self.machine.journal)
        self.sent: set[int] = set()
        """Calls whose answers have been delivered."""
        self.known_at: dict[int, int] = {}
        """By call: length of the journal when its answer was computed."""
        self.owners: dict[tuple[int, int], str] = {}
        """By generation and partition: the member whose answer to a sync named it."""
        self.synced_generation = 0
        """The highest generation in which an assignment was delivered."""
        self.offset = 0
        self.committed: list[dict[int, int]] = [{}] * (self.durable + 1)
        """Committed offsets by partition, by the length of the journal."""

    # --- what was answered ----------------------------------------------------------------------------

    def remember(self) -> None:
        """Note what is new in the journal and among the answers."""
        length = len(self.machine.journal)
        while len(self.committed) <= length:
            self.committed.append(self.committed[-1])
        for token in self.machine.answers:
            self.known_at.setdefault(token, length)

    @rule(number=st.integers(0, 5))
    def deliver(self, number: int) -> None:
        """Make everything durable, and let a member have its answer."""
        self.durable = len(self.machine.journal)
        member = self.members[number]
        token = member.waiting
        answer = self.machine.answers.get(token) if token is not None else None
        if token is None or answer is None:
            return
        member.waiting = None
        self.sent.add(token)
        if isinstance(answer, JoinAnswer):
            self.on_joined(member, answer)
        else:
            self.on_synced(member, answer)

    def on_joined(self, member: SimulatedMember, answer: JoinAnswer) -> None:
        if answer.error in (StreamError.UNKNOWN_MEMBER_ID, StreamError.FENCED_INSTANCE_ID):
            member.restart()
        elif answer.error is StreamError.MEMBER_ID_REQUIRED:
            member.member_id = answer.member_id
        elif answer.error is StreamError.NONE:
            if answer.generation != member.generation:
                member.former_generation = member.generation
            member.member_id, member.generation = answer.member_id, answer.generation
            leads = answer.leader == answer.member_id and not answer.skip_assignment
            member.leads = [one.member_id for one in answer.members] if leads else None
            if leads:
                assert answer.member_id in (member.leads or [])

    def on_synced(self, member: SimulatedMember, answer: SyncAnswer) -> None:
        if answer.error in (StreamError.UNKNOWN_MEMBER_ID, StreamError.FENCED_INSTANCE_ID):
            member.restart()
        elif answer.error is StreamError.NONE:
            member.owned = set(answer.assignment)
            self.synced_generation = max(self.synced_generation, member.generation)
            for partition in member.owned:
                owner = self.owners.setdefault((member.generation, partition), member.name)
                assert owner == member.name, "in a generation a partition has one member"

    # --- calls ----------------------------------------------------------------------------------------

    @rule(number=st.integers(0, 5), version=st.integers(0, 5), modern=st.booleans())
    def join(self, number: int, version: int, modern: bool) -> None:
        member = self.members[number]
        member.protocols = (("range", b"v%d" % (version // 4)),)
        member.lives += 1
        member.waiting = self.machine.begin_join(
            member.member_id,
            f"m{number}-{member.lives}",
            member.protocols,
            instance_id=member.instance_id,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=20_000,
            requires_known_member_id=modern,
            can_skip_assignment=modern,
        )
        member.owned = set()
        member.leads = None
        self.remember()

    @rule(number=st.integers(0, 5))
    def sync(self, number: int) -> None:
        member = self.members[number]
        if not member.member_id:
            return
        assignments: dict[str, bytes] = {}
        if member.leads is not None:
            # Other members get other partitions if it computes them again for another generation.
            names = member.leads
            for partition in range(PARTITIONS):
                owner = names[(partition + member.generation) % len(names)]
                assignments[owner] = assignments.get(owner, b"") + bytes([partition])
        member.waiting = self.machine.begin_sync(
            member.member_id, member.generation, assignments=assignments, instance_id=member.instance_id
        )
        self.remember()

    @rule(number=st.integers(0, 5))
    def heartbeat(self, number: int) -> None:
        member = self.members[number]
        if member.member_id:
            error = self.machine.heartbeat(member.member_id, member.generation, member.instance_id)
            self.remember()
            if error in (StreamError.UNKNOWN_MEMBER_ID, StreamError.FENCED_INSTANCE_ID):
                member.restart()

    @rule(number=st.integers(0, 5), partition=st.integers(0, PARTITIONS - 1), late=st.booleans())
    def commit(self, number: int, partition: int, late: bool) -> None:
        """Commit; ``late``: by a call that started in the previous generation."""
        member = self.members[number]
        generation = member.former_generation if late else member.generation
        if not member.member_id or generation < 0:
            return
        self.offset += 1
        before = len(self.machine.journal)
        (error,) = self.machine.commit(
            member.member_id, generation, (partition, self.offset), instance_id=member.instance_id
        )
        self.remember()
        if error is StreamError.NONE:
            assert generation >= self.synced_generation, "an old generation commits nothing"
            assert len(self.machine.journal) > before
            self.committed[-1] = self.committed[-1] | {partition: self.offset}

    @rule(number=st.integers(0, 5))
    def leave(self, number: int) -> None:
        member = self.members[number]
        if member.member_id:
            self.machine.leave(member.member_id)
            self.remember()
            member.restart()

    @rule(number=st.integers(0, 5))
    def restart_member(self, number: int) -> None:
        """Let a client forget all that it knows, without a word."""
        self.members[number].restart()

    @rule(ms=st.sampled_from([100, 1_000, 3_000, 9_000, 25_000]))
    def pass_time(self, ms: int) -> None:
        self.machine.pass_time(ms)
        self.remember()

    @rule()
    def pass_time_with_heartbeats(self) -> None:
        for _ in range(3):
            self.machine.pass_time(3_000)
            for member in self.members:
                self.heartbeat(member.number)
        self.remember()

    @rule(number=st.integers(0, 5))
    def work_until_stable(self, number: int) -> None:
        """Let all clients send their calls, so that rebalances complete."""
        self.join(number, 0, modern=False)
        for _ in range(4):
            for member in self.members:
                self.deliver(member.number)
            for member in self.members:
                if member.waiting is not None or not member.member_id:
                    continue
                if member.leads is not None or member.generation == self.machine.coordinator.generation:
                    self.sync(member.number)
                else:
                    self.join(member.number, 0, modern=False)
            self.pass_time(6_000)
        for member in self.members:
            self.deliver(member.number)
            self.commit(member.number, member.number % PARTITIONS, late=True)

    # --- the coordinator's node -----------------------------------------------------------------------

    @rule()
    def take_checkpoint(self) -> None:
        self.durable = len(self.machine.journal)
        ref, _ = snapshot.take(self.machine.fold, self.chunks.add, [])
        self.checkpoint = (self.chunks.stored[ref[2]], len(self.machine.journal))

    @rule(share=st.integers(0, 100), from_checkpoint=st.booleans())
    def takeover(self, share: int, from_checkpoint: bool) -> None:
        """Lose calls in progress and some of what is not durable."""
        machine = self.machine
        left = self.durable + (len(machine.journal) - self.durable) * share // 100
        del machine.journal[left:], self.committed[left + 1 :]
        fold = machine.replayed()
        if from_checkpoint and self.checkpoint is not None:
            restored, _ = finished(snapshot.read(self.checkpoint[0], self.chunks.fetch))
            assert isinstance(restored, GroupFold)
            for record, now in machine.journal[self.checkpoint[1] :]:
                restored.apply(record, now)
            assert snapshot.describe(restored) == snapshot.describe(fold)
            fold = restored
        machine.restart(fold)
        self.durable = left
        machine.answers.clear()
        for member in self.members:
            member.waiting = None
        described = machine.coordinator.describe()
        assert described.state == ("Stable" if fold.generation.members else "Empty")
        machine.pass_time(SESSION_MS - 1)
        assert machine.coordinator.describe() == described, "a takeover ends no session"
        self.remember()

    # --- what always holds ----------------------------------------------------------------------------

    @invariant()
    def the_last_committed_offset_counts(self) -> None:
        found = {partition: self.machine.committed(partition) for partition in range(PARTITIONS)}
        assert {partition: offset for partition, offset in found.items() if offset >= 0} == self.committed[-1]

    @invariant()
    def a_stable_group_is_as_the_journal_has_it(self) -> None:
        described = self.machine.coordinator.describe()
        stored = self.machine.fold.generation
        if described.state == "Stable":
            assert self.machine.coordinator.generation == stored.number
            assert [(one.member_id, one.assignment) for one in described.members] == [
                (one.member_id, one.assignment) for one in stored.members
            ]
            partitions = [partition for one in described.members for partition in one.assignment]
            assert len(partitions) == len(set(partitions))

    def teardown(self) -> None:
        machine = self.machine
        assert snapshot.describe(machine.replayed()) == snapshot.describe(machine.fold)
        waiting = [member.waiting for member in self.members if member.waiting is not None]
        machine.pass_time(400_000)
        assert machine.phase == "Empty"
        assert all(token in machine.answers for token in waiting), "every call is answered"
        assert machine.committed(0) == self.committed[-1].get(0, -1)


SHORT = settings(max_examples=50, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.timeout(600)
def test_a_group() -> None:
    run_state_machine_as_test(GroupStates, settings=SHORT)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_group_for_long() -> None:
    run_state_machine_as_test(GroupStates, settings=settings(SHORT, max_examples=250))
