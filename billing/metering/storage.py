"""Record of what a queue or a stream stores.

A record states how many bytes one partition of a queue or stream stored for how long: in a minute in which something
changed, or in several minutes in which nothing did.  Its id is (partition, minute).  An old and a new owner of the
partition may both write a record with one id; the one with the highest epoch counts.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

StorageKind = Literal["standard", "fifo", "stream", "topic"]
"""Kind of the queue; ``stream``: a stream; ``topic``: the publications of a topic that are to be delivered."""

MINUTE_SECONDS: Final = 60
MINUTE_MS: Final = 60_000
HOUR_SECONDS: Final = 3600
BYTE_MS_MAX: Final = 1 << 62
"""Maximum byte-milliseconds of one record, which has 64 bits for them."""


class StorageKey(msgspec.Struct, frozen=True, array_like=True):
    """Owner and queue, or stream, of a partition.  Fields are only ever added at the end, with a default."""

    account: str
    """Account of 12 digits that owns the queue or stream."""
    queue: str
    """Name of the queue, stream or topic."""
    queue_id: int
    """Incarnation of the queue, stream or topic, whose ids are in one number space."""
    kind: StorageKind
    tags: tuple[tuple[str, str], ...] = ()
    """Tags of the queue, stream or topic, by name."""


class StorageRecord(msgspec.Struct, frozen=True):
    """Bytes that one partition stored."""

    node: str
    partition: int
    minute_s: int
    """Start of the first minute, in seconds since the Unix epoch."""
    minutes: int
    """Number of minutes covered, all of one hour."""
    key: StorageKey
    byte_milliseconds: int
    messages: int
    """Messages at the end, in any state; records of a stream."""
    messages_max: int
    """Maximum number of messages."""
    in_flight: int
    delayed: int
    oldest_age_ms: int
    """Age of the oldest message or batch at the end; 0 if nothing is stored."""
    epoch: int
    """Epoch of the partition's owner."""
    sequence: int
    """Counter of the minutes that one process has recorded."""
