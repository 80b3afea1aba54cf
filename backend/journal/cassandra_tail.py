"""Where a log on Cassandra ends that another process writes.

Rows are under way several at a time, so the last ones may be there in part.  What was answered by the time a look
begins is on a quorum, and so are all rows before it: a look at a quorum finds them all.  Behind a row that is missing
nothing was answered, or else something is lost: then a row behind it says that it was answered, all machines are asked
for it, and if none has it, the log goes on behind the gap for whoever copies it.  A recovery says what is missing.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from backend.journal.cassandra_log import WINDOW
from backend.journal.cassandra_rows import StoredRow, decode_row


class End(NamedTuple):
    """The log ends before this row of this segment."""

    segment: int
    row: int


class Rows(Protocol):
    """What is asked of the tables.  All raise :class:`~backend.journal.tables.Unanswered`."""

    def everyone(self) -> Rows: ...

    async def numbers(self, log_id: int, segment: int, least: int) -> list[int]: ...

    async def get_rows(self, log_id: int, segment: int, rows: list[int]) -> dict[int, bytes]: ...


class CassandraTail:
    """Follows one log."""

    def __init__(self, tables: Rows, log_id: int, from_segment: int) -> None:
        """``from_segment``: a segment that the log has, or its next one; earlier ones may be gone."""
        self.log_id = log_id
        self._tables = tables
        self._segment = max(1, from_segment)
        self._row = 0
        self._seq: int | None = None
        """Of the last row before the end; None: not read yet, or there is none."""

    @property
    def end(self) -> End:
        return End(self._segment, self._row)

    async def catch_up(self) -> None:
        """Go on to where the log ends now.  Raises :class:`~backend.journal.tables.Unanswered`."""
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
            if await self._tables.everyone().get_rows(self.log_id, self._segment, [self._row]):
                self._row, self._seq = self._row + 1, None
            elif here:
                self._row = here[0]
            else:
                self._segment, self._row = self._segment + 1, 0

    async def seq(self) -> int | None:
        """The last row before the end; None: there is none in the segment where it lies.

        Raises :class:`~backend.journal.tables.Unanswered`.
        """
        for back in range(1, self._row + 1):
            last = await self._get(self._segment, self._row - back)
            if last is not None:  # else it is damaged, which a recovery is to find
                return last.header.seq + back - 1
        return None

    def _pass(self, numbers: list[int]) -> list[int]:
        """Step over the rows that follow each other; returns those behind a gap."""
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
        """Whether a row behind the one that is missing says that this was answered."""
        behind = [(self._segment, row) for row in here[-WINDOW:]]
        behind += [(self._segment + 1, row) for row in there[-WINDOW:]]
        for segment, row in reversed(behind):
            last = await self._get(segment, row)
            if last is not None:  # else it is damaged, and one before it says nearly as much
                return last.header.answered > await self._last_seq()
        return False

    async def _get(self, segment: int, row: int) -> StoredRow | None:
        data = (await self._tables.get_rows(self.log_id, segment, [row])).get(row)
        return decode_row(data, self.log_id, segment, row) if data is not None else None
