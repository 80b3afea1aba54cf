"""Statistics of the stored messages while no node runs, read with the same code as a start's recovery."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, NamedTuple

from backend.api import Counters
from backend.engine.blocks import DEAD
from backend.engine.fold import Fold
from backend.journal.interface import Journal
from backend.journal.rows import RecordView
from backend.journal.types import DamagedRecord
from backend.recovery.damage import Survey, examine
from backend.streams.stream import StreamFold
from metadata_service.store import EntryStore

_TOGETHER: Final = 256
"""Messages that are read in one batch."""


class OfflineStats(NamedTuple):
    """Counts of stored messages, with all damage."""

    survey: Survey
    """Damage that keeps shards or partitions from being served."""
    counters: dict[int, Counters]
    """Counts of each queue partition that would be served."""
    damaged: list[str]
    """Stored messages, and batches of streams that are still in the log, that cannot be read."""


ReadMany = Callable[[Sequence[int]], Awaitable[Sequence[RecordView | DamagedRecord]]]
"""Reads the records at these positions."""


async def count(journal: Journal, entries: EntryStore, read_many: ReadMany) -> OfflineStats:
    """Fold everything as a start would, and read each message by ``read_many`` of this journal; change nothing.

    Raises the errors of :func:`~backend.recovery.damage.survey`.
    """
    replay, survey = await examine(journal, entries)
    await journal.refresh(await entries.logs())
    damaged: list[str] = []
    counters: dict[int, Counters] = {}
    for number, fold in replay.folds.items():
        fold.advance(replay.time_ms)
        counters[number] = fold.counters()
        for positions in _positions(fold):
            records = await read_many(positions)
            damaged += [f"partition {number}: {one}" for one in records if isinstance(one, DamagedRecord)]
    for number, stream in replay.streams.items():
        if isinstance(stream, StreamFold):
            for positions in _tail_positions(stream):
                records = await read_many(positions)
                damaged += [f"partition {number}: {one}" for one in records if isinstance(one, DamagedRecord)]
    return OfflineStats(survey, counters, damaged)


def _positions(fold: Fold) -> Iterator[list[int]]:
    """Yield the positions of live messages, in batches."""
    for block in fold.blocks.values():
        live = [at for at, state in zip(block.positions, block.states, strict=True) if state != DEAD and at]
        for start in range(0, len(live), _TOGETHER):
            yield live[start : start + _TOGETHER]


def _tail_positions(fold: StreamFold) -> Iterator[list[int]]:
    """Yield the positions of the batches that are still in the log, in batches."""
    positions = [fold.tail_line(index).position for index in range(len(fold.tail))]
    for start in range(0, len(positions), _TOGETHER):
        yield positions[start : start + _TOGETHER]
