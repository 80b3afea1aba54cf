"""Leaky buckets by key, such as the address of a client; memory is bounded."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from ratelimit.meter import BucketMeter

KEYS_MAX = 10_000
"""Maximum number of keys that are remembered; the oldest is dropped first."""


class KeyedBuckets:
    """Buckets of one kind."""

    def __init__(self, per_second: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._meters: OrderedDict[str, BucketMeter] = OrderedDict()

    def __len__(self) -> int:
        return len(self._meters)

    def take(self, key: str) -> tuple[BucketMeter, float]:
        """Take a token; returns the bucket, and the seconds until it will have a token: 0 if it was taken."""
        now = self._clock()
        meter = self._meters.get(key)
        if meter is None:
            meter = self._meters[key] = BucketMeter(key, self._per_second, self._burst, now)
            if len(self._meters) > KEYS_MAX:
                self._meters.popitem(last=False)
        else:
            self._meters.move_to_end(key)
        wait = meter.wait(now, 1.0)
        if not wait:
            meter.level, meter.at = meter.level_at(now) + 1.0, now
        return meter, wait
