"""A service with an application of a few paths, for tests of the server around it.

``python -m tests.holdfast.stub serve ...`` is ``holdfast serve ...`` with it.
"""

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Any
from unittest import mock

from auth.credentials import AccessKey
from auth.encryption.keyring import Keyring
from holdfast.http.certificate import Certificate
from holdfast.http.connection import Limits
from holdfast.http.listener import HttpServer
from holdfast.http.proxies import Forwarded
from holdfast.http.request_cycle import App
from holdfast.settings import Settings
from metadata_service.sqlite.store import SQLiteStore
from telemetry.metrics import Registry


class StubService:
    """Implements :class:`holdfast.process.serve.Service`.

    ``/echo`` answers the body, ``/early`` answers before it reads, ``/poll`` waits until the drain, ``/stuck``
    waits for ever, ``/large`` answers 8 MiB, ``/origin`` returns scheme and client, ``/fail`` makes the service
    give up, all others answer ``ok``.
    """

    def __init__(self) -> None:
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.draining = asyncio.Event()
        self.closed = False
        self.waiting = 0
        self.answered = 0
        self.requests = 0

    def register_metrics(self, registry: Registry) -> None:
        registry.declare("holdfast_stub_requests_total", "Requests.", lambda: self.requests)

    async def drain(self) -> None:
        self.draining.set()

    async def close(self) -> None:
        self.closed = True
        print("stub closed", flush=True)

    async def app(self, scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        self.requests += 1
        body = b"ok"
        match scope["path"]:
            case "/echo":
                body = await _read(receive)
            case "/poll":
                self.waiting += 1
                await self.draining.wait()
                body = b"ended"
            case "/stuck":
                self.waiting += 1
                await asyncio.Event().wait()
            case "/large":
                body = b"x" * (8 << 20)
            case "/fail":
                self.failed.set_exception(RuntimeError("the journal is lost"))
            case "/early":
                pass
            case "/origin":
                body = f"{scope['scheme']} {scope['client'][0]}".encode()
            case _:
                await _read(receive)
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})
        self.answered += 1


class StubServer:
    """A server of ``app`` on ``sockets``."""

    def __init__(
        self,
        app: App,
        sockets: list[socket.socket],
        limits: Limits,
        drain: Callable[[], Awaitable[None]] | None = None,
        certificate: Certificate | None = None,
        forwarded: Forwarded | None = None,
        *,
        lingers: bool = False,
    ) -> None:
        self._stop = asyncio.Event()
        started = asyncio.Event()
        self._started = asyncio.create_task(started.wait())
        self.server = HttpServer(
            *(app, limits, certificate, forwarded),
            stop=self._stop,
            started=started.set,
            drain=drain or _nothing,
            lingers=lambda: lingers,
        )
        self._serving = asyncio.create_task(self.server.serve(sockets))

    async def started(self) -> None:
        await asyncio.wait((self._started, self._serving), return_when=asyncio.FIRST_COMPLETED)
        if self._serving.done():
            self._started.cancel()
            self._serving.result()

    async def stop(self) -> None:
        """Drain, and wait for the end."""
        self._stop.set()
        await self._serving


async def _nothing() -> None:
    pass


async def _read(receive: Callable[[], Any]) -> bytes:
    body: bytes = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionAbortedError
        body += message["body"]
        if not message["more_body"]:
            return body


async def compose(settings: Settings, store: SQLiteStore, root: AccessKey, keyring: Keyring) -> StubService:
    return StubService()


if __name__ == "__main__":
    from holdfast.commands import main
    from holdfast.process import embedded as real

    with mock.patch.object(real, "compose", compose):
        sys.exit(main.main())
