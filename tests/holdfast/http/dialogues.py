r"""Dialogues: what clients of the stub application send, byte for byte, and what they are answered.

::

    == a case, with a name that is unique in its file
    > {GET /}
    < 200 ok
    slow> POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhe
    . until partial
    . after 31 seconds
    slow< 408 close
    slow< end

``NAME> text`` sends bytes on the client's connection, which is opened the first time; the text has Python's escapes,
``{5000 * text}`` repeats and ``{GET /path}`` is a plain request.  ``NAME< status [close] [body]`` reads an answer:
``close`` says that it has ``connection: close``, ``close?`` that it may have it, and without it, it has no such header;
a body that is left out is not compared.  ``< end`` is the end of the connection, ``< cut`` the end after any bytes.  A
line with ``.`` is a method of :class:`Dialogue` with its arguments; ``#`` begins a comment.
"""

import asyncio
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.holdfast.http.door import HttpDoor, RawClient
from tests.servers.waiting import until

LINE = re.compile(r"(\w*)([<>.]) (.*)")
REPEATED = re.compile(r"\{(\d+) \* ([^{}]*)\}")
REQUEST = re.compile(r"\{GET ([^{}]+)\}")


@dataclass
class Dialogue:
    """A case of a file; its methods without ``_`` are the words of lines with ``.``."""

    name: str
    lines: list[str] = field(default_factory=list)
    _clients: dict[str, RawClient] = field(default_factory=dict)
    _door: HttpDoor = field(init=False)

    def __str__(self) -> str:
        return self.name.replace(" ", "-")

    async def __call__(self, door: HttpDoor) -> None:
        """Take part in it; AssertionError names the line."""
        self._door, self._clients = door, {}
        for line in self.lines:
            client, kind, text = LINE.fullmatch(line).groups()  # type: ignore[union-attr]
            try:
                if kind == ".":
                    word, *arguments = text.split()
                    await getattr(self, word)(*arguments)
                elif kind == ">":
                    (await self._client(client)).send(_bytes(text))
                else:
                    await _check(await self._client(client), text)
            except (AssertionError, TimeoutError, asyncio.IncompleteReadError) as error:
                raise AssertionError(f"{self.name}: {line}: {error!r}") from error

    async def _client(self, name: str) -> RawClient:
        if name not in self._clients:
            self._clients[name] = await self._door.connect()
        return self._clients[name]

    async def connect(self, name: str) -> None:
        """Open a client's connection, without sending anything."""
        await self._client(name)

    async def until(self, what: str, count: str = "1") -> None:
        door = self._door
        conditions = {
            "connected": lambda: door.connections,
            "gone": lambda: not door.connections,
            "paused": lambda: any(one._reading_paused for one in door.connections),
            "partial": lambda: any(one.mid_message for one in door.connections),
            "queued": lambda: any(len(one.waiting) == int(count) for one in door.connections),
            "waiting": lambda: door.service.waiting == int(count),
        }
        await until(conditions[what])

    async def after(self, seconds: str, _: str) -> None:
        self._door.pass_time(float(seconds))

    async def open(self, connections: str) -> None:
        assert len(self._door.connections) == int(connections)

    async def requests(self, count: str) -> None:
        """Check the number of requests that the application has received."""
        assert self._door.service.requests == int(count)

    async def unaccepted(self) -> None:
        await self._door.server.stop_accepting()
        with pytest.raises(ConnectionRefusedError):
            await self._door.connect()

    async def drain(self) -> None:
        """Let long polls end."""
        await self._door.service.drain()

    async def finish(self, seconds: str, aborted: str) -> None:
        """Wait for the end of all calls; ``aborted``: the number of those that have not ended by then."""
        assert await self._door.server.finish(float(seconds)) == int(aborted)


def _bytes(text: str) -> bytes:
    text = REQUEST.sub(r"GET \1 HTTP/1.1\\r\\nhost: x\\r\\n\\r\\n", text)
    data = text.encode().decode("unicode_escape")
    while (more := REPEATED.sub(lambda found: found[2] * int(found[1]), data)) != data:
        data = more
    return data.encode("latin-1")


async def _check(client: RawClient, expected: str) -> None:
    if expected in ("end", "cut"):
        left = await client.end()
        assert expected == "cut" or left == b"", left
        return
    status, headers, body = await client.answer()
    wanted = re.fullmatch(r"(\d+)(?: (close\??))?(?: (.*))?", expected)
    assert wanted is not None
    assert status == int(wanted[1]), (status, headers)
    assert wanted[2] == "close?" or headers.get("connection") == wanted[2], headers
    assert wanted[3] is None or body == _bytes(wanted[3]), body[:1000]
    assert "server" not in headers
    assert "date" in headers or status != 200


def dialogues(test_file: str) -> pytest.MarkDecorator:
    """Parametrize a test with the dialogues beside its file."""
    path = Path(test_file)
    cases: list[Dialogue] = []
    for line in path.with_name(path.stem.removeprefix("test_") + ".dialogue").read_text("utf-8").splitlines():
        if line.startswith("== "):
            cases.append(Dialogue(line.removeprefix("== ")))
        elif line and not line.startswith("#"):
            cases[-1].lines.append(line)
    return pytest.mark.parametrize("dialogue", cases, ids=str)
