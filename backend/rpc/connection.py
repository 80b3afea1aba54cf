"""Client side of one connection to a backend's server: its handshake, and the calls in progress on it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast

from backend.api import Command, Receive, ReceivedMessage, Release, Unavailable
from backend.rpc.address import digest_of_peer
from backend.rpc.handshake import CallerSide, HandshakeRefused, goodbye_reason
from backend.rpc.wire import (
    ALIVE,
    ANSWER,
    CALL_OVERHEAD_BYTES,
    CANCEL,
    CANCELLED,
    CHALLENGE,
    DRAIN,
    FAILED,
    FIRST_COMMAND,
    FRAME_BYTES_MAX,
    GOODBYE,
    HEAD,
    SILENT_BEATS,
    WELCOME,
    Frames,
    WireError,
    decode_answer,
    decode_error,
    encode_command,
    frame,
)

logger = logging.getLogger(__name__)

RELEASE_SECONDS: Final = 30.0
_CALLS_MAX: Final = (1 << 32) - 1


class NotSent(Unavailable):
    """The call was not started anywhere: it has had no effect, and may be repeated."""

    has_effect = False


class PendingCall:
    """A call in progress."""

    __slots__ = ("abandoned", "command", "deadline", "future", "number", "weight")

    def __init__(
        self,
        future: asyncio.Future[Any],
        number: int,
        command: Command[Any],
        weight: int,
        deadline: float,
    ) -> None:
        self.future = future
        """Cancelled: no caller waits for it any more, or the caller has not yet decided how to end it."""
        self.abandoned = False
        self.number = number
        self.command = command
        self.weight = weight
        self.deadline = deadline


class BackendConnection(asyncio.Protocol):
    """A connection.  Calls may be made after :attr:`welcomed` is done, until :attr:`leaving` is set."""

    def __init__(
        self,
        make_caller: Callable[[bytes], CallerSide],
        heartbeat_seconds: float,
        on_end: Callable[[BackendConnection], None],
    ) -> None:
        """``make_caller`` gets the binding of the proofs.  ``on_end`` is called once, when this connection accepts no
        more calls, though some may still be answered.
        """
        self._loop = asyncio.get_running_loop()
        self._make_caller = make_caller
        self._heartbeat_seconds = heartbeat_seconds
        self._on_end = on_end
        self._transport: asyncio.Transport
        self._caller: CallerSide
        self._frames = Frames()
        self._out: list[bytes] = []
        """Frames to be sent at the end of this turn of the loop."""
        self._calls: dict[int, PendingCall] = {}
        self._last = 0
        self._quiet = True
        """True if nothing was written since the last heartbeat."""
        self._silent_beats = 0
        self._timer: asyncio.TimerHandle | None = None
        self._capacity_waiters: deque[asyncio.Future[None]] = deque()
        """Calls that wait until fewer are in progress."""
        self._under_way_max = 0
        self._why = "the connection was closed before the peer sent anything: it may expect TLS"
        self.under_way_bytes = 0
        self.leaving = False
        self.welcomed: asyncio.Future[None] = self._loop.create_future()
        """Done when calls can be made.  Raises :class:`HandshakeRefused` or :class:`ConnectionError`."""
        self.welcomed.add_done_callback(lambda welcomed: welcomed.cancelled() or welcomed.exception())
        self.lost: asyncio.Future[None] = self._loop.create_future()
        """Done when the connection is closed."""
        self.peer = ""

    # --- callbacks of the loop ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass
        tls = transport.get_extra_info("ssl_object")
        self._caller = self._make_caller(digest_of_peer(tls) if tls is not None else b"")
        self._transport.write(self._caller.start())
        self._set_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._why = f"the connection was lost: {exc}"
        unsent = {number for _, _, kind, number in map(HEAD.unpack_from, self._out) if kind >= FIRST_COMMAND}
        self._out.clear()
        if self._timer is not None:
            self._timer.cancel()
        if not self.welcomed.done():
            self.welcomed.set_exception(ConnectionError(self._why))
        self._leave()
        calls = list(self._calls.values())
        self._calls.clear()
        for call in calls:
            if call.future.done():
                continue
            if call.number in unsent:
                call.future.set_exception(NotSent(self._why))
            else:
                call.future.set_exception(Unavailable(f"{self._why}; whether the call took effect is not known"))
        self.lost.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._silent_beats = 0
        try:
            for kind, number, payload in self._frames.feed(data):
                if kind == ANSWER:
                    self._answered(number, payload)
                elif kind != ALIVE:
                    self._handle_rare(kind, number, payload)
            if self.leaving:
                self._close_if_done()
        except WireError as error:
            logger.warning("the connection to %s is closed: it sent %s", self.peer or "an unknown peer", error)
            self.cut(f"the other side sent {error}")
        except HandshakeRefused as refusal:
            self._refused(refusal)

    # --- received frames ------------------------------------------------------------------------------------

    def _answered(self, number: int, payload: memoryview) -> None:
        call = self._finished(number)
        future = call.future
        if future.cancelled() and not call.abandoned:
            # The caller was just cancelled and has not run since.
            future = call.future = self._loop.create_future()
        if not future.done():
            future.set_result(decode_answer(call.command.KIND, payload))
        elif isinstance(call.command, Receive):
            self._release(call.command, decode_answer(call.command.KIND, payload))

    def _handle_rare(self, kind: int, number: int, payload: memoryview) -> None:
        """Handle all frames that are rare."""
        if kind == FAILED:
            call = self._finished(number)
            error = decode_error(payload)
            if not call.future.done():
                call.future.set_exception(error)
        elif kind == CANCELLED:
            call = self._finished(number)
            if not call.future.done():
                call.future.set_exception(Unavailable("the backend has cancelled the call"))
        elif kind == DRAIN:
            self._leave()
        elif kind == CHALLENGE and not self.welcomed.done():
            self._why = "the connection was closed during the handshake"
            self._transport.write(self._caller.challenged(payload))
        elif kind == WELCOME and not self.welcomed.done():
            self._under_way_max = self._caller.welcomed(payload).under_way_bytes
            self._frames.payload_bytes_max = FRAME_BYTES_MAX
            self._why = "the connection was closed"
            self.peer = self._caller.peer
            self.welcomed.set_result(None)
        elif kind == GOODBYE:
            raise goodbye_reason(payload)
        else:
            raise WireError(f"a frame of kind {kind} where none belongs")

    def _finished(self, number: int) -> PendingCall:
        call = self._calls.pop(number, None)
        if call is None:
            raise WireError(f"an answer to call {number}, which was never made")
        self.under_way_bytes -= call.weight
        if self._capacity_waiters:
            self._wake_waiters()
        return call

    def _refused(self, refusal: HandshakeRefused) -> None:
        if not self.welcomed.done():
            self.welcomed.set_exception(refusal)
        self.cut(str(refusal))

    # --- calls --------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """True while too many bytes are in progress for further calls."""
        return self.under_way_bytes >= self._under_way_max

    def start(self, command: Command[Any], deadline: float) -> PendingCall:
        """Make a call; it is sent at the end of this turn of the loop.  Raises
        :class:`backend.rpc.wire.FrameTooLarge`."""
        number = self._last = self._last + 1 if self._last < _CALLS_MAX else 1
        while number in self._calls:
            number = self._last = self._last + 1 if self._last < _CALLS_MAX else 1
        data = frame(command.KIND, number, encode_command(command))
        weight = len(data) - HEAD.size + CALL_OVERHEAD_BYTES
        call = self._calls[number] = PendingCall(self._loop.create_future(), number, command, weight, deadline)
        self.under_way_bytes += weight
        self._send_soon(data)
        return call

    def abandon(self, call: PendingCall) -> None:
        """Cancel the call: what it has claimed, or will claim, is released."""
        call.abandoned = True
        future = call.future
        if self._calls.get(call.number) is call:
            future.cancel()
            self._send_soon(frame(CANCEL, call.number))
        elif isinstance(call.command, Receive) and not future.cancelled() and future.exception() is None:
            self._release(call.command, future.result())

    def end_wait(self, call: PendingCall) -> asyncio.Future[Any]:
        """End a receive's wait but keep what it has claimed; the call's future may have been cancelled."""
        if self._calls.get(call.number) is call:
            call.future = self._loop.create_future()
            self._send_soon(frame(CANCEL, call.number))
        return call.future

    def _release(self, command: Receive, messages: list[ReceivedMessage]) -> None:
        """Release the messages of a receive whose caller was gone before the answer arrived."""
        # A client that lost the answer repeats the attempt, so the claims stay.
        if messages and command.options.attempt is None and not self.lost.done():
            handles = [message.handle for message in messages]
            self.start(Release(command.target, handles), self._loop.time() + RELEASE_SECONDS).future.cancel()

    async def wait_for_capacity(self) -> None:
        """Wait until fewer calls are in progress, or the connection accepts no more calls."""
        while self.full and not self.leaving:
            waiter = self._loop.create_future()
            self._capacity_waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake_waiters()  # wake another waiter
                raise

    def _wake_waiters(self) -> None:
        while self._capacity_waiters and (self.leaving or not self.full):
            waiter = self._capacity_waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                if not self.leaving:
                    return  # the next answer wakes another waiter if there is more capacity

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
            self._out.clear()

    def _set_timer(self) -> None:
        self._timer = self._loop.call_later(self._heartbeat_seconds, self._beat)

    def _beat(self) -> None:
        """Count timer ticks, not time: when this process itself was stopped, the peer is not at fault."""
        self._silent_beats += 1
        if self._silent_beats > SILENT_BEATS:
            self.cut(f"nothing was received for {SILENT_BEATS * self._heartbeat_seconds:g} s")
            return
        if self.welcomed.done():
            if self._quiet:
                self._transport.write(frame(ALIVE, 0))
            self._quiet = True
        now = self._loop.time()
        for call in [each for each in self._calls.values() if each.deadline < now and not each.future.done()]:
            late = Unavailable("no answer in time; whether the call took effect is not known")
            call.future.set_exception(late)
            self._send_soon(frame(CANCEL, call.number))
        self._set_timer()

    def _leave(self) -> None:
        if not self.leaving:
            self.leaving = True
            self._wake_waiters()
            self._on_end(self)

    def _close_if_done(self) -> None:
        if not self._calls:
            self._why = "the backend is leaving"
            self._flush()
            self._transport.close()

    def cut(self, why: str) -> None:
        """Close the connection at once."""
        self._why = why
        self._leave()
        self._transport.abort()
