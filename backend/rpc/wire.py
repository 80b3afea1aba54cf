"""Protocol between frontend and backend: frames on a connection.

A frame is a head and a payload.  The head is binary (little-endian), the payload MessagePack:

======  =======  ======================================================================
offset  bytes    content
======  =======  ======================================================================
0       4        CRC-32 of all that follows
4       4        length of the payload
8       1        kind: a control frame of the connection, or the number of the method
9       4        the call that it belongs to, numbered by the caller; 0: none
13      ...      payload
======  =======  ======================================================================

The checksum is there because TCP's has only 16 bits, and the data is stored.  It does not protect against deliberate
changes; TLS does.

Every request gets exactly one of ``ANSWER``, ``FAILED`` and ``CANCELLED``, so the caller knows when its number is free
again.  Calls are answered in any order.  Each side sends a frame at least every :data:`HEARTBEAT_SECONDS`, if need be
``ALIVE``; a side that receives nothing for :data:`SILENT_BEATS` times as long closes the connection.

Structs are arrays: a later version may append members with defaults, but never remove or move one, because an earlier
version skips members that it does not know.  Any other change needs a new version of the protocol
(:mod:`backend.rpc.handshake`).

This module reads and writes bytes and does no input or output itself.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Sequence
from typing import Any, ClassVar, Final
from zlib import crc32

import msgspec

from backend import api
from backend.api import (
    BackendError,
    Counters,
    HandleOutcome,
    Handover,
    Measures,
    MoveTask,
    NewMessage,
    NotOwner,
    PartitionSettings,
    Peeked,
    Peer,
    Receive,
    ReceivedMessage,
    SendResult,
    Target,
    Transfer,
)

FRAME_BYTES_MOST: Final = 128 << 20
"""Maximum length of a payload.  The longest is the answer to a peek of 100 messages of 1 MiB."""
HELLO_BYTES_MOST: Final = 4096
"""Maximum length of a payload before the sender is authenticated."""
CALL_OVERHEAD_BYTES: Final = 256
"""Bytes that a call in progress counts in addition to its frame."""
HEARTBEAT_SECONDS: Final = 1.0
SILENT_BEATS: Final = 5

HEAD: Final = struct.Struct("<IIBI")
_TAIL = struct.Struct("<IBI")
"""The head without its checksum."""
_CRC = struct.Struct("<I")

# Kinds of frames.  Kinds from FIRST_METHOD on are requests, and name the method.
HELLO, CHALLENGE, PROOF, WELCOME, GOODBYE = 1, 2, 3, 4, 5
ANSWER: Final = 8
FAILED: Final = 9
CANCEL: Final = 10
CANCELLED: Final = 11
ALIVE: Final = 12
DRAIN: Final = 13
"""The server is about to leave and requests no new calls.  Calls in progress, or sent before this arrived, are
answered.
"""
FIRST_METHOD: Final = 32

encode = msgspec.msgpack.Encoder().encode


class WireError(Exception):
    """The bytes received are not this protocol: the connection cannot be used any further."""


class FrameTooLarge(ValueError):
    """The content is longer than a frame may be."""


def frame(kind: int, call: int, payload: bytes = b"") -> bytes:
    """Return one frame.  Raises :class:`FrameTooLarge`."""
    size = len(payload)
    if size > FRAME_BYTES_MOST:
        raise FrameTooLarge(f"it takes {size} bytes, and a frame holds at most {FRAME_BYTES_MOST}")
    rest = _TAIL.pack(size, kind, call)
    return b"".join((_CRC.pack(crc32(payload, crc32(rest))), rest, payload))


class Frames:
    """Splits received data, in pieces of any size, into frames."""

    __slots__ = ("_needed", "_rest", "most")

    def __init__(self) -> None:
        self.most = HELLO_BYTES_MOST
        """Maximum length of an accepted payload."""
        self._rest = bytearray()
        self._needed = 0
        """Number of bytes until which no frame can be complete."""

    def feed(self, data: bytes) -> list[tuple[int, int, memoryview]]:
        """Return (kind, call, payload) of each frame that is complete now.  Raises :class:`WireError`."""
        rest = self._rest
        if rest:
            rest += data
            if len(rest) < self._needed:
                return []
            data = bytes(rest)
            rest.clear()
        found = []
        view, end, at = memoryview(data), len(data), 0
        needed = HEAD.size
        while end - at >= HEAD.size:
            crc, size, kind, call = HEAD.unpack_from(data, at)
            if size > self.most:
                raise WireError(f"a frame of {size} bytes, and at most {self.most} are let in here")
            needed = HEAD.size + size
            if end - at < needed:
                break
            if crc32(view[at + 4 : at + needed]) != crc:
                raise WireError("a frame whose checksum is wrong")
            found.append((kind, call, view[at + HEAD.size : at + needed]))
            at += needed
            needed = HEAD.size
        if at < end:
            rest += view[at:]
            self._needed = needed
        return found

    @property
    def torn(self) -> bool:
        """True if an incomplete frame has been received."""
        return bool(self._rest)


# --- requests -------------------------------------------------------------------------------------------


class Request(msgspec.Struct, array_like=True, gc=False):
    """The arguments of one method.  A caller encodes a tuple instead: the bytes are the same, and it is cheaper."""

    KIND: ClassVar[int]
    ANSWER: ClassVar[Any] = None
    """Type of the method's result."""
    NAME: ClassVar[str] = ""
    """Name of the method; empty: the name of the class."""

    @classmethod
    def method_name(cls) -> str:
        return cls.NAME or cls.__name__

    def run(self, backend: Peer) -> Awaitable[Any]:
        raise NotImplementedError


