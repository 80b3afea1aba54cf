"""Decisions of the binder and of the retention.

The *binder* moves batches from the log into extents, once.  A bind has four steps, and a crash may come between any two
of them: :meth:`ExtentBinder.plan`; the bytes are appended to the extent and synced; :meth:`ExtentBinder.bound` gives
the record; the record is applied.  Without the record, the bytes behind the extent's length do not count.

An extent is continued by the owner that began it, and only as long as each of its binds has succeeded.  After a bind
with another outcome the next one begins another extent, so bytes at one place of an extent never change.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from backend.engine.fold import SEGMENT_SHIFT
from backend.engine.timers import NEVER
from backend.extent_ids import ExtentId
from backend.streams import records
from backend.streams.commands import (
    LogPlace,
)
from backend.streams.stream import StreamFold

BIND_BYTES = 8 << 20
"""Bytes in the log above which they are moved, and that are moved together."""
BIND_BATCHES = 500
"""Maximum number of batches that are moved together, so that a bind of small ones does not block the node."""
SEGMENTS_BACK = 8
"""Distance of the oldest batch from the current segment at which it is moved."""
EXTENT_BYTES_MAX = 64 << 20
ITEM_OVERHEAD_BYTES = 256
"""Upper bound on the bytes of a batch in an extent beside its payload, without the index."""
AGE_PARTS = 14
"""An extent takes batches of one fourteenth of the retention time."""
LOG_ID_SHIFT = 20


class BindPlan(NamedTuple):
    """Batches to be moved into an extent."""

    extent: ExtentId
    is_new: bool
    length: int
    """Length of the extent so far, where the batches are appended; 0 if it is new."""
    batches: tuple[LogPlace, ...]

    @property
    def through(self) -> int:
        """Offset behind the batches."""
        return self.batches[-1].end_offset


class ExtentBinder:
    """Decisions of the binder on one partition, under one owner."""

    def __init__(self, fold: StreamFold) -> None:
        self.abandoned: list[ExtentId] = []
        """Extents that no record names or will name: they may be deleted once their writes have ended."""
        self._fold = fold
        self._next_number = 0
        """Numbers below were handed out by this owner."""
        self._failed: ExtentId | None = None
        """The last extent that was continued by a bind that did not succeed."""

    def is_due(self, segment: int, until: int) -> bool:
        """Return whether batches are to be moved; ``segment``: the key of the journal's current segment."""
        fold = self._fold
        if fold.dropped or not len(fold.tail) or fold.tail_end(0) > until:
            return False
        if fold.log_bytes >= BIND_BYTES:
            return True
        oldest = fold.tail_line(0).position >> SEGMENT_SHIFT
        return oldest >> LOG_ID_SHIFT != segment >> LOG_ID_SHIFT or segment - oldest >= SEGMENTS_BACK

    def plan(self, until: int) -> BindPlan | None:
        """Return the batches to be moved next, all of them durable."""
        fold = self._fold
        if fold.dropped or not len(fold.tail) or fold.tail_end(0) > until:
            return None
        length = self._open_length(fold.tail_line(0).size_bytes)
        # 0: a new extent, which takes its first batch however long that is.
        room = EXTENT_BYTES_MAX - length
        batches: list[LogPlace] = []
        total = 0
        for index in range(min(len(fold.tail), BIND_BATCHES)):
            line, end = fold.tail_line(index), fold.tail_end(index)
            total += line.size_bytes + ITEM_OVERHEAD_BYTES
            if end > until or (batches and (total > room or total > BIND_BYTES)):
                break
            batches.append(LogPlace(line.position, line.base_offset, end, line.size_bytes))
        last = fold.last_extent
        if length:
            assert last is not None
            return BindPlan(ExtentId(fold.partition, last.epoch, last.number), False, length, tuple(batches))
        number = max(fold.next_extent, self._next_number)
        self._next_number = number + 1
        return BindPlan(ExtentId(fold.partition, fold.epoch, number), True, 0, tuple(batches))

    def _open_length(self, size: int) -> int:
        """Return the length of the last extent if it can be continued with a batch of this size, otherwise 0."""
        fold = self._fold
        last = fold.last_extent
        assert fold.settings is not None
        if last is None or last.epoch != fold.epoch:
            return 0
        if self._failed == ExtentId(fold.partition, last.epoch, last.number):
            return 0
        if last.length + size + ITEM_OVERHEAD_BYTES > EXTENT_BYTES_MAX:
            return 0
        retention = fold.settings.retention_ms
        if retention >= 0 and fold.now - last.first_ms > retention // AGE_PARTS:
            return 0
        return last.length

    def bound(self, plan: BindPlan, length: int, lost: int = 0) -> list[records.StreamRecord]:
        """Return the record of a bind whose bytes are synced, up to ``length``.

        No record if the partition was dropped, or trimmed so far, that the extent is not needed; it is then abandoned.
        """
        fold = self._fold
        last = fold.last_extent
        continued = last is not None and (last.epoch, last.number) == plan.extent[1:]
        if fold.dropped or fold.tail_base >= plan.through or not (plan.is_new or continued):
            self.abandon(plan)
            return []
        return [records.Bound(plan.extent.epoch, plan.extent.number, plan.through, length, lost)]

    def abandon(self, plan: BindPlan) -> None:
        """Give a bind up: its bytes may or may not be stored, and its extent is not continued."""
        if plan.is_new:
            self.abandoned.append(plan.extent)  # no record names it, so it is not continued either
        else:
            self._failed = plan.extent


