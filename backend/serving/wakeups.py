"""Wakeups of partitions: of receives that wait for messages, and by a timer when a timeout in a partition ends.

One timer of the event loop serves all partitions.  It is set to the earliest wakeup; the others wait in a heap.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from heapq import heapify, heappop, heappush

from backend.clocks.node_clock import SLEW_MAX
from backend.engine.timers import NEVER
from backend.serving.background import Tasks
from backend.serving.partition import OpenPartition
from backend.serving.payload_cache import PayloadCache

IDLE_CHECK_MS = 1000
"""Maximum delay of expired timeouts in a partition without waiting receives."""
WAKEUPS_SURPLUS = 64
"""Surplus of wakeups over twice the partitions above which outdated wakeups are removed from the heap."""
TIMER_SECONDS_MIN = 0.001
EXACT_SECONDS = 1.0
"""Maximum delay of a wakeup before it is computed again, because the shard's time may run faster later."""


class Wakeups:
    """The wakeups of an incarnation's partitions."""

    def __init__(self, partitions: Mapping[int, OpenPartition], payload_cache: PayloadCache, tasks: Tasks) -> None:
        self.draining = False
        """True once no receive may wait any more."""
        self._partitions = partitions
        self._payload_cache = payload_cache
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._heap: list[tuple[float, int]] = []
        """Heap of (time, partition): wakeups of partitions, in the loop's time."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf

    def changed(self, partition: OpenPartition) -> None:
        """Handle a change of the partition: wake waiting receives, and schedule a wakeup at its next timeout."""
        if partition.waiters:
            self._wake(partition)
            due = partition.fold.due
        else:
            due = (partition.fold.due // IDLE_CHECK_MS + 1) * IDLE_CHECK_MS
        if due < partition.wakeup_ms and partition.fold.due < NEVER:
            partition.wakeup_ms = due
            self._schedule(partition)

    # --- waiting receives -------------------------------------------------------------------------------

    async def wait(self, partition: OpenPartition, seconds: float, *, watches_only: bool = False) -> None:
        """Wait until a message may be available or the time is over."""
        waiter = self._loop.create_future()
        partition.waiters[waiter] = watches_only
        timeout = self._loop.call_later(seconds, _end_wait, waiter)
        self.changed(partition)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.changed(partition)  # it had been woken: wake another one
            raise
        finally:
            timeout.cancel()
            partition.waiters.pop(waiter, None)

    def _wake(self, partition: OpenPartition) -> None:
        if partition.claimable:
            # Wakes one receive.  It wakes the next if messages are left after its claims.
            while partition.waiters:
                waiter, watches_only = partition.waiters.popitem(last=False)
                if not waiter.done():  # otherwise its caller was cancelled a moment ago
                    waiter.set_result(None)
                    if not watches_only:
                        return

    def drain(self) -> None:
        """End all long polls now, with empty answers."""
        self.draining = True
        for partition in self._partitions.values():
            end_waits(partition)

    # --- the timer --------------------------------------------------------------------------------------

    def _schedule(self, partition: OpenPartition) -> None:
        """Schedule the partition's wakeup in its shard's time, or somewhat earlier (:func:`_seconds_until`)."""
        wakeup_at = self._loop.time() + _seconds_until(partition)
        partition.wakeup_at = wakeup_at
        if len(self._heap) > 2 * len(self._partitions) + WAKEUPS_SURPLUS:
            self._heap = [(one.wakeup_at, one.id) for one in self._partitions.values() if one.wakeup_ms < NEVER]
            heapify(self._heap)
        else:
            heappush(self._heap, (wakeup_at, partition.id))
        if wakeup_at < self._timer_at:
            self._set_timer(wakeup_at)

    def _set_timer(self, timer_at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = timer_at
        self._timer = self._loop.call_at(timer_at, self._on_timer)

    def _on_timer(self) -> None:
        try:
            self._wake_due()
        # Without this, no wakeup would follow any more.
        except Exception as error:
            self._tasks.failed("the alarm", error)

    def _wake_due(self) -> None:
        self._timer = None
        self._timer_at = math.inf
        now = self._loop.time()
        while self._heap and self._heap[0][0] <= now:
            wakeup_at, number = heappop(self._heap)
            partition = self._partitions.get(number)
            if partition is None or partition.wakeup_at != wakeup_at or partition.wakeup_ms == NEVER:
                continue
            time_ms = partition.clock()
            if time_ms < partition.wakeup_ms:
                self._schedule(partition)
                continue
            partition.wakeup_ms = NEVER
            partition.fold.advance(time_ms)
            self._payload_cache.trim(partition)
            self.changed(partition)
        if self._heap:
            self._set_timer(max(self._heap[0][0], now + TIMER_SECONDS_MIN))

    def stop(self, error: Exception) -> None:
        """Stop the timer, and end all waits with ``error``."""
        self.draining = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for partition in self._partitions.values():
            end_waits(partition, error)


def end_waits(partition: OpenPartition, error: Exception | None = None) -> None:
    """End long polls at this partition, with an error, or without one to make them check again."""
    for waiter in partition.waiters:
        _end_wait(waiter, error)
    partition.waiters.clear()


def _end_wait(waiter: asyncio.Future[None], error: Exception | None = None) -> None:
    """End a wait, unless it has ended."""
    if waiter.done():
        return
    if error is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(error)


def _seconds_until(partition: OpenPartition) -> float:
    """Return the seconds until the partition's wakeup is due at the earliest: shard time may run a tenth faster."""
    seconds = max(0.0, (partition.wakeup_ms - partition.clock()) / 1000)
    return seconds if seconds <= EXACT_SECONDS else max(EXACT_SECONDS, seconds / (1 + SLEW_MAX))
