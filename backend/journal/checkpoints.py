"""Immutable chunks of shards' states, in files beside the segments of the log that wrote them.

A file holds the chunks of one :meth:`~PieceStore.begin`::

    magic, format, log id, number, crc | length, crc, chunk, padding to 8 | ...

It is durable before any entry can name it, and is never changed.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple, Protocol
from zlib import crc32

import msgspec

from backend.api import StorageFull, Unavailable
from backend.engine.blocks import Ref
from backend.journal.local.disk import Disk, is_media_error
from backend.journal.local.segments import SegmentFiles
from metadata_service.models import PieceRef

MAGIC: Final = b"HfCk"
FORMAT: Final = 1
_FILE: Final = Struct("<4sBBHIII")  # magic, format, flags, reserved, log id, number, reserved
_PIECE: Final = Struct("<II")  # length, crc
FILE_HEADER_BYTES: Final = _FILE.size + 4
SYNC_BYTES: Final = 1 << 20
"""Step size in which a checkpoint is synced, so that no commit has to wait behind one large flush."""

assert FILE_HEADER_BYTES % 8 == 0


class PieceDamaged(Exception):
    """A chunk differs from what was written."""

    def __init__(self, file: str, offset: int, what: str) -> None:
        super().__init__(f"{file}:{offset}: {what}")
        self.file = file
        self.offset = offset


class PieceFile(NamedTuple):
    log_id: int
    file: int
    size_bytes: int


class PieceWriter(Protocol):
    """Collects chunks.  The reference of each is known at once, so that chunks can name each other."""

    def add(self, piece: bytes) -> PieceRef:
        """Add a chunk; return its reference, valid once :meth:`finish` has returned."""

    async def finish(self) -> None:
        """Make the chunks durable.  Raises :class:`StorageFull`, :class:`Unavailable`; then none of them exists."""


class PieceReader(Protocol):
    """Reads checkpoint chunks."""

    async def get(self, ref: PieceRef) -> bytes:
        """Return a chunk.  Raises :class:`PieceDamaged`, :class:`Unavailable`."""

    async def get_many(self, refs: Sequence[PieceRef]) -> list[bytes]:
        """Return the chunks in the order of ``refs``.  Raises the errors of :meth:`get`."""


class PieceStore(PieceReader, Protocol):
    """Stores checkpoint chunks."""

    async def begin(self, log_id: int) -> PieceWriter:
        """Begin a new file of chunks."""

    async def drop_file(self, log_id: int, file: int) -> None:
        """Delete one writer's file.  Repeatable."""

    async def list_files(self, log_id: int) -> list[PieceFile]:
        """Return the files of chunks of one log."""


class LocalPieceWriter:
    """Writes one file of chunks."""

    def __init__(self, disk: Disk, directory: str, log_id: int, number: int) -> None:
        self._disk = disk
        self._directory = directory
        self._log_id = log_id
        self._number = number
        fixed = _FILE.pack(MAGIC, FORMAT, 0, 0, log_id, number, 0)
        self._parts = [fixed, crc32(fixed).to_bytes(4, "little")]
        self._offset = FILE_HEADER_BYTES
        self._refs: list[PieceRef] = []

    def add(self, piece: bytes) -> PieceRef:
        check = crc32(piece)
        ref = PieceRef(self._log_id, self._number, self._offset, len(piece), check)
        self._refs.append(ref)
        self._parts += (_PIECE.pack(len(piece), check), piece, bytes(-len(piece) & 7))
        self._offset += _PIECE.size + (len(piece) + 7 & ~7)
        return ref

    async def finish(self) -> None:
        if not self._refs:
            return
        try:
            await self._disk.run(self._write)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageFull(f"no room for a checkpoint in {self._directory}") from error
            raise Unavailable(f"a checkpoint cannot be written in {self._directory}: {error}") from error

    def _chunks(self) -> Iterator[bytes]:
        """Yield the data in parts that are quick to assemble, because that holds the GIL and blocks the event loop."""
        parts, self._parts = self._parts, []
        parts.reverse()
        chunk: list[bytes] = []
        size_bytes = 0
        while parts:
            chunk.append(parts.pop())
            size_bytes += len(chunk[-1])
            if size_bytes >= SYNC_BYTES or not parts:
                yield b"".join(chunk)
                chunk.clear()
                size_bytes = 0

    def _write(self) -> None:
        path = _path(self._directory, self._number)
        fd = self._disk.create(path)
        try:
            written = 0
            for data in self._chunks():
                self._disk.pwrite(fd, data, written)
                self._disk.fdatasync(fd)
                written += len(data)
            assert written == self._offset
            for ref in self._refs:
                assert self._disk.pread(fd, _PIECE.size, ref.offset) == _PIECE.pack(ref.length, ref.crc)
            assert self._disk.size(path) == written
            self._disk.fsync_dir(self._directory)
        except OSError:
            with contextlib.suppress(OSError):
                self._disk.unlink(path)
            raise
        finally:
            self._disk.close(fd)


