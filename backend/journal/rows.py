"""The format of the journal: records, rows and segment headers.  No I/O.

A *record* is one fact about one queue partition::

    fixed header (52 bytes, checked by its last 4) | head | body | padding to 8

Head and body have separate checksums: a corrupt body costs one message, while its queue continues.

A *row* is one group commit::

    row header (64) | records ... | directory (8 for each record) | tail (72)

The directory has the end and the shard of each record, and the tail repeats the row header, so that no single flipped
bit costs more than one record: a corrupt row header is read from the tail, a corrupt record header is skipped by means
of the directory.  Each row contains the checksum of the row before it (the *chain*).

A *segment* is a file of rows that begins with a segment header.  Everything is little-endian and aligned to 8 bytes.

Headers contain the log's id and its *nonce*, 64 random bits that never leave the journal.  So neither stale bytes of
another log nor a message that imitates a row is ever decoded as a row of this log.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import NamedTuple

from isal.isal_zlib import crc32

FORMAT = 1

LOG_ID_MAX = (1 << 20) - 1
SEGMENT_MAX = (1 << 20) - 1
SEGMENT_BYTES_MAX = 1 << 27
"""A position has 24 bits for the offset in units of 8 bytes."""


def position_of(log_id: int, segment: int, offset: int) -> int:
    """Return the 64-bit position of a record: log id (20 bits), segment (20 bits), offset in the file / 8 (24 bits)."""
    return log_id << 44 | segment << 24 | offset >> 3


class LogPosition(NamedTuple):
    """The parts of a position."""

    log_id: int
    segment: int
    offset: int


def place_of(position: int) -> LogPosition:
    return LogPosition(position >> 44, position >> 24 & SEGMENT_MAX, (position & 0xFFFFFF) << 3)


def segment_key(log_id: int, segment: int) -> int:
    """Return the common part of all positions of a segment: ``position >> 24``."""
    return log_id << 20 | segment


# --- records ----------------------------------------------------------------------------------------

# format, kind, flags, level, shard, reserved, partition, epoch, key id, time, head length, body length, head crc, body
# crc.  Flags, level and key id exist so that later features need no other format.
_RECORD = Struct("<BBBBHHQIIqIIII")
_U32 = Struct("<I")
_pack_record = _RECORD.pack
_unpack_record = _RECORD.unpack_from
_pack_u32 = _U32.pack
_unpack_u32 = _U32.unpack_from
_FIXED_BYTES = _RECORD.size
RECORD_HEADER_BYTES = _FIXED_BYTES + 4
_PADDING = tuple(bytes(-(RECORD_HEADER_BYTES + n) & 7) for n in range(8))

assert _FIXED_BYTES == 48


def encode_record(
    kind: int,
    shard: int,
    partition: int,
    epoch: int,
    time_ms: int,
    head: bytes,
    body: bytes = b"",
    key_id: int = 0,
) -> bytes:
    """Return one record, padded to a multiple of 8 bytes."""
    fixed = _pack_record(
        FORMAT, kind, 0, 0, shard, 0, partition, epoch, key_id, time_ms, len(head), len(body), crc32(head), crc32(body)
    )
    return b"".join((fixed, _pack_u32(crc32(fixed)), head, body, _PADDING[(len(head) + len(body)) & 7]))


class RecordView(NamedTuple):
    """A decoded record.  ``body`` is cut out of the buffer only when it is requested.

    A view keeps its whole buffer (up to a segment) alive: keep ``head`` and ``body``, not the view.
    """

    kind: int
    shard: int
    partition: int
    epoch: int
    key_id: int
    time_ms: int
    head: bytes
    buffer: bytes
    body_offset: int
    body_bytes: int

    @property
    def body(self) -> bytes:
        return self.buffer[self.body_offset : self.body_offset + self.body_bytes]

    @property
    def size_bytes(self) -> int:
        """Bytes of the record in its row, padding included."""
        return RECORD_HEADER_BYTES + len(self.head) + self.body_bytes + 7 & ~7


class RecordDamage(NamedTuple):
    """Remainder of a record whose bytes differ from what was written."""

    part: str
    """``header``, ``head`` or ``body``: the first corrupt part."""
    record: RecordView | None
    """The intact rest: without head and body if the head is corrupt, with the corrupt body if only that is; None if the
    header is corrupt.
    """
    size_bytes: int
    """Length of the record, 0 if unknown."""


_new_tuple = tuple.__new__


def decode_record(buffer: bytes, offset: int, end: int | None = None) -> RecordView | RecordDamage:
    """Read and check the record at ``offset``.  It may not extend beyond ``end`` (default: the end of the buffer)."""
    if end is None:
        end = len(buffer)
    if offset + RECORD_HEADER_BYTES > end:
        return RecordDamage("header", None, 0)
    (version, kind, _, _, shard, _, partition, epoch, key_id, time_ms, head_bytes, body_bytes, head_crc, body_crc) = (
        _unpack_record(buffer, offset)
    )
    head_offset = offset + RECORD_HEADER_BYTES
    if (
        _unpack_u32(buffer, head_offset - 4)[0] != crc32(buffer[offset : head_offset - 4])
        or version != FORMAT
        or head_offset + head_bytes + body_bytes > end
    ):
        return RecordDamage("header", None, 0)
    body_offset = head_offset + head_bytes
    head = buffer[head_offset:body_offset]
    size_bytes = RECORD_HEADER_BYTES + head_bytes + body_bytes + 7 & ~7
    if crc32(head) != head_crc:
        view = RecordView(kind, shard, partition, epoch, key_id, time_ms, b"", buffer, body_offset, 0)
        return RecordDamage("head", view, size_bytes)
    view = _new_tuple(
        RecordView, (kind, shard, partition, epoch, key_id, time_ms, head, buffer, body_offset, body_bytes)
    )
    if crc32(buffer[body_offset : body_offset + body_bytes]) != body_crc:
        return RecordDamage("body", view, size_bytes)
    return view


def record_bytes_at(buffer: bytes, offset: int) -> int:
    """Return the length of the record at ``offset``, padding included; 0 if the header is corrupt or incomplete."""
    head_offset = offset + RECORD_HEADER_BYTES
    if head_offset > len(buffer) or _unpack_u32(buffer, head_offset - 4)[0] != crc32(buffer[offset : head_offset - 4]):
        return 0
    fields = _unpack_record(buffer, offset)
    return int(RECORD_HEADER_BYTES + fields[10] + fields[11] + 7 & ~7)


def decode_intact(buffer: bytes, offset: int, end: int, position: int) -> list[tuple[int, RecordView]] | None:
    """Return all records between ``offset`` and ``end``, whose bytes were already checked as a whole.

    Each has its position (the first one has ``position``).  Returns None if they do not fill that space exactly.
    """
    records: list[tuple[int, RecordView]] = []
    add = records.append
    unpack, new = _unpack_record, _new_tuple
    start = offset
    while offset + RECORD_HEADER_BYTES <= end:
        version, kind, _, _, shard, _, partition, epoch, key_id, time_ms, head_bytes, body_bytes, _, _ = unpack(
            buffer, offset
        )
        body_offset = offset + RECORD_HEADER_BYTES + head_bytes
        if version != FORMAT or body_offset + body_bytes > end:
            return None
        head = buffer[offset + RECORD_HEADER_BYTES : body_offset]
        view: RecordView = new(
            RecordView, (kind, shard, partition, epoch, key_id, time_ms, head, buffer, body_offset, body_bytes)
        )
        add((position + (offset - start >> 3), view))
        offset = body_offset + body_bytes + 7 & ~7
    return records if offset == end else None


# --- rows -------------------------------------------------------------------------------------------

ROW_MAGIC = b"HfRw"
TAIL_MAGIC = b"HfTl"

# magic, format, flags, reserved, nonce, log id, records, seq, answered, time, payload length, chain, payload crc
_ROW = Struct("<4sBBHQIIQQqIII")
ROW_HEADER_BYTES = _ROW.size + 4
_TAIL_REST = ROW_HEADER_BYTES - 4
TAIL_BYTES = ROW_HEADER_BYTES + 8
"""The tail: its own magic, the rest of the row header, the directory's crc, the tail's crc."""
DIRECTORY_ENTRY_BYTES = 8
ROW_OVERHEAD_BYTES = ROW_HEADER_BYTES + TAIL_BYTES

assert ROW_HEADER_BYTES == 64
assert TAIL_BYTES == 72


class RowHeader(NamedTuple):
    nonce: int
    log_id: int
    record_count: int
    seq: int
    answered: int
    """Highest seq that was answered when this row was written."""
    time_ms: int
    payload_bytes: int
    chain: int
    """The checksum of the row before this one."""
    payload_crc: int
    check: int
    """The crc of this header: the chain of the next row."""

    @property
    def row_bytes(self) -> int:
        return ROW_OVERHEAD_BYTES + self.payload_bytes + DIRECTORY_ENTRY_BYTES * self.record_count


def encode_row(
    *,
    nonce: int,
    log_id: int,
    seq: int,
    answered: int,
    time_ms: int,
    chain: int,
    records: Sequence[bytes],
    directory: bytes,
) -> tuple[bytes, int]:
    """Return the bytes of a row, and its checksum.  ``directory``: see :func:`encode_directory`."""
    payload = b"".join(records)
    fixed = _ROW.pack(
        ROW_MAGIC,
        FORMAT,
        0,
        0,
        nonce,
        log_id,
        len(records),
        seq,
        answered,
        time_ms,
        len(payload),
        chain,
        crc32(payload),
    )
    check = crc32(fixed)
    header = fixed + _pack_u32(check)
    tail = b"".join((TAIL_MAGIC, header[4:], _pack_u32(crc32(directory))))
    return b"".join((header, payload, directory, tail, _pack_u32(crc32(tail)))), check


def encode_directory(records: Sequence[bytes], ends: Iterable[int]) -> bytes:
    """Return the directory of a row: for each record its end, in bytes of the payload, and its shard."""
    return b"".join([_pack_u32(end) + record[4:8] for record, end in zip(records, ends, strict=True)])


def _row_header(fields: tuple[int, ...], check: int) -> RowHeader | None:
    _, version, _, _, nonce, log_id, count, seq, answered, time_ms, payload_bytes, chain, payload_crc = fields
    if version != FORMAT or payload_bytes & 7 or payload_bytes > SEGMENT_BYTES_MAX or count * 56 > payload_bytes:
        return None
    return RowHeader(nonce, log_id, count, seq, answered, time_ms, payload_bytes, chain, payload_crc, check)


def decode_row_header(buffer: bytes, offset: int) -> RowHeader | None:
    """Return the row header at ``offset``, or None if it is missing or corrupt."""
    if offset < 0 or offset + ROW_HEADER_BYTES > len(buffer) or not buffer.startswith(ROW_MAGIC, offset):
        return None
    check = _unpack_u32(buffer, offset + ROW_HEADER_BYTES - 4)[0]
    if check != crc32(buffer[offset : offset + ROW_HEADER_BYTES - 4]):
        return None
    return _row_header(_ROW.unpack_from(buffer, offset), check)


class RowTail(NamedTuple):
    header: RowHeader
    directory_crc: int


def decode_row_tail(buffer: bytes, offset: int) -> RowTail | None:
    """Return the tail at ``offset``, or None if it is missing or corrupt."""
    if offset < 0 or offset + TAIL_BYTES > len(buffer) or not buffer.startswith(TAIL_MAGIC, offset):
        return None
    if _unpack_u32(buffer, offset + TAIL_BYTES - 4)[0] != crc32(buffer[offset : offset + TAIL_BYTES - 4]):
        return None
    check = _unpack_u32(buffer, offset + ROW_HEADER_BYTES - 4)[0]
    header = _row_header(_ROW.unpack_from(buffer, offset), check)
    return RowTail(header, _unpack_u32(buffer, offset + ROW_HEADER_BYTES)[0]) if header else None


def decode_directory(buffer: bytes, offset: int, count: int, crc: int) -> list[tuple[int, int]] | None:
    """Return (end in the payload, shard) of each record, or None if the directory is corrupt."""
    entries = buffer[offset : offset + DIRECTORY_ENTRY_BYTES * count]
    if len(entries) != DIRECTORY_ENTRY_BYTES * count or crc32(entries) != crc:
        return None
    return [(end, shard) for end, shard, _ in Struct("<IHH").iter_unpack(entries)]


# --- segment headers --------------------------------------------------------------------------------

SEGMENT_MAGIC = b"HfSg"
_SEGMENT = Struct(
    "<4sBBHQIIQqII"
)  # magic, format, flags, reserved, nonce, log id, segment, first seq, time, chain, reserved
SEGMENT_HEADER_BYTES = 56
_SEGMENT_PADDING = bytes(SEGMENT_HEADER_BYTES - _SEGMENT.size - 4)

assert SEGMENT_HEADER_BYTES % 8 == 0
assert _SEGMENT.size == 48


class SegmentHeader(NamedTuple):
    nonce: int
    log_id: int
    segment: int
    first_seq: int
    time_ms: int
    chain: int
    """The checksum of the last row before this segment."""


def encode_segment_header(header: SegmentHeader) -> bytes:
    fixed = _SEGMENT.pack(
        SEGMENT_MAGIC,
        FORMAT,
        0,
        0,
        header.nonce,
        header.log_id,
        header.segment,
        header.first_seq,
        header.time_ms,
        header.chain,
        0,
    )
    return fixed + _SEGMENT_PADDING + _pack_u32(crc32(fixed + _SEGMENT_PADDING))


def decode_segment_header(buffer: bytes) -> SegmentHeader | None:
    """Return the header at the start of a segment file, or None if it is missing or corrupt."""
    if len(buffer) < SEGMENT_HEADER_BYTES or not buffer.startswith(SEGMENT_MAGIC):
        return None
    if _unpack_u32(buffer, SEGMENT_HEADER_BYTES - 4)[0] != crc32(buffer[: SEGMENT_HEADER_BYTES - 4]):
        return None
    _, version, _, _, nonce, log_id, segment, first_seq, time_ms, chain, _ = _SEGMENT.unpack_from(buffer)
    return SegmentHeader(nonce, log_id, segment, first_seq, time_ms, chain) if version == FORMAT else None
