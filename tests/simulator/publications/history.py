"""The judge of publications: whether what was received from the subscribed queues is possible.

Each answered publication arrives once in each queue that it lists, unless the queue or the topic is deleted, and in no
other.  One whose answer was lost arrives in all that it lists, or in none.  A repeated one lists the queues that are
subscribed then: what arrives is what one of its calls listed.  In a FIFO queue those of a group and a topic arrive in
the order in which they were published.  Moments are numbered (:meth:`PublicationHistory.tick`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

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
    subscriptions: dict[bytes, bytes] = field(default_factory=dict)
    """By payload of each received publication: its subscription."""
    deleted_at: dict[bytes, int] = field(default_factory=dict)
    """By payload: when the delete of its message was answered."""
    arrivals: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)
    """By deduplication id: the payload that arrived with it, and when."""
    listed: dict[tuple[int, str | None], list[SentPublication]] = field(default_factory=dict)
    """Publications for it, by topic and group."""
    subscribed: int = 1
    """Number of the subscription, of which a queue has one after the other."""

    def subscription(self, topic: SimTopic) -> bytes:
        """Return the id of the present subscription."""
        return b"".join(number.to_bytes(4, "big") for number in (self.queue_id, topic.queue_id, self.subscribed, 0))

    @property
    def raw(self) -> bool:
        return self.queue_id % 2 == 1


@dataclass(eq=False)
class SimTopic:
    """A topic: the queue that holds its publications, and the subscribed queues."""

    queue_id: int
    name: str
    fifo: bool
    expires: bool = False
    """Its publications are dropped, with what is pending of them, when they are old."""
    deleting: bool = False
    """Its deletion was requested: what is pending is dropped."""
    queues: list[SubscribedQueue] = field(default_factory=list)


@dataclass(eq=False)
class SentPublication:
    """One publication that a client wanted to make."""

    payload: bytes
    topic: SimTopic
    group: str | None
    asked_at: int
    token_of: bytes
    """Payload of the publication whose deduplication ids it has: its own one, or an earlier one's, which may be of
    another topic.  A queue gets one of the two."""
    calls: list[dict[SubscribedQueue, bytes]] = field(default_factory=list)
    """By call: the subscription of each queue."""
    answered_at: int = NEVER
    message_id: str | None = None
    number: int | None = None
    """Number of the publication in its topic's queue, if a publish was answered or, for a FIFO topic, it arrived."""

    def token(self, queue: SubscribedQueue) -> bytes | None:
        """Return the deduplication id in a queue."""
        return token_of(self.token_of, queue.name) if queue.fifo else None

    def surely_for(self, queue: SubscribedQueue) -> bool:
        return all(queue in call for call in self.calls)


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

    def publishing(self, new: SentPublication, call: dict[SubscribedQueue, bytes]) -> None:
        """A publication is about to be made, or repeated, with these subscriptions."""
        self._sent[new.payload] = new
        for queue in call:
            listed = queue.listed.setdefault((new.topic.queue_id, new.group), [])
            if not any(queue in earlier for earlier in new.calls):
                listed.append(new)
        new.calls.append(call)

    def published(self, sent: SentPublication, answer: SendResult) -> None:
        self.counts["published"] += 1
        if self._ids.setdefault(answer.message_id, sent) is not sent:
            raise Violation(f"{_name(sent)} and another have the same id")
        if sent.message_id not in (None, answer.message_id):
            raise Violation(f"a repeated publish of {_name(sent)} was answered with another id")
        if sent.number not in (None, answer.number):
            raise Violation(f"a publish of {_name(sent)} was answered with {answer.number}, and it has {sent.number}")
        sent.message_id, sent.number = answer.message_id, answer.number
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
        subscriptions = [] if sent is None else [call[queue] for call in sent.calls if queue in call]
        if sent is None or not subscriptions:
            raise Violation(f"{one.payload[:12]!r} was received from {queue.name}, and was not published to it")
        where = f"{_name(sent)} in {queue.name}"
        seen = (one.subscription, one.raw, one.group, one.origin)
        if seen not in [(subscription, queue.raw, sent.group, None) for subscription in subscriptions]:
            raise Violation(f"{where} has another head: {seen}")
        if sent.number is None and sent.topic.fifo:
            sent.number = one.publication_number
        if one.publication_number != (sent.number if sent.topic.fifo else 0):
            raise Violation(f"{where} has another number than its publication: {one.publication_number}")
        place = (partition_of(one.handle), one.number)
        if self._ids.setdefault(one.message_id, place) != place:
            raise Violation(f"{where} has the id of another message")
        known = queue.places.get(one.payload)
        if known is None:
            self._arrived(queue, sent, one, asked_at, where)
            queue.places[one.payload] = place
            assert one.subscription is not None
            queue.subscriptions[one.payload] = one.subscription
        elif known != place:
            raise Violation(f"{where} was delivered twice, as {known} and {place}")
        elif queue.deleted_at.get(one.payload, NEVER) < asked_at:
            raise Violation(f"{where} was received after its delete was answered")

    def _arrived(
        self, queue: SubscribedQueue, sent: SentPublication, one: ReceivedMessage, asked_at: int, where: str
    ) -> None:
        token = sent.token(queue)
        if token is not None:
            other, then_ms = queue.arrivals.setdefault(token, (one.payload, one.sent_ms))
            if other != one.payload and abs(one.sent_ms - then_ms) < self._window_ms:
                raise Violation(f"{where} has the deduplication id of {other[:8]!r}, and was delivered")
        if not queue.fifo or queue.deleting:
            return
        if sent.topic.expires or sent.topic.deleting:
            return  # earlier ones may have been dropped
        for before in queue.listed[sent.topic.queue_id, sent.group]:
            if before.answered_at < sent.asked_at and before.surely_for(queue) and not _has(queue, before):
                raise Violation(f"{where} was received before {_name(before)}, which is earlier in its group")

    def deleted(self, queue: SubscribedQueue, payloads: Sequence[bytes]) -> None:
        at = self.tick()
        for payload in payloads:
            queue.deleted_at.setdefault(payload, at)

    # --- the end ----------------------------------------------------------------------------------------

    def finished(self) -> int:
        """Check that everything has arrived; return the number of deliveries that were dropped of old publications."""
        dropped = 0
        for sent in self._sent.values():
            missing = [self._missing(sent, call) for call in sent.calls]
            if sent.answered_at == NEVER and not any(
                sent.payload in queue.places for call in sent.calls for queue in call
            ):
                continue  # it was not stored
            if sent.topic.deleting:
                missing = [None if one is None else [] for one in missing]
            possible = [one for one in missing if one is not None]
            if not possible:
                raise Violation(f"{_name(sent)} has arrived for subscriptions that no single call of it has listed")
            least = min(possible, key=len)
            if least and not sent.topic.expires:
                raise Violation(f"{_name(sent)} has not arrived in {[queue.name for queue in least]}")
            dropped += len(least)
        return dropped

    def _missing(self, sent: SentPublication, call: dict[SubscribedQueue, bytes]) -> list[SubscribedQueue] | None:
        """Return the queues without a publication, if this call of it was stored; None if it was not."""
        for other in sent.calls:
            for queue in other:
                if sent.payload in queue.places and call.get(queue) != queue.subscriptions[sent.payload]:
                    return None
        return [queue for queue in call if not queue.deleting and not _has(queue, sent)]


def _has(queue: SubscribedQueue, sent: SentPublication) -> bool:
    """Return whether a publication has arrived, or another one with the same deduplication id."""
    return sent.payload in queue.places or sent.token(queue) in queue.arrivals


def token_of(payload: bytes, scope: str) -> bytes:
    """Return the deduplication id of a publication in a queue or topic."""
    return blake2b(payload[:8] + scope.encode(), digest_size=16).digest()


def _name(sent: SentPublication) -> str:
    return sent.payload[:8].decode()
