"""The judge of one partition of a topic: whether the answers that its clients got are possible together.

A batch that was read, or whose append was answered as durable, has its place for ever: its offset never has another
batch, and the batch no other offset.  An append without an answer may be stored or not.  Moments are numbered
(:meth:`StreamHistory.ask`), so that a later call has to see what an earlier one has shown.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from backend.api import AckLevel
from backend.stream_api import NO_PRODUCER, Appended, FoundOffset, NewBatch, StreamError, StreamRefused, StreamSettings
from backend.stream_commands import Fetched, FetchedBatch, StreamEnds, TimestampFound
from tests.simulator.checks.model import Violation

KEPT_BATCHES = 5
"""Number of a producer's last batches whose repeats have to be recognized."""


class Asked(NamedTuple):
    """Knowledge at the moment of a call."""

    tick: int
    start: int
    """The log start was at least here."""
    end: int
    """The durable end was at least here."""


class SentBatch:
    """A batch that a client has sent, once or several times."""

    __slots__ = ("acked", "asked_ms", "calls", "epoch", "known", "new", "offset", "stamp", "under_way", "unknown")

    def __init__(self, new: NewBatch, asked_ms: int) -> None:
        self.new = new
        self.asked_ms = asked_ms
        """Time of the first call."""
        self.stamp = new.max_timestamp
        """Its largest timestamp, as far as known: with append times, after it was answered or read."""
        self.calls = 0
        self.under_way = 0
        """Calls without an outcome yet."""
        self.unknown = False
        """A call has ended without an outcome, so it may be stored."""
        self.acked = False
        """Its append was answered."""
        self.offset: int | None = None
        """Its place for ever."""
        self.known = 0
        """Moment at which its place was known."""
        self.epoch: int | None = None

    @property
    def count(self) -> int:
        return self.new.record_count

    @property
    def may_be_stored(self) -> bool:
        return self.offset is not None or self.acked or self.unknown or self.under_way > 0

    @property
    def sequence(self) -> tuple[int, int]:
        """Epoch and first sequence of its producer."""
        return self.new.producer_epoch, self.new.base_sequence

    @property
    def end(self) -> int:
        assert self.offset is not None
        return self.offset + self.count

    def ended(self) -> None:
        """Note that the processes of all calls have died."""
        self.unknown |= self.under_way > 0
        self.under_way = 0


