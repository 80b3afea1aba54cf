"""A consumer group in virtual time: outcomes are executed at once, and records are kept for a replay."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from backend.stream_api import (
    Departure,
    GroupSettings,
    JoinAnswer,
    JoinRequest,
    OffsetCommit,
    StreamError,
    SyncAnswer,
    SyncRequest,
)
from backend.streams.coordinator import GroupCoordinator, GroupOutcome
from backend.streams.group import GroupFold
from backend.streams.offsets import OffsetCommands
from backend.streams.records import GroupConfigured, GroupRecord

TOPIC_ID = bytes(range(16))
RANGE = (("range", b"m"),)
"""Protocols with which members join unless a test says otherwise."""


def subscription(*topics: str) -> bytes:
    """Return the metadata of a consumer that has subscribed to these topics."""
    names = b"".join(len(topic.encode()).to_bytes(2, "big") + topic.encode() for topic in topics)
    return b"\0\0" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"


class GroupMachine:
    """One group, its clock and its journal (a list)."""

    def __init__(self, **settings: Any) -> None:
        self.now = 1_000_000_000_000
        self.tokens = count(1)
        self.answers: dict[int, JoinAnswer | SyncAnswer] = {}
        self.journal: list[tuple[GroupRecord, int]] = []
        self.fold = GroupFold(8)
        self.epoch = 0
        self.write([GroupConfigured(GroupSettings(8, 5, 1, "000000000000", "billing", **settings))])
        self.restart(self.fold)

    def write(self, written: Sequence[GroupRecord]) -> None:
        for record in written:
            self.journal.append((record, self.now))
            self.fold.apply(record, self.now)

    def replayed(self) -> GroupFold:
        """Fold that a restart would compute from the journal."""
        fold = GroupFold(8)
        for record, now in self.journal:
            fold.apply(record, now)
        return fold

    def restart(self, fold: GroupFold | None = None) -> None:
        """Continue under a new owner: all memory but the fold is lost, and so are the calls that wait."""
        self.fold = self.replayed() if fold is None else fold
        self.epoch += 1
        self.fold.open(self.epoch)
        self.coordinator = GroupCoordinator(self.fold, self.now)
        self.offsets = OffsetCommands(self.fold, self.coordinator)

    def run(self, outcome: GroupOutcome) -> GroupOutcome:
        """Execute an outcome."""
        self.write(outcome.records)
        for token, answer in outcome.answers:
            assert token not in self.answers, "a call is answered once"
            self.answers[token] = answer
        return outcome

    def pass_time(self, ms: int) -> None:
        """Let time pass, with every timeout in it at its time."""
        until = self.now + ms
        while self.coordinator.due <= until:
            self.now = max(self.now, self.coordinator.due)
            self.run(self.coordinator.advance(self.now))
        self.now = until

    @property
    def phase(self) -> str:
        return self.coordinator.describe().state

    # --- calls ----------------------------------------------------------------------------------------

    def begin_join(
        self,
        member_id: str = "",
        new_id: str = "",
        protocols: tuple[tuple[str, bytes], ...] = RANGE,
        **members: Any,
    ) -> int:
        """Call JoinGroup; return the call's token."""
        token = next(self.tokens)
        request = JoinRequest(member_id, new_id or f"m{token}", "c", "/h", 10_000, 60_000, "consumer", protocols)
        for name, value in members.items():
            setattr(request, name, value)
        self.run(self.coordinator.join(token, request, self.now))
        return token

    def joined(self, token: int) -> JoinAnswer:
        """Return the answer to a join."""
        answer = self.answers[token]
        assert isinstance(answer, JoinAnswer)
        return answer

    def join(self, member_id: str = "", **members: Any) -> JoinAnswer:
        """Call JoinGroup, which is answered at once."""
        return self.joined(self.begin_join(member_id, **members))

    def begin_sync(self, member_id: str, generation: int, **members: Any) -> int:
        token = next(self.tokens)
        self.run(self.coordinator.sync(token, SyncRequest(member_id, generation, **members), self.now))
        return token

    def synced(self, token: int) -> SyncAnswer:
        answer = self.answers[token]
        assert isinstance(answer, SyncAnswer)
        return answer

    def sync(self, member_id: str, generation: int, **members: Any) -> SyncAnswer:
        """Call SyncGroup, which is answered at once."""
        return self.synced(self.begin_sync(member_id, generation, **members))

    def heartbeat(self, member_id: str, generation: int, instance_id: str | None = None) -> StreamError:
        return self.run(self.coordinator.heartbeat(member_id, generation, instance_id, self.now)).error

    def leave(self, *departures: Departure | str) -> list[StreamError]:
        left = [Departure(one) if isinstance(one, str) else one for one in departures]
        return self.run(self.coordinator.leave(left, self.now)).errors

    def commit(
        self,
        member_id: str,
        generation: int,
        *offsets: tuple[int, int],
        instance_id: str | None = None,
        topic: str = "orders",
        **members: Any,
    ) -> list[StreamError]:
        """Commit (partition, offset) pairs."""
        commits = [OffsetCommit(topic, TOPIC_ID, partition, offset, **members) for partition, offset in offsets]
        self.run(self.coordinator.advance(self.now))
        written, errors = self.offsets.commit(member_id, generation, instance_id, commits, self.now)
        self.write(written)
        return errors

    def committed(self, partition: int) -> int:
        (found,) = self.offsets.fetch([(TOPIC_ID, partition)])
        return -1 if found is None else found.offset

    # --- whole steps ----------------------------------------------------------------------------------

    def form(self, *ids: str, **members: Any) -> int:
        """Let members with these ids join and sync; return the generation."""
        tokens = {one: self.begin_join(new_id=one, requires_known_member_id=False, **members) for one in ids}
        self.pass_time(3_000)
        while not all(token in self.answers for token in tokens.values()):
            self.pass_time(3_000)
        answer = self.joined(tokens[ids[0]])
        assignments = {one: one.encode() for one in ids}
        for one in ids:
            if one != answer.leader:
                self.begin_sync(one, answer.generation)
        assert self.sync(answer.leader, answer.generation, assignments=assignments).error is StreamError.NONE
        assert self.phase == "Stable"
        return answer.generation
