"""Usage records as JSON objects: the values of the records of the usage stream.

Each has the columns of its table in the lake, with the same names and values, and in ``table`` the table's name.
``docs/usage-records.md`` describes the form.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from billing.metering.storage import StorageRecord
from billing.metering.usage import COUNTS, UsageRecord

USAGE_TABLE: Final = "usage"
STORAGE_TABLE: Final = "storage"
"""Names of the tables, as of their folders in the lake."""

_encode = msgspec.json.Encoder().encode


class RecordKey(msgspec.Struct, frozen=True, gc=False):
    """Members of a value that say what it is about."""

    table: str
    account: str
    queue: str
    kind: str


read_key = msgspec.json.Decoder(RecordKey).decode
"""Read the key of a value.  Raises :class:`msgspec.DecodeError`."""


def encode_calls(record: UsageRecord) -> bytes:
    """Encode a record of calls."""
    key = record.key
    members: dict[str, Any] = {
        "table": USAGE_TABLE,
        "minute": datetime.fromtimestamp(record.minute_s, UTC),
        "account": key.account,
        "queue": key.queue,
        "queue_id": key.queue_id,
        "kind": key.kind,
        "action": key.action,
        "tags": dict(key.tags),
        **{name: record.counts[place] for place, name in enumerate(COUNTS)},
        "node": record.node,
        "boot": record.boot,
        "sequence": record.sequence,
        "slot": record.slot,
    }
    return _encode(members)


def encode_storage(record: StorageRecord) -> bytes:
    """Encode a record of storage."""
    key = record.key
    members: dict[str, Any] = {
        "table": STORAGE_TABLE,
        "minute": datetime.fromtimestamp(record.minute_s, UTC),
        "minutes": record.minutes,
        "account": key.account,
        "queue": key.queue,
        "queue_id": key.queue_id,
        "kind": key.kind,
        "partition": record.partition,
        "tags": dict(key.tags),
        "byte_milliseconds": record.byte_milliseconds,
        "messages": record.messages,
        "messages_max": record.messages_max,
        "in_flight": record.in_flight,
        "delayed": record.delayed,
        "oldest_age_ms": record.oldest_age_ms,
        "epoch": record.epoch,
        "sequence": record.sequence,
        "node": record.node,
    }
    return _encode(members)
