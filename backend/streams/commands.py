"""Commands of a topic's partition: decisions, expressed as records and places to read.

Nothing here reads a batch.  A fetch and a search by time return *places*: positions of records in the journal, or a
part of an extent, in which the extent's own index (:class:`backend.streams.extents.SparseIndex`) finds the bytes.

``until`` is the durable end: the offset below which all batches are durable.  Nobody reads behind it, because a crash
could take that away.  The caller knows it from the log; batches end at it exactly.
"""

from __future__ import annotations

from typing import NamedTuple

from backend.extent_ids import ExtentId
from backend.stream_api import (
    NO_EPOCH,
    NO_OFFSET,
    NO_PRODUCER,
    NO_TIMESTAMP,
    Appended,
    FoundOffset,
    NewBatch,
    StreamError,
    StreamRefused,
    StreamSettings,
)
from backend.streams import records
from backend.streams.stream import BASE_OFFSET, EXTENT_END, EXTENT_TIMESTAMP, TIMESTAMP, ExtentLine, StreamFold

PRODUCER_EPOCH_MAX = (1 << 15) - 1
OFFSET_MAX = (1 << 63) - 1


class LogPlace(NamedTuple):
    """A batch in the journal."""

    position: int
    base_offset: int
    end_offset: int
    size_bytes: int
    """Bytes of the payload."""


class ExtentPlace(NamedTuple):
    """Batches in an extent: those that end behind ``offset``."""

    extent: ExtentId
    length: int
    """Length of the extent; bytes behind it do not count."""
    offset: int
    end_offset: int
    """End of the extent: what follows is in another place."""


class FetchPlan(NamedTuple):
    """Places of the batches that a fetch returns, in order.

    Of an extent, as much is read as the fetch may return; if its end is reached with less, the caller plans again from
    there.
    """

    extent: ExtentPlace | None = None
    batches: tuple[LogPlace, ...] = ()


class TimeSearch(NamedTuple):
    """A place whose batches have the timestamp that is searched: its first record with at least this timestamp.

    A record below ``offset`` does not count.  If none is left, the search continues with ``from_offset`` set to the
    place's end.
    """

    place: LogPlace | ExtentPlace
    timestamp: int
    offset: int


