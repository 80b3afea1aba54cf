"""The disk operations of the journal, and their implementation by the operating system.

The operations block; they are called in a worker thread through :meth:`Disk.run`, or at the start, before anything else
runs.  Two have methods of their own, because the speed of the service depends on them: :meth:`Disk.commit`, the one
write and sync of a group commit (:mod:`backend.journal.local.committer`), and :meth:`Disk.pread_now`, a read that never
waits.

The simulator's disk (``tests/simulator/world/disk.py``) implements the same protocol in virtual time, and fails like a
disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, Protocol, TypeVar

from backend.journal.local.committer import Committer, write_all

P = ParamSpec("P")
T = TypeVar("T")

WORKERS: Final = 4
"""Threads for everything except commits: a read must not wait behind the sync of a checkpoint."""

_ZERO_CHUNK: Final = bytes(1 << 20)
_PACED_CHUNK_BYTES: Final = 256 << 10
PAUSE_FACTOR: Final = 3
"""Length of the pause after a step of a preallocation, as a multiple of the step: few commits wait behind a step."""
_MEDIA_ERRORS: Final = frozenset(
    getattr(errno, name, errno.EIO) for name in ("EIO", "EBADMSG", "EILSEQ", "ENODATA", "EUCLEAN")
)
"""Errors by which a device or file system reports that the bytes are lost."""


def is_media_error(error: OSError) -> bool:
    """Return whether a read failed because the bytes are lost.

    Any other error (no free descriptor, no memory, a timeout, a permission) proves nothing about the bytes: the read
    has to be repeated.
    """
    return error.errno in _MEDIA_ERRORS


class Pauses:
    """Pauses of work in a thread, of limited length in all, which another thread can end."""

    def __init__(self, seconds: float) -> None:
        self.left_seconds = seconds
        self._ended = threading.Event()

    def rest(self, seconds: float) -> None:
        """Pause, unless the pauses were ended.  Blocking."""
        seconds = min(seconds, self.left_seconds)
        if seconds > 0:
            self.left_seconds -= seconds
            self._ended.wait(seconds)

    def end(self) -> None:
        """End the pause in progress and make all later ones empty."""
        self._ended.set()


class Disk(Protocol):
    """Disk operations.  Errors are those of the operating system: :class:`OSError` with ``errno``."""

    def open(self, path: str) -> int:
        """Open an existing file for reading and writing."""

    def create(self, path: str) -> int:
        """Create a file that must not exist.  It survives a crash only after :meth:`fsync_dir` of its folder."""

    def close(self, fd: int) -> None: ...

    def pwrite(self, fd: int, data: bytes, offset: int) -> None:
        """Write all of the data."""

    def pread(self, fd: int, size_bytes: int, offset: int) -> bytes:
        """Read a range; the result is shorter only at the end of the file.

        If a part of the range cannot be read, this raises, even if the rest is readable.
        """

    def pread_now(self, fd: int, size_bytes: int, offset: int) -> bytes | None:
        """Read what is available without waiting for the disk (possibly short); None: nothing, or not supported."""

    def fdatasync(self, fd: int) -> None:
        """Sync the file's data.  After an error the state of the disk is unknown, and a second sync proves nothing."""

    def preallocate(self, fd: int, size_bytes: int, pauses: Pauses | None = None) -> None:
        """Fill the file with zeros, and sync it, so that a commit changes no metadata and cannot lack space.

        It may pause between its steps, so that commits do not wait behind it.
        """

    def truncate(self, fd: int, size_bytes: int) -> None: ...

    def size(self, path: str) -> int: ...

    def unlink(self, path: str) -> None: ...

    def rename(self, path: str, new_path: str) -> None:
        """Give a file another name.  It has that name after a crash only after :meth:`fsync_dir` of its folder."""

    def mkdir(self, path: str) -> None:
        """Create a folder, and its parents, durably, unless it exists."""

    def rmdir(self, path: str) -> None: ...

    def listdir(self, path: str) -> list[str]:
        """Return the names, sorted."""

    def fsync_dir(self, path: str) -> None: ...

    def free_bytes(self, path: str) -> int: ...

    def lock(self, path: str) -> int:
        """Lock a file (created if missing) until the descriptor is closed or the process ends.

        Raises :class:`BlockingIOError` if another holder is alive.
        """

    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        """Run blocking work in a worker thread.  The work starts at once, awaited or not."""

    def commit(self, fd: int, data: bytes, offset: int, done: Callable[[BaseException | None], None]) -> None:
        """Write and sync, then call ``done`` in the running loop.  One commit at a time, in order, never repeated."""


class RealDisk:
    """The operating system's files."""

    def __init__(self) -> None:
        self._committer = Committer()
        self._workers = ThreadPoolExecutor(WORKERS, "journal")
        self._nowait = hasattr(os, "preadv") and hasattr(os, "RWF_NOWAIT")

    def open(self, path: str) -> int:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def create(self, path: str) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def close(self, fd: int) -> None:
        os.close(fd)

    def pwrite(self, fd: int, data: bytes, offset: int) -> None:
        write_all(fd, data, offset)

    def pread(self, fd: int, size_bytes: int, offset: int) -> bytes:
        data = os.pread(fd, size_bytes, offset)
        while 0 < len(data) < size_bytes:
            more = os.pread(fd, size_bytes - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def pread_now(self, fd: int, size_bytes: int, offset: int) -> bytes | None:
        if not self._nowait:
            return None
        buffer = bytearray(size_bytes)
        try:
            size = os.preadv(fd, [buffer], offset, os.RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
            self._nowait = False  # a filesystem without it: all reads use a worker
            return None
        return bytes(memoryview(buffer)[:size])

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def preallocate(self, fd: int, size_bytes: int, pauses: Pauses | None = None) -> None:
        # Zeros are written, not fallocated: a sync of written blocks takes two thirds of one of unwritten extents.
        # Synced in steps, so that no commit has to wait behind one large flush.
        zeros = _ZERO_CHUNK if pauses is None else _ZERO_CHUNK[:_PACED_CHUNK_BYTES]
        for offset in range(0, size_bytes, len(zeros)):
            started_at = time.perf_counter()
            self.pwrite(fd, zeros[: size_bytes - offset], offset)
            os.fdatasync(fd)
            if pauses is not None:
                pauses.rest(PAUSE_FACTOR * (time.perf_counter() - started_at))
        os.fsync(fd)

    def truncate(self, fd: int, size_bytes: int) -> None:
        os.ftruncate(fd, size_bytes)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def rename(self, path: str, new_path: str) -> None:
        os.rename(path, new_path)

    def mkdir(self, path: str) -> None:
        parent = os.path.dirname(os.path.abspath(path))
        if not os.path.isdir(parent):
            self.mkdir(parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        self.fsync_dir(parent)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def fsync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def free_bytes(self, path: str) -> int:
        stat = os.statvfs(path)
        return stat.f_bavail * stat.f_frsize

    def lock(self, path: str) -> int:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        return asyncio.wrap_future(self._workers.submit(function, *args, **kwargs))

    def commit(self, fd: int, data: bytes, offset: int, done: Callable[[BaseException | None], None]) -> None:
        self._committer.commit(fd, data, offset, done)

    def close_workers(self) -> None:
        """End the threads, once the work in progress is done."""
        self._committer.stop()
        self._workers.shutdown()
