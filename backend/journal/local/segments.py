"""Segment files: finding them, reading records in them, and deleting them.

Each log has a folder of its own, ``<node>-<incarnation>``, with a lock file, segments ``00000001.log`` ..., spares
``00000001.spare`` ... (former segments that become new ones) and files of checkpoint chunks.  A position names a log by
its id; :meth:`SegmentFiles.register` maps the id to the folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Iterable
from typing import Final

from backend.api import Unavailable
from backend.journal.local.disk import Disk, is_media_error
from backend.journal.rows import (
    RECORD_HEADER_BYTES,
    SEGMENT_MAX,
    RecordView,
    decode_record,
    place_of,
    record_bytes_at,
    segment_key,
)
from backend.journal.salvage import check_record, damaged_record
from backend.journal.types import DamagedRecord, LogInUse

OPEN_FILES_MAX: Final = 64
FIRST_READ_BYTES: Final = 4096
"""Bytes read to get a record of unknown length."""
SPAN_BYTES_MAX: Final = 128 << 10
SPAN_GAP_MAX: Final = 16 << 10
"""Maximum distance of records that are read together, up to :data:`SPAN_BYTES_MAX`."""

FREE_STEP_BYTES: Final = 4 << 20
"""Step size in which a segment is freed.  Freeing all of it at once delays commits, above all on a file system that
discards freed blocks (ext4 with the mount option ``discard``): it does so while it commits its own journal.
"""

SPARES_MAX: Final = 4
"""Segments of the own log that are kept when they are no longer needed, and become new ones.

Deleting a segment and creating another changes the file system's metadata, and a file system that discards freed blocks
lets commits wait for that (docs/benchmarks.md, "Delays while a checkpoint is written").  A checkpoint makes about two
segments unnecessary, and the log fills as many until the next one.
"""

LOCK_FILE: Final = "lock"
_SPARE_SUFFIX: Final = ".spare"


def segment_name(segment: int) -> str:
    return f"{segment:08d}.log"


def _spare_name(segment: int) -> str:
    return f"{segment:08d}{_SPARE_SUFFIX}"


def lock_log(disk: Disk, directory: str) -> int:
    """Take the log's lock, until this process ends or the descriptor is closed.

    Raises :class:`LogInUse` while the log's writer, or another process that recovers it, is alive.
    """
    path = f"{directory}/{LOCK_FILE}"
    try:
        return disk.lock(path)
    except BlockingIOError:
        raise LogInUse(f"{path} is locked by a running process") from None


def list_segments(disk: Disk, directory: str) -> list[int]:
    """Return the numbers of the segment files in a log's folder, ascending, including preallocated unused ones."""
    try:
        names = disk.listdir(directory)
    except FileNotFoundError:
        return []
    return sorted(int(name[:-4]) for name in names if name.endswith(".log") and name[:-4].isdigit())


class _OpenFile:
    __slots__ = ("dropped", "fd", "users")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.users = 0
        self.dropped = False


