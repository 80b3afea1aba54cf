"""The time of a node's shards.

Shard time follows the monotonic clock, slewed by at most a tenth towards the wall clock: never stepped, never back.
So a wall clock that jumps ends no claim, delay or deduplication window early.  It starts at the later of the last time
that the journal carries and the wall clock, so after two days of downtime two days have passed.  A machine that was
suspended counts like one that was down: its monotonic clock stood still, and the gap is taken from the wall clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable

SLEW_MOST = 0.1
ADJUST_SECONDS = 1.0
CORRECT_WITHIN_SECONDS = 10.0
SUSPENDED_SECONDS = 1.0


def _boottime() -> float:
    """Like the monotonic clock, but it goes on while the machine is suspended (where there is such a clock)."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.clock_gettime(clock) if clock is not None else time.monotonic()


class SteadyClock:
    """Milliseconds since the epoch; call it for the time."""

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        boottime: Callable[[], float] = _boottime,
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._boottime = boottime
        self._base_ms = wall() * 1000
        self._base = monotonic()
        self._rate = 1000.0
        self._asleep = boottime() - self._base

    def not_before(self, time_ms: int) -> None:
        """Go on from this time if it is later than now."""
        if time_ms > self():
            self._base_ms = float(time_ms)
            self._base = self._monotonic()

    def __call__(self) -> int:
        now = self._monotonic()
        elapsed = now - self._base
        if elapsed >= ADJUST_SECONDS:
            self._adjust(now)
            elapsed = 0.0
        return int(self._base_ms + elapsed * self._rate)

    def _adjust(self, now: float) -> None:
        """Begin a new stretch: as fast as brings this clock and the wall clock together within seconds."""
        elapsed = now - self._base
        slewed = min(elapsed, CORRECT_WITHIN_SECONDS)  # nobody may have asked for hours: then the slew is long over
        value = self._base_ms + slewed * self._rate + (elapsed - slewed) * 1000
        wall = self._wall() * 1000
        asleep = self._boottime() - now
        if asleep - self._asleep > SUSPENDED_SECONDS:
            value = max(value, wall)
        self._asleep = asleep
        slew = (wall - value) / (CORRECT_WITHIN_SECONDS * 1000)
        self._rate = 1000.0 * (1.0 + max(-SLEW_MOST, min(SLEW_MOST, slew)))
        self._base_ms = value
        self._base = now
