"""Finding the end of a log on Cassandra while another process writes it.

Several rows are in progress at a time, so the last ones may be present with gaps.  A row answered before a check begins
is at a quorum, as are all rows before it: a check at a quorum finds them all.  No row behind a missing one was
answered, unless data is lost.  In that case a later row names the missing one as answered.  All replicas are then read,
and if none has it, a copy continues behind the gap.  A recovery reports the loss.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from backend.journal.cassandra.log import WINDOW
from backend.journal.cassandra.rows import StoredRow, decode_row


class End(NamedTuple):
    """The log ends before this row of this segment."""

    segment: int
    row: int


class Rows(Protocol):
    """The queries on the tables.  All raise :class:`~backend.journal.cassandra.table_interface.Unanswered`."""

    def at_consistency_all(self) -> Rows: ...

    async def numbers(self, log_id: int, segment: int, row_min: int) -> list[int]: ...

    async def get_rows(self, log_id: int, segment: int, rows: list[int]) -> dict[int, bytes]: ...


class CassandraTail:
    """Follows one log."""

    def __init__(self, tables: Rows, log_id: int, from_segment: int) -> None:
        """``from_segment``: a segment that the log has, or its next one; earlier ones may be deleted."""
        self.log_id = log_id
        self._tables = tables
        self._segment = max(1, from_segment)
        self._row = 0
        self._seq: int | None = None
        """Number of the last row before the end; None: not read yet, or there is none."""

    @property
    def end(self) -> End:
        return End(self._segment, self._row)

    async def catch_up(self) -> None:
        """Advance to the current end of the log.  Raises
        :class:`~backend.journal.cassandra.table_interface.Unanswered`."""
        while True:
            here = self._pass(await self._tables.numbers(self.log_id, self._segment, self._row))
            there = await self._tables.numbers(self.log_id, self._segment + 1, 0)
            if there and there[0] == 0:
                first = await self._get(self._segment + 1, 0)
                if first is not None and first.header.seq == await self._last_seq() + 1:
                    self._segment, self._row = self._segment + 1, 0
                    continue
            if not await self._was_answered(here, there):
                return
            if await self._tables.at_consistency_all().get_rows(self.log_id, self._segment, [self._row]):
                self._row, self._seq = self._row + 1, None
            elif here:
                self._row = here[0]
            else:
                self._segment, self._row = self._segment + 1, 0

    async def seq(self) -> int | None:
        """Return the last row before the end; None: there is none in its segment.

        Raises :class:`~backend.journal.cassandra.table_interface.Unanswered`.
        """
        for back in range(1, self._row + 1):
            last = await self._get(self._segment, self._row - back)
            if last is not None:  # otherwise it is damaged, which a recovery will find
                return last.header.seq + back - 1
        return None

    def _pass(self, numbers: list[int]) -> list[int]:
        """Skip consecutive rows; return those behind a gap."""
        for at, number in enumerate(numbers):
            if number != self._row:
                return numbers[at:]
            self._row, self._seq = number + 1, None
        return []

    async def _last_seq(self) -> int:
        if self._seq is None:
            last = await self._get(self._segment, self._row - 1) if self._row else None
            self._seq = last.header.seq if last is not None else 0
        return self._seq

    async def _was_answered(self, here: list[int], there: list[int]) -> bool:
        """Return whether a row behind the missing one names it as answered."""
        behind = [(self._segment, row) for row in here[-WINDOW:]]
        behind += [(self._segment + 1, row) for row in there[-WINDOW:]]
        for segment, row in reversed(behind):
            last = await self._get(segment, row)
            if last is not None:  # otherwise it is damaged, and an earlier one has nearly the same mark
                return last.header.answered > await self._last_seq()
        return False

    async def _get(self, segment: int, row: int) -> StoredRow | None:
        data = (await self._tables.get_rows(self.log_id, segment, [row])).get(row)
        return decode_row(data, self.log_id, segment, row) if data is not None else None