class StreamHistory:
    """Knowledge that clients have of one partition."""

    def __init__(self, settings: StreamSettings, time_ms: Callable[[], int], counts: Counter[str]) -> None:
        """``time_ms``: the time of the partition's shard, or a later one."""
        self.settings = settings
        self.counts = counts
        self.batches: dict[bytes, SentBatch] = {}
        """All that were sent, by payload."""
        self.start = 0
        self.end = 0
        """Known log start and durable end: neither is ever lower again."""
        self.shown = 0
        """The last log start of an answer: a crash may undo what has raised it."""
        self.deleted = 0
        """Records below were asked to be deleted."""
        self.is_deleted = False
        """The metadata do not have its topic any more."""
        self.tick = 0
        self._time_ms = time_ms
        self._bases: list[int] = []
        self._placed: dict[int, SentBatch] = {}
        """By offset."""
        self._producers: dict[int, list[tuple[int, SentBatch]]] = {}
        """By producer: its batches in the order of their offsets."""

    @property
    def name(self) -> str:
        return f"partition {self.settings.partition}"

    def ask(self) -> Asked:
        self.tick += 1
        return Asked(self.tick, self.start, self.end)

    def time_ms(self) -> int:
        return self._time_ms()

    # --- places -----------------------------------------------------------------------------------------

    def _place(self, batch: SentBatch, offset: int) -> None:
        """Note that a batch is durable at an offset."""
        if batch.offset is not None:
            if batch.offset != offset:
                raise Violation(f"{self.name} has {_named(batch)} at {batch.offset} and at {offset}")
            return
        at = bisect_left(self._bases, offset)
        if at < len(self._bases) and self._bases[at] < offset + batch.count:
            raise Violation(f"{self.name} had {self._at(at)} where {_named(batch)} is now, at {offset}")
        if at and self._placed[self._bases[at - 1]].end > offset:
            raise Violation(f"{self.name} had {self._at(at - 1)} where {_named(batch)} is now, at {offset}")
        batch.offset, batch.known = offset, self.tick
        self._bases.insert(at, offset)
        self._placed[offset] = batch
        self.end = max(self.end, batch.end)
        if batch.new.producer_id != NO_PRODUCER:
            self._place_of_producer(batch, offset)

    def _place_of_producer(self, batch: SentBatch, offset: int) -> None:
        stored = self._producers.setdefault(batch.new.producer_id, [])
        insort(stored, (offset, batch), key=lambda one: one[0])
        at = bisect_left(stored, offset, key=lambda one: one[0])
        for first, second in ((at - 1, at), (at, at + 1)):
            if first >= 0 and second < len(stored) and stored[first][1].sequence >= stored[second][1].sequence:
                raise Violation(
                    f"{self.name} has {_named(stored[first][1])} before {_named(stored[second][1])} of one producer"
                )

    def _at(self, index: int) -> str:
        base = self._bases[index]
        return f"{_named(self._placed[base])} at {base}"

    def _started(self, start: int, asked: Asked) -> None:
        """Note the log start of an answer."""
        if start < asked.start:
            raise Violation(f"{self.name} began at {asked.start}, and begins at {start}")
        self._check_gone(start)
        self.shown = start

    def _ended(self, end: int, asked: Asked) -> None:
        """Note the durable end of an answer."""
        if end < asked.end:
            raise Violation(f"{self.name} ended at {asked.end}, and ends at {end}")
        self.end = max(self.end, end)

    def _check_gone(self, start: int) -> None:
        """Check that everything known below ``start`` was deleted or has reached the retention's limits."""
        if start <= max(self.deleted, self.start):
            return
        first = max(0, bisect_right(self._bases, max(self.deleted, self.start)) - 1)
        for base in self._bases[first : bisect_left(self._bases, start)]:
            batch = self._placed[base]
            if batch.end > max(self.deleted, self.start) and not self._may_be_removed(batch):
                retention = f"{self.settings.retention_ms} ms, {self.settings.retention_bytes} bytes"
                raise Violation(
                    f"{self.name} begins at {start}, and nobody has deleted {_named(batch)} at {base}: {retention}"
                )

    def _may_be_removed(self, batch: SentBatch) -> bool:
        settings = self.settings
        if settings.retention_ms >= 0 and batch.stamp + settings.retention_ms <= self.time_ms():
            return True  # one without a timestamp goes with the others of its extent
        if settings.retention_bytes < 0:
            return False
        assert batch.offset is not None
        behind = sum(
            len(other.new.payload)
            for other in self.batches.values()
            if (other.offset > batch.offset if other.offset is not None else other.may_be_stored)
        )
        return behind >= settings.retention_bytes

    # --- appends ----------------------------------------------------------------------------------------

    def sending(self, new: NewBatch) -> SentBatch:
        batch = self.batches.get(new.payload)
        if batch is None:
            batch = self.batches[new.payload] = SentBatch(new, self.time_ms())
        batch.calls += 1
        batch.under_way += 1
        return batch

    def appended(self, batch: SentBatch, level: AckLevel, answer: Appended, asked: Asked) -> None:
        self.tick += 1
        batch.under_way -= 1
        if answer.duplicate and (batch.calls < 2 or batch.new.producer_id == NO_PRODUCER):
            raise Violation(f"{self.name} takes {_named(batch)} for a duplicate, and it was sent once")
        batch.acked = True
        if self.settings.append_time:
            batch.stamp = answer.append_ms
        if level in (AckLevel.QUORUM, AckLevel.ALL):
            self._place(batch, answer.base_offset)
        self._started(answer.log_start, asked)
        self.counts["appended"] += 1
        self.counts["duplicates"] += answer.duplicate

    def refused(self, batch: SentBatch) -> None:
        """Note that a call has changed nothing."""
        batch.under_way -= 1

    def unanswered(self, batch: SentBatch) -> None:
        batch.under_way -= 1
        batch.unknown = True

    # --- reads ------------------------------------------------------------------------------------------

    def fetched(self, offset: int, answer: Fetched, asked: Asked) -> None:
        self.tick += 1
        self._ended(answer.durable_end, asked)
        self._started(answer.log_start, asked)
        if not answer.batches and offset < answer.durable_end:
            raise Violation(f"{self.name} ends at {answer.durable_end}, and returns nothing from {offset} on")
        at, epoch = offset, 0
        for batch in answer.batches:
            if not batch.base_offset <= at < batch.end_offset or (at > offset and batch.base_offset != at):
                raise Violation(f"{self.name} continues with {batch.base_offset} where {at} is expected")
            if batch.end_offset > answer.durable_end:
                raise Violation(f"{self.name} returns {batch.base_offset}, which is not durable yet")
            self.read(batch)
            if batch.leader_epoch < epoch:
                raise Violation(f"{self.name} has epoch {batch.leader_epoch} behind {epoch}")
            at, epoch = batch.end_offset, batch.leader_epoch

    def read(self, found: FetchedBatch) -> None:
        """Check a batch that a reader got."""
        if found.payload is None:
            raise Violation(f"{self.name} has lost the batch at {found.base_offset}")
        batch = self.batches.get(found.payload)
        if batch is None or not batch.may_be_stored or batch.count != found.record_count:
            raise Violation(f"{self.name} returns {found.payload[:12]!r} at {found.base_offset}, which nobody has sent")
        if self.settings.append_time:
            batch.stamp = found.max_timestamp
        elif batch.stamp != found.max_timestamp:
            raise Violation(f"{self.name} returns {_named(batch)} with another timestamp")
        if batch.epoch not in (None, found.leader_epoch):
            raise Violation(f"{self.name} has {_named(batch)} with epoch {batch.epoch} and {found.leader_epoch}")
        batch.epoch = found.leader_epoch
        self._place(batch, found.base_offset)
        self.counts["read"] += 1

    def out_of_range(self, offset: int, asked: Asked) -> None:
        """Check that an offset may be refused."""
        self.tick += 1
        if offset <= asked.end:
            self._check_gone(offset + 1)

    def ends(self, answer: StreamEnds, asked: Asked) -> None:
        self.tick += 1
        self._ended(answer.durable_end.offset, asked)
        self._started(answer.log_start.offset, asked)

    def searched(self, timestamp: int, from_offset: int, answer: TimestampFound | None, asked: Asked) -> None:
        """Check the first batch with at least this timestamp."""
        self.tick += 1
        if answer is not None:
            self.read(answer.batch)
            if answer.batch.max_timestamp < timestamp:
                raise Violation(f"{self.name} found {answer.batch.max_timestamp} where {timestamp} was searched")
        for base in self._bases[max(0, bisect_right(self._bases, from_offset) - 1) :]:
            batch = self._placed[base]
            if answer is not None and base >= answer.batch.base_offset:
                break
            may_be_gone = batch.end <= max(self.deleted, self.start) or self._may_be_removed(batch)
            if batch.known < asked.tick and batch.end > from_offset and batch.stamp >= timestamp and not may_be_gone:
                raise Violation(f"{self.name} has {_named(batch)} at {base}, and a search by time passed it")

    def epoch_ended(self, epoch: int, answer: FoundOffset, asked: Asked) -> None:
        self.tick += 1
        if answer.offset < 0:
            return
        for batch in self._placed.values():
            if batch.epoch is None or batch.known >= asked.tick:
                continue
            assert batch.offset is not None
            first = max(batch.offset, self.start, self.deleted)
            fits = batch.end <= answer.offset if batch.epoch <= epoch else first >= answer.offset
            if not fits and batch.end > first and not self._may_be_removed(batch):
                raise Violation(
                    f"{self.name} has {_named(batch)} of epoch {batch.epoch}; {epoch} ended at {answer}, {batch.offset}"
                )

    # --- deletion ---------------------------------------------------------------------------------------

    def deleting(self, before: int) -> None:
        self.deleted = max(self.deleted, before)

    def records_deleted(self, before: int, log_start: int, asked: Asked) -> None:
        self.tick += 1
        if log_start < before:
            raise Violation(f"{self.name} deleted all below {before}, and begins at {log_start}")
        self._started(log_start, asked)
        self.start = max(self.start, log_start)

    # --- producers --------------------------------------------------------------------------------------

    def sequence_refused(self, batch: SentBatch, error: StreamRefused, *, must_be_taken: bool) -> None:
        self.tick += 1
        batch.under_way -= 1
        expected = (StreamError.OUT_OF_ORDER_SEQUENCE_NUMBER, StreamError.INVALID_PRODUCER_EPOCH)
        if must_be_taken or error.error not in expected:
            raise Violation(f"{self.name} refuses {_named(batch)} with {error.error.name}: {error}")
        self.counts["refused sequences"] += 1

    def check_sequences(self) -> None:
        """Check that the stored batches of each producer have no gap."""
        for stored in self._producers.values():
            kept = [batch for offset, batch in stored if offset >= self.start]
            for first, second in pairwise(kept):
                (epoch, sequence), (next_epoch, next_sequence) = first.sequence, second.sequence
                if next_sequence != (sequence + first.count if epoch == next_epoch else 0):
                    raise Violation(f"{self.name} lacks batches between {_named(first)} and {_named(second)}")


def _named(batch: SentBatch) -> str:
    return batch.new.payload[:10].decode("ascii", "replace")
