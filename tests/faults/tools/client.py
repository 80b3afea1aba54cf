"""A client that classifies each call as answered, refused, never sent or in doubt.  It never retries."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any, Protocol

from bench.signing import RequestSigner, SigningCredentials

ANSWER_SECONDS = 60.0
"""Timeout of a call; the longest poll here is 2 s."""
REPEATED_SECONDS = 120.0
RETRY_SECONDS = 0.2


class Endpoint(Protocol):
    """Endpoint of a service on this machine."""

    @property
    def ports(self) -> Sequence[int]:
        """Ports on the loopback; each serves all queues."""

    @property
    def access_key_id(self) -> str: ...
    @property
    def secret_access_key(self) -> str: ...
    @property
    def region(self) -> str: ...


class Unreachable(Exception):
    """The connection failed: nothing was sent."""


class InDoubt(Exception):
    """The connection ended before the answer arrived: the effect of the call is not known."""


class CallRefused(Exception):
    """The answer is an error."""

    def __init__(self, action: str, status: int, code: str, message: str) -> None:
        super().__init__(f"{action}: {status} {code}: {message}")
        self.status = status
        self.code = code
        self.message = message


class Client:
    """One connection to a server, for one call at a time; connects on demand."""

    def __init__(self, server: Endpoint, port: int | None = None) -> None:
        """Set up a client.  ``port``: port of one of several frontends."""
        self._port = server.ports[0] if port is None else port
        credentials = SigningCredentials(server.access_key_id, server.secret_access_key, server.region)
        self._signer = RequestSigner(f"127.0.0.1:{self._port}", credentials)
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, action: str, **parameters: Any) -> dict[str, Any]:
        """Return the answer.

        Raises :class:`Unreachable`, :class:`InDoubt`, :class:`CallRefused`; TimeoutError if the call hangs.
        """
        reader, writer = await self._connect()
        try:
            writer.write(self._signer.request(action, json.dumps(parameters).encode()))
            async with asyncio.timeout(ANSWER_SECONDS):  # wait_for may swallow a cancellation (before Python 3.12)
                status, body, closes = await _read(reader)
        except (OSError, asyncio.IncompleteReadError) as error:
            if isinstance(error, TimeoutError):
                raise
            await self.close()
            raise InDoubt(f"{action}: {error}") from error
        except BaseException:
            writer.transport.abort()
            raise
        if closes:
            await self.close()
        answer: dict[str, Any] = json.loads(body) if body else {}
        if status != 200:
            raise CallRefused(action, status, answer.get("__type", "").rpartition("#")[2], answer.get("message", ""))
        return answer

    async def repeated(self, action: str, **parameters: Any) -> dict[str, Any]:
        """Make an idempotent call, repeated until it is answered, for :data:`REPEATED_SECONDS`."""
        end = time.monotonic() + REPEATED_SECONDS
        while True:
            try:
                return await self.call(action, **parameters)
            except (InDoubt, Unreachable, CallRefused) as error:
                if (isinstance(error, CallRefused) and error.status != 503) or time.monotonic() > end:
                    raise
            await asyncio.sleep(RETRY_SECONDS)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._connection is not None and not self._connection[0].at_eof():
            return self._connection
        await self.close()
        try:
            self._connection = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError as error:
            raise Unreachable(str(error)) from error
        return self._connection

    @property
    def local_port(self) -> int:
        """Local port of the current connection."""
        assert self._connection is not None
        port: int = self._connection[1].get_extra_info("sockname")[1]
        return port

    async def close(self) -> None:
        """Close the connection, if there is one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection[1].transport.abort()
            try:
                await connection[1].wait_closed()
            except OSError:
                pass  # a broken connection


async def _read(reader: asyncio.StreamReader) -> tuple[int, bytes, bool]:
    """Read status and body of an answer, and whether the connection closes after it."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    at = head.index(b"\r\ncontent-length:")
    length = int(head[at + 17 : head.index(b"\r\n", at + 2)])
    return int(head[9:12]), await reader.readexactly(length), b"\r\nconnection: close\r\n" in head
