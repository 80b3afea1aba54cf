"""What is stored, counted and read by the code that a start recovers with, while no node runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, NamedTuple

from backend.api import Counters
from backend.damage import Survey, examine
from backend.engine.blocks import DEAD
from backend.engine.fold import Fold
from backend.journal.interface import Journal
from backend.journal.rows import RecordView
from backend.journal.segments import RottenRecord
from metadata_service.store import EntryStore

_TOGETHER: Final = 256
"""Messages that are read together."""


class Census(NamedTuple):
    """What there is."""

    survey: Survey
    """What cannot be served."""
    counters: dict[int, Counters]
    """By partition, of those that would be served."""
    rotten: list[str]
    """Messages that are there and cannot be read."""


ReadMany = Callable[[Sequence[int]], Awaitable[Sequence[RecordView | RottenRecord]]]
"""Reads the records at these positions."""


async def count(journal: Journal, entries: EntryStore, read_many: ReadMany) -> Census:
    """Fold everything as a start would, and read each message by ``read_many``, of this journal; nothing is changed.

    Raises as :func:`~backend.damage.survey`.
    """
    replay, survey = await examine(journal, entries)
    await journal.look(await entries.logs())
    rotten: list[str] = []
    counters: dict[int, Counters] = {}
    for number, fold in replay.folds.items():
        fold.advance(replay.time_ms)
        counters[number] = fold.counters()
        for positions in _positions(fold):
            records = await read_many(positions)
            rotten += [f"partition {number}: {one}" for one in records if isinstance(one, RottenRecord)]
    return Census(survey, counters, rotten)


def _positions(fold: Fold) -> Iterator[list[int]]:
    """Where the messages that live are, some at a time."""
    for block in fold.blocks.values():
        living = [at for at, state in zip(block.positions, block.states, strict=True) if state != DEAD and at]
        for start in range(0, len(living), _TOGETHER):
            yield living[start : start + _TOGETHER]
