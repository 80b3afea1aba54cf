"""A client of a backend in another process: implements :class:`backend.api.Backend` over a connection.

::

    backend = await RemoteBackend.connect(Address.parse("unix:/run/backend.sock"), secret=secret, name="frontend-1")
    await backend.ready(10)  # if wanted: calls wait for the connection by themselves
    ...
    await backend.close()

A call that certainly did not start waits for the connection and is retried within its deadline.  A call with an unknown
outcome raises :class:`~backend.api.Unavailable` and is never repeated here: the caller decides.  When the connection is
lost, or the server drains, the client reconnects after growing, randomized pauses.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Coroutine
from typing import Any, Final, NamedTuple

import msgspec

from backend.api import WAIT_ENDS, Answer, BackendError, Command, MessageCommand, Receive, Unavailable
from backend.call_order import CallOrder, Turn
from backend.rpc.address import Address, ClientTls
from backend.rpc.connection import BackendConnection, NotSent, PendingCall
from backend.rpc.handshake import CallerSide, HandshakeRefused, check_secret
from backend.rpc.wire import HEARTBEAT_SECONDS, FrameTooLarge
from telemetry import traces

logger = logging.getLogger(__name__)

PAUSE_SECONDS_FIRST: Final = 0.05
PAUSE_SECONDS_MAX: Final = 2.0


class ClientLimits(NamedTuple):
    """Timeouts of a client."""

    call_seconds: float = 30.0
    """Time within which a call must be answered, in addition to a receive's wait for messages."""
    connect_seconds: float = 5.0
    """Timeout of a connection with its handshake."""
    heartbeat_seconds: float = HEARTBEAT_SECONDS
    waits: bool = True
    """True: a call waits for a missing connection; False: it raises :class:`NotSent` at once."""


LIMITS = ClientLimits()


