"""The data folder: made so that nobody else can read it, and used by one process at a time.

The lock is an ``flock`` on a file in it, which the kernel lets go of when its process is gone, however it
ended: no stale lock can be left behind, and none has to be broken by hand.
"""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path

LOCK_FILE = "lock"
_OURS = {LOCK_FILE, "metadata.sqlite"}
_NOBODYS = {"lost+found"}
"""What a folder may hold before the first start: the root of a fresh file system is not empty."""


class FolderUnusable(Exception):
    """The data folder cannot be used; the text says why."""


class Claim:
    """This process has the folder ``path`` until :meth:`release`, or its end; ``shared``, with others that share it."""

    def __init__(self, path: Path, *, shared: bool = False) -> None:
        """Make the folder if it is missing, and lock it.  Raises :class:`FolderUnusable`."""
        self.path = path
        try:
            _make_private(path)
            self._lock = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise FolderUnusable(f"the data folder {path} cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(self._lock, 20, 0).decode(errors="replace").strip()
            os.close(self._lock)
            raise FolderUnusable(
                f"the data folder {path} is in use by another Holdfast (process {owner or 'unknown'})"
            ) from error
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let others have the folder."""
        os.close(self._lock)


def _make_private(path: Path) -> None:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    content = {entry.name for entry in os.scandir(path)} - _NOBODYS
    if content and not content & _OURS:
        raise FolderUnusable(
            f"{path} is not empty and no data folder of Holdfast; name an empty or a new one with --data"
        )
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        try:
            path.chmod(0o700)
        except PermissionError:
            raise FolderUnusable(
                f"others may read the data folder {path} (mode {mode:o}) and this user cannot change that; "
                f"name a folder below it with --data"
            ) from None
