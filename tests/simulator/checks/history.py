"""History of the answers to clients of a cluster, and the check that it is possible.

The clients may use several frontends, calls may be answered late or never, and the clocks of the nodes may be wrong; so
what is held against the answers is only what is promised to an observer with a clock of his own, and allows for the
bounds that are documented: a shard's time is slewed by at most a tenth, and a new owner's may be a little off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from backend.api import AckLevel, Counters, HandleOutcome, NewMessage, ReceivedMessage, SendResult
from backend.engine.ids import message_id, salt_of
from backend.engine.receipt_handles import partition_of
from tests.simulator.checks.model import Violation

SLEWED = 0.85
OFF_SECONDS = 1.5
"""A claim of ``s`` seconds holds for at least ``SLEWED * s - OFF_SECONDS`` of true time."""


Place = tuple[int, int]
"""(partition, number): where a message is, in the order in which a group's messages were stored."""


@dataclass(eq=False)
class QueueHistory:
    """A queue, and where its messages may go."""

    queue_id: int
    arn: str
    fifo: bool = False
    ack_level: AckLevel = AckLevel.QUORUM
    handle_key: bytes = b""
    partitions: list[int] = field(default_factory=list)
    """All that it ever had, in the order in which it got them."""
    dead_letter: QueueHistory | None = None
    max_receives: int = 3
    feeds: list[QueueHistory] = field(default_factory=list)
    """Queues whose dead letters arrive here."""
    groups: dict[str, dict[tuple[int, int], SentMessage]] = field(default_factory=dict)
    """FIFO: what was stored, by group and place."""
    messages_sent: list[SentMessage] = field(default_factory=list)
    purging: int = 0
    """Purges that were asked for and not answered: what is sent meanwhile may go, too."""
    delivered: dict[str, list[tuple[Place, set[Place], int]]] = field(default_factory=dict)
    """FIFO, by group: what was received, with what, and when that was answered."""
    dead: dict[str, list[tuple[Place, Place]]] = field(default_factory=dict)
    """FIFO, by group: where dead letters were in the queue that they were sent to, and where they are here."""
    moved: bool = False
    """True if a move task from it was requested: its messages may return to their sources."""
    deleting: bool = False
    """Its deletion was requested: its messages may be deleted, also those that arrive later."""

    @property
    def weak(self) -> bool:
        """Its sends are answered before they are durable: what was not received since may be lost."""
        return self.ack_level in (AckLevel.LEADER, AckLevel.NONE)

    @property
    def plain(self) -> bool:
        """Return whether its messages stay, and no others arrive."""
        return self.dead_letter is None and not self.feeds


@dataclass(eq=False)
class DeliveryClaim:
    place: Place
    queue: QueueHistory
    asked: float
    answered: float
    holds_until: float
    changing: bool = False
    """A change of it is in progress, or has an unknown outcome."""
    vague: bool = False
    changed_at: int = 0
    """Since when it holds so long: what was asked for before may have claimed the message before that change."""


@dataclass
class Changes:
    """Visibility changes of a standard queue's message in one place: its handles act on whichever claim holds it."""

    under_way: int = 0
    """Not answered, or with an unknown outcome."""
    answered_at: int = 0
    """The last one."""


@dataclass(eq=False)
class SentMessage:
    """One message that a client wanted to send."""

    payload: bytes
    name: str
    home: QueueHistory
    group: str | None
    asked_at: int
    stored: SendResult | None = None
    known_at: int = 1 << 62
    """Since when it is certain that it is stored."""
    refused: bool = False
    """It was answered that it is not stored."""
    by_token: bool = False
    """A repeat of its send is known by its deduplication id alone."""
    purging: bool = False
    """A purge was asked for since: it may be gone, and a claim of it says nothing."""
    forgotten: bool = False
    """And with it its deduplication id: a repeat may be stored anew."""
    twice: bool = False
    """A repeat may have arrived after the window: it may be stored a second time."""
    attempts: int = 0
    """Number of its sends that were started."""
    asked: float = 0.0
    """True time of the first one."""
    deleting_at: int = 1 << 62
    """Time of the first request for a delete or a purge."""
    endings: int = 0
    """Deletes and purges that were asked for, each entry of a batch counted: a call may arrive late, and twice."""
    deleted_at: int = 1 << 62
    """Time of the answer to a delete or purge that must have hit it."""
    claims: dict[Place, dict[int, DeliveryClaim]] = field(default_factory=dict)
    """By place, and how often it had been received there."""
    changes: dict[Place, Changes] = field(default_factory=dict)
    deleted_in: dict[Place, int] = field(default_factory=dict)
    """Time of the answer to a delete by one of its handles, by the place of the handle."""

    @property
    def must(self) -> bool:
        kept = self.stored is not None and not self.home.weak
        return (kept or bool(self.claims)) and self.deleting_at == 1 << 62


