"""HTTP connections: httptools parses them, an ASGI application answers, and a client's use of resources is bounded.

:class:`Connection` is the protocol that uvicorn's server makes for each connection (its ``http`` setting).  Each
connection has one deadline, and a sweep (:mod:`holdfast.http.sweep`) over all connections, which takes a second, closes
those past theirs, so no timer is needed per request.  A connection is in one of these states:

===============  ===========================================  =====================================
state            from                                         deadline
===============  ===========================================  =====================================
reading          the connection, or a request's first byte    ``read_seconds`` (in a drain, without
                                                              a byte: 1 s)
answering        the last byte of a request                   none: the call may be a long poll
blocked          the client does not read its answer          ``read_seconds``
idle             the end of an answer                         ``idle_seconds``
closing          the decision to close                        5 s (after an answer, ``read_seconds``),
                                                              then the connection is aborted
===============  ===========================================  =====================================

Requests that arrive while one is being answered are queued; answers are sent in their order.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from typing import Any, NamedTuple, Protocol, cast

import httptools
import uvicorn

from auth.signatures import percent
from holdfast.http.answers import UnreadAnswers
from holdfast.http.certificate import Certificate
from holdfast.http.connection_limits import ConnectionSlots
from holdfast.http.proxies import Forwarded
from holdfast.http.request_cycle import WRITE_BYTES, App, RequestCycle, Scope

HEAD_BYTES_LIMIT = 65_536
"""Maximum length of a request line with headers; up to half as much again if it arrives in large pieces.

SQS by GET carries its parameters in the request line.
"""
HEADERS_LIMIT = 200
MESSAGE_BYTES_LIMIT = 16 * 1024 * 1024
"""Maximum length of a request.

The largest that SQS allows has 1 MiB of content, which escapes can make six times longer.
"""
BODY_AHEAD_BYTES = 65_536
"""Bytes of a body that are read before the application asks for it."""
PIPELINE_LIMIT = 100
"""Maximum requests of a connection that wait for an answer."""
LINGER_SECONDS = 5
LAST_CALL_SECONDS = 1
"""Time for a connection that finishes its TLS handshake during the drain to start a request."""

_PIECE_BYTES = 32_768
"""Size of the pieces in which received data are parsed."""
_NEVER = math.inf
_ASGI = {"version": "3.0", "spec_version": "2.3"}


_HOSTS_WRONG = b"A request has one Host header, and no more."


class _HostsWrong(Exception):
    """The request has no Host header, or several."""


class Limits(NamedTuple):
    """Limits for clients."""

    connections: int
    read_seconds: float
    idle_seconds: float
    drain_seconds: float
    connections_per_client: int | None = None


class PendingHandshake(Protocol):
    """A TLS handshake in progress (:class:`holdfast.http.tls_handshake.Handshake`)."""

    def over(self) -> None:
        """Release the handshake's slot."""

    def drop(self) -> None:
        """Close the connection."""


