"""The state of a topic's partition, and ``apply``, the only code that changes it.

Theory ------

The state is a function of the records, in order, and of a time, as a queue's is (:mod:`backend.engine.fold`).  Time
alone does one thing: it makes the partition forget producers.  Everything else that has to do with time (retention) is
a decision with a record.

Offsets are dense: a batch begins where the one before it ended, and each offset below the end was given out once.  The
batches from the first stored one to the end lie, in this order, in the extents and then in the *tail*, which is still
in the log::

    log start                                               next offset
        |                                                        |
    [ extent ][ extent ][ last extent ] [batch][batch][batch][batch]
    `------------ extents -----------'  `---------- tail ---------'

``Bound`` moves the boundary between the two: it takes batches from the front of the tail.  ``Trimmed`` moves the log
start.  Extents and batches that lie below it as a whole are dropped; the log start may lie within one.

These must change together: a batch's place in the tail, the bytes of the tail (``log_bytes``) and the count of its
segment; and whenever a batch or an extent is dropped, ``stored_bytes`` with its moments.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from backend.api import AckLevel
from backend.engine.fold import SEGMENT_SHIFT
from backend.engine.timers import NEVER
from backend.stream_api import NO_EPOCH, NO_OFFSET, FoundOffset, StreamSettings
from backend.streams import records
from backend.streams.lines import PackedLines
from backend.streams.producers import PRODUCER_BYTES, AppendedBatch, Producers

STREAM_BYTES = 5_000
TAIL_LINE_BYTES = 36
EXTENT_LINE_BYTES = 64
"""Approximate memory of a fold without batches, of a batch of the tail, and of an extent."""
TAIL_BLOCK_LINES = 1_024
EXTENT_BLOCK_LINES = 256

ExtentNumber: TypeAlias = tuple[int, int]
"""Epoch and number of an extent: with the partition, its id."""


class TailLine(NamedTuple):
    """A batch of the tail.  A field's index is its column."""

    position: int
    base_offset: int
    size_bytes: int
    """Bytes of the payload."""
    max_timestamp: int
    time_ms: int
    """Time of the record."""

    @property
    def age_from(self) -> int:
        """Start of its retention: as in Kafka, the largest timestamp, or the time of the append if it has none."""
        return self.max_timestamp if self.max_timestamp >= 0 else self.time_ms


class ExtentLine(NamedTuple):
    """An extent.  A field's index is its column."""

    epoch: int
    number: int
    base_offset: int
    end_offset: int
    length: int
    """Length of the extent as of the last ``Bound``."""
    size_bytes: int
    """Bytes of the payloads."""
    max_timestamp: int
    first_ms: int
    last_ms: int
    """Times of the records of the first and of the last batch."""

    @property
    def age_from(self) -> int:
        """Start of its retention."""
        return self.max_timestamp if self.max_timestamp >= 0 else self.last_ms


TAIL_CODES = "QqIqq"
EXTENT_CODES = "IIqqIQqqq"
BASE_OFFSET = 1
TIMESTAMP = 3
"""Columns of the tail."""
EXTENT_END = 3
EXTENT_TIMESTAMP = 6
"""Columns of the extents."""


