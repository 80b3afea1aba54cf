"""``python -m billing.lake.upload SPOOL [LAKE]``: upload finished spool files to the lake.

Reads the finished call buffers and storage files below the folder ``SPOOL``, writes their records as Parquet files to
``LAKE``, and removes a file when all of its records are uploaded.  A run that was killed is repeated: the same records
with the same ids.  While the lake is unavailable the files wait.

It runs as a process of its own, started from time to time, so that the Parquet library takes neither memory nor time
from serving processes.  If ``LAKE`` is left out, ``HOLDFAST_USAGE_LAKE`` names it.  Exit codes: 0 done, 1 the lake or
the spool is unavailable (try again), 2 wrong arguments.
"""

from __future__ import annotations

import logging
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from billing.lake import storage_table
from billing.lake.command import run_on_lake
from billing.lake.lake import Lake, hour_of, table_of
from billing.metering.buffers import BufferDamaged, Finished, clear, finished
from billing.metering.spool import LOST
from billing.metering.storage import StorageRecord
from billing.metering.storage_file import FinishedStorage, finished_storage
from billing.metering.usage import UsageRecord

logger = logging.getLogger("holdfast.usage")

BUFFERS_AT_ONCE: Final = 256
"""Maximum number of buffers open at a time."""
BYTES_AT_ONCE: Final = 16 << 20
"""Total size of open buffers from which no further one is opened.  In memory they take about ten times as much."""
STORAGE_AT_ONCE: Final = 50_000
"""Maximum records of storage in memory, and in a file of the lake."""
DAMAGED: Final = ".damaged"


class UploadResult(NamedTuple):
    """Result of an upload."""

    buffers: int
    """Number of spool files, of both kinds."""
    records: int
    files: int
    damaged: int
    """Number of these that could not be read and were set aside."""

    def and_(self, more: UploadResult) -> UploadResult:
        return UploadResult(*(one + other for one, other in zip(self, more, strict=True)))


def upload(spool: Path, lake: Lake) -> UploadResult:
    """Upload all finished files below ``spool``.

    Raises :class:`LakeUnavailable` and :class:`OSError`; remaining files wait for the next run.
    """
    clear(spool)
    return upload_calls(spool, lake).and_(upload_storage(spool, lake))


def upload_calls(spool: Path, lake: Lake) -> UploadResult:
    """Upload only the call buffers, as :func:`upload` does."""
    buffers = records = files = damaged = 0
    found = finished(spool)
    while True:
        with ExitStack() as stack:
            group = _group(found, stack)
            if not group:
                return UploadResult(buffers, records, files, damaged)
            by_hour: defaultdict[str, list[UsageRecord]] = defaultdict(list)
            whole: list[Finished] = []
            for buffer in group:
                try:
                    counted = buffer.records()
                except BufferDamaged as error:
                    _set_aside(buffer.path, error)
                    damaged += 1
                    continue
                for what in buffer.lost:
                    logger.error("%s: of %s cannot be read %s", LOST, buffer.path, what)
                whole.append(buffer)
                records += len(counted)
                for record in counted:
                    by_hour[hour_of(record.minute_s)].append(record)
            for hour, of_hour in sorted(by_hour.items()):
                lake.write(hour, _name(of_hour), table_of(of_hour))
                files += 1
            for buffer in whole:
                buffer.remove()
                buffers += 1


def _group(found: Iterator[Finished], stack: ExitStack) -> list[Finished]:
    """Take buffers that are uploaded together; the stack closes them.  Empty: there are no more."""
    group: list[Finished] = []
    size_bytes = 0
    while len(group) < BUFFERS_AT_ONCE and size_bytes < BYTES_AT_ONCE:
        buffer = next(found, None)
        if buffer is None:
            break
        stack.callback(buffer.close)
        group.append(buffer)
        size_bytes += buffer.size_bytes
    return group


def upload_storage(spool: Path, lake: Lake) -> UploadResult:
    """Upload only the storage files, as :func:`upload` does."""
    done = UploadResult(0, 0, 0, 0)
    for file in finished_storage(spool):
        try:
            done = done.and_(_upload_storage_file(file, lake))
        finally:
            file.close()
    return done


def _upload_storage_file(file: FinishedStorage, lake: Lake) -> UploadResult:
    records = files = 0
    by_hour: defaultdict[str, list[StorageRecord]] = defaultdict(list)

    def write(hour: str) -> None:
        nonlocal records, files
        of_hour = by_hour.pop(hour)
        lake.write(hour, storage_table.name_of(of_hour), storage_table.table_of(of_hour), folder=storage_table.TABLE)
        records, files = records + len(of_hour), files + 1

    try:
        for record in file.records():
            hour = hour_of(record.minute_s)
            by_hour[hour].append(record)
            if len(by_hour[hour]) == STORAGE_AT_ONCE:
                write(hour)
    except BufferDamaged as error:
        _set_aside(file.path, error)
        return UploadResult(0, 0, 0, 1)
    for what in file.lost:
        logger.error("%s: of %s cannot be read %s", LOST, file.path, what)
    for hour in sorted(by_hour):
        write(hour)
    file.remove()
    return UploadResult(1, records, files, 0)


def _set_aside(path: Path, why: BufferDamaged) -> None:
    logger.error("%s: %s; it is kept as %s", LOST, why, path.name + DAMAGED)
    path.rename(path.with_name(path.name + DAMAGED))


def _name(records: list[UsageRecord]) -> str:
    """Name of a file with these records: a hash, so the same records always get the same name."""
    digest = sha256()
    for record in records:
        digest.update(f"{record.node}\0{record.boot}\0{record.sequence}\0{record.slot}\n".encode())
    return digest.hexdigest()[:32]


def main(arguments: list[str]) -> int:
    def work(lake: Lake) -> str:
        done = upload(Path(arguments[0]), lake)
        return f"{done.records} records of {done.buffers} files of the spool in {done.files} files"

    return run_on_lake(arguments, "billing.lake.upload SPOOL LAKE", work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
