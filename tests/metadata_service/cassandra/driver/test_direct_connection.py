"""The connection that sends from the calling thread: order, whole frames, errors and timers, without Cassandra."""

import itertools
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import cassandra
import pytest
from cassandra.io import libevreactor
from cassandra.io.libevreactor import LibevConnection, LibevLoop

from metadata_service.cassandra.driver import direct_connection
from metadata_service.cassandra.driver.direct_connection import DirectConnection
from tests.servers.waiting import wait_until

READ, WRITE = libevreactor.libev.EV_READ, libevreactor.libev.EV_WRITE
THREADS = 4
FRAMES = 200


class LoopbackConnection(DirectConnection):
    """Connection on one end of a socket pair, in an event loop that runs, without the driver's handshake."""

    def __init__(self, end: socket.socket) -> None:
        self.deque: deque[bytes] = deque()
        self._deque_lock = threading.Lock()
        self._socket_writable = True
        self.ssl_context: object = None
        self.ssl_options: object = None
        self._socket: Any = end
        self.failures: SimpleQueue[BaseException] = SimpleQueue()
        end.setblocking(False)
        loop = libevreactor._global_loop
        self._read_watcher = libevreactor.libev.IO(end.fileno(), READ, loop._loop, lambda *_: None)
        self._write_watcher = libevreactor.libev.IO(end.fileno(), WRITE, loop._loop, self.handle_write)
        loop.connection_created(self)
        loop.maybe_start()

    def defunct(self, exc: BaseException) -> None:
        self.failures.put(exc)
        with self._deque_lock:
            self.deque.clear()

    def __hash__(self) -> int:
        return id(self)


class SendingSocket:
    """Socket that lets another thread do something before the event loop's first send."""

    def __init__(self, end: socket.socket, act: Callable[[], object]) -> None:
        self._end = end
        self.other = threading.Thread(target=act)

    def send(self, data: bytes) -> int:
        if threading.current_thread() is libevreactor._global_loop._thread and self.other.ident is None:
            self.other.start()
            self.other.join(0.2)  # it ends, or has to wait for this send
        return self._end.send(data)


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[LibevLoop]:
    """An event loop of the driver of its own, and its end."""
    made = LibevLoop()
    monkeypatch.setattr(libevreactor, "_global_loop", made)
    monkeypatch.setattr(DirectConnection, "_wakes_at", 0.0)
    try:
        yield made
    finally:
        for connection in made._live_conns:
            connection._write_watcher.stop()
            connection._read_watcher.stop()
        made._live_conns = set()
        made._shutdown = True
        made.notify()
        if made._thread is not None:
            made._thread.join(60)
            assert not made._thread.is_alive()


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        yield ours, theirs


def _frame(thread: int, number: int) -> bytes:
    body = os.urandom(1) * (number * 37 % 20_000)
    return thread.to_bytes(1) + number.to_bytes(4) + len(body).to_bytes(4) + body


def test_frames_of_several_threads_arrive_whole_and_in_the_order_of_each(
    loop: LibevLoop, ends: tuple[socket.socket, socket.socket]
) -> None:
    connection = LoopbackConnection(ends[0])
    pushed: list[list[bytes]] = [[_frame(thread, number) for number in range(FRAMES)] for thread in range(THREADS)]

    def push(frames: list[bytes]) -> None:
        for frame in frames:
            connection.push(frame)

    threads = [threading.Thread(target=push, args=(frames,)) for frames in pushed]
    for thread in threads:
        thread.start()
    arrived: list[list[bytes]] = [[] for _ in range(THREADS)]
    ends[1].settimeout(60)
    with ends[1].makefile("rb") as stream:
        for _ in range(THREADS * FRAMES):
            head = stream.read(9)
            arrived[head[0]].append(head + stream.read(int.from_bytes(head[5:])))
    for thread in threads:
        thread.join()
    assert arrived == pushed
    assert connection.failures.empty()


def test_a_frame_that_the_event_loop_is_sending_is_not_overtaken(
    loop: LibevLoop, ends: tuple[socket.socket, socket.socket]
) -> None:
    connection = LoopbackConnection(ends[0])
    sending = SendingSocket(ends[0], lambda: connection.push(b"second"))
    connection._socket = sending
    first = bytes(1 << 20)
    connection.push(first)
    ends[1].settimeout(60)
    arrived = bytearray()
    while len(arrived) < len(first) + len(b"second"):
        arrived += ends[1].recv(65_536)
    assert arrived == first + b"second"
    sending.other.join()


def test_a_frame_is_sent_in_the_calling_thread(loop: LibevLoop, ends: tuple[socket.socket, socket.socket]) -> None:
    connection = LoopbackConnection(ends[0])
    connection.push(b"frame")
    ends[1].setblocking(False)
    assert ends[1].recv(100) == b"frame"  # it is there when push returns
    assert not connection.deque


