"""Connections of Kafka's protocol, with bounds on what a client can make the service hold.

Requests of a connection begin one after the other.  An append is answered when it is durable, and the next request
begins meanwhile; every other request is answered before the next one begins, as in Kafka.  So batches of one connection
keep their order.  Answers are sent in the order of the requests.

Reading stops while a request is being handled and another one has arrived, while too many answers are outstanding, and
while the client does not read.  Before the sign-in only short frames are read, of the three APIs that it needs.

Each connection has one deadline, which a sweep compares once a second with the time:

===============  =======================================================  ===================
state            from                                                     deadline
===============  =======================================================  ===================
sign-in          the connection                                           ``sign_in_seconds``
reading          the first byte of a request                              ``read_seconds``
answering        a request                                                none
blocked          the client does not read                                 ``read_seconds``
idle             the last answer                                          ``idle_seconds``
closing          the decision to close                                    5 s
===============  =======================================================  ===================
"""

from __future__ import annotations

import asyncio
import math
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from msgspec import Struct

from auth.errors import AuthError, IssuerUnreachable
from auth.signatures.scram_keys import TooManyDerivations
from backend.api import BackendError
from billing.metering.meter import UsageNotCounted
from frontend.kafka.dispatch import HANDLED, Throttled, handle
from frontend.kafka.handlers.produce import AppendFailed, StartedAnswer
from frontend.kafka.protocol.encoding.api import ServedApi
from frontend.kafka.protocol.encoding.reading import MalformedRequest
from frontend.kafka.protocol.encoding.writing import Buffer
from frontend.kafka.protocol.frames import FrameDecoder
from frontend.kafka.protocol.generated.metadata import ApiVersionsRequest
from frontend.kafka.protocol.generated.produce import ProduceResponse
from frontend.kafka.protocol.generated.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from frontend.kafka.protocol.requests import KafkaRequest, UnsupportedVersion, decode_request
from frontend.kafka.protocol.responses import encode_response, unsupported_api_versions
from frontend.kafka.protocol.versions import API_VERSIONS_KEY, BY_NAME, api_versions_response
from frontend.kafka.request.context import KafkaCall, KafkaContext
from frontend.kafka.request.failed_batches import FailedBatches
from frontend.kafka.resources import AnswerMemory
from frontend.kafka.sign_in.mechanisms import Mechanisms
from frontend.kafka.sign_in.sasl import SignIn
from frontend.kafka.sign_in.session import KafkaSession
from frontend.sqs.protocol.errors import SqsError
from metadata_service.store import StoreError

SIGN_IN_FRAME_BYTES_MAX: Final = 16 << 10
"""Longest frame before the sign-in.  A token has 8 KiB at most."""
SIGN_IN_REQUESTS_MAX: Final = 16
"""Requests before the end of the sign-in."""
OUTSTANDING_MAX: Final = 64
"""Requests that were begun and are not answered."""
WRITE_BYTES: Final = 64 << 10
"""Bytes that wait for the client to read before it counts as slow."""
FREE_BYTES: Final = 64 << 10
"""Bytes of each connection's requests that need no room, so that small requests continue while there is none."""
CLIENT_ID_LENGTH_MAX: Final = 256
"""Characters of a client's id that are kept: groups store it."""
LINGER_SECONDS: Final = 5.0
_HANDSHAKE, _AUTHENTICATE = BY_NAME["SaslHandshake"].key, BY_NAME["SaslAuthenticate"].key
_SIGN_IN_KEYS: Final = (API_VERSIONS_KEY, _HANDSHAKE, _AUTHENTICATE)
_NEVER: Final = math.inf
_key = struct.Struct(">h").unpack_from
_length = struct.Struct(">i").pack
_OF_CLIENTS: Final = (AppendFailed, AuthError, MalformedRequest, Throttled, UnsupportedVersion)
_OF_SERVICES: Final = (BackendError, IssuerUnreachable, StoreError, TooManyDerivations, UsageNotCounted)
"""Errors that end a connection and are no defects."""


class _Answer:
    """The place of an answer in the order of a connection's answers."""

    __slots__ = ("parts", "request_bytes")

    def __init__(self, request_bytes: int) -> None:
        self.parts: list[Buffer] | None = None
        """Buffers to be written, none if the client expects no answer; None: the answer is not complete."""
        self.request_bytes = request_bytes


