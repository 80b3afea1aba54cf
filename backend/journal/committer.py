"""Who waits for a commit: the event loop itself where the disk is quick, a thread where it is not.

Handing a write to a thread and hearing of it costs about as much CPU as the write and its sync, and the two contend
for the interpreter.  So the loop makes the two calls itself, as Redis does with ``appendfsync always``: requests that
arrive meanwhile wait in the kernel and ride the next commit together.  When that takes long, commits go through the
thread for a while, so that a slow disk delays answers and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from time import monotonic
from typing import Final

Done = Callable[[BaseException | None], None]

INLINE_BYTES: Final = 128 << 10
"""The loop does not wait for larger rows."""
INLINE_SECONDS: Final = 0.001
"""Nor for commits that take longer than this on the average of about the last ``PACE_COMMITS``."""
PACE_COMMITS: Final = 16
THREAD_SECONDS: Final = 5
"""For so long the thread commits then, before the loop tries again."""


def write_durably(fd: int, data: bytes, offset: int) -> BaseException | None:
    """Write and sync.  Returns what went wrong: whatever it is, the log has to hear of it."""
    try:
        write_all(fd, data, offset)
        os.fdatasync(fd)
    except BaseException as error:
        return error
    return None


def write_all(fd: int, data: bytes, offset: int) -> None:
    """Write all of ``data``, however many calls that takes."""
    written = os.pwrite(fd, data, offset)
    if written != len(data):
        rest = memoryview(data)
        while written < len(data):
            written += os.pwrite(fd, rest[written:], offset + written)


class Committer:
    """Commits for one event loop at a time, one after another."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._pace_seconds = 0.0
        """About how long the commits took that the loop waited for, the latest above all."""
        self._inline_from = 0.0
        self._queue: SimpleQueue[tuple[asyncio.AbstractEventLoop, int, bytes, int, Done] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def commit(self, fd: int, data: bytes, offset: int, done: Done) -> None:
        """Write and sync, then call ``done`` in the running loop, never at once."""
        loop = asyncio.get_running_loop()
        began = self._clock()
        if len(data) <= INLINE_BYTES and began >= self._inline_from:
            loop.call_soon(done, write_durably(fd, data, offset))
            self._judge(began, self._clock())
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="committer", daemon=True)
            self._thread.start()
        self._queue.put((loop, fd, data, offset, done))

    def stop(self) -> None:
        """Blocking.  End the thread, once what was begun is done."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _judge(self, began: float, ended: float) -> None:
        self._pace_seconds += (ended - began - self._pace_seconds) / PACE_COMMITS
        if self._pace_seconds > INLINE_SECONDS:
            self._pace_seconds = 0.0
            self._inline_from = ended + THREAD_SECONDS

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            loop, fd, data, offset, done = item
            error = write_durably(fd, data, offset)
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(done, error)
            item = data = done = None  # type: ignore[assignment]  # keep nothing alive while waiting
