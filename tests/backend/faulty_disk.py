"""A real disk whose reads fail on demand."""

import errno
import os

from backend.journal.local.disk import RealDisk

BLOCK_BYTES = 4096


class FaultyDisk(RealDisk):
    """Disk whose reads fail like an operating system's: all reads of segments and checkpoints, or of bad blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.error: int | None = None
        """Errno of every read, and of every opening of a file; None: none fails."""
        self.error_opens = False
        """True if only the opening of files fails."""
        self.bad: dict[str, set[int]] = {}
        """Unreadable blocks by path: reads fail with EIO."""
        self.errors = 0

    def open(self, path: str) -> int:
        if self.error is not None and path.endswith((".log", ".bin")):
            self._fail(self.error)
        return super().open(path)

    def pread(self, fd: int, size_bytes: int, offset: int) -> bytes:
        self._check(fd, size_bytes, offset)
        return super().pread(fd, size_bytes, offset)

    def pread_now(self, fd: int, size_bytes: int, offset: int) -> bytes | None:
        self._check(fd, size_bytes, offset)
        return super().pread_now(fd, size_bytes, offset)

    def _check(self, fd: int, size_bytes: int, offset: int) -> None:
        if self.error is not None and not self.error_opens:
            self._fail(self.error)
        bad = self.bad.get(os.readlink(f"/proc/self/fd/{fd}")) if self.bad else None
        if bad and any(
            block in bad for block in range(offset // BLOCK_BYTES, -(-(offset + size_bytes) // BLOCK_BYTES))
        ):
            self._fail(errno.EIO)

    def _fail(self, number: int) -> None:
        self.errors += 1
        raise OSError(number, os.strerror(number))
