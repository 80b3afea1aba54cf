"""Waiting for a named condition with a timeout, for tests that observe a real process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")

POLL_SECONDS = 0.02


def wait_until(
    condition: Callable[[], Answer | None],
    what: str,
    timeout_seconds: float = 60.0,
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
