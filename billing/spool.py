"""Files that wait in the spool, on the local disk, until what is in them is in the lake.

A file belongs to the process that holds the lock on it, for as long as it writes to it.  The lock is free when the file
is finished, or its process has died: whoever gets the lock then has a file that changes no more.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


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
