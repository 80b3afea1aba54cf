"""The leaky bucket within a process.

Each call adds its cost to a bucket that holds ``burst`` and drains at ``rate`` per second; a call that would
overflow it is refused and adds nothing.  So in any period of ``t`` seconds at most ``burst + rate * t`` is
admitted, and calls at intervals within ``rate`` are never refused.

A lease of tokens drawn from a shared bucket is a bucket too: one that holds the tokens, does not drain
(``rate`` 0), and is valid ``until`` a time.  So both use the same arithmetic on the path of a request.
"""

from __future__ import annotations

import math

SLACK = 1e-6
"""Tolerance in calls, so that rounding errors of many small drains do not refuse a call that is exactly on time."""


class BucketMeter:
    """The part of a limit that this process may admit by itself.  Times are seconds of one clock, costs are
    calls.

    Callers read and write the fields directly (:meth:`ratelimit.limiter.Limiter.admit_now`): a method call per
    bucket would cost more than the arithmetic.
    """

    __slots__ = ("at", "burst", "key", "level", "low", "rate", "until")

    def __init__(self, key: str, rate: float, burst: float, now: float) -> None:
        self.key = key
        self.rate = rate
        self.burst = burst + SLACK
        self.level = 0.0
        """Level of the bucket at the time ``at``."""
        self.at = now
        self.until = math.inf
        """Time until which the meter is valid."""
        self.low = math.inf
        """Level above which a lease is renewed before it is used up."""

    def level_at(self, now: float) -> float:
        return max(0.0, self.level - max(0.0, now - self.at) * self.rate)

    def wait(self, now: float, cost: float) -> float:
        """Seconds until this cost fits; 0 if it does now, infinity if it never will."""
        over = self.level_at(now) + cost - self.burst
        if over <= 0:
            return 0.0
        if cost > self.burst or not self.rate:
            return math.inf
        return over / self.rate
