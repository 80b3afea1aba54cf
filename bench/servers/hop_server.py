"""A backend that answers at once, over the wire protocol or plain streams: ``python -m bench.servers.hop_server WAY
PATH``."""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import msgspec
import uvloop

from backend.api import NewMessage, Peer, Send, SendResult, Target
from backend.rpc.server import serve_backend

SECRET = b"known to all who take part"
WAYS = ("wire", "streams")
_decode = msgspec.msgpack.Decoder(tuple[int, Target, list[NewMessage]]).decode
_encode = msgspec.msgpack.Encoder().encode


class Instant:
    """A backend that stores nothing."""

    async def call(self, command: Send) -> list[SendResult]:
        return [SendResult("0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0", 1 << 48) for _ in command.messages]


async def _by_streams(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    backend, tasks = Instant(), set()

    async def answer(data: bytes) -> None:
        call, target, messages = _decode(data)
        answered = _encode((call, await backend.call(Send(target, messages))))
        writer.write(len(answered).to_bytes(4, "little") + answered)

    try:
        while True:
            size = int.from_bytes(await reader.readexactly(4), "little")
            task = asyncio.create_task(answer(await reader.readexactly(size)))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
    except asyncio.IncompleteReadError:
        writer.close()


async def _serve(way: str, path: str) -> None:
    if way == "wire":
        await serve_backend(cast(Peer, Instant()), secret=SECRET, path=path)
    else:
        await asyncio.start_unix_server(_by_streams, path)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_serve(sys.argv[1], sys.argv[2]))
