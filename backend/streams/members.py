"""Members of a consumer group between two generations, as the coordinator has them in memory."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from struct import Struct
from struct import error as StructError
from typing import TypeAlias

from backend.engine.timers import NEVER
from backend.stream_api import JoinedMember, JoinRequest
from backend.streams.records import StoredMember

Token: TypeAlias = int
"""Names a call that waits for its answer; chosen by the caller, never used twice."""

CONSUMER = "consumer"
"""Protocol type of consumers, whose metadata are a subscription."""


class GroupMember:
    """One member."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "deadline",
        "instance_id",
        "is_new",
        "join_token",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "sync_token",
        "timer",
    )

    def __init__(self, stored: StoredMember) -> None:
        self.member_id = stored.member_id
        self.instance_id = stored.instance_id
        self.client_id = stored.client_id
        self.client_host = stored.client_host
        self.session_timeout_ms = stored.session_timeout_ms
        self.rebalance_timeout_ms = stored.rebalance_timeout_ms
        self.protocols = stored.protocols
        self.assignment = stored.assignment
        self.is_new = False
        """It has not got the answer to its first join yet, so it does not know its id and sends no heartbeats."""
        self.join_token: Token | None = None
        self.sync_token: Token | None = None
        """The calls of it that wait."""
        self.deadline = NEVER
        """Time at which its session ends unless it is renewed.  It does not count while a call of it waits, except the
        first join.
        """
        self.timer = NEVER
        """The earliest timer set for it."""

    def stored(self, assignment: bytes) -> StoredMember:
        return StoredMember(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.session_timeout_ms,
            self.rebalance_timeout_ms,
            self.protocols,
            assignment,
        )

    def update(self, request: JoinRequest) -> None:
        """Take over what may change with each join."""
        self.protocols = request.protocols
        self.rebalance_timeout_ms = request.rebalance_timeout_ms
        self.session_timeout_ms = request.session_timeout_ms

    def metadata(self, protocol: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def vote(self, candidates: set[str]) -> str:
        """Return the candidate that the client prefers; there is one."""
        return next(name for name, _ in self.protocols if name in candidates)

    @property
    def is_exempt(self) -> bool:
        """True while its deadline does not count."""
        return not self.is_new and (self.join_token is not None or self.sync_token is not None)


class Membership:
    """The members, in the order in which they joined; and those who have an id but have not joined with it yet."""

    def __init__(self) -> None:
        self.members: dict[str, GroupMember] = {}
        self.static: dict[str, str] = {}
        """Member id by instance id."""
        self.pending: dict[str, int] = {}
        """Ids given out with MEMBER_ID_REQUIRED, and the times until which they may be used."""
        self.leader: str | None = None
        self._timers: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self.members)

    def get(self, member_id: str) -> GroupMember | None:
        return self.members.get(member_id)

    def add(self, member: GroupMember) -> None:
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        if member is None:
            return
        if member.instance_id is not None and self.static.get(member.instance_id) == member_id:
            del self.static[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    def replace_static(self, member: GroupMember, new_id: str) -> None:
        """Give a static member that has restarted another id."""
        assert member.instance_id is not None
        old_id = member.member_id
        # It keeps its place: the order of members decides about leaders.
        self.members = {(new_id if member_id == old_id else member_id): one for member_id, one in self.members.items()}
        member.member_id = new_id
        member.timer = NEVER
        self.static[member.instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id

    # --- joining --------------------------------------------------------------------------------------

    @property
    def joining(self) -> int:
        """Number of members that wait for the answer to a join."""
        return sum(1 for member in self.members.values() if member.join_token is not None)

    def all_joined(self) -> bool:
        return not self.pending and all(member.join_token is not None for member in self.members.values())

    def elect_joined_leader(self) -> bool:
        """Make a member that has joined again the leader if the leader has not; return whether there is one."""
        leader = self.members.get(self.leader) if self.leader is not None else None
        if leader is None or leader.join_token is not None:
            return leader is not None
        for member in self.members.values():
            if member.join_token is not None:
                self.leader = member.member_id
                return True
        return False

    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # --- protocols ------------------------------------------------------------------------------------

    def candidates(self) -> set[str]:
        """Return the protocols that all members support."""
        supported = [{name for name, _ in member.protocols} for member in self.members.values()]
        return set.intersection(*supported) if supported else set()

    def select_protocol(self) -> str:
        """Return the protocol with most votes; of several, the one voted for first."""
        candidates = self.candidates()
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = member.vote(candidates)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=votes.__getitem__)

    def joined(self, protocol: str | None) -> list[JoinedMember]:
        """Return the members as they are reported to the leader."""
        return [
            JoinedMember(member.member_id, member.instance_id, member.metadata(protocol))
            for member in self.members.values()
        ]

    # --- time -----------------------------------------------------------------------------------------

    def set_pending(self, member_id: str, deadline: int) -> None:
        self.pending[member_id] = deadline
        heappush(self._timers, (deadline, member_id))

    def set_deadline(self, member: GroupMember, deadline: int) -> None:
        member.deadline = deadline
        if deadline < member.timer:
            member.timer = deadline
            heappush(self._timers, (deadline, member.member_id))

    @property
    def due(self) -> int:
        """Time before which no session ends."""
        return self._timers[0][0] if self._timers else NEVER

    def pop_expired(self, now: int) -> str | None:
        """Return the id of a member, or of a pending one, whose session has ended; None if there is none."""
        timers = self._timers
        while timers and timers[0][0] <= now:
            timer, member_id = heappop(timers)
            if self.pending.get(member_id, NEVER) <= now:
                return member_id
            member = self.members.get(member_id)
            if member is None or member.timer != timer:
                continue
            member.timer = NEVER
            if member.is_exempt:
                # Its next deadline is set when its call is answered.
                continue
            if member.deadline <= now:
                return member_id
            self.set_deadline(member, member.deadline)
        return None


_I16 = Struct(">h")
_I32 = Struct(">i")


def subscribed_topics(subscriptions: Iterable[bytes]) -> set[str] | None:
    """Return the topics of consumers' subscriptions (the metadata of their protocols); None if one is unreadable."""
    topics: set[str] = set()
    for data in subscriptions:
        try:
            count, at = _I32.unpack_from(data, 2)[0], 6
            for _ in range(count):
                size = _I16.unpack_from(data, at)[0]
                if size < 0 or at + 2 + size > len(data):
                    return None
                topics.add(data[at + 2 : at + 2 + size].decode())
                at += 2 + size
        except (ValueError, LookupError, StructError):
            return None
    return topics