def test_statements_are_refused_while_a_frame_waits(loop: LibevLoop, ends: tuple[socket.socket, socket.socket]) -> None:
    connection = LoopbackConnection(ends[0])
    frame = bytes(1 << 20)
    connection.push(frame)
    ends[1].settimeout(60)
    left = len(frame) - len(ends[1].recv(65_536))  # there is space again, and the event loop fills it
    wait_until(lambda: not connection._socket_writable, "the event loop finds the socket full")
    while left:
        left -= len(ends[1].recv(65_536))
    wait_until(lambda: connection._socket_writable, "the frame is sent")


def test_a_broken_socket_is_reported_by_the_event_loop(
    loop: LibevLoop, ends: tuple[socket.socket, socket.socket]
) -> None:
    connection = LoopbackConnection(ends[0])
    ends[1].close()
    connection.push(b"frame")
    assert isinstance(connection.failures.get(timeout=60), BrokenPipeError)


def test_encrypted_frames_are_left_to_the_event_loop(
    loop: LibevLoop, ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[bytes] = []
    monkeypatch.setattr(LibevConnection, "push", lambda self, data: left.append(data))
    connection = LoopbackConnection(ends[0])
    connection.ssl_context = object()
    connection.push(b"frame")
    assert left == [b"frame"]


@pytest.mark.parametrize("wake_seconds", [direct_connection.WAKE_SECONDS, 0.001])
def test_timers_are_called_at_their_ends(
    loop: LibevLoop,
    ends: tuple[socket.socket, socket.socket],
    wake_seconds: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(direct_connection, "WAKE_SECONDS", wake_seconds)
    LoopbackConnection(ends[0])  # the event loop runs while there is a connection
    called: SimpleQueue[tuple[float, float]] = SimpleQueue()

    def create(seconds: float) -> None:
        end = time.time() + seconds
        DirectConnection.create_timer(seconds, lambda: called.put((end, time.time())))

    together = [0.3, 0.0, 0.05, 0.25, 0.12, 0.0, 0.02]
    for seconds in together:
        create(seconds)
    found = [called.get(timeout=60) for _ in together]
    for seconds in (0.01, 0.02, 0.0, 0.15, 0.01):  # each while the event loop waits
        create(seconds)
        found.append(called.get(timeout=60))
    assert all(at >= end for end, at in found)
    assert len({end for end, _ in found}) == len(found)


def test_the_event_loop_sleeps_when_no_timer_is_left(
    loop: LibevLoop, ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    LoopbackConnection(ends[0])
    called: SimpleQueue[float] = SimpleQueue()
    woken = itertools.count()
    service = loop._timers.service_timeouts
    monkeypatch.setattr(loop._timers, "service_timeouts", lambda: (next(woken), service())[1])
    ends[1].settimeout(0.1)
    for _ in range(10):
        DirectConnection.create_timer(0.01, lambda: called.put(time.time()))
        called.get(timeout=60)
        wait_until(lambda: DirectConnection._wakes_at == 0.0, "the wake is over")
        before = next(woken)
        with pytest.raises(TimeoutError):
            ends[1].recv(1)
        assert next(woken) - before < 10


def test_a_wake_is_not_lost_when_the_clock_is_set_back(
    loop: LibevLoop, ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    LoopbackConnection(ends[0])
    called: SimpleQueue[float] = SimpleQueue()
    DirectConnection.create_timer(0.2, lambda: called.put(time.time()))
    called.get(timeout=60)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() - 0.15)
    DirectConnection.create_timer(0.2, lambda: called.put(time.time()))
    called.get(timeout=60)


def test_nothing_is_sent_after_the_close(
    loop: LibevLoop, ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LibevConnection, "close", lambda self: None)
    connection = LoopbackConnection(ends[0])
    connection.close()
    connection.push(b"frame")
    connection.handle_write(None, WRITE)
    ends[1].setblocking(False)
    with pytest.raises(BlockingIOError):
        ends[1].recv(100)


def test_a_cancelled_timer_is_not_called(loop: LibevLoop, ends: tuple[socket.socket, socket.socket]) -> None:
    LoopbackConnection(ends[0])
    called: SimpleQueue[str] = SimpleQueue()
    DirectConnection.create_timer(0.02, lambda: called.put("cancelled")).cancel()
    DirectConnection.create_timer(0.05, lambda: called.put("kept"))
    assert called.get(timeout=60) == "kept"


def test_many_timers_wake_the_event_loop_seldom(
    loop: LibevLoop, ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    wakes = itertools.count()
    monkeypatch.setattr(loop, "add_timer", lambda timer: next(wakes))
    monkeypatch.setattr(time, "time", lambda: 1_000.0)
    for _ in range(1_000):
        DirectConnection.create_timer(2.0, lambda: None)
    assert next(wakes) == 1
    monkeypatch.setattr(time, "time", lambda: 900.0)  # the clock was set back
    DirectConnection.create_timer(2.0, lambda: None)
    assert next(wakes) == 3


def test_the_driver_is_the_one_whose_private_parts_were_read() -> None:
    """Another version: compare ``io/libevreactor.py``, ``io/libevwrapper.c`` and ``connection.py`` with this one's."""
    assert cassandra.__version__ == "3.30.1"
