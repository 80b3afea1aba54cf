"""Processes that share one rate limit through a Redis, each calling as often as it may.

``python -m tests.servers.callers URL KEY RATE BURST SECONDS`` is one of them.  It prints ``ready`` once it shares the
limit, starts on a line of input, and prints the number of admitted calls, and the times (of the machine's monotonic
clock) of start and end.
"""

import asyncio
import subprocess
import sys
import time
from typing import NamedTuple

from ratelimit.shared import SharedLimiter


class Shared(NamedTuple):
    """Calls admitted to all processes together."""

    passed: list[int]
    """Admitted calls of each process."""
    seconds: float
    """Time from the start of the first to the end of the last."""

    def rate(self, burst: float) -> float:
        """Return the calls per second, without those of a bucket that was full at the start."""
        return (sum(self.passed) - burst) / self.seconds


def share(url: str, rate: float, burst: float, processes: int, seconds: float) -> Shared:
    """Run ``processes`` callers for ``seconds``, with one limit for all."""
    arguments = [url, "{123456789012}:calls", str(rate), str(burst), str(seconds)]
    callers = [
        subprocess.Popen(
            [sys.executable, "-m", __name__, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(processes)
    ]
    try:
        for caller in callers:
            assert caller.stdout is not None
            assert caller.stdout.readline().strip() == "ready"
        for caller in callers:
            assert caller.stdin is not None
            caller.stdin.write("go\n")
            caller.stdin.flush()
        results = [caller.communicate(timeout=seconds + 50)[0].split() for caller in callers]
    finally:
        for caller in callers:
            caller.kill()
            caller.wait()
    starts, ends = [float(start) for _, start, _ in results], [float(end) for _, _, end in results]
    return Shared([int(passed) for passed, _, _ in results], max(ends) - min(starts))


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
