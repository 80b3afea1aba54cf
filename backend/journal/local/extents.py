"""Extents as files of one folder beside the folders of the logs."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import AsyncIterator, Collection, Sequence
from pathlib import Path
from typing import Final

from backend.api import StorageFull, Unavailable, shard_of
from backend.extent_ids import ExtentId, extent_name, extent_named
from backend.journal.local.disk import Disk, is_media_error

FOLDER: Final = "extents"
SUFFIX: Final = ".ext"
SYNC_BYTES: Final = 1 << 20
"""Step size in which an append is synced, so that no commit has to wait behind one large flush."""
PAGE_BYTES: Final = 4096


def extent_path(root: Path, extent: ExtentId) -> Path:
    """Return the file of an extent in a journal's folder."""
    return root / FOLDER / f"{extent_name(extent)}{SUFFIX}"


class LocalExtents:
    """Implements :class:`backend.journal.extents.ExtentStore`."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self._folder = f"{root}/{FOLDER}"

    async def append(self, extent: ExtentId, offset: int, data: bytes) -> None:
        try:
            await self._disk.run(self._append, extent, offset, data)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageFull(f"no space for an extent in {self._folder}") from error
            raise Unavailable(f"an extent cannot be written in {self._folder}: {error}") from error

    async def read(self, extent: ExtentId, size_bytes: int, offset: int) -> bytes:
        try:
            return await self._disk.run(self._read, extent, size_bytes, offset)
        except OSError as error:
            raise Unavailable(f"an extent cannot be read: {error}") from error

    async def delete(self, extents: Sequence[ExtentId]) -> None:
        try:
            await self._disk.run(self._delete, list(extents))
        except OSError as error:
            raise Unavailable(f"extents cannot be deleted in {self._folder}: {error}") from error

    async def list_extents(self, shards: Collection[int]) -> AsyncIterator[list[ExtentId]]:
        try:
            names = await self._disk.run(self._disk.listdir, self._folder)
        except FileNotFoundError:
            return
        except OSError as error:
            raise Unavailable(f"the extents in {self._folder} cannot be listed: {error}") from error
        found = (extent_named(name.removesuffix(SUFFIX)) for name in names if name.endswith(SUFFIX))
        yield [extent for extent in found if extent is not None and shard_of(extent.partition) in shards]

    # --- blocking ---------------------------------------------------------------------------------------

    def _path(self, extent: ExtentId) -> str:
        return f"{self._folder}/{extent_name(extent)}{SUFFIX}"

    def _append(self, extent: ExtentId, offset: int, data: bytes) -> None:
        path = self._path(extent)
        if offset:
            fd = self._disk.open(path)
        else:
            self._disk.mkdir(self._folder)
            fd = self._disk.create(path)
        try:
            assert self._disk.size(path) >= offset, "an append begins where the one before it ended"
            for start in range(0, len(data), SYNC_BYTES):
                self._disk.pwrite(fd, data[start : start + SYNC_BYTES], offset + start)
                self._disk.fdatasync(fd)
            if not offset:
                self._disk.fsync_dir(self._folder)
        finally:
            self._disk.close(fd)

    def _read(self, extent: ExtentId, size_bytes: int, offset: int) -> bytes:
        try:
            fd = self._disk.open(self._path(extent))
        except FileNotFoundError:
            return b""
        try:
            return self._disk.pread(fd, size_bytes, offset)
        except OSError as error:
            if not is_media_error(error):
                raise
            return b"".join(self._read_page(fd, at, offset + size_bytes) for at in _pages(offset, size_bytes))
        finally:
            self._disk.close(fd)

    def _read_page(self, fd: int, offset: int, end: int) -> bytes:
        """Return the bytes up to the end of their page; zeros if the device has lost them."""
        size_bytes = min(end, offset // PAGE_BYTES * PAGE_BYTES + PAGE_BYTES) - offset
        try:
            return self._disk.pread(fd, size_bytes, offset)
        except OSError as error:
            if not is_media_error(error):
                raise
            return bytes(size_bytes)

    def _delete(self, extents: list[ExtentId]) -> None:
        for extent in extents:
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(self._path(extent))
        with contextlib.suppress(FileNotFoundError):
            self._disk.fsync_dir(self._folder)


def _pages(offset: int, size_bytes: int) -> list[int]:
    """Return the starts of the parts of a range that lie in different pages."""
    first = offset // PAGE_BYTES * PAGE_BYTES
    return [max(offset, at) for at in range(first, offset + size_bytes, PAGE_BYTES)]
