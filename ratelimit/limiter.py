"""The limits of one process, checked synchronously on each request."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from ratelimit.meter import BucketMeter

M = TypeVar("M", bound=BucketMeter)


class BaseLimiter(Generic[M]):
    """Meters by key.  A call is admitted by all of its meters or by none."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._meters: dict[str, M] = {}
        self._dropped: dict[str, M] = {}
        """Unused meters, removed once they have drained."""

    def meter(self, key: str, per_second: float, burst: float) -> M:
        """Return the meter of this key, with this rate and burst; its bucket keeps its level.  The caller may keep the
        meter until the numbers change.
        """
        meter = self._meters.get(key)
        if meter is None:
            meter = self._meters[key] = self._make(key, per_second, burst)
        else:
            self._dropped.pop(key, None)
            self._set(meter, per_second, burst)
        return meter

    def admit_now(self, meters: Sequence[M], cost: float = 1.0) -> float | None:
        """Admit a call without waiting.  0: it is admitted and counted.  Above 0: it is refused, not counted,
        and may be retried after this many seconds (infinity: its cost exceeds a burst).  None: ask :meth:`admit`,
        which may wait."""
        now = self._clock()
        runs_low = False
        for meter in meters:
            level = meter.level - (now - meter.at) * meter.rate
            level = level + cost if level > 0.0 else cost
            if level > meter.burst or now >= meter.until:
                self.give_back(meters[: meters.index(meter)], cost)
                return self._short(meters, cost, now)
            meter.level = level
            meter.at = now
            if level > meter.low:
                runs_low = True
        if runs_low:
            for meter in meters:
                if meter.level > meter.low:
                    self._draw_ahead(meter)
        return 0.0

    async def admit(self, meters: Sequence[M], cost: float = 1.0) -> float:
        """Admit a call as :meth:`admit_now` does, waiting for an answer if necessary."""
        raise NotImplementedError

    def give_back(self, meters: Sequence[M], cost: float = 1.0) -> None:
        """Return the cost of an admitted call that was then refused for another reason."""
        for meter in meters:
            meter.level = max(0.0, meter.level - cost)

    def drop(self, meters: Iterable[M]) -> None:
        """Release meters that the caller no longer uses.  Each is removed once it has drained, when it equals a
        new one."""
        now = self._clock()
        self._dropped.update((meter.key, meter) for meter in meters)
        for key, meter in list(self._dropped.items()):
            if self._drained(meter, now):
                del self._dropped[key]
                del self._meters[key]

    async def start(self) -> None:
        """Start the limiter, before the first call."""

    async def close(self) -> None:
        """Stop the limiter, after the last call."""

    def _make(self, key: str, per_second: float, burst: float) -> M:
        raise NotImplementedError

    def _set(self, meter: M, per_second: float, burst: float) -> None:
        raise NotImplementedError

    def _short(self, meters: Sequence[M], cost: float, now: float) -> float | None:
        raise NotImplementedError

    def _draw_ahead(self, meter: M) -> None:
        raise AssertionError("a bucket that drains is never low")

    def _drained(self, meter: M, now: float) -> bool:
        raise NotImplementedError


class Limiter(BaseLimiter[BucketMeter]):
    """Limits of this process alone: every answer is synchronous."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, processes: int = 1) -> None:
        """``processes``: number of processes that share the limits; this one gets its part of each."""
        super().__init__(clock)
        self._processes = processes

    async def admit(self, meters: Sequence[BucketMeter], cost: float = 1.0) -> float:
        answer = self.admit_now(meters, cost)
        assert answer is not None
        return answer

    def _make(self, key: str, per_second: float, burst: float) -> BucketMeter:
        return BucketMeter(key, per_second / self._processes, max(1.0, burst / self._processes), self._clock())

    def _set(self, meter: BucketMeter, per_second: float, burst: float) -> None:
        now = self._clock()
        fresh = self._make(meter.key, per_second, burst)
        meter.level, meter.at = meter.level_at(now), now
        meter.rate, meter.burst = fresh.rate, fresh.burst

    def _short(self, meters: Sequence[BucketMeter], cost: float, now: float) -> float:
        return max(meter.wait(now, cost) for meter in meters)

    def _drained(self, meter: BucketMeter, now: float) -> bool:
        return meter.level_at(now) == 0.0
