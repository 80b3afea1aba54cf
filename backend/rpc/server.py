"""Server of a backend for frontends and other nodes, on TCP or a Unix socket (:mod:`backend.rpc.wire`).

::

    server = await serve_backend(node, secret=secret, path="/run/holdfast/backend.sock", name="backend-1")
    server = await serve_backend(node, secret=secret, host="10.0.0.5", port=9400, tls=ServerTls.load(...))
    ...
    node.drain()            # long polls end
    await server.drain(10)  # no new calls, those in progress are answered, then the connections close

Each call runs in its own task, and the answers of one turn of the loop go out in one write.  A caller that is
cancelled, or whose connection is closed, cancels its call here: a receive has then claimed nothing.

The resources that a peer can occupy are bounded: connections, the time and the bytes of a handshake, the bytes of calls
in progress (the peer knows the limit, and is disconnected above it), and answers that it does not read.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from backend.api import BackendError, Command, MessageCommand, Peer, Unavailable
from backend.rpc.address import Address, ServerTls, check_path
from backend.rpc.handshake import AnswererSide, HandshakeRefused, check_secret, goodbye
from backend.rpc.wire import (
    ALIVE,
    ANSWER,
    CALL_OVERHEAD_BYTES,
    CANCEL,
    CANCELLED,
    DRAIN,
    FAILED,
    FIRST_COMMAND,
    FRAME_BYTES_MAX,
    HEARTBEAT_SECONDS,
    HELLO,
    PROOF,
    SILENT_BEATS,
    Frames,
    FrameTooLarge,
    WireError,
    decode_command,
    encode,
    encode_error,
    frame,
)
from telemetry import traces

if TYPE_CHECKING:
    from telemetry.spans import Tracing

logger = logging.getLogger(__name__)

BACKLOG = 1024
TLS_BEGINS = b"\x16\x03"
"""Start of a TLS handshake record, RFC 8446, 5.1.  No frame of our handshake is long enough to begin like this."""


class ServerLimits(NamedTuple):
    """Limits on the resources that peers occupy."""

    connections: int = 1024
    greeting_seconds: float = 5.0
    under_way_bytes: int = 64 << 20
    """Limit for each connection: a call may begin while its unanswered calls take fewer bytes."""
    unread_bytes: int = 1 << 20
    """Unread bytes above which a peer's further calls wait."""
    unread_bytes_max: int = 256 << 20
    """Unread bytes above which a peer is disconnected."""
    heartbeat_seconds: float = HEARTBEAT_SECONDS


LIMITS = ServerLimits()


async def serve_backend(
    backend: Peer,
    *,
    secret: bytes,
    path: str | None = None,
    host: str | None = None,
    port: int = 0,
    name: str = "backend",
    tls: ServerTls | None = None,
    limits: ServerLimits = LIMITS,
    tracing: Tracing | None = None,
) -> BackendServer:
    """Serve ``backend`` on a Unix socket (``path``) or on TCP (``host`` and ``port``; 0 takes a free one), there
    optionally with TLS.

    Clients must know ``secret``, which has at least 16 bytes.  Without TLS, the network must prevent changes to the
    traffic: the secret authenticates, it encrypts nothing.  Only this user may open the Unix socket; one left by a
    former process is replaced.  ``tracing`` makes the spans of sampled calls.  Raises :class:`OSError` if it cannot
    listen.
    """
    check_secret(secret)
    server = BackendServer(backend, secret, name, tls.digest if tls is not None else b"", limits, tracing)
    loop = asyncio.get_running_loop()
    if path is not None:
        listener = _listen_on(check_path(path))
        server.listener = await loop.create_unix_server(server.make, sock=listener, backlog=BACKLOG)
        server.address = Address(path=path)
    else:
        server.listener = await loop.create_server(
            server.make,
            host,
            port,
            backlog=BACKLOG,
            ssl=tls.context if tls is not None else None,
            ssl_handshake_timeout=limits.greeting_seconds if tls is not None else None,
        )
        name_of = server.listener.sockets[0].getsockname()
        server.address = Address(host=name_of[0], port=name_of[1])
    return server


