"""Listening: the sockets, the connections they bring, and letting go of them without dropping a call."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
import time
from email.utils import formatdate
from pathlib import Path

from holdfast.door import Connection, Hall, Limits
from holdfast.exchange import App

BACKLOG = 2048
TLS_HANDSHAKE_SECONDS = 10
SWEEP_SECONDS = 1
_TURNS = 10
"""Python's own loop needs five."""


class CannotListen(Exception):
    """The address cannot be had; the text says why."""


def bind(host: str, port: int) -> list[socket.socket]:
    """A socket for each address of ``host``, bound but not listening.  Raises :class:`CannotListen`."""
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise CannotListen(f"{host!r} is no address of this machine: {error.strerror}") from error
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            if sockets and port == 0:
                break  # one free port, not one for each address
            bound = socket.socket(family, kind, protocol)
            sockets.append(bound)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            bound.bind(address)
    except OSError as error:
        for bound in sockets:
            bound.close()
        raise CannotListen(_why(error, host, port)) from error
    return sockets


def _why(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use by another program; choose another with --port"
    if error.errno == errno.EACCES:
        return f"port {port} on {host} may not be used by this user; choose one above 1023 with --port"
    return f"port {port} on {host} cannot be listened on: {error.strerror}"


def tls(cert: Path, key: Path) -> ssl.SSLContext:
    """A server's TLS context.  Raises :class:`CannotListen`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise CannotListen(f"certificate {cert} with key {key} cannot be used: {error}") from error
    return context


async def _turns() -> None:
    """Let the loop turn as often as it takes from a connection in the kernel to its first request."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)


class Listener:
    """Accepts connections on ``sockets`` and has ``app`` answer their requests."""

    def __init__(
        self, app: App, sockets: list[socket.socket], limits: Limits, tls_context: ssl.SSLContext | None = None
    ) -> None:
        self.hall = Hall(app, limits)
        self._sockets = sockets
        self._tls = tls_context
        self._servers: list[asyncio.Server] = []
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises :class:`CannotListen`."""
        loop = asyncio.get_running_loop()
        self._set_date()
        for bound in self._sockets:
            host, port = bound.getsockname()[:2]
            try:
                server = await loop.create_server(
                    lambda: Connection(self.hall, loop),
                    sock=bound,
                    ssl=self._tls,
                    backlog=BACKLOG,
                    ssl_handshake_timeout=TLS_HANDSHAKE_SECONDS if self._tls else None,
                )
            except OSError as error:
                raise CannotListen(_why(error, host, port)) from error
            self._servers.append(server)
        self._sweeper = asyncio.create_task(self._sweep())

    async def stop_accepting(self) -> None:
        """From now on no new connections; those there are close after what they have sent is answered."""
        await _turns()  # what waits in the kernel is accepted
        for server in self._servers:
            server.close()
        self.hall.draining = True
        await _turns()  # and what those clients have sent is read
        for connection in list(self.hall.connections):
            connection.drain()

    async def finish(self, seconds: float) -> int:
        """Wait for all answers; after ``seconds`` cancel what is still under way.  Returns how many calls that were."""
        if self.hall.connections:
            try:
                await asyncio.wait_for(self.hall.emptied.wait(), seconds)
            except TimeoutError:
                pass
        late = list(self.hall.exchanges.values())
        for task in late:
            task.cancel()
        for connection in list(self.hall.connections):
            connection.transport.abort()
        if late:
            await asyncio.wait(late, timeout=1)
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper
        return len(late)

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self._set_date()
            now = loop.time()
            for connection in list(self.hall.connections):
                connection.sweep(now)

    def _set_date(self) -> None:
        """The Date header, once a second."""
        self.hall.common_headers = b"date: " + formatdate(time.time(), usegmt=True).encode() + b"\r\n"
