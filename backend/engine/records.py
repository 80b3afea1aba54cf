"""What can be said about a queue partition: the records of its journal.

A record has a head, which the fold needs, and for messages a body, which it does not: the payload stays on disk.
Heads are MessagePack arrays: a later version may append members with defaults, never take one away or move one.
The frame around a record (version, shard, partition, epoch, key id, time, checksums) is :mod:`backend.journal.rows`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

from backend.api import PartitionSettings


class Message(msgspec.Struct, array_like=True, gc=False):
    """A message was stored: sent, taken over from another queue, or copied by the cleaner.  Has a body, the payload."""

    KIND: ClassVar[int] = 1
    number: int
    sent_ms: int
    """Retention counts from here: a dead letter of a standard queue keeps the time it was first sent."""
    deliver_ms: int = 0
    group: str | None = None
    token: bytes | None = None
    message_id: bytes | None = None
    """16 bytes when the message has an id that another queue or the sender gave it, else the id follows from the
    number."""
    origin: str | None = None
    """ARN of the queue whose dead letter this is."""
    source: int = 0
    """Taken over: partition that it came from, the number of the transfer, and the mark below which all are done."""
    transfer: int = 0
    below: int = 0
    retry: bytes | None = None
    """The retry token, 16 bytes, and 16 of a digest of the call that it came with."""


class TransferIn(Message, array_like=True, gc=False):
    """A dead letter was taken over, with the receives that it had been counted until then."""

    KIND: ClassVar[int] = 21
    receives: int = 0
    first_received_ms: int = 0


class Copied(Message, array_like=True, gc=False):
    """The cleaner wrote a living message again, so that its old segment may go."""

    KIND: ClassVar[int] = 2


class Received(msgspec.Struct, array_like=True, gc=False):
    """Messages were claimed until a time."""

    KIND: ClassVar[int] = 3
    numbers: list[int]
    until_ms: int
    attempt: str | None = None


class VisibilityChanged(msgspec.Struct, array_like=True, gc=False):
    """Claims now last until a time; one not later than the record's own time ends the claim."""

    KIND: ClassVar[int] = 4
    changes: list[tuple[int, int]]
    attempt: str | None = None
    """Set when a receive was repeated: the change belongs to it and does not end its attempt."""
    unseen: bool = False
    """The claims end because nobody got the messages: those receives do not count."""


class Deleted(msgspec.Struct, array_like=True, gc=False):
    KIND: ClassVar[int] = 5
    numbers: list[int]


class Purged(msgspec.Struct, array_like=True, gc=False):
    KIND: ClassVar[int] = 6
    purge_id: int


class Configured(msgspec.Struct, array_like=True, gc=False):
    """The partition was opened, or its queue's settings changed."""

    KIND: ClassVar[int] = 7
    settings: PartitionSettings


class Dropped(msgspec.Struct, array_like=True, gc=False):
    """The queue was deleted."""

    KIND: ClassVar[int] = 8
    queue_id: int


class TransferOut(msgspec.Struct, array_like=True, gc=False):
    """Messages leave for another queue: hidden here until the destination has them."""

    KIND: ClassVar[int] = 9
    moves: list[tuple[int, int]]
    """(message number, transfer number)"""
    destination: int
    destination_queue: int
    redrive: bool = False
    """Moved by a task: gets a new id and time.  Else a dead letter, which keeps them."""


class TransferDone(msgspec.Struct, array_like=True, gc=False):
    """The destination has them; the source lets go."""

    KIND: ClassVar[int] = 10
    destination: int
    transfers: list[int]


class TransferBack(msgspec.Struct, array_like=True, gc=False):
    """The destination is gone for good: the messages are back."""

    KIND: ClassVar[int] = 11
    destination: int
    transfers: list[int]


class MoveStarted(msgspec.Struct, array_like=True, gc=False):
    KIND: ClassVar[int] = 12
    task_id: str
    rate_per_second: int
    destination_arn: str | None
    total: int


class MoveEnded(msgspec.Struct, array_like=True, gc=False):
    """A move task reached its last state, or was told to stop (CANCELLING)."""

    KIND: ClassVar[int] = 13
    task_id: str
    status: str
    failure: str | None = None


class Quarantined(msgspec.Struct, array_like=True, gc=False):
    """The bodies of these messages are rotten: they are no longer delivered."""

    KIND: ClassVar[int] = 14
    numbers: list[int]


class Answered(msgspec.Struct, array_like=True, gc=False):
    """A send was answered with an earlier message, its twin: its retry token is to give that answer from now on."""

    KIND: ClassVar[int] = 15
    number: int
    retry: bytes
    partition: int = 0
    """The one that the message was sent to, where that was another one."""


class Forgotten(msgspec.Struct, array_like=True, gc=False):
    """These partitions are gone for good: what was transferred to them and from them need not be known any more."""

    KIND: ClassVar[int] = 16
    partitions: list[int]


class Never(msgspec.Struct, array_like=True, gc=False):
    """These transfers from another queue are not taken any more: their source keeps the messages."""

    KIND: ClassVar[int] = 17
    source: int
    transfers: list[int]
    below: int


class Adopted(msgspec.Struct, array_like=True, gc=False):
    """Tokens that another partition of the queue has handed over, as columns (:class:`backend.api.TokenColumns`)."""

    KIND: ClassVar[int] = 18
    origin: int
    retry: bool
    keys: bytes
    numbers: bytes
    expires: bytes
    digests: bytes = b""


class HandedOver(msgspec.Struct, array_like=True, gc=False):
    """All that a partition hands over by this version of the map is here."""

    KIND: ClassVar[int] = 19
    source: int
    map_version: int
    next_number: int
    """In a FIFO queue, messages here get higher numbers than the source's."""


class Emptied(msgspec.Struct, array_like=True, gc=False):
    """The partition drains, and was found empty."""

    KIND: ClassVar[int] = 20
    messages: int = 0


Record = (
    Message
    | Received
    | VisibilityChanged
    | Deleted
    | Purged
    | Configured
    | Dropped
    | TransferOut
    | TransferDone
    | TransferBack
    | MoveStarted
    | MoveEnded
    | Quarantined
    | Answered
    | Forgotten
    | Never
    | Adopted
    | HandedOver
    | Emptied
)
_KINDS: tuple[type[Any], ...] = (
    Message,
    TransferIn,
    Copied,
    Received,
    VisibilityChanged,
    Deleted,
    Purged,
    Configured,
    Dropped,
    TransferOut,
    TransferDone,
    TransferBack,
    MoveStarted,
    MoveEnded,
    Quarantined,
    Answered,
    Forgotten,
    Never,
    Adopted,
    HandedOver,
    Emptied,
)
_DECODERS: dict[int, Callable[[bytes], Any]] = {kind.KIND: msgspec.msgpack.Decoder(kind).decode for kind in _KINDS}
encode_head: Callable[[Record], bytes] = msgspec.msgpack.Encoder().encode

MESSAGE_KINDS = frozenset((Message.KIND, Copied.KIND, TransferIn.KIND))
"""Kinds whose body is a payload."""


class UnknownRecord(ValueError):
    """The head is not one this version can read: written by a later version, or damaged beyond its checksum."""


def decode_head(kind: int, head: bytes) -> Record:
    """The record with this kind and head.  Raises :class:`UnknownRecord`."""
    try:
        record: Record = _DECODERS[kind](head)
    except (KeyError, msgspec.MsgspecError) as error:
        raise UnknownRecord(
            f"record of kind {kind} with a head of {len(head)} bytes cannot be read: {error}"
        ) from error
    return record
