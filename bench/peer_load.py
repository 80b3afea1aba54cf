"""Load on servers that speak something else than HTTP: connections that were opened and greeted before the load begins.

The jobs are those of :mod:`bench.load`: a job yields what it says, and is sent an answer when what it waits for is
complete.  What that is says the codec of the connection (:mod:`bench.amqp`, :mod:`bench.nats`).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Protocol

from bench.load import Answer, Connect, Connection, Load, LoadError

TIMEOUT_SECONDS = 30.0


class Codec(Protocol):
    """What one connection's bytes mean."""

    replies: bytearray
    """What is to be said besides, such as an answer to a server's ping."""

    def say(self, data: bytes) -> bytes:
        """What goes to the socket when a job says this."""

    def heard(self, data: bytes) -> Answer | None:
        """The answer to what was said last, once it is complete.  Raises :class:`~bench.load.LoadError`."""


class PeerConnection(Connection):
    """At most one job's saying under way."""

    def __init__(self, load: Load, codec: Codec) -> None:
        super().__init__(load)
        self.codec = codec

    def say(self, data: bytes) -> None:
        super().say(self.codec.say(data))
        answer = self.codec.heard(b"")
        self._reply()
        if answer is not None:
            asyncio.get_running_loop().call_soon(self.answered, answer)

    def data_received(self, data: bytes) -> None:
        try:
            answer = self.codec.heard(data)
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
    """``greet`` opens one connection, and blocks until it can be used."""

    async def connect(load: Load) -> Connection:
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
