"""Counters in a memory-mapped file: counts are in the kernel's memory at once, so they survive a killed process.

A buffer belongs to one process, which holds a lock on its file while it counts.  The lock is released when the process
continues in another buffer, or dies.  Whoever holds the lock of another's file has a buffer that does not change.

File: a header, the counters, the keys.  A slot is a key with its counters.  The key is written first and the number of
slots last, so a process that is killed in between leaves no partial slot.  A power loss may leave pages of different
ages: a key that cannot be read then is reported, and its slot is not counted.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

import msgspec

from billing.metering.spool import CALLS_SUFFIX, finished_files
from billing.metering.usage import COUNTS, UsageKey, UsageRecord

ABANDONED_SECONDS: Final = 3600
UNFINISHED: Final = ".new"
"""Suffix of a buffer that is being created.  One left by a killed process has no counts."""
FORMAT: Final = 2
CELL_BYTES: Final = 8
WIDTH: Final = len(COUNTS)
"""Number of cells in a slot."""
KEY_BYTES: Final = 160
"""Default bytes reserved for the key of each slot, on average; a buffer is full when its slots or its key bytes are."""
KEY_BYTES_MAX: Final = 81_920
"""Maximum size of one key; there always is room for one.

A queue has at most 50 tags, of at most 128 + 256 letters (Amazon SQS, ``TagQueue``) of 4 bytes.
"""

_MAGIC = b"hfusage1"
_HEAD_BYTES = 512
_HEAD = Struct("<8sIIQQ16s")
"""Magic, format, number of slots, sequence, minute, boot; then the node's name with its length, and a CRC of it all."""
_NAME = Struct("<H")
_CRC = Struct("<I")
_ENTRY = Struct("<II")
"""Length and CRC before each key."""
_USED = _HEAD_BYTES // CELL_BYTES - 1
"""Index of the cell that has the number of used slots."""
NODE_BYTES_MAX: Final = _HEAD_BYTES - _HEAD.size - _NAME.size - _CRC.size - CELL_BYTES


class BufferFull(Exception):
    """No room for another key."""


class BufferDamaged(Exception):
    """A file is not a buffer, or cannot be read; the text names the file and the reason."""


class BufferHeader(NamedTuple):
    """Header of a buffer."""

    node: str
    boot: str
    sequence: int
    minute_s: int


