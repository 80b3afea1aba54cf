"""Outbox of the usage stream: files of records that are in the lake, and wait to be published to a topic.

The process that uploads usage adds records after it has written them to the lake, and before it removes the spool file
that they are from.  The service publishes a file, and then removes it.  So a process that is killed between any two
steps repeats records, and loses none.

The outbox is bounded: where there is no room for more, the oldest files are dropped, and their records are counted.
The lake has them.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from billing.metering.buffers import sync_folder
from billing.metering.spool import finished_files

SUFFIX: Final = ".outbox"
FILE_RECORDS_MAX: Final = 1_000
FILE_BYTES_MAX: Final = 1 << 20
"""Size at which a file gets no more records, so that it is published at once and in little memory."""
FILES_MAX: Final = 20_000
DROPPED: Final = "usage is not in the usage stream"
"""Start of a log line about records that were dropped, by which the uploader recognizes it among other output."""

logger = logging.getLogger("holdfast.usage")

_LOCK: Final = "lock"
_DROPPED_FILE: Final = "dropped"
_UNFINISHED: Final = "adding.new"


class OutboxBacklog(NamedTuple):
    """Files that wait for publication, and what was dropped."""

    files: int
    records: int
    size_bytes: int
    dropped: int
    """Number of records that were dropped since the outbox exists."""


class _WaitingFile(NamedTuple):
    path: Path
    records: int
    size_bytes: int


class Outbox:
    """Outbox in a folder, for any number of processes."""

    def __init__(self, folder: Path, bytes_max: int) -> None:
        """``bytes_max``: maximum size of all files."""
        self.folder = folder
        self.bytes_max = bytes_max

    def add(self, minute_s: int, values: Sequence[bytes]) -> int:
        """Add values, of lines each, durably; returns the number of records that were dropped for them.

        ``minute_s``: time of the first one, which puts them in order with others.  The same values make the same files.
        Raises :class:`OSError`: then they may not be there.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        dropped = 0
        with self._locked():
            waiting = deque(self._waiting())
            try:
                for part in _parts(values):
                    data = b"".join(part)
                    if len(data) > self.bytes_max:
                        dropped += len(part)
                        continue
                    dropped += self._make_room(waiting, len(data))
                    waiting.append(self._write(minute_s, len(part), data))
            finally:
                if dropped:
                    self._count_dropped(dropped)
        return dropped

    def files(self) -> Iterator[tuple[Path, int]]:
        """Iterate over the files from the oldest one on, each with its locked descriptor, which the caller closes.

        Files that another process publishes are left out.  Raises :class:`OSError`.
        """
        return finished_files(self.folder, SUFFIX)

    def backlog(self) -> OutboxBacklog:
        """Count what waits.  Raises :class:`OSError`."""
        found = self._waiting()
        return OutboxBacklog(
            len(found), sum(one.records for one in found), sum(one.size_bytes for one in found), self._dropped()
        )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        file = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)

    def _waiting(self) -> list[_WaitingFile]:
        """Files in their order."""
        found = []
        try:
            for entry in os.scandir(self.folder):
                if not entry.name.endswith(SUFFIX):
                    continue
                try:
                    size_bytes = entry.stat().st_size
                except FileNotFoundError:  # published meanwhile
                    continue
                found.append(_WaitingFile(Path(entry.path), _records_of(entry.name), size_bytes))
        except FileNotFoundError:  # nothing was ever added
            return []
        return sorted(found)

    def _make_room(self, waiting: deque[_WaitingFile], size_bytes: int) -> int:
        """Drop the first of the waiting files until there is room for another; returns their number of records."""
        total, dropped = sum(one.size_bytes for one in waiting), 0
        while waiting and (total + size_bytes > self.bytes_max or len(waiting) >= FILES_MAX):
            oldest = waiting.popleft()
            total -= oldest.size_bytes
            with suppress(FileNotFoundError):  # published meanwhile
                oldest.path.unlink()
                dropped += oldest.records
        return dropped

    def _write(self, minute_s: int, records: int, data: bytes) -> _WaitingFile:
        aside = self.folder / _UNFINISHED
        with open(aside, "wb", opener=_private) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        path = self.folder / f"{minute_s:012d}-{sha256(data).hexdigest()[:32]}-{records}{SUFFIX}"
        aside.rename(path)
        sync_folder(self.folder)
        return _WaitingFile(path, records, len(data))

    def _dropped(self) -> int:
        try:
            return int((self.folder / _DROPPED_FILE).read_text() or 0)
        except FileNotFoundError:
            return 0
        except ValueError:  # damaged by a loss of power: the count begins anew
            logger.warning("the number of dropped records in %s cannot be read", self.folder / _DROPPED_FILE)
            return 0

    def _count_dropped(self, records: int) -> None:
        aside = self.folder / _UNFINISHED
        with open(aside, "w", opener=_private) as file:
            file.write(str(self._dropped() + records))
        aside.rename(self.folder / _DROPPED_FILE)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _parts(values: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Lines of values, as many together as a file has."""
    part: list[bytes] = []
    size_bytes = 0
    for value in values:
        if part and (len(part) == FILE_RECORDS_MAX or size_bytes + len(value) >= FILE_BYTES_MAX):
            yield part
            part, size_bytes = [], 0
        part.append(value + b"\n")
        size_bytes += len(value) + 1
    if part:
        yield part


def _records_of(name: str) -> int:
    """Number of a file's records; 0 for a name that is not the outbox's."""
    number = name.removesuffix(SUFFIX).rpartition("-")[2]
    return int(number) if number.isdecimal() else 0
