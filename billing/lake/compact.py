"""``python -m billing.lake.compact [LAKE]``: merge the many small files of each hour into one.

For an hour that has been over for a while, the records of its small files are written to a file ``merged-…``, whose
metadata lists its sources.  The small files stay for hours, so that readers that have listed them can still read them;
then they are removed.  While both exist, the ids of the records identify duplicates.

A crash or two concurrent runs lose nothing: a file is removed only if a merged file lists it as a source, and the next
run finishes what was started.  New files are left alone, and so are files with columns that this version does not know.
In memory are one source file and the merged file that is being written.

Old temporary files of killed processes are removed.

If LAKE is left out, ``HOLDFAST_USAGE_LAKE`` names it.  Exit codes: 0 done, 1 the lake is unavailable (try again), 2
wrong arguments.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
from pyarrow import parquet

from billing.lake import lake as calls
from billing.lake import storage_table as storage
from billing.lake.command import run_on_lake
from billing.lake.lake import ASIDE, Lake, LakeFile

logger = logging.getLogger("holdfast.usage")

TABLES: Final = {calls.TABLE: calls.SCHEMA, storage.TABLE: storage.SCHEMA}
DAYS: Final = 8
"""Number of days that are scanned; files of earlier days stay as they are."""
HOUR: Final = timedelta(hours=1)
OVER: Final = timedelta(hours=3)
"""Time from the end of an hour to the merge of its files."""
YOUNG: Final = timedelta(hours=1)
"""Minimum age of a file that is merged."""
KEPT: Final = timedelta(hours=6)
"""Time that the small files are kept beside the merged file."""
ABANDONED: Final = timedelta(days=1)
"""Age from which a temporary file counts as abandoned."""
SMALL_BYTES: Final = 16 << 20
MERGED_BYTES: Final = 64 << 20
"""Maximum total size of the files that are merged into one."""
ROWS_AT_ONCE: Final = 100_000
PREFIX: Final = "merged-"

_KEY: Final = b"holdfast.merged"


class Merged(msgspec.Struct, frozen=True):
    """Metadata of a merged file."""

    rows: int
    names: tuple[str, ...]
    """Names of its source files, in the same folder."""


class Compacted(NamedTuple):
    """Result of a run."""

    written: int
    """Number of merged files written."""
    removed: int
    """Number of small files removed."""


def compact(lake: Lake, now: datetime) -> Compacted:
    """Merge the small files of hours that are over, and remove those that were merged long ago.

    Raises :class:`LakeUnavailable`; it may be run again at any time.
    """
    written = removed = 0
    for table, schema in TABLES.items():
        for days in range(DAYS):
            day = (now - timedelta(days=days)).date()
            by_hour: defaultdict[str, list[LakeFile]] = defaultdict(list)
            for file in lake.files(f"{table}/date={day}", hidden=True):
                folder, _, name = file.path.rpartition("/")
                if not name.startswith((".", "_")):
                    by_hour[folder].append(file)
                elif name.startswith(ASIDE) and file.modified + ABANDONED <= now:
                    lake.remove(file.path)
            for folder, files in sorted(by_hour.items()):
                hour = _hour(folder)
                if hour is not None and hour + HOUR + OVER <= now:
                    made, gone = _compact_hour(lake, folder, files, schema, now)
                    written, removed = written + made, removed + gone
    return Compacted(written, removed)


def _hour(folder: str) -> datetime | None:
    """Return the start of the hour that a folder is for; None: it is not such a folder."""
    try:
        return datetime.strptime(folder.partition("/")[2], "date=%Y-%m-%d/hour=%H").replace(tzinfo=UTC)
    except ValueError:
        return None


def _compact_hour(lake: Lake, folder: str, files: list[LakeFile], schema: pa.Schema, now: datetime) -> tuple[int, int]:
    small = {name: file for file in files if not (name := file.path.rpartition("/")[2]).startswith(PREFIX)}
    if not small:
        return 0, 0
    removed = 0
    covered: set[str] = set()
    for file in files:
        if not file.path.rpartition("/")[2].startswith(PREFIX):
            continue
        merged = _sources(lake, file.path)
        if merged is None:
            continue
        covered.update(merged.names)
        if file.modified + KEPT <= now:
            for name in merged.names:
                if name in small:
                    lake.remove(f"{folder}/{name}")
                    removed += 1
    candidates = [
        file
        for name, file in sorted(small.items())
        if name not in covered and file.size_bytes <= SMALL_BYTES and file.modified + YOUNG <= now
    ]
    return sum(_merge(lake, folder, group, schema) for group in _groups(candidates)), removed


def _sources(lake: Lake, path: str) -> Merged | None:
    """Read the sources of a merged file; None: they are not stated or the file is incomplete, so do not rely on it."""
    try:
        footer = lake.footer(path)
    except pa.ArrowException as error:
        logger.error("%s cannot be read, so its source files are kept: %s", path, error)
        return None
    stored = None if footer is None else (footer.metadata or {}).get(_KEY)
    if footer is None or stored is None:
        logger.error("%s does not name its source files, so they are kept", path)
        return None
    merged = msgspec.json.decode(stored, type=Merged)
    if merged.rows != footer.num_rows:
        logger.error("%s has %d records of %d, so its source files are kept", path, footer.num_rows, merged.rows)
        return None
    return merged


def _groups(files: Iterable[LakeFile]) -> Iterator[list[LakeFile]]:
    """Group files that become one file each: at least two a group."""
    group: list[LakeFile] = []
    size = 0
    for file in files:
        if group and size + file.size_bytes > MERGED_BYTES:
            if len(group) > 1:
                yield group
            group, size = [], 0
        group.append(file)
        size += file.size_bytes
    if len(group) > 1:
        yield group


def _merge(lake: Lake, folder: str, group: list[LakeFile], schema: pa.Schema) -> int:
    """Write the records of these files as one file; returns the number of files written: one or zero."""
    names: list[str] = []
    rows = 0
    target = pa.BufferOutputStream()
    with parquet.ParquetWriter(target, schema, compression="zstd") as writer:
        some: list[pa.Table] = []
        for file in group:
            fitted = _read(lake, file.path, schema)
            if fitted is None:
                continue
            names.append(file.path.rpartition("/")[2])
            rows += len(fitted)
            some.append(fitted)
            if sum(map(len, some)) >= ROWS_AT_ONCE:
                writer.write_table(pa.concat_tables(some))
                some = []
        if some:
            writer.write_table(pa.concat_tables(some))
        writer.add_key_value_metadata({_KEY: msgspec.json.encode(Merged(rows, tuple(names)))})
    if len(names) < 2:
        return 0
    digest = sha256("\n".join(names).encode()).hexdigest()[:32]
    lake.write_bytes(f"{folder}/{PREFIX}{digest}.parquet", target.getvalue())
    return 1


def _read(lake: Lake, path: str, schema: pa.Schema) -> pa.Table | None:
    """Read a file; None: leave it alone, for it is damaged, merged by another run, or has other columns."""
    try:
        table = lake.read_table(path)
    except FileNotFoundError:  # merged by another run
        return None
    except pa.ArrowException as error:
        logger.error("%s cannot be read, and is not merged: %s", path, error)
        return None
    if set(table.column_names) != set(schema.names):  # of a later version
        return None
    return table.select(schema.names).cast(schema)


def main(arguments: list[str]) -> int:
    def work(lake: Lake) -> str:
        done = compact(lake, datetime.fromtimestamp(time.time(), UTC))
        return f"{done.written} merged files were written, {done.removed} merged files were removed"

    return run_on_lake(arguments, "billing.lake.compact LAKE", work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
