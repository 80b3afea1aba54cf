"""Clients of topics in the simulator: publishers, consumers, and who creates and deletes the subscribed queues."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from hashlib import blake2b
from random import Random
from typing import Any, Protocol

from backend import api
from backend.rpc.connection import NotSent
from frontend.sqs.protocol.errors import SqsError
from metadata_service.store import StoreError
from tests.simulator.publications.history import PublicationHistory, SentPublication, SubscribedQueue

UNKNOWN = (api.BackendError, StoreError, SqsError, TimeoutError, NotSent)
"""Ends of a call after which it may or may not have taken effect."""
QUEUES_MAX = 6
"""Queues that are subscribed to a topic at one time."""
REPEATED_MAX = 3


class SimTopic:
    """A topic: the queue that holds its publications, and the subscribed queues."""

    def __init__(self, queue_id: int, name: str, fifo: bool) -> None:
        self.queue_id = queue_id
        self.name = name
        self.fifo = fifo
        self.queues: list[SubscribedQueue] = []


class TopicPort(Protocol):
    """Access of the clients to the service, whatever it consists of."""

    async def target(self, queue: SubscribedQueue, group: str | None) -> api.Target | None:
        """Return the partition of a queue for a delivery; None: there is no such queue."""

    async def publish(self, topic: SimTopic, new: api.Publication) -> api.SendResult: ...

    async def receive(self, queue: SubscribedQueue, options: api.ReceiveOptions) -> list[api.ReceivedMessage]: ...

    async def delete(self, queue: SubscribedQueue, handles: Sequence[str]) -> list[api.HandleOutcome]: ...

    async def delete_queue(self, queue: SubscribedQueue) -> None: ...

    def add_queue_to(self, topic: SimTopic) -> SubscribedQueue:
        """Create a queue and subscribe it."""

    def begin_call(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a client's call."""

    async def pause(self) -> None:
        """Wait before a call is repeated."""

    def event(self, what: str, *details: object) -> None: ...


class TopicClients:
    """All clients of the topics of a run."""

    def __init__(
        self, port: TopicPort, topics: Sequence[SimTopic], history: PublicationHistory, random: Random
    ) -> None:
        self._port = port
        self._topics = topics
        self._history = history
        self._random = random
        self._sent = 0
        self._last: dict[int, SentPublication] = {}
        """By topic: a publication whose deduplication ids another may use again."""
        self.replaced = random.choice((0.0, 0.02))
        """Share of the steps in which a queue is deleted, or created."""
        self.twins = random.choice((0.1, 0.3))
        """Share of the publications of FIFO topics with the deduplication ids of another."""

    def queues(self) -> list[SubscribedQueue]:
        return [queue for topic in self._topics for queue in topic.queues]

    def step(self) -> None:
        """One call of one client."""
        random = self._random
        topic = random.choice(self._topics)
        if random.random() < self.replaced:
            self._replace(topic)
        elif random.random() < 0.4 or not topic.queues:
            self._port.begin_call(self._publish(topic))
        else:
            self._port.begin_call(self.consume(random.choice(topic.queues)))

    # --- publishers -------------------------------------------------------------------------------------

    async def _publish(self, topic: SimTopic) -> None:
        random, history = self._random, self._history
        self._sent += 1
        payload = b"p%07d" % self._sent + bytes([self._sent % 251]) * random.choice((0, 20, 300, 900))
        group = f"g{random.randrange(3)}" if topic.fifo else None
        queues = tuple(random.sample(topic.queues, random.randint(0, len(topic.queues))))
        tokens = {one.queue_id: _token(payload, one.name) for one in queues if one.fifo}
        sent = SentPublication(payload, group, queues, tokens, history.tick())
        first = self._last.get(topic.queue_id)
        if first is not None and first.answered_at < sent.asked_at and random.random() < self.twins:
            # The same deduplication ids, of a message that was published before: nobody gets it.
            sent.queues, sent.tokens, sent.group = first.queues, first.tokens, first.group
            sent.is_twin = True
            group = sent.group
        elif topic.fifo:
            self._last[topic.queue_id] = sent
        repeatable = topic.fifo or random.random() < 0.7
        history.publishing(sent)
        for _ in range(REPEATED_MAX if repeatable else 1):
            try:
                new = api.Publication(payload, None, group, _token(payload, topic.name) if topic.fifo else None)
                if repeatable:
                    new.retry = _token(payload, "retry")[:15] + b"\0" + _token(payload, "digest")
                for queue in sent.queues:
                    target = await self._port.target(queue, group)
                    assert target is not None or queue.deleting
                    if target is not None:
                        token = sent.tokens.get(queue.queue_id)
                        new.deliveries.append(api.Delivery(target, queue.subscription, queue.raw, token))
                answer = await self._port.publish(topic, new)
            except UNKNOWN as error:
                self._port.event("publish failed", _label(sent), type(error).__name__)
            else:
                self._port.event("published", _label(sent), answer.number, [one.target for one in new.deliveries])
                history.published(sent, answer)
                return
            await self._port.pause()

    # --- consumers --------------------------------------------------------------------------------------

    async def consume(self, queue: SubscribedQueue) -> int:
        """Receive and delete some messages; return their number."""
        history, random = self._history, self._random
        asked_at = history.tick()
        try:
            options = api.ReceiveOptions(random.choice((1, 3, 10)), 10)
            answer = await self._port.receive(queue, options)
            self._port.event("consumed", queue.name, [one.payload[:8] for one in answer])
            history.received(queue, answer, asked_at)
            done = answer if random.random() < 0.9 else answer[:1]
            if done:
                outcomes = await self._port.delete(queue, [one.handle for one in done])
                history.deleted(
                    queue,
                    [
                        one.payload
                        for one, outcome in zip(done, outcomes, strict=True)
                        if outcome is api.HandleOutcome.DONE
                    ],
                )
        except UNKNOWN as error:
            self._port.event("not consumed", queue.name, type(error).__name__)
            return 0
        return len(answer)

    # --- queues -----------------------------------------------------------------------------------------

    def _replace(self, topic: SimTopic) -> None:
        if len(topic.queues) < QUEUES_MAX and self._random.random() < 0.6:
            topic.queues.append(self._port.add_queue_to(topic))
        elif topic.queues:
            queue = self._random.choice(topic.queues)
            topic.queues.remove(queue)
            queue.deleting = True
            self._port.begin_call(self._delete(queue))

    async def _delete(self, queue: SubscribedQueue) -> None:
        try:
            await self._port.delete_queue(queue)
            self._port.event("subscribed queue deleted", queue.name)
        except UNKNOWN as error:
            self._port.event("subscribed queue not deleted", queue.name, type(error).__name__)


def _token(payload: bytes, scope: str) -> bytes:
    return blake2b(payload[:8] + scope.encode(), digest_size=16).digest()


def _label(sent: SentPublication) -> str:
    return sent.payload[:8].decode()
