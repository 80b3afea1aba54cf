"""File format of a log segment: its rows in sequence, each with its number and size.

A row has its own checksums (:mod:`backend.journal.rows`).  Unchanged rows give an identical file, so the
backups of one target share it.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import BinaryIO, Final, NamedTuple

from holdfast.backup.manifest import BackupUnusable

MARK: Final = b"HFROWS\0\1"
_HEAD: Final = Struct(">II")


class RowPosition(NamedTuple):
    """Position of a row in the file."""

    number: int
    offset: int
    size_bytes: int


def write_mark(file: BinaryIO) -> None:
    file.write(MARK)


def add(file: BinaryIO, number: int, data: bytes) -> None:
    file.write(_HEAD.pack(number, len(data)))
    file.write(data)


def places(file: BinaryIO) -> Iterator[RowPosition]:
    """Positions of the rows, in order.  Raises :class:`~holdfast.backup.manifest.BackupUnusable`."""
    size_bytes = file.seek(0, 2)
    file.seek(0)
    if file.read(len(MARK)) != MARK:
        raise BackupUnusable("a segment does not begin with its format's magic number")
    offset = len(MARK)
    while offset < size_bytes:
        file.seek(offset)
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            raise BackupUnusable("a segment ends within a row")
        number, row_bytes = _HEAD.unpack(head)
        place = RowPosition(number, offset + _HEAD.size, row_bytes)
        offset = place.offset + row_bytes
        if offset > size_bytes:
            raise BackupUnusable("a segment ends within a row")
        yield place


def read(file: BinaryIO, place: RowPosition) -> bytes:
    file.seek(place.offset)
    return file.read(place.size_bytes)
