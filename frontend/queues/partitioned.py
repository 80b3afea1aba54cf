"""Calls for queues with several partitions: to the one that a token, group or receipt handle selects, or to
all.

:meth:`frontend.queues.queues.Queues.call` delegates every call for such a queue.  There is a method for each command
for queues, which ignores the command's target.  A view's map may be old: a partition that knows a newer one refuses the
call, which is then repeated with the newer map.

A receive claims from one partition at a time.  It first asks those that recently had messages; if these have
none, and at intervals, it asks all at once which of them have (:class:`backend.api.Watch` claims
nothing).  Waiting receives share one such watch per partition (:mod:`frontend.queues.message_arrivals`).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from backend.api import (
    Answer,
    Backend,
    BackendError,
    CancelMove,
    ChangeVisibility,
    Counters,
    CountMessages,
    CountNotifications,
    Delete,
    DeleteOnce,
    HandleOutcome,
    ListMoves,
    MapStale,
    Measures,
    MoveTask,
    MoveTaskRefused,
    MoveTaskUnknown,
    NewMessage,
    OverLimit,
    PartitionCommand,
    PartitionGone,
    PartitionUnknown,
    Publish,
    Purge,
    QueueMeasures,
    Receive,
    ReceivedMessage,
    ReceiveOptions,
    Release,
    Send,
    SendResult,
    SettingsStale,
    StartMove,
    Target,
    Watch,
)
from backend.engine.receipt_handles import partition_of
from backend.engine.token_slots import slot_of_name, slot_of_token
from frontend.queues.message_arrivals import Arrivals
from frontend.queues.view import PartitionView, QueueView
from frontend.sqs.protocol.errors import SERVICE_UNAVAILABLE, SqsError

_T = TypeVar("_T")
_O = TypeVar("_O")

TRIES = 6
REFRESH_SECONDS = 0.2
"""Interval after which all partitions are asked again for messages, even if some of the known ones still have any."""
FULL_KEPT = 10_000
"""Maximum number of queues whose partitions with messages are remembered."""

STALE = (PartitionUnknown, SettingsStale, PartitionGone, MapStale)
"""Errors that mean that the caller's view of the queue, or the partition's, is old."""


class QueueRefresher(Protocol):
    """Access to the current state of queues (:class:`frontend.queues.queues.Queues`)."""

    async def refreshed(self, view: QueueView) -> QueueView:
        """Read the queue again during a call."""

    async def configure_part(self, part: PartitionView) -> None:
        """Send the backend the settings of one partition."""


class PartitionedCalls:
    """Calls over several partitions.  Created by :class:`~frontend.queues.queues.Queues`."""

    def __init__(self, queues: QueueRefresher, backend: Backend) -> None:
        self._queues = queues
        self._backend = backend
        self._sent = 0
        """Number of sends without a token, which go to the partitions in turn."""
        self._received = 0
        self._full: dict[int, tuple[float, list[int]]] = {}
        """Partitions with messages by queue, next one first, and the time until which this is assumed."""
        self._arrivals = Arrivals(backend)
        self._methods: Mapping[type[PartitionCommand[Any]], Callable[[QueueView, Any], Coroutine[Any, Any, Any]]] = {
            Send: self.send,
            Publish: self.send,
            Receive: self.receive,
            Delete: self.delete,
            DeleteOnce: self.delete_once,
            Release: self.release,
            ChangeVisibility: self.change_visibility,
            CountMessages: self.count_messages,
            QueueMeasures: self.queue_measures,
            CountNotifications: self.count_notifications,
            Purge: self.purge,
            StartMove: self.start_move,
            ListMoves: self.list_moves,
            CancelMove: self.cancel_move,
        }

    def call(self, view: QueueView, command: PartitionCommand[Answer]) -> Coroutine[Any, Any, Answer]:
        """Run a command for a queue with several partitions."""
        return self._methods[type(command)](view, command)

    def of_group(self, view: QueueView, group: str) -> PartitionView:
        """The partition for a message group of a FIFO queue."""
        return _at_slot(view.open_parts, slot_of_name(group, [part.slot for part in view.open_parts]))

    def for_send(self, view: QueueView, group: str | None) -> PartitionView:
        """The partition that a message without a token is sent to."""
        if view.fifo:
            assert group is not None
            return self.of_group(view, group)
        return self._next_place()(view)

    def _next_place(self) -> Callable[[QueueView], PartitionView]:
        """Function that returns the partition whose turn it is, with whichever map of the queue."""
        place = self._sent = self._sent + 1
        return lambda view: view.open_parts[place % len(view.open_parts)]

    # --- one partition ----------------------------------------------------------------------------------------

    async def _at(
        self,
        view: QueueView,
        pick: Callable[[QueueView], PartitionView],
        command: PartitionCommand[Answer],
    ) -> Answer:
        """Run a command for the partition that ``pick`` selects, with newer maps as necessary."""
        part = pick(view)
        for _ in range(TRIES):
            try:
                return await self._backend.call(command.at(part.target))
            except STALE:
                view = await self._queues.refreshed(view)
                part = pick(view)
                await self._queues.configure_part(part)
        raise SqsError(SERVICE_UNAVAILABLE)

    async def send(self, view: QueueView, command: Send | Publish) -> list[SendResult]:
        messages: Sequence[NewMessage] = command.messages
        if not view.fifo:
            retry = messages[0].retry
            if retry is None:
                return await self._at(view, self._next_place(), command)
            return await self._at(view, lambda view: _of_token(view, retry), command)
        by_slot: dict[int, list[int]] = {}
        for place, message in enumerate(messages):
            assert message.group is not None
            by_slot.setdefault(self.of_group(view, message.group).slot, []).append(place)
        slots = list(by_slot)
        answers = await all_of(
            self._at(
                view,
                _slot_picker(slot),
                msgspec.structs.replace(command, messages=[messages[place] for place in by_slot[slot]]),
            )
            for slot in slots
        )
        return _in_order(len(messages), ((by_slot[slot], part) for slot, part in zip(slots, answers, strict=True)))

    # --- receiving --------------------------------------------------------------------------------------------

    async def receive(self, view: QueueView, command: Receive) -> list[ReceivedMessage]:
        loop, options = asyncio.get_running_loop(), command.options
        deadline = loop.time() + options.wait_seconds
        once = msgspec.structs.replace(options, wait_seconds=0, partial=True)
        if options.attempt is not None:
            # A retry has to find what the first attempt claimed: an attempt asks one partition only.
            attempt = options.attempt

            def pick(view: QueueView) -> PartitionView:
                slots = [part.slot for part in view.receive_parts]
                return _at_slot(view.receive_parts, slot_of_name(attempt, slots))

            return await self._at(view, pick, command)
        received = await self._receive_now(view, once)
        while not received and (left := deadline - loop.time()) > 0:
            arrived = await self._arrivals.wait(view, left)
            if arrived is None:
                break
            try:
                view = await self._known(view, arrived)
                received = await self._claim(view, arrived, once) or await self._receive_now(view, once)
            finally:
                self._arrivals.again(view, arrived)
        if not received:
            # The last partition is asked like an only one, so that it counts an empty receive.
            place = self._received = self._received + 1
            last = view.receive_parts[place % len(view.receive_parts)]
            received = await self._claim(view, last.id, msgspec.structs.replace(once, partial=False))
        return received

    async def _receive_now(self, view: QueueView, once: ReceiveOptions) -> list[ReceivedMessage]:
        """Receive without waiting; empty only if every partition was empty when asked."""
        queue_id = view.queue.queue_id
        now = asyncio.get_running_loop().time()
        until, full = self._full.get(queue_id, (0.0, []))
        if until < now:
            full = []
        for partition in list(full):
            received = await self._claim(view, partition, once)
            if received:
                if full and full[0] == partition:  # else a concurrent receive has changed the order
                    full.append(full.pop(0))
                return received
            if partition in full:
                full.remove(partition)
        view, ready = await self._ready(view)
        if not ready:
            self._full.pop(queue_id, None)
            return []
        self._received += 1
        place = self._received % len(ready)
        full = ready[place + 1 :] + ready[: place + 1]
        if len(self._full) >= FULL_KEPT:
            self._full.clear()
        self._full[queue_id] = (now + REFRESH_SECONDS, full)
        for partition in [full[-1], *full[:-1]]:
            received = await self._claim(view, partition, once)
            if received:
                return received
        return []

    async def _ready(self, view: QueueView) -> tuple[QueueView, list[int]]:
        """Partitions that have messages now.  Raises their errors if none can be asked."""
        view, parts, answers = await self._ask_all(view, lambda view: view.receive_parts, Watch(view.target, 0))
        failed = [
            answer for answer in answers if isinstance(answer, BaseException) and not isinstance(answer, PartitionGone)
        ]
        for error in failed:
            if not isinstance(error, BackendError) or len(failed) == len(parts):
                raise error
        return view, [part.id for part, answer in zip(parts, answers, strict=True) if answer is True]

    async def _ask_all(
        self,
        view: QueueView,
        choose: Callable[[QueueView], Sequence[PartitionView]],
        command: PartitionCommand[Answer],
    ) -> tuple[QueueView, Sequence[PartitionView], list[Answer | BaseException]]:
        """Ask all partitions that ``choose`` selects; returns them with their answers or errors.  If one knows
        a newer map, all are asked again with that.

        A retired partition leaves the map a moment later: until then its answer is PartitionGone.
        """
        for _ in range(TRIES):
            parts = choose(view)
            answers = await asyncio.gather(
                *(self._backend.call(command.at(part.target)) for part in parts), return_exceptions=True
            )
            stale = {part.id for part, answer in zip(parts, answers, strict=True) if isinstance(answer, STALE)}
            if not stale:
                return view, parts, answers
            before, view = view, await self._queues.refreshed(view)
            if view.queue.version == before.queue.version and all(
                isinstance(answer, PartitionGone) for answer in answers if isinstance(answer, STALE)
            ):
                return view, parts, answers
            for part in view.parts:
                if part.id in stale:
                    await self._queues.configure_part(part)
        raise SqsError(SERVICE_UNAVAILABLE)

    async def _claim(self, view: QueueView, partition: int, once: ReceiveOptions) -> list[ReceivedMessage]:
        """Claim from one partition; empty if it has gone, is at its limit, or cannot be asked, because others
        follow."""
        part = view.part(partition)
        if part is None:
            return []
        try:
            return await self._backend.call(Receive(part.target, once))
        except STALE:
            return []  # the next query of all partitions finds the newer map
        except OverLimit:
            return []
        except BackendError as error:
            if not error.retryable:
                raise
            return []

    async def _known(self, view: QueueView, partition: int) -> QueueView:
        """A view that contains the partition, if there is one."""
        return view if view.part(partition) is not None else await self._queues.refreshed(view)

    # --- receipt handles --------------------------------------------------------------------------------------

    async def delete(self, view: QueueView, command: Delete) -> list[HandleOutcome]:
        return await self._by_handle(view, Delete, command.handles, command.handles)

    async def delete_once(self, view: QueueView, command: DeleteOnce) -> list[bool]:
        return await self._by_handle(view, DeleteOnce, command.handles, command.handles)

    async def release(self, view: QueueView, command: Release) -> None:
        by_partition: dict[int, list[str]] = {}
        for handle in command.handles:
            by_partition.setdefault(partition_of(handle), []).append(handle)
        await all_of(
            self._at(view, _id_picker(partition), Release(view.target, handles))
            for partition, handles in by_partition.items()
        )

    async def change_visibility(self, view: QueueView, command: ChangeVisibility) -> list[HandleOutcome]:
        changes = command.changes
        return await self._by_handle(view, ChangeVisibility, [handle for handle, _ in changes], changes)

    async def _by_handle(
        self,
        view: QueueView,
        make: Callable[[Target, Sequence[_T]], PartitionCommand[list[_O]]],
        handles: Sequence[str],
        asked: Sequence[_T],
    ) -> list[_O]:
        """Ask each partition about the handles that name it."""
        by_partition: dict[int, list[int]] = {}
        for place, handle in enumerate(handles):
            by_partition.setdefault(partition_of(handle), []).append(place)
        if any(partition and view.part(partition) is None for partition in by_partition):
            view = await self._queues.refreshed(view)  # the partition may be newer than this view
        partitions = list(by_partition)
        outcomes = await all_of(
            # Any partition can report what is wrong with a handle that names none of them.
            self._at(
                view, _id_picker(partition), make(view.target, [asked[place] for place in by_partition[partition]])
            )
            for partition in partitions
        )
        pairs = zip(partitions, outcomes, strict=True)
        return _in_order(len(handles), ((by_partition[partition], part) for partition, part in pairs))

    # --- the queue as a whole ---------------------------------------------------------------------------------

    async def _each(self, view: QueueView, command: PartitionCommand[Answer]) -> list[Answer]:
        """Answers of all partitions."""
        _, _, answers = await self._ask_all(view, lambda view: view.parts, command)
        return [_answer(one) for one in answers]

    async def count_messages(self, view: QueueView, command: CountMessages) -> Counters:
        found = await self._each(view, command)
        return Counters(
            sum(one.visible for one in found),
            sum(one.in_flight for one in found),
            sum(one.delayed for one in found),
            sum(one.stored_bytes for one in found),
        )

    async def queue_measures(self, view: QueueView, command: QueueMeasures) -> list[Measures]:
        return [one for part in await self._each(view, command) for one in part]

    async def count_notifications(self, view: QueueView, command: CountNotifications) -> None:
        await self._at(view, lambda now: now.open_parts[0], command)

    async def purge(self, view: QueueView, command: Purge) -> None:
        await self._each(view, command)

    # --- move tasks -------------------------------------------------------------------------------------------

    async def start_move(self, view: QueueView, command: StartMove) -> MoveTask:
        """Start one task per partition, all with the same id; each gets a share of the rate."""
        task_id = str(uuid.uuid4())
        count, rate_per_second = len(view.parts), command.rate_per_second
        started: list[MoveTask] = []

        async def start(place: int, part: PartitionView) -> MoveTask:
            share = (place + 1) * rate_per_second // count - place * rate_per_second // count
            rate = max(1, share) if rate_per_second else 0
            shared = msgspec.structs.replace(command, rate_per_second=rate, task_id=task_id)
            return await self._at(view, _id_picker(part.id), shared)

        try:
            for place, part in enumerate(view.parts):
                started += [await start(place, part)]
        except MoveTaskRefused:
            if started:  # else another task was running before
                await self.cancel_move(view, CancelMove(view.target, task_id))
            raise
        return _together(started)

    async def list_moves(self, view: QueueView, command: ListMoves) -> list[MoveTask]:
        by_id: dict[str, list[MoveTask]] = {}
        for tasks in await self._each(view, command):
            for task in tasks:
                by_id.setdefault(task.task_id, []).append(task)
        return sorted(map(_together, by_id.values()), key=lambda task: task.started_ms, reverse=True)

    async def cancel_move(self, view: QueueView, command: CancelMove) -> MoveTask:
        """Cancel a task.  Raises :class:`MoveTaskUnknown` if it runs on no partition."""
        running = False
        for part in view.parts:
            try:
                await self._at(view, _id_picker(part.id), command)
                running = True
            except MoveTaskUnknown:
                pass  # it has ended on this partition
        if not running:
            raise MoveTaskUnknown(command.task_id)
        tasks = await self.list_moves(view, ListMoves(view.target))
        return next(task for task in tasks if task.task_id == command.task_id)


def _together(tasks: Sequence[MoveTask]) -> MoveTask:
    """Combine the tasks of several partitions into one."""
    states = {task.status for task in tasks}
    status = next(state for state in ("CANCELLING", "RUNNING", "FAILED", "CANCELLED", "COMPLETED") if state in states)
    return msgspec.structs.replace(
        tasks[0],
        status=status,
        started_ms=min(task.started_ms for task in tasks),
        rate_per_second=sum(task.rate_per_second for task in tasks),
        total=sum(task.total for task in tasks),
        moved=sum(task.moved for task in tasks),
        failure=next((task.failure for task in tasks if task.failure is not None), None),
    )


def _of_token(view: QueueView, retry: bytes) -> PartitionView:
    return _at_slot(view.open_parts, slot_of_token(retry, [part.slot for part in view.open_parts]))


def _at_slot(parts: Sequence[PartitionView], slot: int) -> PartitionView:
    return next(part for part in parts if part.slot == slot)


def _slot_picker(slot: int) -> Callable[[QueueView], PartitionView]:
    return lambda view: _at_slot(view.open_parts, slot)


def _id_picker(partition: int) -> Callable[[QueueView], PartitionView]:
    """Select the partition with this id; any one if it is not, or no longer, the queue's."""
    return lambda view: view.part(partition) or view.parts[0]


def _in_order(count: int, parts: Any) -> list[Any]:
    """Answers in the order of the questions, from the positions and answers of each part."""
    answers: list[Any] = [None] * count
    for places, part in parts:
        for place, answer in zip(places, part, strict=True):
            answers[place] = answer
    return answers


async def all_of(calls: Any) -> list[Any]:
    """Run calls concurrently and return their results.  The first error is raised when all have ended."""
    made: list[Coroutine[Any, Any, Any]] = list(calls)
    if len(made) == 1:
        return [await made[0]]
    return [_answer(result) for result in await asyncio.gather(*made, return_exceptions=True)]


def _answer(result: _T | BaseException) -> _T:
    """Return an answer, or raise it if it is an error."""
    if isinstance(result, BaseException):
        raise result
    return result
