"""The cost of rate limits, and their accuracy when several processes share one through a Redis."""

from __future__ import annotations

import timeit

from bench.run import BenchRun
from bench.servers.servers import ServerProcess
from ratelimit.limiter import Limiter
from tests.servers.callers import share
from tests.servers.redis_server import RedisServer

_DECISIONS = 200_000
_REPEATS = 5
_RATE = 400.0
_BURST = 200.0
_SECONDS = 10.0


async def decide(run: BenchRun, server: ServerProcess) -> None:
    """Measure the best of some rounds, in this process; the server is not used."""
    limiter = Limiter()
    for count in (0, 1, 3):
        meters = tuple(limiter.meter(str(number), 1e9, 1e9) for number in range(count))

        def admit(meters: tuple[object, ...] = meters) -> object:
            return limiter.admit_now(meters)  # type: ignore[arg-type]

        admit()
        best = min(timeit.repeat(admit, number=_DECISIONS, repeat=_REPEATS))
        run.figure("limits", server, f"a decision over {count} buckets", best / _DECISIONS * 1e6, "µs")


async def accuracy(run: BenchRun, server: ServerProcess) -> None:
    """Measure three processes that each want all of one rate, on one Redis, for ten seconds."""
    with RedisServer() as redis:
        shared = share(redis.url, _RATE, _BURST, 3, _SECONDS)
    off = abs(shared.rate(_BURST) / _RATE - 1) * 100
    run.figure("shared-limit", server, "three processes on one Redis, off the rate", off, "%")
