"""A node behind a connection, for tests; and a backend that the test controls."""

import asyncio
import itertools
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from backend import api
from backend.rpc.address import Address
from backend.rpc.client import ClientLimits, RemoteBackend
from backend.rpc.cluster_client import ClusterBackend
from backend.rpc.server import BackendServer, ServerLimits, serve_backend
from tests.backend.nodes import RestartableNode

SECRET = b"a secret that both sides know"
TARGET = api.Target(7, 70, 1)


class WiredCluster(RestartableNode):
    """:class:`RestartableNode` with its node behind a connection; on request, as the only one of a cluster."""

    server: BackendServer
    backend: RemoteBackend | ClusterBackend
    as_cluster = False

    async def start(self) -> None:
        await super().start()
        self.server = await serve_backend(self.node, secret=SECRET, host="127.0.0.1")
        if self.as_cluster:
            self.backend = await ClusterBackend.connect(self._nodes, secret=SECRET)
        else:
            self.backend = await RemoteBackend.connect(self.server.address, secret=SECRET)

    async def _nodes(self) -> dict[str, Address]:
        return {"node": self.server.address}

    async def stop(self) -> None:
        await self.backend.close()
        await self.server.close()
        await super().stop()


class Obedient:
    """Backend that answers sends and receives when the test says so, or at once; counts the calls."""

    def __init__(self) -> None:
        self.hold = False
        """True: calls wait until they are cancelled or :meth:`unblock`."""
        self.held: list[asyncio.Future[None]] = []
        self.asked: list[str] = []
        self.cancelled = 0
        self.released: list[str] = []
        self.fail_with: BaseException | None = None
        self.payload = b"payload"
        self._numbers = itertools.count(1)

    async def _hold(self, what: str) -> None:
        self.asked.append(what)
        if self.hold:
            waiter = asyncio.get_running_loop().create_future()
            self.held.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        if self.fail_with is not None:
            raise self.fail_with

    def unblock(self) -> None:
        held, self.held = self.held, []
        for waiter in held:
            if not waiter.done():
                waiter.set_result(None)

    def call(self, command: api.Command[Any]) -> Coroutine[Any, Any, Any]:
        match command:
            case api.Send():
                return self.send(command.target, command.messages)
            case api.Receive():
                return self.receive(command.target, command.options)
            case api.Release():
                return self.release(command.handles)
            case api.AccountBytes():
                return self.stored_bytes()
        raise NotImplementedError(command)

    async def send(self, target: api.Target, messages: Sequence[api.NewMessage]) -> list[api.SendResult]:
        await self._hold("send")
        return [api.SendResult(f"id-{number}", number) for _, number in zip(messages, self._numbers, strict=False)]

    async def receive(self, target: api.Target, command: api.ReceiveOptions) -> list[api.ReceivedMessage]:
        await self._hold("receive")
        number = next(self._numbers)
        return [api.ReceivedMessage(f"id-{number}", f"handle-{number}", self.payload, number, 1, 1, 1)]

    async def release(self, handles: Sequence[str]) -> None:
        self.released += handles

    async def stored_bytes(self) -> int:
        raise NotImplementedError


class House:
    """An obedient backend, its server, and a client of it."""

    def __init__(self, limits: ServerLimits, client_limits: ClientLimits) -> None:
        self.limits = limits
        self.client_limits = client_limits
        self.inside = Obedient()
        self.server: BackendServer
        self.remote: RemoteBackend

    async def open(self, port: int = 0) -> None:
        self.server = await serve_backend(self.inside, secret=SECRET, host="127.0.0.1", port=port, limits=self.limits)

    async def connect(self) -> RemoteBackend:
        self.remote = await RemoteBackend.connect(self.server.address, secret=SECRET, limits=self.client_limits)
        await self.remote.ready(10)
        return self.remote

    async def close(self) -> None:
        if hasattr(self, "remote"):
            await self.remote.close()
        await self.server.close()

    @property
    def address(self) -> Address:
        return self.server.address

    async def send(self, *bodies: str) -> list[api.SendResult]:
        return await self.remote.call(api.Send(TARGET, [api.NewMessage(body.encode()) for body in bodies]))


FIXTURES = Path(__file__).parent / "fixtures"
