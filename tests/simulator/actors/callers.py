"""The clients of a simulated cluster, at its frontends: what they ask for, and how they take the answers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from hashlib import blake2b
from random import Random
from typing import TYPE_CHECKING, Any

from backend.api import AckLevel, AttemptExpired, BackendError, HandleOutcome, NewMessage, ReceiveOptions, SendResult
from backend.engine.ids import unpack_id
from backend.rpc.connection import NotSent
from frontend.sqs.protocol.errors import SqsError
from metadata_service.store import StoreError
from tests.simulator.checks.history import OFF_SECONDS, SLEWED, DeliveryClaim, Place, QueueHistory, SentMessage
from tests.simulator.checks.model import Violation
from tests.simulator.draws import BODY_BYTES_MAX
from tests.simulator.world.fronts import Front

if TYPE_CHECKING:
    from tests.simulator.world.cluster import ClusterWorld

REPEATS_SECONDS = 25.0
"""So long a client repeats a call with a token."""
AGAIN_SECONDS = 5.0
"""Safety margin, beyond the window of a deduplication id, before the id is used for another message."""
REFUSED = (BackendError, StoreError, SqsError)
"""Errors of a frontend's answers."""


class Callers:
    """All clients of a run."""

    def __init__(self, world: ClusterWorld, random: Random) -> None:
        self.pace = world.random.choice((0.08, 0.2))
        """Mean seconds between two calls of each of them."""
        self.weights: dict[str, float] = {"send": 40, "receive": 34, "delete": 30, "change": 6, "count": 4, "move": 2}
        """Relative frequency of each call."""
        self.weights["purge"] = random.choice((0.0, 0.0, 0.5))
        self.visibility_seconds: tuple[int, ...] = (5, 15, 30)
        """Visibility timeouts of receives."""
        self.tokens = 0.5
        """Share of sends that a client intends to repeat, and of those the share with a retry token in FIFO queues."""
        self.old_handles = 0.15
        """Share of the deletes that are asked for with handles of receives that others may have followed."""
        self.repeat_seconds = 3.0
        """After so long at most a call that failed is made again."""
        self.big_bodies = 0
        """Number of messages still to be sent with bodies near 1 MiB."""
        self.ids_used_again = 0.0
        """Share of the messages of FIFO queues with the deduplication id of an earlier one, whose window is over."""
        self.choose: Callable[[str], Front] | None = None
        """At which frontend a call is made; None: at any."""
        self.calls: set[asyncio.Task[None]] = set()
        """Under way."""
        self._world = world
        self._random = random
        self._history = world.history
        self._held: dict[int, list[tuple[str, SentMessage, DeliveryClaim]]] = {}
        """By queue: receipt handles, with what they were got for."""
        self._sent = 0
        self._ids: dict[int, deque[tuple[float, str | None, bytes]]] = {}
        """By FIFO queue: deduplication ids with their groups, and when their windows are over for certain."""

    async def run(self, random: Random) -> None:
        """One client."""
        world = self._world
        while not world.over:
            await asyncio.sleep(random.expovariate(1 / self.pace))
            queue = random.choice(world.queues)
            (action,) = random.choices(list(self.weights), list(self.weights.values()))
            front = self._front() if self.choose is None else self.choose(action)
            self.begin(front, getattr(self, f"_{action}")(front, queue))

    def _front(self) -> Front:
        return self._random.choice(self._world.fronts)

    def begin(self, front: Front, work: Coroutine[Any, Any, Any]) -> asyncio.Task[None]:
        """Make a call at this frontend."""
        task = front.run(self._world.loop, self._watched(work))
        self.calls.add(task)
        task.add_done_callback(self.calls.discard, context=Context())
        return task

    async def _watched(self, work: Coroutine[Any, Any, Any]) -> None:
        world = self._world
        try:
            if not world.over and self._random.random() < 0.05:
                async with asyncio.timeout(self._random.random()):
                    await work
            else:
                await work
        except (*REFUSED, TimeoutError):
            world.counts["refused"] += 1
        except Violation as error:
            world.failed(error)

    # --- sends ---

    async def _send(self, front: Front, queue: QueueHistory) -> None:
        random = self._random
        new = []
        for _ in range(random.choice((1, 1, 1, 2, 5))):
            self._sent += 1
            name = b"m%06d." % self._sent
            one = NewMessage(name + bytes([self._sent % 251]) * random.choice((0, 20, 300, 900)))
            if queue.fifo:
                one.group = f"g{random.randrange(4)}"
                one.token = blake2b(name, digest_size=16).digest()
                if self.ids_used_again and random.random() < self.ids_used_again:
                    self._use_again(queue, one)
            new.append(one)
        if self.big_bodies and queue.dead_letter is not None and random.random() < 0.3:
            # One alone, as the longest call has it, and in one group, so that they move to its dead letters together.
            self.big_bodies -= 1
            del new[1:]
            fill = BODY_BYTES_MAX - len(new[0].payload) - random.choice((0, random.randrange(300_000)))
            new[0].payload += new[0].payload[-1:] * fill
            new[0].group = "g0" if queue.fifo else None
            self._world.event("big body", queue.arn)
        if queue.ack_level is AckLevel.NONE:
            await self._send_unawaited(front, queue, new)
            return
        tokens = (queue.fifo or random.random() < self.tokens) and not queue.weak
        if tokens and (random.random() < self.tokens or len(queue.partitions) > 1):
            call = blake2b(new[0].payload[:8], digest_size=15).digest()
            for place, one in enumerate(new):
                one.retry = call + bytes((place,)) + self._sent.to_bytes(16, "big")
        tokens = queue.fifo or new[0].retry is not None
        msgs = self._history.sending(queue, new)
        if tokens and random.random() < 0.2:
            other = self._front()
            self.begin(other, self._send_again(other, queue, new, msgs))  # a client that did not wait
        await self._send_again(front, queue, new, msgs, tokens=tokens)

    async def _send_again(
        self, front: Front, queue: QueueHistory, new: list[NewMessage], msgs: list[SentMessage], *, tokens: bool = True
    ) -> None:
        world, started_at = self._world, self._world.loop.now
        while True:
            self._attempt(msgs)
            try:
                answers = await front.send(queue.arn, new)
            except NotSent:
                if not tokens:
                    for msg in msgs:
                        msg.refused = True
                    return
            except (*REFUSED, asyncio.CancelledError) as error:
                world.event("send failed", queue.arn, type(error).__name__)
                if not tokens or isinstance(error, asyncio.CancelledError):
                    raise
            else:
                world.event("sent", queue.arn, [answer.number for answer in answers])
                self._history.sent(msgs, answers, world.everywhere)
                if queue.fifo and msgs[0].attempts == 1:
                    over = world.loop.now + 1.1 * world.catalog.window_seconds + AGAIN_SECONDS
                    ids = self._ids.setdefault(queue.queue_id, deque(maxlen=1000))
                    ids += [(over, one.group, one.token) for one in new if one.token is not None]
                return
            await asyncio.sleep(self._random.random() * self.repeat_seconds)
            if world.loop.now > started_at + REPEATS_SECONDS or world.over:
                return
            front = self._front()

    def _attempt(self, msgs: list[SentMessage]) -> None:
        """A send is about to be made, for the first time or again."""
        now = self._world.loop.now
        window = SLEWED * self._world.catalog.window_seconds - OFF_SECONDS
        arrives = 2 * self._world.limits.call_seconds  # so long an owner is looked for, and then asked
        if msgs[0].attempts and now + arrives > msgs[0].asked + window:
            self._history.repeated_late(msgs)
        for msg in msgs:
            msg.asked = msg.asked if msg.attempts else now
            msg.attempts += 1

    def _use_again(self, queue: QueueHistory, one: NewMessage) -> None:
        """Give a message the deduplication id of another, if there is one that has to be forgotten by now."""
        ids = self._ids.get(queue.queue_id)
        if ids and ids[0][0] < self._world.loop.now:
            _, one.group, one.token = ids.popleft()
            self._world.event("id used again", queue.arn)

    async def _send_unawaited(self, front: Front, queue: QueueHistory, new: list[NewMessage]) -> None:
        """The client is answered before the backend is asked."""
        ids = [self._random.randbytes(16) for _ in new]
        for one, message_id in zip(new, ids, strict=True):
            one.message_id = message_id
        answers = [SendResult(unpack_id(message_id), 0) for message_id in ids]
        self._history.sent(self._history.sending(queue, new), answers, self._world.everywhere)
        await front.send(queue.arn, new)

    # --- receives ---

    async def _receive(self, front: Front, queue: QueueHistory) -> None:
        random = self._random
        messages_max, seconds = random.choice((1, 3, 10)), random.choice(self.visibility_seconds)
        await self._receive_some(front, queue, messages_max, seconds, random.choice((0, 0, 2)))

    async def _receive_some(
        self, front: Front, queue: QueueHistory, messages_max: int, seconds: int, wait: float
    ) -> int:
        world, history = self._world, self._history
        asked_at, asked = history.tick(), world.loop.now
        try:
            answer = await front.receive(queue.arn, ReceiveOptions(messages_max, seconds, wait))
        except AttemptExpired:
            return 0
        world.event("received", queue.arn, [(one.number, one.receives) for one in answer])
        claims = history.received(queue, answer, seconds, asked_at, asked, world.loop.now)
        pool = self._held.setdefault(queue.queue_id, [])
        pool += claims
        del pool[:-100]
        return len(answer)

    # --- receipt handles ---

    async def _delete(self, front: Front, queue: QueueHistory) -> None:
        pool = self._held.get(queue.queue_id)
        if pool:
            count = self._random.choice((1, 3, 10))
            if self._random.random() < self.old_handles:
                self._random.shuffle(pool)
            chosen, pool[-count:] = pool[-count:], []
            await self._delete_these(front, queue, chosen)

    async def _delete_these(
        self, front: Front, queue: QueueHistory, chosen: list[tuple[str, SentMessage, DeliveryClaim]]
    ) -> None:
        world = self._world
        asked = world.loop.now
        self._history.deleting([msg for _, msg, _ in chosen])
        outcomes = await front.delete(queue.arn, [handle for handle, _, _ in chosen])
        world.event("deleted", queue.arn, outcomes)
        for (_, msg, claim), outcome in zip(chosen, outcomes, strict=True):
            if outcome is HandleOutcome.DONE and queue.fifo and msg.endings == 1:
                self._history.handle_counted(msg, claim, asked, world.loop.now)
            retired = claim.place[0] not in world.partitions_of(queue)
            self._history.deleted(msg, claim, outcome, world.loop.now, retired=retired)

    async def _change(self, front: Front, queue: QueueHistory) -> None:
        pool = self._held.get(queue.queue_id)
        if pool:
            handle, msg, claim = self._random.choice(pool)
            seconds, asked = self._random.choice((0, 5, 20)), self._world.loop.now
            self._history.changing(msg, claim)
            (outcome,) = await front.change_visibility(queue.arn, [(handle, seconds)])
            if outcome is HandleOutcome.DONE and queue.fifo:
                self._history.handle_counted(msg, claim, asked, self._world.loop.now)
            self._history.changed(msg, claim, seconds, outcome, asked)

    # --- queues as a whole ---

    async def _count(self, front: Front, queue: QueueHistory) -> None:
        asked_at = self._history.tick()
        self._history.counted(queue, await front.counters(queue.arn), asked_at)

    async def _purge(self, front: Front, queue: QueueHistory) -> None:
        world, started_at = self._world, self._world.loop.now
        asked_at = self._history.purging(queue)
        while True:
            try:
                await front.purge(queue.arn)
            except REFUSED:
                world.event("purge failed", queue.arn)
            else:
                world.event("purged", queue.arn)
                self._history.purged(queue, asked_at)
                return
            await asyncio.sleep(self._random.random() * self.repeat_seconds)
            if world.loop.now > started_at + REPEATS_SECONDS or world.over:
                return
            front = self._front()

    async def delete_queue(self, queue: QueueHistory) -> None:
        """As often as it has to be asked for, at any frontend, until there is none."""
        world = self._world
        asked_at = self._history.queue_deleting(queue)
        while queue.queue_id in world.catalog.queues and not world.over:
            front = self._front()
            asked = self.begin(front, self._delete_queue(front, queue, asked_at))
            while not asked.done():
                await asyncio.sleep(0.05)
            await asyncio.sleep(self._random.random() * self.repeat_seconds)

    async def _delete_queue(self, front: Front, queue: QueueHistory, asked_at: int) -> None:
        try:
            await front.delete_queue(queue.arn)
        except REFUSED:
            self._world.event("queue not deleted", queue.arn)
            raise
        self._world.event("queue deleted", queue.arn)
        self._history.queue_deleted(queue, asked_at)

    async def _move(self, front: Front, queue: QueueHistory) -> None:
        if queue.feeds:
            queue.moved = True
            if self._random.random() < 0.8:
                await front.start_move(queue.arn)
            else:
                await front.cancel_a_move(queue.arn)

    # --- the end ---

    def take_all(self, queue: QueueHistory, found: dict[bytes, list[tuple[QueueHistory, Place]]]) -> int:
        """Receive and delete what there is now; returns how many messages that were."""
        held = self._held

        async def work(front: Front) -> None:
            while await self._receive_some(front, queue, 10, 30, 0):
                pool, held[queue.queue_id] = held[queue.queue_id], []
                for _, msg, claim in pool:
                    places = found.setdefault(msg.payload, [])
                    if (queue, claim.place) not in places:
                        places.append((queue, claim.place))
                    self._history.taken(queue, msg, claim.place)
                await front.delete(queue.arn, [handle for handle, _, _ in pool])

        held[queue.queue_id] = []
        before = sum(map(len, found.values()))
        front = self._front()
        task = self.begin(front, work(front))
        self._world.until(task.done, 120)
        return sum(map(len, found.values())) - before
