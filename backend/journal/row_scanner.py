"""Detection of a log's rows in the bytes of a segment, complete or not."""

from __future__ import annotations

import itertools
from typing import Final, NamedTuple

from isal.isal_zlib import crc32

from backend.journal.rows import (
    DIRECTORY_ENTRY_BYTES,
    FORMAT,
    ROW_HEADER_BYTES,
    ROW_MAGIC,
    SEGMENT_HEADER_BYTES,
    TAIL_BYTES,
    TAIL_MAGIC,
    RowHeader,
    SegmentHeader,
    decode_directory,
    decode_row_header,
    decode_row_tail,
    decode_segment_header,
)

ZEROS: Final = bytes(1 << 20)


class Found(NamedTuple):
    """A row with its place."""

    offset: int
    header: RowHeader
    in_front: bool
    """The header was read from its proper place, not from the tail."""


class RowScanner:
    """Recognizes the rows of one log by its id and its nonce, a random number that no other log shares."""

    def __init__(self, log_id: int, nonce: int) -> None:
        self._log_id = log_id
        self._nonce = nonce
        marks = bytes((FORMAT, 0, 0, 0)) + nonce.to_bytes(8, "little")
        self._row_prefix = ROW_MAGIC + marks
        self._tail_prefix = TAIL_MAGIC + marks

    def segment_header(self, number: int, buffer: bytes) -> SegmentHeader | None:
        """Return the header of the log's segment with this number, or None if the bytes are not that."""
        header = decode_segment_header(buffer[:SEGMENT_HEADER_BYTES])
        if header is None or (header.log_id, header.segment) != (self._log_id, number):
            return None
        return header if header.nonce == self._nonce else None

    def own_row(self, buffer: bytes, offset: int) -> RowHeader | None:
        """Return the row at ``offset`` if it belongs to this log and ends within the segment."""
        if not buffer.startswith(self._row_prefix, offset):
            return None
        header = decode_row_header(buffer, offset)
        if header is None or header.log_id != self._log_id or offset + header.row_bytes > len(buffer):
            return None
        return header

    def tail_from(self, buffer: bytes, offset: int) -> Found | None:
        """Return the row with the next tail from ``offset`` on."""
        at = offset
        while (at := buffer.find(self._tail_prefix, at)) >= 0:
            tail = decode_row_tail(buffer, at)
            if tail is not None and tail.header.log_id == self._log_id:
                start = at + TAIL_BYTES - tail.header.row_bytes
                if start >= offset:
                    return Found(start, tail.header, False)
            at += 8
        return None

    def next_row(self, buffer: bytes, offset: int, seq: int) -> Found | None:
        """Return the first row from ``offset`` on with a number above ``seq``, detected by its header or its tail."""
        row: Found | None = None
        at = offset
        while row is None and (at := buffer.find(self._row_prefix, at)) >= 0:
            header = self.own_row(buffer, at)
            if header is not None and header.seq > seq:
                row = Found(at, header, True)
            at += 8
        at = offset
        while (tail := self.tail_from(buffer, at)) is not None and tail.header.seq <= seq:
            at = tail.offset + tail.header.row_bytes
        if row is None or (tail is not None and tail.offset < row.offset):
            return tail
        return row


def directory_of(buffer: bytes, found: Found) -> tuple[list[tuple[int, int]] | None, list[tuple[int, str]]]:
    """Return the row's directory, unless it or the tail is corrupt; and the defects with their offsets."""
    offset, header, _ = found
    at = offset + ROW_HEADER_BYTES + header.payload_bytes
    tail = decode_row_tail(buffer, at + DIRECTORY_ENTRY_BYTES * header.record_count)
    if tail is None or tail.header != header:
        return None, [(offset + header.row_bytes - TAIL_BYTES, "the row's tail is damaged")]
    directory = decode_directory(buffer, at, header.record_count, tail.directory_crc)
    ends = [0, *(end for end, _ in directory)] if directory is not None else []
    if directory is None or ends[-1] != header.payload_bytes or any(a >= b for a, b in itertools.pairwise(ends)):
        return None, [(at, "the row's directory is damaged")]
    return directory, []


def is_whole(buffer: bytes, found: Found) -> bool:
    """Return whether the row's records are all intact."""
    start = found.offset + ROW_HEADER_BYTES
    return crc32(memoryview(buffer)[start : start + found.header.payload_bytes]) == found.header.payload_crc


def first_row(buffer: bytes, log_id: int) -> RowHeader | None:
    """Return any row of the log, without knowledge of its nonce."""
    for magic in (ROW_MAGIC, TAIL_MAGIC):
        at = 0
        while (at := buffer.find(magic, at)) >= 0:
            row = decode_row_header(buffer, at)
            if row is None and (tail := decode_row_tail(buffer, at)) is not None:
                row = tail.header
            if row is not None and row.log_id == log_id:
                return row
            at += 8
    return None


def is_zero(buffer: bytes, start: int) -> bool:
    return all(
        (part := buffer[at : at + len(ZEROS)]) == ZEROS[: len(part)] for at in range(start, len(buffer), len(ZEROS))
    )
