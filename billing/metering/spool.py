"""Spool: files on the local disk that wait for upload to the lake.

A file belongs to the process that holds its lock while writing it.  The lock is free when the file is finished, or its
process has died, so a process that gets the lock has a file that no longer changes.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

CALLS_SUFFIX: Final = ".usage"
"""Suffix of call buffers (:mod:`billing.metering.buffers`)."""
STORAGE_SUFFIX: Final = ".storage"
"""Suffix of storage files (:mod:`billing.metering.storage_file`)."""
SUFFIXES: Final = (CALLS_SUFFIX, STORAGE_SUFFIX)

OUTBOX_BYTES: Final = 256 << 20
"""Default of the maximum size of the usage stream's outbox (:mod:`billing.lake.outbox`)."""

LOST: Final = "usage is lost"
"""Start of a log line about unreadable usage, by which the uploader recognizes it among other output."""


class SpoolBacklog(NamedTuple):
    """Files waiting for upload, including those still being written."""

    files: int
    size_bytes: int
    oldest_s: int
    """Last write to the file that has waited longest, in seconds since the Unix epoch; 0: none waits."""


def finished_files(folder: Path, suffix: str) -> Iterator[tuple[Path, int]]:
    """Iterate over the finished files below a folder, by name, each with its locked descriptor.

    The caller closes the descriptors.  Raises :class:`OSError`.
    """
    for path in sorted(folder.rglob(f"*{suffix}")):
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # uploaded meanwhile
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = os.fstat(file).st_nlink > 0  # else it was uploaded between the opening and the lock
        except BlockingIOError:  # it is being written, or uploaded
            free = False
        except BaseException:
            os.close(file)
            raise
        if free:
            yield path, file
        else:
            os.close(file)


def waiting(spool: Path) -> SpoolBacklog:
    """Count the waiting files below a folder.  Raises :class:`OSError`."""
    files = size_bytes = oldest_s = 0
    for path in spool.rglob("*"):
        if path.suffix not in SUFFIXES:
            continue
        try:
            found = path.stat()
        except FileNotFoundError:  # uploaded meanwhile
            continue
        files, size_bytes = files + 1, size_bytes + found.st_size
        oldest_s = min(oldest_s or int(found.st_mtime), int(found.st_mtime))
    return SpoolBacklog(files, size_bytes, oldest_s)
