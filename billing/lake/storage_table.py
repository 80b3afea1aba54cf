"""Records of storage as a table of the lake; ``docs/usage-records.md`` describes the columns."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Final

import pyarrow as pa

from billing.metering.storage import StorageRecord

TABLE: Final = "storage"
"""Folder of the records in the lake."""

_NAME = pa.dictionary(pa.int32(), pa.string())
SCHEMA: Final = pa.schema(
    [
        pa.field("minute", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("minutes", pa.int32(), nullable=False),
        pa.field("account", _NAME, nullable=False),
        pa.field("queue", _NAME, nullable=False),
        pa.field("queue_id", pa.int64(), nullable=False),
        pa.field("kind", _NAME, nullable=False),
        pa.field("partition", pa.int64(), nullable=False),
        pa.field("tags", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("byte_milliseconds", pa.int64(), nullable=False),
        pa.field("messages", pa.int64(), nullable=False),
        pa.field("messages_max", pa.int64(), nullable=False),
        pa.field("in_flight", pa.int64(), nullable=False),
        pa.field("delayed", pa.int64(), nullable=False),
        pa.field("oldest_age_ms", pa.int64(), nullable=False),
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("node", _NAME, nullable=False),
    ]
)
"""Columns of the table.  Columns are only ever added."""


def table_of(records: Sequence[StorageRecord]) -> pa.Table:
    """Convert records to a table."""
    keys = [record.key for record in records]
    columns: dict[str, list[object]] = {
        "minute": [record.minute_s * 1000 for record in records],
        "account": [key.account for key in keys],
        "queue": [key.queue for key in keys],
        "queue_id": [key.queue_id for key in keys],
        "kind": [key.kind for key in keys],
        "tags": [list(key.tags) for key in keys],
    }
    arrays = [
        pa.array(columns.get(field.name) or [getattr(record, field.name) for record in records], type=field.type)
        for field in SCHEMA
    ]
    return pa.table(arrays, schema=SCHEMA)


def name_of(records: Sequence[StorageRecord]) -> str:
    """Name of a file with these records: a hash, so the same records always get the same name."""
    digest = sha256()
    for record in records:
        digest.update(f"{record.partition}\0{record.minute_s}\0{record.epoch}\0{record.sequence}\n".encode())
    return digest.hexdigest()[:32]
