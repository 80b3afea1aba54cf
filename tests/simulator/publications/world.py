"""A simulated node with topics beside queues: the world of :mod:`tests.simulator.world.world`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any, TypeVar

from backend import api
from backend.engine.receipt_handles import partition_of
from tests.simulator.checks.model import Violation
from tests.simulator.publications.clients import TopicClients
from tests.simulator.publications.history import PublicationHistory, SimTopic, SubscribedQueue
from tests.simulator.streams.world import patched
from tests.simulator.world.runs import Report
from tests.simulator.world.world import SimWorld

T = TypeVar("T")

FIRST_TOPIC, FIRST_QUEUE = 3001, 4001
"""Ids of queues, which those of other queues do not reach."""
PARTITION_STEP = 7919
WINDOW_SECONDS = 1_000_000
"""Window of deduplication: longer than any run, however its clocks jump."""
RETENTION_SECONDS = 1_209_600
SHORT_RETENTION_SECONDS = 1
"""Retention of the publications of some topics: shorter than many restarts."""
CLAIM_SECONDS = 15.0
"""Longer than a consumer's claim."""


def small_fanout(random: Random, seed: int) -> dict[str, Any]:
    """Draw limits at which short runs have many batches, chunks of checkpoints, and deliveries of both kinds."""
    return {
        "backend.serving.publications.fanout.BATCH": random.choice((1, 3, 100)),
        "backend.serving.publications.fanout.BATCH_BYTES": random.choice((1, 2000, 1 << 19)),
        "backend.serving.publications.fanout.DROPPED_AT_ONCE": random.choice((1, 1000)),
        "backend.engine.transfers.CHUNK_DELIVERIES": random.choice((1, 4, 256)),
        "backend.serving.publications.immediate.IMMEDIATE_MAX": Random(f"immediate of {seed}").choice((0, 0, 1, 100)),
    }


