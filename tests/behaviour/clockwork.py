"""Time controlled by the test: an event loop whose clock can be advanced, and clocks that follow it.

The loop's timers and all users of :class:`Clockwork`'s clocks see one time, which runs as usual and jumps on demand.  A
timer that a jump passes fires at once.
"""

import asyncio
import time

EPOCH = 1_800_000_000.0
"""Start of virtual time: a day in January 2027."""
SETTLE_TURNS = 40
"""Turns of the loop after which calls that need nothing from outside have reached their waits."""


class SkewedLoop(asyncio.SelectorEventLoop):
    """Event loop with a clock that can be advanced."""

    skew = 0.0

    def time(self) -> float:
        return super().time() + self.skew


class Clockwork:
    """Clocks for services, all on the loop's time."""

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
        """Jump, and run the timers that are due."""
        self.loop.skew += seconds
        await self.run_until_idle()

    async def run_until_idle(self) -> None:
        """Run everything that can continue; real time passes only while threads work."""
        for _ in range(SETTLE_TURNS):
            await asyncio.sleep(0)


def real_seconds() -> float:
    """Return the machine's own clock, for limits on real time."""
    return time.monotonic()