def _listen_on(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.setblocking(False)
        try:
            if stat.S_ISSOCK(os.lstat(path).st_mode):
                os.unlink(path)
        except FileNotFoundError:
            pass
        listener.bind(path)
        os.chmod(path, 0o600)  # no client can connect before it listens
    except BaseException:
        listener.close()
        raise
    return listener


class BackendServer:
    """A running server.  Made by :func:`serve_backend`."""

    listener: asyncio.Server
    address: Address
    """Address of the server, with the actual port."""

    def __init__(
        self, backend: Peer, secret: bytes, name: str, binding: bytes, limits: ServerLimits, tracing: Tracing | None
    ) -> None:
        self.backend = backend
        self.limits = limits
        self.tracing = tracing
        self.connections: set[CallerConnection] = set()
        self.draining = False
        self._secret = secret
        self._name = name
        self._binding = binding
        self._ending: set[asyncio.Task[None]] = set()
        """Calls whose connection is closed."""
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def callers(self) -> set[str]:
        """Names of the connected and authenticated callers."""
        return {connection.peer for connection in self.connections if connection.peer}

    def make(self) -> CallerConnection:
        return CallerConnection(self, AnswererSide(self._secret, self._name, self._binding))

    def on_connect(self, connection: CallerConnection) -> None:
        self.connections.add(connection)
        self._empty.clear()

    def on_disconnect(self, connection: CallerConnection, ending: Iterable[asyncio.Task[None]]) -> None:
        """Remove a closed connection; its calls are being cancelled."""
        self.connections.discard(connection)
        for task in ending:
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        if not self.connections:
            self._empty.set()

    async def drain(self, seconds: float) -> None:
        """Accept no more calls, answer those in progress for at most ``seconds``, then close the connections.

        Callers are notified, and call other nodes without an error.  The backend itself has to end long polls.
        """
        self.draining = True
        self.listener.close()
        for connection in list(self.connections):
            connection.drain()
        try:
            async with asyncio.timeout(seconds):
                await self._empty.wait()
        except TimeoutError:
            logger.warning(
                "%d connections still had calls in progress at the end of the time limit", len(self.connections)
            )
        await self.close()

    async def close(self) -> None:
        """Close all connections at once.  Their calls are cancelled."""
        self.listener.close()
        for connection in list(self.connections):
            connection.cut()
        await self._empty.wait()
        if self._ending:
            await asyncio.wait(self._ending)
        if self.address.path:
            try:
                os.unlink(self.address.path)
            except FileNotFoundError:
                pass


class CallerConnection(asyncio.Protocol):
    """Connection of one peer."""

    def __init__(self, server: BackendServer, greeting: AnswererSide) -> None:
        self._server = server
        self._greeting: AnswererSide | None = greeting
        """Handshake in progress; None: the peer is authenticated."""
        self._backend = server.backend
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._frames = Frames()
        self._running: dict[int, tuple[asyncio.Task[None], int]] = {}
        """Calls in progress by number: the task, and the weight in bytes."""
        self._cancelled: set[int] = set()
        """Numbers of calls in progress that their callers have cancelled."""
        self._under_way_bytes = 0
        self._waiting: deque[tuple[int, Command[Any], int]] = deque()
        """Calls that begin when the peer has read its answers."""
        self._out: list[bytes] = []
        """Frames to be sent at the end of this turn of the loop."""
        self._quiet = True
        """True if nothing was written since the last heartbeat."""
        self._silent_beats = 0
        self._peer_is_slow = False
        self._draining = False
        self._timer: asyncio.TimerHandle | None = None
        self.peer = ""

    # --- callbacks of the loop ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass
        server, limits = self._server, self._server.limits
        server.on_connect(self)
        self._transport.set_write_buffer_limits(high=limits.unread_bytes)
        if server.draining or len(server.connections) > limits.connections:
            self._part("the server is leaving" if server.draining else "the server has too many connections")
            return
        self._timer = self._loop.call_later(limits.greeting_seconds, self._greeting_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._out.clear()
        self._waiting.clear()
        for task, _ in self._running.values():
            self._loop.call_soon(task.cancel)
        self._server.on_disconnect(self, [task for task, _ in self._running.values()])

    def data_received(self, data: bytes) -> None:
        self._silent_beats = 0
        if self._transport.is_closing():
            return
        try:
            if self._greeting is None:
                for kind, call, payload in self._frames.feed(data):
                    if kind >= FIRST_COMMAND:
                        self._asked(kind, call, payload)
                    elif kind == CANCEL:
                        self._cancel(call)
                    elif kind != ALIVE:
                        raise WireError(f"a frame of kind {kind} where none belongs")
            else:
                self._greet(data)
        except WireError as error:
            logger.warning("a connection of %s is closed: it sent %s", self.peer or "an unknown peer", error)
            self.cut()
        except HandshakeRefused as refusal:
            logger.warning("a connection is refused: %s", refusal)
            self._part(str(refusal))

    def pause_writing(self) -> None:
        self._peer_is_slow = True

    def resume_writing(self) -> None:
        self._peer_is_slow = False
        while self._waiting and not self._peer_is_slow:
            self._start_call(*self._waiting.popleft())

    # --- the handshake ------------------------------------------------------------------------------------

    def _greet(self, data: bytes) -> None:
        greeting = self._greeting
        assert greeting is not None
        if data.startswith(TLS_BEGINS):
            raise HandshakeRefused("the caller uses TLS, and this side does not")
        for kind, _, payload in self._frames.feed(data):
            if kind == HELLO:
                self._transport.write(greeting.greeted(payload))
            elif kind == PROOF and self._greeting is not None:
                self._transport.write(greeting.proved(payload, self._server.limits.under_way_bytes))
                self._greeting = None
                self._frames.payload_bytes_max = FRAME_BYTES_MAX
                self.peer = greeting.peer
                if self._timer is not None:
                    self._timer.cancel()
                self._set_timer()
                logger.info("%s is connected, version %d of the protocol", self.peer, greeting.version)
                if self._draining:
                    self._transport.write(frame(DRAIN, 0))
            else:
                raise WireError(f"a frame of kind {kind} before the caller was authenticated")

    def _greeting_is_late(self) -> None:
        self._timer = None
        self._part("the handshake took too long")

    def _part(self, reason: str) -> None:
        if not self._transport.is_closing():
            self._transport.write(goodbye(reason))
            self._transport.close()
            self._timer = self._loop.call_later(self._server.limits.greeting_seconds, self.cut)

    # --- calls --------------------------------------------------------------------------------------------

    def _asked(self, kind: int, call: int, payload: memoryview) -> None:
        if call in self._running or any(call == waiting[0] for waiting in self._waiting):
            raise WireError(f"a second call {call} while the first is in progress")
        limits = self._server.limits
        if self._under_way_bytes >= limits.under_way_bytes:
            raise WireError(f"a call where {self._under_way_bytes} bytes of calls are in progress, which is too much")
        try:
            command = decode_command(kind, payload)
        except WireError as error:
            logger.warning("%s made a call that is refused: %s", self.peer, error)
            self._send_soon(frame(FAILED, call, encode_error(BackendError(str(error)))))
            return
        weight = len(payload) + CALL_OVERHEAD_BYTES
        self._under_way_bytes += weight
        if self._peer_is_slow:
            self._waiting.append((call, command, weight))
        else:
            self._start_call(call, command, weight)

    def _start_call(self, call: int, command: Command[Any], weight: int) -> None:
        if isinstance(command, MessageCommand) and command.trace is not None and self._server.tracing is not None:
            run = self._run_traced(call, command, command.trace)
        else:
            run = self._run(call, command)
        self._running[call] = (self._loop.create_task(run), weight)

    async def _run_traced(self, call: int, command: Command[Any], trace: bytes) -> None:
        tracing = self._server.tracing
        assert tracing is not None
        span = tracing.of_peer(trace, f"backend.{type(command).__name__}")
        traces.current.set(span)
        try:
            await self._run(call, command)
        finally:
            if span is not None:
                span.set_attributes({"holdfast.partition": command.partition})
                span.end()

    async def _run(self, call: int, command: Command[Any]) -> None:
        try:
            answer = frame(ANSWER, call, encode(await self._backend.call(command)))
        except BackendError as error:
            _mark_failed(error)
            answer = frame(FAILED, call, encode_error(error))
        except asyncio.CancelledError:
            if call in self._cancelled or self._transport.is_closing():
                answer = frame(CANCELLED, call)
            else:
                answer = self._failed(call, command, asyncio.CancelledError("its work was cancelled from within"))
        except FrameTooLarge as error:
            answer = frame(FAILED, call, encode_error(BackendError(f"the answer cannot be sent: {error}")))
        except Exception as error:
            answer = self._failed(call, command, error)
        self._ended(call)
        self._send_soon(answer)

    def _failed(self, call: int, command: Command[Any], error: BaseException) -> bytes:
        _mark_failed(error)
        message = f"{type(command).__name__} of {self.peer} has failed unexpectedly"
        self._loop.call_exception_handler({"message": message, "exception": error})
        return frame(FAILED, call, encode_error(Unavailable("the backend has failed unexpectedly; see its log")))

    def _ended(self, call: int) -> None:
        _, weight = self._running.pop(call)
        self._under_way_bytes -= weight
        self._cancelled.discard(call)

    def _cancel(self, call: int) -> None:
        running = self._running.get(call)
        if running is not None:
            self._cancelled.add(call)
            # Cancelled before its first step, the task would never answer.
            self._loop.call_soon(running[0].cancel)
            return
        for waiting in self._waiting:
            if waiting[0] == call:
                self._waiting.remove(waiting)
                self._under_way_bytes -= waiting[2]
                self._send_soon(frame(CANCELLED, call))
                return
        # Otherwise it was answered at the same time as it was cancelled.

    # --- the connection itself ------------------------------------------------------------------------------

    def _send_soon(self, data: bytes) -> None:
        out = self._out
        if not out:
            self._loop.call_soon(self._flush)
        out.append(data)

    def _flush(self) -> None:
        if self._out and not self._transport.is_closing():
            self._transport.write(b"".join(self._out))
            self._quiet = False
            if self._transport.get_write_buffer_size() > self._server.limits.unread_bytes_max:
                logger.warning("%s does not read its answers, and is disconnected", self.peer)
                self.cut()
        self._out.clear()

    def _set_timer(self) -> None:
        self._timer = self._loop.call_later(self._server.limits.heartbeat_seconds, self._beat)

    def _beat(self) -> None:
        """Count timer ticks, not time: when this process itself was stopped, the peer is not at fault."""
        self._silent_beats += 1
        if self._silent_beats > SILENT_BEATS:
            logger.warning("nothing is received from %s any more, its connection is closed", self.peer)
            self.cut()
            return
        if self._quiet:
            self._transport.write(frame(ALIVE, 0))
        self._quiet = True
        self._set_timer()

    def drain(self) -> None:
        """Request no more calls.  The peer closes after its calls are answered: only the peer knows which ones it has
        sent.
        """
        self._draining = True
        if self._greeting is None:
            self._transport.write(frame(DRAIN, 0))

    def cut(self) -> None:
        self._transport.abort()


def _mark_failed(error: BaseException) -> None:
    """Mark the current span, if the call is sampled, as failed."""
    span = traces.current.get()
    if span is not None:
        span.fail(type(error).__name__)
