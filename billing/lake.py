"""The usage lake: Parquet files of usage records, in a folder or an object store.

``<lake>/usage/date=2026-11-21/hour=07/<name>.parquet``: each file holds records of minutes of that hour (UTC).  A file
appears whole or not at all, and never changes.  A record may be in several files; its id (node, boot, sequence, slot)
says that it is one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyarrow import fs, parquet

from billing.buffers import sync_folder
from billing.usage import COUNTS, UsageRecord

TABLE: Final = "usage"
"""The folder of the records; others beside it may hold what is made of them."""

_NAME = pa.dictionary(pa.int32(), pa.string())
_ADDED: Final = ("empty",)
"""Counts that earlier versions did not know: null in their records, and no column of their files."""
SCHEMA: Final = pa.schema(
    [
        pa.field("minute", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("account", _NAME, nullable=False),
        pa.field("queue", _NAME, nullable=False),
        pa.field("queue_id", pa.int64(), nullable=False),
        pa.field("kind", _NAME, nullable=False),
        pa.field("action", _NAME, nullable=False),
        pa.field("tags", pa.map_(pa.string(), pa.string()), nullable=False),
        *(pa.field(name, pa.int64(), nullable=name in _ADDED) for name in COUNTS),
        pa.field("node", _NAME, nullable=False),
        pa.field("boot", _NAME, nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("slot", pa.int32(), nullable=False),
    ]
)
"""The columns, described in ``docs/usage-records.md``.  Columns are only ever added."""


class LakeUnavailable(Exception):
    """The lake cannot be written now; the text says which and why."""


def table_of(records: Sequence[UsageRecord]) -> pa.Table:
    """The records as a table."""
    columns: dict[str, list[object]] = {
        "minute": [record.minute_s * 1000 for record in records],
        "account": [record.key.account for record in records],
        "queue": [record.key.queue for record in records],
        "queue_id": [record.key.queue_id for record in records],
        "kind": [record.key.kind for record in records],
        "action": [record.key.action for record in records],
        "tags": [list(record.key.tags) for record in records],
        **{
            name: [record.counts[at] if at < len(record.counts) else None for record in records]
            for at, name in enumerate(COUNTS)
        },
        "node": [record.node for record in records],
        "boot": [record.boot for record in records],
        "sequence": [record.sequence for record in records],
        "slot": [record.slot for record in records],
    }
    return pa.table([pa.array(columns[field.name], type=field.type) for field in SCHEMA], schema=SCHEMA)


def hour_of(minute_s: int) -> str:
    """The folder of an hour, below the table's."""
    return datetime.fromtimestamp(minute_s, UTC).strftime("date=%Y-%m-%d/hour=%H")


class Lake:
    """The lake at a URL of any of pyarrow's filesystems (``s3://bucket/path?region=…``, ``gs://``, ``file:///``), or in
    a local folder."""

    def __init__(self, url: str) -> None:
        """Raises :class:`ValueError` for a URL that no filesystem knows."""
        self.url = url
        try:
            if "://" in url:
                self._files, self._root = fs.FileSystem.from_uri(url)
            else:
                self._files, self._root = fs.LocalFileSystem(), os.path.abspath(url)
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{without_secrets(url)} is no place for a lake: {error}") from None

    def write(self, hour: str, name: str, table: pa.Table) -> str:
        """Store a table as a file of this hour, in place of one of the same name; returns its path in the lake.

        It is durable afterwards, as far as the filesystem promises that.  Raises :class:`LakeUnavailable`: then it may
        be there or not.
        """
        path = f"{TABLE}/{hour}/{name}.parquet"
        try:
            if isinstance(self._files, fs.LocalFileSystem):
                self._write_locally(Path(self._root) / path, table)
            else:  # an object is there when it is complete
                parquet.write_table(table, f"{self._root}/{path}", filesystem=self._files, compression="zstd")
        except (pa.ArrowException, OSError) as error:
            raise LakeUnavailable(f"the lake at {without_secrets(self.url)} cannot be written: {error}") from error
        return path

    def _write_locally(self, path: Path, table: pa.Table) -> None:
        made = [folder for folder in (path.parent, *path.parent.parents) if not folder.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.{os.getpid()}")  # Spark and pyarrow pass over such names
        try:
            with open(aside, "wb") as file:
                parquet.write_table(table, file, compression="zstd")
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)
        for folder in (path.parent, *(folder.parent for folder in made)):
            sync_folder(folder)


def without_secrets(url: str) -> str:
    """A URL as it may be told: without a password or key, and without options."""
    scheme, found, rest = url.partition("://")
    if not found:
        return url
    place = rest.partition("?")[0]
    host, slash, path = place.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"
