"""The leaky bucket, as a process keeps it.

Each call pours its cost into a bucket that holds ``burst`` and drains at ``rate`` a second; a call that would
overflow it is refused and pours nothing.  So in any stretch of ``t`` seconds at most ``burst + rate * t`` is let
through, and calls that come no faster than ``rate`` are never refused.

A lease of tokens that were drawn from a shared bucket is a bucket too: one that holds the tokens, does not drain
(``rate`` 0), and is good ``until`` a time.  So the path of a request has one form of arithmetic for both.
"""

from __future__ import annotations

import math

SLACK = 1e-6
"""Of a call.  What floating point makes of many small drains must not refuse a call that is exactly on time."""


class Meter:
    """What this process may let through of one limit by itself.  Times are seconds of one clock, costs are calls.

    Whoever lets a call through reads and writes the fields itself (:meth:`ratelimit.limiter.Limiter.admit_now`):
    a method call for each bucket would cost more than the arithmetic.
    """

    __slots__ = ("at", "burst", "key", "level", "low", "rate", "until")

    def __init__(self, key: str, rate: float, burst: float, now: float) -> None:
        self.key = key
        self.rate = rate
        self.burst = burst + SLACK
        self.level = 0.0
        """Of what was poured and has not drained at the time ``at``."""
        self.at = now
        self.until = math.inf
        """The meter tells nothing from then on."""
        self.low = math.inf
        """A lease that is fuller than this is drawn anew before it is used up."""

    def level_at(self, now: float) -> float:
        return max(0.0, self.level - max(0.0, now - self.at) * self.rate)

    def wait(self, now: float, cost: float) -> float:
        """Seconds until there is room for this cost; 0 now, infinity if it would never fit."""
        over = self.level_at(now) + cost - self.burst
        if over <= 0:
            return 0.0
        if cost > self.burst or not self.rate:
            return math.inf
        return over / self.rate
