"""Records of a queue partition's journal.

A record has a head, which the fold needs, and for messages a body, which the fold does not need: the payload stays on
disk. Heads are MessagePack arrays: a later version may append members with defaults, but never remove or move one. The
frame around a record (version, shard, partition, epoch, key id, time, checksums) is :mod:`backend.journal.rows`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

from backend.api import PartitionSettings


class Message(msgspec.Struct, array_like=True, gc=False):
    """A message was stored: sent, or transferred from another queue.  Has a body, the payload."""

    KIND: ClassVar[int] = 1
    number: int
    sent_ms: int
    """Start of the retention period: a dead letter of a standard queue keeps the time it was first sent."""
    deliver_ms: int = 0
    group: str | None = None
    token: bytes | None = None
    message_id: bytes | None = None
    """16 bytes if another queue or the sender assigned the id; None: the id is computed from the number."""
    origin: str | None = None
    """ARN of the source queue, if this is a dead letter."""
    source: int = 0
    """Transferred messages: source partition, transfer number, and the acked-below mark (all lower numbers are
    done).
    """
    transfer: int = 0
    acked_below: int = 0
    retry: bytes | None = None
    """The retry token, 16 bytes, and a digest of its call, 16 bytes."""


class TransferIn(Message, array_like=True, gc=False):
    """A dead letter was accepted, with the receives counted before."""

    KIND: ClassVar[int] = 21
    receives: int = 0
    first_received_ms: int = 0


class Delivered(TransferIn, array_like=True, gc=False):
    """A message of a subscription was accepted: a delivery of a publication, or later a dead letter of it."""

    KIND: ClassVar[int] = 22
    subscription: bytes = b""
    raw: bool = False
    publication_number: int = 0
    """Number of the publication in the queue of its FIFO topic; 0: none, or written by an earlier release."""


class MessagePublished(Message, array_like=True, gc=False):
    """A publication was stored: a message that is not received here but delivered to other queues.

    Its deliveries are columns: index i of each belongs to the same delivery.  The fold numbers their transfers.  The
    body is the payload; a publication without deliveries has none.
    """

    KIND: ClassVar[int] = 23
    partitions: bytes = b""
    """Destinations, 8 bytes each, little-endian, like the next column."""
    queues: bytes = b""
    subscriptions: bytes = b""
    """16 bytes each."""
    raw: bytes = b""
    """1 byte each."""
    tokens: bytes = b""
    """16 bytes each, deduplication ids in the destinations; empty: none.  The next column: other ids to look up."""
    also: bytes = b""


class PublicationCopied(MessagePublished, array_like=True, gc=False):
    """Compaction wrote a publication again."""

    KIND: ClassVar[int] = 24


class DuplicateIn(msgspec.Struct, array_like=True, gc=False):
    """A delivery was accepted, and not stored: its deduplication id belongs to an earlier message."""

    KIND: ClassVar[int] = 25
    source: int
    transfer: int
    acked_below: int


class Rerouted(msgspec.Struct, array_like=True, gc=False):
    """Deliveries that a destination rejected go to another partition of its queue, as new transfers."""

    KIND: ClassVar[int] = 26
    destination: int
    transfers: list[int]
    new_destination: int
    destination_queue: int


class Copied(Message, array_like=True, gc=False):
    """Compaction wrote a live message again, so that its old segment can be deleted."""

    KIND: ClassVar[int] = 2
    subscription: bytes = b""
    """As in :class:`Delivered`; empty: the message is not of a subscription."""
    raw: bool = False
    publication_number: int = 0


class MessagesReceived(msgspec.Struct, array_like=True, gc=False):
    """Messages were claimed until a time."""

    KIND: ClassVar[int] = 3
    numbers: list[int]
    until_ms: int
    attempt: str | None = None


class VisibilityChanged(msgspec.Struct, array_like=True, gc=False):
    """Claims now last until a time; a time not later than the record's own ends the claim."""

    KIND: ClassVar[int] = 4
    changes: list[tuple[int, int]]
    attempt: str | None = None
    """True for a repeated receive: the change belongs to its attempt and does not end it."""
    unseen: bool = False
    """The claims end because the messages reached no client: those receives do not count."""


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
    """True: moved by a task, with a new id and time.  False: a dead letter, which keeps them."""


class TransferDone(msgspec.Struct, array_like=True, gc=False):
    """The destination has the messages; the source drops them."""

    KIND: ClassVar[int] = 10
    destination: int
    transfers: list[int]


class TransferBack(msgspec.Struct, array_like=True, gc=False):
    """The transfers were rejected, or the destination is gone for good: the messages are visible again."""

    KIND: ClassVar[int] = 11
    destination: int
    transfers: list[int]


