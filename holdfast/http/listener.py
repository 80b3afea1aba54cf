"""Listening sockets, uvicorn's server for their connections, and its drain, which drops no call."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import uvicorn

from holdfast.http.certificate import Certificate
from holdfast.http.connection import Connection, ConnectionRegistry, Limits
from holdfast.http.proxies import Forwarded
from holdfast.http.request_cycle import App
from holdfast.http.sweep import DeadlineSweep
from holdfast.http.tls_handshake import Handshake
from holdfast.logs import facts

log = logging.getLogger("holdfast")

BACKLOG = 2048
SWEEP_TICKS = 10
"""Ticks of a sweep over all connections; uvicorn ticks every tenth of a second."""
LINGER_SECONDS = 2.0
"""Time in which an idle connection may get one more answer during a drain, if other processes continue.

That answer has "Connection: close".  Closing the connection while its client is just sending would cost the client an
attempt.
"""
REFUSED_LOG_SECONDS = 60
"""Minimum time between two log lines about refused connections."""
_TURNS = 10
"""Turns of the event loop; Python's own loop needs five."""


class CannotListen(Exception):
    """The address cannot be bound; the text says why."""


def bind(host: str, port: int, option: str = "--port") -> list[socket.socket]:
    """Make a socket for each address of ``host``, bound but not listening.

    ``option`` sets the port, for the text of an error.  Raises :class:`CannotListen`.
    """
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise CannotListen(f"{host!r} is no address of this machine: {error.strerror}") from error
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            if sockets and port == 0:
                break  # one free port for all, not one for each address
            bound = socket.socket(family, kind, protocol)
            sockets.append(bound)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            bound.bind(address)
    except OSError as error:
        for bound in sockets:
            bound.close()
        raise CannotListen(_why(error, host, port, option)) from error
    return sockets


def listen_on(bound: socket.socket, backlog: int) -> None:
    """Start listening.  Raises :class:`CannotListen`."""
    try:
        bound.listen(backlog)
    except OSError as error:
        raise CannotListen(_why(error, *bound.getsockname()[:2])) from error


def _why(error: OSError, host: str, port: int, option: str = "--port") -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use by another program; choose another with {option}"
    if error.errno == errno.EACCES:
        return f"port {port} on {host} is not permitted for this user; choose one above 1023 with {option}"
    return f"port {port} on {host} cannot be listened on: {error.strerror}"