class RemoteBackend:
    """Implements :class:`backend.api.Peer`.  Made by :meth:`connect`."""

    def __init__(self, address: Address, secret: bytes, name: str, tls: ClientTls | None, limits: ClientLimits) -> None:
        check_secret(secret)
        self.address = address
        self._secret = secret
        self._name = name
        self._tls = tls
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._connection: BackendConnection | None = None
        """Connection for new calls; None: not connected."""
        self._connections: set[BackendConnection] = set()
        """The current connection and those on which calls are still being answered."""
        self._news: asyncio.Future[None] = self._loop.create_future()
        """Done when there is a connection, or the reason for its absence is known; then a new future replaces it."""
        self._parted = asyncio.Event()
        self._why = "no connection has been made yet"
        self._refusal: HandshakeRefused | None = None
        self._closed = False
        self._keeper: asyncio.Task[None] | None = None
        self._order = CallOrder()

    @classmethod
    async def connect(
        cls,
        address: Address,
        *,
        secret: bytes,
        name: str = "frontend",
        tls: ClientTls | None = None,
        limits: ClientLimits = LIMITS,
    ) -> RemoteBackend:
        """Begin to connect, and stay connected; return at once.  ``name`` is for the server's log."""
        backend = cls(address, secret, name, tls, limits)
        backend._keeper = backend._loop.create_task(backend._keep_connected(), name=f"the connection to {address}")
        return backend

    async def ready(self, seconds: float) -> None:
        """Wait for a connection.

        Raises :class:`backend.rpc.handshake.HandshakeRefused` if the server rejects this client, and
        :class:`~backend.api.Unavailable` if there is no connection in time.
        """
        deadline = self._loop.time() + seconds
        while self._connection is None:
            if self._refusal is not None:
                raise self._refusal
            await self._wait_for_news(deadline)

    @property
    def connected(self) -> bool:
        return self._connection is not None

    @property
    def refusal(self) -> HandshakeRefused | None:
        """Reason for which the server rejected the last attempt; None: it did not."""
        return self._refusal

    async def close(self) -> None:
        """Close the connection.  Calls in progress raise :class:`~backend.api.Unavailable`."""
        self._closed = True
        self._why = "the connection to the backend was closed here"
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        for connection in list(self._connections):
            connection.cut(self._why)
        for connection in list(self._connections):
            await connection.lost
        self._notify()

    # --- the connection -----------------------------------------------------------------------------------

    async def _keep_connected(self) -> None:
        pause = PAUSE_SECONDS_FIRST
        while True:
            self._parted.clear()
            try:
                connection = await self._connect()
            except (OSError, UnicodeError, HandshakeRefused) as error:
                why = f"{self.address} cannot be reached: {str(error) or type(error).__name__}"
                no_tls = isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER"
                if self._tls is not None and (no_tls or isinstance(error, ConnectionError)):
                    why += "; this side uses TLS: the other side may not use it, or may not accept our certificate"
                if why != self._why:
                    logger.warning("the backend at %s", why)
                self._why = why
                self._refusal = error if isinstance(error, HandshakeRefused) else None
                self._notify()
                await asyncio.sleep(random.uniform(pause / 2, pause))
                pause = min(2 * pause, PAUSE_SECONDS_MAX)
                continue
            self._refusal = None
            self._connection = connection
            self._notify()
            logger.info("connected to %s at %s", connection.peer, self.address)
            started_at = self._loop.time()
            await self._parted.wait()
            if self._loop.time() - started_at > PAUSE_SECONDS_MAX:
                pause = PAUSE_SECONDS_FIRST
            else:  # pause, because the connection may be lost repeatedly
                await asyncio.sleep(random.uniform(0, pause))
                pause = min(2 * pause, PAUSE_SECONDS_MAX)

    async def _connect(self) -> BackendConnection:
        address, tls = self.address, self._tls
        connection = BackendConnection(self._caller, self._limits.heartbeat_seconds, self._ended)
        context = tls.context if tls is not None else None
        async with asyncio.timeout(self._limits.connect_seconds):
            if address.path:
                await self._loop.create_unix_connection(lambda: connection, address.path)
            else:
                await self._loop.create_connection(lambda: connection, address.host, address.port, ssl=context)
            self._connections.add(connection)
            connection.lost.add_done_callback(lambda _: self._connections.discard(connection))
            try:
                await asyncio.shield(connection.welcomed)
            except BaseException:
                connection.cut("the handshake failed")
                raise
        if connection.leaving:
            raise ConnectionError("the connection was lost at once")
        return connection

    def _caller(self, binding: bytes) -> CallerSide:
        return CallerSide(self._secret, self._name, binding)

    def _ended(self, connection: BackendConnection) -> None:
        """Stop using this connection for new calls."""
        if connection is self._connection:
            self._connection = None
            self._why = f"the connection to {self.address} was lost"
            self._parted.set()

    def _notify(self) -> None:
        news, self._news = self._news, self._loop.create_future()
        news.set_result(None)

    async def _wait_for_news(self, deadline: float) -> None:
        """Wait for a change of the connection.  Raises :class:`NotSent` when the deadline has passed."""
        left = deadline - self._loop.time()
        if self._closed or left <= 0:
            raise NotSent(f"the backend cannot be called: {self._why}")
        await asyncio.wait([self._news], timeout=left)

    async def _usable(self, deadline: float) -> BackendConnection:
        """Return a connection that accepts calls.  Raises :class:`NotSent` if there is none in time."""
        while True:
            connection = self._connection
            if connection is None:
                if not self._limits.waits:
                    raise NotSent(f"the backend cannot be called: {self._why}")
                await self._wait_for_news(deadline)
            elif connection.full:
                try:
                    async with asyncio.timeout_at(deadline):
                        await connection.wait_for_capacity()
                except TimeoutError:
                    raise NotSent("too many calls of this caller are in progress") from None
            else:
                return connection

    # --- calls --------------------------------------------------------------------------------------------

    def call(self, command: Command[Answer]) -> Coroutine[Any, Any, Answer]:
        return self._call_in_order(command) if command.IN_ORDER else self._call(command, None)

    async def _call_in_order(self, command: Command[Answer]) -> Answer:
        with self._order.turn(command.partition) as turn:
            try:
                return await self._call(command, turn)
            except (Unavailable, asyncio.CancelledError):
                turn.fail_later()
                raise

    async def _call(self, command: Command[Answer], turn: Turn | None) -> Answer:
        deadline = self._loop.time() + self._limits.call_seconds + command.wait_time
        if turn is not None and turn.is_blocked:
            await take_turn(turn.wait(deadline), turn, command)
        span = traces.current.get()
        if span is not None and isinstance(command, MessageCommand):
            command = msgspec.structs.replace(command, trace=span.place.pack())
        while True:
            connection = self._connection
            if connection is None or connection.full:
                if turn is not None:
                    await take_turn(turn.hold(deadline), turn, command)
                connection = await self._usable(deadline)
            try:
                call = connection.start(command, deadline)
            except FrameTooLarge as error:
                raise BackendError(f"the call cannot be made: {error}") from error
            try:
                answer: Answer = await call.future
            except asyncio.CancelledError as cancelled:
                if not (isinstance(command, Receive) and cancelled.args == (WAIT_ENDS,)):
                    connection.abandon(call)
                    raise
                answer = await self._end_wait(connection, call, cancelled)
            except NotSent:
                if turn is not None:
                    await take_turn(turn.hold(deadline), turn, command)
                continue
            return answer

    async def _end_wait(
        self, connection: BackendConnection, call: PendingCall, cancelled: asyncio.CancelledError
    ) -> Any:
        """End a receive's wait; return what it has already claimed, or raise ``cancelled`` if nothing."""
        answer = connection.end_wait(call)
        try:
            return await answer
        except asyncio.CancelledError:
            connection.abandon(call)
            raise
        except BackendError:
            raise cancelled from None


class TurnLost(NotSent):
    """Earlier calls for the partition have not ended in time, or one has failed without which this one is in vain."""


async def take_turn(waiting: Coroutine[Any, Any, None], turn: Turn, command: Command[Any]) -> None:
    """Wait for a call's turn.  Raises :class:`TurnLost`."""
    try:
        await waiting
    except TimeoutError:
        raise TurnLost("earlier calls for the partition have not ended in time") from None
    if turn.is_after_failure and command.needs_earlier:
        raise TurnLost("an earlier call for the partition has failed")
