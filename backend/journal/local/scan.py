"""Scan of a log whose process has ended: its rows, its end, and its damage.

**Torn or damaged?** An incomplete row may be the one that was being written when the process or the machine stopped: it
was never answered, and the log ends before it.  Or it was complete once, and is damaged: then the log must not end
there.  These prove that it was complete:

- A later row of this log, or a part of one.  The writer writes one row at a time and begins the next only when the sync
  of this one has returned (:mod:`backend.journal.local.log`).  So a trace of a later row proves that the disk once had
  this one.  If several rows were written concurrently, it would prove nothing.
- The highest answered row that any row names.  After a burst an empty row is written for this alone.
- A seal, a checkpoint or a chain that names the row.

A row with an intact header (at the front or in the tail) and intact records counts, even the last one: a row that was
never answered may exist, and :func:`rewrite_tail` makes it complete and durable before anything depends on it.

**Extent of the loss.** The records of a damaged row are checked one by one, each part separately.  A corrupt record is
returned as a :class:`~backend.journal.types.DamagedRecord`, with everything known about it.  Damage is *severe*
if the affected shard is unknown: then the log must not be sealed before an operator has decided.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Final

from isal.isal_zlib import crc32

from backend.journal.local.disk import Disk, is_media_error
from backend.journal.local.segments import list_segments, segment_name
from backend.journal.row_scanner import Found, RowScanner, directory_of, first_row, is_whole, is_zero
from backend.journal.rows import (
    ROW_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    RecordView,
    RowHeader,
    SegmentHeader,
    decode_intact,
    decode_segment_header,
    encode_directory,
    encode_row,
    encode_segment_header,
    position_of,
)
from backend.journal.salvage import RecordPlace, salvage_row
from backend.journal.types import Damage, DamagedRecord, LogEnd, Row, RowExtent

PAUSE_BYTES: Final = 256 << 10
"""Bytes of rows after which the loop gets a turn."""
BLOCK_BYTES: Final = 4 << 10
"""The smallest part of a file that a device reads or loses."""
_MARK_BYTES: Final = 8
"""Length of the non-zero mark that begins a row and a segment's header."""


