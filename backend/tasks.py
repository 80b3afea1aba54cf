"""Tasks that run beside the calls, and how what goes wrong in them is told.

A task answers nobody, so nobody would notice that it has ended.  What it expects to go wrong it handles itself, and
goes on.  Any other exception is a fault in this code, and what is in memory may no longer be what the journal says:
it is logged with its traceback, and the owner of the tasks hears of it and starts over from what is durable.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from typing import Any, Final, TypeVar

T = TypeVar("T")

SAID_AGAIN_SECONDS: Final = 60.0
SLICE_SECONDS: Final = 0.002
"""The loop gets a turn after so much work on end."""
KEPT_MOST: Final = 256
"""With more complaints than this, those that were not repeated for a minute are forgotten."""


class Tasks:
    """The tasks of one incarnation."""

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        """``on_failure`` is called when a task has ended in a way that nobody asked for; never after :meth:`stop`."""
        self._on_failure = on_failure
        self._running: set[asyncio.Task[None]] = set()
        self._stopped = False

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run ``work`` until it ends or :meth:`stop` is called.  It may be cancelled alone, too."""
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
        elif not task.cancelling():  # what it waited for was cancelled, and the task with it
            self.failed(task.get_name(), asyncio.CancelledError("its work was cancelled from within"))

    def failed(self, name: str, error: BaseException) -> None:
        """Something that runs beside the calls has failed: a task, or a timer's callback."""
        context = {"message": f"{name} has failed unexpectedly", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
        if not self._stopped:
            self._on_failure(error)

    def stop(self) -> None:
        self._stopped = True
        for task in self._running:
            task.cancel()


async def in_groups(work: Sequence[Callable[[], Awaitable[T]]], size: int) -> list[T]:
    """Do this work, at most ``size`` of it at a time; returns the results in its order."""
    results: list[T] = []
    for start in range(0, len(work), size):
        results += await asyncio.gather(*(one() for one in work[start : start + size]))
    return results


class Complaints:
    """Keeps what is tried again and again from being said each time: said once, and once a minute while it lasts."""

    def __init__(self) -> None:
        self._said: dict[Hashable, tuple[str, float]] = {}

    def is_news(self, about: Hashable, text: str) -> bool:
        """Whether this is to be said now: it is another text than the last one, or that was said a minute ago."""
        now = asyncio.get_running_loop().time()
        known = self._said.get(about)
        if known is not None and known[0] == text and now - known[1] < SAID_AGAIN_SECONDS:
            return False
        if len(self._said) >= KEPT_MOST:
            self._said = {key: said for key, said in self._said.items() if now - said[1] < SAID_AGAIN_SECONDS}
        self._said[about] = (text, now)
        return True

    def settled(self, about: Hashable) -> None:
        """It works again."""
        self._said.pop(about, None)


class Slices:
    """Lets the loop have its turns between the steps of long work."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    async def step(self) -> None:
        """A step is done."""
        if time.perf_counter() - self._began > SLICE_SECONDS:
            await asyncio.sleep(0)
            self._began = time.perf_counter()
