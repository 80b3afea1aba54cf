"""Several processes behind one port: one process accepts, and passes each connection to the least loaded process.

Rejected alternatives:

* *One listening socket that all processes accept from*: the first to wake takes everything that waits, so clients that
  connect together and stay, as SDKs with their pools do, all end up in one process.
* *A socket for each process* (``SO_REUSEPORT``): the kernel distributes by a hash of the addresses, regardless of load,
  so of a few dozen connections one of two processes often has two thirds; and connections waiting in the queue of a
  process that dies are reset.

Here connections wait in one queue, which outlives each process.  A connection costs one accept and one message with a
file descriptor; its requests do not pass through the accepting process.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from holdfast.http.listener import BACKLOG, listen_on
from holdfast.logs import facts

AT_ONCE = 64
"""Maximum connections accepted before other tasks get their turn."""
PAUSE_SECONDS = 0.02
"""Pause after which accepting is retried, if no process takes connections or none can be accepted."""

log = logging.getLogger("holdfast")


class Seat(Protocol):
    """A process that takes connections."""

    @property
    def is_ready(self) -> bool: ...

    load: int
    """Number of its connections, as far as known here."""

    def give(self, accepted: socket.socket) -> bool:
        """Hand the connection over; False: the process takes none now."""


class Acceptor:
    """Acceptor on ``sockets``, which are bound; distributes to the current ``seats``."""

    def __init__(self, sockets: Sequence[socket.socket], seats: Callable[[], Sequence[Seat]]) -> None:
        self._sockets = sockets
        self._seats = seats
        self._held: deque[socket.socket] = deque()
        """Accepted connections that no process has taken yet."""
        self._pause: asyncio.TimerHandle | None = None
        self._accepting = False
        self._failing = False
        """True if connections cannot be accepted, and that was logged."""
        self._stopped = False
        self._turn = 0

    def start(self) -> None:
        """Listen.  Raises :class:`~holdfast.http.listener.CannotListen`."""
        for listener in self._sockets:
            listen_on(listener, BACKLOG)
            listener.setblocking(False)
        self._resume()

    def stop(self) -> None:
        """Distribute the connections waiting now, and stop listening."""
        self._stopped = True
        self._rest()
        for listener in self._sockets:
            while self._any_ready() and self._accept(listener):
                pass
            listener.close()
        while self._held and self._deal(self._held[0]):
            self._held.popleft()
        for accepted in self._held:
            accepted.close()
        self._held.clear()

    # --- accepting ---

    def _resume(self) -> None:
        self._pause = None
        while self._held:
            if not self._deal(self._held[0]):
                self._wait()
                return
            self._held.popleft()
        if not self._accepting:
            self._accepting = True
            for listener in self._sockets:
                asyncio.get_running_loop().add_reader(listener.fileno(), self._readable, listener)

    def _rest(self) -> None:
        """Leave connections in the kernel's queue."""
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        if self._accepting:
            self._accepting = False
            for listener in self._sockets:
                asyncio.get_running_loop().remove_reader(listener.fileno())

    def _wait(self) -> None:
        if self._stopped:
            return
        self._rest()
        self._pause = asyncio.get_running_loop().call_later(PAUSE_SECONDS, self._resume)

    def _any_ready(self) -> bool:
        return any(seat.is_ready for seat in self._seats())

    def _readable(self, listener: socket.socket) -> None:
        for _ in range(AT_ONCE):
            if not self._any_ready() or self._held:
                self._wait()
                return
            if not self._accept(listener):
                return

    def _accept(self, listener: socket.socket) -> bool:
        """Accept one connection; returns True if there may be more."""
        try:
            accepted, _ = listener.accept()
        except (BlockingIOError, InterruptedError):
            return False
        except ConnectionError:
            return True  # the client disconnected before it was accepted
        except OSError as error:  # out of file descriptors, or of memory
            if not self._failing:
                self._failing = True
                log.error("connections cannot be accepted %s", facts(error=error.strerror))
            self._wait()
            return False
        if self._failing:
            self._failing = False
            log.warning("connections are accepted again")
        if not self._deal(accepted):
            self._held.append(accepted)
        return True

    def _deal(self, accepted: socket.socket) -> bool:
        """Pass the connection to a process; returns True if one took it."""
        seats = [seat for seat in self._seats() if seat.is_ready]
        self._turn += 1
        start = self._turn % len(seats) if seats else 0
        for seat in sorted(seats[start:] + seats[:start], key=lambda seat: seat.load):
            if seat.give(accepted):
                seat.load += 1
                accepted.close()
                return True
        return False
