"""Statistics of the stored messages while no node runs, read with the same code as a start's recovery."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, NamedTuple

from backend.api import Counters
from backend.engine.blocks import DEAD
from backend.engine.fold import Fold
from backend.journal.interface import Journal
from backend.journal.local.segments import RottenRecord
from backend.journal.rows import RecordView
from backend.recovery.damage import Survey, examine
from metadata_service.store import EntryStore

_TOGETHER: Final = 256
"""Messages that are read in one batch."""


class OfflineStats(NamedTuple):
    """Counts of stored messages, with all damage."""

    survey: Survey
    """Damage that keeps shards or partitions from being served."""
    counters: dict[int, Counters]
    """Counts of each partition that would be served."""
    rotten: list[str]
    """Stored messages that cannot be read."""


ReadMany = Callable[[Sequence[int]], Awaitable[Sequence[RecordView | RottenRecord]]]
"""Reads the records at these positions."""


async def count(journal: Journal, entries: EntryStore, read_many: ReadMany) -> OfflineStats:
    """Fold everything as a start would, and read each message by ``read_many`` of this journal; change nothing.

    Raises the errors of :func:`~backend.recovery.damage.survey`.
    """
    replay, survey = await examine(journal, entries)
    await journal.refresh(await entries.logs())
    rotten: list[str] = []
    counters: dict[int, Counters] = {}
    for number, fold in replay.folds.items():
        fold.advance(replay.time_ms)
        counters[number] = fold.counters()
        for positions in _positions(fold):
            records = await read_many(positions)
            rotten += [f"partition {number}: {one}" for one in records if isinstance(one, RottenRecord)]
    return OfflineStats(survey, counters, rotten)


def _positions(fold: Fold) -> Iterator[list[int]]:
    """Yield the positions of live messages, in batches."""
    for block in fold.blocks.values():
        living = [at for at, state in zip(block.positions, block.states, strict=True) if state != DEAD and at]
        for start in range(0, len(living), _TOGETHER):
            yield living[start : start + _TOGETHER]
