"""Positions in the files of a stopped server, found by the journal's format, and damage done to them."""

import asyncio
from pathlib import Path
from typing import NamedTuple

from backend.journal import rows
from backend.journal.local.disk import RealDisk
from backend.journal.local.scan import LocalScan
from backend.journal.local.segments import list_segments, segment_name
from backend.journal.types import Row


class FilePosition(NamedTuple):
    file: Path
    offset: int

    def flip(self) -> None:
        with self.file.open("r+b") as file:
            file.seek(self.offset)
            byte = file.read(1)[0]
            file.seek(self.offset)
            file.write(bytes([byte ^ 0x10]))


def logs(data: Path) -> list[Path]:
    """Return the folders of the logs with rows, oldest first."""
    folders = sorted((data / "journal").glob("*-*"), key=lambda folder: int(folder.name.rpartition("-")[2]))
    return [folder for folder in folders if folder.is_dir() and _first(folder) is not None]


def _first(folder: Path) -> tuple[int, int] | None:
    """Return (log id, segment) of the first segment in use."""
    for number in list_segments(RealDisk(), str(folder)):
        with (folder / segment_name(number)).open("rb") as file:
            header = rows.decode_segment_header(file.read(rows.SEGMENT_HEADER_BYTES))
        if header is not None:
            return header.log_id, number
    return None


def rows_of(folder: Path) -> list[Row]:
    """Return the rows of a log.  Raises FileNotFoundError if it has none, or a server deletes them meanwhile."""
    first = _first(folder)
    if first is None:
        raise FileNotFoundError(folder)

    async def read() -> list[Row]:
        disk = RealDisk()
        try:
            return [row async for row in LocalScan(disk, str(folder), first[0], from_segment=first[1]).rows()]
        finally:
            disk.close_workers()

    return asyncio.run(read())


def row_of(folder: Path, body: str) -> tuple[Row, int]:
    """Return the row with the message of this body, and the index of its record."""
    for row in rows_of(folder):
        for index, (_, record) in enumerate(row.records):
            if isinstance(record, rows.RecordView) and body.encode() in record.body:
                return row, index
    raise LookupError(body)


def places(folder: Path, body: str) -> dict[str, FilePosition]:
    """Return positions in and around the record of the message with this body, by kind."""
    row, index = row_of(folder, body)
    file = folder / segment_name(row.segment)
    position, record = row.records[index]
    assert isinstance(record, rows.RecordView)
    at = rows.place_of(position).offset
    end = row.offset + row.size_bytes
    directory = end - 72 - rows.DIRECTORY_ENTRY_BYTES * len(row.records)
    return {
        "row header": FilePosition(file, row.offset + 20),
        "record header": FilePosition(file, at + 9),
        "head": FilePosition(file, at + rows.RECORD_HEADER_BYTES + 2),
        "body": FilePosition(file, file.read_bytes().index(body.encode(), at)),
        "directory": FilePosition(file, directory + 2),
        "tail": FilePosition(file, end - 30),
        "segment header": FilePosition(file, 17),
        "start of the row": FilePosition(file, row.offset),
        "record": FilePosition(file, at),
        "end of the row": FilePosition(file, end),
    }


def pieces(data: Path) -> list[Path]:
    """Return the files of checkpoint pieces."""
    return sorted((data / "journal").glob("*/ckpt-*.bin"))
