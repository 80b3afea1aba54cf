"""Addresses of a data folder's running services, for commands on the same machine that are given the folder.

Each process that serves clients has a file with its URL in the folder ``endpoints``, and an ``flock`` on it as long as
it runs.  The kernel releases the lock however the process ends, so a file without a lock is stale and is ignored. A
service's start does not depend on these locks, so a command that reads at that moment neither delays nor prevents it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from pathlib import Path
from typing import Final

FOLDER: Final = "endpoints"
_URL_BYTES_MAX: Final = 1024


class EndpointFile:
    """The file of one process, from :meth:`write` to :meth:`remove`, or to the process's end."""

    def __init__(self, data: Path) -> None:
        self._folder = data / FOLDER
        self._path: Path | None = None
        self._lock: int | None = None

    def write(self, url: str) -> None:
        """Publish the URL, and remove the files of processes that have ended.  Raises :class:`OSError`."""
        assert self._lock is None, "written already"
        self._folder.mkdir(mode=0o700, exist_ok=True)
        for path in self._folder.iterdir():
            _remove_stale(path)
        path = self._folder / secrets.token_hex(8)
        aside = path.with_name(f".{path.name}")  # another process sees it locked or not at all
        lock = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.pwrite(lock, f"{url}\n".encode(), 0)
            aside.rename(path)
        except BaseException:
            os.close(lock)
            aside.unlink(missing_ok=True)
            raise
        self._path, self._lock = path, lock

    def remove(self) -> None:
        """Remove the file, if it was written.  Does nothing the second time."""
        if self._lock is None or self._path is None:
            return
        lock, self._lock = self._lock, None
        try:
            self._path.unlink(missing_ok=True)
        except OSError:  # without its lock it is stale
            pass
        finally:
            os.close(lock)


def running_endpoints(data: Path) -> list[str]:
    """The URLs of the services that run on this data folder; none if the folder cannot be read."""
    found = []
    try:
        paths = sorted(path for path in (data / FOLDER).iterdir() if not path.name.startswith("."))
    except OSError:
        return []
    for path in paths:
        try:
            lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            if _is_locked(lock):
                url = os.pread(lock, _URL_BYTES_MAX, 0).decode(errors="replace").strip()
                if url:
                    found.append(url)
        finally:
            os.close(lock)
    return found


def _is_locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(file, fcntl.LOCK_UN)
    return False


def _remove_stale(path: Path) -> None:
    if path.name.startswith("."):  # being written
        return
    try:
        lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not _is_locked(lock):
            path.unlink(missing_ok=True)
    finally:
        os.close(lock)
