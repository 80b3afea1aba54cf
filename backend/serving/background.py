"""Background tasks of an incarnation, and the handling of their failures.

No caller waits for a background task, so its end would go unnoticed.  A task handles the errors that it expects, and
continues.  Any other exception is a fault in this code, and memory may no longer match the journal: it is logged with
its traceback, and the owner of the tasks is notified and restarts from what is durable.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from typing import Any, Final, TypeVar

T = TypeVar("T")

LOG_AGAIN_SECONDS: Final = 60.0
SLICE_SECONDS: Final = 0.002
"""Time of continuous work after which the loop runs other tasks."""
PACED_SLICE_SECONDS: Final = 0.0005
"""Time of continuous work that no call waits for, after which it pauses."""
PAUSE_FACTOR: Final = 3
"""Length of that pause, as a multiple of the work."""
KEPT_MAX: Final = 256
"""Number of remembered errors above which those that were not repeated for a minute are forgotten."""


class Tasks:
    """The tasks of one incarnation."""

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        """``on_failure`` is called when a task has ended unexpectedly; never after :meth:`stop`."""
        self._on_failure = on_failure
        self._running: set[asyncio.Task[None]] = set()
        self._stopped = False

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run ``work`` until it ends or :meth:`stop` is called.  It may also be cancelled alone."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            error = task.exception()
            if error is not None:
                self.failed(task.get_name(), error)
        # The awaited work was cancelled, and the task with it.
        elif not task.cancelling():
            self.failed(task.get_name(), asyncio.CancelledError("its work was cancelled from within"))

    def failed(self, name: str, error: BaseException) -> None:
        """Report the failure of a background task, or of a timer's callback."""
        context = {"message": f"{name} has failed unexpectedly", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
        if not self._stopped:
            self._on_failure(error)

    def stop(self) -> None:
        self._stopped = True
        for task in self._running:
            task.cancel()


async def in_groups(work: Sequence[Callable[[], Awaitable[T]]], size: int) -> list[T]:
    """Do this work, at most ``size`` calls at a time; return the results in its order."""
    results: list[T] = []
    for start in range(0, len(work), size):
        results += await asyncio.gather(*(one() for one in work[start : start + size]))
    return results


class LogThrottle:
    """Log throttle: a repeated error is logged once, and then once a minute while it lasts."""

    def __init__(self) -> None:
        self._logged: dict[Hashable, tuple[str, float]] = {}

    def should_log(self, about: Hashable, text: str) -> bool:
        """Return whether to log now: the text differs from the last one, or that was logged a minute ago."""
        now = asyncio.get_running_loop().time()
        known = self._logged.get(about)
        if known is not None and known[0] == text and now - known[1] < LOG_AGAIN_SECONDS:
            return False
        if len(self._logged) >= KEPT_MAX:
            self._logged = {key: last for key, last in self._logged.items() if now - last[1] < LOG_AGAIN_SECONDS}
        self._logged[about] = (text, now)
        return True

    def forget(self, about: Hashable) -> None:
        """Forget the error, because the operation works again."""
        self._logged.pop(about, None)


class Slices:
    """Lets the loop run between the steps of long work."""

    def __init__(self) -> None:
        self._started_at = time.perf_counter()

    async def step(self) -> None:
        """End a step."""
        if time.perf_counter() - self._started_at > SLICE_SECONDS:
            await asyncio.sleep(0)
            self._started_at = time.perf_counter()


class PacedSlices(Slices):
    """Lets the loop rest between the steps of long work that no call waits for.

    A commit's thread takes the interpreter's lock four times, and a busy event loop releases it only when it polls its
    sockets.  With work in every iteration of the loop, each commit took ten to twenty milliseconds more.
    """

    async def step(self) -> None:
        """End a step."""
        seconds = time.perf_counter() - self._started_at
        if seconds > PACED_SLICE_SECONDS:
            # Most of a longer time was spent waiting, while the loop was free.
            await asyncio.sleep(PAUSE_FACTOR * min(seconds, SLICE_SECONDS))
            self._started_at = time.perf_counter()
