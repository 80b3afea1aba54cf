"""Clients of topics in the simulator: publishers, consumers, and changes of topics, subscriptions and queues."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from random import Random
from typing import Any, Protocol

from backend import api
from backend.rpc.connection import NotSent
from frontend.sqs.protocol.errors import SqsError
from metadata_service.store import StoreError
from tests.simulator.publications.history import (
    PublicationHistory,
    SentPublication,
    SimTopic,
    SubscribedQueue,
    token_of,
)

UNKNOWN = (api.BackendError, StoreError, SqsError, TimeoutError, NotSent)
"""Ends of a call after which it may or may not have taken effect."""
QUEUES_MAX = 6
"""Queues that are subscribed to a topic at one time."""
REPEATED_MAX = 3


class TopicPort(Protocol):
    """Access of the clients to the service, whatever it consists of."""

    async def target(self, queue: SubscribedQueue, group: str | None) -> api.Target | None:
        """Return the partition of a queue for a delivery; None: there is no such queue."""

    async def publish(self, topic: SimTopic, new: api.Publication) -> api.SendResult: ...

    async def receive(self, queue: SubscribedQueue, options: api.ReceiveOptions) -> list[api.ReceivedMessage]: ...

    async def delete(self, queue: SubscribedQueue, handles: Sequence[str]) -> list[api.HandleOutcome]: ...

    def queue_id_of(self, handle: str) -> int:
        """Return the id of the queue whose receive returned this handle."""

    async def delete_queue(self, queue_id: int, name: str) -> None:
        """Delete the queue of a subscription or topic; it may have been begun before."""

    def add_queue_to(self, topic: SimTopic, name: str = "") -> SubscribedQueue:
        """Create a queue to be subscribed; ``name``: that of a deleted one."""

    def add_topic(self, name: str, *, fifo: bool, expires: bool) -> SimTopic:
        """Create a topic; the name may be that of a deleted one."""

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
        self._topics = list(topics)
        self._history = history
        self._random = random
        self._sent = 0
        self._last: SentPublication | None = None
        """A publication to a FIFO topic, whose deduplication ids others may use again."""
        self._by_id = {queue.queue_id: queue for queue in self.queues()}
        """All queues that there are or were."""
        self._leaving: dict[int, str] = {}
        """Names of the queues that are being deleted, by id."""
        self.replaced = random.choice((0.0, 0.02))
        """Share of the steps in which a queue is deleted, or created, or subscribed again."""
        self.topics_replaced = random.choice((0.0, 0.0, 0.01))
        """Share of the steps in which a topic is deleted, and created again with its name."""
        self.twins = random.choice((0.1, 0.3))
        """Share of the publications of FIFO topics with the deduplication ids of another."""
        self.changed = random.choice((0.0, 0.3))
        """Share of the repeated calls before which other queues are subscribed."""

    def queues(self) -> list[SubscribedQueue]:
        return [queue for topic in self._topics for queue in topic.queues]

    def step(self) -> None:
        """One call of one client."""
        random = self._random
        topic = random.choice(self._topics)
        if random.random() < self.replaced:
            self._replace(topic)
        elif random.random() < self.topics_replaced:
            self._replace_topic(topic)
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
        sent = SentPublication(payload, topic, group, history.tick(), payload)
        first = self._last
        if topic.fifo and first is not None and first.answered_at < sent.asked_at and random.random() < self.twins:
            # The same deduplication ids as those of a message that was published before, perhaps to another topic.
            sent.token_of, sent.group = first.token_of, first.group
        elif topic.fifo:
            self._last = sent
        call = self._subscriptions(topic)
        repeatable = topic.fifo or random.random() < 0.7
        for _ in range(REPEATED_MAX if repeatable else 1):
            try:
                history.publishing(sent, call)
                answer = await self._port.publish(topic, await self._publication(sent, call, repeatable))
            except UNKNOWN as error:
                self._port.event("publish failed", _label(sent), type(error).__name__)
            else:
                self._port.event("published", _label(sent), answer.number, [queue.name for queue in call])
                history.published(sent, answer)
                return
            await self._port.pause()
            if random.random() < self.changed:
                call = self._subscriptions(topic)

    def _subscriptions(self, topic: SimTopic) -> dict[SubscribedQueue, bytes]:
        """Choose the subscriptions that match a publication."""
        queues = self._random.sample(topic.queues, self._random.randint(0, len(topic.queues)))
        return {queue: queue.subscription(topic) for queue in queues}

    async def _publication(
        self, sent: SentPublication, call: dict[SubscribedQueue, bytes], repeatable: bool
    ) -> api.Publication:
        """Make the command's publication; the partitions of its queues are looked up."""
        payload, topic = sent.payload, sent.topic
        new = api.Publication(payload, None, sent.group, token_of(payload, topic.name) if topic.fifo else None)
        if repeatable:
            new.retry = token_of(payload, "retry")[:15] + b"\0" + token_of(payload, "digest")
        for queue, subscription in call.items():
            target = await self._port.target(queue, sent.group)
            assert target is not None or queue.deleting
            if target is not None:
                new.deliveries.append(api.Delivery(target, subscription, queue.raw, sent.token(queue)))
        return new

    # --- consumers --------------------------------------------------------------------------------------

    async def consume(self, queue: SubscribedQueue) -> int:
        """Receive and delete some messages; return their number."""
        history, random = self._history, self._random
        asked_at = history.tick()
        try:
            options = api.ReceiveOptions(random.choice((1, 3, 10)), 10)
            answer = await self._port.receive(queue, options)
            self._port.event("consumed", queue.name, [one.payload[:8] for one in answer])
            for one in answer:
                history.received(self._queue_of(one), [one], asked_at)
            done = answer if random.random() < 0.9 else answer[:1]
            if done:
                outcomes = await self._port.delete(queue, [one.handle for one in done])
                for one, outcome in zip(done, outcomes, strict=True):
                    if outcome is api.HandleOutcome.DONE:
                        history.deleted(self._queue_of(one), [one.payload])
        except UNKNOWN as error:
            self._port.event("not consumed", queue.name, type(error).__name__)
            return 0
        return len(answer)

    def _queue_of(self, message: api.ReceivedMessage) -> SubscribedQueue:
        """Return the queue of a message: a call by a queue's name may reach the one that was created after it."""
        return self._by_id[self._port.queue_id_of(message.handle)]

    # --- topics, subscriptions and queues ---------------------------------------------------------------

    def _replace(self, topic: SimTopic) -> None:
        random = self._random
        if topic.queues and random.random() < 0.3:
            random.choice(topic.queues).subscribed += 1
        elif len(topic.queues) < QUEUES_MAX and random.random() < 0.6:
            self._add(topic)
        elif topic.queues:
            queue = random.choice(topic.queues)
            topic.queues.remove(queue)
            queue.deleting = True
            again = topic if random.random() < 0.5 else None
            self._leaving[queue.queue_id] = queue.name
            self._port.begin_call(self._delete(queue.queue_id, again))

    def _add(self, topic: SimTopic, name: str = "") -> None:
        queue = self._port.add_queue_to(topic, name)
        self._by_id[queue.queue_id] = queue
        topic.queues.append(queue)

    def _replace_topic(self, topic: SimTopic) -> None:
        """Delete a topic, and create another one with its name and its queues."""
        topic.deleting = True
        self._topics.remove(topic)
        self._leaving[topic.queue_id] = topic.name
        self._port.begin_call(self._delete(topic.queue_id))
        made = self._port.add_topic(topic.name, fifo=topic.fifo, expires=topic.expires)
        made.queues = topic.queues
        self._topics.append(made)

    async def _delete(self, queue_id: int, again: SimTopic | None = None) -> None:
        """Delete a queue; ``again``: create one with its name, and subscribe it to this topic."""
        name = self._leaving[queue_id]
        try:
            await self._port.delete_queue(queue_id, name)
        except UNKNOWN as error:
            self._port.event("subscribed queue not deleted", name, type(error).__name__)
            return
        self._port.event("subscribed queue deleted", name)
        if self._leaving.pop(queue_id, None) is not None and again is not None:
            self._add(again, name)

    async def finish_deletions(self) -> None:
        """Delete the queues whose deletion a process did not survive."""
        for queue_id in list(self._leaving):
            if queue_id in self._leaving:  # an earlier call may have done it meanwhile
                await self._delete(queue_id)


def _label(sent: SentPublication) -> str:
    return sent.payload[:8].decode()