class StreamState:
    """The whole state of one partition."""

    __slots__ = (
        "byte_moments",
        "changed",
        "dropped",
        "due",
        "epoch",
        "epochs",
        "extents",
        "log_bytes",
        "log_start",
        "lost",
        "next_extent",
        "next_offset",
        "now",
        "partition",
        "producers",
        "released",
        "segments",
        "settings",
        "stored_bytes",
        "tail",
    )

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.settings: StreamSettings | None = None
        self.now = 0
        self.due = NEVER
        """Time before which time alone changes nothing."""
        self.epoch = 0
        """The shard's epoch under which the partition is served; 0 during a replay."""
        self.next_offset = 0
        self.log_start = 0
        self.tail = PackedLines(TAIL_CODES, TAIL_BLOCK_LINES)
        self.extents = PackedLines(EXTENT_CODES, EXTENT_BLOCK_LINES)
        self.next_extent = 1
        """A number that no extent of ``Bound`` has yet."""
        self.epochs: list[tuple[int, int]] = []
        """(epoch, its first offset) of each epoch in which something was appended that may still be stored."""
        self.producers = Producers()
        self.released: list[ExtentNumber] = []
        """Extents that hold nothing any more, to be deleted once a checkpoint that lists them here is published."""
        self.dropped = False
        self.lost = 0
        """Number of batches whose payload was unreadable when they were moved."""
        self.log_bytes = 0
        """Bytes of the payloads of the tail."""
        self.stored_bytes = 0
        """Bytes of all stored payloads: whole extents and batches, also one that contains the log start."""
        self.byte_moments = 0
        """Sum of each change of ``stored_bytes`` multiplied by its time; see :meth:`stored_byte_ms`."""
        self.segments: dict[int, int] = {}
        """Number of batches of the tail in each segment of the journal."""
        self.changed = True
        """The state has changed since the last checkpoint."""

    # --- queries --------------------------------------------------------------------------------------

    def tail_line(self, index: int) -> TailLine:
        return TailLine._make(self.tail.row(index))

    def extent_line(self, index: int) -> ExtentLine:
        return ExtentLine._make(self.extents.row(index))

    @property
    def last_extent(self) -> ExtentLine | None:
        return self.extent_line(len(self.extents) - 1) if len(self.extents) else None

    @property
    def tail_base(self) -> int:
        """First offset of the tail; the next offset if it is empty."""
        return self.tail.value(BASE_OFFSET, 0) if len(self.tail) else self.next_offset

    def tail_end(self, index: int) -> int:
        """Return the offset behind a batch of the tail."""
        return self.tail.value(BASE_OFFSET, index + 1) if index + 1 < len(self.tail) else self.next_offset

    def epoch_at(self, offset: int) -> int:
        """Return the epoch in which an offset was, or will be, given out."""
        at = bisect_right(self.epochs, offset, key=lambda entry: entry[1]) - 1
        if offset >= self.next_offset:
            return self.epoch
        return self.epochs[at][0] if at >= 0 else NO_EPOCH

    def epoch_end(self, epoch: int) -> FoundOffset:
        """Return the last known epoch not above this one, and the offset at which it ended (OffsetForLeaderEpoch)."""
        if epoch < 0:
            return FoundOffset(NO_OFFSET)
        if epoch == self.epoch:
            return FoundOffset(self.next_offset, leader_epoch=epoch)
        entries = self.epochs
        if not entries or entries[-1][0] < self.epoch:
            entries = [*entries, (self.epoch, self.next_offset)]
        above = bisect_right(entries, epoch, key=lambda entry: entry[0])
        if above == len(entries):
            return FoundOffset(NO_OFFSET)
        return FoundOffset(entries[above][1], leader_epoch=entries[above - 1][0] if above else epoch)

    @property
    def stored_records(self) -> int:
        """Number of offsets between the log start and the end."""
        return self.next_offset - self.log_start

    def first_stored_ms(self) -> int:
        """Return the time of the append of the oldest stored batch; 0 if nothing is stored."""
        if len(self.extents):
            return self.extent_line(0).first_ms
        return self.tail_line(0).time_ms if len(self.tail) else 0

    def stored_byte_ms(self, until: int) -> int:
        """Return the integral of stored bytes over time, in byte-milliseconds, from :meth:`StreamFold.open` to
        ``until``, which must not be before the last change (:meth:`backend.engine.state.State.stored_byte_ms`).
        """
        return self.stored_bytes * until - self.byte_moments

    def memory_bytes(self) -> int:
        """Return the approximate memory of the state in bytes."""
        return (
            STREAM_BYTES
            + len(self.tail) * TAIL_LINE_BYTES
            + len(self.extents) * EXTENT_LINE_BYTES
            + len(self.producers) * PRODUCER_BYTES
        )

    @property
    def ack_level(self) -> AckLevel:
        assert self.settings is not None
        return self.settings.ack_level


