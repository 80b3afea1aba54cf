"""The coordinator of one consumer group: decisions on who is a member, in Kafka's classic protocol.

Without I/O, and without a clock: a call names itself by a token, and each method returns an outcome: the records to
write, and the answers that can be given now, with the tokens of their calls.  A call without an answer waits; a later
outcome has its answer.  The caller writes and applies the records before anything else happens, and sends the answers
when they are durable.  It checks for space first (:meth:`GroupCoordinator.record_bytes_max`), because the memory here
has changed when a method returns.

The rules are those of Kafka 3.9 (``GroupCoordinator``)::

    EMPTY -> PREPARING -> COMPLETING -> STABLE
      ^          |  ^---------'  ^-------'
      '----------'

* PREPARING: members join (or are removed when the rebalance timeout has passed); the first time the group waits a
  little for more of them.
* COMPLETING: the leader is expected to send the assignments.  A join begins another rebalance.
* STABLE: every member can have its assignment.  A join of the leader, or one that changes something, or the end of a
  member begins a rebalance.

The memory starts anew at a takeover, from the last generation that has assignments: with full timeouts for all its
members, and without a rebalance.
"""

from __future__ import annotations

import enum

import msgspec

from backend.engine.timers import NEVER
from backend.stream_api import (
    Departure,
    DescribedGroup,
    DescribedMember,
    JoinAnswer,
    JoinRequest,
    StreamError,
    SyncAnswer,
    SyncRequest,
)
from backend.streams import records
from backend.streams.group import GroupFold
from backend.streams.members import CONSUMER, GroupMember, Membership, Token, subscribed_topics
from backend.streams.records import StoredMember

NEW_MEMBER_JOIN_MS = 300_000
"""Time after which a join of a member that does not know its id yet is given up."""