class LocalPieces:
    """Chunks in the folders of a node's logs."""

    def __init__(self, disk: Disk, files: SegmentFiles) -> None:
        self._disk = disk
        self._files = files
        self._next: dict[int, int] = {}
        """Number of the next file in each log's folder."""

    async def begin(self, log_id: int) -> LocalPieceWriter:
        directory = self._files.directory(log_id)
        if log_id not in self._next:
            numbers = [number for number, _ in await self._disk.run(self._list, directory)]
            self._next.setdefault(log_id, max(numbers, default=0) + 1)
        number = self._next[log_id]
        self._next[log_id] += 1
        return LocalPieceWriter(self._disk, directory, log_id, number)

    async def get(self, ref: PieceRef) -> bytes:
        return (await self.get_many([ref]))[0]

    async def get_many(self, refs: Sequence[PieceRef]) -> list[bytes]:
        try:
            return await self._disk.run(self._read, list(refs))
        except OSError as error:
            raise Unavailable(f"a checkpoint cannot be read: {error}") from error

    async def drop_file(self, log_id: int, file: int) -> None:
        if self._files.known(log_id):  # otherwise it is gone
            await self._disk.run(self._drop, self._files.directory(log_id), file)

    async def list_files(self, log_id: int) -> list[PieceFile]:
        if not self._files.known(log_id):
            return []  # gone meanwhile
        found = await self._disk.run(self._list, self._files.directory(log_id))
        return [PieceFile(log_id, number, size_bytes) for number, size_bytes in found]

    # --- blocking --- ----

    def _read(self, refs: list[PieceRef]) -> list[bytes]:
        fds: dict[str, int] = {}
        try:
            return [self._read_piece(ref, fds) for ref in refs]
        finally:
            for fd in fds.values():
                self._disk.close(fd)

    def _read_piece(self, ref: PieceRef, fds: dict[str, int]) -> bytes:
        if not self._files.known(ref.log_id):
            raise PieceDamaged(f"log {ref.log_id}, file {ref.file}", ref.offset, "the folder of the log is missing")
        path = _path(self._files.directory(ref.log_id), ref.file)
        if path not in fds:
            try:
                fds[path] = self._disk.open(path)
            except FileNotFoundError:
                raise PieceDamaged(path, ref.offset, "the file is missing") from None
        try:
            data = self._disk.pread(fds[path], _PIECE.size + ref.length, ref.offset)
        except OSError as error:
            if not is_media_error(error):
                raise
            raise PieceDamaged(path, ref.offset, f"the piece cannot be read: {error}") from error
        piece = data[_PIECE.size :]
        if data[: _PIECE.size] != _PIECE.pack(ref.length, ref.crc) or crc32(piece) != ref.crc:
            raise PieceDamaged(path, ref.offset, "the piece is rotten")
        return piece

    def _list(self, directory: str) -> list[tuple[int, int]]:
        try:
            names = self._disk.listdir(directory)
        except FileNotFoundError:
            return []
        return [
            (int(name[5:-4]), self._disk.size(f"{directory}/{name}"))
            for name in names
            if name.startswith("ckpt-") and name.endswith(".bin") and name[5:-4].isdigit()
        ]

    def _drop(self, directory: str, number: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(_path(directory, number))
            self._disk.fsync_dir(directory)  # fails if another node has removed the folder


def _path(directory: str, number: int) -> str:
    return f"{directory}/ckpt-{number:08d}.bin"


class ShardManifest(msgspec.Struct, array_like=True):
    """The first chunk of a shard's checkpoint: references to the chunks of its partitions."""

    format: int
    partitions: list[tuple[int, Ref]]
    time_ms: int = 0
    """The shard's time."""
    clock_ms: int = 0
    """The owner's clock."""


MANIFEST_FORMAT = 1
encode_manifest = msgspec.msgpack.Encoder().encode
decode_manifest = msgspec.msgpack.Decoder(ShardManifest).decode
