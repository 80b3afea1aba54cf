"""Bounds on what a process holds for pushes, shared fairly by tenants and their queues.

Capacity is counted in units of bytes of messages.  A queue reserves units before it receives messages, for the largest
messages that there can be, and keeps what they need until they are delivered or given back.  So neither the messages in
memory nor the calls under way exceed a bound.

A tenant may hold no more than is left free, and a queue no more than its tenant could still get (dynamic thresholds):
one alone gets a large part, several get equal parts, and some units stay free for queues that hold none.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final, NamedTuple, TypeVar

_Key = TypeVar("_Key", str, int)

UNIT_BYTES: Final = 16_384
UNITS: Final = 4096
"""Units of a process: together 64 MiB."""


def units_of(size: int) -> int:
    """Units that a message of this size takes."""
    return -(-size // UNIT_BYTES) or 1


class _Waiting(NamedTuple):
    tenant: str
    queue: int
    units: int
    """Units of each message."""
    messages: int
    granted: asyncio.Future[int]


class Capacity:
    """The units of a process."""

    def __init__(self, units: int = UNITS) -> None:
        self._all = units
        self.free = units
        self._tenants: Counter[str] = Counter()
        """Units held, by tenant."""
        self._queues: Counter[int] = Counter()
        """Units held, by queue."""
        self._waiting: dict[asyncio.Future[int], _Waiting] = {}
        self._granting = False

    async def acquire(self, tenant: str, queue: int, units: int, messages: int) -> int:
        """Wait for the units of at least one message; returns for how many, at most ``messages``, there are units."""
        loop = asyncio.get_running_loop()
        units = min(units, self._all)
        waiting = _Waiting(tenant, queue, units, messages, loop.create_future())
        self._waiting[waiting.granted] = waiting
        self._grant_soon()
        try:
            return await waiting.granted
        except asyncio.CancelledError:
            granted = waiting.granted
            if granted.done() and not granted.cancelled():
                self.release(tenant, queue, granted.result() * units)
            raise
        finally:
            self._waiting.pop(waiting.granted, None)

    def release(self, tenant: str, queue: int, units: int) -> None:
        """Give back units.  A negative number takes more, without a wait."""
        self.free += units
        self._change(self._tenants, tenant, -units)
        self._change(self._queues, queue, -units)
        if units > 0 and self._waiting:
            self._grant_soon()

    def _grant_soon(self) -> None:
        """Grant once for all that happens until the loop's next turn."""
        if not self._granting:
            self._granting = True
            asyncio.get_running_loop().call_soon(self._grant)

    def _grant(self) -> None:
        self._granting = False
        while (best := self._next()) is not None:
            messages = self._messages(best)
            taken = messages * best.units
            self.free -= taken
            self._change(self._tenants, best.tenant, taken)
            self._change(self._queues, best.queue, taken)
            del self._waiting[best.granted]
            best.granted.set_result(messages)

    def _next(self) -> _Waiting | None:
        """The waiting queue that is next: of the tenant with the fewest units; None: no one may have any now."""
        first: _Waiting | None = None
        rank = (0, 0)
        for waiting in self._waiting.values():  # in order of arrival
            if waiting.granted.done():
                continue  # cancelled
            held = (self._tenants[waiting.tenant], self._queues[waiting.queue])
            if (first is None or held < rank) and (not held[0] or self._messages(waiting)):
                first, rank = waiting, held
        # A tenant with nothing is not passed over for want of free units: others would take each one that gets free.
        return first if first is not None and self._messages(first) else None

    def _messages(self, waiting: _Waiting) -> int:
        """Number of messages for which the queue may reserve units now."""
        tenant, queue = self._tenants[waiting.tenant], self._queues[waiting.queue]
        of_tenant = (self.free - tenant) // 2 // waiting.units
        of_queue = (self.free - tenant - queue) // 3 // waiting.units
        if not tenant:
            of_tenant = max(of_tenant, 1)
        if not queue:
            of_queue = max(of_queue, 1)
        return max(0, min(waiting.messages, self.free // waiting.units, of_tenant, of_queue))

    @staticmethod
    def _change(held: dict[_Key, int], key: _Key, units: int) -> None:
        held[key] = held.get(key, 0) + units
        if held[key] <= 0:
            del held[key]
