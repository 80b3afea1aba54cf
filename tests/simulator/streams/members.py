"""Members of consumer groups in the simulator: they join, sync, send heartbeats, commit and leave, or fall silent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import TypeVar

from backend.api import Command, Target
from backend.stream_api import (
    Departure,
    JoinAnswer,
    JoinRequest,
    OffsetCommit,
    StreamError,
    SyncAnswer,
    SyncRequest,
)
from backend.stream_commands import (
    CommitOffsets,
    ConfigureGroup,
    FetchOffsets,
    GroupHeartbeat,
    JoinGroup,
    LeaveGroup,
    SyncGroup,
)
from tests.simulator.checks.model import Violation
from tests.simulator.streams.group_history import GroupHistory
from tests.simulator.streams.producers import UNKNOWN, StreamPort, answered, opened

T = TypeVar("T")

PARTITIONS = 6
"""Partitions of the topic that the members consume."""
TOPIC = "consumed"
TOPIC_ID = bytes(range(16))
REJOIN = (StreamError.REBALANCE_IN_PROGRESS, StreamError.ILLEGAL_GENERATION)
GONE = (StreamError.UNKNOWN_MEMBER_ID, StreamError.FENCED_INSTANCE_ID)
TIMEOUTS_MS = ((500, 500), (2_000, 1_000), (10_000, 2_000))
"""Session and rebalance timeouts."""


class Identity:
    """A member id with its generation, and what it knows of it."""

    __slots__ = ("generation", "mark", "member_id", "partitions", "renewed_ms")

    def __init__(self, member_id: str) -> None:
        self.member_id = member_id
        self.generation = -1
        self.partitions: list[int] = []
        self.mark = b""
        self.renewed_ms: int | None = None
        """Time before which its session was not renewed; None: not since it has its generation."""


class GroupClient:
    """One consumer, which may be a static member."""

    def __init__(self, group: GroupHistory, name: str, instance_id: str | None, timeouts: tuple[int, int]) -> None:
        self.group = group
        self.name = name
        self.instance_id = instance_id
        self.session_ms, self.rebalance_ms = timeouts
        self.own = Identity("")
        self.former: Identity | None = None
        """An earlier identity or generation, in whose name it sometimes commits."""
        self.joined: JoinAnswer | None = None
        """Answer to its join, until it has its assignment."""
        self.busy = False
        self.starts = 0

    @property
    def named(self) -> str:
        """Name that stays while the member may have another id."""
        return self.instance_id or self.own.member_id


class GroupClients:
    """All members of the groups of a run."""

    def __init__(self, port: StreamPort, groups: list[GroupHistory], random: Random, *, calls_end: bool) -> None:
        """``calls_end``: a call without an answer takes no effect any more, because its process has died."""
        self._port = port
        self._random = random
        self._calls_end = calls_end
        self.groups = groups
        self._members = [
            GroupClient(
                group,
                f"{group.settings.partition}-{number}",
                f"static{number}" if random.random() < 0.25 else None,
                random.choice(TIMEOUTS_MS),
            )
            for group in groups
            for number in range(random.choice((1, 2, 3, 4)))
        ]
        self._marks = 0
        self.leaving = False
        """The members leave, and do not return."""

    def step(self) -> None:
        """One call of one member, or a look at the offsets."""
        if self._random.random() < 0.15:
            self._port.begin_call(self._read(self._random.choice(self.groups)))
            return
        member = self._random.choice(self._members)
        if not member.busy:
            member.busy = True
            self._port.begin_call(self._turn(member))

    def died(self) -> None:
        """Note that the process with all calls under way has died."""
        for member in self._members:
            member.busy = False
        for group in self.groups:
            group.process_died()

    async def _call(self, group: GroupHistory, make: Callable[[Target], Command[T]]) -> T:
        settings = group.settings
        target = Target(settings.partition, settings.group_id, settings.version)
        return await opened(self._port, lambda: ConfigureGroup(settings), lambda: self._port.call(make(target)))

    # --- members ----------------------------------------------------------------------------------------

    async def _turn(self, member: GroupClient) -> None:
        try:
            await self._action(member)()
        except UNKNOWN:
            pass
        member.busy = False

    def _action(self, member: GroupClient) -> Callable[[], Awaitable[None]]:
        random = self._random
        if self.leaving:
            return lambda: self._leave(member)
        if member.own.generation < 0 and member.joined is None:
            return lambda: self._join(member)
        if member.joined is not None:
            return lambda: self._sync(member)
        (action,) = random.choices(
            (self._heartbeat, self._commit, self._commit_of_the_past, self._leave, self._forget, self._join),
            (50, 40, 6, 1, 1, 1),
        )
        return lambda: action(member)

    def _ended(self, member: GroupClient, error: StreamError) -> None:
        """Take an error that ends the generation, or the membership."""
        if error in REJOIN:
            member.former = member.own
            member.own = Identity(member.own.member_id)
            member.joined = None
        elif error in GONE:
            member.former = member.own if member.own.generation >= 0 else member.former
            member.own = Identity("")
            member.joined = None
        elif error is not StreamError.NONE:
            raise Violation(f"{member.group.name} answers {member.name} with {error.name}")

    async def _join(self, member: GroupClient) -> None:
        group = member.group
        member.starts += 1
        request = JoinRequest(
            member.own.member_id, f"{member.name}-{member.starts}", "client", "host", member.session_ms,
            member.rebalance_ms, "consumer", (("range", b""),), member.instance_id, self._random.random() < 0.5,
        )  # fmt: skip
        wait_seconds = self._random.choice((0.1, 2.0, 10.0))
        if member.own.generation >= 0:
            member.former = member.own
            member.own = Identity(member.own.member_id)
        answer = await self._call(group, lambda target: JoinGroup(target, request, wait_seconds))
        self._port.event("joined", member.name, answer.error.name, answer.generation)
        if answer.error is StreamError.MEMBER_ID_REQUIRED:
            member.own = Identity(answer.member_id)
        elif answer.error is StreamError.NONE:
            member.own = Identity(answer.member_id)
            member.joined = answer
        else:
            self._ended(member, answer.error)

    async def _sync(self, member: GroupClient) -> None:
        group, joined = member.group, member.joined
        assert joined is not None
        assignments = {}
        if joined.leader == joined.member_id and joined.members:
            assignments = self._assign([one.member_id for one in joined.members])
        request = SyncRequest(
            joined.member_id, joined.generation, assignments, member.instance_id, joined.protocol_type, joined.protocol
        )
        asked = group.ask()
        answer = await self._call(
            group, lambda target: SyncGroup(target, request, self._random.choice((0.1, 2.0, 10.0)))
        )
        self._port.event("synced", member.name, answer.error.name, joined.generation, answer.assignment)
        if answer.error is not StreamError.NONE:
            self._ended(member, answer.error)
            return
        member.joined = None
        member.own.generation = joined.generation
        if answer.assignment:
            member.own.mark, member.own.partitions = _decoded(answer)
            group.synced(member.named, joined.generation, member.own.mark, member.own.partitions, asked)
        else:
            group.check_generation("sync", member.named, joined.generation, asked)

    def _assign(self, members: list[str]) -> dict[str, bytes]:
        """Share the partitions out, as the leader does."""
        self._marks += 1
        shares: dict[str, list[int]] = {one: [] for one in members}
        for partition in range(PARTITIONS):
            shares[self._random.choice(members)].append(partition)
        return {one: b"%d:%s" % (self._marks, bytes(48 + number for number in share)) for one, share in shares.items()}

    async def _heartbeat(self, member: GroupClient) -> None:
        group, own = member.group, member.own
        asked, asked_ms = group.ask(), group.time_ms()
        error = await self._call(
            group, lambda target: GroupHeartbeat(target, own.member_id, own.generation, member.instance_id)
        )
        self._port.event("heartbeat", member.name, error.name, own.generation)
        if error is StreamError.NONE:
            group.check_generation("heartbeat", member.named, own.generation, asked)
            own.renewed_ms = asked_ms
        elif error is StreamError.UNKNOWN_MEMBER_ID and own.renewed_ms is not None:
            group.session_ended(member.named, own.renewed_ms, min(member.session_ms, member.rebalance_ms))
        self._ended(member, error)

    async def _commit(self, member: GroupClient) -> None:
        if member.own.partitions:
            error = await self._commit_as(member, member.own)
            self._ended(member, error)

    async def _commit_of_the_past(self, member: GroupClient) -> None:
        """Commit in the name of an earlier generation, as a member that was away does."""
        if member.former is not None and member.former.partitions:
            await self._commit_as(member, member.former)

    async def _commit_as(self, member: GroupClient, identity: Identity) -> StreamError:
        group, partition = member.group, self._random.choice(identity.partitions)
        asked = group.ask()
        write = group.committing(partition, group.new_value(), asked)
        commits = [OffsetCommit(TOPIC, TOPIC_ID, partition, write.value)]
        try:
            (error,) = await self._call(
                group,
                lambda target: CommitOffsets(
                    target, identity.member_id, identity.generation, member.instance_id, commits
                ),
            )
        except UNKNOWN:
            if self._calls_end:
                group.over(write)
            raise
        self._port.event("committed", member.name, error.name, identity.generation, write.value)
        if error is StreamError.NONE:
            group.check_generation("commit", member.named, identity.generation, asked)
        group.committed(partition, write, error)
        return error

    async def _leave(self, member: GroupClient) -> None:
        own = member.own
        if own.member_id:
            departures = [Departure(own.member_id, member.instance_id)]
            await self._call(member.group, lambda target: LeaveGroup(target, departures))
        await self._forget(member)

    async def _forget(self, member: GroupClient) -> None:
        """Fall silent, and begin anew."""
        self._ended(member, StreamError.UNKNOWN_MEMBER_ID)

    # --- offsets ----------------------------------------------------------------------------------------

    async def _read(self, group: GroupHistory) -> None:
        try:
            await self.read_offsets(group)
        except UNKNOWN:
            pass

    async def read_offsets(self, group: GroupHistory) -> None:
        wanted = [(TOPIC_ID, partition) for partition in range(PARTITIONS)]
        asked = group.ask()
        found = await self._call(group, lambda target: FetchOffsets(target, wanted))
        self._port.event("offsets", group.settings.partition, [None if one is None else one.offset for one in found])
        for (_, partition), committed in zip(wanted, found, strict=True):
            group.read(partition, committed, asked)

    async def read_all(self) -> None:
        for group in self.groups:
            await answered(partial(self.read_offsets, group))

    def leave_all(self) -> None:
        """Let all members leave for good."""
        self.leaving = True
        for member in self._members:
            if not member.busy:
                member.busy = True
                self._port.begin_call(self._turn(member))


def _decoded(answer: SyncAnswer) -> tuple[bytes, list[int]]:
    mark, _, share = answer.assignment.partition(b":")
    return mark, [number - 48 for number in share]