class StreamCommands:
    """Decisions on one partition; they change nothing."""

    def __init__(self, fold: StreamFold) -> None:
        self.fold = fold

    # --- settings -------------------------------------------------------------------------------------

    def configure(self, settings: StreamSettings) -> list[records.StreamRecord]:
        """Return the record of newer settings."""
        known = self.fold.settings
        if known is not None and known.version >= settings.version:
            return []
        return [records.StreamConfigured(settings)]

    def drop(self) -> list[records.StreamRecord]:
        assert self.fold.settings is not None
        return [] if self.fold.dropped else [records.StreamDropped(self.fold.settings.stream_id)]

    def check_epoch(self, epoch: int) -> None:
        """Compare the epoch that a client believes to be the current one.  Raises :class:`StreamRefused`."""
        own = self.fold.epoch
        if epoch in (NO_EPOCH, own):
            return
        error = StreamError.FENCED_LEADER_EPOCH if epoch < own else StreamError.UNKNOWN_LEADER_EPOCH
        raise StreamRefused(error, f"the epoch is {own}; the client knows {epoch}")

    # --- append ---------------------------------------------------------------------------------------

    def append(self, batch: NewBatch, now: int) -> tuple[records.Batches | None, Appended]:
        """Return the record of a batch, whose body is its payload, and the answer; no record for a duplicate.

        Raises :class:`StreamRefused`.
        """
        fold = self.fold
        fold.advance(now)
        now = fold.now
        settings = fold.settings
        assert settings is not None
        if batch.client_bytes > settings.batch_bytes_max:
            raise StreamRefused(
                StreamError.MESSAGE_TOO_LARGE,
                f"the batch has {batch.client_bytes} bytes; the topic accepts {settings.batch_bytes_max}",
            )
        if batch.record_count < 1 or batch.record_count > OFFSET_MAX - fold.next_offset:
            raise StreamRefused(StreamError.INVALID_RECORD, f"a batch of {batch.record_count} records")
        if batch.producer_id != NO_PRODUCER:
            if batch.producer_id < 0 or not 0 <= batch.producer_epoch <= PRODUCER_EPOCH_MAX or batch.base_sequence < 0:
                raise StreamRefused(
                    StreamError.INVALID_RECORD,
                    f"producer {batch.producer_id}, epoch {batch.producer_epoch}, sequence {batch.base_sequence}",
                )
            earlier = fold.producers.check(
                batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.record_count
            )
            if earlier is not None:
                return None, Appended(earlier.base_offset, earlier.max_timestamp, fold.log_start, True)
        record = records.Batches(
            fold.next_offset, batch.record_count, fold.epoch, batch.first_timestamp, batch.max_timestamp
        )
        if settings.append_time:
            record.first_timestamp = record.max_timestamp = record.append_ms = now
        record.attributes, record.client_bytes = batch.attributes, batch.client_bytes
        if batch.producer_id != NO_PRODUCER:
            record.producer_id, record.producer_epoch = batch.producer_id, batch.producer_epoch
            record.base_sequence = batch.base_sequence
        return record, Appended(record.base_offset, record.append_ms, fold.log_start)

    # --- fetch ----------------------------------------------------------------------------------------

    def fetch(self, offset: int, bytes_max: int, until: int, *, at_least_one: bool = True) -> FetchPlan:
        """Return the places of the batches from the one that holds ``offset`` on.

        The bytes are those of payloads.  ``at_least_one``: the first batch is returned however long it is.  Raises
        :class:`StreamRefused` if the offset is not stored.
        """
        fold = self.fold
        if not fold.log_start <= offset <= fold.next_offset:
            raise StreamRefused(
                StreamError.OFFSET_OUT_OF_RANGE, f"offsets are {fold.log_start} to {fold.next_offset}, not {offset}"
            )
        if offset >= until:
            return FetchPlan()
        if offset < fold.tail_base:
            return FetchPlan(self._extent_place(self._extent_of(offset), offset))
        batches: list[LogPlace] = []
        total = 0
        for index in range(fold.tail.count_below(BASE_OFFSET, offset) - 1, len(fold.tail)):
            place = self._log_place(index)
            total += place.size_bytes
            if place.end_offset > until or (total > bytes_max and not (at_least_one and not batches)):
                break
            batches.append(place)
        return FetchPlan(None, tuple(batches))

    def _extent_of(self, offset: int) -> int:
        """Return the index of the extent that holds an offset; the number of extents if the offset is after them."""
        return self.fold.extents.count_below(EXTENT_END, offset)

    def _extent_place(self, index: int, offset: int) -> ExtentPlace:
        line: ExtentLine = self.fold.extent_line(index)
        extent = ExtentId(self.fold.partition, line.epoch, line.number)
        return ExtentPlace(extent, line.length, max(offset, line.base_offset), line.end_offset)

    def _log_place(self, index: int) -> LogPlace:
        line = self.fold.tail_line(index)
        return LogPlace(line.position, line.base_offset, self.fold.tail_end(index), line.size_bytes)

    # --- offsets --------------------------------------------------------------------------------------

    def earliest(self) -> FoundOffset:
        start = self.fold.log_start
        return FoundOffset(start, NO_TIMESTAMP, self.fold.epoch_at(start))

    def latest(self, until: int) -> FoundOffset:
        return FoundOffset(until, NO_TIMESTAMP, self.fold.epoch)

    def search(self, timestamp: int, until: int, from_offset: int = 0) -> TimeSearch | None:
        """Return the first place at or behind ``from_offset`` whose largest timestamp is at least this one."""
        fold = self.fold
        offset = max(from_offset, fold.log_start)
        if offset >= until:
            return None
        index = fold.extents.first_min(EXTENT_TIMESTAMP, timestamp, self._extent_of(offset))
        if index < len(fold.extents):
            return TimeSearch(self._extent_place(index, offset), timestamp, offset)
        first = max(0, fold.tail.count_below(BASE_OFFSET, offset) - 1)
        index = fold.tail.first_min(TIMESTAMP, timestamp, first)
        if index == len(fold.tail) or fold.tail_end(index) > until:
            return None
        return TimeSearch(self._log_place(index), timestamp, offset)

    def largest(self, until: int, from_offset: int = 0) -> TimeSearch | None:
        """Return the place of the first record with the largest timestamp at or behind ``from_offset``.

        An extent's largest timestamp may belong to a record below ``from_offset`` or below the log start: then the
        caller compares the extent's other records with the largest one behind it.
        """
        fold = self.fold
        offset = max(from_offset, fold.log_start)
        found = NO_TIMESTAMP
        for index in range(self._extent_of(offset), len(fold.extents)):
            found = max(found, fold.extents.value(EXTENT_TIMESTAMP, index))
        for index in range(max(0, fold.tail.count_below(BASE_OFFSET, offset) - 1), len(fold.tail)):
            if offset < fold.tail_end(index) <= until:
                found = max(found, fold.tail.value(TIMESTAMP, index))
        return None if found == NO_TIMESTAMP else self.search(found, until, offset)

    def epoch_end(self, epoch: int) -> FoundOffset:
        """Return where an epoch ended (OffsetForLeaderEpoch); offset -1 if that is not known."""
        return self.fold.epoch_end(epoch)

    # --- deletion of records --------------------------------------------------------------------------

    def delete_records(self, before: int, until: int) -> tuple[list[records.StreamRecord], int]:
        """Return the record that deletes all below an offset (-1: below the durable end), and the new log start.

        Raises :class:`StreamRefused`.
        """
        fold = self.fold
        assert fold.settings is not None
        if not fold.settings.has_retention:
            raise StreamRefused(StreamError.POLICY_VIOLATION, "the topic's cleanup policy is compaction alone")
        if before == NO_OFFSET:
            before = until
        if not 0 <= before <= until:
            raise StreamRefused(
                StreamError.OFFSET_OUT_OF_RANGE, f"records end at {until}; offset {before} is not there"
            )
        if before <= fold.log_start:
            return [], fold.log_start
        return [records.Trimmed(before)], before
