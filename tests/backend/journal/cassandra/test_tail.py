"""Finding the end of a log on Cassandra that another process writes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from backend.journal.cassandra.tail import CassandraTail, End
from backend.journal.rows import encode_row

LOG = 3


class _StoredRows:
    """Rows that a quorum has; ``others``: rows on further replicas."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, int], bytes] = {}
        self.others: dict[tuple[int, int], bytes] = {}

    def add(self, segment: int, row: int, seq: int, answered: int = 0, *, on_other_replica: bool = False) -> None:
        data, _ = encode_row(
            nonce=1, log_id=LOG, seq=seq, answered=answered, time_ms=0, chain=0, records=[], directory=b""
        )
        (self.others if on_other_replica else self.rows)[segment, row] = data

    def at_consistency_all(self) -> _StoredRows:
        all_of_them = _StoredRows()
        all_of_them.rows = {**self.rows, **self.others}
        return all_of_them

    async def numbers(self, log_id: int, segment: int, row_min: int) -> list[int]:
        return sorted(row for at, row in self.rows if at == segment and row >= row_min)

    async def get_rows(self, log_id: int, segment: int, rows: Sequence[int]) -> dict[int, bytes]:
        return {row: self.rows[segment, row] for row in rows if (segment, row) in self.rows}


@pytest.fixture
def stored() -> _StoredRows:
    """Rows 1 to 3 in segment 1, 4 and 5 in segment 2."""
    stored = _StoredRows()
    for seq, (segment, row) in enumerate(((1, 0), (1, 1), (1, 2), (2, 0), (2, 1)), 1):
        stored.add(segment, row, seq, seq - 1)
    return stored


async def end(stored: _StoredRows, from_segment: int = 1) -> tuple[End, int | None]:
    tail = CassandraTail(stored, LOG, from_segment)
    await tail.catch_up()
    await tail.catch_up()
    return tail.end, await tail.seq()


async def test_a_log_is_followed_over_its_segments(stored: _StoredRows) -> None:
    assert await end(stored) == (End(2, 2), 5)
    assert await end(stored, 2) == (End(2, 2), 5)
    assert await end(stored, 3) == (End(3, 0), None)
    tail = CassandraTail(stored, LOG, 1)
    await tail.catch_up()
    stored.add(2, 2, 6)
    stored.add(3, 0, 7)
    await tail.catch_up()
    assert (tail.end, await tail.seq()) == (End(3, 1), 7)
    assert await end(_StoredRows()) == (End(1, 0), None)


async def test_behind_a_row_that_is_missing_nothing_was_answered(stored: _StoredRows) -> None:
    stored.add(2, 3, 7, 5)
    assert await end(stored) == (End(2, 2), 5)
    stored.add(3, 0, 8, 5)
    assert await end(stored) == (End(2, 2), 5)
    del stored.rows[2, 0]
    stored.rows = {at: data for at, data in stored.rows.items() if at[0] == 1}
    stored.add(2, 0, 5, 3)  # row 4 is missing, from either segment
    assert await end(stored) == (End(1, 3), 3)


async def test_missing_acknowledged_rows_are_searched_on_all_replicas(stored: _StoredRows) -> None:
    stored.others[2, 0] = stored.rows.pop((2, 0))
    stored.add(2, 2, 6, 5)
    assert await end(stored) == (End(2, 3), 6)
    stored.others[1, 1] = stored.rows.pop((1, 1))
    assert await end(stored) == (End(2, 3), 6)


async def test_lost_rows_are_skipped_for_a_recovery_to_find(stored: _StoredRows) -> None:
    del stored.rows[1, 1]
    assert await end(stored) == (End(2, 2), 5)
    del stored.rows[2, 0]
    stored.add(2, 2, 6, 5)
    assert await end(stored) == (End(2, 3), 6)


async def test_a_row_that_is_damaged_ends_nothing(stored: _StoredRows) -> None:
    stored.rows[2, 1] = bytes(len(stored.rows[2, 1]))
    assert await end(stored) == (End(2, 2), 5)
    stored.rows[1, 2] = bytes(100)
    assert await end(stored) == (End(2, 2), 5)
