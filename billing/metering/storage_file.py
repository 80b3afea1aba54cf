"""Spool file of the bytes that partitions stored, minute by minute: written by their owner, read for upload.

A minute consists of a few frames: new keys, changed partitions, and then a mark that completes the minute.  A partition
has an entry only if it changed; an unchanged one costs no space.  So for a partition without an entry the mark means
that it stored the amount of its last entry for another minute.  The minutes of a file are consecutive.

A process that is killed leaves a file whose last minute has no mark; that minute is ignored.  A free lock means that
the file is finished (:mod:`billing.metering.spool`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import BinaryIO, Final, NamedTuple

import msgspec

from billing.metering.buffers import UNFINISHED, BufferDamaged, sync_folder
from billing.metering.spool import STORAGE_SUFFIX, finished_files
from billing.metering.storage import BYTE_MS_MAX, HOUR_SECONDS, MINUTE_MS, MINUTE_SECONDS, StorageKey, StorageRecord

FORMAT: Final = 1
ENTRIES_AT_ONCE: Final = 2_000
"""Maximum number of entries in a frame."""

_MAGIC = b"hfstore1"
_FRAME = Struct("<II")
"""Length and CRC before each frame."""


class StorageEntry(msgspec.Struct, frozen=True, array_like=True):
    """Changes of a partition in the minute that the next mark ends.  Fields are only ever added at the end."""

    partition: int
    queue_id: int
    epoch: int
    byte_milliseconds: int
    """Byte-milliseconds in this minute."""
    bytes: int
    """Bytes at the end of the minute."""
    messages: int
    messages_max: int
    in_flight: int
    delayed: int
    oldest_ms: int
    """Time at which the oldest message was sent; 0 if nothing is stored."""
    gone: bool
    """True if the process no longer owns the partition, or it was deleted."""


class _Head(msgspec.Struct, frozen=True, array_like=True):
    format: int
    node: str


class _Keys(msgspec.Struct, frozen=True, array_like=True, tag="k"):
    """Keys of queues, valid for the rest of the file."""

    keys: Sequence[StorageKey]


class _Entries(msgspec.Struct, frozen=True, array_like=True, tag="e"):
    entries: Sequence[StorageEntry]


class _Minute(msgspec.Struct, frozen=True, array_like=True, tag="m"):
    """Mark that completes a minute."""

    minute_s: int
    sequence: int


_frames = msgspec.msgpack.Decoder(_Keys | _Entries | _Minute)


class StorageFile:
    """A storage file that is being written.  Created by :meth:`create`."""

    def __init__(self, path: Path, file: int, length: int) -> None:
        self.path = path
        self.through_s = 0
        """Last complete minute; 0: none."""
        self._file = file
        self._length = length

    @classmethod
    def create(cls, folder: Path, boot: str, number: int, node: str) -> StorageFile:
        """Create the ``number``-th file of this ``boot``.  Raises :class:`OSError`."""
        path = folder / f"{boot}-{number:08d}{STORAGE_SUFFIX}"
        fresh = path.with_suffix(UNFINISHED)
        file = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            head = _MAGIC + _framed(msgspec.msgpack.encode(_Head(FORMAT, node)))
            _write(file, head, 0)
            fresh.rename(path)  # a reader that finds it by its name finds it locked
            return cls(path, file, len(head))
        except BaseException:
            os.close(file)
            with contextlib.suppress(OSError):
                fresh.unlink()
            raise

    def append(self, minute_s: int, sequence: int, keys: Sequence[StorageKey], entries: Sequence[StorageEntry]) -> None:
        """Write the next minute durably.  Blocks.  Raises :class:`OSError`: then the minute is not in the file."""
        assert self.through_s in (0, minute_s - MINUTE_SECONDS), "the minutes of a file have no gap"
        frames = bytearray()
        for at in range(0, len(keys), ENTRIES_AT_ONCE):
            frames += _framed(msgspec.msgpack.encode(_Keys(keys[at : at + ENTRIES_AT_ONCE])))
        for at in range(0, len(entries), ENTRIES_AT_ONCE):
            frames += _framed(msgspec.msgpack.encode(_Entries(entries[at : at + ENTRIES_AT_ONCE])))
        frames += _framed(msgspec.msgpack.encode(_Minute(minute_s, sequence)))
        try:
            _write(self._file, frames, self._length)
            os.fdatasync(self._file)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._length)
            raise
        self._length += len(frames)
        self.through_s = minute_s

    def close(self) -> None:
        """Finish the file, and release the lock.

        A file without a minute is deleted.  Blocks.  Raises :class:`OSError`.
        """
        try:
            if self.through_s:
                sync_folder(self.path.parent)
            else:
                self.path.unlink()
        finally:
            os.close(self._file)


def _framed(data: bytes) -> bytes:
    return _FRAME.pack(len(data), zlib.crc32(data)) + data


def _write(file: int, data: bytes | bytearray, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, offset)
        view, offset = view[written:], offset + written


class _Stored(NamedTuple):
    """Amount that a partition stores from ``since_s`` until its next entry."""

    entry: StorageEntry
    since_s: int
    sequence: int


class FinishedStorage:
    """A file that is no longer written, held by this reader alone: its lock is held until :meth:`close`."""

    def __init__(self, path: Path, file: int) -> None:
        self.path = path
        self._file = os.fdopen(file, "rb")
        self.lost: list[str] = []
        """Descriptions of the parts that :meth:`records` could not read."""

    def records(self) -> Iterator[StorageRecord]:
        """Return the records of all complete minutes, with the keys known at the end of the file.

        Raises :class:`BufferDamaged`, before the first record, and :class:`OSError`.
        """
        node = self._head()
        self.lost = []
        keys = {key.queue_id: key for frame in self._read(self._file) if isinstance(frame, _Keys) for key in frame.keys}
        stored: dict[int, _Stored] = {}
        fresh: list[StorageEntry] = []
        end_s = 0
        self._head()
        for frame in self._read(self._file):
            if isinstance(frame, _Entries):
                fresh += frame.entries
            elif isinstance(frame, _Minute):
                end_s = frame.minute_s + MINUTE_SECONDS
                for entry in fresh:
                    key = keys[entry.queue_id]
                    before = stored.pop(entry.partition, None)
                    if before is not None:
                        yield from _unchanged(before, frame.minute_s, key, node)
                    if entry.byte_milliseconds or entry.messages or entry.messages_max:
                        yield _record(entry, frame.minute_s, 1, key, node, frame.sequence)
                    if entry.messages and not entry.gone:
                        stored[entry.partition] = _Stored(entry, end_s, frame.sequence)
                fresh = []
        for left in stored.values():
            yield from _unchanged(left, end_s, keys[left.entry.queue_id], node)

    def _head(self) -> str:
        """Read the first frame; returns the node that wrote the file."""
        self._file.seek(0)
        if self._file.read(len(_MAGIC)) != _MAGIC:
            raise BufferDamaged(f"{self.path} is not a storage file")
        data = _frame(self._file)
        if data is None:
            raise BufferDamaged(f"the head of {self.path} is damaged")
        head = msgspec.msgpack.decode(data, type=_Head, strict=False)
        if head.format != FORMAT:
            raise BufferDamaged(
                f"{self.path} has the format {head.format}, and this version of Holdfast reads {FORMAT}"
            )
        return head.node

    def _read(self, file: BinaryIO) -> Iterator[_Keys | _Entries | _Minute]:
        size = os.fstat(file.fileno()).st_size
        while (at := file.tell()) < size:
            data = _frame(file)
            if data is None:
                self.lost = [f"what follows byte {at}, of {size}"]
                return
            yield _frames.decode(data)

    def remove(self) -> None:
        """Delete the file; all its records are uploaded.  Raises :class:`OSError`."""
        self.path.unlink()

    def close(self) -> None:
        self._file.close()


def _frame(file: BinaryIO) -> bytes | None:
    """Read a frame; None: it is damaged or incomplete."""
    head = file.read(_FRAME.size)
    if len(head) < _FRAME.size:
        return None
    length, crc = _FRAME.unpack(head)
    data = file.read(length)
    return data if len(data) == length and zlib.crc32(data) == crc else None


def _unchanged(stored: _Stored, until_s: int, key: StorageKey, node: str) -> Iterator[StorageRecord]:
    """Records of minutes in which a partition did not change, each within one hour and the record's maximum."""
    entry, since_s, sequence = stored
    still = msgspec.structs.replace(entry, messages_max=entry.messages)
    record_s_max = max(1, BYTE_MS_MAX // (max(1, entry.bytes) * MINUTE_MS)) * MINUTE_SECONDS
    while since_s < until_s:
        end_s = min(until_s, since_s // HOUR_SECONDS * HOUR_SECONDS + HOUR_SECONDS, since_s + record_s_max)
        minutes = (end_s - since_s) // MINUTE_SECONDS
        whole = msgspec.structs.replace(still, byte_milliseconds=entry.bytes * minutes * MINUTE_MS)
        yield _record(whole, since_s, minutes, key, node, sequence)
        since_s = end_s


def _record(
    entry: StorageEntry, minute_s: int, minutes: int, key: StorageKey, node: str, sequence: int
) -> StorageRecord:
    end_ms = (minute_s + minutes * MINUTE_SECONDS) * 1000
    return StorageRecord(
        node=node,
        partition=entry.partition,
        minute_s=minute_s,
        minutes=minutes,
        key=key,
        byte_milliseconds=entry.byte_milliseconds,
        messages=entry.messages,
        messages_max=entry.messages_max,
        in_flight=entry.in_flight,
        delayed=entry.delayed,
        oldest_age_ms=max(0, end_ms - entry.oldest_ms) if entry.oldest_ms else 0,
        epoch=entry.epoch,
        sequence=sequence,
    )


def finished_storage(folder: Path) -> Iterator[FinishedStorage]:
    """Iterate over the finished storage files below a folder.  The caller closes them.  Raises :class:`OSError`."""
    for path, file in finished_files(folder, STORAGE_SUFFIX):
        yield FinishedStorage(path, file)
