"""Clients of the simulated service, which call it as frontends do and report each answer to the model."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from hashlib import blake2b
from inspect import CORO_CREATED, getcoroutinestate
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from backend import api
from backend.engine.tokens import TOKEN_BYTES
from tests.simulator.checks.model import Model, ModelMessage, QueueModel, Violation
from tests.simulator.draws import BODY_BYTES_COMMON, BODY_BYTES_MAX

if TYPE_CHECKING:
    from tests.simulator.world.world import SimWorld

T = TypeVar("T")

TOKENS = 12
"""So few different deduplication ids that many sends are twins."""
POOL_MAX = 200


def name_call(new: list[api.NewMessage], call: int) -> None:
    """Give all messages of a call their retry tokens, and its digest."""
    for place, one in enumerate(new):
        one.retry = call.to_bytes(15, "big") + bytes((place,)) + call.to_bytes(16, "big")


class QueueGone(Exception):
    """The frontend answers QueueDoesNotExist."""


class Clients:
    """Clients.  Their calls run concurrently in the loop of the present process."""

    def __init__(self, world: SimWorld, random: Random) -> None:
        self.world = world
        self.random = random
        self.model: Model = world.model
        self.calls: set[asyncio.Task[None]] = set()
        self.receiving: dict[asyncio.Task[None], QueueModel] = {}
        """Receives under way."""
        self.pools: dict[int, list[tuple[str, ModelMessage]]] = {}
        """Receipt handles that clients hold, by partition."""
        self.again: list[tuple[QueueModel, api.NewMessage, int]] = []
        """Sends with a token whose answer was lost, to be repeated, and when they were made."""
        self.repeatable: list[tuple[QueueModel, list[api.NewMessage], int]] = []
        """Calls with a retry token, and when they were made: those whose answer was lost, and others."""
        self.attempts: dict[int, list[tuple[str, int, int, int]]] = {}
        self.tasks: dict[int, list[str]] = {}
        self.error: BaseException | None = None
        self._works: set[Coroutine[Any, Any, None]] = set()
        self._sent = 0
        self._attempt = 0
        self._calls = 0
        self._ops: list[tuple[int, Callable[[QueueModel], None]]] = [
            (34, self.send),
            (6, self.send_again),
            (6, self.repeat_send),
            (1, self.reuse_token),
            (34, self.receive),
            (6, self.repeat_receive),
            (30, self.delete),
            (10, self.change_visibility),
            (4, self.counters),
            (2, self.cancel_receive),
            (1, self.reconfigure),
            (2, self.move),
            (1, self.tasks_of),
        ]
        self._weights = [weight for weight, _ in self._ops]
        self._actions = [action for _, action in self._ops]

    def step(self) -> None:
        """One call of one client."""
        queue = self.random.choice(self.world.queues)
        action = self.random.choices(self._actions, self._weights)[0]
        action(queue)

    # --- how a call is made ---

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self.world.loop.create_task(self._watched(work))
        self.calls.add(task)
        task.add_done_callback(self._done)
        self._works.add(work)
        task.add_done_callback(lambda _: self._ended(work))
        return task

    def _ended(self, work: Coroutine[Any, Any, None]) -> None:
        work.close()  # for one that was cancelled before it began
        self._works.discard(work)

    def close(self) -> None:
        """Ends the run: calls of dead processes that had not started never will."""
        for work in self._works:
            if getcoroutinestate(work) == CORO_CREATED:
                work.close()
        self._works.clear()

    async def _watched(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (QueueGone, api.PartitionDamaged):
            pass
        except (Violation, AssertionError, api.BackendError) as error:
            if self.error is None:
                self.error = error
            self.world.loop.halted = True

    def _done(self, task: asyncio.Task[None]) -> None:
        self.calls.discard(task)
        self._receive_ended(task, False)
        if not task.cancelled() and (error := task.exception()) is not None and self.error is None:
            self.error = error
            self.world.loop.halted = True

    def died(self) -> None:
        """The process has died, and with it all calls."""
        for queue in self.receiving.values():
            queue.receiving -= 1
            queue.unseen += 1
        self.receiving.clear()
        self.calls.clear()

    async def call(self, queue: QueueModel, action: Callable[[api.Target], Awaitable[T]]) -> T:
        """Make a call as a frontend does.  Raises :class:`QueueGone`."""
        for _ in range(4):
            try:
                return await action(api.Target(queue.pid, queue.settings.queue_id, queue.settings.version))
            except api.PartitionGone:
                raise QueueGone from None
            except (api.PartitionUnknown, api.SettingsStale):
                settings = self.world.store.queues.get(queue.pid)
                if settings is None:
                    raise QueueGone from None
                await self.world.node.call(api.Configure(settings))
        raise Violation(f"{queue.arn} cannot be opened")

    # --- sending ---

    def new_message(self, queue: QueueModel) -> api.NewMessage:
        random = self.random
        self._sent += 1
        name = b"m%06d." % self._sent
        size = random.choice((0, 10, 100, BODY_BYTES_COMMON, random.randrange(self.world.payload_max)))
        if self.world.big_bodies and random.random() < 0.02:
            self.world.big_bodies -= 1
            size = BODY_BYTES_MAX - len(name) - random.choice((0, random.randrange(300_000)))
        new = api.NewMessage(name + bytes([self._sent % 251]) * size)
        if queue.fifo:
            new.group = f"g{random.randrange(self.world.groups)}"
            chosen = b"%d" % random.randrange(TOKENS) if random.random() < 0.3 else name
            keys = [b"q" + chosen, b"g" + new.group.encode() + chosen]
            new.token, new.also = (
                blake2b(key, digest_size=16).digest() for key in (reversed(keys) if queue.by_group else keys)
            )
        else:
            if self.world.fair and random.random() < 0.8:
                new.group = f"g{min(random.randrange(6), random.randrange(6))}"
            if random.random() < 0.3:
                new.token = blake2b(name, digest_size=16).digest()
            if random.random() < 0.15:
                new.delay_seconds = random.randrange(15)
        return new

    def send(self, queue: QueueModel) -> None:
        count = self.random.choice((1, 1, 1, 2, 5, 10))
        new = [self.new_message(queue) for _ in range(count)]
        if self.random.random() < 0.4:
            self._calls += 1
            name_call(new, self._calls)
            if self.random.random() < 0.2:
                self.start(self._send(queue, new))  # a client that did not wait for the answer
        self.start(self._send(queue, new))

    def send_again(self, queue: QueueModel) -> None:
        """Repeat a send whose answer was lost."""
        if self.again:
            queue, new, _ = self.again.pop(self.random.randrange(len(self.again)))
            self.start(self._send(queue, [new]))

    def repeat_send(self, queue: QueueModel) -> None:
        """Repeat a call that has a retry token, whether its answer was lost or not."""
        if self.repeatable:
            at = len(self.repeatable) - 1 - min(self.random.randrange(20), len(self.repeatable) - 1)
            queue, new, asked = self.repeatable[at]
            if self.world.now() > asked + queue.retry_ms:
                del self.repeatable[at]  # once more after the window, and never again
            self.start(self._send(queue, new))

    def reuse_token(self, queue: QueueModel) -> None:
        """Another call with the token of an earlier one."""
        if self.repeatable:
            queue, first, _ = self.random.choice(self.repeatable[-5:])
            new = [self.new_message(queue) for _ in first]
            for one, earlier in zip(new, first, strict=True):
                assert earlier.retry is not None
                self._calls += 1
                one.retry = earlier.retry[:TOKEN_BYTES] + self._calls.to_bytes(16, "big")
            self.start(self._send(queue, new))

    async def _send(self, queue: QueueModel, new: list[api.NewMessage]) -> None:
        world, model = self.world, self.model
        asked = world.now()
        msgs = model.sending(queue, new, asked)
        try:
            answers = await self.call(queue, lambda target: world.node.call(api.Send(target, new)))
        except api.StorageFull:
            world.count("full")
            model.refused(msgs)
        except api.QueueFull:
            world.count("queue full")
            model.refused(msgs)
        except api.Unavailable:
            world.count("unavailable")
            if new[0].retry is not None:
                self.repeatable.append((queue, new, asked))
            else:
                if all(one.token is None for one in new):
                    model.unanswered(msgs)
                self.again += [(queue, one, asked) for one in new if one.token is not None]
        except api.TokenReused:
            world.count("token reused")
            model.token_reused(queue, new, msgs)
        except (QueueGone, api.PartitionDamaged):
            model.refused(msgs)
        else:
            world.event("sent", queue.pid, [answer.number for answer in answers])
            model.sent(queue, new, msgs, answers, asked, world.now())
            if new[0].retry is not None and self.random.random() < 0.3:
                self.repeatable.append((queue, new, asked))
                del self.repeatable[:-POOL_MAX]

    # --- receiving ---

    def receive(self, queue: QueueModel) -> None:
        random = self.random
        wait = random.choice((0, 0, 0, 0.5, 3, 10))
        visibility = random.choice((0, 1, 3, 10, 30))
        attempt = None
        if queue.fifo and random.random() < 0.3:
            self._attempt += 1
            attempt = f"a{self._attempt}"
            recent = self.attempts.setdefault(queue.pid, [])
            recent.append((attempt, visibility, self.world.now(), 10))
            del recent[:-5]
        self._receive(queue, random.choice((1, 1, 3, 10)), visibility, wait, attempt)

    def repeat_receive(self, queue: QueueModel) -> None:
        recent = self.attempts.get(queue.pid)
        if recent and self.world.now() < recent[-1][2] + 100_000:
            attempt, visibility, _, _ = recent[-1]
            self._receive(queue, 10, visibility, 0, attempt)

    def _receive(self, queue: QueueModel, messages_max: int, visibility: int, wait: float, attempt: str | None) -> None:
        command = api.ReceiveOptions(messages_max, visibility, wait, self.dead_letter_of(queue), attempt)
        queue.receiving += 1
        task = self.start(self._received(queue, command))
        self.receiving[task] = queue
        if wait and self.random.random() < 0.2:
            self.world.loop.call_later(self.random.uniform(0, min(wait, 1)), task.cancel)

    def dead_letter_of(self, queue: QueueModel) -> api.DeadLetter | None:
        target = queue.dead_letter
        if target is None or target.drop_asked:
            return None
        to = api.Target(target.pid, target.settings.queue_id, target.settings.version)
        return api.DeadLetter(queue.max_receives, to, target.fifo)

    async def _received(self, queue: QueueModel, command: api.ReceiveOptions) -> None:
        world, model = self.world, self.model
        asked, asked_at = world.now(), model.tick
        seen = False
        try:
            answer = await self.call(queue, lambda target: world.node.call(api.Receive(target, command)))
            seen = True
            world.event("received", queue.pid, [(one.number, one.receives) for one in answer])
            held = model.received(queue, answer, command.visibility_seconds * 1000, asked, asked_at, world.now())
            pool = self.pools.setdefault(queue.pid, [])
            pool += held
            del pool[:-POOL_MAX]
        except (api.OverLimit, api.AttemptExpired):
            seen = True
        except (api.Unavailable, api.StorageFull):
            world.count("unavailable")
        finally:
            self._receive_ended(asyncio.current_task(), seen)

    def _receive_ended(self, task: asyncio.Task[None] | None, seen: bool) -> None:
        queue = self.receiving.pop(task, None) if task is not None else None
        if queue is not None:
            queue.receiving -= 1
            queue.unseen += not seen

    def cancel_receive(self, queue: QueueModel) -> None:
        waiting = list(self.receiving)
        if waiting:
            self.random.choice(waiting).cancel()

    # --- receipt handles ---

    def _held(self, queue: QueueModel, messages_max: int) -> list[tuple[str, ModelMessage]]:
        pool = self.pools.get(queue.pid)
        if not pool:
            return []
        chosen: dict[str, ModelMessage] = {}
        for _ in range(self.random.randint(1, messages_max)):
            at = len(pool) - 1 - min(self.random.randrange(len(pool)), self.random.randrange(len(pool)))
            chosen[pool[at][0]] = pool[at][1]
        return list(chosen.items())

    def delete(self, queue: QueueModel) -> None:
        if held := self._held(queue, self.random.choice((1, 3, 10))):
            if self.random.random() < 0.9:
                self.pools[queue.pid] = [one for one in self.pools[queue.pid] if one not in held]
            self.start(self._delete(queue, held))

    async def _delete(self, queue: QueueModel, held: list[tuple[str, ModelMessage]]) -> None:
        world = self.world
        asked = world.now()
        self.model.deleting(held)
        try:
            handles = [text for text, _ in held]
            strange = self.random.random() < 0.05
            if strange:
                handles.append("bm90IGEgaGFuZGxl")
            outcomes = await self.call(queue, lambda target: world.node.call(api.Delete(target, handles)))
        except (api.Unavailable, api.StorageFull):
            world.count("unavailable")
            return
        world.event("deleted", queue.pid, outcomes)
        if strange and outcomes.pop() is not api.HandleOutcome.MALFORMED:
            raise Violation("garbage was taken for a receipt handle")
        self.model.deleted(queue, held, outcomes, asked, world.now())

    def change_visibility(self, queue: QueueModel) -> None:
        if held := self._held(queue, 3):
            seconds = [self.random.choice((0, 0, 1, 5, 20)) for _ in held]
            self.start(self._change(queue, held, seconds))

    async def _change(self, queue: QueueModel, held: list[tuple[str, ModelMessage]], seconds: list[int]) -> None:
        world = self.world
        asked = world.now()
        cuts = self.model.changing(queue, held, seconds, asked)
        asked_at = self.model.tick
        changes = [(text, length) for (text, _), length in zip(held, seconds, strict=True)]
        try:
            outcomes = await self.call(queue, lambda target: world.node.call(api.ChangeVisibility(target, changes)))
        except (api.Unavailable, api.StorageFull):
            world.count("unavailable")
            return
        world.event("changed", queue.pid, outcomes)
        self.model.changed(queue, held, cuts, outcomes, asked_at, world.now())

    # --- the queue as a whole ---

    def counters(self, queue: QueueModel) -> None:
        self.start(self._counters(queue))

    async def _counters(self, queue: QueueModel) -> None:
        try:
            counters = await self.call(queue, lambda target: self.world.node.call(api.CountMessages(target)))
        except (api.Unavailable, api.StorageFull):
            return
        self.world.event("counted", queue.pid, counters)
        if min(counters.visible, counters.in_flight, counters.delayed) < 0:
            raise Violation(f"{queue.arn} counts {counters}")

    def reconfigure(self, queue: QueueModel) -> None:
        settings = self.world.store.queues.get(queue.pid)
        if settings is None:
            return
        random = self.random
        new = msgspec.structs.replace(
            settings,
            version=settings.version + 1,
            delay_seconds=random.choice((0, 0, settings.delay_seconds, 2)),
            in_flight_limit=random.choice((settings.in_flight_limit, 5, 1000)),
            retention_seconds=random.choice((settings.retention_seconds, settings.retention_seconds, 3600)),
        )
        self.world.store.queues[queue.pid] = new
        queue.configured(new)
        queue.by_group ^= random.random() < 0.3
        self.model.reconfiguring(queue)
        self.start(self._configure(queue))

    async def _configure(self, queue: QueueModel) -> None:
        settings = self.world.store.queues.get(queue.pid)
        if settings is None:
            return
        try:
            await self.world.node.call(api.Configure(settings))
        except (api.Unavailable, api.StorageFull):
            self.world.count("unavailable")

    def purge(self, queue: QueueModel) -> None:
        """Records the purge in the metadata before the backend is called."""
        settings = self.world.store.queues.get(queue.pid)
        if settings is None or queue.unsettled:
            return
        settings = msgspec.structs.replace(settings, purge_id=settings.purge_id + 1, version=settings.version + 1)
        self.world.store.queues[queue.pid] = settings
        queue.configured(settings)
        queue.purge_asked = True
        self.start(self.do_purge(queue, self.model.ending(queue, "a purge was asked for")))

    async def do_purge(self, queue: QueueModel, asked_at: int) -> None:
        settings = self.world.store.queues.get(queue.pid)
        if settings is None:
            return
        purge_id = settings.purge_id
        try:
            await self.call(queue, lambda target: self.world.node.call(api.Purge(target, purge_id)))
        except (api.Unavailable, api.StorageFull):
            self.world.count("unavailable")
            return
        self.world.event("purged", queue.pid)
        queue.purge_asked = False
        self.model.ended(queue, asked_at, self.world.now(), "its queue was purged")
        queue.purged_at = self.model.tick
        queue.groups.clear()

    def drop(self, queue: QueueModel) -> None:
        if self.world.store.queues.pop(queue.pid, None) is not None:
            queue.drop_asked = True
            for other in (*self.world.queues, *self.world.old):
                if other.dead_letter is queue or queue in other.moved_to:
                    other.came_back = True
            self.start(self.do_drop(queue, self.model.ending(queue, "its queue was to be deleted")))

    async def do_drop(self, queue: QueueModel, asked_at: int) -> None:
        try:
            await self.world.node.call(api.Drop(api.Target(queue.pid, queue.settings.queue_id, queue.settings.version)))
        except (api.Unavailable, api.StorageFull):
            self.world.count("unavailable")
            return
        self.world.event("dropped", queue.pid)
        queue.dropped = True
        self.model.ended(queue, asked_at, self.world.now(), "its queue was deleted")

    # --- move tasks ---

    def move(self, queue: QueueModel) -> None:
        """Start a redrive of a dead-letter queue, to its sources or to another queue; or cancel it."""
        sources = [other for other in self.world.queues if other.dead_letter is queue]
        if not sources:
            return
        if self.tasks.get(queue.pid) and self.random.random() < 0.3:
            self.start(self._cancel(queue, self.tasks[queue.pid][-1]))
            return
        others = [
            other
            for other in self.world.queues
            if other.fifo == queue.fifo and other is not queue and other.lossy == queue.lossy
        ]
        chosen = self.random.choice(others) if others and self.random.random() < 0.3 else None
        queue.leaves = True
        for other in sources if chosen is None else [chosen]:
            other.enters = True
            queue.moved_to.add(other)
            self.model.reconfiguring(queue)
        self.start(self._move(queue, chosen.arn if chosen is not None else None))

    async def _move(self, queue: QueueModel, arn: str | None) -> None:
        rate = self.random.choice((0, 0, 5))
        try:
            task = await self.call(queue, lambda target: self.world.node.call(api.StartMove(target, arn, rate)))
        except (api.Unavailable, api.StorageFull, api.MoveTaskRefused):
            return
        self.world.event("moving", queue.pid, task.task_id)
        self.tasks.setdefault(queue.pid, []).append(task.task_id)

    async def _cancel(self, queue: QueueModel, task_id: str) -> None:
        try:
            await self.call(queue, lambda target: self.world.node.call(api.CancelMove(target, task_id)))
        except (api.Unavailable, api.StorageFull, api.MoveTaskUnknown):
            return

    def tasks_of(self, queue: QueueModel) -> None:
        self.start(self._tasks_of(queue))

    async def _tasks_of(self, queue: QueueModel) -> None:
        try:
            tasks = await self.call(queue, lambda target: self.world.node.call(api.ListMoves(target)))
        except (api.Unavailable, api.StorageFull):
            return
        known = {task.task_id: task for task in tasks}
        if len(known) < min(10, len(set(self.tasks.get(queue.pid, ())))):
            raise Violation(f"{queue.arn} has forgotten move tasks")
        for task in tasks:
            if task.moved > task.total:
                raise Violation(f"move task {task} has moved more than there was")
