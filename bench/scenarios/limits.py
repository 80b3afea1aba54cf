"""What rate limits cost: the decision by itself."""

from __future__ import annotations

import timeit

from bench.scenarios.run import Run
from bench.servers import Server
from ratelimit.limiter import Limiter

_DECISIONS = 200_000
_REPEATS = 5


async def decide(run: Run, server: Server) -> None:
    """The best of some rounds, in this process; the server has no part in it."""
    limiter = Limiter()
    for count in (0, 1, 3):
        meters = tuple(limiter.meter(str(number), 1e9, 1e9) for number in range(count))

        def admit(meters: tuple[object, ...] = meters) -> object:
            return limiter.admit_now(meters)  # type: ignore[arg-type]

        admit()
        best = min(timeit.repeat(admit, number=_DECISIONS, repeat=_REPEATS))
        run.figure("limits", server, f"a decision over {count} buckets", best / _DECISIONS * 1e6, "µs")
