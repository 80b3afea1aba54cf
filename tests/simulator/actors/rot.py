"""Bits that flip on the disk, and what each may cost.

A flip hits a row behind which another row lies: damage to the very last row cannot be told from one that was torn while
it was written.  What it may cost is known from where it hits: the body of a message costs that message, the rest of a
record its queue, the frame of a row nothing.  All of it has to be said, with the file.
"""

from random import Random
from typing import NamedTuple

from backend.journal.rows import (
    ROW_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    RecordView,
    RowHeader,
    decode_record,
    decode_row_header,
)
from tests.simulator.world.disk import SimDisk


class Flip(NamedTuple):
    path: str
    offset: int
    hit: str
    """``body``, ``record`` or ``frame`` of a row; ``checkpoint``."""
    partition: int = 0
    payload: bytes = b""
    """Payload of the message whose body was hit."""


def flip_a_bit(disk: SimDisk, random: Random, spared: set[str]) -> Flip | None:
    """Flip one bit of a file that is not spared; None if the chosen file has nothing to hit."""
    paths = [path for path in disk.paths() if path not in spared and path.endswith((".log", ".bin"))]
    if not paths:
        return None
    path = random.choice(paths)
    data = disk.contents(path)
    if path.endswith(".bin"):
        if random.random() < 0.8:
            return None
        flip = Flip(path, random.randrange(len(data)), "checkpoint")
    else:
        rows = _rows(data)
        if len(rows) < 2:
            return None
        flip = _in_row(path, data, *random.choice(rows[:-1]), random)
    disk.flip_bit(flip.path, flip.offset, random.randrange(8))
    return flip


def _rows(data: bytes) -> list[tuple[int, RowHeader]]:
    rows = []
    offset = SEGMENT_HEADER_BYTES
    while (header := decode_row_header(data, offset)) is not None:
        rows.append((offset, header))
        offset += header.row_bytes
    return rows


def _in_row(path: str, data: bytes, start: int, header: RowHeader, random: Random) -> Flip:
    first = start + ROW_HEADER_BYTES
    records = []
    offset = first
    while offset < first + header.payload_bytes:
        record = decode_record(data, offset)
        if not isinstance(record, RecordView):
            break
        records.append((offset, record))
        offset += record.size_bytes
    if not records or random.random() < 0.3:
        inside = [*range(start, first), *range(first + header.payload_bytes, start + header.row_bytes)]
        return Flip(path, random.choice(inside), "frame")
    at, record = random.choice(records)
    if record.body_bytes and random.random() < 0.6:
        where = record.body_offset + random.randrange(record.body_bytes)
        return Flip(path, where, "body", record.partition, record.body)
    return Flip(path, random.randrange(at, record.body_offset), "record", record.partition)
