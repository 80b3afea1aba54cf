"""Scan of a log on Cassandra whose writer may be dead: its rows, its end, and its damage.

**Its end.** Several rows are in progress at a time, so the last ones may be stored on some replicas only, with gaps.
The log ends before the first missing row: that row was not complete at a quorum when this read began, so the fence
prevents its answer, whenever it appears.  It may have been answered earlier, though.  Each of these proves that:

- a row that names it, or a later one, as answered, even behind the gap: so behind a gap all rows are read;
- a seal, a checkpoint or a chain that names it;
- a row at least a whole window behind it, because a row is sent only when the one a window before it is complete: a
  reader of that row also finds this one, unless it is lost.

Then an answered row is missing.  A quorum should have found it; but a replica may have been restored without its data,
or not repaired.  So all replicas are read before the row counts as lost, and if one of them is down, the log cannot be
read now.  If no replica has it, the log must not be sealed: the damage is severe.  It is reported, and the rows behind
it are returned, because an operator may accept it.

**Rows never answered.** A row at the end may be stored on one replica only, and be found by this read and not by the
next.  :attr:`CassandraScan.tail` has the rows past the answered mark: they are written again at QUORUM before anything
depends on them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

from backend.journal.cassandra.log import WINDOW
from backend.journal.cassandra.rows import StoredRow, decode_row
from backend.journal.cassandra.table_interface import Tables, Unanswered, pages, place
from backend.journal.types import Damage, LogEnd, Row


class TailRow(NamedTuple):
    seq: int
    segment: int
    row: int
    data: bytes


class CassandraScan:
    """Reads a log once, from a segment on.  Implements :class:`backend.journal.interface.Scan`.

    ``from_seq``: rows below it are skipped.  ``known_seq``: a row that other data prove durable.  ``sealed_seq``: the
    last row, if the log is sealed; later rows do not exist.  ``accepted``: missing rows were accepted, so they are not
    read from the other replicas.
    """

    end: LogEnd

    def __init__(
        self,
        tables: Tables,
        log_id: int,
        *,
        from_segment: int = 1,
        from_seq: int = 1,
        known_seq: int = 0,
        sealed_seq: int | None = None,
        accepted: bool = False,
    ) -> None:
        self.tail: list[TailRow] = []
        self._tables = tables
        self._log_id = log_id
        self._from_segment = max(1, from_segment)
        self._from_seq = max(1, from_seq)
        self._known = max(known_seq, sealed_seq or 0)
        self._sealed_seq = sealed_seq
        self._damage: list[Damage] = []
        self._severe = False
        self._answered = 0
        self._time_ms = 0
        self._seq = 1 if self._from_segment == 1 else 0
        """The next expected row; 0 while unknown."""
        self._chain: int | None = 0 if self._from_segment == 1 else None
        self._place = (self._from_segment, 0)
        self._asked: int | None = None if accepted else -1
        """The missing row that was last read from all replicas; None: there is none."""

    async def rows(self) -> AsyncIterator[Row]:
        """Yield the rows from ``from_seq`` on, in order; damaged ones with their readable content.

        Raises :class:`~backend.journal.cassandra.table_interface.Unanswered`.
        """
        tables = self._tables
        rows = self._rows(tables, await self._segments(tables))
        while True:
            found = await anext(rows, None)
            stored = None if found is None else decode_row(found[2], self._log_id, found[0], found[1])
            if found is None or (stored is not None and self._is_beyond(stored)):
                if self._last() < self._known and self._to_be_asked():
                    rows = self._rows_at_all()
                    continue
                break
            segment, number, data = found
            if stored is None:
                what = "the row cannot be read"
                self._report(segment, number, self._seq, what)
                self._seq, self._chain = (self._seq + 1 if self._seq else 0), None
                self._place = (segment, number + 1)
                continue
            header = stored.header
            if not self._seq:
                self._seq = min(header.seq, self._from_seq)
            if header.seq != self._seq or self._chain not in (None, header.chain):
                furthest = await self._scan_past(rows, stored)
                if header.seq > self._seq > self._known and (
                    furthest < self._seq + WINDOW or await self._has_arrived(self._seq)
                ):
                    break
                what = "the row does not continue the one before it"
                if header.seq > self._seq:
                    if self._to_be_asked():
                        rows = self._rows_at_all()
                        continue
                    what = f"rows {self._seq} to {header.seq - 1} are missing"
                self._report(segment, number, self._seq, what)
                # The rows behind it are returned, because an operator may accept that the rest is lost.
                self._place = (segment, number + 1)
                rows = self._rows(tables, await self._segments(tables))
            self._passed(segment, number, data, stored)
            if header.seq >= self._from_seq:
                yield Row(
                    header.seq, header.time_ms, header.answered, segment, number, header.row_bytes, stored.records
                )
        self._finish()

    def _to_be_asked(self) -> bool:
        """Return whether the next row must be read from all replicas before it counts as lost."""
        asked, self._asked = self._asked, None if self._asked is None else self._seq
        return asked is not None and asked != self._seq

    async def _rows_at_all(self) -> AsyncIterator[tuple[int, int, bytes]]:
        """Yield the rows from the missing one on, as read from all replicas."""
        at_consistency_all = self._tables.at_consistency_all()
        try:
            async for found in self._rows(at_consistency_all, await self._segments(at_consistency_all)):
                yield found
        except Unanswered as error:
            raise Unanswered(
                f"row {self._last() + 1} of log {self._log_id} is missing, and not all machines that may have it"
                f" answer: {error}"
            ) from error

    async def _segments(self, tables: Tables) -> list[int]:
        """Return the segments that may hold further rows."""
        return [one for one in await tables.segments(self._log_id) if one >= self._place[0]]

    async def _rows(self, tables: Tables, segments: list[int]) -> AsyncIterator[tuple[int, int, bytes]]:
        """Yield (segment, row, bytes) of the rows from the current place on, in order, a page at a time."""
        at = self._place
        for segment in segments:
            sizes = await tables.row_sizes(self._log_id, segment)
            for page in pages(one for one in sizes if (segment, one[0]) >= at):
                found = await tables.get_rows(self._log_id, segment, page)
                for number in page:
                    if number in found:
                        yield segment, number, found[number]

    async def _scan_past(self, rows: AsyncIterator[tuple[int, int, bytes]], first: StoredRow) -> int:
        """Read all rows behind a gap for their answered marks.  Returns the last row."""
        self._known = max(self._known, first.header.answered)
        last = first.header.seq
        async for segment, row, data in rows:
            stored = decode_row(data, self._log_id, segment, row)
            if stored is not None and not self._is_beyond(stored):
                self._known = max(self._known, stored.header.answered)
                last = max(last, stored.header.seq)
        return last

    async def _has_arrived(self, seq: int) -> bool:
        """Return whether the missing row is present now.

        The writer may be alive and continue, without being able to answer: then rows far behind the gap exist because
        the missing one has become complete meanwhile, too late to be answered.  If it is still missing, it is lost.
        """
        segment, row = self._place
        for at, number in ((segment, row), (segment + 1, 0)):
            data = (await self._tables.get_rows(self._log_id, at, [number])).get(number)
            stored = decode_row(data, self._log_id, at, number) if data is not None else None
            if stored is not None and stored.header.seq == seq:
                return True
        return False

    def _passed(self, segment: int, number: int, data: bytes, stored: StoredRow) -> None:
        header = stored.header
        self._seq = header.seq + 1
        self._chain = header.check
        self._time_ms = max(self._time_ms, header.time_ms)
        self._answered = max(self._answered, header.answered)
        self._known = max(self._known, header.answered)
        self._place = (segment, number + 1)
        self._damage += stored.damage
        self._severe = self._severe or stored.severe
        self.tail = [row for row in self.tail if row.seq > self._answered]
        self.tail.append(TailRow(header.seq, segment, number, data))

    def _is_beyond(self, stored: StoredRow) -> bool:
        """Return whether the row is after the sealed end, and so does not exist."""
        return self._sealed_seq is not None and stored.header.seq > self._sealed_seq

    def _last(self) -> int:
        """Return the last row that was passed."""
        return self._seq - 1 if self._seq else self._from_seq - 1

    def _finish(self) -> None:
        last = self._last()
        segment, row = self._place
        if last < self._known:
            self._report(segment, row, last + 1, f"the log ends here, but row {self._known} was durable")
        self.end = LogEnd(last, self._answered, self._time_ms, segment, row, self._damage, self._severe, None, [])

    def _report(self, segment: int, row: int, seq: int, what: str) -> None:
        self._damage.append(Damage(place(self._log_id, segment), row, seq, what))
        self._severe = True
