"""The subset of AMQP 0-9-1 that loads a broker: confirmed publishing and acknowledged consuming.

Source: the specification's ``amqp0-9-1.xml``; publisher confirms (class 85) are RabbitMQ's extension.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

from bench.jobs import BATCH, BODY_BYTES, Bodies, counted
from bench.load import Job, Jobs, LoadAnswer, LoadError
from bench.peers.load import dial

METHOD, HEADER, BODY = 1, 2, 3
_END = b"\xce"
_HEAD = struct.Struct(">BHI")
_START_OK, _TUNE_OK, _OPEN = (10, 11), (10, 31), (10, 40)
_CHANNEL_OPEN, _DECLARE, _CONFIRM = (20, 10), (50, 10), (85, 10)
_QOS, _CONSUME, _PUBLISH, _DELIVER, _ACK = (60, 10), (60, 20), (60, 40), (60, 60), (60, 80)
PREFETCH = 4 * BATCH

Frame = tuple[int, bytes]
"""Type and payload."""


def frame(kind: int, payload: bytes, channel: int = 1) -> bytes:
    return _HEAD.pack(kind, channel, len(payload)) + payload + _END


def _method(method: tuple[int, int], arguments: bytes = b"", channel: int = 1) -> bytes:
    return frame(METHOD, struct.pack(">HH", *method) + arguments, channel)


def _short(text: str) -> bytes:
    return bytes((len(text),)) + text.encode()


def _long(text: bytes) -> bytes:
    return len(text).to_bytes(4, "big") + text


_PUBLISHED = struct.pack(">HH", *_PUBLISH) + bytes(3)
"""Start of a publish method's frame; no body of the bench contains it."""


