"""A file that records progress line by line.

Lines are written before and after the work that they record.  They survive a kill of the process at any moment.
They are not synced: after a power failure the last ones may be missing, and the work they record is done again.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from holdfast.commandline.client import CommandFailed

_H = TypeVar("_H", bound=msgspec.Struct)


class Unusable(CommandFailed):
    """The file cannot be used; the text says why, and what to do."""


class ProgressFile:
    """A header with entries.  Only one process has the file open at a time."""

    def __init__(self, path: Path, descriptor: int, entries: list[Any]) -> None:
        self.path = path
        self.entries = entries
        """Entries read when it was opened."""
        self._descriptor = descriptor
        self._encode = msgspec.json.Encoder().encode
        self.written_bytes = os.fstat(descriptor).st_size

    @classmethod
    def opened(cls, path: Path, header: _H, header_type: type[_H], entry_type: Any) -> ProgressFile:
        """Open or create the file.  Raises :class:`Unusable`."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Unusable(f"{path} cannot be written: {error.strerror}") from None
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Unusable(f"{path} is in use by another process") from None
            with open(descriptor, "rb", closefd=False) as file:
                lines = file.read().split(b"\n")
            torn = lines.pop()
            if torn:  # the process was killed while it wrote this line
                os.ftruncate(descriptor, os.fstat(descriptor).st_size - len(torn))
            if not lines:
                journal = cls(path, descriptor, [])
                journal.write(header)
                return journal
            try:
                found = msgspec.json.decode(lines[0], type=header_type)
                decode = msgspec.json.Decoder(entry_type).decode
                entries = [decode(line) for line in lines[1:]]
            except msgspec.DecodeError as error:
                raise Unusable(f"{path} is damaged ({error}): move it away to start over") from None
            if found != header:
                raise Unusable(f"{path} belongs to another file, queue or service: move it away to start over")
            return cls(path, descriptor, entries)
        except BaseException:
            os.close(descriptor)
            raise

    def write(self, entry: msgspec.Struct) -> None:
        """Append a line.  Raises :class:`Unusable`; the line is not there then."""
        line = self._encode(entry) + b"\n"
        try:
            if os.write(self._descriptor, line) < len(line):
                os.ftruncate(self._descriptor, self.written_bytes)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise Unusable(f"{self.path} cannot be written: {error.strerror}") from None
        self.written_bytes += len(line)

    def replace(self, header: msgspec.Struct, entries: list[msgspec.Struct]) -> None:
        """Replace the file's content atomically.  The lock moves to the new file.

        Raises :class:`Unusable`; the file is unchanged then.
        """
        aside = self.path.with_name(f"{self.path.name}.new")
        content = b"".join(self._encode(one) + b"\n" for one in (header, *entries))
        try:
            with aside.open("wb") as file:
                file.write(content)
            descriptor = os.open(aside, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            aside.replace(self.path)
        except OSError as error:
            raise Unusable(f"{self.path} cannot be replaced: {error.strerror}") from None
        os.close(self._descriptor)
        self._descriptor, self.written_bytes = descriptor, len(content)

    def close(self) -> None:
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
