"""A connection of the driver that sends from the calling thread, and wakes the driver's thread less often.

The driver's own passes each frame to its event loop's thread, which it wakes for it, and again for each timer: two or
three times a statement, although the socket can nearly always take the frame at once and nearly all timers are
cancelled.  docs/decisions/0029-cassandras-driver.md has what it saves.

It replaces methods of :class:`cassandra.io.libevreactor.LibevConnection`, and uses its private parts.  A test fails
with another version of the driver.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from cassandra.connection import Timer
from cassandra.io import libevreactor
from cassandra.io.libevreactor import LibevConnection

WAKE_SECONDS: Final = 0.1
"""Interval in which the event loop notices new timers; a timer that ends earlier is noticed at once."""


class DirectConnection(LibevConnection):  # type: ignore[misc]  # the driver has no types
    """Connection that sends a frame at once, if none waits before it and it is not encrypted.

    The rest of a frame that the socket does not take at once waits for the event loop, as all frames do with TLS, whose
    state is not for two threads.
    """

    _wakes_at = 0.0
    """Wall time at which the event loop is woken next, for the timers of all connections; 0: it is not."""

    _is_open = True
    """False from the close on, so that no frame goes to another connection with the same file descriptor."""

    def close(self) -> None:
        with self._deque_lock:
            self._is_open = False
        super().close()

    def push(self, data: bytes) -> None:
        if self._is_encrypted:
            super().push(data)
            return
        with self._deque_lock:
            if self._is_open and not self.deque:
                with suppress(OSError):  # a broken connection is found by the event loop, too, which reports it
                    data = self._unsent(data)
            if data:
                self.deque.append(data)
                libevreactor._global_loop.notify()

    def handle_write(self, watcher: Any, revents: int, errno: int | None = None) -> None:
        """Send waiting frames; called in the event loop.

        In contrast to the driver's, the lock is held while it sends: a frame that is taken out and not sent yet would
        be overtaken by one that :meth:`push` sends.
        """
        if self._is_encrypted or revents & libevreactor.libev.EV_ERROR:
            super().handle_write(watcher, revents, errno)
            return
        try:
            with self._deque_lock:
                while self._is_open and self.deque and not (rest := self._unsent(self.deque[0])):
                    self.deque.popleft()
                if self._is_open and self.deque:
                    self.deque[0] = rest
                # While a frame waits, the driver refuses further statements (ConnectionBusy).
                self._socket_writable = not self.deque
        except OSError as error:
            self.defunct(error)

    def _unsent(self, data: bytes) -> bytes:
        """Send as much as the socket takes; return the rest."""
        try:
            return data[self._socket.send(data) :]
        except BlockingIOError:
            return data

    @property
    def _is_encrypted(self) -> bool:
        return bool(self.ssl_context or self.ssl_options)

    @classmethod
    def create_timer(cls, timeout: float, callback: Callable[[], object]) -> Timer:
        loop = libevreactor._global_loop
        timer = Timer(timeout, callback)
        loop._timers.add_timer(timer)
        if not time.time() < cls._wakes_at <= timer.end:
            wake = Timer(min(WAKE_SECONDS, timeout), cls._on_wake)
            cls._wakes_at = wake.end
            loop.add_timer(wake)
        return timer

    @classmethod
    def _on_wake(cls) -> None:
        """Called in the event loop, which has just read the new timers."""
        cls._wakes_at = 0.0
        # libev repeats the last interval, perhaps of microseconds, until it gets another one.
        libevreactor._global_loop._loop_timer.stop()
