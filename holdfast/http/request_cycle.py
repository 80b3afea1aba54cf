"""One request with its answer: the ``receive`` and ``send`` of an ASGI application."""

from __future__ import annotations

import asyncio
import http
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, Protocol

log = logging.getLogger("holdfast.http.connection")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
App = Callable[[Any, Any, Any], Awaitable[None]]

_STATUS_LINES = {
    int(status): f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\n".encode() for status in http.HTTPStatus
}
_WHOLE_ANSWER = _STATUS_LINES[200] + b"%b%bcontent-length: %d\r\n%b\r\n%b"
"""Template of a whole answer: common headers, headers, the body's length, the end-of-connection header, and the body.

One format takes a fifth of the time of concatenating the parts.
"""
_CLOSES = b"connection: close\r\n"
WRITE_BYTES: Final = 65_536
"""Size of the slices in which a longer body is written, each after the client has read the ones before.

So a connection's buffer is bounded, and a body that many answers share is in memory once.
"""
_WITHOUT_BODY = (204, 304)
_FAILED = b"Internal Server Error"


class ExchangeConnection(Protocol):
    """The connection, as an exchange uses it."""

    full: bool
    """True if the client has to read before more is written."""

    @property
    def common_headers(self) -> bytes:
        """Header lines that every answer has."""

    def write(self, data: bytes) -> None: ...

    async def room_to_write(self) -> None:
        """Wait until the client has read enough of what was written."""

    def hold_answer(self, length_bytes: int) -> None:
        """Count an answer of this length against the memory for answers, which may abort connections."""

    def answer_progressed(self) -> None:
        """Note that the client has read some of that answer."""

    def release_answer(self) -> None:
        """End the accounting of the written answer."""

    def resume_reading(self) -> None: ...

    def answered(self, cycle: RequestCycle) -> None:
        """Handle the completion of the answer."""

    def give_up(self) -> None:
        """Close the connection, because the answer cannot be completed."""

    def ended(self, cycle: RequestCycle) -> None:
        """Handle the return of the application."""


