"""Counted quantities of calls, and the usage record.

A *key* names the calls that are counted together: tenant, queue, kind and action.  For each key and minute there is one
*record* for each buffer that counted it, with a unique id.  So duplicates of a record are recognized, and the sum over
all ids is exact.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

Kind = Literal["standard", "fair", "fifo", "stream", "topic", "delivery_sqs", "delivery_http", ""]
"""Kind of the queue or call: ``fair`` is a send with a message group to a standard queue; ``stream`` is a call of
Kafka's protocol; ``topic`` is a call of SNS's protocol; ``delivery_sqs`` and ``delivery_http`` are deliveries of a
topic, to queues and by HTTP; "" if there is no queue."""

COUNTS: Final = ("calls", "refused", "throttled", "failed", "chunks", "messages", "bytes_in", "bytes_out", "empty")
"""Counters of a key, in this order:

* ``calls``: answered with success;
* ``refused``: answered with an error of the caller (4xx), other than
* ``throttled``: refused by a limit;
* ``failed``: answered with an error of the service (5xx), which is not billed;
* ``chunks``: 64 KiB chunks of successful calls, rounded up: a batch by its total size, and at least one;
* ``messages``: messages or records that successful calls stored, handed out, deleted or changed;
* ``bytes_in``, ``bytes_out``: bytes of the bodies of requests and answers, whatever the result of the call; of streams
  bytes of the batches that were stored, and of those in answers;
* ``empty``: successful calls that concerned no message, such as a receive that returned none.

A delivery of a topic is no call: it counts in ``messages``, ``chunks`` (its 64 KiB chunks) and, by HTTP, ``bytes_out``;
one that failed for good counts in ``empty`` alone.

Only ever extended at the end.
"""
CALLS, REFUSED, THROTTLED, FAILED, CHUNKS, MESSAGES, BYTES_IN, BYTES_OUT, EMPTY = range(len(COUNTS))

CHUNK_BYTES: Final = 65_536
"""Each 64 KB chunk of a payload is billed as one request.  Source: Amazon SQS pricing."""


class UsageKey(msgspec.Struct, frozen=True, array_like=True):
    """Key of calls that are counted together.  Fields are only ever added at the end, with a default."""

    account: str
    """Account of 12 digits that pays: the owner of the queue, or of a topic that delivers, or else the caller."""
    queue: str
    """Name of the queue, stream or topic; "" for calls that concern none, and for topics of another account."""
    queue_id: int
    """Incarnation of the queue, stream or topic, whose ids are in one number space; 0 for none."""
    kind: Kind
    action: str
    """Action, by its name in SQS; of streams, by its name in Kafka's protocol; of topics, ``sns:`` and its name in SNS,
    or ``delivery:`` and the protocol."""
    tags: tuple[tuple[str, str], ...] = ()
    """Tags of the queue, stream or topic at the time, by name."""


class UsageRecord(msgspec.Struct, frozen=True):
    """Counts of one buffer for one key."""

    node: str
    boot: str
    """16 hexadecimal digits, drawn when the counting process started."""
    sequence: int
    """Number of the buffer, from 1 in each boot."""
    slot: int
    """Index of the key in the buffer, from 0.  These four are the record's id."""
    minute_s: int
    """Start of the counted minute, in seconds since the Unix epoch."""
    key: UsageKey
    counts: tuple[int, ...]
    """Counts in the order of :data:`COUNTS`."""


def chunks_of(size_bytes: int) -> int:
    """Number of chunks that a payload is billed as."""
    return -(-size_bytes // CHUNK_BYTES) or 1
