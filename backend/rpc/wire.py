"""Protocol between frontend and backend: frames on a connection.

A frame is a head and a payload.  The head is binary (little-endian), the payload MessagePack:

======  =======  ======================================================================
offset  bytes    content
======  =======  ======================================================================
0       4        CRC-32 of all that follows
4       4        length of the payload
8       1        kind: a control frame of the connection, or the kind of the command
9       4        the call that it belongs to, numbered by the caller; 0: none
13      ...      payload
======  =======  ======================================================================

The checksum exists because TCP's has only 16 bits, and the data is stored.  It does not protect against deliberate
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
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
from isal.isal_zlib import crc32

from backend import api, stream_api
from backend.api import BackendError, Command, MessageCommand, NotOwner, answer_type
from backend.stream_api import StreamError, StreamRefused
from backend.stream_commands import ConfigureStream

FRAME_BYTES_MAX: Final = 128 << 20
"""Maximum length of a payload.  The longest is the answer to a peek of 100 messages of 1 MiB."""
HELLO_BYTES_MAX: Final = 4096
"""Maximum length of a payload before the sender is authenticated."""
CALL_OVERHEAD_BYTES: Final = 256
"""Bytes that a call in progress counts in addition to its frame."""
HEARTBEAT_SECONDS: Final = 1.0
SILENT_BEATS: Final = 5

HEAD: Final = struct.Struct("<IIBI")
_TAIL = struct.Struct("<IBI")
"""The head without its checksum."""
_CRC = struct.Struct("<I")

# Kinds of frames.  Kinds from FIRST_COMMAND on are commands (:attr:`backend.api.Command.KIND`).
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
FIRST_COMMAND: Final = 32

encode = msgspec.msgpack.Encoder().encode


class WireError(Exception):
    """The bytes received are not this protocol: the connection cannot be used any further."""


class FrameTooLarge(ValueError):
    """The content is longer than a frame may be."""


def frame(kind: int, call: int, payload: bytes = b"") -> bytes:
    """Return one frame.  Raises :class:`FrameTooLarge`."""
    size = len(payload)
    if size > FRAME_BYTES_MAX:
        raise FrameTooLarge(f"it takes {size} bytes, and a frame holds at most {FRAME_BYTES_MAX}")
    rest = _TAIL.pack(size, kind, call)
    return b"".join((_CRC.pack(crc32(payload, crc32(rest))), rest, payload))


class Frames:
    """Splits received data, in parts of any size, into frames."""

    __slots__ = ("_needed", "_rest", "payload_bytes_max")

    def __init__(self) -> None:
        self.payload_bytes_max = HELLO_BYTES_MAX
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
            if size > self.payload_bytes_max:
                raise WireError(f"a frame of {size} bytes, and at most {self.payload_bytes_max} are accepted here")
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


# --- commands -------------------------------------------------------------------------------------------


def _commands(above: type[Command[Any]]) -> Iterator[type[Command[Any]]]:
    if above.KIND:
        yield above
    for each in above.__subclasses__():
        yield from _commands(each)


def _by_kind(commands: Iterable[type[Command[Any]]]) -> Mapping[int, type[Command[Any]]]:
    found: dict[int, type[Command[Any]]] = {}
    for command in commands:
        other = found.setdefault(command.KIND, command)
        if other is not command:
            raise TypeError(f"{other.__name__} and {command.__name__} have the same kind {command.KIND}")
    return found


COMMANDS: Final = _by_kind(_commands(Command))
"""Commands by the kinds of their frames, of :mod:`backend.api` and :mod:`backend.stream_commands`."""
assert ConfigureStream.KIND in COMMANDS
_DECODERS = {kind: msgspec.msgpack.Decoder(each) for kind, each in COMMANDS.items()}
_ANSWERS = {kind: msgspec.msgpack.Decoder(answer_type(each)) for kind, each in COMMANDS.items()}


def encode_command(command: Command[Any]) -> bytes:
    """Encode a command as the array of its members, without an absent span at the end."""
    if isinstance(command, MessageCommand) and command.trace is None and command.__struct_fields__[-1] == "trace":
        return encode(msgspec.structs.astuple(command)[:-1])
    return encode(command)


def decode_command(kind: int, payload: memoryview) -> Command[Any]:
    """Decode a command.  Raises :class:`WireError`."""
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise WireError(f"there is no method {kind}")
    try:
        command: Command[Any] = decoder.decode(payload)
    except msgspec.MsgspecError as error:
        raise WireError(f"the arguments of method {kind} cannot be read: {error}") from error
    return command


def decode_answer(kind: int, payload: memoryview) -> Any:
    """Decode the answer to a command of this kind.  Raises :class:`WireError`."""
    try:
        return _ANSWERS[kind].decode(payload)
    except msgspec.MsgspecError as error:
        raise WireError(f"the answer of method {kind} cannot be read: {error}") from error


# --- errors ---------------------------------------------------------------------------------------------


class Failure(msgspec.Struct, array_like=True, omit_defaults=True):
    """An error of :mod:`backend.api` or :mod:`backend.stream_api`, as transmitted."""

    name: str
    """Name of the class."""
    text: str
    retryable: bool
    """True if the call may be repeated; for receivers that do not know the class."""
    shard: int = 0
    owner: str | None = None
    code: int = 0
    """The error of a stream."""


_FAILURE = msgspec.msgpack.Decoder(Failure)


def _classes(above: type[BackendError]) -> dict[str, type[BackendError]]:
    found = {above.__name__: above} if above.__module__ in (api.__name__, stream_api.__name__) else {}
    for each in above.__subclasses__():
        found |= _classes(each)
    return found


_CLASSES = _classes(BackendError)
_STREAM_ERRORS = frozenset(StreamError)


def encode_error(error: BackendError) -> bytes:
    """Encode an error; a class that only this side knows is sent as its nearest base class that both sides know."""
    name = next(each.__name__ for each in type(error).__mro__ if _CLASSES.get(each.__name__) is each)
    failure = Failure(name, str(error), error.retryable)
    if isinstance(error, NotOwner):
        failure.shard, failure.owner = error.shard, error.owner
    elif isinstance(error, StreamRefused):
        failure.code = error.error
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
    if kind is StreamRefused and failure.code in _STREAM_ERRORS:
        return StreamRefused(StreamError(failure.code), failure.text)
    if kind is None or kind is StreamRefused:
        unknown = BackendError(failure.text)
        unknown.retryable = failure.retryable
        return unknown
    return kind(failure.text)
