"""What is counted of calls, and as what it is recorded.

A *key* says whose calls are counted together: tenant, queue, kind and action.  For each key and minute there is one
*record* for each buffer that counted it, with an id that no other record ever has.  So a record that arrives twice is
known as one, and the sum over all ids is what was counted.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

Kind = Literal["standard", "fair", "fifo", ""]
"""Of the queue, or of the call: ``fair`` is a send with a message group to a standard queue; "" is no queue's."""

COUNTS: Final = ("calls", "refused", "throttled", "failed", "chunks", "messages", "bytes_in", "bytes_out", "empty")
"""What is counted for a key, in this order:

* ``calls``: answered with success;
* ``refused``: answered with an error that the caller can mend (4xx), other than
* ``throttled``: refused by a limit;
* ``failed``: answered with an error of the service (5xx), which costs nobody anything;
* ``chunks``: of 64 KiB, begun ones too, of what successful calls carried: a batch by its total, and at least one;
* ``messages``: that successful calls stored, handed out, deleted or changed;
* ``bytes_in``, ``bytes_out``: of the bodies of requests and answers, whatever became of the call;
* ``empty``: successful calls about messages that came to none, such as a receive that found nothing.

Only ever added to, at the end.
"""
CALLS, REFUSED, THROTTLED, FAILED, CHUNKS, MESSAGES, BYTES_IN, BYTES_OUT, EMPTY = range(len(COUNTS))

CHUNK_BYTES: Final = 65_536
"""Each 64 KB chunk of a payload is billed as one request.  Source: Amazon SQS pricing."""


class UsageKey(msgspec.Struct, frozen=True, array_like=True):
    """Whose calls are counted together.  Fields are only ever added at the end, with a default."""

    account: str
    """12 digits: who pays, the owner of the queue or else the caller."""
    queue: str
    """Its name; "" for calls that are about no queue."""
    queue_id: int
    """Its incarnation; 0 for none."""
    kind: Kind
    action: str
    """As SQS calls it."""
    tags: tuple[tuple[str, str], ...] = ()
    """The queue's tags at the time, by name."""


class UsageRecord(msgspec.Struct, frozen=True):
    """What one buffer counted for one key."""

    node: str
    boot: str
    """16 hexadecimal digits, drawn at the start of the process that counted."""
    sequence: int
    """Of the buffer, from 1 in each boot."""
    slot: int
    """Of the key in the buffer, from 0.  These four are the record's id."""
    minute_s: int
    """When the minute began that was counted, seconds since the Unix epoch."""
    key: UsageKey
    counts: tuple[int, ...]
    """As :data:`COUNTS`; fewer from a version that counted fewer."""


def chunks_of(size_bytes: int) -> int:
    """How many chunks a payload is billed as."""
    return -(-size_bytes // CHUNK_BYTES) or 1