class ConnectionOwner(Protocol):
    """State that the connections of a process share (:class:`frontend.kafka.listener.KafkaListener`)."""

    context: KafkaContext
    answers: AnswerMemory
    mechanisms: Mechanisms
    connections: set[KafkaConnection]
    tasks: set[asyncio.Future[Any]]
    """Requests under way."""
    draining: bool


class KafkaConnection(asyncio.Protocol):
    """The connection of one client."""

    def __init__(self, listener: ConnectionOwner, address: str, closed: Callable[[], None]) -> None:
        """``closed`` is called once, when the connection is closed."""
        self._listener = listener
        self._context = listener.context
        self._loop = asyncio.get_running_loop()
        self._address = address
        self._closed = closed
        self._transport: asyncio.Transport | None = None
        self._decoder = FrameDecoder(SIGN_IN_FRAME_BYTES_MAX)
        self._sign_in: SignIn | None = None
        """Sign-in under way; None after it, until the client signs in again."""
        self._session: KafkaSession | None = None
        self._failed_batches = FailedBatches()
        self._sign_in_requests = 0
        self._worker: asyncio.Task[None] | None = None
        self._waits = False
        """True if the request that began last may wait for other clients."""
        self._begun: _Answer | None = None
        """Answer of the request that is being handled."""
        self._answers: deque[_Answer] = deque()
        self._outstanding_bytes = 0
        self._room: asyncio.Future[None] | None = None
        """Pending while the worker waits for answers to be written."""
        self._blocked = False
        """True while the client does not read what was written."""
        self._unread_bytes = 0
        """Bytes that wait for the client to read, at the last sweep."""
        self._reading_paused = False
        self._room_taken = 0
        self._ends = False
        """True if no further request is begun."""
        self._frame_is_partial = False
        self.deadline = _NEVER

    # --- what the event loop calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class is not a subclass
        self._transport.set_write_buffer_limits(high=WRITE_BYTES)
        settings = self._context.settings
        self._reveals = settings.clear_text_secrets or transport.get_extra_info("sslcontext") is not None
        self._sign_in = self._new_sign_in()
        self.deadline = self._loop.time() + settings.sign_in_seconds
        self._listener.connections.add(self)
        if self._listener.draining:
            self._close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ends = True
        self._listener.connections.discard(self)
        self._listener.answers.release(self)
        if self._worker is not None:
            self._worker.cancel()
        self._answers.clear()
        self._take_room(0)
        self._transport = None
        self._closed()

    def data_received(self, data: bytes) -> None:
        if self._ends:
            return
        self._decoder.feed(data)
        try:
            self._take_room(self._decoder.buffered_bytes)
        except SqsError:
            self._context.error_log.say("no room", "a connection was closed: too many long requests are arriving")
            self._abort()
            return
        if self._worker is not None:
            self._pause_reading()
        else:
            self._start_worker()

    def eof_received(self) -> None:
        """Answer what was received, then close."""
        self._end()

    def pause_writing(self) -> None:
        self._blocked = True
        self.deadline = self._loop.time() + self._context.settings.read_seconds
        if self._transport is not None:
            self._unread_bytes = self._transport.get_write_buffer_size()
            self._listener.answers.hold(self, self._unread_bytes)

    def resume_writing(self) -> None:
        self._blocked = False
        self._listener.answers.release(self)
        self._wake()
        self._set_deadline()

    # --- what the listener calls ---

    def sweep(self, now: float) -> None:
        """Close the connection if its deadline has passed."""
        if self._blocked and self._transport is not None:
            unread = self._transport.get_write_buffer_size()
            if unread < self._unread_bytes:  # slow, but it reads
                self.deadline = now + self._context.settings.read_seconds
                self._listener.answers.progress(self)
            self._unread_bytes = unread
        if now >= self.deadline:
            self._abort()

    def shutdown(self) -> None:
        """Close the connection after the requests that were begun; those that wait for other clients are given up."""
        if self._worker is not None and self._waits:
            self._worker.cancel()
        self._end()

    def abort(self) -> None:
        self._abort()

    # --- requests ---

    def _start_worker(self) -> None:
        """Begin the next request, if one has arrived."""
        try:
            frame = self._next_frame()
        except MalformedRequest as error:
            self._log_end(error)
            self._abort()
            return
        if frame is None:
            self._resume_reading()
            self._set_deadline()
            return
        self.deadline = self.deadline if self._session is None else _NEVER
        self._worker = task = self._loop.create_task(self._serve(frame))
        self._listener.tasks.add(task)
        task.add_done_callback(self._served)

    def _next_frame(self) -> bytes | None:
        frame = None if self._ends else self._decoder.next_frame()
        if frame is None:
            self._take_room(self._decoder.buffered_bytes)
        return frame

    async def _serve(self, frame: bytes | None) -> None:
        """Begin requests, one after the other, until none is there."""
        while frame is not None:
            while not self._has_room():
                self._room = self._loop.create_future()
                await self._room
            if self._ends:
                return
            await self._begin(frame)
            frame = self._next_frame()

    def _served(self, task: asyncio.Task[None]) -> None:
        self._listener.tasks.discard(task)
        self._worker = None
        if self._transport is None:
            if not task.cancelled():
                task.exception()
            return
        if self._begun is not None:  # it gets no answer; those before it do
            self._answers.remove(self._begun)
            self._begun = None
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._log_end(error)
        if error is not None or task.cancelled() or self._ends:
            self._end()
        else:
            self._start_worker()

    def _has_room(self) -> bool:
        settings = self._context.settings
        few = len(self._answers) < OUTSTANDING_MAX and self._outstanding_bytes <= settings.frame_bytes_max
        return self._ends or (few and not self._blocked)

    async def _begin(self, frame: bytes) -> None:
        """Begin a request.  Errors end the connection."""
        session = self._session
        if session is None:
            await self._begin_sign_in(frame)
            return
        request = self._decoded(frame)
        if request is None:
            return
        if request.api.key in (_HANDSHAKE, _AUTHENTICATE):
            await self._answer_sign_in(request, session)
            return
        caller = await session.check(self._context.services.clock())
        client_id = (request.client_id or "")[:CLIENT_ID_LENGTH_MAX]
        call = KafkaCall(caller, client_id, self._address, request.version, failed_batches=self._failed_batches)
        answer = self._begun = _Answer(len(frame))
        self._answers.append(answer)
        self._outstanding_bytes += answer.request_bytes
        self._waits = HANDLED[request.api.key].waits
        result = await handle(self._context, call, request)
        self._begun = None
        if isinstance(result, StartedAnswer):
            self._follow(request.api, request.version, request.correlation_id, answer, result)
        else:
            answer.parts = self._encoded(request, result)
            self._flush()

    def _decoded(self, frame: bytes) -> KafkaRequest | None:
        """Decode a request; None: it was answered, because its version of ApiVersions is not served.

        Raises :class:`MalformedRequest` and :class:`UnsupportedVersion`.
        """
        try:
            return decode_request(frame)
        except UnsupportedVersion as error:
            if error.api_key != API_VERSIONS_KEY:
                raise
            self._write(unsupported_api_versions(error.correlation_id))
            return None

    def _follow(
        self, api: ServedApi, version: int, correlation_id: int, answer: _Answer, started: StartedAnswer
    ) -> None:
        """Send an answer when it is complete.  The request itself is not kept: it may be long."""
        task = asyncio.ensure_future(started.answer)
        self._listener.tasks.add(task)

        def done(task: asyncio.Future[ProduceResponse | None]) -> None:
            self._listener.tasks.discard(task)
            error = None if task.cancelled() else task.exception()
            if self._transport is None:
                return
            if task.cancelled() or error is not None:
                if error is not None:
                    self._log_end(error)
                self._abort()
                return
            result = task.result()
            answer.parts = [] if result is None else encode_response(api, version, correlation_id, result)
            self._flush()

        task.add_done_callback(done)

    def _encoded(self, request: KafkaRequest, result: Struct) -> list[Buffer]:
        return encode_response(request.api, request.version, request.correlation_id, result)

    # --- sign-in ---

    def _new_sign_in(self) -> SignIn:
        return SignIn(self._context, self._listener.mechanisms, self._address, reveals=self._reveals)

    async def _begin_sign_in(self, frame: bytes) -> None:
        """Answer a request before the end of the sign-in."""
        self._sign_in_requests += 1
        if self._sign_in_requests > SIGN_IN_REQUESTS_MAX:
            raise MalformedRequest("too many requests before the end of the sign-in")
        assert self._sign_in is not None
        if self._sign_in.raw:
            answered = await self._sign_in.authenticate(SaslAuthenticateRequest(frame))
            if answered.failed:
                self._end()
                return
            data = bytes(answered.response.auth_bytes)
            self._write([_length(len(data)) + data])
            self._signed_in(answered.session)
            return
        if len(frame) < 2 or _key(frame)[0] not in _SIGN_IN_KEYS:
            raise MalformedRequest("another request before the end of the sign-in")
        request = self._decoded(frame)
        if request is None:
            return
        if isinstance(request.body, ApiVersionsRequest):
            self._write(self._encoded(request, api_versions_response()))
        else:
            await self._answer_sign_in(request, None)

    async def _answer_sign_in(self, request: KafkaRequest, session: KafkaSession | None) -> None:
        """Answer a request of a sign-in.  ``session``: that of an earlier one."""
        if self._sign_in is None:
            self._sign_in = self._new_sign_in()
        body = request.body
        if isinstance(body, SaslHandshakeRequest):
            handshake = self._sign_in.handshake(body, request.version)
            self._write(self._encoded(request, handshake.response))
            if not handshake.accepted or (self._sign_in.raw and session is not None):
                self._end()
            return
        assert isinstance(body, SaslAuthenticateRequest)
        answered = await self._sign_in.authenticate(body, again_as=session)
        self._write(self._encoded(request, answered.response))
        if answered.failed:
            self._end()
        else:
            self._signed_in(answered.session)

    def _signed_in(self, session: KafkaSession | None) -> None:
        if session is not None:
            self._session = session
            self._sign_in = None
            self._decoder.frame_bytes_max = self._context.settings.frame_bytes_max

    # --- answers ---

    def _write(self, parts: list[Buffer]) -> None:
        """Send an answer in its turn."""
        answer = _Answer(0)
        answer.parts = parts
        self._answers.append(answer)
        self._flush()

    def _flush(self) -> None:
        """Write the answers that are complete, up to the first that is not."""
        transport = self._transport
        if transport is None:
            return
        while self._answers and self._answers[0].parts is not None:
            answer = self._answers.popleft()
            self._outstanding_bytes -= answer.request_bytes
            assert answer.parts is not None
            if answer.parts and not transport.is_closing():
                transport.writelines(answer.parts)
        self._wake()
        if self._ends:
            self._close_if_answered()
        elif self._worker is None:
            self._set_deadline()

    def _wake(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    # --- state ---

    def _set_deadline(self) -> None:
        if self._transport is None or self._transport.is_closing() or self._session is None:
            return
        settings = self._context.settings
        now = self._loop.time()
        if self._blocked:
            return
        if self._worker is not None or self._answers:
            self.deadline = _NEVER
            self._frame_is_partial = False
        elif self._decoder.buffered_bytes:
            if not self._frame_is_partial:
                self._frame_is_partial = True
                self.deadline = now + settings.read_seconds
        else:
            self._frame_is_partial = False
            self.deadline = now + settings.idle_seconds

    def _take_room(self, buffered: int) -> None:
        """Reserve memory for a long request, or give it back.  Raises ServiceUnavailable."""
        wanted = max(0, buffered - FREE_BYTES)
        bodies = self._context.services.bodies
        if wanted > self._room_taken:
            bodies.take(wanted - self._room_taken)
        else:
            bodies.give_back(self._room_taken - wanted)
        self._room_taken = wanted

    def _pause_reading(self) -> None:
        if not self._reading_paused and self._transport is not None and not self._transport.is_closing():
            self._reading_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._reading_paused and self._transport is not None and not self._transport.is_closing():
            self._reading_paused = False
            self._transport.resume_reading()

    def _log_end(self, error: BaseException) -> None:
        """Log why a connection ends."""
        context = self._context
        credential = "-" if self._session is None else self._session.credential
        about = (type(error).__name__, "a connection of %r from %r ends: %r", credential, self._address, error)
        if isinstance(error, _OF_CLIENTS):
            context.client_log.say(*about)
        elif isinstance(error, _OF_SERVICES):
            context.error_log.say(*about)
        else:
            context.log.error("a connection of %r from %r ends", credential, self._address, exc_info=error)

    # --- the end ---

    def _end(self) -> None:
        """Begin no further request, and close when those that were begun are answered."""
        self._ends = True
        self._wake()
        self._close_if_answered()

    def _close_if_answered(self) -> None:
        if self._worker is None and not self._answers:
            self._close()

    def _close(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()
            self.deadline = self._loop.time() + LINGER_SECONDS

    def _abort(self) -> None:
        self._ends = True
        if self._transport is not None:
            self._transport.abort()
