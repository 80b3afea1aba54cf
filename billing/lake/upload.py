"""``python -m billing.lake.upload [--outbox FOLDER] SPOOL [LAKE]``: upload finished spool files to the lake.

Reads the finished call buffers and storage files below the folder ``SPOOL``, writes their records as Parquet files to
``LAKE``, and removes a file when all of its records are uploaded.  A run that was killed is repeated: the same records
with the same ids.  While the lake is unavailable the files wait.

With ``--outbox`` the records are also put there (:mod:`billing.lake.outbox`), after they are in the lake.  If that
fails, it is logged, and the upload goes on: the lake has them.

It runs as a process of its own, started from time to time, so that the Parquet library takes neither memory nor time
from serving processes.  If ``LAKE`` is left out, ``HOLDFAST_USAGE_LAKE`` names it.  Exit codes: 0 done, 1 the lake or
the spool is unavailable (try again), 2 wrong arguments.
"""

from __future__ import annotations

import argparse
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
from billing.lake.outbox import DROPPED, Outbox
from billing.metering.buffers import BufferDamaged, Finished, clear, finished
from billing.metering.json_records import encode_calls, encode_storage
from billing.metering.spool import LOST, OUTBOX_BYTES
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


class _StreamedRecords:
    """Records on their way to the outbox, if there is one.  Failures are logged once, and do not stop the upload."""

    def __init__(self, outbox: Outbox | None) -> None:
        self._outbox = outbox
        self._dropped = self._failed = 0
        self._why: OSError | None = None

    def add_calls(self, records: list[UsageRecord]) -> None:
        if self._outbox is not None:
            self._add(self._outbox, records[0].minute_s, [encode_calls(record) for record in records])

    def add_storage(self, records: list[StorageRecord]) -> None:
        if self._outbox is not None:
            self._add(self._outbox, records[0].minute_s, [encode_storage(record) for record in records])

    def _add(self, outbox: Outbox, minute_s: int, values: list[bytes]) -> None:
        try:
            self._dropped += outbox.add(minute_s, values)
        except OSError as error:
            self._failed, self._why = self._failed + len(values), error

    def log(self) -> None:
        """Log what the outbox did not take, or dropped."""
        if self._outbox is None:
            return
        if self._dropped:
            logger.error(
                "%s: %d records were dropped from %s, which may have %d bytes; the lake has them",
                *(DROPPED, self._dropped, self._outbox.folder, self._outbox.bytes_max),
            )
        if self._failed:
            logger.error(
                "%s: %d records could not be written to %s (%s); the lake has them",
                *(DROPPED, self._failed, self._outbox.folder, self._why),
            )


def upload(spool: Path, lake: Lake, outbox: Outbox | None = None) -> UploadResult:
    """Upload all finished files below ``spool``, and put their records into the outbox too, if there is one.

    Raises :class:`LakeUnavailable` and :class:`OSError`; remaining files wait for the next run.
    """
    clear(spool)
    streamed = _StreamedRecords(outbox)
    try:
        return _upload_calls(spool, lake, streamed).and_(_upload_storage(spool, lake, streamed))
    finally:
        streamed.log()


def _upload_calls(spool: Path, lake: Lake, streamed: _StreamedRecords) -> UploadResult:
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
            for _, of_hour in sorted(by_hour.items()):  # now that no write of the group can fail, and be repeated
                streamed.add_calls(of_hour)
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


def _upload_storage(spool: Path, lake: Lake, streamed: _StreamedRecords) -> UploadResult:
    done = UploadResult(0, 0, 0, 0)
    for file in finished_storage(spool):
        try:
            done = done.and_(_upload_storage_file(file, lake, streamed))
        finally:
            file.close()
    return done


def _upload_storage_file(file: FinishedStorage, lake: Lake, streamed: _StreamedRecords) -> UploadResult:
    records = files = 0
    by_hour: defaultdict[str, list[StorageRecord]] = defaultdict(list)

    def write(hour: str) -> None:
        nonlocal records, files
        of_hour = by_hour.pop(hour)
        lake.write(hour, storage_table.name_of(of_hour), storage_table.table_of(of_hour), folder=storage_table.TABLE)
        streamed.add_storage(of_hour)
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
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--outbox", type=Path)
    parser.add_argument("--outbox-bytes", type=int, default=OUTBOX_BYTES)
    options, left = parser.parse_known_args(arguments)
    outbox = None if options.outbox is None else Outbox(options.outbox, options.outbox_bytes)

    def work(lake: Lake) -> str:
        done = upload(Path(left[0]), lake, outbox)
        return f"{done.records} records of {done.buffers} files of the spool in {done.files} files"

    return run_on_lake(left, "billing.lake.upload SPOOL LAKE", work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