class RequestCycle:
    """A request that is being received and answered.

    It is its own ``receive``.  So an application of ours can use :meth:`call_when_gone`, :meth:`whole_body` and
    :meth:`answer`, which do in one step what ``receive`` and ``send`` do in several.
    """

    __slots__ = (
        "_body",
        "_chunked",
        "_connection",
        "_head",
        "_length",
        "_news",
        "_on_gone",
        "_waiter",
        "complete",
        "expects_continue",
        "gone",
        "keep_alive",
        "more_body",
        "scope",
        "started",
        "task",
    )

    task: asyncio.Task[None]
    """Task that runs the application."""

    def __init__(
        self, connection: ExchangeConnection, scope: Scope, *, keep_alive: bool, expects_continue: bool
    ) -> None:
        self.scope = scope
        self.keep_alive = keep_alive
        self.expects_continue = expects_continue
        """True if the client waits for "100 Continue" before it sends the body."""
        self.more_body = True
        self.gone = False
        """True if the client has closed the connection."""
        self.complete = False
        """True if the answer was written."""
        self._connection = connection
        self._body: bytes | bytearray = b""
        self._news = False
        """True if there is something new that ``receive`` has not returned yet."""
        self._waiter: asyncio.Future[None] | None = None
        self._on_gone: Callable[[], None] | None = None
        self._head: list[bytes] | None = None
        """Head of the answer until the first part of its body is available: both are sent in one write."""
        self.started = False
        """True if the answer's head was written."""
        self._length: int | None = None
        """Remaining bytes of the body; None if its length is not known."""
        self._chunked = False

    async def run(self, app: App) -> None:
        """Run the application.  An error that it raises is logged and answered with 500."""
        try:
            await app(self.scope, self, self.send)
        except asyncio.CancelledError:
            self._connection.give_up()
            raise
        except Exception as error:
            log.error("an unhandled error at %s %s", self.scope["method"], self.scope["path"], exc_info=error)
            await self._fail()
        else:
            if not self.complete and not self.gone:
                log.error("%s %s was not answered", self.scope["method"], self.scope["path"])
                await self._fail()
        finally:
            self._connection.ended(self)

    async def _fail(self) -> None:
        if self.started:
            self._connection.give_up()
        elif not self.gone:
            self._head = None
            length = str(len(_FAILED)).encode()
            headers = [(b"content-type", b"text/plain"), (b"content-length", length), (b"connection", b"close")]
            await self.send({"type": "http.response.start", "status": 500, "headers": headers})
            await self.send({"type": "http.response.body", "body": _FAILED})

    # --- the request ---

    def feed(self, data: bytes) -> int:
        """Add a part of the body.  Returns the number of bytes that wait to be received."""
        if not self._body:
            self._body = data
        else:
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += data
        self._notify()
        return len(self._body)

    def feed_end(self) -> None:
        """Mark the body as complete."""
        self.more_body = False
        self._notify()

    def disconnect(self) -> None:
        """Handle the client's disconnection."""
        self.gone = True
        self._notify()
        if self._on_gone is not None:
            self._on_gone()

    def call_when_gone(self, on_gone: Callable[[], None] | None) -> None:
        """Call ``tell`` once the client has disconnected, at once if it already has; None: no longer.

        An application that waits for nothing else from the client needs no receiving task.
        """
        self._on_gone = on_gone
        if on_gone is not None:
            if self.gone:
                on_gone()
            self._connection.resume_reading()

    async def __call__(self) -> Message:
        """Return the next part of the request; ``http.disconnect`` after a disconnection or a complete answer."""
        if not self._news and not self.gone and not self.complete:
            if self.expects_continue and self.more_body:
                self.expects_continue = False
                self._connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._connection.resume_reading()
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._news = False
        if self.gone or self.complete:
            return {"type": "http.disconnect"}
        body, self._body = self._body, b""
        return {"type": "http.request", "body": bytes(body), "more_body": self.more_body}

    def whole_body(self) -> bytes | None:
        """Return the rest of the body if all of it has arrived; None: it has to be received."""
        if self.more_body or not self._news or self.gone or self.complete:
            return None
        self._news = False
        body, self._body = self._body, b""
        return bytes(body)

    def _notify(self) -> None:
        self._news = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- the answer ---

    async def send(self, message: Message) -> None:
        """Write a part of the answer.  After a disconnect it is discarded."""
        if self.gone:
            return
        if message["type"] == "http.response.start":
            self._start(message["status"], message.get("headers", ()))
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        if len(body) > WRITE_BYTES and self.scope["method"] != "HEAD":
            await self._write_slices(body, more)
            return
        await self._connection.room_to_write()
        self._write(body, more)

    async def _write_slices(self, body: bytes, more: bool) -> None:
        if self._head is not None and self._length is None and not more:
            self._length = len(body)
            self._head.append(b"content-length: %d\r\n" % self._length)
        connection = self._connection
        connection.hold_answer(len(body))
        try:
            for start in range(0, len(body), WRITE_BYTES):
                await connection.room_to_write()
                if self.gone:
                    return
                if start:
                    connection.answer_progressed()
                end = start + WRITE_BYTES
                self._write(body[start:end], more or end < len(body))
        finally:
            connection.release_answer()

    def answer(self, headers: list[tuple[bytes, bytes]], body: bytes) -> bool:
        """Write a whole answer with status 200; its headers contain neither length nor connection headers.

        False, and nothing was written, if the client has to read first; ``send`` waits for that.
        """
        connection = self._connection
        if connection.full or len(body) > WRITE_BYTES:
            return False
        if self.gone:
            return True
        if self._head is not None or self.started:
            raise RuntimeError("a second start of an answer")
        lines = b"".join([b"%b: %b\r\n" % header for header in headers])
        if not lines.count(b"\n") == lines.count(b"\r") == len(headers):
            raise RuntimeError("a header's value with a line break")
        self.started = True
        closes = b"" if self.keep_alive else _CLOSES
        sent = b"" if self.scope["method"] == "HEAD" else body
        connection.write(_WHOLE_ANSWER % (connection.common_headers, lines, len(body), closes, sent))
        self._end()
        return True

    def _write(self, body: bytes, more: bool) -> None:
        if self.complete or (self._head is None and not self.started):
            raise RuntimeError("a part of an answer after its end, or before its start")
        if self.scope["method"] == "HEAD":
            body = self._first(body, more) if self._head is not None else b""
            self._length = None
        elif self._head is not None:
            body = self._first(body, more)
        elif self._chunked:
            body = _chunk(body, more)
        elif self._length is not None:
            self._length -= len(body)
        if body:
            self._connection.write(body)  # no effect on a connection that was closed meanwhile
        if not more:
            if self._length:
                raise RuntimeError("an answer of another length than its head says")
            self._end()

    def _end(self) -> None:
        self.complete = True
        self._notify()
        self._connection.answered(self)

    def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        if self._head is not None or self.started:
            raise RuntimeError("a second start of an answer")
        head = [_STATUS_LINES[status], self._connection.common_headers]
        for name, value in headers:
            if value.find(b"\n") >= 0 or value.find(b"\r") >= 0:  # not `in`: see auth.signatures.percent
                raise RuntimeError(f"a header's value with a line break: {name!r}")
            if name == b"content-length":
                self._length = int(value)
            elif name == b"connection" and value == b"close":
                self.keep_alive = False
                continue
            head += (name, b": ", value, b"\r\n")
        if status in _WITHOUT_BODY:
            self._length = 0
        self._head = head

    def _first(self, body: bytes, more: bool) -> bytes:
        """Return the head with the first part of the body."""
        head = self._head
        assert head is not None
        self._head = None
        self.started = True
        if self._length is None:
            if more:
                head.append(b"transfer-encoding: chunked\r\n")
                self._chunked = True
            else:
                head.append(b"content-length: %d\r\n" % len(body))
        else:
            self._length -= len(body)
        head.append(b"\r\n" if self.keep_alive else _CLOSES + b"\r\n")
        if self.scope["method"] != "HEAD":
            head.append(_chunk(body, more) if self._chunked else body)
        return b"".join(head)


def _chunk(body: bytes, more: bool) -> bytes:
    chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
    return chunk if more else chunk + b"0\r\n\r\n"
