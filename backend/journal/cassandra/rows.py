"""Decoding of the rows of a log on Cassandra into records.  No I/O.

The bytes of a row are the same as in a file (:mod:`backend.journal.rows`).  A row is stored as a whole or not at all,
so one whose checksums do not match is never a torn end of a log: it is damaged.
"""

from __future__ import annotations

from typing import NamedTuple

from backend.journal.cassandra.table_interface import RECORDS_MAX, ROWS_MAX, place
from backend.journal.row_scanner import Found, directory_of, is_whole
from backend.journal.rows import (
    DIRECTORY_ENTRY_BYTES,
    ROW_HEADER_BYTES,
    TAIL_BYTES,
    RecordDamage,
    RecordView,
    RowHeader,
    decode_directory,
    decode_intact,
    decode_record,
    decode_row_header,
    decode_row_tail,
)
from backend.journal.salvage import RecordPlace, damaged_record, salvage_row
from backend.journal.types import Damage, DamagedRecord


def key_of(log_id: int, segment: int, row: int) -> int:
    """Return the common part of the positions of a row's records: ``position >> 11``."""
    return (log_id << 20 | segment) << 13 | row


def rows_of(positions: list[int]) -> dict[tuple[int, int], list[int]]:
    """Return the rows that hold these positions: by (log, segment), ascending."""
    found: dict[tuple[int, int], set[int]] = {}
    for position in positions:
        segment = position >> 24
        found.setdefault((segment >> 20, segment & (1 << 20) - 1), set()).add(position >> 11 & ROWS_MAX - 1)
    return {segment: sorted(rows) for segment, rows in found.items()}


class StoredRow(NamedTuple):
    """Readable content of a row."""

    header: RowHeader
    records: list[tuple[int, RecordView | DamagedRecord]]
    damage: list[Damage]
    severe: bool
    """Records are lost, and their shards are unknown."""


def decode_row(data: bytes, log_id: int, segment: int, row: int) -> StoredRow | None:
    """Return all records of a row, with their positions; None if its header is unreadable."""
    file, first = place(log_id, segment), key_of(log_id, segment, row) << 11
    header, in_front = _header_of(data, log_id)
    if header is None:
        return None
    found = Found(0, header, in_front)
    directory, defects = directory_of(data, found)
    if not in_front:
        defects.insert(0, (0, "the row's header is damaged (its tail has a copy)"))
    end = ROW_HEADER_BYTES + header.payload_bytes
    intact = decode_intact(data, ROW_HEADER_BYTES, end, 0) if is_whole(data, found) else None
    if intact is not None:
        damage = [Damage(file, row, header.seq, what) for _, what in defects]
        return StoredRow(header, [(first + n, view) for n, (_, view) in enumerate(intact)], damage, False)
    salvaged = salvage_row(
        data, found, directory, file, row, lambda index, _at: RecordPlace(first + index, row, f"record {index}")
    )
    return StoredRow(header, *salvaged)


def record_in(data: bytes, position: int) -> RecordView | DamagedRecord:
    """Return the record at this position from the bytes of its row."""
    segment = position >> 24
    log_id, number, index = segment >> 20, segment & (1 << 20) - 1, position & RECORDS_MAX - 1
    file, row = place(log_id, number), position >> 11 & ROWS_MAX - 1
    header, _ = _header_of(data, log_id)
    if header is not None and index < header.record_count:
        at = ROW_HEADER_BYTES + header.payload_bytes
        tail = decode_row_tail(data, at + DIRECTORY_ENTRY_BYTES * header.record_count)
        directory = decode_directory(data, at, header.record_count, tail.directory_crc) if tail is not None else None
        if directory is not None:
            start = ROW_HEADER_BYTES + (directory[index - 1][0] if index else 0)
            record = decode_record(data, start, ROW_HEADER_BYTES + directory[index][0])
            if isinstance(record, RecordDamage):
                return damaged_record(record, position, file, row, directory[index][1])
            return record
    stored = decode_row(data, log_id, number, row)
    if stored is not None and index < len(stored.records):
        return stored.records[index][1]
    return DamagedRecord(position, file, row, "header")


def missing_record(position: int) -> DamagedRecord:
    """Return the result for a position whose row is missing."""
    segment = position >> 24
    return DamagedRecord(position, place(segment >> 20, segment & (1 << 20) - 1), position >> 11 & ROWS_MAX - 1, "file")


def _header_of(data: bytes, log_id: int) -> tuple[RowHeader | None, bool]:
    """Return the row's header, and whether it was read from the front instead of the tail."""
    header = decode_row_header(data, 0)
    in_front = header is not None
    if header is None:
        tail = decode_row_tail(data, len(data) - TAIL_BYTES)
        header = tail.header if tail is not None else None
    if header is None or header.log_id != log_id or header.row_bytes != len(data):
        return None, False
    return header, in_front
