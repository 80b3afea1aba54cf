"""A thread that waits for commits, so that a slow disk delays only answers (decision 0007)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

Done = Callable[[BaseException | None], None]


def write_durably(fd: int, data: bytes, offset: int) -> BaseException | None:
    """Write and sync.  Returns an error of any type, so that the log gets it."""
    try:
        write_all(fd, data, offset)
        os.fdatasync(fd)
    except BaseException as error:
        return error
    return None


def write_all(fd: int, data: bytes, offset: int) -> None:
    """Write all of ``data``, in as many calls as needed."""
    written = os.pwrite(fd, data, offset)
    if written != len(data):
        rest = memoryview(data)
        while written < len(data):
            written += os.pwrite(fd, rest[written:], offset + written)


class Committer:
    """Commits for one event loop at a time, one after another."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[asyncio.AbstractEventLoop, int, bytes, int, Done] | None] = SimpleQueue()
        self._worker: threading.Thread | None = None

    def commit(self, fd: int, data: bytes, offset: int, done: Done) -> None:
        """Write and sync, then call ``done`` in the running loop, never at once."""
        if self._worker is None:
            self._worker = threading.Thread(target=self._run, name="committer", daemon=True)
            self._worker.start()
        self._queue.put((asyncio.get_running_loop(), fd, data, offset, done))

    def stop(self) -> None:
        """End the thread, once the work in progress is done.  Blocking."""
        if self._worker is not None:
            self._queue.put(None)
            self._worker.join()
            self._worker = None

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            loop, fd, data, offset, done = item
            error = write_durably(fd, data, offset)
            with contextlib.suppress(RuntimeError):  # the loop was closed: no caller waits any more
                loop.call_soon_threadsafe(done, error)
            item = data = done = None  # type: ignore[assignment]  # keep nothing alive while waiting