class LocalScan:
    """Reads a log once, from a segment on.  Iterate over :meth:`rows`; :attr:`end` is set after the last one.

    ``from_seq``: rows below it are skipped.  ``known_seq``: a row that a committed checkpoint or chain proves durable.
    ``sealed_seq``: the last row, if the log is sealed; later rows do not exist.

    It reads a segment at a time, in a worker, and does not block the loop for more than some milliseconds.
    """

    end: LogEnd

    def __init__(
        self,
        disk: Disk,
        directory: str,
        log_id: int,
        *,
        from_segment: int = 1,
        from_seq: int = 1,
        known_seq: int = 0,
        sealed_seq: int | None = None,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._log_id = log_id
        self._from_segment = max(1, from_segment)
        self._from_seq = max(1, from_seq)
        self._known = max(known_seq, sealed_seq or 0)
        self._sealed_seq = sealed_seq

        self._numbers: list[int] = []
        self._buffers: dict[int, bytes] = {}
        self._unreadable: dict[int, list[tuple[int, int]]] = {}
        """By segment: the ranges (start, end) that the device has lost.  These segments stay in ``_buffers``."""
        self._damage: list[Damage] = []
        self._severe = False
        self._torn: Damage | None = None
        self._tail: list[RowExtent] = []
        self._answered = 0
        self._time_ms = 0
        self._seq = 0
        """The next expected row; 0 while unknown."""
        self._chain: int | None = 0
        """Checksum of the preceding row that the next row has to name; None while unknown."""
        self._place = (self._from_segment, 0)
        self._row_scanner = RowScanner(log_id, 0)

    # --- iteration over the log --- ----

    async def rows(self) -> AsyncIterator[Row]:
        """Yield the rows from ``from_seq`` on, in order; damaged ones with their readable content."""
        self._numbers = [
            number
            for number in await self._disk.run(list_segments, self._disk, self._directory)
            if number >= self._from_segment
        ]
        await self._find_nonce()
        pause = 0
        for number in self._numbers:
            buffer = await self._load(number)
            offset, header_damaged = self._enter(number, buffer)
            while offset and not self._is_past_seal():
                found = await self._row_at(number, buffer, offset)
                if found is None:
                    break
                header = found.header
                if not self._follows(header):
                    self._report_lost(number, offset, header)
                wanted = header.seq >= self._from_seq
                whole = not wanted or is_whole(buffer, found)
                directory, defects = directory_of(buffer, found) if wanted else (None, [])
                if not found.in_front:
                    defects.insert(0, (found.offset, "the row's header is damaged (its tail has a copy)"))
                if header_damaged:
                    defects.insert(0, (0, "the segment's header is damaged"))
                    header_damaged = False
                end = found.offset + header.row_bytes
                if defects or not whole:
                    if await self._is_durable(number, buffer, end, header.seq):
                        for at, what in defects:
                            self._report(number, at, header.seq, what)
                    else:
                        self._tear(number, found.offset, header.seq)
                        if not whole:
                            break
                        # All its records are there, and rewrite_tail makes it complete again.
                self._passed(number, found)
                offset = end
                if wanted:
                    yield self._row(number, buffer, found, whole, directory)
                pause += header.row_bytes
                if pause >= PAUSE_BYTES:
                    pause = 0
                    await asyncio.sleep(0)
            if number not in self._unreadable:
                self._buffers.pop(number, None)
            if self._torn or self._is_past_seal():
                break
            del buffer
            await asyncio.sleep(0)
        self._finish()

    def _is_past_seal(self) -> bool:
        return self._sealed_seq is not None and self._seq > self._sealed_seq

    def _passed(self, number: int, found: Found) -> None:
        header = found.header
        self._seq = header.seq + 1
        self._chain = header.check
        self._time_ms = max(self._time_ms, header.time_ms)
        self._answered = max(self._answered, header.answered)
        self._known = max(self._known, header.answered)
        self._place = (number, found.offset + header.row_bytes)
        self._tail = [extent for extent in self._tail if extent.header.seq > self._answered]
        self._tail.append(RowExtent(number, found.offset, header))

    def _finish(self) -> None:
        last = self._seq - 1 if self._seq else self._from_seq - 1
        number, offset = self._place
        if not self._is_past_seal():
            self._check_unreadable()
        if last < self._known:
            self._report(number, offset, last + 1, f"the log ends here, but row {self._known} was durable", severe=True)
        self.end = LogEnd(
            last,
            self._answered,
            self._time_ms,
            number,
            offset,
            self._damage,
            self._severe,
            self._torn,
            self._tail,
        )

    def _check_unreadable(self) -> None:
        """Report ranges behind the end that the device has lost, if they may have held rows.

        Before the end each row was checked by its own checksums.  Rows follow each other without gaps, so if the end
        reads as zeros, nothing was ever written behind it in that segment.
        """
        last, end = self._place
        for number, ranges in sorted(self._unreadable.items()):
            lower = end if number == last else 0
            behind = [start for start, stop in ranges if stop > lower]
            if number < last or not behind:
                continue
            is_read = all(stop <= lower or start >= lower + _MARK_BYTES for start, stop in ranges)
            if not is_read or any(self._buffers[number][lower : lower + _MARK_BYTES]):
                what = "rows may have been where the disk cannot be read"
                self._report(number, behind[0], self._seq, what, severe=True)

    def _report(self, number: int, offset: int, seq: int, what: str, *, severe: bool = False) -> None:
        self._damage.append(Damage(self._path(number), offset, seq, what))
        self._severe = self._severe or severe

    def _path(self, number: int) -> str:
        return f"{self._directory}/{segment_name(number)}"

    # --- segments --- ----

    async def _load(self, number: int) -> bytes:
        if number not in self._buffers:
            self._buffers[number], lost = await self._disk.run(_read_file, self._disk, self._path(number))
            if lost:
                self._unreadable[number] = lost
            for start, end in lost:
                self._report(number, start, 0, f"{end - start} bytes cannot be read from the disk")
        return self._buffers[number]

    async def _find_nonce(self) -> None:
        """Find the random number that marks this log's rows: from any segment header, or else from any row."""
        expected = self._from_segment
        for number in self._numbers:
            # The segments behind a sealed log's end are deleted one by one, which may have been interrupted; a missing
            # row before the end is found when the rows are read.
            if number != expected and self._sealed_seq is None:
                self._report(expected, 0, 0, "the segment is missing", severe=True)
            expected = number + 1
        nonce = 0
        for number in self._numbers:
            header = decode_segment_header(await self._disk.run(_read_start, self._disk, self._path(number)))
            if header is not None and header.log_id == self._log_id:
                nonce = header.nonce
                break
        else:
            for number in self._numbers:
                buffer = await self._load(number)
                row = first_row(buffer, self._log_id)
                if row is not None:
                    nonce = row.nonce
                    break
                if number not in self._unreadable:
                    del self._buffers[number]
        self._row_scanner = RowScanner(self._log_id, nonce)

    def _enter(self, number: int, buffer: bytes) -> tuple[int, bool]:
        """Check a segment's header against the rows before it.

        Returns the offset of its rows (0: the segment was never used), and whether the header is corrupt.  The first
        row decides whether that is damage, or a header that was being written.
        """
        header = self._row_scanner.segment_header(number, buffer)
        first = number == self._numbers[0]
        if header is None:
            if is_zero(buffer, 0):
                if number == 1:  # the first one may have been too small for the first row
                    self._seq = 1
                return 0, False
            if first:
                found = self._row_scanner.next_row(buffer, SEGMENT_HEADER_BYTES, 0)
                if number == 1 or found is None:
                    self._seq, self._chain = (1, 0) if number == 1 else (self._from_seq, None)
                else:
                    self._seq, self._chain = min(self._from_seq, found.header.seq), None
            return SEGMENT_HEADER_BYTES, True
        if first:
            if header.first_seq > self._from_seq:
                self._report(number, 0, self._from_seq, f"the log begins with row {header.first_seq}", severe=True)
            self._seq, self._chain = header.first_seq, header.chain
        elif header.first_seq > self._seq:
            what = f"rows {self._seq} to {header.first_seq - 1} are missing"
            self._report(*self._place, self._seq, what, severe=True)
            self._seq, self._chain = header.first_seq, header.chain
        elif header.first_seq < self._seq or self._chain not in (None, header.chain):
            self._report(number, 0, self._seq, "the segment does not continue the one before it", severe=True)
        return SEGMENT_HEADER_BYTES, False

    # --- rows --- ----

    def _follows(self, header: RowHeader) -> bool:
        return header.seq == self._seq and self._chain in (None, header.chain)

    async def _row_at(self, number: int, buffer: bytes, offset: int) -> Found | None:
        """Return the next row of this segment; None if the log, or the segment, ends at ``offset``.

        If no valid row is at ``offset``, this is the next row of which there is a trace.
        """
        header = self._row_scanner.own_row(buffer, offset)
        if header is not None and self._follows(header):
            return Found(offset, header, True)
        if is_zero(buffer, offset):
            return None
        found = self._row_scanner.next_row(buffer, offset, self._seq - 1)
        if found is None:
            # Rows of later segments prove that the log did not end here, but not that these bytes were a row.
            if self._seq <= self._known or await self._is_traced_later(number, self._seq - 1):
                self._report(number, offset, self._seq, "unreadable bytes behind the last row of the segment")
            else:
                self._tear(number, offset, self._seq)
        return found

    def _tear(self, number: int, offset: int, seq: int) -> None:
        self._torn = Damage(self._path(number), offset, seq, "torn: this row was being written")

    def _report_lost(self, number: int, offset: int, header: RowHeader) -> None:
        what = f"rows {self._seq} to {header.seq - 1} cannot be read"
        if header.seq <= self._seq:
            what = "the row does not continue the one before it"
        self._report(number, offset, self._seq, what, severe=True)

    async def _is_durable(self, number: int, buffer: bytes, offset: int, seq: int) -> bool:
        """Return whether row ``seq`` was once durable: there is a trace of a later one behind ``offset``, or it is
        known.
        """
        if seq <= self._known or self._row_scanner.next_row(buffer, offset, seq) is not None:
            return True
        return await self._is_traced_later(number, seq)

    async def _is_traced_later(self, number: int, seq: int) -> bool:
        for later in self._numbers:
            if later > number:
                buffer = await self._load(later)
                header = self._row_scanner.segment_header(later, buffer)
                if (header is not None and header.first_seq > seq) or self._row_scanner.next_row(
                    buffer, 0, seq
                ) is not None:
                    return True
        return False

    def _row(
        self, number: int, buffer: bytes, found: Found, whole: bool, directory: list[tuple[int, int]] | None
    ) -> Row:
        """Decode a row that counts."""
        offset, header, _ = found
        start = offset + ROW_HEADER_BYTES
        records: list[tuple[int, RecordView]] | list[tuple[int, RecordView | DamagedRecord]] | None = None
        if whole:
            position = position_of(self._log_id, number, start)
            records = decode_intact(buffer, start, start + header.payload_bytes, position)
        if records is None:

            def place_at(_index: int, at: int) -> RecordPlace:
                return RecordPlace(position_of(self._log_id, number, at), at, "a record")

            salvaged = salvage_row(buffer, found, directory, self._path(number), offset, place_at)
            records = salvaged.records
            self._damage += salvaged.damage
            self._severe = self._severe or salvaged.severe
        return Row(header.seq, header.time_ms, header.answered, number, offset, header.row_bytes, records)


async def rewrite_tail(disk: Disk, directory: str, end: LogEnd) -> None:
    """Write the rows past the answered mark again, and sync them.

    The scan may have read pages from the cache that were never written to the disk: after a failed sync, or if the
    process died between write and sync.  Raises :class:`OSError`; then nothing may depend on these rows.
    """
    await disk.run(_rewrite, disk, directory, end.tail)


def _rewrite(disk: Disk, directory: str, tail: list[RowExtent]) -> None:
    for row in tail:
        fd = disk.open(f"{directory}/{segment_name(row.segment)}")
        try:
            found, _ = _read_range(disk, fd, row.offset, row.offset + row.header.row_bytes)
            data, start = _as_written(found, row), row.offset
            assert len(data) == row.header.row_bytes
            if row.offset == SEGMENT_HEADER_BYTES:
                data, start = _segment_header_before(row) + data, 0  # it was written with its first row
            disk.pwrite(fd, data, start)
            disk.fdatasync(fd)
            assert disk.pread(fd, len(data), start) == data
        finally:
            disk.close(fd)


def _as_written(data: bytes, row: RowExtent) -> bytes:
    """Return the row's bytes; if its records are intact, the original ones, header and tail included."""
    header, end = row.header, ROW_HEADER_BYTES + row.header.payload_bytes
    if crc32(data[ROW_HEADER_BYTES:end]) != header.payload_crc:
        return data
    views = decode_intact(data, ROW_HEADER_BYTES, end, 0) or []
    ends = list(itertools.accumulate(view.size_bytes for _, view in views))
    records = [data[ROW_HEADER_BYTES + a : ROW_HEADER_BYTES + b] for a, b in itertools.pairwise([0, *ends])]
    rebuilt, check = encode_row(
        nonce=header.nonce,
        log_id=header.log_id,
        seq=header.seq,
        answered=header.answered,
        time_ms=header.time_ms,
        chain=header.chain,
        records=records,
        directory=encode_directory(records, ends),
    )
    assert check == header.check
    return rebuilt


def _segment_header_before(row: RowExtent) -> bytes:
    header = row.header
    return encode_segment_header(
        SegmentHeader(header.nonce, header.log_id, row.segment, header.seq, header.time_ms, header.chain)
    )


def _read_start(disk: Disk, path: str) -> bytes:
    try:
        fd = disk.open(path)
        try:
            return disk.pread(fd, SEGMENT_HEADER_BYTES, 0)
        finally:
            disk.close(fd)
    except OSError as error:
        if not is_media_error(error):
            raise
        return b""  # reported when the segment is read


def _read_file(disk: Disk, path: str) -> tuple[bytes, list[tuple[int, int]]]:
    """Return a file's bytes, and the ranges that the device has lost (replaced by zeros)."""
    fd = disk.open(path)
    try:
        return _read_range(disk, fd, 0, disk.size(path))
    finally:
        disk.close(fd)


def _read_range(disk: Disk, fd: int, start: int, end: int) -> tuple[bytes, list[tuple[int, int]]]:
    """Return the bytes of a range of a file, and the ranges in it that the device has lost (replaced by zeros).

    Raises :class:`OSError` for every other error: it proves nothing about the bytes.
    """
    parts: list[bytes] = []
    lost: list[tuple[int, int]] = []
    waiting = [(start, end)]
    while waiting:
        start, end = waiting.pop()
        try:
            parts.append(disk.pread(fd, end - start, start))
            continue
        except OSError as error:
            if not is_media_error(error):
                raise
        middle = (start + end) // 2 // BLOCK_BYTES * BLOCK_BYTES
        if middle <= start:
            middle = (start // BLOCK_BYTES + 1) * BLOCK_BYTES
        if middle < end:
            waiting += [(middle, end), (start, middle)]
            continue
        parts.append(bytes(end - start))
        if lost and lost[-1][1] == start:
            start = lost.pop()[0]
        lost.append((start, end))
    return b"".join(parts), lost
