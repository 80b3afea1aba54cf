"""Metadata nodes in this process, on their own sockets."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import uvicorn
from starlette.types import Message, Receive, Scope, Send

from metadata_service.nodes.node import MetadataNode
from metadata_service.nodes.remote_store import RemoteStore
from metadata_service.nodes.ring import RingMember, RingView
from metadata_service.store import MetadataStore
from tests.closing import closing

SECRET = b"a secret of the cluster's tests"
NO_TLS = ssl.create_default_context()
"""For callers of nodes without TLS: each would otherwise load the system's authorities anew."""


class RunningNode:
    """A serving node, until it is stopped."""

    def __init__(self, node: MetadataNode, listening: socket.socket) -> None:
        self.node = node
        self.calls: list[str] = []
        """Path of every request so far."""
        self.lose_answers = False
        """True to close connections instead of answering."""
        self._socket = listening
        self._server = uvicorn.Server(
            uvicorn.Config(
                self._app,
                interface="asgi3",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                timeout_keep_alive=60,
            )
        )
        self._task: asyncio.Task[None] | None = None

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.calls.append(scope["path"])

        async def lose(message: Message) -> None:
            self._cut()

        await self.node.app(scope, receive, lose if self.lose_answers else send)

    def _cut(self) -> None:
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()

    async def start(self) -> None:
        await self.node.start()
        self._task = asyncio.create_task(self._server._serve([self._socket]))
        while not self._server.started:
            await asyncio.sleep(0.001)

    async def stop(self) -> None:
        """Close its connections and its listener, like the death of its process.  May be called more than once."""
        if self._task is not None:
            self._server.should_exit = self._server.force_exit = True
            self._cut()
            await self._task
            self._task = None
            await self.node.close()
        self._socket.close()


class RingNodes:
    """Nodes by name, and their ring view."""

    def __init__(self, view: RingView, running: dict[str, RunningNode]) -> None:
        self.view = view
        self.running = running

    def forget_calls(self) -> None:
        for one in self.running.values():
            one.calls.clear()

    def __getitem__(self, name: str) -> RunningNode:
        return self.running[name]


@asynccontextmanager
async def nodes(count: int, make: Callable[[RingView, str], MetadataNode]) -> AsyncIterator[RingNodes]:
    """``count`` nodes, named m0 and so on, each made by ``make``."""
    sockets = {f"m{number}": socket.create_server(("127.0.0.1", 0)) for number in range(count)}
    view = RingView.of(
        1, tuple(RingMember(name, f"http://127.0.0.1:{one.getsockname()[1]}") for name, one in sockets.items())
    )
    running = {name: RunningNode(make(view, name), one) for name, one in sockets.items()}
    try:
        for one in running.values():
            await one.start()
        yield RingNodes(view, running)
    finally:
        await asyncio.gather(*(one.stop() for one in running.values()))


@asynccontextmanager
async def remote(view: RingView, secret: bytes = SECRET) -> AsyncIterator[tuple[RemoteStore, MetadataStore]]:
    """A caller of these nodes, also as the store that it implements."""
    async with closing(RemoteStore(view, secret, tls=NO_TLS)) as caller:
        yield caller, caller
