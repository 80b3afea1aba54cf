"""An HTTP endpoint on the loopback that answers as a test says, also with what no server should send."""

import asyncio
import hashlib
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class PushedCall(NamedTuple):
    """A received call."""

    path: str
    headers: dict[str, str]
    """Headers by name in lower case."""
    body: str

    def is_signed_by(self, secret: str, field: int = 0) -> bool:
        """Verify one of the signatures like a receiver's program."""
        time, *signatures = self.headers["holdfast-signature"].split(",")
        signed = time.removeprefix("t=").encode() + b"." + self.body.encode()
        expected = hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
        return hmac.compare_digest(signatures[field].removeprefix("v1="), expected)


Answer = Callable[[PushedCall], Awaitable[bytes]]


def status(code: int, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {code} Status", "Content-Length: 0", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


class PushEndpoint:
    """The endpoint's server."""

    def __init__(self) -> None:
        self.url = ""
        self.calls: list[PushedCall] = []
        self.connections = 0
        self.open = 0
        """Calls that are not answered yet."""
        self.open_max = 0
        self.answer: Answer = self._ok
        self.endless = b""
        """Bytes that are sent again and again after an answer."""

    @property
    def bodies(self) -> list[str]:
        return [call.body for call in self.calls]

    def answers(self, *answers: bytes) -> None:
        """Set the next answers; then 200."""
        left = list(answers)

        async def next_answer(_: PushedCall) -> bytes:
            return left.pop(0) if left else OK

        self.answer = next_answer

    async def _ok(self, _: PushedCall) -> bytes:
        return OK

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                while True:
                    await self._call(reader, writer)
        finally:
            writer.close()

    async def _call(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in head[1:] if line)
        lowered = {name.lower(): value for name, value in headers.items()}
        body = await reader.readexactly(int(lowered["content-length"]))
        call = PushedCall(head[0].split(" ")[1], lowered, body.decode())
        self.calls.append(call)
        self.open += 1
        self.open_max = max(self.open_max, self.open)
        try:
            answer = await self.answer(call)
        finally:
            self.open -= 1
        writer.write(answer)
        await writer.drain()
        while self.endless:
            writer.write(self.endless)
            await writer.drain()
            await asyncio.sleep(0)  # drain alone does not let others run


@asynccontextmanager
async def serving() -> AsyncIterator[PushEndpoint]:
    endpoint = PushEndpoint()
    connections: set[asyncio.Task[None]] = set()

    def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.get_running_loop().create_task(endpoint.serve(reader, writer))
        connections.add(connection)
        connection.add_done_callback(connections.discard)

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    endpoint.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/push?token=hush"
    try:
        yield endpoint
    finally:
        server.close()
        for connection in list(connections):
            connection.cancel()
        if connections:
            await asyncio.wait(connections)
