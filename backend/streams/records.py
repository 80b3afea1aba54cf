"""Records of streams and of consumer groups in the journal.

They follow the rules of the queue's records (:mod:`backend.engine.records`): a head as a MessagePack array, of which a
later version may append members with defaults but never remove or move one; a batch also has a body, the payload.
Kinds of streams begin at 32, those of groups at 48.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

import msgspec

from backend.engine.records import UnknownRecord
from backend.stream_api import (
    NO_EPOCH,
    NO_PRODUCER,
    NO_TIMESTAMP,
    CommittedOffset,
    GroupSettings,
    StreamSettings,
    TopicPartition,
)

STREAM_KINDS = range(32, 48)
GROUP_KINDS = range(48, 64)


# --- streams ------------------------------------------------------------------------------------------


class StreamConfigured(msgspec.Struct, array_like=True, gc=False):
    """The partition was opened, or its topic's settings changed."""

    KIND: ClassVar[int] = 32
    settings: StreamSettings


class Batches(msgspec.Struct, array_like=True, gc=False):
    """A batch of records was appended.  Has a body, the payload."""

    KIND: ClassVar[int] = 33
    base_offset: int
    record_count: int
    """Number of offsets; the last sequence is the base sequence plus this minus one."""
    leader_epoch: int
    first_timestamp: int = NO_TIMESTAMP
    max_timestamp: int = NO_TIMESTAMP
    append_ms: int = NO_TIMESTAMP
    """Time of the append if that is the batch's timestamp; then also its first and largest one."""
    attributes: int = 0
    producer_id: int = NO_PRODUCER
    producer_epoch: int = NO_EPOCH
    base_sequence: int = -1
    client_bytes: int = 0
    """Length of the batch as the client sent it."""

    @property
    def end_offset(self) -> int:
        """Offset behind the batch."""
        return self.base_offset + self.record_count


class Bound(msgspec.Struct, array_like=True, gc=False):
    """Batches are in an extent, synced: from the log's tail up to ``through``, without it."""

    KIND: ClassVar[int] = 34
    epoch: int
    number: int
    """With the partition and ``epoch``, the extent's id."""
    through: int
    length: int
    """Length of the extent; bytes behind it do not count."""
    lost: int = 0
    """Number of batches whose payload could not be read in the log: the extent has their offsets only."""


class Trimmed(msgspec.Struct, array_like=True, gc=False):
    """Records below an offset are gone: by retention, or by request."""

    KIND: ClassVar[int] = 35
    log_start: int


class StreamDropped(msgspec.Struct, array_like=True, gc=False):
    """The topic was deleted."""

    KIND: ClassVar[int] = 36
    stream_id: int


# --- groups -------------------------------------------------------------------------------------------


class StoredMember(msgspec.Struct, array_like=True, frozen=True):
    """A member of a generation, with its assignment."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""


class GroupConfigured(msgspec.Struct, array_like=True):
    """The group was created, or its settings changed."""

    KIND: ClassVar[int] = 48
    settings: GroupSettings


class GenerationStarted(msgspec.Struct, array_like=True):
    """A generation has its assignments; or has no members; or a static member has another id in it than before."""

    KIND: ClassVar[int] = 49
    generation: int
    protocol_type: str | None
    protocol: str | None
    leader: str | None
    members: tuple[StoredMember, ...] = ()


class OffsetsCommitted(msgspec.Struct, array_like=True):
    """Offsets were committed."""

    KIND: ClassVar[int] = 50
    topics: list[tuple[bytes, str, list[tuple[int, CommittedOffset]]]]
    """(topic id, topic, [(partition, offset)])"""


class OffsetsDeleted(msgspec.Struct, array_like=True):
    """Committed offsets were deleted, or have expired."""

    KIND: ClassVar[int] = 51
    offsets: list[TopicPartition]


class GroupDropped(msgspec.Struct, array_like=True, gc=False):
    """The group was deleted, or had neither members nor offsets any more."""

    KIND: ClassVar[int] = 52
    group_id: int


StreamRecord: TypeAlias = StreamConfigured | Batches | Bound | Trimmed | StreamDropped
GroupRecord: TypeAlias = GroupConfigured | GenerationStarted | OffsetsCommitted | OffsetsDeleted | GroupDropped

_KINDS: tuple[type[Any], ...] = (
    StreamConfigured,
    Batches,
    Bound,
    Trimmed,
    StreamDropped,
    GroupConfigured,
    GenerationStarted,
    OffsetsCommitted,
    OffsetsDeleted,
    GroupDropped,
)
_DECODERS: dict[int, Callable[[bytes], Any]] = {kind.KIND: msgspec.msgpack.Decoder(kind).decode for kind in _KINDS}
encode_head: Callable[[StreamRecord | GroupRecord], bytes] = msgspec.msgpack.Encoder().encode


def decode_head(kind: int, head: bytes) -> StreamRecord | GroupRecord:
    """Return the record with this kind and head.  Raises :class:`UnknownRecord`."""
    try:
        record: StreamRecord | GroupRecord = _DECODERS[kind](head)
    except (KeyError, msgspec.MsgspecError) as error:
        raise UnknownRecord(
            f"record of kind {kind} with a head of {len(head)} bytes cannot be read: {error}"
        ) from error
    return record
