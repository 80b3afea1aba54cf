"""Finding the end of a log on local files while another process writes it.

A log is written row after row, into files full of zeros: unwritten parts are zero.  So a reader that finds zeros at the
place of the next row has seen all rows that existed at that moment.  Nothing is locked, and the writer is not affected.
"""

from __future__ import annotations

import os
from typing import Final

from backend.journal.local.segments import segment_name
from backend.journal.rows import ROW_HEADER_BYTES, SEGMENT_HEADER_BYTES, decode_row_header

_MARK_BYTES: Final = 8
"""Length of the mark at the front of a row or a segment's header; it is not zero, and is written first."""
_STEP_BYTES: Final = 1 << 20
_ZEROS: Final = bytes(_STEP_BYTES)


class LogTail:
    """Follows one log.  Use it in one thread, and close it."""

    def __init__(self, directory: str, log_id: int, from_segment: int = 1) -> None:
        """``from_segment``: an existing segment of the log; earlier ones may be deleted.  Raises :class:`OSError`."""
        self._directory = directory
        self._log_id = log_id
        self.segment = from_segment
        self.offset = 0
        """The log ends before this byte of this segment; 0: the segment has never been used."""
        self._fd = os.open(self._path(from_segment), os.O_RDONLY | os.O_CLOEXEC)
        self._next: int | None = None
        """The file of the next segment, once it exists."""

    def close(self) -> None:
        for fd in (self._fd, self._next):
            if fd is not None:
                os.close(fd)
        self._next = None

    def catch_up(self) -> None:
        """Advance to the current end of the log.

        Bytes that are no row, torn by a crash of the writer or damaged, are skipped: everything before the zeros
        belongs to the log, and a recovery reports it.  Raises :class:`OSError`.
        """
        while True:
            if not self.offset:
                if not _is_written(self._fd, 0):
                    return
                self.offset = SEGMENT_HEADER_BYTES
            front = os.pread(self._fd, ROW_HEADER_BYTES, self.offset)
            header = decode_row_header(front, 0) if any(front) else None
            if header is not None and header.log_id == self._log_id:
                self.offset += header.row_bytes
            elif any(front):
                self.offset = self._end_of_what_is_written()
            elif not self._turn():
                return

    def has_moved(self) -> bool:
        """Return whether anything was written since :meth:`catch_up`.  Raises :class:`OSError`."""
        return _is_written(self._fd, self.offset) or (self._open_next() and self._next_is_used())

    def _turn(self) -> bool:
        """Go to the next segment, if the log continues there."""
        if not (self._open_next() and self._next_is_used()):
            return False
        os.close(self._fd)
        assert self._next is not None
        self._fd, self._next = self._next, None
        self.segment += 1
        self.offset = 0
        return True

    def _open_next(self) -> bool:
        if self._next is None:
            try:
                self._next = os.open(self._path(self.segment + 1), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return False
        return True

    def _next_is_used(self) -> bool:
        return self._next is not None and _is_written(self._next, 0)

    def _end_of_what_is_written(self) -> int:
        """Return the offset behind the last non-zero byte of this segment, rounded up to the alignment of rows."""
        end = os.fstat(self._fd).st_size
        while end > self.offset:
            start = max(self.offset, end - _STEP_BYTES)
            data = os.pread(self._fd, end - start, start)
            if data != _ZEROS[: len(data)]:
                return start + (len(data.rstrip(b"\0")) + 7 & ~7)
            end = start
        return self.offset + _MARK_BYTES

    def _path(self, segment: int) -> str:
        return f"{self._directory}/{segment_name(segment)}"


def _is_written(fd: int, offset: int) -> bool:
    return any(os.pread(fd, _MARK_BYTES, offset))


def stand_still(tails: list[LogTail], tries: int) -> bool:
    """Find a moment at which all of these logs were followed to their ends and none grew; False: there was none.

    First each is followed to its end, then each is found unmoved: so all stood still at the moment between the two
    passes.
    """
    for _ in range(tries):
        for tail in tails:
            tail.catch_up()
        if not any(tail.has_moved() for tail in tails):
            return True
    return False
