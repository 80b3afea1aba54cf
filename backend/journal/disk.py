"""What the journal asks of a disk, and the real disk.

The primitives block; they are called in a worker thread through :meth:`Disk.run`, or at start, before anything else
runs.  Two things have ways of their own, because the speed of the service hangs on them: :meth:`Disk.commit`, the one
write and sync of a group commit (:mod:`backend.journal.committer`), and :meth:`Disk.pread_now`, a read that never
waits.

The simulator's disk (``tests/simulator/disk.py``) implements the same protocol in virtual time, and fails like a disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, Protocol, TypeVar

from backend.journal.committer import Committer, write_all

P = ParamSpec("P")
T = TypeVar("T")

WORKERS: Final = 4
"""Threads for all that is not a commit: a read must not wait behind the sync of a checkpoint."""

_ZERO_CHUNK: Final = bytes(1 << 20)
_MEDIA_ERRORS: Final = frozenset(
    getattr(errno, name, errno.EIO) for name in ("EIO", "EBADMSG", "EILSEQ", "ENODATA", "EUCLEAN")
)
"""Errors by which a device or file system says that it no longer has the bytes."""


def is_media_error(error: OSError) -> bool:
    """Return whether a read failed because the bytes are lost.

    Any other error (no free descriptor, no memory, a timeout, a permission) says nothing about the bytes: the read is
    to be tried again.
    """
    return error.errno in _MEDIA_ERRORS


class Disk(Protocol):
    """Errors are those of the operating system: :class:`OSError` with ``errno``."""

    def open(self, path: str) -> int:
        """Open an existing file for reading and writing."""

    def create(self, path: str) -> int:
        """Create a file that must not exist.  It is there after a crash only after :meth:`fsync_dir` of its folder."""

    def close(self, fd: int) -> None: ...

    def pwrite(self, fd: int, data: bytes, offset: int) -> None:
        """Write all of it."""

    def pread(self, fd: int, size_bytes: int, offset: int) -> bytes:
        """Shorter than asked only at the end of the file.

        Where a part of the range cannot be read, this raises, whatever could be read of the rest.
        """

    def pread_now(self, fd: int, size_bytes: int, offset: int) -> bytes | None:
        """What of this can be read without waiting for the disk (it may be short); None: nothing, or not supported."""

    def fdatasync(self, fd: int) -> None:
        """After an error it is not known what the disk has, and a further call proves nothing."""

    def preallocate(self, fd: int, size_bytes: int) -> None:
        """Fill the empty file with zeros, and sync it: so that a commit changes no metadata and cannot lack room."""

    def truncate(self, fd: int, size_bytes: int) -> None: ...

    def size(self, path: str) -> int: ...

    def unlink(self, path: str) -> None: ...

    def mkdir(self, path: str) -> None:
        """Make a folder, and those above it, unless it exists; durably."""

    def rmdir(self, path: str) -> None: ...

    def listdir(self, path: str) -> list[str]:
        """Names, sorted."""

    def fsync_dir(self, path: str) -> None: ...

    def free_bytes(self, path: str) -> int: ...

    def lock(self, path: str) -> int:
        """Lock a file (made if need be) until the descriptor is closed or the process ends.

        Raises :class:`BlockingIOError` if another holder lives.
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
            self._nowait = False  # a filesystem without it: all reads go through a worker
            return None
        return bytes(memoryview(buffer)[:size])

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def preallocate(self, fd: int, size_bytes: int) -> None:
        # Zeros are written, not fallocated: a sync into written blocks takes two thirds of one into unwritten extents.
        # Synced chunk by chunk, so that no commit has to wait behind one large flush.
        for offset in range(0, size_bytes, len(_ZERO_CHUNK)):
            self.pwrite(fd, _ZERO_CHUNK[: size_bytes - offset], offset)
            os.fdatasync(fd)
        os.fsync(fd)

    def truncate(self, fd: int, size_bytes: int) -> None:
        os.ftruncate(fd, size_bytes)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def unlink(self, path: str) -> None:
        os.unlink(path)

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
        """End the threads, once what was begun is done."""
        self._committer.stop()
        self._workers.shutdown()
