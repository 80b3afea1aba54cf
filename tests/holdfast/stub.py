"""A service with an application of a few paths, for tests of what is around an application.

``python -m tests.holdfast.stub serve ...`` is ``holdfast serve ...`` with it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

from auth.credentials import AccessKey
from holdfast.settings import Settings
from metadata_service.sqlite import SQLiteStore


class StubService:
    """Implements :class:`holdfast.serve.Service`.

    ``/echo`` answers the body, ``/early`` answers before it reads, ``/poll`` waits until the drain, ``/stuck`` waits
    for ever, ``/large`` answers 8 MiB, ``/fail`` makes the service give up, all else is answered ``ok``.
    """

    def __init__(self) -> None:
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.draining = asyncio.Event()
        self.closed = False
        self.waiting = 0
        self.answered = 0
        self.requests = 0

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
            case _:
                await _read(receive)
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})
        self.answered += 1


async def _read(receive: Callable[[], Any]) -> bytes:
    body: bytes = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionAbortedError
        body += message["body"]
        if not message["more_body"]:
            return body


async def compose(settings: Settings, store: SQLiteStore, root: AccessKey) -> StubService:
    return StubService()


if __name__ == "__main__":
    from holdfast import cli
    from holdfast import compose as real

    with mock.patch.object(real, "compose", compose):
        sys.exit(cli.main())
