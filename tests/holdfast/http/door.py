"""A server in this process, clients that send bytes, and a clock set by hand."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from holdfast.http.certificate import Certificate
from holdfast.http.connection import Connection, Limits
from holdfast.http.listener import bind
from holdfast.http.proxies import Forwarded
from holdfast.http.request_cycle import App
from holdfast.networks import parse_networks
from tests.holdfast.stub import StubServer, StubService

READ_SECONDS = 30
IDLE_SECONDS = 300
CONNECTIONS = 20
LIMITS = Limits(CONNECTIONS, READ_SECONDS, IDLE_SECONDS, drain_seconds=5)


class RawClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def get(self, path: str, headers: bytes = b"") -> None:
        self.send(b"GET " + path.encode() + b" HTTP/1.1\r\nhost: x\r\n" + headers + b"\r\n")

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        return int(head[0].split()[1]), headers, await self.reader.readexactly(int(headers["content-length"]))

    async def body(self, path: str = "/") -> bytes:
        """Body of the answer to a GET, which has to succeed."""
        self.get(path)
        status, _, body = await self.answer()
        assert status == 200
        return body

    async def end(self) -> bytes:
        """All bytes until the connection is closed."""
        try:
            return await self.reader.read()
        except ConnectionResetError:
            return b""

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()

    async def abort(self) -> None:
        """Close it at once.  One with bytes that nobody reads would stay open otherwise."""
        self.writer.transport.abort()
        with suppress(OSError):
            await self.writer.wait_closed()


class HttpDoor:
    """A listener with an application, by default the stub's."""

    def __init__(
        self,
        app: App | None = None,
        limits: Limits = LIMITS,
        certificate: Certificate | None = None,
        proxies: str = "",
        *,
        lingers: bool = False,
    ) -> None:
        self.service = StubService()
        app = app or self.service.app
        forwarded = Forwarded(app, parse_networks(proxies), "x-forwarded-for") if proxies else None
        self.sockets = bind("127.0.0.1", 0)
        self.address: tuple[str, int] = self.sockets[0].getsockname()
        self.running = StubServer(
            *(app, self.sockets, limits, self.service.drain, certificate, forwarded), lingers=lingers
        )
        self.server = self.running.server
        self.registry = self.server.registry
        self.clients: list[RawClient] = []

    @property
    def connections(self) -> list[Connection]:
        return list(self.registry.connections)

    def pass_time(self, seconds: float) -> None:
        """Run the sweep as if ``seconds`` had passed without an event."""
        now = asyncio.get_running_loop().time()
        for connection in self.connections:
            connection.sweep(now + seconds)

    async def connect(self, **options: Any) -> RawClient:
        """Connect to it, unless the options have a socket."""
        address = () if "sock" in options else self.address
        self.clients.append(RawClient(*await asyncio.open_connection(*address, **options)))
        return self.clients[-1]

    async def connect_with_window(self, window_bytes: int) -> RawClient:
        """Connect a client whose kernel holds no more than about so much that it has not read."""
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window_bytes)
        client.connect(self.address)
        return await self.connect(sock=client)


@asynccontextmanager
async def opened(
    app: App | None = None,
    limits: Limits = LIMITS,
    certificate: Certificate | None = None,
    proxies: str = "",
    *,
    lingers: bool = False,
) -> AsyncIterator[HttpDoor]:
    """Start a server, and drain it at the end; arguments as for :class:`HttpDoor`."""
    door = HttpDoor(app, limits, certificate, proxies, lingers=lingers)
    await door.running.started()
    try:
        yield door
    finally:
        for client in door.clients:
            client.writer.close()
        await door.running.stop()
        for client in door.clients:
            await client.abort()
