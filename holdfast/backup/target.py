"""Storage of backups: a local folder, or any of pyarrow's filesystems.

Files are written atomically, as far as the filesystem allows: in a local folder each file is written under a
temporary name, synced and renamed; an object store shows only complete objects.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import urlsplit

CHUNK_BYTES: Final = 1 << 20
_PART: Final = ".part-"


class TargetUnusable(Exception):
    """The target cannot be read or written; the text says why."""


class BackupFile(NamedTuple):
    """A file in a target."""

    path: str
    size_bytes: int
    age_seconds: float


class BackupTarget(Protocol):
    """Storage of backups.  Paths have ``/`` between their parts.  All methods raise :class:`TargetUnusable`."""

    name: str
    """Name for messages, without secrets."""

    def write(self, path: str, chunks: Iterable[bytes]) -> None:
        """Write a file, replacing any other; durable afterwards."""

    def read(self, path: str) -> Iterator[bytes] | None:
        """Read a file in chunks of at most :data:`CHUNK_BYTES`; None: it does not exist."""

    def size(self, path: str) -> int | None:
        """Size of a file in bytes; None: it does not exist."""

    def files(self, folder: str) -> list[BackupFile]:
        """All files below a folder, by path; empty if it does not exist."""

    def remove(self, path: str) -> None:
        """Remove a file if it exists."""


def open_target(place: str) -> BackupTarget:
    """Open the target at a folder or URL.  Raises :class:`TargetUnusable`."""
    if "://" not in place:
        return LocalTarget(Path(place))
    parts = urlsplit(place)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise TargetUnusable(f"{place} names another machine; a folder of this one is file:///folder")
        from urllib.parse import unquote

        return LocalTarget(Path(unquote(parts.path)))
    return ArrowTarget(place)


class LocalTarget:
    """A folder of this machine, local or mounted; its files are readable only by their owner."""

    def __init__(self, folder: Path) -> None:
        self.name = str(folder)
        self._folder = folder.absolute()

    def write(self, path: str, chunks: Iterable[bytes]) -> None:
        whole = self._folder / path
        try:
            self._make(whole.parent)
            aside = whole.with_name(f"{_PART}{whole.name}.{os.getpid()}")
            try:
                fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
                with open(fd, "wb", buffering=0) as file:
                    for chunk in chunks:
                        rest = memoryview(chunk)
                        while rest:
                            rest = rest[file.write(rest) :]
                    os.fsync(fd)
                aside.rename(whole)
            finally:
                aside.unlink(missing_ok=True)
            _sync(whole.parent)
        except OSError as error:
            raise self._unusable("written", error) from error

    def read(self, path: str) -> Iterator[bytes] | None:
        try:
            file = open(self._folder / path, "rb", buffering=0)  # noqa: SIM115 - closed by who reads its chunks
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unusable("read", error) from error
        return _chunks(file, (OSError,), self._unusable)

    def size(self, path: str) -> int | None:
        try:
            return (self._folder / path).stat().st_size
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unusable("read", error) from error

    def files(self, folder: str) -> list[BackupFile]:
        found = []
        try:
            for above, _, names in os.walk(self._folder / folder):
                for name in names:
                    path = Path(above) / name
                    try:
                        seen = path.stat()
                    except FileNotFoundError:
                        continue  # removed meanwhile
                    kept = BackupFile(str(path.relative_to(self._folder)), seen.st_size, time.time() - seen.st_mtime)
                    found.append(kept)
        except OSError as error:
            raise self._unusable("read", error) from error
        return sorted(found)

    def remove(self, path: str) -> None:
        try:
            (self._folder / path).unlink(missing_ok=True)
        except OSError as error:
            raise self._unusable("written", error) from error

    def _make(self, folder: Path) -> None:
        if folder.is_dir():
            return
        self._make(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        _sync(folder.parent)

    def _unusable(self, what: str, error: OSError) -> TargetUnusable:
        return TargetUnusable(f"{self.name} cannot be {what}: {error.strerror or error}")


class ArrowTarget:
    """A URL that pyarrow supports: ``s3://bucket/folder?region=…``, ``gs://bucket/folder``, ``hdfs://…``."""

    def __init__(self, url: str) -> None:
        try:
            import pyarrow as pa
            from pyarrow import fs
        except ImportError as error:
            raise TargetUnusable(f"a target like {_shown(url)} needs pyarrow, which is not installed") from error
        self.name = _shown(url)
        self._fs: Any = fs
        self._errors: tuple[type[Exception], ...] = (pa.ArrowException, OSError)
        try:
            self._files, root = fs.FileSystem.from_uri(url)
        except (*self._errors, ValueError) as error:
            message = str(error).replace(url, self.name)
            raise TargetUnusable(f"{self.name} cannot be a target for backups: {message}") from None
        self._root = root.rstrip("/")

    def write(self, path: str, chunks: Iterable[bytes]) -> None:
        started = False
        try:
            if self._files.type_name not in ("s3", "gcs"):  # these have no folders
                self._files.create_dir(self._at(path).rpartition("/")[0], recursive=True)
            with self._files.open_output_stream(self._at(path), compression=None) as file:
                started = True
                for chunk in chunks:
                    file.write(chunk)
        except BaseException as error:
            if started:  # closing the stream has created an incomplete object
                with contextlib.suppress(*self._errors):
                    self._files.delete_file(self._at(path))
            if isinstance(error, self._errors):
                raise self._unusable("written", error) from error
            raise

    def read(self, path: str) -> Iterator[bytes] | None:
        try:
            if self.size(path) is None:
                return None
            file = self._files.open_input_stream(self._at(path), compression=None)
        except self._errors as error:
            raise self._unusable("read", error) from error
        return _chunks(file, self._errors, self._unusable)

    def size(self, path: str) -> int | None:
        try:
            found = self._files.get_file_info(self._at(path))
        except self._errors as error:
            raise self._unusable("read", error) from error
        return int(found.size) if found.is_file else None

    def files(self, folder: str) -> list[BackupFile]:
        top = self._at(folder)
        try:
            found = self._files.get_file_info(self._fs.FileSelector(top, recursive=True, allow_not_found=True))
        except self._errors as error:
            raise self._unusable("read", error) from error
        now = time.time()
        return sorted(
            BackupFile(f"{folder}/{one.path.removeprefix(f'{top}/')}", int(one.size), now - (one.mtime_ns or 0) / 1e9)
            for one in found
            if one.is_file
        )

    def remove(self, path: str) -> None:
        try:
            self._files.delete_file(self._at(path))
        except FileNotFoundError:
            pass
        except self._errors as error:
            raise self._unusable("written", error) from error

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"

    def _unusable(self, what: str, error: BaseException) -> TargetUnusable:
        return TargetUnusable(f"{self.name} cannot be {what}: {error}")


def _chunks(
    file: Any, errors: tuple[type[Exception], ...], unusable: Callable[[str, Any], TargetUnusable]
) -> Iterator[bytes]:
    """Read an open file to its end, and close it."""
    try:
        with file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
    except errors as error:
        raise unusable("read", error) from error


def _shown(url: str) -> str:
    """The URL without credentials and options."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
