"""A process that calls as often as one limit lets it: ``python -m tests.ratelimit.caller URL KEY RATE BURST SECONDS``.

It says ``ready`` once it is one of those who share the limit, starts when it is told to, and prints how many calls
were let through, and the times (of the machine's monotonic clock) of start and end.
"""

from __future__ import annotations

import asyncio
import sys
import time

from ratelimit.shared import SharedLimiter


async def main(url: str, key: str, rate: float, burst: float, seconds: float) -> None:
    limiter = SharedLimiter(url)
    await limiter.start()
    assert limiter.up
    meters = (limiter.meter(key, rate, burst),)
    print("ready", flush=True)
    sys.stdin.readline()
    start = time.monotonic()
    passed = 0
    while time.monotonic() < start + seconds:
        wait = limiter.admit_now(meters)
        if wait is None:
            wait = await limiter.admit(meters)
        if wait:
            await asyncio.sleep(0.002)
        else:
            passed += 1
    print(passed, start, time.monotonic(), flush=True)
    await limiter.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], *map(float, sys.argv[3:])))