class Configure(Request, array_like=True, gc=False):
    KIND: ClassVar[int] = 32
    settings: PartitionSettings

    def run(self, backend: Peer) -> Awaitable[Any]:
        return backend.configure(self.settings)


class Drop(Request, array_like=True, gc=False):
    KIND: ClassVar[int] = 33
    target: Target

    def run(self, backend: Peer) -> Awaitable[Any]:
        return backend.drop(self.target)


class Purge(Request, array_like=True, gc=False):
    KIND: ClassVar[int] = 34
    target: Target
    purge_id: int

    def run(self, backend: Peer) -> Awaitable[Any]:
        return backend.purge(self.target, self.purge_id)


class Send(Request, array_like=True, gc=False):
    KIND: ClassVar[int] = 35
    ANSWER: ClassVar[Any] = list[SendResult]
    target: Target
    messages: list[NewMessage]
    trace: bytes | None = None
    """The caller's span (:class:`telemetry.headers.RemoteSpan`, packed) if it is sampled, otherwise omitted; as in all
    :data:`TRACED`.
    """

    def run(self, backend: Peer) -> Awaitable[Any]:
        return backend.send(self.target, self.messages)


class ReceiveCall(Request, array_like=True, gc=False):
    KIND: ClassVar[int] = 36
    ANSWER: ClassVar[Any] = list[ReceivedMessage]
    target: Target
    command: Receive
    trace: bytes | None = None

    def run(self, backend: Peer) -> Awaitable[Any]:
        return backend.receive(self.target, self.command)


class Release(Request, array_like=True, gc=False):
    KIND: ClassVar[int] = 37
    target: Target
    handles: list[str]

    def run(self, backend: Peer) -> Awaitable[Any]:
        return backend.release(self.target, self.handles)


class Delete(Request, array_like=True, gc=False):
    KIND: ClassVar[int] = 38
    ANSWER: ClassVar[Any] = list[HandleOutcome]
    target: Target
    handles: list[str]
    trace: bytes | None = None

    def run(self, backend: Peer) -> Awaitable[Any]:
        return backend.delete(self.target, self.handles)


class ChangeVisibility(Request, array_like=True, gc=False):
    KIND: ClassVar[int] = 39
    ANSWER: ClassVar[Any] = list[HandleOutcome]
    target: Target
    changes: list[tuple[str, int]]
    trace: bytes | None = None

    def run(self, backend: Peer) -> Awaitable[Any]:
        return backend.change_visibility(self.target, self.changes)