class StreamFold(StreamState):
    """The state with the code that changes it.  Read it freely; change it by :meth:`apply` and :meth:`advance` only."""

    __slots__ = ()

    def apply(self, record: records.StreamRecord, now: int, position: int = 0, size: int = 0) -> None:
        """Change the state by one record.

        ``position``: position of a batch's record in the journal.  ``size``: the bytes of its payload.
        """
        if now >= self.due:
            self.advance(now)
        elif now > self.now:
            self.now = now
        self.changed = True
        _APPLIERS[type(record)](self, record, self.now, position, size)

    def advance(self, now: int) -> None:
        """Perform the changes due at ``now``.  Time never goes back: an earlier ``now`` does nothing."""
        if now > self.now:
            self.now = now
        if now < self.due:
            return
        assert self.settings is not None
        before = len(self.producers)
        self.producers.expire(self.now, self.settings.producer_expiry_ms)
        if len(self.producers) != before:
            self.changed = True
        self._set_due()

    def open(self, epoch: int) -> None:
        """Continue under a new owner.  Batches and extents get its epoch, which is higher than all before."""
        assert not self.epochs or epoch >= self.epochs[-1][0], "epochs rise"
        self.epoch = epoch
        self.byte_moments = self.stored_bytes * self.now

    def forget_released(self, deleted: list[ExtentNumber]) -> None:
        """Forget extents that were deleted after a checkpoint that lists them was published.

        No record: a replay finds them again, and deleting them again does nothing.
        """
        gone = set(deleted)
        self.released = [one for one in self.released if one not in gone]
        self.changed = True

    # --- batches --------------------------------------------------------------------------------------

    def _batch(self, record: records.Batches, now: int, position: int, size: int) -> None:
        assert self.settings is not None
        base = record.base_offset
        assert base == self.next_offset, "offsets are dense"
        assert record.record_count > 0, "a batch has offsets"
        self.tail.append(position, base, size, record.max_timestamp, now)
        self.next_offset = base + record.record_count
        epochs = self.epochs
        if not epochs or epochs[-1][0] != record.leader_epoch:
            assert not epochs or epochs[-1][0] < record.leader_epoch, "epochs rise"
            while epochs and epochs[-1][1] >= base:
                epochs.pop()
            epochs.append((record.leader_epoch, base))
        self.log_bytes += size
        self._store(size, now)
        segment = position >> SEGMENT_SHIFT
        self.segments[segment] = self.segments.get(segment, 0) + 1
        if record.producer_id >= 0:
            batch = AppendedBatch(record.base_sequence, record.record_count, base, record.max_timestamp)
            self.producers.appended(record.producer_id, record.producer_epoch, batch, now)
            expiry = now + self.settings.producer_expiry_ms
            if expiry < self.due:
                self.due = expiry

    def _bound(self, record: records.Bound, now: int, position: int, size: int) -> None:
        assert record.through <= self.next_offset, "nothing is bound that was not appended"
        self.next_extent = max(self.next_extent, record.number + 1)
        self.lost += record.lost
        tail = self.tail
        count = len(tail) if record.through == self.next_offset else tail.count_below(BASE_OFFSET, record.through - 1)
        last = self.last_extent
        extends = last is not None and (last.epoch, last.number) == (record.epoch, record.number)
        assert count, "a bound batch is in the tail"
        first, stored, latest, line = self.tail_line(0), 0, -1, self.tail_line(0)
        for index in range(count):
            line = self.tail_line(index)
            stored += line.size_bytes
            latest = max(latest, line.max_timestamp)
            self._count_out(line.position)
        self.log_bytes -= stored
        if extends:
            assert last is not None
            assert record.length > last.length, "an extent only grows"
            merged = last._replace(
                end_offset=record.through,
                length=record.length,
                size_bytes=last.size_bytes + stored,
                max_timestamp=max(last.max_timestamp, latest),
                last_ms=line.time_ms,
            )
            self.extents.replace_last(*merged)
        else:
            self.extents.append(
                record.epoch,
                record.number,
                first.base_offset,
                record.through,
                record.length,
                stored,
                latest,
                first.time_ms,
                line.time_ms,
            )
        tail.drop(count)
        assert self.tail_base == record.through, "whole batches are bound"

    def _trimmed(self, record: records.Trimmed, now: int, position: int, size: int) -> None:
        start = record.log_start
        assert self.log_start <= start <= self.next_offset, "the log start rises, up to the end"
        self.log_start = start
        self._drop_extents(self.extents.count_below(EXTENT_END, start), now)
        if start == self.next_offset:
            self._drop_tail(len(self.tail), now)
        else:
            self._drop_tail(max(0, self.tail.count_below(BASE_OFFSET, start) - 1), now)
        epochs = self.epochs
        below = bisect_right(epochs, start, key=lambda entry: entry[1])
        if below:
            epochs[:below] = [(epochs[below - 1][0], start)]

    def _dropped(self, record: records.StreamDropped, now: int, position: int, size: int) -> None:
        self.dropped = True
        self._drop_extents(len(self.extents), now)
        self._drop_tail(len(self.tail), now)
        self.log_start = self.next_offset
        self.epochs.clear()
        self.producers.clear()
        self._set_due()

    def _configured(self, record: records.StreamConfigured, now: int, position: int, size: int) -> None:
        self.settings = record.settings
        self.producers.expire(now, record.settings.producer_expiry_ms)
        self._set_due()

    # --- what changes together ------------------------------------------------------------------------

    def _drop_extents(self, count: int, now: int) -> None:
        for index in range(count):
            line = self.extent_line(index)
            self.released.append((line.epoch, line.number))
            self._store(-line.size_bytes, now)
        self.extents.drop(count)

    def _drop_tail(self, count: int, now: int) -> None:
        for index in range(count):
            line = self.tail_line(index)
            self.log_bytes -= line.size_bytes
            self._store(-line.size_bytes, now)
            self._count_out(line.position)
        self.tail.drop(count)

    def _store(self, size: int, now: int) -> None:
        self.stored_bytes += size
        self.byte_moments += size * now

    def _count_out(self, position: int) -> None:
        segment = position >> SEGMENT_SHIFT
        left = self.segments[segment] - 1
        if left:
            self.segments[segment] = left
        else:
            del self.segments[segment]

    def _set_due(self) -> None:
        assert self.settings is not None
        self.due = self.producers.next_expiry(self.settings.producer_expiry_ms)

    def restored(self) -> None:
        """Complete a state whose columns were read from a checkpoint."""
        self.log_bytes = self.stored_bytes = 0
        for row in self.tail.rows():
            line = TailLine._make(row)
            self.log_bytes += line.size_bytes
            segment = line.position >> SEGMENT_SHIFT
            self.segments[segment] = self.segments.get(segment, 0) + 1
        self.stored_bytes = self.log_bytes + sum(ExtentLine._make(row).size_bytes for row in self.extents.rows())
        self.byte_moments = self.stored_bytes * self.now
        self._set_due()
        self.changed = False


_APPLIERS: dict[type, Callable[[StreamFold, Any, int, int, int], None]] = {
    records.StreamConfigured: StreamFold._configured,
    records.Batches: StreamFold._batch,
    records.Bound: StreamFold._bound,
    records.Trimmed: StreamFold._trimmed,
    records.StreamDropped: StreamFold._dropped,
}