class SegmentFiles:
    """The segment files of one node's logs, this incarnation's and earlier ones'.  Used from one event loop."""

    def __init__(self, disk: Disk, root: str) -> None:
        self.disk = disk
        self.root = root
        self._directories: dict[int, str] = {}
        self._open: dict[int, _OpenFile] = {}
        """By segment key, oldest first."""
        self._opening: dict[int, int] = {}
        """By segment key: number of concurrent attempts to open it."""
        self._overtaken: set[int] = set()
        """Segments dropped while being opened."""
        self._closed = False
        self._own: int | None = None
        """The log whose segments are used again, of :attr:`_spare_bytes` each."""
        self._spare_bytes = 0
        self._spares: list[str] = []

    def register(self, log_id: int, name: str) -> str:
        """Set the folder of a log.  Returns its path."""
        directory = f"{self.root}/{name}"
        self._directories[log_id] = directory
        return directory

    def logs(self) -> list[int]:
        return sorted(self._directories)

    def known(self, log_id: int) -> bool:
        """Return whether this log's folder was set, and has not been removed since."""
        return log_id in self._directories

    def directory(self, log_id: int) -> str:
        return self._directories[log_id]

    def path(self, log_id: int, segment: int) -> str:
        return f"{self._directories.get(log_id, f'{self.root}/?{log_id}')}/{segment_name(segment)}"

    # --- reading --- ----

    async def read_many(self, positions: Iterable[int]) -> list[RecordView | DamagedRecord]:
        """Return the records at these positions, in their order.  Neighbours are read together.

        Raises :class:`Unavailable` when they cannot be read now: a record counts as corrupt only after its bytes were
        read, or the device has reported their loss.
        """
        positions = list(positions)
        found: dict[int, RecordView | DamagedRecord] = {}
        for span in _spans(sorted(positions)):
            try:
                await self._read_span(span, found)
            except OSError:
                for position in span:
                    if position not in found:
                        found[position] = await self._read_alone(position)
        return [found[position] for position in positions]

    async def _read_span(self, span: list[int], found: dict[int, RecordView | DamagedRecord]) -> None:
        first = span[0]
        size_bytes = (span[-1] - first << 3) + FIRST_READ_BYTES
        data = await self._pread(first, size_bytes)
        for position in span:
            at = position - first << 3
            view = decode_record(data, at)
            if isinstance(view, RecordView):
                found[position] = view
                continue
            place = place_of(position)
            path = self.path(place.log_id, place.segment)
            needed = record_bytes_at(data, at)
            if at + needed > len(data):  # not corrupt, only longer than the bytes read
                found[position] = check_record(await self._pread(position, needed), 0, position, path, place.offset)
            else:
                found[position] = damaged_record(view, position, path, place.offset)

    async def _read_alone(self, position: int) -> RecordView | DamagedRecord:
        """Read one record alone, after a read together with others has failed."""
        place = place_of(position)
        path = self.path(place.log_id, place.segment)
        try:
            header = await self._pread(position, RECORD_HEADER_BYTES)
            data = await self._pread(position, record_bytes_at(header, 0) or RECORD_HEADER_BYTES)
        except OSError as error:
            if is_media_error(error) or (isinstance(error, FileNotFoundError) and await self._is_gone(path)):
                return DamagedRecord(position, path, place.offset, "file")
            raise Unavailable(f"messages cannot be read now: {error}") from error
        return check_record(data, 0, position, path, place.offset)

    async def _is_gone(self, path: str) -> bool:
        """Return whether a file is missing from folders that all exist: the whole disk may be missing for a while."""
        try:
            return await self.disk.run(self._is_missing, path)
        except OSError as error:
            raise Unavailable(f"messages cannot be read now: {error}") from error

    def _is_missing(self, path: str) -> bool:
        directory, name = path.rsplit("/", 1)
        try:
            return name not in self.disk.listdir(directory)
        except FileNotFoundError:
            folders = set(self.disk.listdir(self.root))
            return any(known.rsplit("/", 1)[1] in folders for known in self._directories.values())

    async def _pread(self, position: int, size_bytes: int) -> bytes:
        key, offset = position >> 24, (position & 0xFFFFFF) << 3
        file = self._open.get(key)
        if file is None:
            file = await self._open_file(key)
        data = self.disk.pread_now(file.fd, size_bytes, offset)
        if data is None or len(data) < size_bytes:
            file.users += 1
            try:
                data = await self.disk.run(self.disk.pread, file.fd, size_bytes, offset)
            finally:
                self._release(file)
        return data

    async def _open_file(self, key: int) -> _OpenFile:
        path = self.path(key >> 20, key & SEGMENT_MAX)
        self._opening[key] = self._opening.get(key, 0) + 1
        opened = asyncio.ensure_future(self.disk.run(self.disk.open, path))
        try:
            fd = await asyncio.shield(opened)
        except asyncio.CancelledError:
            opened.add_done_callback(self._close_unwanted)
            raise
        finally:
            dropped = key in self._overtaken
            self._opening[key] -= 1
            if not self._opening[key]:
                del self._opening[key]
                self._overtaken.discard(key)
        if self._closed:
            self.disk.close(fd)
            raise Unavailable("the log is closed")
        if dropped:  # kept open, it would occupy disk space
            self.disk.close(fd)
            raise FileNotFoundError(errno.ENOENT, "dropped", path)
        file = self._open.get(key)
        if file is not None:
            self.disk.close(fd)  # another reader has opened it first
            return file
        file = self._open[key] = _OpenFile(fd)
        while len(self._open) > OPEN_FILES_MAX:
            self._forget(next(iter(self._open)))
        return file

    def _close_unwanted(self, opened: asyncio.Future[int]) -> None:
        if not opened.cancelled() and opened.exception() is None:
            self.disk.close(opened.result())

    def _release(self, file: _OpenFile) -> None:
        file.users -= 1
        if file.dropped and not file.users:
            self.disk.close(file.fd)

    def _forget(self, key: int) -> None:
        if key in self._opening:
            self._overtaken.add(key)
        file = self._open.pop(key, None)
        if file is not None:
            file.dropped = True  # its last reader closes it
            if not file.users:
                self.disk.close(file.fd)

    def close(self) -> None:
        self._closed = True
        for key in list(self._open):
            self._forget(key)

    # --- listing and dropping --- ----

    async def segments_of(self, log_id: int) -> list[tuple[int, int]]:
        """Return (segment, size in bytes) of a log's files, ascending, including preallocated unused ones."""
        directory = self._directories.get(log_id)
        if directory is None:  # gone meanwhile
            return []
        segments = await self.disk.run(self._list, directory)
        there = {segment_key(log_id, segment) for segment, _ in segments}
        for key in [key for key in self._open if key >> 20 == log_id and key not in there]:
            # Dropped by another node: kept open, it would occupy disk space.
            if key not in self._opening:
                self._forget(key)
        return segments

    def _list(self, directory: str) -> list[tuple[int, int]]:
        sizes: list[tuple[int, int]] = []
        for segment in list_segments(self.disk, directory):
            with contextlib.suppress(FileNotFoundError):
                sizes.append((segment, self.disk.size(f"{directory}/{segment_name(segment)}")))
        return sizes

    async def drop(self, log_id: int, segments: Iterable[int]) -> None:
        """Delete segments durably.  :class:`~backend.journal.pins.Pins` decides which ones may be deleted.

        A few of the own log (:meth:`keep_spares`) are only renamed, and used again.  A reader that still has such a
        file open may find zeros or other rows in it: as with a deleted file, its caller then looks where the record is.
        """
        numbers = sorted(segments)
        for segment in numbers:
            self._forget(segment_key(log_id, segment))
        directory = self._directories.get(log_id)
        if directory is not None:
            kept = numbers[: max(0, SPARES_MAX - len(self._spares))] if log_id == self._own and not self._closed else []
            spares = await self.disk.run(self._drop, directory, numbers, kept)
            self._spares.extend(spares)

    def _drop(self, directory: str, segments: list[int], kept: list[int]) -> list[str]:
        """Delete segments; return the paths of those that are kept as spares."""
        spares: list[str] = []
        try:
            for segment in segments:
                path = f"{directory}/{segment_name(segment)}"
                with contextlib.suppress(FileNotFoundError):  # another node has deleted it
                    if segment in kept and self.disk.size(path) == self._spare_bytes:
                        spare = f"{directory}/{_spare_name(segment)}"
                        self.disk.rename(path, spare)
                        spares.append(spare)
                    else:
                        self._delete(path)
            # Spares are overwritten only after this: a segment that a crash brings back must be whole.
            with contextlib.suppress(FileNotFoundError):  # another node has removed the folder
                self.disk.fsync_dir(directory)
        except OSError:
            for spare in spares:  # the next sweep does not list them
                with contextlib.suppress(OSError):
                    self.disk.unlink(spare)
            raise
        return spares

    # --- spares --- ----

    def keep_spares(self, log_id: int, segment_bytes: int) -> None:
        """Use segments of this log, of this size, again from now on."""
        self._own, self._spare_bytes = log_id, segment_bytes

    def take_spare(self) -> str | None:
        """Return the path of a file that the caller uses or deletes; None: there is none."""
        return self._spares.pop() if self._spares else None

    async def free_spares(self) -> bool:
        """Delete the spares, for want of space.  Returns whether there were any."""
        found = False
        while (path := self.take_spare()) is not None:
            found = True
            await self.disk.run(self._delete, path)
        return found

    def _delete_spares_in(self, directory: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # another node removes the log
            for name in self.disk.listdir(directory):
                if name.endswith(_SPARE_SUFFIX):
                    self._delete(f"{directory}/{name}")

    def _delete(self, path: str) -> None:
        self._free(path)
        self.disk.unlink(path)

    def _free(self, path: str) -> None:
        """Free all but the first step of a file.  After a crash it is shorter, and no scan reads it any more."""
        fd = self.disk.open(path)
        try:
            for size_bytes in range(self.disk.size(path) - FREE_STEP_BYTES, 0, -FREE_STEP_BYTES):
                self.disk.truncate(fd, size_bytes)
                self.disk.fdatasync(fd)
        finally:
            self.disk.close(fd)

    async def trim(self, log_id: int, last_segment: int, end_offset: int) -> None:
        """Free the space that a sealed log kept and never used: the rest of its last segment, later ones, and spares.

        Only for a log that is sealed and whose lock is held: bytes behind its end never existed.
        """
        directory = self.directory(log_id)
        used = last_segment if end_offset else last_segment - 1
        unused = [segment for segment, _ in await self.segments_of(log_id) if segment > used]
        await self.drop(log_id, unused)
        await self.disk.run(self._delete_spares_in, directory)
        if end_offset:
            await self.disk.run(self._truncate, f"{directory}/{segment_name(last_segment)}", end_offset)

    def _truncate(self, path: str, size_bytes: int) -> None:
        if self.disk.size(path) > size_bytes:
            fd = self.disk.open(path)
            try:
                self.disk.truncate(fd, size_bytes)
                self.disk.fdatasync(fd)
            finally:
                self.disk.close(fd)

    async def remove_log(self, log_id: int) -> bool:
        """Remove the folder of a sealed log if only its lock and spares are left in it.  Returns whether it is gone."""
        directory = self._directories.get(log_id)
        removed = directory is None or await self.disk.run(self._remove, directory)
        if removed:
            self._directories.pop(log_id, None)
        return removed

    def _remove(self, directory: str) -> bool:
        try:
            names = self.disk.listdir(directory)
        except FileNotFoundError:
            return True
        if any(name != LOCK_FILE and not name.endswith(_SPARE_SUFFIX) for name in names):
            return False
        with contextlib.suppress(FileNotFoundError):  # another node has removed it at the same time
            for name in names:
                self.disk.unlink(f"{directory}/{name}")
            self.disk.rmdir(directory)
        self.disk.fsync_dir(self.root)
        return True


def _spans(positions: list[int]) -> list[list[int]]:
    """Split ascending positions into runs of one segment that are worth reading together."""
    spans: list[list[int]] = []
    span: list[int] = []
    limit = -1
    for position in positions:
        if position < limit and position - span[-1] <= SPAN_GAP_MAX >> 3:
            span.append(position)
        else:
            span = [position]
            spans.append(span)
            limit = min(position + (SPAN_BYTES_MAX >> 3), (position >> 24) + 1 << 24)
    return spans
