"""Statistics of the stored messages and batches while no node runs, read with the same code as a start's recovery."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, NamedTuple

from backend.api import Counters
from backend.engine.blocks import DEAD
from backend.engine.fold import Fold
from backend.extent_ids import ExtentId, extent_name
from backend.journal.interface import Journal
from backend.journal.rows import RecordView
from backend.journal.types import DamagedRecord
from backend.recovery.damage import Survey, examine
from backend.streams.extents import scan
from backend.streams.group import GroupFold
from backend.streams.stream import StreamFold
from metadata_service.store import EntryStore

_TOGETHER: Final = 256
"""Messages that are read in one batch."""


class TopicCounters(NamedTuple):
    """Counts of a partition of a topic."""

    records: int
    """Number of offsets."""
    stored_bytes: int


class OfflineStats(NamedTuple):
    """Counts of what is stored, with all damage."""

    survey: Survey
    """Damage that keeps shards or partitions from being served."""
    counters: dict[int, Counters]
    """Counts of each queue partition that would be served."""
    topics: dict[int, TopicCounters]
    """Counts of each partition of a topic that would be served."""
    groups: int
    """Number of consumer groups."""
    damaged: list[str]
    """Stored messages, and batches of topics, that cannot be read."""


ReadMany = Callable[[Sequence[int]], Awaitable[Sequence[RecordView | DamagedRecord]]]
"""Reads the records at these positions."""
ReadExtent = Callable[[ExtentId, int, int], Awaitable[bytes]]
"""Reads a range of an extent, as :meth:`backend.journal.extents.ExtentStore.read` does."""


async def count(journal: Journal, entries: EntryStore, read_many: ReadMany, read_extent: ReadExtent) -> OfflineStats:
    """Fold everything as a start would, and read each message and batch of this journal; change nothing.

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
    topics: dict[int, TopicCounters] = {}
    for number, stream in replay.streams.items():
        if not isinstance(stream, StreamFold):
            continue
        topics[number] = TopicCounters(stream.next_offset - stream.log_start, stream.stored_bytes)
        for positions in _tail_positions(stream):
            records = await read_many(positions)
            damaged += [f"partition {number}: {one}" for one in records if isinstance(one, DamagedRecord)]
        for index in range(len(stream.extents)):
            damaged += await _damage_of_extent(stream, index, read_extent)
    groups = sum(isinstance(stream, GroupFold) and not stream.dropped for stream in replay.streams.values())
    return OfflineStats(survey, counters, topics, groups, damaged)


async def _damage_of_extent(stream: StreamFold, index: int, read_extent: ReadExtent) -> list[str]:
    line = stream.extent_line(index)
    extent = ExtentId(stream.partition, line.epoch, line.number)
    stored = await read_extent(extent, line.length, 0)
    where = f"partition {stream.partition}: extent {extent_name(extent)}"
    return [f"{where} at {one.position}: {one.what}" for one in scan(stored, extent, line.length).damage]


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