class MoveTaskStarted(msgspec.Struct, array_like=True, gc=False):
    KIND: ClassVar[int] = 12
    task_id: str
    rate_per_second: int
    destination_arn: str | None
    total: int


class MoveTaskEnded(msgspec.Struct, array_like=True, gc=False):
    """A move task reached its final state, or was cancelled (CANCELLING)."""

    KIND: ClassVar[int] = 13
    task_id: str
    status: str
    failure: str | None = None


class Quarantined(msgspec.Struct, array_like=True, gc=False):
    """The bodies of these messages are corrupt: they are no longer delivered."""

    KIND: ClassVar[int] = 14
    numbers: list[int]


class RetryAnswered(msgspec.Struct, array_like=True, gc=False):
    """A send was answered with an earlier message: its retry token gives that answer from now on."""

    KIND: ClassVar[int] = 15
    number: int
    retry: bytes
    partition: int = 0
    """Partition to which the message was sent, if it is another one."""


class Forgotten(msgspec.Struct, array_like=True, gc=False):
    """These partitions are gone for good: transfers to and from them are forgotten."""

    KIND: ClassVar[int] = 16
    partitions: list[int]


class TransfersRejected(msgspec.Struct, array_like=True, gc=False):
    """These transfers from another queue are rejected for good: their source keeps the messages."""

    KIND: ClassVar[int] = 17
    source: int
    transfers: list[int]
    acked_below: int


class TokensImported(msgspec.Struct, array_like=True, gc=False):
    """Tokens that another partition of the queue has handed over, as columns (:class:`backend.api.TokenColumns`)."""

    KIND: ClassVar[int] = 18
    origin: int
    retry: bool
    keys: bytes
    numbers: bytes
    expires: bytes
    digests: bytes = b""


class HandedOver(msgspec.Struct, array_like=True, gc=False):
    """All tokens that a partition hands over under this version of the map have arrived."""

    KIND: ClassVar[int] = 19
    source: int
    map_version: int
    next_number: int
    """In a FIFO queue, messages here get higher numbers than the source's."""


class Emptied(msgspec.Struct, array_like=True, gc=False):
    """The draining partition was found empty."""

    KIND: ClassVar[int] = 20
    messages: int = 0


Record = (
    Message
    | MessagesReceived
    | VisibilityChanged
    | Deleted
    | Purged
    | Configured
    | Dropped
    | TransferOut
    | TransferDone
    | TransferBack
    | MoveTaskStarted
    | MoveTaskEnded
    | Quarantined
    | RetryAnswered
    | Forgotten
    | TransfersRejected
    | TokensImported
    | HandedOver
    | Emptied
    | DuplicateIn
    | Rerouted
)
_KINDS: tuple[type[Any], ...] = (
    Message,
    TransferIn,
    Copied,
    MessagesReceived,
    VisibilityChanged,
    Deleted,
    Purged,
    Configured,
    Dropped,
    TransferOut,
    TransferDone,
    TransferBack,
    MoveTaskStarted,
    MoveTaskEnded,
    Quarantined,
    RetryAnswered,
    Forgotten,
    TransfersRejected,
    TokensImported,
    HandedOver,
    Emptied,
    Delivered,
    MessagePublished,
    PublicationCopied,
    DuplicateIn,
    Rerouted,
)
_DECODERS: dict[int, Callable[[bytes], Any]] = {kind.KIND: msgspec.msgpack.Decoder(kind).decode for kind in _KINDS}
encode_head: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode

MESSAGE_KINDS = frozenset(
    (Message.KIND, Copied.KIND, TransferIn.KIND, Delivered.KIND, MessagePublished.KIND, PublicationCopied.KIND)
)
"""Kinds whose body is a payload."""


class UnknownRecord(ValueError):
    """The head is unreadable for this version: written by a later version, or damaged despite a correct checksum."""


def subscription_of(message: Message) -> tuple[bytes | None, bool, int]:
    """Return the subscription of a message, whether its delivery is raw, and the number of its publication.

    (None, False, 0): the message is not of a subscription.
    """
    if isinstance(message, Delivered | Copied) and message.subscription:
        return message.subscription, message.raw, message.publication_number
    return None, False, 0


def decode_head(kind: int, head: bytes) -> Record:
    """Return the record with this kind and head.  Raises :class:`UnknownRecord`."""
    try:
        record: Record = _DECODERS[kind](head)
    except (KeyError, msgspec.MsgspecError) as error:
        raise UnknownRecord(
            f"record of kind {kind} with a head of {len(head)} bytes cannot be read: {error}"
        ) from error
    return record
