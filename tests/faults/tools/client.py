"""A client that classifies each call as answered, refused, never sent or in doubt.  It never retries."""

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any, Protocol

from tests.faults.tools.bodies import key_of
from tests.servers.server import ACCOUNT, REGION
from tests.servers.signing import RequestSigner, SigningCredentials

ANSWER_SECONDS = 60.0
"""Timeout of a call; the longest poll here is 2 s."""
REPEATED_SECONDS = 120.0
RETRY_SECONDS = 0.2


def url_of(queue: str) -> str:
    """Return a queue's URL, which any frontend takes."""
    return f"http://127.0.0.1/{ACCOUNT}/{queue}"


def arn_of(queue: str) -> str:
    return f"arn:aws:sqs:{REGION}:{ACCOUNT}:{queue}"


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
    def __init__(self, action: str, status: int, code: str, message: str) -> None:
        super().__init__(f"{action}: {status} {code}: {message}")
        self.status = status
        self.code = code
        self.message = message


class Client:
    """One connection to a server, for one call at a time; connects on demand."""

    def __init__(self, server: Endpoint, port: int | None = None, *, invocation_ids: bool = False) -> None:
        """``port``: one of several frontends'; ``invocation_ids``: calls have ids, so that a send is idempotent."""
        self._port = server.ports[0] if port is None else port
        credentials = SigningCredentials(server.access_key_id, server.secret_access_key, server.region)
        self._signer = RequestSigner(f"127.0.0.1:{self._port}", credentials, invocation_ids=invocation_ids)
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, action: str, **parameters: Any) -> dict[str, Any]:
        """Raises :class:`Unreachable`, :class:`InDoubt`, :class:`CallRefused`; TimeoutError if the call hangs."""
        return await self._exchange(action, self._signer.request(action, json.dumps(parameters).encode()))

    async def _exchange(self, action: str, request: bytes) -> dict[str, Any]:
        status, body = await self._answer(action, request)
        answer: dict[str, Any] = json.loads(body) if body else {}
        if status != 200:
            raise CallRefused(action, status, answer.get("__type", "").rpartition("#")[2], answer.get("message", ""))
        return answer

    async def _answer(self, action: str, request: bytes) -> tuple[int, bytes]:
        """Return status and body of the answer."""
        reader, writer = await self._connect()
        try:
            writer.write(request)
            async with asyncio.timeout(ANSWER_SECONDS):  # wait_for may swallow a cancellation (before Python 3.12)
                status, body, closes = await _read(reader)
        except (OSError, asyncio.IncompleteReadError) as error:
            if isinstance(error, TimeoutError):
                raise TimeoutError(f"{action} was not answered within {ANSWER_SECONDS:g} s") from error
            await self.close()
            raise InDoubt(f"{action}: {error}") from error
        except BaseException:
            writer.transport.abort()
            raise
        if closes:
            await self.close()
        return status, body

    async def repeated(self, action: str, **parameters: Any) -> dict[str, Any]:
        """Make an idempotent call, repeated until it is answered, for :data:`REPEATED_SECONDS`."""
        end = time.monotonic() + REPEATED_SECONDS
        request = self._signer.request(action, json.dumps(parameters).encode())
        while True:
            try:
                return await self._exchange(action, request)
            except (InDoubt, Unreachable, CallRefused) as error:
                if (isinstance(error, CallRefused) and error.status != 503) or time.monotonic() > end:
                    raise
            await asyncio.sleep(RETRY_SECONDS)

    async def stored(self, url: str) -> int:
        """Return the number of a queue's messages: visible, in flight and delayed.  The call is repeated."""
        counted = await self.repeated("GetQueueAttributes", QueueUrl=url, AttributeNames=["All"])
        names = [f"ApproximateNumberOfMessages{name}" for name in ("", "NotVisible", "Delayed")]
        return sum(int(counted["Attributes"][name]) for name in names)

    async def receive_all(
        self, url: str, *, empty_answers: int = 1, delete: bool = False, **parameters: Any
    ) -> list[tuple[str, dict[str, Any]]]:
        """Receive, with repeated calls, until so many answers in a row are empty; return keys and messages."""
        received: list[tuple[str, dict[str, Any]]] = []
        empty = 0
        while empty < empty_answers:
            answer = await self.repeated("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10, **parameters)
            empty = 0 if "Messages" in answer else empty + 1
            for message in answer.get("Messages", ()):
                key = key_of(message["Body"])
                assert key is not None, f"a body that nobody sent: {message['Body'][:200]!r}"
                received.append((key, message))
                if delete:
                    await self.repeated("DeleteMessage", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        return received

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
        assert self._connection is not None
        port: int = self._connection[1].get_extra_info("sockname")[1]
        return port

    async def close(self) -> None:
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
