"""The clock of a node, which drives the time of its shards (:mod:`backend.clocks.shard_clock`).

It follows the monotonic clock, slewed by at most a tenth towards the wall clock: never stepped, never backwards.  So a
wall clock that jumps ends no claim, delay or deduplication window early.  It starts at the later of the last time in
the journal and the wall clock, so after two days of downtime two days have passed.  A suspended machine counts like one
that was down: its monotonic clock stood still, and the clock advances by the time of the suspension.

**A wall clock that is years ahead.** A machine may start with such a clock, until it has reached a time server.
If the node used it, the effect would be permanent: every stored message would expire, and shard time, which never goes
back, would stay years ahead.  Such a clock cannot be distinguished from years of downtime.  So the start waits until
the clock is set, or has run steadily for some minutes.  No message can be sent meanwhile, so none gets a wrong time.

**In a cluster** the clock follows the cluster's time: the wall clock corrected by the differences that the heartbeats
of other nodes show (:meth:`SteadyClock.follow`).  If it is off by more than a second, it is stepped, forward or back;
the time of the shards is not, because each shard keeps its own.

If shard time is so far ahead of the wall clock that slewing would take too long (the clock was wrong for a long time),
it continues at normal speed: timeouts, delays and windows, which are all relative to it, are exact, and only displayed
times are off.  The log repeats this as long as it lasts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

logger = logging.getLogger(__name__)

DAY_MS: Final = 86_400_000
SLEW_MAX: Final = 0.1
ADJUST_SECONDS: Final = 1.0
CORRECT_WITHIN_SECONDS: Final = 10.0
SUSPENDED_SECONDS: Final = 1.0
DOUBTED_MS: Final = 400 * DAY_MS
"""Downtime above which the wall clock is not accepted at once."""
STEADY_SECONDS: Final = 180.0
"""Time for which the wall clock has to advance in step with the monotonic clock to be accepted."""
STEADY_WITHIN_SECONDS: Final = 1.0
STEP_MS: Final = 1000.0
"""Distance from the cluster's time above which the clock is stepped instead of slewed."""
SLEWED_MS_MAX: Final = DAY_MS
"""Lead of shard time above which it is not slewed back, because that would take more than ten days."""
LOG_AGAIN_SECONDS: Final = 3600.0


def _boottime() -> float:
    """Like the monotonic clock, but includes suspension, on systems that have such a clock."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.clock_gettime(clock) if clock is not None else time.monotonic()


class SteadyClock:
    """A clock that returns milliseconds since the epoch when called."""

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        boottime: Callable[[], float] = _boottime,
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._boottime = boottime
        self.ahead_ms = 0.0
        """Milliseconds by which the cluster's time is ahead of this machine's clock, as far as known."""
        self.stepped_ms = 0.0
        """Sum of all steps, in milliseconds.  Without them the clock is continuous."""
        self._confirmed = False
        """Other nodes' heartbeats have confirmed the time."""
        self._base_ms = wall() * 1000
        self._base = monotonic()
        self._rate = 1000.0
        self._asleep = boottime() - self._base
        self._opened = False
        self._logged_at = -LOG_AGAIN_SECONDS

    def follow(self, ahead_ms: float) -> None:
        """Follow the cluster's time, which other nodes report to be this far ahead of this machine's clock.

        Differences of up to a second are slewed, larger ones are stepped.
        """
        self._confirmed = True
        self.ahead_ms = ahead_ms
        off_ms = self._wall_ms() - self.exact_ms()
        if abs(off_ms) > STEP_MS:
            self._step(off_ms)

    def resume(self, ahead_ms: float) -> None:
        """Assume, before the start, that the cluster's time is still this far ahead of this machine's clock."""
        self.ahead_ms = ahead_ms
        self._base_ms = self._wall_ms()
        self._base = self._monotonic()

    def _step(self, by_ms: float) -> None:
        self._base_ms += by_ms
        self.stepped_ms += by_ms
        self._rate = 1000.0

    def elapsed_ms(self) -> float:
        """Milliseconds since an arbitrary moment, including time during which the machine was suspended."""
        return self._boottime() * 1000

    def wall_ms(self) -> float:
        """Time of this machine's wall clock, in milliseconds since the epoch."""
        return self._wall() * 1000

    def _wall_ms(self) -> float:
        return self._wall() * 1000 + self.ahead_ms

    async def open(self, time_ms: int) -> None:
        """Continue from the last time in the journal (0: none), or from the wall clock if that is later.

        Has an effect only at the first call, and not if other nodes have confirmed the time.  Returns at once, unless
        the wall clock is so far ahead that it may be wrong.
        """
        if self._opened:
            return
        await self._wait_for_a_likely_time(time_ms)
        self._opened = True
        if not self._confirmed:
            self._not_before(time_ms)

    async def _wait_for_a_likely_time(self, time_ms: int) -> None:
        since = self._monotonic()
        offset = self._wall() - since
        logged = False
        while time_ms and self._wall_ms() - time_ms > DOUBTED_MS and self._monotonic() - since < STEADY_SECONDS:
            if not logged:
                logged = True
                days = (self._wall_ms() - time_ms) / DAY_MS
                logger.error(
                    "the clock says that the journal was last written %.0f days ago: the start waits until the clock "
                    "is set, or has run steadily for %.0f s and is accepted; then old messages expire",
                    days,
                    STEADY_SECONDS,
                )
            await asyncio.sleep(ADJUST_SECONDS)
            now = self._monotonic()
            if abs(self._wall() - now - offset) > STEADY_WITHIN_SECONDS:
                since, offset = now, self._wall() - now
        if logged:
            self._base = self._monotonic()
            self._base_ms = self._wall_ms()
            self._asleep = self._boottime() - self._base

    def _not_before(self, time_ms: int) -> None:
        """Continue from this time if it is later than now."""
        if time_ms > self():
            self._base_ms = float(time_ms)
            self._base = self._monotonic()

    def __call__(self) -> int:
        return int(self.exact_ms())

    def exact_ms(self) -> float:
        """The time with fractions of a millisecond."""
        now = self._monotonic()
        elapsed = now - self._base
        if elapsed >= ADJUST_SECONDS:
            self._adjust(now)
            elapsed = 0.0
        return self._base_ms + elapsed * self._rate

    def _adjust(self, now: float) -> None:
        """Begin a new linear section, at a rate that brings this clock and the wall clock together within seconds."""
        elapsed = now - self._base
        # If the clock was not read for hours, the slew ended long ago.
        slewed = min(elapsed, CORRECT_WITHIN_SECONDS)
        value = self._base_ms + slewed * self._rate + (elapsed - slewed) * 1000
        asleep = self._boottime() - now
        if asleep - self._asleep > SUSPENDED_SECONDS:
            value += (asleep - self._asleep) * 1000
        self._asleep = asleep
        ahead = value - self._wall_ms()
        if ahead > SLEWED_MS_MAX:
            self._rate = 1000.0
            self._say_that_it_is_ahead(ahead, now)
        else:
            slew = -ahead / (CORRECT_WITHIN_SECONDS * 1000)
            self._rate = 1000.0 * (1.0 + max(-SLEW_MAX, min(SLEW_MAX, slew)))
        self._base_ms = value
        self._base = now

    def _say_that_it_is_ahead(self, ahead_ms: float, now: float) -> None:
        if now - self._logged_at >= LOG_AGAIN_SECONDS:
            self._logged_at = now
            logger.error(
                "the time of the queues is %.1f days ahead of the clock: it was set that far ahead once, or is wrong "
                "now; timeouts are exact, but timestamps of messages are off by as much",
                ahead_ms / DAY_MS,
            )