class Count(Request, array_like=True, gc=False):
    KIND: ClassVar[int] = 40
    ANSWER: ClassVar[Any] = Counters
    target: Target

    def run(self, backend: Peer) -> Awaitable[Any]:
        return backend.counters(self.target)


class PeekMessages(Request, array_like=True, gc=False):
    NAME: ClassVar[str] = "Peek"
    KIND: ClassVar[int] = 41
    ANSWER: ClassVar[Any] = list[Peeked]
    target: Target
    most: int
    after: int = 0

    def run(self, backend: Peer) -> Awaitable[Any]:
        return backend.peek(self.target, self.most, self.after)


class StartMove(Request, array_like=True, gc=False):
    KIND: ClassVar[int] = 42
    ANSWER: ClassVar[Any] = MoveTask
    target: Target
    destination_arn: str | None
    rate_per_second: int
    task_id: str | None = None

    def run(self, backend: Peer) -> Awaitable[Any]:
        return backend.start_move(self.target, self.destination_arn, self.rate_per_second, self.task_id)


class ListMoves(Request, array_like=True, gc=False):
    KIND: ClassVar[int] = 43
    ANSWER: ClassVar[Any] = list[MoveTask]
    target: Target

    def run(self, backend: Peer) -> Awaitable[Any]:
        return backend.list_moves(self.target)


class CancelMove(Request, array_like=True, gc=False):
    KIND: ClassVar[int] = 44
    ANSWER: ClassVar[Any] = MoveTask
    target: Target
    task_id: str

    def run(self, backend: Peer) -> Awaitable[Any]:
        return backend.cancel_move(self.target, self.task_id)


class StoredBytes(Request, array_like=True, gc=False):
    KIND: ClassVar[int] = 45
    ANSWER: ClassVar[Any] = int
    account: str

    def run(self, backend: Peer) -> Awaitable[Any]:
        return backend.stored_bytes(self.account)


class Take(Request, array_like=True, gc=False):
    KIND: ClassVar[int] = 46
    ANSWER: ClassVar[Any] = list[int]
    target: Target
    source: int
    below: int
    transfers: list[Transfer]

    def run(self, backend: Peer) -> Awaitable[Any]:
        return backend.take(self.target, self.source, self.below, self.transfers)


class Never(Request, array_like=True, gc=False):
    KIND: ClassVar[int] = 47
    ANSWER: ClassVar[Any] = list[int]
    target: Target
    source: int
    below: int
    numbers: list[int]

    def run(self, backend: Peer) -> Awaitable[Any]:
        return backend.never(self.target, self.source, self.below, self.numbers)


class Watch(Request, array_like=True, gc=False):
    KIND: ClassVar[int] = 48
    ANSWER: ClassVar[Any] = bool
    target: Target
    wait_seconds: float

    def run(self, backend: Peer) -> Awaitable[Any]:
        return backend.watch(self.target, self.wait_seconds)


class HandOver(Request, array_like=True, gc=False):
    KIND: ClassVar[int] = 49
    ANSWER: ClassVar[Any] = Handover
    target: Target
    slot: int
    part: int

    def run(self, backend: Peer) -> Awaitable[Any]:
        return backend.hand_over(self.target, self.slot, self.part)


class Awaited(Request, array_like=True, gc=False):
    KIND: ClassVar[int] = 50
    ANSWER: ClassVar[Any] = list[int]
    target: Target

    def run(self, backend: Peer) -> Awaitable[Any]:
        return backend.awaited(self.target)


class Retire(Request, array_like=True, gc=False):
    KIND: ClassVar[int] = 51
    ANSWER: ClassVar[Any] = bool
    target: Target
    linger_seconds: int

    def run(self, backend: Peer) -> Awaitable[Any]:
        return backend.retire(self.target, self.linger_seconds)


class Forget(Request, array_like=True, gc=False):
    KIND: ClassVar[int] = 52
    target: Target

    def run(self, backend: Peer) -> Awaitable[Any]:
        return backend.forget(self.target)