class CertainFacts(NamedTuple):
    """Certain facts at some time, by payload."""

    stored: frozenset[bytes]
    deleted: frozenset[bytes]


class _Delivery(NamedTuple):
    """A message of a group where it was received."""

    queue: QueueHistory
    group: str
    place: Place
    msg: SentMessage


class RunHistory:
    """All of one run."""

    def __init__(self) -> None:
        self.messages: dict[bytes, SentMessage] = {}
        self.counts: Counter[str] = Counter()
        self._tick = 0
        self._ids: dict[str, SentMessage] = {}
        self._places: dict[Place, SentMessage] = {}
        self._handles: set[str] = set()

    def tick(self) -> int:
        self._tick += 1
        return self._tick

    # --- sends ---

    def sending(self, queue: QueueHistory, new: Sequence[NewMessage]) -> list[SentMessage]:
        at = self.tick()
        msgs = []
        for one in new:
            msg = self.messages.get(one.payload)
            if msg is None:
                name = one.payload[:7].decode()
                msg = self.messages[one.payload] = SentMessage(one.payload, name, queue, one.group, at)
                msg.by_token = one.token is not None and one.retry is None
                if any(other.purging or other.deleting for other in _reach(queue)):
                    self._may_go(msg, at)
                queue.messages_sent.append(msg)
            msgs.append(msg)
        return msgs

    def sent(
        self, msgs: Sequence[SentMessage], answers: Sequence[SendResult], everywhere: Callable[[bytes], bool]
    ) -> None:
        """``everywhere`` says whether all replicas have, or had, a message."""
        at = self.tick()
        for msg, answer in zip(msgs, answers, strict=True):
            self.counts["sent"] += 1
            known = self._ids.setdefault(answer.message_id, msg)
            if known is not msg:
                raise Violation(f"{msg.name} and {known.name} have the same message id")
            other = msg.stored is not None and msg.stored.message_id != answer.message_id
            if other and not msg.home.weak and not msg.forgotten:
                raise Violation(f"a repeated send of {msg.name} was answered {answer}, before {msg.stored}")
            at_all = msg.home.ack_level is AckLevel.ALL and msg.deleting_at > at and not answer.duplicate
            if at_all and not everywhere(msg.payload):
                raise Violation(f"{msg.name} was answered, and a replica never had it")
            if msg.stored is None:
                msg.stored = answer
                if not msg.home.weak:
                    msg.known_at = at
                if (place := _place(msg.home, answer)) is not None:
                    self._is_at(msg, msg.home, place)

    def _is_at(self, msg: SentMessage, queue: QueueHistory, place: Place) -> None:
        known = self._places.setdefault(place, msg)
        if known is not msg:
            raise Violation(f"{msg.name} and {known.name} are both at {place} in {queue.arn}")
        if queue.fifo and msg.group is not None:
            queue.groups.setdefault(msg.group, {})[place] = msg

    def repeated_late(self, msgs: Sequence[SentMessage]) -> None:
        """A send is about to be repeated that may arrive when the window of its tokens is over."""
        for msg in msgs:
            msg.twice = msg.forgotten = True
            msg.deleted_at = 1 << 62

    # --- receives ---

    def received(
        self,
        queue: QueueHistory,
        answer: Sequence[ReceivedMessage],
        seconds: int,
        asked_at: int,
        asked: float,
        now: float,
    ) -> list[tuple[str, SentMessage, DeliveryClaim]]:
        """Return each receipt handle with its message and claim; ``asked`` and ``now`` are true times."""
        at = self.tick()
        self.counts["received"] += 1
        places = [(partition_of(one.handle), one.number) for one in answer]
        claimed: list[tuple[str, SentMessage, DeliveryClaim]] = []
        for one, place in zip(answer, places, strict=True):
            self.counts["delivered"] += 1
            msg = self.messages.get(one.payload)
            if msg is None:
                raise Violation(f"{one.payload[:20]!r} was received and never sent")
            where = f"{msg.name} (number {one.number} of partition {place[0]} of {queue.arn})"
            self._fits(queue, one, place, msg, where)
            if one.handle in self._handles:
                raise Violation(f"a receipt handle of {where} was given out twice")
            self._handles.add(one.handle)
            if asked_at > msg.deleted_at:
                raise Violation(f"{where} was received after its delete was answered")
            if asked_at > msg.deleted_in.get(place, 1 << 62):
                raise Violation(f"{where} was received after a delete by one of its handles was answered")
            self._is_at(msg, queue, place)
            if queue.plain and not msg.forgotten and (before := msg.claims.keys() - {place}):
                raise Violation(f"{where} was there before as {before}")
            claims = msg.claims.setdefault(place, {})
            if one.receives in claims:
                raise Violation(f"{where} was received as number {one.receives} twice")
            for receives, known in claims.items():
                if receives < one.receives and now < known.holds_until and asked_at > known.changed_at:
                    raise Violation(
                        f"{where} was received at {now:.3f} (time {one.receives}), claim {receives} of "
                        f"{known.asked:.3f} holds until {known.holds_until:.3f}"
                    )
            claims[one.receives] = claim = DeliveryClaim(
                place, queue, asked, now, asked + seconds * SLEWED - OFF_SECONDS
            )
            changes = msg.changes.get(place)
            if changes is not None and (changes.under_way or changes.answered_at > asked_at):
                claim.holds_until, claim.vague = float("-inf"), bool(changes.under_way)
            claimed.append((one.handle, msg, claim))
            msg.known_at = min(msg.known_at, at)
            if one.group is not None and queue.fifo:
                there = _Delivery(queue, one.group, place, msg)
                self._in_order(there, set(places), asked_at)
                self._blocked(there, set(places), asked_at, now)
                self._moved_in_order(there)
        return claimed

    def _fits(self, queue: QueueHistory, one: ReceivedMessage, place: Place, msg: SentMessage, where: str) -> None:
        if place[0] not in queue.partitions:
            raise Violation(f"{where} has a handle of none of its partitions")
        if msg.refused:
            raise Violation(f"{where} was received, and its sender was told that it is not stored")
        if queue is not msg.home and queue not in _reach(msg.home):
            raise Violation(f"{where} was sent to {msg.home.arn}")
        if one.group != msg.group:
            raise Violation(f"{where} has group {one.group}, not {msg.group}")
        stored = msg.stored if queue is msg.home and queue.plain and not msg.forgotten else None
        if stored is not None and one.message_id != stored.message_id:
            raise Violation(f"{where} has id {one.message_id}, its sender was told {stored}")
        if one.origin is not None:
            stored_min = min(source.max_receives for source in queue.feeds if source.arn == one.origin)
            if one.receives <= stored_min:
                raise Violation(
                    f"{where} came from {one.origin}, and counts {one.receives} receives, not above {stored_min}"
                )
        elif queue.dead_letter is not None and one.receives > queue.max_receives:
            raise Violation(f"{where} was received {one.receives} times, {queue.max_receives} are allowed")

    def _in_order(self, there: _Delivery, places: set[Place], asked_at: int) -> None:
        queue, name, place, msg = there
        if not queue.plain:
            return  # an earlier one may be a dead letter by now
        group = queue.groups[name]
        for earlier, other in list(group.items()):
            if other.deleted_at < asked_at:
                del group[earlier]
            elif earlier < place and earlier not in places and other.must and other.known_at < asked_at:
                raise Violation(f"{msg.name} was received while {other.name}, before it in {name}, was not done")

    def _blocked(self, there: _Delivery, places: set[Place], asked_at: int, now: float) -> None:
        """Check that earlier messages of its group have left the queue, or were received with it."""
        queue, name, place, msg = there
        delivered = queue.delivered.setdefault(name, [])
        for later, company, answered_at in delivered if not queue.moved else ():
            if later[0] == place[0] and later > place and answered_at < asked_at and place not in company:
                raise Violation(f"{msg.name} at {place} was received after {later} of its group {name}")
        delivered.append((place, places, self._tick))
        for earlier, other in queue.groups[name].items():
            if earlier[0] == place[0] and earlier < place and earlier not in places and not other.purging:
                for claim in other.claims.get(earlier, {}).values():
                    if now < claim.holds_until and other.deleting_at == 1 << 62:
                        raise Violation(f"{msg.name} was received while a claim holds {other.name}, before it")

    def _moved_in_order(self, there: _Delivery) -> None:
        """Check that dead letters of a group are in the order in which they were sent."""
        queue, name, place, msg = there
        home = msg.home
        if queue.moved or home.dead_letter is not queue or msg.stored is None or msg.forgotten:
            return
        sent_at = _place(home, msg.stored)
        if sent_at is None:
            return
        known = queue.dead.setdefault(name, [])
        for earlier, moved in known:
            same = earlier[0] == sent_at[0] and moved[0] == place[0]
            if same and (earlier < sent_at) != (moved < place) and earlier != sent_at:
                raise Violation(
                    f"{msg.name}, sent as {sent_at}, is at {place}, and what was sent as {earlier} at {moved}"
                )
        known.append((sent_at, place))

    # --- receipt handles ---

    def handle_counted(self, msg: SentMessage, claim: DeliveryClaim, asked: float, now: float) -> None:
        """Record that a handle of a FIFO queue's message was accepted: the message was not received since."""
        for receives, later in msg.claims[claim.place].items():
            newer = later is not claim and later.answered < asked and later.asked > claim.answered
            if newer and not later.changing and now < later.holds_until:
                raise Violation(f"an earlier handle of {msg.name} was taken while claim {receives} holds it")

    def deleting(self, msgs: Sequence[SentMessage]) -> None:
        at = self.tick()
        for msg in msgs:
            msg.endings += 1
            msg.deleting_at = min(msg.deleting_at, at)

    def deleted(
        self, msg: SentMessage, claim: DeliveryClaim, outcome: HandleOutcome, now: float, *, retired: bool
    ) -> None:
        """``retired``: the partition that the handle names is none of the queue's any more."""
        at = self.tick()
        self.counts["deletes"] += 1
        held = now < claim.holds_until
        if outcome is HandleOutcome.DONE:
            msg.deleted_in.setdefault(claim.place, at)
            # If messages are moved to other queues, one whose claim has ended may have left before.
            if (held or claim.queue.plain) and not msg.forgotten:
                msg.deleted_at = min(msg.deleted_at, at)
        elif outcome in (HandleOutcome.MALFORMED, HandleOutcome.OTHER_QUEUE) and not retired:
            raise Violation(f"a delete of {msg.name} was answered {outcome!r}")
        elif not claim.queue.fifo and not retired:
            raise Violation(f"a delete of {msg.name}, of a standard queue, was answered {outcome!r}")
        elif held and not msg.purging:
            raise Violation(f"a delete of {msg.name} was answered {outcome!r}, and its claim had not ended")

    def changing(self, msg: SentMessage, claim: DeliveryClaim) -> None:
        affected = [claim]
        if not claim.queue.fifo:
            affected = list(msg.claims[claim.place].values())
            msg.changes.setdefault(claim.place, Changes()).under_way += 1
        for one in affected:
            one.holds_until = float("-inf")
            one.vague = one.vague or one.changing
            one.changing = True

    def changed(
        self, msg: SentMessage, claim: DeliveryClaim, seconds: int, outcome: HandleOutcome, asked: float
    ) -> None:
        at = self.tick()
        affected = [claim]
        if not claim.queue.fifo:
            affected = list(msg.claims[claim.place].values())
            changes = msg.changes[claim.place]
            changes.under_way -= 1
            changes.answered_at = at
        for one in affected:
            one.changing = False
        if outcome is HandleOutcome.DONE and not claim.vague:
            claim.holds_until = asked + seconds * SLEWED - OFF_SECONDS
            claim.changed_at = at

    # --- purges ---

    def purging(self, queue: QueueHistory) -> int:
        """A purge is about to be asked for: what may be in the queue may go.  Returns what :meth:`purged` wants."""
        at = self.tick()
        queue.purging += 1
        for other in _reach(queue):
            for msg in other.messages_sent:
                self._may_go(msg, at)
        return at

    def _may_go(self, msg: SentMessage, at: int) -> None:
        msg.endings += 1
        msg.deleting_at = min(msg.deleting_at, at)
        msg.purging = True
        if msg.by_token:
            msg.forgotten, msg.deleted_at = True, 1 << 62

    def purged(self, queue: QueueHistory, asked_at: int) -> None:
        """It was answered: what was there when it was asked for is gone."""
        at = self.tick()
        self.counts["purged"] += 1
        queue.purging -= 1
        for msg in queue.messages_sent if queue.plain else ():
            if msg.known_at < asked_at and not msg.forgotten:
                msg.deleted_at = min(msg.deleted_at, at)

    # --- deletions ---

    def queue_deleting(self, queue: QueueHistory) -> int:
        """A queue's deletion is about to be asked for.  Returns what :meth:`queue_deleted` wants."""
        queue.deleting = True
        return self.purging(queue)

    def queue_deleted(self, queue: QueueHistory, asked_at: int) -> None:
        """Record the answer: all partitions had been notified, so the messages stored at the request are gone."""
        self.counts["queues deleted"] += 1
        self.purged(queue, asked_at)

    # --- sums ---

    def counted(self, queue: QueueHistory, counters: Counters, asked_at: int) -> None:
        """The sums of a queue, asked for after ``asked_at`` and answered now."""
        if not queue.plain:
            return
        total = counters.visible + counters.in_flight + counters.delayed
        stored_min = sum(1 for msg in queue.messages_sent if msg.known_at < asked_at and msg.deleting_at == 1 << 62)
        if len(queue.partitions) > 1:
            stored_min = 0  # a caller with an old map omits the partitions that it does not know
        stored_max = sum(1 for msg in queue.messages_sent if not msg.refused and msg.deleted_at > asked_at)
        if any(msg.twice for msg in queue.messages_sent):
            stored_max = 1 << 62
        if not stored_min <= total <= stored_max:
            raise Violation(f"{queue.arn} counts {total} messages, and stores {stored_min} to {stored_max}")
        self.counts["counted"] += 1

    # --- backups ---

    def certain_facts(self) -> CertainFacts:
        """Certain facts by the answers to clients so far."""
        messages = self.messages.items()
        return CertainFacts(
            frozenset(payload for payload, msg in messages if msg.must),
            frozenset(payload for payload, msg in messages if msg.deleted_at < 1 << 62),
        )

    # --- the end ---

    def taken(self, queue: QueueHistory, msg: SentMessage, place: Place) -> None:
        """It was received at the end, and deleted."""
        if msg.group is not None:
            queue.groups.get(msg.group, {}).pop(place, None)

    def finished(self, found: dict[bytes, list[tuple[QueueHistory, Place]]]) -> None:
        """This is all that there is."""
        for payload, places in found.items():
            msg = self.messages.get(payload)
            if msg is None:
                raise Violation(f"{payload[:20]!r} is stored and was never sent")
            where = [(queue.arn, place) for queue, place in places]
            if len(places) > 1 and not msg.forgotten:  # else one may have left before the purge, and one was sent again
                raise Violation(f"{msg.name} is in several places: {where}")
            if msg.deleted_at < 1 << 62 or any(place in msg.deleted_in for _, place in places):
                raise Violation(f"{msg.name} is in {where}, and its delete was answered")
        lost = [msg for payload, msg in self.messages.items() if msg.must and payload not in found]
        if lost:
            names = [f"{msg.name} of {msg.home.arn}" for msg in lost[:5]]
            raise Violation(f"{len(lost)} of {len(self.messages)} messages are lost: {names}")


def _place(queue: QueueHistory, stored: SendResult) -> Place | None:
    """Place of a message; None: the place where it was sent, with an id from another process."""
    for partition in queue.partitions:
        if message_id(partition, stored.number, salt_of(queue.handle_key)) == stored.message_id:
            return partition, stored.number
    return None


def _reach(queue: QueueHistory) -> set[QueueHistory]:
    """Queues that messages of a queue may reach."""
    found = {queue}
    while True:
        more = {one.dead_letter for one in found if one.dead_letter is not None}
        more |= {source for one in found for source in one.feeds}
        if more <= found:
            return found
        found |= more
