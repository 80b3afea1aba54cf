"""What clients of a cluster were told, and when, and whether that can be.

The clients may use several frontends, calls may be answered late or never, and the clocks of the nodes may be wrong; so
what is held against the answers is only what is promised to an observer with a clock of his own, and allows for the
bounds that are documented: a shard's time is slewed by at most a tenth, and a new owner's may be a little off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from backend.api import AckLevel, Counters, HandleOutcome, NewMessage, PartitionSettings, Received, Stored
from tests.simulator.model import Violation

SLEWED = 0.85
OFF_SECONDS = 1.5
"""A claim of ``s`` seconds holds for at least ``SLEWED * s - OFF_SECONDS`` of true time."""


@dataclass(eq=False)
class Queue:
    """A queue, and where its messages may go."""

    settings: PartitionSettings
    dead_letter: Queue | None = None
    max_receives: int = 3
    feeds: list[Queue] = field(default_factory=list)
    """Queues whose dead letters come here."""
    groups: dict[str, dict[int, Msg]] = field(default_factory=dict)
    """FIFO: what was stored, by group and number."""
    mine: list[Msg] = field(default_factory=list)

    @property
    def pid(self) -> int:
        return self.settings.partition

    @property
    def weak(self) -> bool:
        """Its sends are answered before they are durable: what was not received since may be lost."""
        return self.settings.ack_level is AckLevel.LEADER

    @property
    def plain(self) -> bool:
        """Its messages stay, and no others come."""
        return self.dead_letter is None and not self.feeds


@dataclass(eq=False)
class Claim:
    number: int
    asked: float
    holds_until: float
    changing: bool = False
    """A change of it is under way, or has an outcome that nobody knows."""
    vague: bool = False


@dataclass(eq=False)
class Msg:
    """One message that a client wanted to send."""

    payload: bytes
    name: str
    home: Queue
    group: str | None
    asked_at: int
    stored: Stored | None = None
    known_at: int = 1 << 62
    """Since when it is certain that it is stored."""
    refused: bool = False
    """It was answered that it is not stored."""
    deleting_at: int = 1 << 62
    """When a delete was first asked for."""
    deleted_at: int = 1 << 62
    """When one was answered that must have hit it."""
    claims: dict[tuple[int, int], dict[int, Claim]] = field(default_factory=dict)
    """By place, (partition, number), and how often it had been received there."""

    @property
    def must(self) -> bool:
        kept = self.stored is not None and not self.home.weak
        return (kept or bool(self.claims)) and self.deleting_at == 1 << 62


class History:
    """All of one run."""

    def __init__(self) -> None:
        self.messages: dict[bytes, Msg] = {}
        self.queues: dict[int, Queue] = {}
        self.counts: Counter[str] = Counter()
        self._tick = 0
        self._ids: dict[str, Msg] = {}
        self._places: dict[tuple[int, int], Msg] = {}
        self._handles: set[str] = set()

    def tick(self) -> int:
        self._tick += 1
        return self._tick

    # --- sends ---

    def sending(self, queue: Queue, new: Sequence[NewMessage]) -> list[Msg]:
        at = self.tick()
        msgs = []
        for one in new:
            msg = self.messages.get(one.payload)
            if msg is None:
                name = one.payload[:7].decode()
                msg = self.messages[one.payload] = Msg(one.payload, name, queue, one.group, at)
                queue.mine.append(msg)
            msgs.append(msg)
        return msgs

    def sent(self, msgs: Sequence[Msg], answers: Sequence[Stored]) -> None:
        at = self.tick()
        for msg, answer in zip(msgs, answers, strict=True):
            self.counts["sent"] += 1
            known = self._ids.setdefault(answer.message_id, msg)
            if known is not msg:
                raise Violation(f"{msg.name} and {known.name} have the same message id")
            if msg.stored is not None and msg.stored.number != answer.number and not msg.home.weak:
                raise Violation(f"a repeated send of {msg.name} was answered {answer}, before {msg.stored}")
            if msg.stored is None:
                msg.stored = answer
                if not msg.home.weak:
                    msg.known_at = at
                self._is_at(msg, msg.home, answer.number)

    def _is_at(self, msg: Msg, queue: Queue, number: int) -> None:
        known = self._places.setdefault((queue.pid, number), msg)
        if known is not msg:
            raise Violation(f"{msg.name} and {known.name} have number {number} in {queue.settings.arn}")
        if queue.settings.fifo and msg.group is not None:
            queue.groups.setdefault(msg.group, {})[number] = msg

    # --- receives ---

    def received(
        self, queue: Queue, answer: Sequence[Received], seconds: int, asked_at: int, asked: float, now: float
    ) -> None:
        """``asked`` and ``now`` are true times, ``seconds`` is the visibility timeout that was asked for."""
        at = self.tick()
        self.counts["received"] += 1
        numbers = {one.number for one in answer}
        for one in answer:
            self.counts["delivered"] += 1
            msg = self.messages.get(one.payload)
            if msg is None:
                raise Violation(f"{one.payload[:20]!r} was received and never sent")
            where = f"{msg.name} (number {one.number} of {queue.settings.arn})"
            self._fits(queue, one, msg, where)
            if one.handle in self._handles:
                raise Violation(f"a receipt handle of {where} was given out twice")
            self._handles.add(one.handle)
            if asked_at > msg.deleted_at:
                raise Violation(f"{where} was received after its delete was answered")
            self._is_at(msg, queue, one.number)
            if queue.plain and (places := {place for place in msg.claims if place != (queue.pid, one.number)}):
                raise Violation(f"{where} was there before as {places}")
            claims = msg.claims.setdefault((queue.pid, one.number), {})
            if one.receives in claims:
                raise Violation(f"{where} was received as number {one.receives} twice")
            for receives, claim in claims.items():
                if now < claim.holds_until:
                    raise Violation(
                        f"{where} was received at {now:.3f} (time {one.receives}), claim {receives} of "
                        f"{claim.asked:.3f} holds until {claim.holds_until:.3f}"
                    )
            claims[one.receives] = Claim(one.number, asked, asked + seconds * SLEWED - OFF_SECONDS)
            msg.known_at = min(msg.known_at, at)
            if one.group is not None and queue.settings.fifo:
                self._in_order(queue, one, msg, numbers, asked_at)

    def _fits(self, queue: Queue, one: Received, msg: Msg, where: str) -> None:
        if msg.refused:
            raise Violation(f"{where} was received, and its sender was told that it is not stored")
        if queue is not msg.home and queue not in _reach(msg.home):
            raise Violation(f"{where} was sent to {msg.home.settings.arn}")
        if one.group != msg.group:
            raise Violation(f"{where} has group {one.group}, not {msg.group}")
        stored = msg.stored if queue is msg.home and queue.plain else None
        if stored is not None and (one.number, one.message_id) != (stored.number, stored.message_id):
            raise Violation(f"{where} has id {one.message_id}, its sender was told {stored}")
        if queue.dead_letter is not None and one.receives > queue.max_receives:
            raise Violation(f"{where} was received {one.receives} times, {queue.max_receives} are allowed")

    def _in_order(self, queue: Queue, one: Received, msg: Msg, numbers: set[int], asked_at: int) -> None:
        if not queue.plain:
            return  # an earlier one may be a dead letter by now
        group = queue.groups[one.group or ""]
        for number, other in list(group.items()):
            if other.deleted_at < asked_at:
                del group[number]
            elif number < one.number and number not in numbers and other.must and other.known_at < asked_at:
                raise Violation(f"{msg.name} was received while {other.name}, before it in {one.group}, was not done")

    # --- receipt handles ---

    def deleting(self, msgs: Sequence[Msg]) -> None:
        at = self.tick()
        for msg in msgs:
            msg.deleting_at = min(msg.deleting_at, at)

    def deleted(self, msg: Msg, claim: Claim, outcome: HandleOutcome, now: float) -> None:
        at = self.tick()
        self.counts["deletes"] += 1
        held = now < claim.holds_until
        if outcome is HandleOutcome.DONE and held:
            msg.deleted_at = min(msg.deleted_at, at)
        elif outcome in (HandleOutcome.MALFORMED, HandleOutcome.OTHER_QUEUE):
            raise Violation(f"a delete of {msg.name} was answered {outcome!r}")
        elif outcome is not HandleOutcome.DONE and held:
            raise Violation(f"a delete of {msg.name} was answered {outcome!r}, and its claim had not ended")

    def changing(self, claim: Claim) -> None:
        claim.holds_until = float("-inf")
        claim.vague = claim.vague or claim.changing
        claim.changing = True

    def changed(self, claim: Claim, seconds: int, outcome: HandleOutcome, asked: float) -> None:
        claim.changing = False
        if outcome is HandleOutcome.DONE and not claim.vague:
            claim.holds_until = asked + seconds * SLEWED - OFF_SECONDS

    # --- sums ---

    def counted(self, queue: Queue, counters: Counters, asked_at: int) -> None:
        """The sums of a queue, asked for after ``asked_at`` and answered now."""
        if not queue.plain:
            return
        total = counters.visible + counters.in_flight + counters.delayed
        least = sum(1 for msg in queue.mine if msg.known_at < asked_at and msg.deleting_at == 1 << 62)
        most = sum(1 for msg in queue.mine if not msg.refused and msg.deleted_at > asked_at)
        if not least <= total <= most:
            raise Violation(f"{queue.settings.arn} counts {total} messages, and stores {least} to {most}")
        self.counts["counted"] += 1

    # --- the end ---

    def taken(self, queue: Queue, msg: Msg, number: int) -> None:
        """It was received at the end, and deleted."""
        if msg.group is not None:
            queue.groups.get(msg.group, {}).pop(number, None)

    def finished(self, found: dict[bytes, list[tuple[Queue, int]]]) -> None:
        """This is all that there is."""
        for payload, places in found.items():
            msg = self.messages.get(payload)
            if msg is None:
                raise Violation(f"{payload[:20]!r} is stored and was never sent")
            where = [(queue.settings.arn, number) for queue, number in places]
            if len(places) > 1:
                raise Violation(f"{msg.name} is in several places: {where}")
            if msg.deleted_at < 1 << 62:
                raise Violation(f"{msg.name} is in {where}, and its delete was answered")
        lost = [msg for payload, msg in self.messages.items() if msg.must and payload not in found]
        if lost:
            names = [f"{msg.name} of {msg.home.settings.arn}" for msg in lost[:5]]
            raise Violation(f"{len(lost)} of {len(self.messages)} messages are lost: {names}")


def _reach(queue: Queue) -> set[Queue]:
    """Where messages of a queue may come to."""
    found = {queue}
    while True:
        more = {one.dead_letter for one in found if one.dead_letter is not None}
        more |= {source for one in found for source in one.feeds}
        if more <= found:
            return found
        found |= more