class Measure(Request, array_like=True, gc=False):
    KIND: ClassVar[int] = 53
    ANSWER: ClassVar[Any] = list[Measures]
    target: Target

    def run(self, backend: Peer) -> Awaitable[Any]:
        return backend.measures(self.target)


class MeasureAccount(Request, array_like=True, gc=False):
    KIND: ClassVar[int] = 54
    ANSWER: ClassVar[Any] = list[Measures]
    account: str
    prefixes: list[str]
    after: str
    most: int

    def run(self, backend: Peer) -> Awaitable[Any]:
        return backend.measures_of(self.account, self.prefixes, self.after, self.most)


REQUESTS: Final[Sequence[type[Request]]] = (
    Configure,
    Drop,
    Purge,
    Send,
    ReceiveCall,
    Release,
    Delete,
    ChangeVisibility,
    Count,
    PeekMessages,
    StartMove,
    ListMoves,
    CancelMove,
    StoredBytes,
    Take,
    Never,
    Watch,
    HandOver,
    Awaited,
    Retire,
    Forget,
    Measure,
    MeasureAccount,
)
Traced = Send | ReceiveCall | Delete | ChangeVisibility
TRACED: Final = (Send, ReceiveCall, Delete, ChangeVisibility)
"""Calls that create spans: those for messages."""
TRACED_KINDS: Final = frozenset(each.KIND for each in TRACED)
_DECODERS = {each.KIND: msgspec.msgpack.Decoder(each) for each in REQUESTS}
_ANSWERS = {each.KIND: msgspec.msgpack.Decoder(each.ANSWER) for each in REQUESTS}


def decode_request(kind: int, payload: memoryview) -> Request:
    """Decode the arguments of a method.  Raises :class:`WireError`."""
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise WireError(f"there is no method {kind}")
    try:
        request: Request = decoder.decode(payload)
    except msgspec.MsgspecError as error:
        raise WireError(f"the arguments of method {kind} cannot be read: {error}") from error
    return request


def decode_answer(method: int, payload: memoryview) -> Any:
    """Decode the answer to a call of this method.  Raises :class:`WireError`."""
    try:
        return _ANSWERS[method].decode(payload)
    except msgspec.MsgspecError as error:
        raise WireError(f"the answer of method {method} cannot be read: {error}") from error


# --- errors ---------------------------------------------------------------------------------------------


class Failure(msgspec.Struct, array_like=True, omit_defaults=True):
    """An error of :mod:`backend.api`, as transmitted."""

    name: str
    """Name of the class."""
    text: str
    retryable: bool
    """True if the call may be repeated; for receivers that do not know the class."""
    shard: int = 0
    owner: str | None = None


_FAILURE = msgspec.msgpack.Decoder(Failure)


def _classes(above: type[BackendError]) -> dict[str, type[BackendError]]:
    found = {above.__name__: above} if above.__module__ == api.__name__ else {}
    for each in above.__subclasses__():
        found |= _classes(each)
    return found


_CLASSES = _classes(BackendError)


def encode_error(error: BackendError) -> bytes:
    """Encode an error; a class that only this side knows is sent as its nearest base class that both sides know."""
    name = next(each.__name__ for each in type(error).__mro__ if _CLASSES.get(each.__name__) is each)
    failure = Failure(name, str(error), error.retryable)
    if isinstance(error, NotOwner):
        failure.shard, failure.owner = error.shard, error.owner
    return encode(failure)


def decode_error(payload: memoryview) -> BackendError:
    """Decode an error to the same class with the same text; an unknown class becomes :class:`BackendError`.

    Raises :class:`WireError`.
    """
    try:
        failure = _FAILURE.decode(payload)
    except msgspec.MsgspecError as error:
        raise WireError(f"an error that cannot be read: {error}") from error
    kind = _CLASSES.get(failure.name)
    if kind is NotOwner:
        return NotOwner(failure.shard, failure.owner)
    if kind is None:
        unknown = BackendError(failure.text)
        unknown.retryable = failure.retryable
        return unknown
    return kind(failure.text)
