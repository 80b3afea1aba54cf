"""A client of a backend in another process: implements :class:`backend.api.Backend` over a connection.

::

    backend = await RemoteBackend.connect(Address.parse("unix:/run/backend.sock"), secret=secret, name="frontend-1")
    await backend.ready(10)  # if wanted: calls wait for the connection by themselves
    ...
    await backend.close()

A call that certainly did not begin waits for the connection and is retried within its deadline.  A call with an unknown
outcome raises :class:`~backend.api.Unavailable` and is never repeated here: the caller decides.  When the connection is
lost, or the server drains, the client reconnects after growing, randomized pauses.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Coroutine, Sequence
from typing import Any, Final, NamedTuple

from backend.api import (
    WAIT_ENDS,
    BackendError,
    Counters,
    HandleOutcome,
    Handover,
    Measures,
    MoveTask,
    NewMessage,
    PartitionSettings,
    Peeked,
    Receive,
    ReceivedMessage,
    SendResult,
    Target,
    Transfer,
)
from backend.rpc.address import Address, ClientTls
from backend.rpc.connection import Link, NotSent, PendingCall
from backend.rpc.handshake import CallerSide, HandshakeRefused, check_secret
from backend.rpc.wire import (
    HEARTBEAT_SECONDS,
    TRACED_KINDS,
    Awaited,
    CancelMove,
    ChangeVisibility,
    Configure,
    Count,
    Delete,
    Drop,
    Forget,
    FrameTooLarge,
    HandOver,
    ListMoves,
    Measure,
    MeasureAccount,
    Never,
    PeekMessages,
    Purge,
    ReceiveCall,
    Release,
    Retire,
    Send,
    StartMove,
    StoredBytes,
    Take,
    Watch,
)
from telemetry import traces

logger = logging.getLogger(__name__)

PAUSE_SECONDS_FIRST: Final = 0.05
PAUSE_SECONDS_MOST: Final = 2.0


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
        self._link: Link | None = None
        """Connection for new calls; None: not connected."""
        self._links: set[Link] = set()
        """The current connection and those on which calls are still being answered."""
        self._news: asyncio.Future[None] = self._loop.create_future()
        """Done when there is a connection, or the reason for its absence is known; then a new future replaces it."""
        self._parted = asyncio.Event()
        self._why = "no connection has been made yet"
        self._refusal: HandshakeRefused | None = None
        self._closed = False
        self._keeper: asyncio.Task[None] | None = None

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
        while self._link is None:
            if self._refusal is not None:
                raise self._refusal
            await self._wait_for_news(deadline)

    @property
    def connected(self) -> bool:
        return self._link is not None

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
        for link in list(self._links):
            link.cut(self._why)
        for link in list(self._links):
            await link.lost
        self._notify()

    # --- the connection -----------------------------------------------------------------------------------

    async def _keep_connected(self) -> None:
        pause = PAUSE_SECONDS_FIRST
        while True:
            self._parted.clear()
            try:
                link = await self._connect()
            except (OSError, UnicodeError, HandshakeRefused) as error:
                why = f"{self.address} cannot be reached: {str(error) or type(error).__name__}"
                no_tls = isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER"
                if self._tls is not None and (no_tls or isinstance(error, ConnectionError)):
                    why += "; TLS is spoken here: perhaps the other side speaks none, or does not take our certificate"
                if why != self._why:
                    logger.warning("the backend at %s", why)
                self._why = why
                self._refusal = error if isinstance(error, HandshakeRefused) else None
                self._notify()
                await asyncio.sleep(random.uniform(pause / 2, pause))
                pause = min(2 * pause, PAUSE_SECONDS_MOST)
                continue
            self._refusal = None
            self._link = link
            self._notify()
            logger.info("connected to %s at %s", link.peer, self.address)
            started_at = self._loop.time()
            await self._parted.wait()
            if self._loop.time() - started_at > PAUSE_SECONDS_MOST:
                pause = PAUSE_SECONDS_FIRST
            else:  # a connection that is lost again and again is not reopened at once
                await asyncio.sleep(random.uniform(0, pause))
                pause = min(2 * pause, PAUSE_SECONDS_MOST)

    async def _connect(self) -> Link:
        address, tls = self.address, self._tls
        link = Link(self._caller, self._limits.heartbeat_seconds, self._ended)
        context = tls.context if tls is not None else None
        async with asyncio.timeout(self._limits.connect_seconds):
            if address.path:
                await self._loop.create_unix_connection(lambda: link, address.path)
            else:
                await self._loop.create_connection(lambda: link, address.host, address.port, ssl=context)
            self._links.add(link)
            link.lost.add_done_callback(lambda _: self._links.discard(link))
            try:
                await asyncio.shield(link.welcomed)
            except BaseException:
                link.cut("the greeting failed")
                raise
        if link.leaving:
            raise ConnectionError("the connection was lost at once")
        return link

    def _caller(self, binding: bytes) -> CallerSide:
        return CallerSide(self._secret, self._name, binding)

    def _ended(self, link: Link) -> None:
        """Stop using this connection for new calls."""
        if link is self._link:
            self._link = None
            self._why = f"the connection to {self.address} was lost"
            self._parted.set()

    def _notify(self) -> None:
        news, self._news = self._news, self._loop.create_future()
        news.set_result(None)

    async def _wait_for_news(self, deadline: float) -> None:
        """Wait for a change of the connection.  Raises :class:`NotSent` when the deadline has passed."""
        left = deadline - self._loop.time()
        if self._closed or left <= 0:
            raise NotSent(f"the backend cannot be asked: {self._why}")
        await asyncio.wait([self._news], timeout=left)

    async def _usable(self, deadline: float) -> Link:
        """Return a connection that accepts calls.  Raises :class:`NotSent` if there is none in time."""
        while True:
            link = self._link
            if link is None:
                if not self._limits.waits:
                    raise NotSent(f"the backend cannot be asked: {self._why}")
                await self._wait_for_news(deadline)
            elif link.full:
                try:
                    async with asyncio.timeout_at(deadline):
                        await link.room()
                except TimeoutError:
                    raise NotSent("the backend has too much to do for this caller already") from None
            else:
                return link

    # --- calls --------------------------------------------------------------------------------------------

    async def _call(self, method: int, arguments: tuple[Any, ...], seconds: float) -> Any:
        deadline = self._loop.time() + seconds
        span = traces.current.get()
        if span is not None and method in TRACED_KINDS:
            arguments = (*arguments, span.place.pack())
        while True:
            link = self._link
            if link is None or link.full:
                link = await self._usable(deadline)
            try:
                call = link.start(method, arguments, deadline)
            except FrameTooLarge as error:
                raise BackendError(f"the call cannot be made: {error}") from error
            try:
                return await call.future
            except asyncio.CancelledError as cancelled:
                if method == ReceiveCall.KIND and cancelled.args == (WAIT_ENDS,):
                    return await self._end_wait(link, call, cancelled)
                link.abandon(call)
                raise
            except NotSent:
                continue

    async def _end_wait(self, link: Link, call: PendingCall, cancelled: asyncio.CancelledError) -> Any:
        """End a receive's wait; return what it has already claimed, or raise ``cancelled`` if nothing."""
        answer = link.end_wait(call)
        try:
            return await answer
        except asyncio.CancelledError:
            link.abandon(call)
            raise
        except BackendError:
            raise cancelled from None

    def configure(self, settings: PartitionSettings) -> Coroutine[Any, Any, None]:
        return self._call(Configure.KIND, (settings,), self._limits.call_seconds)

    def drop(self, target: Target) -> Coroutine[Any, Any, None]:
        return self._call(Drop.KIND, (target,), self._limits.call_seconds)

    def purge(self, target: Target, purge_id: int) -> Coroutine[Any, Any, None]:
        return self._call(Purge.KIND, (target, purge_id), self._limits.call_seconds)

    def send(self, target: Target, messages: Sequence[NewMessage]) -> Coroutine[Any, Any, list[SendResult]]:
        return self._call(Send.KIND, (target, messages), self._limits.call_seconds)

    def receive(self, target: Target, command: Receive) -> Coroutine[Any, Any, list[ReceivedMessage]]:
        seconds = self._limits.call_seconds + command.wait_seconds
        return self._call(ReceiveCall.KIND, (target, command), seconds)

    def watch(self, target: Target, wait_seconds: float) -> Coroutine[Any, Any, bool]:
        return self._call(Watch.KIND, (target, wait_seconds), self._limits.call_seconds + wait_seconds)

    def release(self, target: Target, handles: Sequence[str]) -> Coroutine[Any, Any, None]:
        return self._call(Release.KIND, (target, handles), self._limits.call_seconds)

    def delete(self, target: Target, handles: Sequence[str]) -> Coroutine[Any, Any, list[HandleOutcome]]:
        return self._call(Delete.KIND, (target, handles), self._limits.call_seconds)

    def change_visibility(
        self, target: Target, changes: Sequence[tuple[str, int]]
    ) -> Coroutine[Any, Any, list[HandleOutcome]]:
        return self._call(ChangeVisibility.KIND, (target, changes), self._limits.call_seconds)

    def counters(self, target: Target) -> Coroutine[Any, Any, Counters]:
        return self._call(Count.KIND, (target,), self._limits.call_seconds)

    def stored_bytes(self, account: str) -> Coroutine[Any, Any, int]:
        return self._call(StoredBytes.KIND, (account,), self._limits.call_seconds)

    def measures(self, target: Target) -> Coroutine[Any, Any, list[Measures]]:
        return self._call(Measure.KIND, (target,), self._limits.call_seconds)

    def measures_of(
        self, account: str, prefixes: Sequence[str], after: str, most: int
    ) -> Coroutine[Any, Any, list[Measures]]:
        return self._call(MeasureAccount.KIND, (account, prefixes, after, most), self._limits.call_seconds)

    def peek(self, target: Target, most: int, after: int = 0) -> Coroutine[Any, Any, list[Peeked]]:
        return self._call(PeekMessages.KIND, (target, most, after), self._limits.call_seconds)

    def take(
        self, target: Target, source: int, below: int, transfers: Sequence[Transfer]
    ) -> Coroutine[Any, Any, list[int]]:
        return self._call(Take.KIND, (target, source, below, transfers), self._limits.call_seconds)

    def never(self, target: Target, source: int, below: int, numbers: Sequence[int]) -> Coroutine[Any, Any, list[int]]:
        return self._call(Never.KIND, (target, source, below, numbers), self._limits.call_seconds)

    def start_move(
        self, target: Target, destination_arn: str | None, rate_per_second: int, task_id: str | None = None
    ) -> Coroutine[Any, Any, MoveTask]:
        arguments = (target, destination_arn, rate_per_second, task_id)
        return self._call(StartMove.KIND, arguments, self._limits.call_seconds)

    def list_moves(self, target: Target) -> Coroutine[Any, Any, list[MoveTask]]:
        return self._call(ListMoves.KIND, (target,), self._limits.call_seconds)

    def cancel_move(self, target: Target, task_id: str) -> Coroutine[Any, Any, MoveTask]:
        return self._call(CancelMove.KIND, (target, task_id), self._limits.call_seconds)

    def hand_over(self, target: Target, slot: int, part: int) -> Coroutine[Any, Any, Handover]:
        return self._call(HandOver.KIND, (target, slot, part), self._limits.call_seconds)

    def awaited(self, target: Target) -> Coroutine[Any, Any, list[int]]:
        return self._call(Awaited.KIND, (target,), self._limits.call_seconds)

    def retire(self, target: Target, linger_seconds: int) -> Coroutine[Any, Any, bool]:
        return self._call(Retire.KIND, (target, linger_seconds), self._limits.call_seconds)

    def forget(self, target: Target) -> Coroutine[Any, Any, None]:
        return self._call(Forget.KIND, (target,), self._limits.call_seconds)
