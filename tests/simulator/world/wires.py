"""Calls between the processes of a simulated cluster: what :mod:`backend.rpc.client` is over sockets.

A frame is on its way for a while, is late, is lost, or comes twice where that may be asked for.  A process that dies
breaks its connections, which the other side notices; one that is stopped, or cut off, does not answer.  As on the real
wire, what was certainly not begun is :class:`~backend.rpc.connection.NotSent`, and what nobody knows the end of is
:class:`~backend.api.Unavailable`.
"""

from __future__ import annotations

import asyncio
from contextvars import Context, copy_context
from typing import Any, Protocol

from backend import api
from backend.rpc.client import ClientLimits
from backend.rpc.connection import NotSent
from backend.stream_commands import FetchBatches, JoinGroup, SyncGroup
from tests.simulator.world.hosts import HOST, Host, Net

MAY_ARRIVE_TWICE = (api.AcceptTransfers, api.RejectTransfers, api.Delete, api.Configure)
"""Calls, with sends that carry a token, that may arrive twice.  Others arrive twice only if the caller repeats them."""


WAITING = (api.Receive, FetchBatches, JoinGroup, SyncGroup)
"""Calls that may wait at the server."""


class ServerHost(Host):
    """A process that can be called."""

    backend: api.Peer | None = None
    """None: it does not serve yet."""


class Wiring(Protocol):
    """Servers that can be called."""

    net: Net

    def server(self, name: str) -> ServerHost | None: ...

    def failed(self, error: BaseException) -> None: ...

    def answering(self, server: ServerHost, command: api.Command[Any]) -> None:
        """An answer is about to leave."""


def wire(wiring: Wiring) -> type:
    """Class that replaces :class:`backend.rpc.client.RemoteBackend`."""

    class SimRemote:
        def __init__(self, address: str, limits: ClientLimits) -> None:
            self.address = address
            self.connected = True
            self._limits = limits
            host = HOST.get()
            assert host is not None
            self._host = host

        @classmethod
        async def connect(cls, address: str, *, limits: ClientLimits, **_: object) -> SimRemote:
            return cls(address, limits)

        async def close(self) -> None:
            pass

        async def call(self, command: api.Command[Any]) -> Any:
            net, server = wiring.net, wiring.server(self.address)
            me, name = self._host, self._host.name
            if server is None or not server.alive or server.backend is None:
                await asyncio.sleep(net.random.random() * 0.01)
                raise NotSent(f"{self.address} cannot be reached")
            if not (net.open(name, server.name) and net.open(server.name, name)) and net.random.random() < 0.5:
                await asyncio.sleep(net.random.random() * 0.5)
                raise NotSent(f"{self.address} has been silent for some time")
            seconds = self._limits.call_seconds + (command.wait_time if isinstance(command, WAITING) else 0.0)
            call = _Call(wiring, me, server, command)
            return await call.made(seconds)

    return SimRemote


class _Call:
    def __init__(self, wiring: Wiring, me: Host, server: ServerHost, command: api.Command[Any]) -> None:
        self._wiring = wiring
        self._net = wiring.net
        self._loop = asyncio.get_running_loop()
        self._me = me
        self._server = server
        self._command = command
        self._began_at = self._loop.time()
        self._repeatable = isinstance(command, api.Send) and all(one.token or one.retry for one in command.messages)
        """It is a send of which each message has a token."""
        self._future: asyncio.Future[Any] = self._loop.create_future()
        self._caller = copy_context()
        self._serving: list[asyncio.Task[None]] = []

    async def made(self, seconds: float) -> Any:
        me, server = self._me, self._server
        server.at_death[self] = lambda: self._broken()
        me.at_death[self] = lambda: self._leave()
        Context().run(self._send)
        timeout = self._loop.call_later(seconds, self._end, None, api.Unavailable("no answer in time"))
        try:
            return await self._future
        except asyncio.CancelledError:
            Context().run(self._leave)
            raise
        finally:
            timeout.cancel()
            server.at_death.pop(self, None)
            me.at_death.pop(self, None)

    def _send(self) -> None:
        net, name = self._net, self._me.name
        twice = isinstance(self._command, MAY_ARRIVE_TWICE) or self._repeatable
        times = 2 if twice and net.random.random() < net.twice else 1
        for time in range(times):
            if (there := net.delay(name, self._server.name)) is not None:
                late = net.random.random() * net.twice_seconds if time and net.twice_seconds else 0.0
                self._loop.call_later(there * (1 + 20 * time) + late, self._arrive)

    def _arrive(self) -> None:
        if self._server.alive:
            self._serving.append(self._server.run(self._loop, self._serve()))

    async def _serve(self) -> None:
        result, error = None, None
        if self._repeatable and self._loop.time() - self._began_at > self._net.send_seconds_max:
            return
        try:
            assert self._server.backend is not None
            result = await self._server.backend.call(self._command)
        except api.BackendError as refused:
            error = refused
        except asyncio.CancelledError:
            return
        except Exception as fault:
            self._wiring.failed(fault)
            return
        Context().run(self._wiring.answering, self._server, self._command)
        Context().run(self._reply, result, error)

    def _reply(self, result: Any, error: api.BackendError | None) -> None:
        if (back := self._net.delay(self._server.name, self._me.name)) is not None:
            self._loop.call_later(back, self._report, result, error)

    def _report(self, result: Any, error: api.BackendError | None) -> None:
        self._loop.call_soon(self._end, result, error, context=self._caller)

    def _end(self, result: Any, error: api.BackendError | None) -> None:
        if self._future.done():
            return
        if error is None:
            self._future.set_result(result)
        else:
            self._future.set_exception(error)

    def _broken(self) -> None:
        self._report(None, api.Unavailable(f"the connection to {self._server.name} is lost"))

    def _leave(self) -> None:
        """Notify the server that the caller no longer waits for the answer."""
        if (there := self._net.delay(self._me.name, self._server.name)) is not None:
            self._loop.call_later(there, self._give_up)

    def _give_up(self) -> None:
        for task in self._serving:
            if self._server.alive:
                self._loop.call_soon(task.cancel, context=self._server.context)
