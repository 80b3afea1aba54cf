"""Who waits for messages of queues with several partitions, and what tells them that there are some.

However many wait, each partition is asked once.  When one says that it has something, one of those who wait is told,
the longest waiting first; when that one has claimed what it wanted, the partition is asked again for the next.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING

from backend.api import Backend, BackendError, MapStale, PartitionGone, PartitionUnknown, SettingsStale, Target

if TYPE_CHECKING:
    from frontend.sqs.queues import QueueView

WATCH_SECONDS = 20.0
RETRY_SECONDS = 0.5
"""Before a partition that could not be asked is asked again."""


class _Waiting:
    """Of one queue."""

    def __init__(self) -> None:
        self.waiters: OrderedDict[asyncio.Future[int | None], None] = OrderedDict()
        self.watches: dict[int, asyncio.Task[None]] = {}
        """By partition: the question that is under way."""

    def tell(self, partition: int) -> None:
        """One of those who wait: this partition has something."""
        while self.waiters:
            waiter, _ = self.waiters.popitem(last=False)
            if not waiter.done():
                waiter.set_result(partition)
                return


class Arrivals:
    """Of all queues with several partitions that somebody waits for here."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._queues: dict[int, _Waiting] = {}

    async def wait(self, view: QueueView, seconds: float) -> int | None:
        """The id of a partition that has something, or whose map may have changed; None: the time is over.

        Whoever gets one calls :meth:`again` when it has asked that partition.
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
                    waiting.tell(partition)  # somebody else's turn
            raise
        finally:
            timeout.cancel()
            waiting.waiters.pop(waiter, None)
            self._leave(view.queue.queue_id, waiting)

    def again(self, view: QueueView, partition: int) -> None:
        """Ask the partition again, if there are others who wait."""
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
                    if await self._backend.watch(target, WATCH_SECONDS):
                        break
                    if loop.time() - asked < WATCH_SECONDS / 2:
                        await asyncio.sleep(RETRY_SECONDS)  # it lets go of all who wait, for it is about to end
                except PartitionGone:
                    await asyncio.sleep(RETRY_SECONDS)  # it has retired, and may be in the map for a moment more
                    break
                except (PartitionUnknown, SettingsStale, MapStale):
                    break  # whoever is told asks the partition, and learns what has changed
                except BackendError:
                    await asyncio.sleep(RETRY_SECONDS)  # those who wait go on waiting for the others
        finally:
            del waiting.watches[target.partition]
        waiting.tell(target.partition)


def _end(waiter: asyncio.Future[int | None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
