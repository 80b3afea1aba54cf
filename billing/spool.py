"""Files that wait in the spool, on the local disk, until what is in them is in the lake.

A file belongs to the process that holds the lock on it, for as long as it writes to it.  The lock is free when the file
is finished, or its process has died: whoever gets the lock then has a file that changes no more.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

CALLS_SUFFIX: Final = ".usage"
"""Of buffers of calls (:mod:`billing.buffers`)."""
STORAGE_SUFFIX: Final = ".storage"
"""Of files of storage (:mod:`billing.storage_file`)."""
SUFFIXES: Final = (CALLS_SUFFIX, STORAGE_SUFFIX)

LOST: Final = "usage is lost"
"""So a line begins that tells of what cannot be read, by which it is known whatever else is told."""


class Waiting(NamedTuple):
    """Files that wait, those that are written to among them."""

    files: int
    size_bytes: int
    oldest_s: int
    """When the one was last written to that has waited longest, seconds since the Unix epoch; 0: none waits."""


def finished_files(folder: Path, suffix: str) -> Iterator[tuple[Path, int]]:
    """The files below a folder that nobody writes to any more, by name, each with its descriptor, which has the lock
    and which whoever iterates closes.  Raises :class:`OSError`."""
    for path in sorted(folder.rglob(f"*{suffix}")):
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # sealed meanwhile
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = os.fstat(file).st_nlink > 0  # else sealed between the opening and the lock
        except BlockingIOError:  # it is written to, or being sealed
            free = False
        except BaseException:
            os.close(file)
            raise
        if free:
            yield path, file
        else:
            os.close(file)


def waiting(spool: Path) -> Waiting:
    """What waits below a folder.  Raises :class:`OSError`."""
    files = size_bytes = oldest_s = 0
    for path in spool.rglob("*"):
        if path.suffix not in SUFFIXES:
            continue
        try:
            found = path.stat()
        except FileNotFoundError:  # sealed meanwhile
            continue
        files, size_bytes = files + 1, size_bytes + found.st_size
        oldest_s = min(oldest_s or int(found.st_mtime), int(found.st_mtime))
    return Waiting(files, size_bytes, oldest_s)
