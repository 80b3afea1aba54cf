"""The leaky bucket as a strategy of the limits library, over that library's own storages.

    storage = limits.storage.storage_from_string("redis://localhost:6379")
    limiter = LeakyBucketRateLimiter(storage)
    limiter.hit(LeakyBucketItem(100, burst=250), "tenant", "123456789012")

All of the library's items work: ``limits.parse("5 per minute")`` drains five calls a minute and has a burst of
five. The storage can serve the library's other strategies at the same time, and its ``reset`` also clears these
buckets.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from limits import RateLimitItem, RateLimitItemPerSecond, WindowStats
from limits.storage import MemoryStorage, RedisStorage
from limits.strategies import RateLimiter

from ratelimit.meter import SLACK
from ratelimit.script import SCRIPT, BucketGrant, BucketRequest, arguments, grants

_SWEEP_HITS = 1_000
_NANO = 1_000_000_000


class LeakyBucketItem(RateLimitItemPerSecond):
    """``amount`` calls per ``multiples`` seconds, with a separate burst."""

    __slots__ = ["burst"]

    def __init__(
        self, amount: int, multiples: int = 1, namespace: str = "LIMITER", *, burst: int | None = None
    ) -> None:
        super().__init__(amount, multiples, namespace)
        self.burst = self.amount if burst is None else burst
        """Number of calls at once."""
        if self.burst < 1:
            raise ValueError(f"the burst of a limit is at least 1, not {burst}")


class LeakyBucketRateLimiter(RateLimiter):
    """Admits calls at an even rate, after a burst.

    Works on ``MemoryStorage`` and ``RedisStorage`` (``NotImplementedError`` for others).  In memory use one
    limiter per storage: its lock protects the threads.
    """

    def __init__(self, storage: Any, clock: Callable[[], float] = time.time) -> None:
        super().__init__(storage)
        self._buckets: _MemoryBuckets | _RedisBuckets
        if isinstance(storage, MemoryStorage):
            self._buckets = _MemoryBuckets(storage, clock)
        elif isinstance(storage, RedisStorage):
            self._buckets = _RedisBuckets(storage)
        else:
            raise NotImplementedError(f"leaky buckets are not implemented for storage of type {storage.__class__}")
        self._clock = clock

    def hit(self, item: RateLimitItem, *identifiers: str, cost: int = 1) -> bool:
        return self._buckets.ask(_order(item, identifiers, cost, cost)).granted > 0

    def test(self, item: RateLimitItem, *identifiers: str, cost: int = 1) -> bool:
        return self._buckets.ask(_order(item, identifiers, 0, cost)).wait_s == 0

    def get_window_stats(self, item: RateLimitItem, *identifiers: str) -> WindowStats:
        """Time at which the bucket will have drained, and the number of calls that fit now."""
        order = _order(item, identifiers, 0, 0)
        level = self._buckets.ask(order).level
        return WindowStats(self._clock() + level / order.rate, int(order.burst - level + SLACK))

    def clear(self, item: RateLimitItem, *identifiers: str) -> None:
        self.storage.clear(_key(item, identifiers))


class _MemoryBuckets:
    """Buckets in the library's own dictionaries.  A bucket's entry is the time (nanoseconds) at which it will
    have drained, from which on the library may drop it."""

    def __init__(self, storage: MemoryStorage, clock: Callable[[], float]) -> None:
        self._storage = storage
        self._clock = clock
        self._lock = threading.Lock()
        self._hits = 0

    def ask(self, order: BucketRequest) -> BucketGrant:
        with self._lock:
            now = self._clock()
            now_ns = int(now * _NANO)
            drained_ns = max(now_ns, self._storage.storage.get(order.key, 0))
            level = (drained_ns - now_ns) / _NANO * order.rate
            over = level + order.want_min - order.burst
            if over > SLACK:
                return BucketGrant(0.0, over / order.rate, level)
            if order.want:
                level += order.want
                drained_ns += round(order.want / order.rate * _NANO)
                self._storage.storage[order.key] = drained_ns
                self._storage.expirations[order.key] = drained_ns / _NANO
                self._hits += 1
                if self._hits % _SWEEP_HITS == 0:
                    self._sweep(now)
            return BucketGrant(order.want, 0.0, level)

    def _sweep(self, now: float) -> None:
        """Remove expired entries, which the library does only when its own strategies are used."""
        for key in [key for key, expires in self._storage.expirations.items() if expires <= now]:
            self._storage.clear(key)


class _RedisBuckets:
    def __init__(self, storage: RedisStorage) -> None:
        self._storage = storage
        self._script = storage.get_connection().register_script(SCRIPT.encode())

    def ask(self, order: BucketRequest) -> BucketGrant:
        return grants(self._script(keys=[self._storage.prefixed_key(order.key)], args=arguments([order])))[0]


def _order(item: RateLimitItem, identifiers: tuple[str, ...], want: float, want_min: float) -> BucketRequest:
    burst = item.burst if isinstance(item, LeakyBucketItem) else item.amount
    return BucketRequest(_key(item, identifiers), item.amount / item.get_expiry(), burst, want, want_min)


def _key(item: RateLimitItem, identifiers: tuple[str, ...]) -> str:
    """Key of the bucket, different from those of the library's other strategies, which store other values."""
    return f"leaky/{item.key_for(*identifiers)}"