async def _turns() -> None:
    """Let the loop turn as often as it takes from a connection in the kernel to its first request."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)


class HttpServer(uvicorn.Server):
    """uvicorn's server for our connections, with a drain that drops no call.

    :meth:`serve` listens, calls ``started``, ticks until ``stop`` is set, and drains.  The process handles signals.
    """

    def __init__(
        self,
        app: App,
        limits: Limits,
        certificate: Certificate | None = None,
        forwarded: Forwarded | None = None,
        *,
        stop: asyncio.Event,
        started: Callable[[], None],
        drain: Callable[[], Awaitable[None]],
        lingers: Callable[[], bool] = lambda: False,
    ) -> None:
        """Set up the server.  ``forwarded``: the application for calls from trusted proxies.

        ``drain`` makes the application end its long polls, after new connections are stopped.  ``lingers`` is called
        during the drain; it returns True if other processes continue, so that clients can move to them
        (:data:`LINGER_SECONDS`).
        """
        protocol: type[Any] = Connection if certificate is None else Handshake
        super().__init__(
            uvicorn.Config(
                app,
                interface="asgi3",
                http=protocol,
                ws="none",
                lifespan="off",
                workers=1,
                log_config=None,
                log_level="warning",  # the process does its own logging
                proxy_headers=False,
                server_header=False,
                backlog=BACKLOG,
            )
        )
        self.registry = ConnectionRegistry(limits, certificate, forwarded)
        self.server_state = self.registry  # type: ignore[assignment]  # uvicorn's attributes without its class
        self._sweep = DeadlineSweep(self.registry.connections, SWEEP_TICKS)
        self.cut = 0
        """Number of calls aborted at the end."""
        self._log_refused_at = 0.0
        self._reports_cut_at = 0.0
        self._taking: set[asyncio.Task[None]] = set()
        """Tasks that start serving connections which another process accepted."""
        self._stop = stop
        self._when_started = started
        self._drain_app = drain
        self._lingers = lingers

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening; without sockets, connections arrive only by :meth:`take`.  Raises :class:`CannotListen`."""
        assert sockets is not None
        await self.on_tick(0)  # sets the first answers' Date
        try:
            await super().startup(sockets)
        except OSError as error:
            host, port = sockets[len(self.servers)].getsockname()[:2]
            raise CannotListen(_why(error, host, port)) from error
        self._when_started()

    def take(self, accepted: socket.socket) -> None:
        """Serve a connection that another process has accepted."""
        task = asyncio.create_task(self._take(accepted))
        self._taking.add(task)
        task.add_done_callback(self._taking.discard)

    async def _take(self, accepted: socket.socket) -> None:
        try:
            accepted.setblocking(False)
            await asyncio.get_running_loop().connect_accepted_socket(self._protocol, accepted)
        except OSError as error:
            accepted.close()
            log.debug("a client disconnected before it was served %s", facts(error=error))

    def _protocol(self) -> asyncio.Protocol:
        kind: Any = self.config.http_protocol_class
        made: asyncio.Protocol = kind(config=self.config, server_state=self.registry, app_state={})
        return made

    async def on_tick(self, counter: int) -> bool:
        """Run ten times a second.

        Closes overdue connections.  Once a second: updates Date, checks the certificate's files.
        """
        await super().on_tick(counter)
        now = asyncio.get_running_loop().time()
        self._sweep.tick(counter, now)
        if counter % SWEEP_TICKS == 0:
            headers = self.registry.default_headers
            self.registry.common_headers = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
            if self.registry.certificate is not None:
                self.registry.certificate.refresh()
            if self.registry.slots.refused and now >= self._log_refused_at:
                log.warning(
                    "connections were refused because there were too many %s",
                    facts(count=self.registry.slots.refused),
                )
                self.registry.slots.refused = 0
                self._log_refused_at = now + REFUSED_LOG_SECONDS
            if self.registry.answers.cut and now >= self._reports_cut_at:
                log.warning(
                    "connections were aborted because their clients did not read long answers %s",
                    facts(count=self.registry.answers.cut, bytes_max=self.registry.answers.bytes_max),
                )
                self.registry.answers.cut = 0
                self._reports_cut_at = now + REFUSED_LOG_SECONDS
        return self._stop.is_set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer the accepted calls, within ``drain_seconds``.

        Replaces uvicorn's own, which neither accepts connections waiting in the kernel nor checks for a waiting request
        in a connection that it closes.
        """
        log.info("draining %s", facts(connections=len(self.registry.connections)))
        await self.stop_accepting()
        await self._drain_app()
        self.cut = await self.finish(self.registry.limits.drain_seconds)
        if self.cut:
            log.warning("calls were aborted because they took longer than drain_seconds %s", facts(calls=self.cut))

    async def stop_accepting(self) -> None:
        """Stop accepting connections; existing ones close after the requests they have sent are answered."""
        await _turns()  # accept connections waiting in the kernel
        if self._taking:
            await asyncio.wait(set(self._taking))
        for server in self.servers:
            server.close()
        self.registry.draining = True
        if self._lingers():
            for connection in list(self.registry.connections):
                connection.shutdown(idle=False)
            await self._until_empty(LINGER_SECONDS)
        await _turns()  # read requests that those clients have sent
        for connection in list(self.registry.connections):
            connection.shutdown()

    async def finish(self, seconds: float) -> int:
        """Wait for all answers; after ``seconds`` cancel the remaining calls.

        Returns the number of cancelled calls.
        """
        await self._until_empty(seconds)
        late = set(self.registry.tasks)
        for task in late:
            task.cancel()
        for connection in list(self.registry.connections):
            connection.transport.abort()
        for handshake in list(self.registry.handshakes):
            handshake.drop()
        if late:
            await asyncio.wait(late, timeout=1)
        return len(late)

    async def _until_empty(self, seconds: float) -> None:
        """Wait until all connections are closed, for at most this long."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while not self.registry.is_empty and (left := end - loop.time()) > 0:
            self.registry.emptied.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.registry.emptied.wait(), min(left, 1))
            for tick in range(SWEEP_TICKS):
                await self.on_tick(tick)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Do nothing, so that the process's signal handlers stay."""
        yield
