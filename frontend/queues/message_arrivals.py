"""Long polls on queues with several partitions.

However many calls wait, each partition is watched once.  When a partition reports messages, the longest waiting
call is woken; after its claim the partition is watched again for the next.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from backend.api import Backend, BackendError, MapStale, PartitionGone, PartitionUnknown, SettingsStale, Target, Watch
from frontend.queues.view import QueueView

WATCH_SECONDS = 20.0
RETRY_SECONDS = 0.5
"""Pause before a partition that could not be watched is watched again."""


class _Waiting:
    """Waiting calls of one queue."""

    def __init__(self) -> None:
        self.waiters: OrderedDict[asyncio.Future[int | None], None] = OrderedDict()
        self.watches: dict[int, asyncio.Task[None]] = {}
        """Running watches, by partition."""

    def wake(self, partition: int) -> None:
        """Wake one waiting call: this partition has messages."""
        while self.waiters:
            waiter, _ = self.waiters.popitem(last=False)
            if not waiter.done():
                waiter.set_result(partition)
                return


class Arrivals:
    """Waiting calls of all queues with several partitions."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._queues: dict[int, _Waiting] = {}

    async def wait(self, view: QueueView, seconds: float) -> int | None:
        """Wait for the id of a partition with messages, or with a possibly changed map; None: the time is over.

        The caller has to call :meth:`again` after it has asked that partition.
        """
        loop = asyncio.get_running_loop()
        waiting = self._queues.setdefault(view.queue.queue_id, _Waiting())
        waiter: asyncio.Future[int | None] = loop.create_future()
        waiting.waiters[waiter] = None
        for part in view.receive_parts:
            self._watch(waiting, part.target)
        timeout = loop.call_later(seconds, _end, waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                partition = waiter.result()
                if partition is not None:
                    waiting.wake(partition)  # pass it on to another waiting call
            raise
        finally:
            timeout.cancel()
            waiting.waiters.pop(waiter, None)
            self._leave(view.queue.queue_id, waiting)

    def again(self, view: QueueView, partition: int) -> None:
        """Watch the partition again, if other calls wait."""
        waiting = self._queues.get(view.queue.queue_id)
        part = view.part(partition)
        if waiting is not None and waiting.waiters and part is not None:
            self._watch(waiting, part.target)

    def _leave(self, queue_id: int, waiting: _Waiting) -> None:
        if not waiting.waiters:
            for watch in waiting.watches.values():
                watch.cancel()
            if self._queues.get(queue_id) is waiting:
                del self._queues[queue_id]

    def _watch(self, waiting: _Waiting, target: Target) -> None:
        if target.partition not in waiting.watches:
            task = asyncio.get_running_loop().create_task(self._ask(waiting, target))
            waiting.watches[target.partition] = task

    async def _ask(self, waiting: _Waiting, target: Target) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                asked = loop.time()
                try:
                    if await self._backend.call(Watch(target, WATCH_SECONDS)):
                        break
                    if loop.time() - asked < WATCH_SECONDS / 2:
                        await asyncio.sleep(RETRY_SECONDS)  # its node is about to end and releases all watches
                except PartitionGone:
                    await asyncio.sleep(RETRY_SECONDS)  # it has retired, and may be in the map for a moment more
                    break
                except (PartitionUnknown, SettingsStale, MapStale):
                    break  # the woken call asks the partition, and learns of the change
                except BackendError:
                    await asyncio.sleep(RETRY_SECONDS)  # the calls still wait for the other partitions
        finally:
            del waiting.watches[target.partition]
        waiting.wake(target.partition)


def _end(waiter: asyncio.Future[int | None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
