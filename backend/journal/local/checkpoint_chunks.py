"""Checkpoint chunks in files beside the segments of the log that wrote them.

A file holds the chunks of one writer::

    magic, format, log id, number, crc | length, crc, chunk, padding to 8 | ...

It is durable before any entry can name it, and is never changed.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final

from isal.isal_zlib import crc32

from backend.api import StorageFull, Unavailable
from backend.journal.checkpoints import ChunkDamaged, ChunkFile
from backend.journal.local.disk import Disk, is_media_error
from backend.journal.local.segments import SegmentFiles
from metadata_service.models import ChunkRef

MAGIC: Final = b"HfCk"
FORMAT: Final = 1
_FILE: Final = Struct("<4sBBHIII")  # magic, format, flags, reserved, log id, number, reserved
_CHUNK: Final = Struct("<II")  # length, crc
FILE_HEADER_BYTES: Final = _FILE.size + 4
SYNC_BYTES: Final = 1 << 20
"""Step size in which a checkpoint is synced, so that no commit has to wait behind one large flush."""

assert FILE_HEADER_BYTES % 8 == 0


class LocalChunkWriter:
    """Writes one file of chunks."""

    def __init__(self, disk: Disk, directory: str, log_id: int, number: int) -> None:
        self._disk = disk
        self._directory = directory
        self._log_id = log_id
        self._number = number
        fixed = _FILE.pack(MAGIC, FORMAT, 0, 0, log_id, number, 0)
        self._parts = [fixed, crc32(fixed).to_bytes(4, "little")]
        self._offset = FILE_HEADER_BYTES
        self._refs: list[ChunkRef] = []

    def add(self, chunk: bytes) -> ChunkRef:
        check = crc32(chunk)
        ref = ChunkRef(self._log_id, self._number, self._offset, len(chunk), check)
        self._refs.append(ref)
        self._parts += (_CHUNK.pack(len(chunk), check), chunk, bytes(-len(chunk) & 7))
        self._offset += _CHUNK.size + (len(chunk) + 7 & ~7)
        return ref

    async def finish(self) -> None:
        if not self._refs:
            return
        try:
            await self._disk.run(self._write)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageFull(f"no space for a checkpoint in {self._directory}") from error
            raise Unavailable(f"a checkpoint cannot be written in {self._directory}: {error}") from error

    def _steps(self) -> Iterator[bytes]:
        """Yield the data in parts that are quick to assemble, because that holds the GIL and blocks the event loop."""
        parts, self._parts = self._parts, []
        parts.reverse()
        step: list[bytes] = []
        size_bytes = 0
        while parts:
            step.append(parts.pop())
            size_bytes += len(step[-1])
            if size_bytes >= SYNC_BYTES or not parts:
                yield b"".join(step)
                step.clear()
                size_bytes = 0

    def _write(self) -> None:
        path = _path(self._directory, self._number)
        fd = self._disk.create(path)
        try:
            written = 0
            for data in self._steps():
                self._disk.pwrite(fd, data, written)
                self._disk.fdatasync(fd)
                written += len(data)
            assert written == self._offset
            for ref in self._refs:
                assert self._disk.pread(fd, _CHUNK.size, ref.offset) == _CHUNK.pack(ref.length, ref.crc)
            assert self._disk.size(path) == written
            self._disk.fsync_dir(self._directory)
        except OSError:
            with contextlib.suppress(OSError):
                self._disk.unlink(path)
            raise
        finally:
            self._disk.close(fd)


class LocalChunks:
    """Chunks in the folders of a node's logs."""

    def __init__(self, disk: Disk, files: SegmentFiles) -> None:
        self._disk = disk
        self._files = files
        self._next: dict[int, int] = {}
        """Number of the next file in each log's folder."""

    async def create_file(self, log_id: int) -> LocalChunkWriter:
        directory = self._files.directory(log_id)
        if log_id not in self._next:
            numbers = [number for number, _ in await self._disk.run(self._list, directory)]
            self._next.setdefault(log_id, max(numbers, default=0) + 1)
        number = self._next[log_id]
        self._next[log_id] += 1
        return LocalChunkWriter(self._disk, directory, log_id, number)

    async def get(self, ref: ChunkRef) -> bytes:
        return (await self.get_many([ref]))[0]

    async def get_many(self, refs: Sequence[ChunkRef]) -> list[bytes]:
        try:
            return await self._disk.run(self._read, list(refs))
        except OSError as error:
            raise Unavailable(f"a checkpoint cannot be read: {error}") from error

    async def drop_file(self, log_id: int, file: int) -> None:
        if self._files.known(log_id):  # otherwise it is gone
            await self._disk.run(self._drop, self._files.directory(log_id), file)

    async def list_files(self, log_id: int) -> list[ChunkFile]:
        if not self._files.known(log_id):
            return []  # gone meanwhile
        found = await self._disk.run(self._list, self._files.directory(log_id))
        return [ChunkFile(log_id, number, size_bytes) for number, size_bytes in found]

    # --- blocking --- ----

    def _read(self, refs: list[ChunkRef]) -> list[bytes]:
        fds: dict[str, int] = {}
        try:
            return [self._read_chunk(ref, fds) for ref in refs]
        finally:
            for fd in fds.values():
                self._disk.close(fd)

    def _read_chunk(self, ref: ChunkRef, fds: dict[str, int]) -> bytes:
        if not self._files.known(ref.log_id):
            raise ChunkDamaged(f"log {ref.log_id}, file {ref.file}", ref.offset, "the folder of the log is missing")
        path = _path(self._files.directory(ref.log_id), ref.file)
        if path not in fds:
            try:
                fds[path] = self._disk.open(path)
            except FileNotFoundError:
                raise ChunkDamaged(path, ref.offset, "the file is missing") from None
        try:
            data = self._disk.pread(fds[path], _CHUNK.size + ref.length, ref.offset)
        except OSError as error:
            if not is_media_error(error):
                raise
            raise ChunkDamaged(path, ref.offset, f"the chunk cannot be read: {error}") from error
        chunk = data[_CHUNK.size :]
        if data[: _CHUNK.size] != _CHUNK.pack(ref.length, ref.crc) or crc32(chunk) != ref.crc:
            raise ChunkDamaged(path, ref.offset, "the chunk is damaged")
        return chunk

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