class Buffer:
    """A buffer that is being written.  Created by :meth:`create`."""

    def __init__(self, path: Path, file: int, mapped: mmap.mmap, slots: int, head: BufferHeader) -> None:
        self.path = path
        self.head = head
        self.cells = memoryview(mapped).cast("Q")
        """Cells of the whole file.  :meth:`add` returns the start of a slot's counters."""
        self._file = file
        self._mapped = mapped
        self._slots = slots
        self._first_key = self._next_key = _HEAD_BYTES + slots * WIDTH * CELL_BYTES

    @classmethod
    def create(cls, folder: Path, head: BufferHeader, slots: int, key_bytes: int = 0) -> Buffer:
        """Create a buffer with this number of slots.  All its disk space is allocated now, so counting never runs out.

        ``key_bytes``: total bytes of all keys, if more than :data:`KEY_BYTES` for each slot.  Raises :class:`OSError`.
        """
        path = folder / f"{head.boot}-{head.sequence:08d}{CALLS_SUFFIX}"
        fresh = path.with_suffix(UNFINISHED)
        encoded = _encode(head, slots)
        file = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            keys = max(slots * KEY_BYTES, -(-key_bytes // CELL_BYTES) * CELL_BYTES) + KEY_BYTES_MAX
            size = _HEAD_BYTES + slots * WIDTH * CELL_BYTES + keys
            os.posix_fallocate(file, 0, size)
            os.pwrite(file, encoded, 0)
            mapped = mmap.mmap(file, size)
            fresh.rename(path)  # a reader that finds it by its name finds it locked
            return cls(path, file, mapped, slots, head)
        except BaseException:
            os.close(file)
            with contextlib.suppress(OSError):
                fresh.unlink()
            raise

    @property
    def used(self) -> int:
        """Number of slots that have a key."""
        return self.cells[_USED]

    @property
    def key_bytes(self) -> int:
        """Total bytes of all keys."""
        return self._next_key - self._first_key

    def add(self, key: UsageKey) -> int:
        """Reserve a slot for this key; returns the index of its first cell.  Raises :class:`BufferFull`."""
        used = self.cells[_USED]
        encoded = msgspec.msgpack.encode(key)
        end = self._next_key + _ENTRY.size + len(encoded)
        if used >= self._slots or end > len(self._mapped):
            raise BufferFull
        self._mapped[self._next_key : end] = _ENTRY.pack(len(encoded), zlib.crc32(encoded)) + encoded
        self._next_key = end
        self.cells[_USED] = used + 1
        return _HEAD_BYTES // CELL_BYTES + used * WIDTH

    def set_minute(self, minute_s: int) -> None:
        """Set the minute that is counted.  Only while no slot is used."""
        assert not self.used
        self.head = self.head._replace(minute_s=minute_s)
        self._mapped[:_HEAD_BYTES] = _encode(self.head, self._slots)

    def close(self) -> None:
        """Finish counting: make the counts durable, free the unused space, release the lock.

        A buffer that counted nothing is deleted.  Blocks.  Raises :class:`OSError`; the counts are kept even then.
        """
        used = self.used
        self.cells.release()
        self._mapped.close()
        try:
            if used:
                os.ftruncate(self._file, self._next_key)
                os.fsync(self._file)
                sync_folder(self.path.parent)
            else:
                self.path.unlink()
        finally:
            os.close(self._file)


def sync_folder(folder: Path) -> None:
    """Make the folder's entries durable (fsync).  Raises :class:`OSError`."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _encode(head: BufferHeader, slots: int) -> bytes:
    name = head.node.encode()
    if not 0 < len(name) <= NODE_BYTES_MAX:
        raise ValueError(f"a node's name has 1 to {NODE_BYTES_MAX} bytes, not {len(name)}")
    fixed = _HEAD.pack(_MAGIC, FORMAT, slots, head.sequence, head.minute_s, head.boot.encode())
    content = fixed + _NAME.pack(len(name)) + name
    return (content + _CRC.pack(zlib.crc32(content))).ljust(_HEAD_BYTES, b"\0")


class Finished:
    """A buffer that is no longer written, held by this reader alone: its lock is held until :meth:`close`."""

    def __init__(self, path: Path, file: int) -> None:
        self.path = path
        self._file = file
        self.lost: list[str] = []
        """Descriptions of the parts that :meth:`records` could not read."""

    @property
    def size_bytes(self) -> int:
        """Size of the file.  Raises :class:`OSError`."""
        return os.fstat(self._file).st_size

    def records(self) -> list[UsageRecord]:
        """Return the counts, without keys whose counts are all zero.

        Raises :class:`BufferDamaged` and :class:`OSError`.
        """
        data = os.pread(self._file, self.size_bytes, 0)
        head, slots = _decode(self.path, data)
        used = int.from_bytes(data[_USED * CELL_BYTES : _HEAD_BYTES], "little")
        self.lost = []
        return list(self._slots(data, head, slots, used))

    def _slots(self, data: bytes, head: BufferHeader, slots: int, used: int) -> Iterator[UsageRecord]:
        at = _HEAD_BYTES + slots * WIDTH * CELL_BYTES
        cells = memoryview(data)[_HEAD_BYTES:at].cast("Q")
        for slot in range(min(used, slots)):
            counts = tuple(cells[slot * WIDTH : (slot + 1) * WIDTH])
            key, at = _key_at(data, at)
            if key is None:
                self.lost.append(f"the keys of slots {slot} to {used - 1}, of {used}")
                return
            if any(counts):
                yield UsageRecord(head.node, head.boot, head.sequence, slot, head.minute_s, key, counts)

    def remove(self) -> None:
        """Delete the file; all its records are uploaded.  Raises :class:`OSError`."""
        self.path.unlink()

    def close(self) -> None:
        os.close(self._file)


def _decode(path: Path, data: bytes) -> tuple[BufferHeader, int]:
    if len(data) < _HEAD_BYTES or not data.startswith(_MAGIC):
        raise BufferDamaged(f"{path} is not a usage buffer")
    _, version, slots, sequence, minute_s, boot = _HEAD.unpack_from(data)
    if version != FORMAT:
        raise BufferDamaged(f"{path} has the format {version}, and this version of Holdfast reads {FORMAT}")
    (length,) = _NAME.unpack_from(data, _HEAD.size)
    end = _HEAD.size + _NAME.size + length
    if end + _CRC.size > _USED * CELL_BYTES or _CRC.unpack_from(data, end) != (zlib.crc32(data[:end]),):
        raise BufferDamaged(f"the header of {path} is damaged")
    node = data[_HEAD.size + _NAME.size : end].decode()
    return BufferHeader(node, boot.decode(), sequence, minute_s), slots


def _key_at(data: bytes, at: int) -> tuple[UsageKey | None, int]:
    if at + _ENTRY.size > len(data):
        return None, at
    length, crc = _ENTRY.unpack_from(data, at)
    end = at + _ENTRY.size + length
    encoded = data[at + _ENTRY.size : end]
    if len(encoded) != length or zlib.crc32(encoded) != crc:
        return None, at
    try:
        return msgspec.msgpack.decode(encoded, type=UsageKey), end
    except msgspec.DecodeError:
        return None, at


def finished(folder: Path) -> Iterator[Finished]:
    """Iterate over the finished buffers below a folder, those of one boot in their order.

    The caller closes them.  Raises :class:`OSError`.
    """
    for path, file in finished_files(folder, CALLS_SUFFIX):
        yield Finished(path, file)


def clear(folder: Path) -> None:
    """Delete unfinished buffers of killed processes.  Raises :class:`OSError`."""
    for path in folder.rglob(f"*{UNFINISHED}"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > ABANDONED_SECONDS:
                path.unlink()