class PublicationWorld(SimWorld):
    """One node, with topics."""

    def __init__(self, seed: int, trace: bool = False) -> None:
        super().__init__(seed, trace)
        random = Random(f"publications of {seed}")
        log = self.settings.log._replace(segment_bytes=max(32 << 10, self.settings.log.segment_bytes))
        self.settings = self.settings._replace(log=log)
        self._limits = small_fanout(random, seed)
        self._limits["backend.serving.orphan_collector.FORGET_SECONDS"] = random.choice((1.0, 3600.0))
        self._choices = random
        self._queues_share = random.choice((0.0, 0.1, 0.4))
        """Share of the calls that are made to queues without subscriptions."""
        self.publications = PublicationHistory(WINDOW_SECONDS * 1000)
        self._known: dict[int, api.PartitionSettings] = {}
        """Settings of the queues of topics and subscriptions that there are, by their ids."""
        self._topics = 0
        self._queues = 0
        topics: list[SimTopic] = []
        for number in range(random.choice((1, 2))):
            topic = self.add_topic(f"topic{number}", fifo=random.random() < 0.5, expires=random.random() < 0.2)
            topics.append(topic)
            topic.queues += [self.add_queue_to(topic) for _ in range(random.choice((1, 3, 5)))]
        if len(topics) == 2 and topics[0].fifo == topics[1].fifo and random.random() < 0.7:
            topics[1].queues += topics[0].queues[: random.choice((1, 2))]
        self.topic_clients = TopicClients(self, topics, self.publications, Random(random.random()))

    # --- queues -----------------------------------------------------------------------------------------

    def _add(self, queue_id: int, name: str, fifo: bool, delay_seconds: int, *, expires: bool = False) -> None:
        settings = api.PartitionSettings(
            partition=queue_id * PARTITION_STEP,
            queue_id=queue_id,
            version=1,
            arn=name,
            handle_key=queue_id.to_bytes(16, "big"),
            fifo=fifo,
            retention_seconds=SHORT_RETENTION_SECONDS if expires else RETENTION_SECONDS,
            delay_seconds=delay_seconds,
            token_window_seconds=WINDOW_SECONDS,
            retry_window_seconds=WINDOW_SECONDS,
        )
        self._known[queue_id] = self.store.queues[settings.partition] = settings

    def add_queue_to(self, topic: SimTopic, name: str = "") -> SubscribedQueue:
        self._queues += 1
        number = FIRST_QUEUE + self._queues
        queue = SubscribedQueue(number, name or f"subscribed{number}", topic.fifo)
        self._add(number, queue.name, topic.fifo, self._choices.choice((0, 0, 1)))
        return queue

    def add_topic(self, name: str, *, fifo: bool, expires: bool) -> SimTopic:
        topic = SimTopic(FIRST_TOPIC + self._topics, name, fifo, expires)
        self._topics += 1
        assert topic.queue_id < FIRST_QUEUE
        self._add(topic.queue_id, name, fifo, 0, expires=expires)
        return topic

    # --- the clients' access ----------------------------------------------------------------------------

    async def _call(self, queue_id: int, make: Callable[[api.Target], api.Command[T]]) -> T:
        """Make a call as a frontend does: open the partition if the node does not know it."""
        settings = self._known[queue_id]
        for _ in range(3):
            try:
                return await self.node.call(make(api.Target(settings.partition, queue_id, settings.version)))
            except (api.PartitionUnknown, api.SettingsStale):
                if settings.partition not in self.store.queues:
                    raise api.PartitionGone("the queue was deleted") from None
                await self.node.call(api.Configure(settings))
        raise api.Unavailable("the partition cannot be opened")

    async def target(self, queue: SubscribedQueue, group: str | None) -> api.Target | None:
        settings = self._known[queue.queue_id]
        if settings.partition not in self.store.queues:
            return None
        return api.Target(settings.partition, settings.queue_id, settings.version)

    async def publish(self, topic: SimTopic, new: api.Publication) -> api.SendResult:
        (answer,) = await self._call(topic.queue_id, lambda target: api.Publish(target, [new]))
        return answer

    async def receive(self, queue: SubscribedQueue, options: api.ReceiveOptions) -> list[api.ReceivedMessage]:
        return await self._call(queue.queue_id, lambda target: api.Receive(target, options))

    async def delete(self, queue: SubscribedQueue, handles: Sequence[str]) -> list[api.HandleOutcome]:
        return await self._call(queue.queue_id, lambda target: api.Delete(target, handles))

    def queue_id_of(self, handle: str) -> int:
        return partition_of(handle) // PARTITION_STEP

    async def delete_queue(self, queue_id: int, name: str) -> None:
        """Delete a queue in the metadata, and then in the backend, unless the process dies in between."""
        settings = self._known[queue_id]
        self.store.queues.pop(settings.partition, None)
        await self.node.call(api.Drop(api.Target(settings.partition, settings.queue_id)))

    def begin_call(self, work: Coroutine[Any, Any, Any]) -> None:
        self.clients.start(work)

    async def pause(self) -> None:
        await asyncio.sleep(self._choices.random())

    def step(self) -> None:
        if self._choices.random() < self._queues_share:
            super().step()
        else:
            self.topic_clients.step()

    # --- checks -----------------------------------------------------------------------------------------

    def verify(self) -> None:
        super().verify()
        pending = [one.id for one in self.partitions() if one.fold.publications]
        if pending:
            raise Violation(f"nothing is under way, and deliveries of partitions {pending} are pending")
        for one in self.partitions():
            settings = one.fold.settings
            expires = settings is not None and settings.retention_seconds == SHORT_RETENTION_SECONDS
            if one.fold.dropped_deliveries and not expires:
                raise Violation(f"partition {one.id} has dropped {one.fold.dropped_deliveries} deliveries")

    async def _consume_all(self) -> None:
        for queue in self.topic_clients.queues():
            while await self.topic_clients.consume(queue):
                pass

    def _drain(self) -> None:
        self.run_until_idle()
        self.loop.complete(self.topic_clients.finish_deletions(), 600)
        dropped = sum(one.fold.dropped_deliveries for one in self.partitions())
        subscribed = {settings.partition for number, settings in self._known.items() if number >= FIRST_QUEUE}
        for _ in range(200):
            self.loop.run_for(CLAIM_SECONDS)
            self.loop.complete(self._consume_all(), 600)
            self.check()
            if not any(one.fold.blocks for one in self.partitions() if one.id in subscribed):
                break
        else:
            raise Violation("subscribed queues cannot be emptied")
        missing = self.publications.finished()
        if missing > dropped:
            raise Violation(f"{missing} deliveries of old publications have not arrived, and {dropped} were dropped")
        self.publications.counts["deliveries expired"] += dropped
        self.counts.update(self.publications.counts)
        super()._drain()

    def run(self, steps: int) -> Report:
        with patched(self._limits):
            return super().run(steps)


def simulate_publications(seed: int, steps: int = 2000) -> Report:
    """Run one seed.  Raises :class:`Violation`, :class:`~tests.simulator.world.loop.Stuck`, or whatever broke."""
    return PublicationWorld(seed).run(steps)