def orphans(fold: StreamFold, found: Iterable[ExtentId]) -> list[ExtentId]:
    """Return those of the partition's stored extents that no record names.

    Only extents of earlier epochs: a bind of the current one may be in progress.  Call it with the partition open.
    """
    known = {(line.epoch, line.number) for line in map(fold.extent_line, range(len(fold.extents)))}
    known.update(fold.released)
    return [one for one in found if one.epoch < fold.epoch and one[1:] not in known]


# --- retention ----------------------------------------------------------------------------------------


def retention_due(fold: StreamFold) -> int:
    """Return the time from which :func:`trim` has something to do by age, as far as known now."""
    settings = fold.settings
    if settings is None or fold.dropped or not settings.has_retention or settings.retention_ms < 0:
        return NEVER
    if len(fold.extents):
        return fold.extent_line(0).age_from + settings.retention_ms + 1
    if len(fold.tail):
        # Batches of the tail are dropped together, a fourteenth of the retention time late at most.
        return fold.tail_line(0).age_from + settings.retention_ms + settings.retention_ms // AGE_PARTS + 1
    return NEVER


def trim(fold: StreamFold, now: int, until: int) -> list[records.StreamRecord]:
    """Return the record that removes what is older, or more, than the topic's retention allows.

    As in Kafka, parts are removed from the front, up to the first one that has to stay, by their largest timestamp.  A
    part is an extent, or without extents a batch.
    """
    settings = fold.settings
    if settings is None or fold.dropped or not settings.has_retention:
        return []
    start = fold.log_start
    if now >= retention_due(fold):
        start = _expired_start(fold, now - settings.retention_ms, until)
    if settings.retention_bytes >= 0:
        excess = fold.stored_bytes - settings.retention_bytes
        for index in range(len(fold.extents)):
            line = fold.extent_line(index)
            excess -= line.size_bytes
            if excess < 0:
                break
            start = max(start, line.end_offset)
    return [records.Trimmed(start)] if start > fold.log_start else []


def _expired_start(fold: StreamFold, before_ms: int, until: int) -> int:
    """Return the offset behind the parts whose largest timestamp is before a time."""
    start = fold.log_start
    for index in range(len(fold.extents)):
        extent = fold.extent_line(index)
        if extent.age_from >= before_ms:
            return start
        start = extent.end_offset
    for index in range(len(fold.tail)):
        end = fold.tail_end(index)
        if fold.tail_line(index).age_from >= before_ms or end > until:
            break
        start = end
    return start
