"""Load on servers with a protocol other than HTTP: connections are opened and authenticated before the load begins.

The jobs are those of :mod:`bench.load`: a job yields bytes to send, and is sent an answer when the expected data is
complete.  The codec of the connection (:mod:`bench.peers.amqp`, :mod:`bench.peers.nats`) decides that.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Protocol

from bench.load import Connect, LoadAnswer, LoadConnection, LoadError, LoadGenerator

TIMEOUT_SECONDS = 30.0


class Codec(Protocol):
    """Interpretation of one connection's bytes."""

    replies: bytearray
    """Bytes to send in addition, such as an answer to a server's ping."""

    def say(self, data: bytes) -> bytes:
        """Return the bytes to write to the socket for a job's data."""

    def received(self, data: bytes) -> LoadAnswer | None:
        """Return the answer to the last sent data, once it is complete.  Raises :class:`~bench.load.LoadError`."""


class PeerConnection(LoadConnection):
    """A connection with at most one call of a job in progress."""

    def __init__(self, load: LoadGenerator, codec: Codec) -> None:
        super().__init__(load)
        self.codec = codec

    def say(self, data: bytes) -> None:
        super().say(self.codec.say(data))
        answer = self.codec.received(b"")
        self._reply()
        if answer is not None:
            asyncio.get_running_loop().call_soon(self.answered, answer)

    def data_received(self, data: bytes) -> None:
        try:
            answer = self.codec.received(data)
        except LoadError as error:
            self._load.broken(error)
            return
        self._reply()
        if answer is not None:
            self.answered(answer)

    def _reply(self) -> None:
        if self.codec.replies:
            super().say(bytes(self.codec.replies))
            self.codec.replies.clear()


def connect_by(greet: Callable[[], tuple[socket.socket, Codec]]) -> Connect:
    """Return a function that opens connections by ``greet``, which blocks until one can be used."""

    async def connect(load: LoadGenerator) -> LoadConnection:
        stream, codec = await asyncio.to_thread(greet)
        stream.setblocking(False)
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: PeerConnection(load, codec), sock=stream)
        return connection

    return connect


def dial(host: str, port: int) -> socket.socket:
    stream = socket.create_connection((host, port), timeout=TIMEOUT_SECONDS)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return stream
