"""Time in the test's hand: an event loop whose clock can be put forward, and clocks that follow it.

The loop's timers and everything that is given :class:`Clockwork`'s clocks see one time, which runs as usual and jumps
when the test says so.  A timer that was passed over by a jump fires at once.
"""

from __future__ import annotations

import asyncio
import time

EPOCH = 1_800_000_000.0
"""Where virtual time begins: a day in January 2027."""
SETTLE_TURNS = 40
"""Turns of the loop in which calls that wait for nothing outside come to where they wait."""


class SkewedLoop(asyncio.SelectorEventLoop):
    """An event loop with a clock that can be put forward."""

    skew = 0.0

    def time(self) -> float:
        return super().time() + self.skew


class Clockwork:
    """The one time of a loop, as the clocks that services ask for."""

    def __init__(self) -> None:
        self.loop = SkewedLoop()
        self._origin = self.loop.time()

    def monotonic(self) -> float:
        return self.loop.time()

    def wall(self) -> float:
        """Seconds since the Unix epoch."""
        return EPOCH + self.loop.time() - self._origin

    def now_ms(self) -> int:
        return int(self.wall() * 1000)

    async def advance(self, seconds: float) -> None:
        """Jump, and let what was due happen."""
        self.loop.skew += seconds
        await self.settle()

    async def settle(self) -> None:
        """Let what can go on go on; real time passes only while threads work."""
        for _ in range(SETTLE_TURNS):
            await asyncio.sleep(0)


def real_seconds() -> float:
    """The machine's own clock, for bounds on real time."""
    return time.monotonic()
