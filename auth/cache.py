"""Read-through cache of values by id, refreshed in the background while they are used.

A returned value is at most ``fresh_seconds`` old.  From half of that age on, a use starts a background lookup.  So a
change in another process is seen within that time, and callers wait only for values that have not been used for that
long.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from telemetry import caches

V = TypeVar("V")


class Cache(Generic[V]):
    """Values by id, at most ``known_limit`` of them.

    Missing ids are remembered for ``unknown_seconds``, at most ``unknown_limit`` of them; concurrent lookups of
    an id are shared, and at most ``lookups_limit`` run at once, so that attackers cannot flood the store.
    """

    def __init__(
        self,
        look_up: Callable[[str], Awaitable[V | None]],
        *,
        name: str,
        clock: Callable[[], float],
        known_limit: int = 10_000,
        unknown_limit: int = 1_000,
        fresh_seconds: float = 1,
        unknown_seconds: float = 1,
        lookups_limit: int = 8,
    ) -> None:
        """``name``: label of the cache in the metrics of hits and misses."""
        self._indexes = caches.indexes(name)
        self._hit = self._indexes.hit
        self._ask = look_up
        self._clock = clock
        self._known: OrderedDict[str, tuple[V, float, float]] = OrderedDict()
        """Value, time from which it is refreshed ahead, and time until which it is returned."""
        self._known_limit = known_limit
        self._unknown: OrderedDict[str, float] = OrderedDict()
        self._unknown_limit = unknown_limit
        self._fresh_seconds = fresh_seconds
        self._unknown_seconds = unknown_seconds
        self._under_way: dict[str, asyncio.Task[V | None]] = {}
        self._lookups = asyncio.Semaphore(lookups_limit)
        self._changes = 0

    def cached(self, key_id: str) -> V | None:
        """Return a fresh value without waiting; None if it is not cached, whether or not it exists (see
        :meth:`find`)."""
        entry = self._known.get(key_id)
        if entry is None:
            return None
        value, ahead_from, fresh_until = entry
        now = self._clock()
        if now >= ahead_from:
            if now >= fresh_until:
                return None
            self._looking_up(key_id)
        caches.counts[self._hit] += 1
        return value

    async def find(self, key_id: str) -> V | None:
        """Return the value, looking it up if necessary; None if there is none.  Raises the store's errors."""
        value = self.cached(key_id)
        if value is not None:
            return value
        if self._unknown.get(key_id, 0.0) > self._clock():
            caches.counts[self._hit] += 1
            return None
        caches.counts[self._indexes.miss] += 1
        return await asyncio.shield(self._looking_up(key_id))

    def forget(self, key_id: str) -> None:
        """Drop a value because the stored one has changed: later lookups see the change."""
        self._changes += 1
        self._known.pop(key_id, None)
        self._unknown.pop(key_id, None)

    def forget_all(self, concerns: Callable[[V], bool]) -> None:
        """Drop all values for which ``concerns`` is true."""
        self._changes += 1
        for key_id in [key_id for key_id, (value, _, _) in self._known.items() if concerns(value)]:
            del self._known[key_id]

    def _looking_up(self, key_id: str) -> asyncio.Task[V | None]:
        task = self._under_way.get(key_id)
        if task is None:
            task = asyncio.ensure_future(self._look_up(key_id))
            self._under_way[key_id] = task
            task.add_done_callback(lambda done: self._done(key_id, done))
        return task

    def _done(self, key_id: str, task: asyncio.Task[V | None]) -> None:
        del self._under_way[key_id]
        if not task.cancelled():
            task.exception()  # waiters get the exception; a refresh ahead has none, and the next use retries

    async def _look_up(self, key_id: str) -> V | None:
        async with self._lookups:
            while True:
                started_at, changes = self._clock(), self._changes
                value = await self._ask(key_id)
                if changes == self._changes:  # otherwise the value may be older than the change
                    break
        if value is not None:
            self._known[key_id] = (value, started_at + self._fresh_seconds / 2, started_at + self._fresh_seconds)
            self._known.move_to_end(key_id)
            if len(self._known) > self._known_limit:
                self._known.popitem(last=False)
            return value
        self._known.pop(key_id, None)
        self._unknown[key_id] = self._clock() + self._unknown_seconds
        self._unknown.move_to_end(key_id)
        if len(self._unknown) > self._unknown_limit:
            self._unknown.popitem(last=False)
        return None
