"""Decoding of the rows of a log on Cassandra into records.  No I/O.

The bytes of a row are the same as in a file (:mod:`backend.journal.rows`).  A row is stored as a whole or not at all,
so one whose checksums do not match is never a torn end of a log: it is damaged.
"""

from __future__ import annotations

from typing import NamedTuple

from backend.journal.cassandra.table_interface import RECORDS_MOST, ROWS_MOST, place
from backend.journal.local.scan import Damage
from backend.journal.local.segments import RottenRecord
from backend.journal.row_scanner import Found, directory_of, is_whole
from backend.journal.rows import (
    DIRECTORY_ENTRY_BYTES,
    ROW_HEADER_BYTES,
    TAIL_BYTES,
    RecordView,
    Rotten,
    RowHeader,
    decode_directory,
    decode_intact,
    decode_record,
    decode_row_header,
    decode_row_tail,
)


def key_of(log_id: int, segment: int, row: int) -> int:
    """Return the common part of the positions of a row's records: ``position >> 11``."""
    return (log_id << 20 | segment) << 13 | row


def rows_of(positions: list[int]) -> dict[tuple[int, int], list[int]]:
    """Return the rows that hold these positions: by (log, segment), ascending."""
    found: dict[tuple[int, int], set[int]] = {}
    for position in positions:
        segment = position >> 24
        found.setdefault((segment >> 20, segment & (1 << 20) - 1), set()).add(position >> 11 & ROWS_MOST - 1)
    return {segment: sorted(rows) for segment, rows in found.items()}


class StoredRow(NamedTuple):
    """Readable content of a row."""

    header: RowHeader
    records: list[tuple[int, RecordView | RottenRecord]]
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
        defects.insert(0, (0, "the row's header is rotten (its tail has a copy)"))
    end = ROW_HEADER_BYTES + header.payload_bytes
    intact = decode_intact(data, ROW_HEADER_BYTES, end, 0) if is_whole(data, found) else None
    if intact is not None:
        damage = [Damage(file, row, header.seq, what) for _, what in defects]
        return StoredRow(header, [(first + n, view) for n, (_, view) in enumerate(intact)], damage, False)
    return _salvaged(data, found, directory, file, first)


def _salvaged(data: bytes, found: Found, directory: list[tuple[int, int]] | None, file: str, first: int) -> StoredRow:
    """Return the readable content of a damaged row."""
    header = found.header
    records: list[tuple[int, RecordView | RottenRecord]] = []
    damage: list[Damage] = []
    row = first >> 11 & ROWS_MOST - 1
    offset, limit = ROW_HEADER_BYTES, ROW_HEADER_BYTES + header.payload_bytes
    severe = False
    while offset < limit:
        index = len(records)
        end, shard = (ROW_HEADER_BYTES + directory[index][0], directory[index][1]) if directory else (limit, None)
        record = decode_record(data, offset, min(end, limit))
        if isinstance(record, Rotten):
            rotten = rotten_at(record, first + index, file, shard)
            records.append((first + index, rotten))
            what = f"the {rotten.part} of record {index} is rotten"
            damage.append(Damage(file, row, header.seq, what, rotten.shard, rotten.partition))
            if not record.size_bytes and directory is None:
                damage.append(Damage(file, row, header.seq, "the rest of the row cannot be read"))
                severe = True
                break
        else:
            records.append((first + index, record))
        offset = end if directory else offset + record.size_bytes
    if not damage:
        damage.append(Damage(file, row, header.seq, "padding or checks are rotten, all records are intact"))
    return StoredRow(header, records, damage, severe)


def record_in(data: bytes, position: int) -> RecordView | RottenRecord:
    """Return the record at this position from the bytes of its row."""
    segment = position >> 24
    log_id, number, index = segment >> 20, segment & (1 << 20) - 1, position & RECORDS_MOST - 1
    file, row = place(log_id, number), position >> 11 & ROWS_MOST - 1
    header, _ = _header_of(data, log_id)
    if header is not None and index < header.record_count:
        at = ROW_HEADER_BYTES + header.payload_bytes
        tail = decode_row_tail(data, at + DIRECTORY_ENTRY_BYTES * header.record_count)
        directory = decode_directory(data, at, header.record_count, tail.directory_crc) if tail is not None else None
        if directory is not None:
            start = ROW_HEADER_BYTES + (directory[index - 1][0] if index else 0)
            record = decode_record(data, start, ROW_HEADER_BYTES + directory[index][0])
            return rotten_at(record, position, file, directory[index][1]) if isinstance(record, Rotten) else record
    stored = decode_row(data, log_id, number, row)
    if stored is not None and index < len(stored.records):
        return stored.records[index][1]
    return RottenRecord(position, file, row, "header")


def missing_record(position: int) -> RottenRecord:
    """Return the result for a position whose row is missing."""
    segment = position >> 24
    return RottenRecord(position, place(segment >> 20, segment & (1 << 20) - 1), position >> 11 & ROWS_MOST - 1, "file")


def rotten_at(rotten: Rotten, position: int, file: str, shard: int | None) -> RottenRecord:
    rest, row = rotten.record, position >> 11 & ROWS_MOST - 1
    if rest is None:
        return RottenRecord(position, file, row, rotten.part, shard)
    return RottenRecord(position, file, row, rotten.part, rest.shard, rest.partition, rest)


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
