"""What is recorded of the messages that a queue stores.

A record says of one partition of a queue how many bytes it stored for how long, in a minute in which something changed,
or in several minutes in which nothing did.  Its id is (partition, minute); of several records with one id, of an old
and of a new owner of the partition, the one with the highest epoch counts.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

StorageKind = Literal["standard", "fifo"]

MINUTE_SECONDS: Final = 60
MINUTE_MS: Final = 60_000
HOUR_SECONDS: Final = 3600
BYTE_MS_MOST: Final = 1 << 62
"""In one record, which has 64 bits for it."""


class StorageKey(msgspec.Struct, frozen=True, array_like=True):
    """Whose partition it is.  Fields are only ever added at the end, with a default."""

    account: str
    """12 digits: who owns the queue."""
    queue: str
    """Its name."""
    queue_id: int
    """Its incarnation."""
    kind: StorageKind
    tags: tuple[tuple[str, str], ...] = ()
    """The queue's, by name."""


class StorageRecord(msgspec.Struct, frozen=True):
    """What one partition stored."""

    node: str
    partition: int
    minute_s: int
    """When its first minute began, seconds since the Unix epoch."""
    minutes: int
    """How many it stands for, all of one hour."""
    key: StorageKey
    byte_milliseconds: int
    messages: int
    """At the end, in whatever state."""
    messages_most: int
    """That were seen in it."""
    in_flight: int
    delayed: int
    oldest_age_ms: int
    """At the end; 0 where nothing is stored."""
    epoch: int
    """Of the partition's owner."""
    sequence: int
    """Counts the minutes that one process has recorded."""
