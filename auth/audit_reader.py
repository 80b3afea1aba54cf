"""Reading of the audit log, newest lines first, in steps of bounded size.

The log is a file with its earlier generations (:class:`~auth.audit.AuditFile`).  A place in it is the number of a
file in the file system and an offset, so it stays right while files are renamed by a rotation.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from auth.audit import FILES_MAX

SCANNED_BYTES_MAX: Final = 4 << 20
"""Maximum bytes that one read looks through; a reader goes on from there."""
BLOCK_BYTES: Final = 128 << 10
LINE_BYTES_MAX: Final = 64 << 10
"""Maximum length of a line; lines of the service have at most some 6 kB."""
_PLACE: Final = re.compile(r"([0-9]{1,20})\.([0-9]{1,15})\Z", re.ASCII)


class PlaceGone(ValueError):
    """The text names no place in the files that exist."""


class AuditPart(NamedTuple):
    """Lines that were found, newest first, and the place before which to go on; None: there are no older lines."""

    lines: list[dict[str, Any]]
    next: str | None


class AuditReader:
    """Reads the log at ``path``."""

    def __init__(self, path: Path, *, files_max: int = FILES_MAX, scanned_bytes_max: int = SCANNED_BYTES_MAX) -> None:
        self._paths = [path, *(path.with_name(f"{path.name}.{number}") for number in range(1, files_max))]
        self._scanned_bytes_max = scanned_bytes_max

    def read(self, before: str, limit: int, containing: bytes, accepts: Callable[[dict[str, Any]], bool]) -> AuditPart:
        """Read at most ``limit`` lines that contain these bytes and that ``accepts`` returns True for.

        ``before``: place of an earlier part; empty: the end of the log.  Blocks on the disk.  Raises
        :class:`PlaceGone`, and ``OSError``.
        """
        found: list[dict[str, Any]] = []
        left = self._scanned_bytes_max
        files = self._open()
        try:
            at, end = _start(before, files)
            for number, file in enumerate(files[at:], at):
                size = end if number == at and end is not None else os.fstat(file).st_size
                for start, line in _lines_backwards(file, size):
                    left -= len(line) + 1
                    if containing in line and (shown := _decoded(line)) is not None and accepts(shown):
                        found.append(shown)
                    if len(found) >= limit or left <= 0:
                        older = start > 0 or number + 1 < len(files)
                        return AuditPart(found, f"{os.fstat(file).st_ino}.{start}" if older else None)
            return AuditPart(found, None)
        finally:
            for file in files:
                os.close(file)

    def _open(self) -> list[int]:
        """Open the files that exist, newest first; of a rotation under way one may have two names."""
        files: list[int] = []
        numbers: set[int] = set()
        for path in self._paths:
            try:
                file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            number = os.fstat(file).st_ino
            if number in numbers:
                os.close(file)
            else:
                numbers.add(number)
                files.append(file)
        return files


def _start(before: str, files: list[int]) -> tuple[int, int | None]:
    """Index of the first file, and the offset to begin before; None: its end."""
    if not before:
        return 0, None
    match = _PLACE.match(before)
    if match is not None:
        for at, file in enumerate(files):
            status = os.fstat(file)
            if status.st_ino == int(match[1]) and int(match[2]) <= status.st_size:
                return at, int(match[2])
    raise PlaceGone(before)


def _lines_backwards(file: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Offsets and contents of the lines before ``end``, last first; the end of a file may be a torn line."""
    tail = b""
    while end > 0:
        start = max(0, end - BLOCK_BYTES)
        first, *rest = (os.pread(file, end - start, start) + tail).split(b"\n")
        at = start + len(first) + 1 + sum(len(one) + 1 for one in rest)
        for one in reversed(rest):
            at -= len(one) + 1
            if one:
                yield at, one
        end, tail = start, first if len(first) <= LINE_BYTES_MAX else b""
    if tail:
        yield 0, tail


def _decoded(line: bytes) -> dict[str, Any] | None:
    """Content of a line; None for the torn line of a process that was killed."""
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None
