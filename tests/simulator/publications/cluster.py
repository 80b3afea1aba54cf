"""A whole cluster with topics, beside queues: the world of :mod:`tests.simulator.world.cluster`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context
from random import Random
from typing import Any

import msgspec

from backend import api
from backend.engine.receipt_handles import partition_of
from backend.engine.token_slots import slot_of_token
from frontend.queues.view import PartitionView, QueueView
from metadata_service.models import NewQueue
from metadata_service.models import Queue as StoredQueue
from metadata_service.store import QueueNotFound
from tests.simulator.checks.history import SLEWED
from tests.simulator.checks.model import Violation
from tests.simulator.publications.clients import UNKNOWN, TopicClients
from tests.simulator.publications.history import PublicationHistory, SimTopic, SubscribedQueue
from tests.simulator.publications.world import CLAIM_SECONDS, FIRST_QUEUE, FIRST_TOPIC, small_fanout
from tests.simulator.streams.world import patched
from tests.simulator.world.catalog import ACCOUNT, arn_of
from tests.simulator.world.cluster import RESTS_SECONDS, SECONDS, ClusterWorld
from tests.simulator.world.fronts import Front
from tests.simulator.world.hosts import HOST
from tests.simulator.world.runs import Report

WINDOW_SECONDS = 600
"""Window of deduplication: longer than a run."""


class PublicationClusterWorld(ClusterWorld):
    """A cluster, with topics."""

    def __init__(
        self,
        seed: int,
        trace: bool = False,
        *,
        local: bool | None = None,
        scenario: str | None = None,
        focus: Callable[[ClusterWorld], None] | None = None,
    ) -> None:
        super().__init__(seed, trace=trace, local=local, scenario=scenario, focus=focus)
        random = Random(f"publications of cluster {seed}")
        self.catalog.window_seconds = WINDOW_SECONDS
        self.callers.pace *= random.choice((1.0, 4.0))
        self._limits = small_fanout(random, seed)
        self._random = random
        self._pace = random.choice((0.02, 0.05))
        """Mean seconds between two calls."""
        self._spread = random.choice((0.3, 1.0))
        """Share of the queues of topics and subscriptions whose maps change."""
        self._change_seconds = random.choice((0.5, 2.0))
        """Mean seconds between two changes of their maps."""
        self.publications = PublicationHistory(int(SLEWED * WINDOW_SECONDS * 1000))
        self._topics = 0
        self._made = 0
        self._queue_of: dict[int, int] = {}
        """Ids of the queues of all partitions that there were."""
        topics: list[SimTopic] = []
        for number in range(random.choice((1, 2))):
            topic = self.add_topic(f"topic{number}", fifo=random.random() < 0.5, expires=False)
            topics.append(topic)
            topic.queues += [self.add_queue_to(topic) for _ in range(random.choice((1, 3, 5)))]
        if len(topics) == 2 and topics[0].fifo == topics[1].fifo and random.random() < 0.7:
            topics[1].queues += topics[0].queues[: random.choice((1, 2))]
        self.topic_clients = TopicClients(self, topics, self.publications, Random(random.random()))
        self._topic_calls: set[asyncio.Task[None]] = set()

    # --- queues -----------------------------------------------------------------------------------------

    def _add(self, queue_id: int, name: str, fifo: bool) -> None:
        attributes = {"MessageRetentionPeriod": "1209600"}
        if fifo:
            attributes.update(FifoQueue="true", DeduplicationScope="messageGroup")
        partitions = self.catalog.new_partitions(self._random.choice((1, 1, 2)))
        stored = NewQueue(ACCOUNT, name, attributes, {}, 0, 0).made(queue_id, partitions)
        self.catalog.add(msgspec.structs.replace(stored, handle_key=queue_id.to_bytes(16, "big")))
        if self._random.random() < self._spread:
            self.mapped.append(queue_id)

    def add_queue_to(self, topic: SimTopic, name: str = "") -> SubscribedQueue:
        self._made += 1
        queue = SubscribedQueue(FIRST_QUEUE + self._made, name or f"subscribed{self._made}", topic.fifo)
        self._add(queue.queue_id, queue.name, queue.fifo)
        return queue

    def add_topic(self, name: str, *, fifo: bool, expires: bool) -> SimTopic:
        assert not expires
        topic = SimTopic(FIRST_TOPIC + self._topics, name, fifo)
        self._topics += 1
        assert topic.queue_id < FIRST_QUEUE
        self._add(topic.queue_id, name, fifo)
        return topic

    def _changed(self, stored: StoredQueue) -> None:
        if stored.queue_id < FIRST_TOPIC:
            super()._changed(stored)
            return
        self._queue_of.update((one.id, stored.queue_id) for one in stored.partitions)
        for front in self.fronts:
            if self.random.random() < 0.5:
                front.hear_of(stored)

    # --- the clients' access ----------------------------------------------------------------------------

    async def target(self, queue: SubscribedQueue, group: str | None) -> api.Target | None:
        front = _front()
        try:
            view = await front.view_of(arn_of(queue.name))
        except QueueNotFound:
            return None
        if view.queue.queue_id != queue.queue_id:
            if queue.queue_id not in self.catalog.queues:
                return None  # another one was created with its name
            front.hear_of(self.catalog.queues[queue.queue_id])
            raise QueueNotFound(queue.name)  # the frontend still has the one before it
        if queue.fifo:
            assert group is not None
            return front.queues._partitioned.of_group(view, group).target
        return self._random.choice(view.open_parts).target

    async def publish(self, topic: SimTopic, new: api.Publication) -> api.SendResult:
        front = _front()
        view = await front.view_of(arn_of(topic.name))
        if view.queue.queue_id != topic.queue_id:
            raise QueueNotFound(topic.name)

        def pick(view: QueueView) -> PartitionView:
            if topic.fifo:
                assert new.group is not None
                return front.queues._partitioned.of_group(view, new.group)
            slots = [part.slot for part in view.open_parts]
            slot = slots[0] if new.retry is None else slot_of_token(new.retry, slots)
            return next(part for part in view.open_parts if part.slot == slot)

        (answer,) = await front.queues._partitioned._at(view, pick, api.Publish(view.target, [new]))
        return answer

    async def receive(self, queue: SubscribedQueue, options: api.ReceiveOptions) -> list[api.ReceivedMessage]:
        return await _front().receive(arn_of(queue.name), options)

    async def delete(self, queue: SubscribedQueue, handles: Sequence[str]) -> list[api.HandleOutcome]:
        return await _front().delete(arn_of(queue.name), handles)

    def queue_id_of(self, handle: str) -> int:
        return self._queue_of[partition_of(handle)]

    async def delete_queue(self, queue_id: int, name: str) -> None:
        while queue_id in self.catalog.queues:
            try:
                await _front().delete_queue(arn_of(name))
            except UNKNOWN:
                await self.pause()

    def begin_call(self, work: Coroutine[Any, Any, Any]) -> None:
        """Make a call at one of the frontends."""
        front = self._random.choice(self.fronts)
        task = front.run(self.loop, self._watched(work))
        self._topic_calls.add(task)
        task.add_done_callback(self._topic_calls.discard, context=Context())

    async def _watched(self, work: Coroutine[Any, Any, Any]) -> None:
        try:
            await work
        except (Violation, AssertionError) as error:
            self.failed(error)

    async def pause(self) -> None:
        await asyncio.sleep(3 * self._random.random())

    async def _clients(self) -> None:
        while not self.over:
            await asyncio.sleep(self._random.expovariate(1 / self._pace))
            self.topic_clients.step()

    async def _change_maps(self) -> None:
        """Split, drain and move the queues of topics and subscriptions, more often than others."""
        while not self.over:
            await asyncio.sleep(self._random.expovariate(1 / self._change_seconds))
            ours = [queue_id for queue_id in self.mapped if queue_id >= FIRST_TOPIC and queue_id in self.catalog.queues]
            if ours:
                self.maps.begin(self._random.choice(ours), self._random)

    # --- the run ----------------------------------------------------------------------------------------

    def _run(self, seconds: float) -> None:
        for work in (self._clients(), self._change_maps()):
            self.tasks.append(self.loop.create_task(work))
        if not self.mapped:  # there may be queues later whose maps change
            self.tasks.append(self.loop.create_task(self.maps.run()))
        super()._run(seconds)

    def _empty(self) -> None:
        if not self.until(lambda: not self._topic_calls, RESTS_SECONDS):
            raise Violation("calls to topics do not end")
        self.begin_call(self.topic_clients.finish_deletions())
        if not self.until(lambda: not self._topic_calls, RESTS_SECONDS):
            raise Violation("queues cannot be deleted")
        if not self.until(self._delivered, RESTS_SECONDS):
            pending = [(one.id, one.fold.pending_deliveries) for one in self._partitions() if one.fold.publications]
            raise Violation(f"deliveries are not made: {pending}")
        for _ in range(100):
            self.loop.run_for(CLAIM_SECONDS)
            for queue in self.topic_clients.queues():
                self.begin_call(self._consume(queue))
            if not self.until(lambda: not self._topic_calls, RESTS_SECONDS):
                raise Violation("subscribed queues cannot be read")
            if not any(one.fold.blocks for one in self._partitions() if self._is_subscribed(one.fold.settings)):
                break
        else:
            raise Violation("subscribed queues cannot be emptied")
        self.publications.finished()
        self.counts.update(self.publications.counts)
        super()._empty()

    async def _consume(self, queue: SubscribedQueue) -> None:
        while await self.topic_clients.consume(queue):
            pass

    def _delivered(self) -> bool:
        return self.served_by_one() and not any(one.fold.publications for one in self._partitions())

    def _is_subscribed(self, settings: api.PartitionSettings | None) -> bool:
        return settings is not None and settings.queue_id > FIRST_QUEUE

    def run(self, seconds: float = SECONDS) -> Report:
        with patched(self._limits):
            return super().run(seconds)


def _front() -> Front:
    front = HOST.get()
    assert isinstance(front, Front)
    return front