class ConnectionRegistry:
    """State shared by the connections of a process: uvicorn's ``ServerState``, and what our connections share.

    Not a subclass, because mypyc does not clear the weak references to instances of a class with a base that is not
    compiled.
    """

    def __init__(
        self, limits: Limits, certificate: Certificate | None = None, forwarded: Forwarded | None = None
    ) -> None:
        self.total_requests = 0
        """Read by uvicorn, for a limit that is not set."""
        self.connections: set[Connection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        """Calls in progress."""
        self.default_headers: list[tuple[bytes, bytes]] = []
        """Set by uvicorn once a second."""
        self.limits = limits
        self.answers = UnreadAnswers()
        self.slots = ConnectionSlots(limits.connections, limits.connections_per_client)
        self.certificate = certificate
        self.forwarded = forwarded
        self.handshakes: dict[PendingHandshake, None] = {}
        """Handshakes in progress, the oldest first."""
        self.common_headers = b""
        """``default_headers`` in encoded form."""
        self.draining = False
        self.emptied = asyncio.Event()
        """Set when the last connection has closed while ``draining``."""

    def client(self, host: str) -> str:
        """Return the client that a connection from this host counts for."""
        if self.forwarded is not None and self.forwarded.trusts(host):
            return ""  # a proxy makes connections for many clients
        return self.slots.client(host)

    @property
    def is_empty(self) -> bool:
        return not self.connections and not self.handshakes

    def notify_if_empty(self) -> None:
        if self.draining and self.is_empty:
            self.emptied.set()


class Connection:
    """Connection of one client.  Implements :class:`holdfast.http.request_cycle.ExchangeConnection`.

    It has the methods of ``asyncio.Protocol``, but not that base, for the reason given at :class:`ConnectionRegistry`.
    """

    __deletable__ = ("_parser",)
    """Attributes that ``del`` may remove, for mypyc, which otherwise refuses it."""

    transport: asyncio.Transport

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ConnectionRegistry,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        handshake: PendingHandshake | None = None,
    ) -> None:
        """Make the connection.  It takes over the slot of ``handshake``, if there was one."""
        self.registry = server_state
        self.loop = _loop or asyncio.get_running_loop()
        self._handshake = handshake
        self._app: App = config.loaded_app
        self.deadline = _NEVER
        self._parser = httptools.HttpRequestParser(self)
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)  # earlier requests are answered first
        self._answering: RequestCycle | None = None
        self.waiting: deque[RequestCycle] = deque()
        """Requests queued behind the one that is being answered."""
        self._receiving: RequestCycle | None = None
        """Request whose body is being read."""
        self._reading_paused = False
        self.full = False
        self._writable: asyncio.Future[None] | None = None
        """Pending while ``full``."""
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._hosts = 0
        """Number of Host headers of the request whose head is being read."""
        self._expects_continue = False
        self.mid_message = False
        """True if a request has been received in part."""
        self.message_bytes = 0
        """Bytes of that request received; 0: none counted yet."""

    # --- what the event loop calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._handshake is not None:
            self._handshake.over()
            self._handshake = None
        self.transport = cast(asyncio.Transport, transport)  # uvloop's class is not a subclass
        self.transport.set_write_buffer_limits(high=WRITE_BYTES)  # over TLS the default would be eight times as much
        registry = self.registry
        registry.connections.add(self)
        self.deadline = self.loop.time() + (LAST_CALL_SECONDS if registry.draining else registry.limits.read_seconds)
        self._server = transport.get_extra_info("sockname", ())[:2]
        self._client = (transport.get_extra_info("peername") or ("", 0))[:2]
        self._scheme = "http" if transport.get_extra_info("sslcontext") is None else "https"
        host = self._client[0]
        if registry.forwarded is not None and registry.forwarded.trusts(host):
            self._app = registry.forwarded
        self._takes = registry.client(host)
        if not registry.slots.take(self._takes):
            self.refuse(b"503 Service Unavailable", b"Too many connections.")

    def connection_lost(self, exc: Exception | None) -> None:
        self.registry.connections.discard(self)
        self.registry.slots.give_back(self._takes)
        for cycle in (self._answering, self._receiving):
            if cycle is not None:
                cycle.disconnect()
        self.waiting.clear()
        self._let_write()
        del self._parser  # breaks the reference cycle, so that both are freed without the garbage collector
        self.registry.notify_if_empty()

    def data_received(self, data: bytes) -> None:
        if len(data) <= _PIECE_BYTES:
            self._feed(data)
            return
        for start in range(0, len(data), _PIECE_BYTES):
            if self.transport.is_closing():
                return
            self._feed(data[start : start + _PIECE_BYTES])

    def eof_received(self) -> None:
        """Let the loop close the connection, as ``asyncio.Protocol`` does."""

    def pause_writing(self) -> None:
        self.full = True
        self._writable = self.loop.create_future()
        self.deadline = self.loop.time() + self.registry.limits.read_seconds

    def resume_writing(self) -> None:
        self._let_write()
        if not self.transport.is_closing():
            self.deadline = self.loop.time() + self.registry.limits.idle_seconds if self._answering is None else _NEVER

    # --- what the parser calls ---

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers = []
        self._hosts = 0
        self._expects_continue = False
        self.mid_message = True
        self.message_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"host":
            self._hosts += 1
        elif name == b"expect" and value.lower() == b"100-continue":
            self._expects_continue = True
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        parser = self._parser
        if parser.should_upgrade():
            return  # parsed again by _without_upgrade
        version = parser.get_http_version()
        if self._hosts != 1 and (self._hosts or version != "1.0"):
            raise _HostsWrong  # RFC 9112, 3.2
        url = self._url
        if url.startswith(b"/"):
            raw_path, _, query = url.partition(b"?")
        else:
            parsed = httptools.parse_url(url)
            raw_path, query = parsed.path or b"/", parsed.query or b""
        path = raw_path.decode("ascii")
        scope: Scope = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": version,
            "method": parser.get_method().decode("ascii"),
            "scheme": self._scheme,
            "path": _unescaped(raw_path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": query,
            "root_path": "",
            "headers": self._headers,
            "server": self._server,
            "client": self._client,
        }
        keep_alive = parser.should_keep_alive() and version == "1.1" and not self.registry.draining
        cycle = RequestCycle(self, scope, keep_alive=keep_alive, expects_continue=self._expects_continue)
        self._receiving = cycle
        if self._answering is None:
            self._start_cycle(cycle)
        else:
            self.waiting.append(cycle)
            self._pause_reading()

    def on_body(self, body: bytes) -> None:
        cycle = self._receiving
        if cycle is not None and not cycle.complete and cycle.feed(body) > BODY_AHEAD_BYTES:
            self._pause_reading()

    def on_message_complete(self) -> None:
        cycle = self._receiving
        if cycle is not None:
            cycle.feed_end()
            self._receiving = None
            self.mid_message = False

    # --- what an exchange calls ---

    @property
    def common_headers(self) -> bytes:
        return self.registry.common_headers

    def write(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)

    async def room_to_write(self) -> None:
        if self._writable is not None:
            await asyncio.shield(self._writable)

    def hold_answer(self, length_bytes: int) -> None:
        self.registry.answers.hold(self, length_bytes)

    def answer_progressed(self) -> None:
        self.registry.answers.progress(self)

    def release_answer(self) -> None:
        self.registry.answers.release(self)

    def abort(self) -> None:
        self.transport.abort()

    def resume_reading(self) -> None:
        if self._reading_paused:
            self._reading_paused = False
            self.transport.resume_reading()

    def answered(self, cycle: RequestCycle) -> None:
        self._answering = None
        if not cycle.keep_alive:
            self._close()
            self.deadline = self.loop.time() + self.registry.limits.read_seconds  # the client may still be reading
        elif not self.transport.is_closing():
            if self._reading_paused:
                self.resume_reading()
            if self.waiting:
                self._start_cycle(self.waiting.popleft())
            elif not self.mid_message:
                self._rest()

    def give_up(self) -> None:
        self._close()

    def ended(self, cycle: RequestCycle) -> None:
        self.registry.tasks.discard(cycle.task)

    # --- what the server calls ---

    def sweep(self, now: float) -> None:
        """Close the connection if its deadline has passed."""
        if now < self.deadline:
            return
        if self.transport.is_closing() or self._writable is not None:
            self.transport.abort()
        elif not self.mid_message:
            self._close()
        elif self._waits_for_earlier():
            self.deadline = (
                now + self.registry.limits.read_seconds
            )  # nothing was read meanwhile, so the client is not slow
        else:
            self.refuse(b"408 Request Timeout", b"The request did not arrive in time.")

    def shutdown(self, *, idle: bool = True) -> None:
        """Close the connection after its last answer; at once if it is idle and ``idle`` is true."""
        if self.mid_message and self._receiving is None:
            return  # the request whose head is being read will be the last
        last = self.waiting[-1] if self.waiting else self._answering
        if last is not None:
            last.keep_alive = False
        elif idle and not self.mid_message:
            self._close()

    def refuse(self, status: bytes, text: bytes) -> None:
        """Close with an error answer, unless it is too late, or could be mistaken for another request's answer."""
        if self.transport.is_closing():
            return
        cycle = self._receiving
        if not self._waits_for_earlier() and (cycle is None or not cycle.started):
            length = str(len(text)).encode()
            self.transport.write(
                b"HTTP/1.1 "
                + status
                + b"\r\n"
                + self.registry.common_headers
                + b"content-type: text/plain; charset=utf-8\r\n"
                b"content-length: " + length + b"\r\nconnection: close\r\n\r\n" + text
            )
        self._close()

    # --- parts ---

    def _feed(self, data: bytes) -> None:
        rest = data
        while rest:
            try:
                self._parser.feed_data(rest)
                break
            except httptools.HttpParserUpgrade as upgrade:
                rest = self._without_upgrade() + rest[upgrade.args[0] :]
            except httptools.HttpParserError as error:
                hosts_wrong = isinstance(error.__context__, _HostsWrong)
                self.refuse(b"400 Bad Request", _HOSTS_WRONG if hosts_wrong else b"Invalid HTTP request received.")
                return
        if self.mid_message:
            self._watch_unfinished(len(data))
        elif self._answering is not None:
            self.deadline = _NEVER
        else:
            self._rest()
        if len(self.waiting) > PIPELINE_LIMIT:
            self.refuse(b"400 Bad Request", b"Too many requests wait for an answer on this connection.")

    def _without_upgrade(self) -> bytes:
        """Return the head just read without its offer to upgrade to another protocol, to be parsed again.

        Java's client offers HTTP/2 on each plain connection, with requests that have a body, and expects a normal
        answer; the parser would mistake the body for the other protocol.  CONNECT, which requests a tunnel, becomes
        a method that is never served.
        """
        method = self._parser.get_method().replace(b"CONNECT", b"TRACE")
        lines = [method + b" " + self._url + b" HTTP/1.1"]
        lines += [name + b": " + value for name, value in self._headers if name not in (b"upgrade", b"connection")]
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def _watch_unfinished(self, size: int) -> None:
        """Bound the time and length of a request that needs more than one read."""
        if self.transport.is_closing():
            return
        if self.message_bytes == 0:
            self.deadline = self.loop.time() + self.registry.limits.read_seconds
            self.message_bytes = 1  # the part of this piece that belonged to the previous request is not known
        else:
            self.message_bytes += size
        head_is_open = self._receiving is None
        if len(self._headers) > HEADERS_LIMIT or (head_is_open and self.message_bytes > HEAD_BYTES_LIMIT):
            self.refuse(b"431 Request Header Fields Too Large", b"The request's header is too large.")
        elif self.message_bytes > MESSAGE_BYTES_LIMIT:
            self.refuse(b"413 Content Too Large", b"The request is too large.")

    def _start_cycle(self, cycle: RequestCycle) -> None:
        self._answering = cycle
        if cycle is not self._receiving:
            self.deadline = _NEVER
        elif self.deadline == _NEVER:
            self.deadline = self.loop.time() + self.registry.limits.read_seconds  # it waited for earlier requests
        cycle.task = task = self.loop.create_task(cycle.run(self._app))
        self.registry.tasks.add(task)

    def _waits_for_earlier(self) -> bool:
        """Return True if the request being read comes after one that is still being answered."""
        return self._answering is not None and self._answering is not self._receiving

    def _rest(self) -> None:
        """Make the connection idle: nothing is being read or answered."""
        if self.transport.is_closing():
            return
        if self.registry.draining:
            self._close()
        elif self._writable is None:
            self.deadline = self.loop.time() + self.registry.limits.idle_seconds

    def _pause_reading(self) -> None:
        if not self._reading_paused and not self.transport.is_closing():
            self._reading_paused = True
            self.transport.pause_reading()

    def _let_write(self) -> None:
        self.full = False
        writable, self._writable = self._writable, None
        if writable is not None:
            writable.set_result(None)

    def _close(self) -> None:
        self.transport.close()
        self.deadline = self.loop.time() + LINGER_SECONDS


def _unescaped(raw_path: bytes) -> str:
    """Return the path without its percent-encoding; if that is malformed, the path as it was sent."""
    try:
        return percent.decode(raw_path).decode("utf-8", "replace")
    except percent.MalformedEscape:
        return raw_path.decode("ascii")
