"""TCP proxy that drops answers: the service has executed the call, and its client's connection closes."""

from __future__ import annotations

import asyncio
import threading
from random import Random
from types import TracebackType


class LosingProxy:
    """Proxy in front of a loopback port, in a thread of its own, for the duration of the ``with`` block.

    It reads each answer whole, and drops a ``share`` of them together with the connection.
    """

    def __init__(self, upstream_port: int, share: float, seed: int = 1) -> None:
        self.share = share
        self.lost = 0
        self.passed = 0
        self.port = 0
        self._upstream_port = upstream_port
        self._random = Random(seed)
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="losing proxy", daemon=True)

    def __enter__(self) -> LosingProxy:
        self._thread.start()
        assert self._ready.wait(10), "the proxy does not listen"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        service: asyncio.StreamWriter | None = None
        try:
            answers, service = await asyncio.open_connection("127.0.0.1", self._upstream_port)
            up = asyncio.create_task(_copy(client, service))
            try:
                while answer := await _whole(answers):
                    if self._random.random() < self.share:
                        self.lost += 1
                        return
                    self.passed += 1
                    to_client.write(answer)
                    await to_client.drain()
            finally:
                up.cancel()
        except OSError:
            pass  # the service is down, or one side has closed: close the other one
        finally:
            for writer in (to_client, service):
                if writer is not None:
                    writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    writer.transport.abort()


async def _whole(reader: asyncio.StreamReader) -> bytes:
    """Read one answer, header and body; empty when the connection has closed."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        lower = head.lower()
        at = lower.find(b"\r\ncontent-length:")
        length = int(lower[at + 17 : lower.index(b"\r\n", at + 2)]) if at >= 0 else 0
        return head + await reader.readexactly(length)
    except asyncio.IncompleteReadError:
        return b""
