"""Segment allocation for a log: segments are preallocated before they are needed.

The last allocated segment is a reserve for operations that must continue when the disk is full (receives, deletes,
checkpoints, compaction).  While there is less free space than the low-water mark, only those are accepted: the
remaining space is for checkpoints.  When there is space again, allocation resumes by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections import deque
from typing import Final

from backend.api import StorageFull
from backend.journal.local.disk import Disk, Pauses
from backend.journal.local.segments import SegmentFiles, lock_log, segment_name
from backend.journal.rows import SEGMENT_HEADER_BYTES, decode_segment_header

logger = logging.getLogger(__name__)

AHEAD: Final = 2
"""Segments preallocated in addition to the current one: the next one, and the reserve."""
PAUSE_SHARE: Final = 0.25
"""Pauses of a preallocation, as a share of the time in which the last segment was filled."""
SPACE_CHECK_SECONDS: Final = 0.25
SEGMENT_BYTES_MIN: Final = 4096


class Segment:
    """An open segment file, all zeros until it is used."""

    __slots__ = ("fd", "number", "size_bytes")

    def __init__(self, number: int, fd: int, size_bytes: int) -> None:
        self.number = number
        self.fd = fd
        self.size_bytes = size_bytes


class SegmentAllocator:
    """The preallocated segments.  Used from one event loop."""

    def __init__(
        self,
        disk: Disk,
        files: SegmentFiles,
        directory: str,
        *,
        segment_bytes: int,
        low_water_bytes: int,
        next_number: int,
        last_number: int,
    ) -> None:
        self.ready: deque[Segment] = deque()
        self.refusing = False
        """True while only operations that may use the reserve are accepted."""
        self._disk = disk
        self._files = files
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._low_water_bytes = low_water_bytes
        self._next_number = next_number
        self._last_number = last_number
        self._loop = asyncio.get_running_loop()
        self._low = False
        self._stopped = False
        self._checked = self._loop.time()
        self._taken_at = self._checked
        self._pause_seconds = 0.0
        self._pauses: Pauses | None = None
        """Pauses of the preallocation in progress."""
        self._short = False
        """True if the last allocation ended without a segment for new messages."""
        self._last_error = ""
        self._reported_full = False
        self._maker: asyncio.Task[None] | None = None
        self._made: asyncio.Future[None] | None = None
        self._recheck: asyncio.TimerHandle | None = None

    def available(self, reserve: bool) -> int:
        """Return the number of segments that may be taken."""
        return len(self.ready) - (0 if reserve else 1)

    def is_nearly_full(self) -> bool:
        """Return whether little more than the current segment is left for new messages, because the disk is full or
        nearly full.
        """
        return self.refusing or self._short

    def shortage(self) -> str:
        """Return the cause of the lack of space: the error of the last preallocation, or a disk without free space."""
        if self._last_error:
            return f"no space in the journal: no segment can be created: {self._last_error}"
        return "no space in the journal: the disk is full or nearly full"

    def take(self) -> Segment:
        segment = self.ready.popleft()
        now = self._loop.time()
        self._pause_seconds, self._taken_at = PAUSE_SHARE * (now - self._taken_at), now
        if not self.ready:
            self._hurry()
        self._weigh()
        self.make()
        return segment

    def check_free(self) -> None:
        """Check the free space, unless it was checked just now."""
        if self._loop.time() - self._checked > SPACE_CHECK_SECONDS:
            self.make()

    def make(self) -> None:
        """Check the free space, and allocate missing segments."""
        if self._maker is None and self._recheck is None and not self._stopped:
            self._made = self._loop.create_future()
            self._maker = self._loop.create_task(self._make())

    async def wait(self) -> bool:
        """Wait until the next segment is ready or has failed.  Returns False if none is being allocated."""
        if self._made is None:
            return False
        self._hurry()
        await asyncio.shield(self._made)
        return True

    def stop(self) -> None:
        """Begin no further allocation."""
        self._stopped = True
        self._hurry()
        if self._recheck is not None:
            self._recheck.cancel()

    async def drain(self) -> None:
        """Wait until no allocation is in progress."""
        while self._maker is not None:
            await asyncio.wait([self._maker])

    def _hurry(self) -> None:
        """End the pauses of the preallocation in progress, because its segment is waited for."""
        if self._pauses is not None:
            self._pauses.end()

    def _weigh(self) -> None:
        self.refusing = self._low or not self.ready

    async def _make(self) -> None:
        try:
            while True:
                free = await self._disk.run(self._disk.free_bytes, self._directory)
                self._checked = self._loop.time()
                self._low = free < self._low_water_bytes
                if self._low and await self._files.free_spares():
                    continue
                self._weigh()
                if len(self.ready) >= AHEAD or self._stopped or self._next_number > self._last_number:
                    break
                # The reserve itself may use some of the space that is kept for checkpoints, but not all of it.
                keep = self._low_water_bytes // (1 if self.ready else 4)
                spare = self._files.take_spare()
                if spare is None and free < self._segment_bytes + keep:
                    break
                self._pauses = Pauses(self._pause_seconds) if self.ready and self._pause_seconds else None
                segment = await self._disk.run(
                    make_segment,
                    self._disk,
                    self._directory,
                    self._next_number,
                    self._segment_bytes,
                    spare=spare,
                    pauses=self._pauses,
                )
                self._next_number += 1
                self.ready.append(segment)
                self._weigh()
                self._notify_made(self._loop.create_future())
            self._last_error = ""
        except OSError as error:
            # Retried at intervals, but logged once.
            if str(error) != self._last_error:
                self._last_error = str(error)
                logger.warning("cannot preallocate a segment in %s: %s", self._directory, error)
        # A failed assertion, for example; until allocation works, nothing is stored.
        except Exception as error:
            if str(error) != self._last_error:
                self._last_error = str(error)
                logger.exception("cannot preallocate a segment in %s", self._directory)
        finally:
            self._maker = self._pauses = None
            self._short = self.available(False) < 1
            self._notify_made(None)
            full = self.is_nearly_full()
            if full != self._reported_full and not self._stopped:
                self._reported_full = full
                state = f"full: {self.shortage()}" if full else "has space again"
                logger.warning("journal %s: %s", self._directory, state)
            if (self.refusing or len(self.ready) < AHEAD) and not self._stopped:
                self._recheck = self._loop.call_later(SPACE_CHECK_SECONDS, self._check_again)

    def _check_again(self) -> None:
        self._recheck = None
        self.make()

    def _notify_made(self, following: asyncio.Future[None] | None) -> None:
        made, self._made = self._made, following
        if made is not None and not made.done():
            made.set_result(None)


def make_log(disk: Disk, directory: str, segment_bytes: int) -> tuple[int, Segment]:
    """Create a log's folder, its lock and its first segment, a smaller one if there is little space.  Blocking.

    Raises :class:`StorageFull`, :class:`~backend.journal.types.LogInUse`, :class:`OSError`.
    """
    disk.mkdir(directory)
    lock_fd = lock_log(disk, directory)
    while True:
        try:
            return lock_fd, make_segment(disk, directory, 1, segment_bytes)
        except OSError as error:
            segment_bytes = segment_bytes // 2 & ~7
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                disk.close(lock_fd)
                raise
            if segment_bytes < SEGMENT_BYTES_MIN:
                disk.close(lock_fd)
                raise StorageFull(f"no space for a log in {directory}: {error}") from error


def make_segment(
    disk: Disk, directory: str, number: int, size_bytes: int, *, spare: str | None = None, pauses: Pauses | None = None
) -> Segment:
    """Create a file full of zeros, durable with its name.  Blocking.

    ``spare`` is the path of a file of this size that becomes the segment: it gets the name of a segment only when it is
    full of zeros, so that no scan reads rows of its former use.  ``pauses``: see :meth:`Disk.preallocate`.
    """
    path = f"{directory}/{segment_name(number)}"
    fd = -1
    try:
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(path)  # left by a failed attempt; this number has never been used
        fd = disk.create(path) if spare is None else disk.open(spare)
        disk.preallocate(fd, size_bytes, pauses)
        if spare is not None:
            disk.rename(spare, path)
        disk.fsync_dir(directory)
        assert disk.size(path) == size_bytes
        assert decode_segment_header(disk.pread(fd, SEGMENT_HEADER_BYTES, 0)) is None
    except BaseException:
        if fd >= 0:
            with contextlib.suppress(OSError):
                disk.close(fd)
        for name in (path, spare):
            if name is not None:
                with contextlib.suppress(OSError):
                    disk.unlink(name)
        raise
    return Segment(number, fd, size_bytes)
