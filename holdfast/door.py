"""The HTTP connections: uvicorn's httptools protocol with bounds on what a stranger can tie up.

uvicorn bounds neither how long a request may take to arrive nor how long its head may be, and arms a timer for
each request on a kept-alive connection.  Here each connection has one deadline instead, and one sweep a
second over all connections closes those that are past theirs: nothing is scheduled for each request.

A connection is in one of these states, which say what its deadline is:

===============  ===========================================  =====================================
state            from                                         deadline
===============  ===========================================  =====================================
reading          the connection, or a request's first byte    ``request_read_seconds``
answering        the last byte of a request                   none: the call may be a long poll
blocked          the client does not read its answer          ``request_read_seconds``
idle             the end of an answer                         ``idle_seconds``
closing          the decision to close                        5 s, then the connection is cut
===============  ===========================================  =====================================
"""

from __future__ import annotations

import asyncio
import math
import socket

import httptools
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

HEAD_BYTES_LIMIT = 65_536
"""A request line with headers may be this long, and nearly half as much again where it arrives in large pieces.
SQS by GET carries its parameters in the request line."""
HEADERS_LIMIT = 200
MESSAGE_BYTES_LIMIT = 16 * 1024 * 1024
"""Longest request.  The largest that SQS takes is 1 MiB of content, which escapes can make six times longer."""
PIPELINE_LIMIT = 100
"""Most requests of a connection that wait for an answer."""
LINGER_SECONDS = 5
SWEEP_SECONDS = 1

_PIECE_BYTES = 32_768
"""What was read at once is looked at in pieces of this size."""
_NEVER = math.inf


class Limits:
    """What the connections of a process share."""

    def __init__(self, connections: int, read_seconds: float, idle_seconds: float) -> None:
        self.connections = connections
        self.read_seconds = read_seconds
        self.idle_seconds = idle_seconds
        self.draining = False
        self.emptied = asyncio.Event()
        """Set when the last connection is gone while ``draining``."""


class Connection(HttpToolsProtocol):
    """One client's connection."""

    def __init__(self, config: Config, state: ServerState, limits: Limits, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(config, state, {}, loop)
        self.limits = limits
        self.deadline = _NEVER
        self._mid_message = False
        self._message_bytes = 0
        """Bytes of the request that is being read; 0: none of it was counted yet."""

    # --- what the event loop calls ---

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.deadline = self.loop.time() + self.limits.read_seconds
        if len(self.connections) > self.limits.connections:
            self.refuse(b"503 Service Unavailable", b"Too many connections.")
            return
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.limits.draining and not self.connections:
            self.limits.emptied.set()

    def data_received(self, data: bytes) -> None:
        if len(data) <= _PIECE_BYTES:
            self._feed(data)
            return
        for start in range(0, len(data), _PIECE_BYTES):
            if self.transport.is_closing():
                return
            self._feed(data[start : start + _PIECE_BYTES])

    def pause_writing(self) -> None:
        super().pause_writing()
        self.deadline = self.loop.time() + self.limits.read_seconds

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self.deadline = _NEVER if self._answering() else self.loop.time() + self.limits.idle_seconds

    # --- what the parser calls ---

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._mid_message = True
        self._message_bytes = 0

    def on_headers_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_message_complete()
            self._mid_message = False

    def on_response_complete(self) -> None:
        """Called when an answer is written.  Replaces uvicorn's own, which arms a timer."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            self.deadline = self.loop.time() + LINGER_SECONDS
            return
        self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
        elif not self._mid_message:
            self._rest()

    def send_400_response(self, msg: str) -> None:
        self.refuse(b"400 Bad Request", msg.encode())

    # --- what the server calls ---

    def sweep(self, now: float) -> None:
        """Close the connection if its deadline has passed."""
        if now < self.deadline:
            return
        if self.transport.is_closing() or self.flow.write_paused:
            self.transport.abort()
        elif not self._mid_message:
            self._close()
        elif self._waits_for_earlier():
            self.deadline = now + self.limits.read_seconds  # nothing was read meanwhile: the client is not slow
        else:
            self.refuse(b"408 Request Timeout", b"The request did not arrive in time.")

    def drain(self) -> None:
        """Close the connection if it is idle; otherwise it closes after its last answer."""
        if not self._mid_message and not self._answering():
            self._close()

    def refuse(self, status: bytes, text: bytes) -> None:
        """Close, and say why unless the answer to another request would then be mistaken for it."""
        if self.transport.is_closing():
            return
        if not self._waits_for_earlier() and not (self._answering() and self.cycle.response_started):
            length = str(len(text)).encode()
            self.transport.write(
                b"HTTP/1.1 " + status + b"\r\ncontent-type: text/plain; charset=utf-8\r\n"
                b"content-length: " + length + b"\r\nconnection: close\r\n\r\n" + text
            )
        self._close()

    # --- parts ---

    def _feed(self, data: bytes) -> None:
        rest = data
        while rest:
            try:
                self.parser.feed_data(rest)
                break
            except httptools.HttpParserUpgrade as upgrade:
                rest = self._without_upgrade() + rest[upgrade.args[0] :]
            except httptools.HttpParserError:
                self.refuse(b"400 Bad Request", b"Invalid HTTP request received.")
                return
        if self._mid_message:
            self._watch_unfinished(len(data))
        elif self._answering():
            self.deadline = _NEVER
        else:
            self._rest()
        if len(self.pipeline) > PIPELINE_LIMIT:
            self.refuse(b"400 Bad Request", b"Too many requests wait for an answer on this connection.")

    def _without_upgrade(self) -> bytes:
        """The head just read, to be read again without its offer to speak another protocol.

        Java's client offers HTTP/2 on each plain connection, with requests that have a body, and expects to be
        answered as if it had not; the parser would take the body for the other protocol.  CONNECT, which asks
        for a tunnel, is made a method that nothing answers.
        """
        method = self.parser.get_method().replace(b"CONNECT", b"TRACE")
        lines = [method + b" " + self.url + b" HTTP/1.1"]
        lines += [name + b": " + value for name, value in self.headers if name not in (b"upgrade", b"connection")]
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def _watch_unfinished(self, size: int) -> None:
        """A request that needs more than one read: bound its time and its length."""
        if self.transport.is_closing():
            return
        if self._message_bytes == 0:
            self.deadline = self.loop.time() + self.limits.read_seconds
            self._message_bytes = 1  # how much of this piece belonged to the request before is not known
        else:
            self._message_bytes += size
        head_is_open = not self._has_cycle()
        if len(self.headers) > HEADERS_LIMIT or (head_is_open and self._message_bytes > HEAD_BYTES_LIMIT):
            self.refuse(b"431 Request Header Fields Too Large", b"The request's header is too large.")
        elif self._message_bytes > MESSAGE_BYTES_LIMIT:
            self.refuse(b"413 Content Too Large", b"The request is too large.")

    def _answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _has_cycle(self) -> bool:
        """Whether the head of the latest request is complete, so that it is under way or waits its turn."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and cycle.scope is self.scope

    def _waits_for_earlier(self) -> bool:
        """Whether what is being read comes after a request that is still being answered."""
        return bool(self.pipeline) or (self._answering() and not (self._mid_message and self._has_cycle()))

    def _rest(self) -> None:
        """Nothing is being read or answered."""
        if self.transport.is_closing():
            return
        if self.limits.draining:
            self._close()
        elif not self.flow.write_paused:
            self.deadline = self.loop.time() + self.limits.idle_seconds

    def _close(self) -> None:
        self.transport.close()
        self.deadline = self.loop.time() + LINGER_SECONDS
