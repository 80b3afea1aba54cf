"""The judge of publications: whether what was received from the subscribed queues is possible.

Each answered publication arrives once in each queue that it lists, unless the queue is deleted, and in no other.  One
whose answer was lost arrives in all that it lists, or in none.  In a FIFO queue those of a group arrive in the order in
which they were published.  Moments are numbered (:meth:`PublicationHistory.tick`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from backend.api import ReceivedMessage, SendResult
from backend.engine.receipt_handles import partition_of
from tests.simulator.checks.model import Violation

NEVER = 1 << 62


@dataclass(eq=False)
class SubscribedQueue:
    """A queue to which publications are delivered."""

    queue_id: int
    name: str
    fifo: bool
    deleting: bool = False
    """Its deletion was requested."""
    places: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    """By payload of each received publication: partition and number."""
    deleted_at: dict[bytes, int] = field(default_factory=dict)
    """By payload: when the delete of its message was answered."""
    arrivals: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)
    """By deduplication id: the payload that arrived with it, and when."""
    listed: dict[str | None, list[SentPublication]] = field(default_factory=dict)
    """Publications for it, by group."""

    @property
    def subscription(self) -> bytes:
        return self.queue_id.to_bytes(16, "big")

    @property
    def raw(self) -> bool:
        return self.queue_id % 2 == 1


@dataclass(eq=False)
class SentPublication:
    """One publication that a client wanted to make."""

    payload: bytes
    group: str | None
    queues: tuple[SubscribedQueue, ...]
    tokens: dict[int, bytes]
    """Deduplication ids in FIFO queues, by queue."""
    asked_at: int
    answered_at: int = NEVER
    message_id: str | None = None
    is_twin: bool = False
    """Its deduplication ids are an earlier one's: it arrives only where that one does not."""


class PublicationHistory:
    """All publications of one run."""

    def __init__(self, window_ms: int) -> None:
        """``window_ms``: length of the windows of deduplication, as certain as the clocks are."""
        self.counts: Counter[str] = Counter()
        self._window_ms = window_ms
        self._tick = 0
        self._sent: dict[bytes, SentPublication] = {}
        self._ids: dict[str, object] = {}
        """By message id: the publication, or the place of a delivery."""

    def tick(self) -> int:
        self._tick += 1
        return self._tick

    # --- publishes --------------------------------------------------------------------------------------

    def publishing(self, new: SentPublication) -> None:
        """A publication is about to be made for the first time."""
        self._sent[new.payload] = new
        for queue in new.queues:
            queue.listed.setdefault(new.group, []).append(new)

    def published(self, sent: SentPublication, answer: SendResult) -> None:
        self.counts["published"] += 1
        if self._ids.setdefault(answer.message_id, sent) is not sent:
            raise Violation(f"{_name(sent)} and another have the same id")
        if sent.message_id not in (None, answer.message_id):
            raise Violation(f"a repeated publish of {_name(sent)} was answered with another id")
        sent.message_id = answer.message_id
        sent.answered_at = min(sent.answered_at, self.tick())

    # --- receives ---------------------------------------------------------------------------------------

    def received(self, queue: SubscribedQueue, answer: Sequence[ReceivedMessage], asked_at: int) -> None:
        """``asked_at`` is when the receive was begun."""
        self.tick()
        for one in answer:
            self.counts["fanned out"] += 1
            self._check(queue, one, asked_at)

    def _check(self, queue: SubscribedQueue, one: ReceivedMessage, asked_at: int) -> None:
        sent = self._sent.get(one.payload)
        if sent is None or queue not in sent.queues:
            raise Violation(f"{one.payload[:12]!r} was received from {queue.name}, and was not published to it")
        where = f"{_name(sent)} in {queue.name}"
        seen = (one.subscription, one.raw, one.group, one.origin)
        if seen != (queue.subscription, queue.raw, sent.group, None):
            raise Violation(f"{where} has another head: {seen}")
        place = (partition_of(one.handle), one.number)
        if self._ids.setdefault(one.message_id, place) != place:
            raise Violation(f"{where} has the id of another message")
        known = queue.places.get(one.payload)
        if known is None:
            self._arrived(queue, sent, one, asked_at, where)
            queue.places[one.payload] = place
        elif known != place:
            raise Violation(f"{where} was delivered twice, as {known} and {place}")
        elif queue.deleted_at.get(one.payload, NEVER) < asked_at:
            raise Violation(f"{where} was received after its delete was answered")

    def _arrived(
        self, queue: SubscribedQueue, sent: SentPublication, one: ReceivedMessage, asked_at: int, where: str
    ) -> None:
        token = sent.tokens.get(queue.queue_id)
        if token is not None:
            other, then_ms = queue.arrivals.setdefault(token, (one.payload, one.sent_ms))
            if other != one.payload and abs(one.sent_ms - then_ms) < self._window_ms:
                raise Violation(f"{where} has the deduplication id of {other[:8]!r}, and was delivered")
        if not queue.fifo or queue.deleting:
            return
        for before in queue.listed[sent.group]:
            if before.answered_at < sent.asked_at and before.payload not in queue.places and not before.is_twin:
                raise Violation(f"{where} was received before {_name(before)}, which is earlier in its group")

    def deleted(self, queue: SubscribedQueue, payloads: Sequence[bytes]) -> None:
        at = self.tick()
        for payload in payloads:
            queue.deleted_at.setdefault(payload, at)

    # --- the end ----------------------------------------------------------------------------------------

    def finished(self) -> None:
        """Check that everything has arrived."""
        for sent in self._sent.values():
            there = [queue for queue in sent.queues if not queue.deleting]
            if sent.answered_at == NEVER and not any(sent.payload in queue.places for queue in there):
                continue  # it was not stored
            missing = [queue.name for queue in there if not _has(queue, sent)]
            if missing:
                raise Violation(f"{_name(sent)} has not arrived in {missing}")


def _has(queue: SubscribedQueue, sent: SentPublication) -> bool:
    """Return whether a publication has arrived, or another one with the same deduplication id."""
    return sent.payload in queue.places or sent.tokens.get(queue.queue_id) in queue.arrivals


def _name(sent: SentPublication) -> str:
    return sent.payload[:8].decode()
