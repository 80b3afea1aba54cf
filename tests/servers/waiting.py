"""Waiting for conditions with a timeout."""

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")

POLL_SECONDS = 0.05
TIMEOUT_SECONDS = 120.0
"""Long, because a busy machine is not an error."""


def wait_until(
    condition: Callable[[], Answer | None],
    what: str,
    timeout_seconds: float = TIMEOUT_SECONDS,
    poll_seconds: float = POLL_SECONDS,
) -> Answer:
    """Call ``condition`` until its result is true, and return that result.

    Raises ``TimeoutError`` naming ``what`` after ``timeout_seconds``.  An exception of the condition ends the wait.
    """
    end = time.monotonic() + timeout_seconds
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not so after {timeout_seconds:g} s")
        time.sleep(poll_seconds)


async def until(
    condition: Callable[[], object], timeout_seconds: float = TIMEOUT_SECONDS, poll_seconds: float = 0.005
) -> None:
    """Wait on the loop until the result of ``condition``, which may be a coroutine function, is true."""
    async with asyncio.timeout(timeout_seconds):
        while True:
            answer = condition()
            if await answer if inspect.isawaitable(answer) else answer:
                return
            await asyncio.sleep(poll_seconds)
