"""The data folder: private to its owner, and used by one process at a time.

The lock is an ``flock`` on a file in it, which the kernel releases when the process ends in any way: no stale lock can
remain, and none has to be removed by hand.
"""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path

LOCK_FILE = "lock"
USE_FILE = "frontends.lock"
NODE = "node"
"""Name of the backend node that has the whole folder, in any process: in the entries, and of its logs."""
_OURS = {LOCK_FILE, "metadata.sqlite"}
_NOBODYS = {"lost+found"}
"""Names that a folder may contain before the first start: the root of a fresh file system is not empty."""


class FolderUnusable(Exception):
    """The data folder cannot be used; the text says why."""


class FolderLock:
    """Lock on the folder ``path`` until :meth:`release` or the end of the process; ``shared``: together with others."""

    def __init__(self, path: Path, *, shared: bool = False, alone: bool = False) -> None:
        """Create the folder if it is missing, and lock it.  Raises :class:`FolderUnusable`.

        ``alone``: also exclude frontends that use its metadata.
        """
        self.path = path
        self._use = None
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
        if alone:
            try:
                self._use = Use(path, fcntl.LOCK_EX)
            except FolderUnusable:
                os.close(self._lock)
                raise
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Release the lock."""
        if self._use is not None:
            self._use.release()
        os.close(self._lock)


class Use:
    """Lock of a frontend that uses the metadata in the folder ``path``, which a backend has claimed or will claim."""

    def __init__(self, path: Path, kind: int = fcntl.LOCK_SH) -> None:
        """Lock the metadata.  Raises :class:`FolderUnusable`."""
        if not (path / "metadata.sqlite").exists():
            raise FolderUnusable(f"{path} is no data folder of Holdfast: start the backend first")
        try:
            self._lock = os.open(path / USE_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise FolderUnusable(f"the data folder {path} cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, kind | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            by = "frontends" if kind == fcntl.LOCK_EX else "a command that needs it alone"
            raise FolderUnusable(f"the data folder {path} is in use by {by}") from error

    def release(self) -> None:
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