class AmqpFrames:
    """Splits received data into frames."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Frame]:
        data = self._rest + data
        at = 0
        while len(data) - at >= _HEAD.size:
            kind, _, size = _HEAD.unpack_from(data, at)
            end = at + _HEAD.size + size
            if len(data) <= end:
                break
            if data[end : end + 1] != _END:
                raise LoadError("a frame of AMQP that does not end where it says")
            yield kind, data[at + _HEAD.size : end]
            at = end + 1
        self._rest = data[at:]


def _read_method(frames: AmqpFrames, stream: socket.socket, method: tuple[int, int]) -> bytes:
    """Return the arguments of the next method, which must be ``method``.  Blocks."""
    while True:
        data = stream.recv(65536)
        if not data:
            raise LoadError("the broker has closed a connection")
        for kind, payload in frames.feed(data):
            if kind == METHOD:
                found = struct.unpack_from(">HH", payload)
                if found != method:
                    raise LoadError(f"method {method} was awaited, and {found} came: {payload[:200]!r}")
                return payload[4:]


def greet(host: str, port: int) -> tuple[socket.socket, AmqpFrames]:
    """Open a connection with one channel.  Blocks."""
    stream, frames = dial(host, port), AmqpFrames()
    stream.sendall(b"AMQP\x00\x00\x09\x01")
    _read_method(frames, stream, (10, 10))
    stream.sendall(
        _method(_START_OK, _long(b"") + _short("PLAIN") + _long(b"\0guest\0guest") + _short("en_US"), channel=0)
    )
    tune = _read_method(frames, stream, (10, 30))
    stream.sendall(_method(_TUNE_OK, tune[:6] + bytes(2), channel=0))  # no heartbeats
    stream.sendall(_method(_OPEN, _short("/") + _short("") + b"\0", channel=0))
    _read_method(frames, stream, (10, 41))
    stream.sendall(_method(_CHANNEL_OPEN, _short("")))
    _read_method(frames, stream, (20, 11))
    return stream, frames


def declare(host: str, port: int, queue: str) -> None:
    """Create a quorum queue.  Blocks."""
    stream, frames = greet(host, port)
    table = _short("x-queue-type") + b"S" + _long(b"quorum")
    stream.sendall(_method(_DECLARE, bytes(2) + _short(queue) + b"\x02" + _long(table)))
    _read_method(frames, stream, (50, 11))
    stream.close()


# --- load -------------------------------------------------------------------------------------------------


class Confirms:
    """A codec: complete when all published messages are confirmed."""

    def __init__(self, frames: AmqpFrames) -> None:
        self.replies = bytearray()
        self._frames = frames
        self._published = 0
        self._open: set[int] = set()

    def say(self, data: bytes) -> bytes:
        for _ in range(data.count(_PUBLISHED)):
            self._published += 1
            self._open.add(self._published)
        return data

    def received(self, data: bytes) -> LoadAnswer | None:
        for kind, payload in self._frames.feed(data):
            if kind != METHOD:
                continue
            method = struct.unpack_from(">HH", payload)
            if method != _ACK:
                raise LoadError(f"no confirmation but method {method}: {payload[4:200]!r}")
            tag, several = struct.unpack_from(">QB", payload, 4)
            if several & 1:
                self._open = {one for one in self._open if one > tag}
            else:
                self._open.discard(tag)
            if not self._open:
                return LoadAnswer(200, b"")
        return None


class Deliveries:
    """A codec: complete when ten messages have arrived, which are acknowledged at once."""

    def __init__(self, frames: AmqpFrames) -> None:
        self.replies = bytearray()
        self._frames = frames
        self._tags: list[int] = []
        self._waiting = False

    def say(self, data: bytes) -> bytes:
        self._waiting = True
        return data

    def received(self, data: bytes) -> LoadAnswer | None:
        for kind, payload in self._frames.feed(data):
            if kind != METHOD:
                continue
            method = struct.unpack_from(">HH", payload)
            if method != _DELIVER:
                raise LoadError(f"no delivery but method {method}: {payload[4:200]!r}")
            (tag,) = struct.unpack_from(">Q", payload, 5 + payload[4])
            self._tags.append(tag)
        if not self._waiting or len(self._tags) < BATCH:
            return None
        self.replies += _method(_ACK, struct.pack(">QB", self._tags[BATCH - 1], 1))
        del self._tags[:BATCH]
        self._waiting = False
        return LoadAnswer(200, b"")


class Amqp:
    """The load on one quorum queue."""

    def __init__(self, host: str, port: int, queue: str) -> None:
        self._host, self._port, self._queue = host, port, queue
        self._bodies = Bodies()
        declare(host, port, queue)

    def publisher(self) -> tuple[socket.socket, Confirms]:
        stream, frames = greet(self._host, self._port)
        stream.sendall(_method(_CONFIRM, b"\0"))
        _read_method(frames, stream, (85, 11))
        return stream, Confirms(frames)

    def consumer(self) -> tuple[socket.socket, Deliveries]:
        stream, frames = greet(self._host, self._port)
        stream.sendall(_method(_QOS, struct.pack(">IHB", 0, PREFETCH, 0)))
        _read_method(frames, stream, (60, 11))
        codec = Deliveries(frames)
        stream.sendall(_method(_CONSUME, bytes(2) + _short(self._queue) + _short("c") + b"\x08" + _long(b"")))
        return stream, codec  # no answer was requested: all later frames are deliveries

    def publish(self, at_once: int = 1, messages: int | None = None) -> Jobs:
        """Publish ``at_once`` messages, then wait for their confirmations; ``messages`` ends the load."""

        def job() -> Job:
            yield "publish", b"".join(self._message() for _ in range(at_once))
            return at_once

        return job if messages is None else counted(job, -(-messages // at_once))

    def consume(self) -> Jobs:
        """Receive ten messages and acknowledge them, which AMQP does not answer."""

        def job() -> Job:
            yield "consume", b""
            return BATCH

        return job

    def _message(self) -> bytes:
        """Return the frames of one persistent message."""
        properties = struct.pack(">HHQHB", 60, 0, BODY_BYTES, 0x1000, 2)
        return (
            _method(_PUBLISH, bytes(2) + _short("") + _short(self._queue) + b"\0")
            + frame(HEADER, properties)
            + frame(BODY, next(self._bodies))
        )
