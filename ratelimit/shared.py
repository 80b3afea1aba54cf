"""Limits that several processes share through Redis.

The buckets are in Redis (:mod:`ratelimit.script`).  A process draws tokens from them and spends them itself: a
*lease*, at most ``lease_seconds`` of the rate, which expires after the same time.  So at a high rate most calls
need no round trip, and at a low one (where a lease would be less than two calls) each call draws its own token.
The size of a request follows use: twice as much when a lease was used up early, the spent amount when it
expired.  Unspent tokens are returned with the next draw.

Accuracy: tokens of a lease are charged when they are drawn, so the rate holds over any time that is long
against a lease; a burst can exceed the bucket by the tokens that processes hold in leases.

A refusal is cached for the time that Redis returned, so a caller above its limit costs no round trips.

When Redis cannot be reached, each process continues with its own buckets, at its share of the rates: divided by
the number of processes seen there recently.  The failure is detected by a call that waits at most
``timeout_seconds``; afterwards no call waits, until a background probe has succeeded.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from limits.aio.storage import RedisStorage
from limits.errors import ConfigurationError
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from ratelimit.address import check_url, shown
from ratelimit.limiter import BaseLimiter
from ratelimit.meter import SLACK, BucketMeter
from ratelimit.script import SCRIPT, BucketGrant, BucketRequest, arguments, grants

LEASE_SECONDS = 0.1
TIMEOUT_SECONDS = 0.25
HEARTBEAT_SECONDS = 2.0
PROBE_SECONDS = 0.5
"""Interval of probes while Redis is down."""
HOLD_SECONDS_MAX = 0.01
"""Minimum time before a refused draw is repeated, so that a full bucket does not cause a draw for each token."""
MEMBER_BEATS = 4
"""Number of missed heartbeats after which a process no longer counts."""
COUNTS_KEPT = 16
"""Number of heartbeats whose maximum process count applies, because a flushed Redis at first knows only some
processes."""
ASKS_MAX = 32
"""Maximum number of concurrent draws, each on its own connection."""
ROUNDS_MAX = 16
"""Maximum number of draws that one call waits for, because other calls may take the drawn tokens."""

_log = logging.getLogger("holdfast.limits")


class SharedMeter(BucketMeter):
    """A lease, or while Redis is down a bucket with this process's share."""

    __slots__ = ("flight", "full_burst", "full_rate", "lease_max", "own_bucket", "refused_until", "waiting", "want")

    def __init__(self, key: str, rate: float, burst: float, now: float) -> None:
        super().__init__(key, 0.0, 0.0, now)
        self.burst = 0.0
        self.full_rate = rate
        self.full_burst = burst
        self.lease_max = 1.0
        """Maximum number of tokens of a lease."""
        self.want = 1.0
        """Number of tokens to request next."""
        self.waiting = 0.0
        """Number of tokens that calls are waiting for."""
        self.refused_until = now
        self.flight: asyncio.Future[None] | None = None
        """The draw in progress."""
        self.own_bucket = (0.0, now)
        """Level and time of the process's own bucket when it was last used."""
        self.until = now