class GroupPhase(enum.Enum):
    """State of a group, as Kafka names it."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class GroupOutcome(msgspec.Struct):
    """Result of a decision."""

    records: list[records.GroupRecord] = []
    answers: list[tuple[Token, JoinAnswer | SyncAnswer]] = []
    error: StreamError = StreamError.NONE
    """Answer to a heartbeat, a deletion, or the leaving of members as a whole."""
    errors: list[StreamError] = []
    """Answers for the members that leave."""


class GroupCoordinator:
    """Decisions on the members of one group, under one owner."""

    def __init__(self, fold: GroupFold, now: int) -> None:
        self.fold = fold
        stored = fold.generation
        self.members = Membership()
        self.generation = stored.number
        self.protocol_type = stored.protocol_type
        self.protocol = stored.protocol
        self._phase = GroupPhase.STABLE if stored.members else GroupPhase.EMPTY
        for one in stored.members:
            member = GroupMember(one)
            self.members.add(member)
            self.members.set_deadline(member, now + member.session_timeout_ms)
        self.members.leader = stored.leader
        self._join_until = NEVER
        """End of the time for joins, in PREPARING."""
        self._join_delay_left = -1
        """In the first rebalance: the time by which it may still be delayed; otherwise -1."""
        self._has_new_member = False
        """A member has joined since the first rebalance was last delayed."""
        self._sync_until = NEVER
        self._to_sync: set[str] = set()
        """Members that have not called sync yet in this generation, and the time until which they may."""
        self._outcome = GroupOutcome()

    # --- requests -------------------------------------------------------------------------------------

    @property
    def phase(self) -> GroupPhase:
        return GroupPhase.DEAD if self.fold.dropped else self._phase

    @property
    def due(self) -> int:
        """Time before which :meth:`advance` does nothing."""
        return min(self._join_until, self._sync_until, self.members.due)

    def record_bytes_max(self, request: SyncRequest | JoinRequest | None = None) -> int:
        """Return an upper bound on the bytes of the records of the next decision."""
        size = 1024
        for member in self.members.members.values():
            size += 256 + 4 * len(member.client_id + member.client_host) + len(member.assignment)
            size += sum(16 + 4 * len(name) + len(metadata) for name, metadata in member.protocols)
        if isinstance(request, SyncRequest):
            size += sum(len(assignment) for assignment in request.assignments.values())
        elif request is not None:
            size += sum(16 + 4 * len(name) + len(metadata) for name, metadata in request.protocols)
        return size

    def subscribed(self) -> set[str] | None:
        """Return the topics that the members have subscribed to; None if that is not known."""
        if self.protocol_type != CONSUMER:
            return None
        if not len(self.members):
            return set()
        if self.protocol is None:
            return None
        return subscribed_topics(member.metadata(self.protocol) for member in self.members.members.values())

    def describe(self) -> DescribedGroup:
        phase = self.phase
        protocol = self.protocol if phase is GroupPhase.STABLE else None
        members = tuple(
            DescribedMember(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.metadata(protocol) if protocol is not None else b"",
                member.assignment,  # the last one, also while the group rebalances
            )
            for member in self.members.members.values()
            if phase is not GroupPhase.DEAD
        )
        return DescribedGroup(phase.value, self.protocol_type or "", protocol or "", members)

    # --- join -----------------------------------------------------------------------------------------

    def join(self, token: Token, request: JoinRequest, now: int) -> GroupOutcome:
        """Answer a JoinGroup request, or let it wait for the others."""
        self._advance(now)
        error = self._join_error(request)
        if error is StreamError.GROUP_MAX_SIZE_REACHED:
            self._remove(request.member_id)
            self._answer(token, JoinAnswer(error, ""))
        elif error is not None:
            self._answer(token, JoinAnswer(error, request.member_id))
        elif not request.member_id:
            self._join_new(token, request, now)
        elif request.member_id in self.members.pending:
            self._add(token, request, request.member_id, now)
        else:
            self._join_again(token, request, now)
        self._complete_join_if_all(now)
        return self._take()

    def _join_error(self, request: JoinRequest) -> StreamError | None:
        settings = self.fold.settings
        assert settings is not None
        if self.fold.dropped:
            return StreamError.COORDINATOR_NOT_AVAILABLE
        if not settings.session_timeout_min_ms <= request.session_timeout_ms <= settings.session_timeout_max_ms:
            return StreamError.INVALID_SESSION_TIMEOUT
        if not self._has_room(request.member_id):
            return StreamError.GROUP_MAX_SIZE_REACHED
        if not self._supports(request):
            return StreamError.INCONSISTENT_GROUP_PROTOCOL
        return None

    def _has_room(self, member_id: str) -> bool:
        settings = self.fold.settings
        assert settings is not None
        member = self.members.get(member_id)
        if self._phase is GroupPhase.EMPTY:
            return True
        if self._phase is GroupPhase.PREPARING:
            waits = member is not None and member.join_token is not None
            return waits or self.members.joining < settings.members_max
        return member is not None or len(self.members) < settings.members_max

    def _supports(self, request: JoinRequest) -> bool:
        if self._phase is GroupPhase.EMPTY:
            return bool(request.protocol_type and request.protocols)
        if self.protocol_type != request.protocol_type:
            return False
        names = {name for name, _ in request.protocols}
        # While ids that were given out are waited for, the group may have lost all its members.
        return bool(names & self.members.candidates() if len(self.members) else names)

    def _join_new(self, token: Token, request: JoinRequest, now: int) -> None:
        new_id = request.new_member_id
        if request.instance_id is not None:
            old_id = self.members.static.get(request.instance_id)
            if old_id is None:
                self._add(token, request, new_id, now)
            else:
                self._replace_static(token, request, self.members.members[old_id], now)
        elif request.requires_known_member_id:
            # A client whose first answer was lost joins with another id: without this step both would be members.
            self.members.set_pending(new_id, now + request.session_timeout_ms)
            self._answer(token, JoinAnswer(StreamError.MEMBER_ID_REQUIRED, new_id))
        else:
            self._add(token, request, new_id, now)

    def _add(self, token: Token, request: JoinRequest, member_id: str, now: int) -> None:
        stored = StoredMember(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
            request.protocols,
        )
        member = GroupMember(stored)
        member.is_new = True
        member.join_token = token
        if not len(self.members):
            self.protocol_type = request.protocol_type
        self.members.pending.pop(member_id, None)
        if self._phase is GroupPhase.PREPARING and self._join_delay_left >= 0:
            self._has_new_member = True
        self.members.add(member)
        self.members.set_deadline(member, now + NEW_MEMBER_JOIN_MS)
        self._rebalance_if_possible(now)

    def _join_again(self, token: Token, request: JoinRequest, now: int) -> None:
        error = self._member_error(request.member_id, request.instance_id)
        if error is not None:
            self._answer(token, JoinAnswer(error, request.member_id))
            return
        member = self.members.members[request.member_id]
        is_leader = self.members.leader == member.member_id
        same = member.protocols == request.protocols
        if self._phase is GroupPhase.COMPLETING and same:
            # The answer to its join was lost.
            self._answer(token, self._joined_answer(member, with_members=is_leader))
        elif self._phase is GroupPhase.STABLE and same and not is_leader:
            self._answer(token, self._joined_answer(member, with_members=False))
        else:
            # Of the leader too: its metadata do not show that a topic has more partitions.
            self._update(token, request, member)
            self._rebalance_if_possible(now)

    def _update(self, token: Token, request: JoinRequest, member: GroupMember) -> None:
        if member.join_token is not None:
            self._answer(member.join_token, JoinAnswer(StreamError.REBALANCE_IN_PROGRESS, member.member_id))
        member.update(request)
        member.join_token = token

    def _replace_static(self, token: Token, request: JoinRequest, member: GroupMember, now: int) -> None:
        """Let a restarted static member take the place of its former life."""
        old_leader = self.members.leader or ""
        self._answer_waiting(member, StreamError.FENCED_INSTANCE_ID)
        self._synced(member.member_id)
        self.members.replace_static(member, request.new_member_id)
        self._renew_session(member, now)
        member.client_id, member.client_host = request.client_id, request.client_host
        member.update(request)
        member.join_token = token
        if self._phase is not GroupPhase.STABLE or self.members.select_protocol() != self.protocol:
            self._rebalance_if_possible(now)
            return
        self._record_generation({one.member_id: one.assignment for one in self.members.members.values()})
        member.join_token = None
        is_leader = self.members.leader == member.member_id
        if request.can_skip_assignment:
            answer = self._joined_answer(member, with_members=is_leader)
            answer.skip_assignment = is_leader
        else:
            # An assignment that it computes now would reach no member: with the former leader's id it computes none.
            answer = self._joined_answer(member, with_members=False)
            answer.leader = old_leader
        self._answer(token, answer)
        self._renew_session(member, now)

    def _joined_answer(self, member: GroupMember, *, with_members: bool) -> JoinAnswer:
        return JoinAnswer(
            StreamError.NONE,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.members.leader or "",
            self.members.joined(self.protocol) if with_members else [],
        )

    # --- rebalance ------------------------------------------------------------------------------------

    def _rebalance_if_possible(self, now: int) -> None:
        """Start a rebalance unless one is in progress."""
        if self._phase is GroupPhase.PREPARING:
            return
        if self._phase is GroupPhase.COMPLETING:
            for member in self.members.members.values():
                member.assignment = b""
                if member.sync_token is not None:
                    self._answer(member.sync_token, SyncAnswer(StreamError.REBALANCE_IN_PROGRESS))
                    member.sync_token = None
                    self._renew_session(member, now)
        self._to_sync.clear()
        self._sync_until = NEVER
        timeout = max(1, self.members.rebalance_timeout_ms())
        settings = self.fold.settings
        assert settings is not None
        if self._phase is GroupPhase.EMPTY:
            delay = settings.initial_rebalance_delay_ms
            self._join_delay_left = max(timeout - delay, 0)
            self._has_new_member = False
            self._join_until = now + delay
        else:
            self._join_delay_left = -1
            self._join_until = now + timeout
        self._phase = GroupPhase.PREPARING

    def _complete_join_if_all(self, now: int) -> None:
        """End the time for joins early if all members have joined, except in the first rebalance."""
        if self._phase is not GroupPhase.PREPARING:
            return
        if self._join_delay_left < 0 and self.members.all_joined():
            self._complete_join(now)

    def _join_time_over(self, now: int) -> None:
        settings = self.fold.settings
        assert settings is not None
        if self._join_delay_left > 0 and self._has_new_member:
            self._has_new_member = False
            delay = max(1, min(settings.initial_rebalance_delay_ms, self._join_delay_left))
            self._join_delay_left = max(0, self._join_delay_left - delay)
            self._join_until = now + delay
            return
        self._complete_join(now)

    def _complete_join(self, now: int) -> None:
        """Begin the next generation with those who have joined; static members stay without."""
        members = self.members
        for member in list(members.members.values()):
            if member.join_token is None and member.instance_id is None:
                members.remove(member.member_id)
        if len(members) and not members.elect_joined_leader():
            # Only static members are left, and none has joined: their sessions end, or they join.
            self._join_delay_left = -1
            self._join_until = now + max(1, members.rebalance_timeout_ms())
            return
        self._join_until, self._join_delay_left = NEVER, -1
        self.generation += 1
        if not len(members):
            self.protocol = None
            self._phase = GroupPhase.EMPTY
            self._record_generation({})
            return
        self.protocol = members.select_protocol()
        self._phase = GroupPhase.COMPLETING
        self._to_sync = set(members.members)
        self._sync_until = now + max(1, members.rebalance_timeout_ms())
        for member in members.members.values():
            if member.join_token is not None:
                is_leader = members.leader == member.member_id
                self._answer(member.join_token, self._joined_answer(member, with_members=is_leader))
                member.join_token = None
            member.is_new = False
            self._renew_session(member, now)

    def _record_generation(self, assignments: dict[str, bytes]) -> None:
        members = self.members.members.values()
        self._outcome.records.append(
            records.GenerationStarted(
                self.generation,
                self.protocol_type,
                self.protocol,
                self.members.leader,
                tuple(member.stored(assignments.get(member.member_id, b"")) for member in members),
            )
        )

    # --- sync -----------------------------------------------------------------------------------------

    def sync(self, token: Token, request: SyncRequest, now: int) -> GroupOutcome:
        """Answer a SyncGroup request, or let it wait for the leader's."""
        self._advance(now)
        error = self._sync_error(request)
        if error is not None:
            self._answer(token, SyncAnswer(error))
            return self._take()
        member = self.members.members[request.member_id]
        self._synced(member.member_id)
        if self._phase is GroupPhase.STABLE:
            self._answer(token, self._sync_answer(member))
            self._renew_session(member, now)
            return self._take()
        if member.sync_token is not None:
            self._answer(member.sync_token, SyncAnswer(StreamError.REBALANCE_IN_PROGRESS))
        member.sync_token = token
        if self.members.leader == member.member_id:
            self._record_generation(request.assignments)
            self._phase = GroupPhase.STABLE
            for one in self.members.members.values():
                one.assignment = request.assignments.get(one.member_id, b"")
                if one.sync_token is not None:
                    self._answer(one.sync_token, self._sync_answer(one))
                    one.sync_token = None
                    self._renew_session(one, now)
        return self._take()

    def _sync_error(self, request: SyncRequest) -> StreamError | None:
        if self.fold.dropped:
            return StreamError.COORDINATOR_NOT_AVAILABLE
        error = self._member_error(request.member_id, request.instance_id)
        if error is not None:
            return error
        if request.generation != self.generation:
            return StreamError.ILLEGAL_GENERATION
        if request.protocol_type is not None and request.protocol_type != self.protocol_type:
            return StreamError.INCONSISTENT_GROUP_PROTOCOL
        if request.protocol is not None and request.protocol != self.protocol:
            return StreamError.INCONSISTENT_GROUP_PROTOCOL
        return StreamError.REBALANCE_IN_PROGRESS if self._phase is GroupPhase.PREPARING else None

    def _sync_answer(self, member: GroupMember) -> SyncAnswer:
        return SyncAnswer(StreamError.NONE, member.assignment, self.protocol_type, self.protocol)

    def _synced(self, member_id: str) -> None:
        self._to_sync.discard(member_id)
        if not self._to_sync:
            self._sync_until = NEVER

    # --- heartbeat, leave, delete ---------------------------------------------------------------------

    def heartbeat(self, member_id: str, generation: int, instance_id: str | None, now: int) -> GroupOutcome:
        """Answer a Heartbeat request."""
        self._advance(now)
        error = self.check_member(member_id, generation, instance_id, now)
        if error is StreamError.NONE and self._phase is GroupPhase.PREPARING:
            error = StreamError.REBALANCE_IN_PROGRESS
        outcome = self._take()
        outcome.error = error
        return outcome

    def check_member(self, member_id: str, generation: int, instance_id: str | None, now: int) -> StreamError:
        """Return the error of a call in the name of a member; without one, renew the member's session."""
        if self.fold.dropped:
            return StreamError.COORDINATOR_NOT_AVAILABLE
        error = self._member_error(member_id, instance_id)
        if error is not None:
            return error
        if generation != self.generation:
            return StreamError.ILLEGAL_GENERATION
        self._renew_session(self.members.members[member_id], now)
        return StreamError.NONE

    def leave(self, departures: list[Departure], now: int) -> GroupOutcome:
        """Answer a LeaveGroup request; without members, its error is that of the request as a whole."""
        self._advance(now)
        errors = []
        if not self.fold.dropped:
            errors = [self._leave(one, now) for one in departures]
        self._complete_join_if_all(now)
        outcome = self._take()
        outcome.errors = errors
        if self.fold.dropped:
            outcome.error = StreamError.COORDINATOR_NOT_AVAILABLE
        return outcome

    def _leave(self, departure: Departure, now: int) -> StreamError:
        member_id = departure.member_id
        if not member_id:
            known = self.members.static.get(departure.instance_id) if departure.instance_id is not None else None
            if known is None:
                return StreamError.UNKNOWN_MEMBER_ID
            member_id = known
        elif self.members.pending.pop(member_id, None) is not None:
            return StreamError.NONE
        else:
            error = self._member_error(member_id, departure.instance_id)
            if error is not None:
                return error
        self._end_member(self.members.members[member_id], now)
        return StreamError.NONE

    def delete(self, now: int) -> GroupOutcome:
        """Answer a request to delete the group, which must have no members."""
        self._advance(now)
        error = StreamError.NONE
        if self.fold.dropped:
            error = StreamError.GROUP_ID_NOT_FOUND
        elif self._phase is not GroupPhase.EMPTY:
            error = StreamError.NON_EMPTY_GROUP
        else:
            assert self.fold.settings is not None
            self._outcome.records.append(records.GroupDropped(self.fold.settings.group_id))
        outcome = self._take()
        outcome.error = error
        return outcome

    # --- time -----------------------------------------------------------------------------------------

    def advance(self, now: int) -> GroupOutcome:
        """End sessions and waits whose time is over."""
        self._advance(now)
        return self._take()

    def _advance(self, now: int) -> None:
        if now < self.due or self.fold.dropped:
            return
        while (member_id := self.members.pop_expired(now)) is not None:
            if self.members.pending.pop(member_id, None) is None:
                self._end_member(self.members.members[member_id], now)
            self._complete_join_if_all(now)
        if now >= self._sync_until:
            for member_id in self._to_sync:
                self.members.remove(member_id)
            self._rebalance_if_possible(now)
            self._complete_join_if_all(now)
        if now >= self._join_until:
            self._join_time_over(now)

    def _end_member(self, member: GroupMember, now: int) -> None:
        """Remove a member that has left or whose session has ended."""
        if member.join_token is not None:
            self._answer(member.join_token, JoinAnswer(StreamError.UNKNOWN_MEMBER_ID, ""))
            member.join_token = None
        self._remove(member.member_id)
        if self._phase in (GroupPhase.STABLE, GroupPhase.COMPLETING):
            self._rebalance_if_possible(now)
            self._complete_join_if_all(now)

    def _remove(self, member_id: str) -> None:
        member = self.members.get(member_id)
        if member is not None:
            self._answer_waiting(member, StreamError.UNKNOWN_MEMBER_ID)
            self.members.remove(member_id)
            self._synced(member_id)

    def _renew_session(self, member: GroupMember, now: int) -> None:
        self.members.set_deadline(member, now + member.session_timeout_ms)

    # --- small parts ----------------------------------------------------------------------------------

    def _member_error(self, member_id: str, instance_id: str | None) -> StreamError | None:
        if instance_id is not None:
            known = self.members.static.get(instance_id)
            if known is None:
                return StreamError.UNKNOWN_MEMBER_ID
            if known != member_id:
                return StreamError.FENCED_INSTANCE_ID
        return None if member_id in self.members.members else StreamError.UNKNOWN_MEMBER_ID

    def _answer_waiting(self, member: GroupMember, error: StreamError) -> None:
        if member.join_token is not None:
            self._answer(member.join_token, JoinAnswer(error, member.member_id))
            member.join_token = None
        if member.sync_token is not None:
            self._answer(member.sync_token, SyncAnswer(error))
            member.sync_token = None

    def _answer(self, token: Token, answer: JoinAnswer | SyncAnswer) -> None:
        self._outcome.answers.append((token, answer))

    def _take(self) -> GroupOutcome:
        outcome, self._outcome = self._outcome, GroupOutcome()
        return outcome
