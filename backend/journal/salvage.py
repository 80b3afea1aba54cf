"""Salvage of damaged rows and records: the parts whose own checksums match, and the extent of the loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from backend.journal.row_scanner import Found
from backend.journal.rows import ROW_HEADER_BYTES, RecordDamage, RecordView, decode_record
from backend.journal.types import Damage, DamagedRecord


class RecordPlace(NamedTuple):
    """The place of a record, as its journal names it."""

    position: int
    offset: int
    """The offset in its file, or the number of its row."""
    name: str


class SalvagedRow(NamedTuple):
    """The readable content of a damaged row."""

    records: list[tuple[int, RecordView | DamagedRecord]]
    """(position, record)"""
    damage: list[Damage]
    severe: bool
    """Records are lost, and their shards are unknown."""


def salvage_row(
    buffer: bytes,
    found: Found,
    directory: list[tuple[int, int]] | None,
    file: str,
    row_offset: int,
    place_at: Callable[[int, int], RecordPlace],
) -> SalvagedRow:
    """Check the records of a damaged row one by one, each part separately.

    A record with a corrupt header is skipped by means of the row's directory.  ``place_at``: the place of a record by
    its number in the row and its offset in the buffer.
    """
    seq, start = found.header.seq, found.offset + ROW_HEADER_BYTES
    records: list[tuple[int, RecordView | DamagedRecord]] = []
    damage: list[Damage] = []
    offset, limit, severe = start, start + found.header.payload_bytes, False
    while offset < limit:
        index = len(records)
        end, shard = (start + directory[index][0], directory[index][1]) if directory else (limit, None)
        place = place_at(index, offset)
        record = decode_record(buffer, offset, min(end, limit))
        if isinstance(record, RecordDamage):
            damaged = damaged_record(record, place.position, file, place.offset, shard)
            records.append((place.position, damaged))
            what = f"the {damaged.part} of {place.name} is damaged"
            damage.append(Damage(file, place.offset, seq, what, damaged.shard, damaged.partition))
            if not record.size_bytes and directory is None:
                damage.append(Damage(file, place.offset, seq, "the rest of the row cannot be read"))
                severe = True
                break
        else:
            records.append((place.position, record))
        offset = end if directory else offset + record.size_bytes
    if not damage:
        damage.append(Damage(file, row_offset, seq, "padding or checks are damaged, all records are intact"))
    return SalvagedRow(records, damage, severe)


def damaged_record(
    damaged: RecordDamage, position: int, file: str, offset: int, shard: int | None = None
) -> DamagedRecord:
    """Describe a corrupt record: its place, and its shard and partition as far as known."""
    rest = damaged.record
    if rest is None:
        return DamagedRecord(position, file, offset, damaged.part, shard)
    return DamagedRecord(position, file, offset, damaged.part, rest.shard, rest.partition, rest)


def check_record(buffer: bytes, at: int, position: int, file: str, offset: int) -> RecordView | DamagedRecord:
    """Decode the record at ``at`` of the buffer; if it is corrupt, describe it by its place."""
    view = decode_record(buffer, at)
    return view if isinstance(view, RecordView) else damaged_record(view, position, file, offset)