class SharedLimiter(BaseLimiter[SharedMeter]):
    """Leases of buckets in a Redis.  Times are by ``clock``, except for Redis' own clock."""

    def __init__(
        self,
        url: str,
        *,
        processes: int = 1,
        clock: Callable[[], float] = time.monotonic,
        lease_seconds: float = LEASE_SECONDS,
        timeout_seconds: float = TIMEOUT_SECONDS,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
        probe_seconds: float = PROBE_SECONDS,
        key_prefix: str = "holdfast",
    ) -> None:
        """``processes``: number assumed to share this Redis until it is first reached.

        Raises ``ValueError`` for an invalid URL; connects only in :meth:`start`.
        """
        super().__init__(clock)
        self._storage = _storage(url, key_prefix, timeout_seconds)
        bridge: Any = self._storage.bridge
        self._redis = bridge.get_connection()
        self._script = self._redis.register_script(SCRIPT.encode())
        self._prefixed = bridge.prefixed_key
        self._asks = asyncio.Semaphore(ASKS_MAX)
        self._lease_seconds = lease_seconds
        self._timeout_seconds = timeout_seconds
        self._heartbeat_seconds = heartbeat_seconds
        self._probe_seconds = probe_seconds
        self._member = os.urandom(8).hex()
        self._counts = deque([processes], maxlen=COUNTS_KEPT)
        self._where = shown(url)
        self._flights: set[asyncio.Future[None]] = set()
        self._heart: asyncio.Task[None] | None = None
        self._failed = asyncio.Event()
        self._closing = False
        self.up = True
        """True while Redis answers."""

    @property
    def processes(self) -> int:
        """Number of processes that share the limits, as far as known."""
        return max(self._counts)

    async def start(self) -> None:
        """Probe Redis, then periodically.  A Redis that is down is logged, and is no failure."""
        await self._beat()
        self._heart = asyncio.create_task(self._beats(), name="heartbeat of the limits")

    async def close(self) -> None:
        if self._heart is not None:
            self._closing = True  # the Redis client has been seen to swallow a cancellation
            self._failed.set()
            self._heart.cancel()
            await asyncio.gather(self._heart, return_exceptions=True)
        await asyncio.gather(*self._flights, return_exceptions=True)
        if self.up:
            try:
                async with asyncio.timeout(self._timeout_seconds):
                    await self._redis.zrem(self._prefixed("members"), self._member)
            except (RedisError, OSError, TimeoutError):
                pass  # the other processes notice the missing heartbeats
        await self._redis.aclose()

    async def admit(self, meters: Sequence[SharedMeter], cost: float = 1.0) -> float:
        for _ in range(ROUNDS_MAX):
            answer = self.admit_now(meters, cost)
            if answer is not None:
                return answer
            now = self._clock()
            needy = [meter for meter in meters if not self._has(meter, cost, now)]
            for meter in needy:
                meter.waiting += cost
            try:
                flight = next((meter.flight for meter in needy if meter.flight is not None), None)
                await asyncio.shield(self._draw(needy, cost) if flight is None else flight)
            finally:
                for meter in needy:
                    meter.waiting -= cost
        return self._lease_seconds

    # --- meters ---

    def _make(self, key: str, per_second: float, burst: float) -> SharedMeter:
        meter = SharedMeter(key, per_second, burst, self._clock())
        self._set(meter, per_second, burst)
        return meter

    def _set(self, meter: SharedMeter, per_second: float, burst: float) -> None:
        meter.full_rate, meter.full_burst = per_second, burst
        meter.lease_max = max(1.0, min(per_second * self._lease_seconds, burst / 2))
        if meter.lease_max < 2:
            meter.lease_max = 1.0
        meter.want = min(meter.want, meter.lease_max)
        if not self.up:
            self._to_share(meter)

    def _has(self, meter: SharedMeter, cost: float, now: float) -> bool:
        return now < meter.until and meter.wait(now, cost) == 0

    def _short(self, meters: Sequence[SharedMeter], cost: float, now: float) -> float | None:
        if not self.up:
            return max(meter.wait(now, cost) for meter in meters)
        if any(cost > meter.full_burst for meter in meters):
            return float("inf")
        wait = max(0.0 if self._has(meter, cost, now) else meter.refused_until - now for meter in meters)
        return wait if wait > 0 else None

    def _drained(self, meter: SharedMeter, now: float) -> bool:
        if not self.up:
            return meter.level_at(now) == 0
        return now >= meter.until and meter.flight is None

    def _to_share(self, meter: SharedMeter) -> None:
        """Switch to a bucket with this process's share."""
        share = 1 / self.processes
        now = self._clock()
        own = BucketMeter(meter.key, meter.full_rate * share, max(1.0, meter.full_burst * share), now)
        if meter.rate:
            own.level = meter.level_at(now)
        else:
            level, at = meter.own_bucket
            own.level = max(0.0, level - (now - at) * own.rate)
        meter.rate, meter.burst, meter.level, meter.at = own.rate, own.burst, own.level, now
        meter.until = meter.low = float("inf")

    def _to_lease(self, meter: SharedMeter) -> None:
        """Switch to leases, without any tokens yet."""
        now = self._clock()
        meter.own_bucket = (meter.level_at(now), now)
        meter.rate, meter.burst, meter.level, meter.at = 0.0, 0.0, 0.0, now
        meter.until = meter.refused_until = now
        meter.want = 1.0

    # --- draws ---

    def _draw_ahead(self, meter: SharedMeter) -> None:
        """Renew a lease that runs low while it still has tokens."""
        meter.low = float("inf")
        if meter.flight is None and self._clock() >= meter.refused_until:
            self._draw([meter], 0.0)

    def _draw(self, meters: Sequence[SharedMeter], want_min: float) -> asyncio.Future[None]:
        """Draw for these meters, all or none; with ``want_min`` 0 add to the remaining lease."""
        now = self._clock()
        orders = []
        for meter in meters:
            left = max(0.0, meter.burst - meter.level)
            if want_min:
                if now < meter.until:
                    meter.want = min(meter.lease_max, 2 * meter.want)
                elif meter.burst:
                    meter.want = min(meter.lease_max, max(1.0, meter.level))
                meter.level = meter.burst = 0.0
                want, back = max(want_min, meter.want, meter.waiting), left
            else:
                meter.want = min(meter.lease_max, 2 * meter.want)
                want, back = min(meter.want, meter.lease_max - left), 0.0
            orders.append(BucketRequest(meter.key, meter.full_rate, meter.full_burst, want, want_min, back))
        flight = asyncio.ensure_future(self._fetch(meters, orders))
        self._flights.add(flight)
        flight.add_done_callback(self._flights.discard)
        for meter in meters:
            meter.flight = flight
        return flight

    async def _fetch(self, meters: Sequence[SharedMeter], orders: Sequence[BucketRequest]) -> None:
        try:
            answers = await self._ask(orders)
        except (RedisError, OSError, TimeoutError) as error:
            self._lost(error)
            return
        finally:
            for meter in meters:
                meter.flight = None
        if self.up:
            now = self._clock()
            for meter, order, grant in zip(meters, orders, answers, strict=True):
                self._take(meter, order, grant, now)

    def _take(self, meter: SharedMeter, order: BucketRequest, grant: BucketGrant, now: float) -> None:
        if grant.granted:
            left = max(0.0, meter.burst - meter.level) if now < meter.until else 0.0
            meter.burst, meter.level, meter.at = left + grant.granted, 0.0, now
            meter.until = now + self._lease_seconds
            # A draw granted less than requested emptied the bucket: another one at once would get nothing.
            enough = meter.lease_max > 1 and grant.granted >= order.want - SLACK
            meter.low = meter.burst / 2 if enough else float("inf")
        if grant.wait_s or (not order.want_min and grant.granted < order.want - SLACK):
            hold = min(HOLD_SECONDS_MAX, meter.full_burst / meter.full_rate / 4)
            meter.refused_until = now + max(grant.wait_s, hold)

    async def _ask(self, orders: Sequence[BucketRequest]) -> list[BucketGrant]:
        async with asyncio.timeout(self._timeout_seconds), self._asks:
            answer = await self._script(keys=[self._prefixed(order.key) for order in orders], args=arguments(orders))
        return grants(answer)

    # --- Redis down and up ---

    def _lost(self, error: Exception) -> None:
        if not self.up:
            return
        self.up = False
        _log.warning(
            "Redis at %s does not answer (%s): until it does, this process admits 1/%d of each limit",
            self._where,
            str(error) or type(error).__name__,
            self.processes,
        )
        for meter in self._meters.values():
            self._to_share(meter)
        self._failed.set()

    def _found(self) -> None:
        if self.up:
            return
        self.up = True
        _log.warning("Redis at %s answers again: limits are shared by %d processes", self._where, self.processes)
        for meter in self._meters.values():
            self._to_lease(meter)

    async def _beats(self) -> None:
        while not self._closing:
            self._failed.clear()
            pause = self._heartbeat_seconds if self.up else self._probe_seconds
            try:
                async with asyncio.timeout(pause):
                    await self._failed.wait()
            except TimeoutError:
                await self._beat()

    async def _beat(self) -> None:
        """Report that this process is alive, and count the live ones."""
        key = self._prefixed("members")
        try:
            async with asyncio.timeout(self._timeout_seconds):
                seconds, micros = await self._redis.time()
                now = seconds + micros / 1e6
                kept = self._heartbeat_seconds * MEMBER_BEATS
                pipeline = self._redis.pipeline(transaction=True)
                pipeline.zadd(key, {self._member: now})
                pipeline.zremrangebyscore(key, "-inf", now - kept)
                pipeline.zcard(key)
                pipeline.expire(key, int(kept) + 1)
                count = (await pipeline.execute())[2]
            await self._ask([BucketRequest("probe", 1.0, 1.0, 0.0, 0.0)])
        except (RedisError, OSError, TimeoutError) as error:
            self._lost(error)
        else:
            self._counts.append(max(1, count))
            self._found()


def _storage(url: str, key_prefix: str, timeout_seconds: float) -> RedisStorage:
    check_url(url)
    parts = urlsplit(url)
    if parts.scheme == "unix":
        url = f"redis+{url}"
    elif parts.port is None:
        url = url.replace(parts.netloc, f"{parts.netloc}:6379", 1)
    options: dict[str, Any] = {
        "socket_timeout": timeout_seconds,
        "socket_connect_timeout": timeout_seconds,
        "retry": Retry(NoBackoff(), 0),
    }
    try:
        return RedisStorage(f"async+{url}", implementation="redispy", key_prefix=key_prefix, **options)
    except ConfigurationError as error:
        raise ValueError(f"{shown(url)!r} is not the address of a Redis") from error
