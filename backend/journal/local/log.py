"""The append side of one incarnation's log.

Records are collected into a batch; a batch becomes a row, and a row is one write and one sync.  While a row is being
written the next batch fills, and is written when that row is durable and no more records arrive.  So there is never
more than one row of the log being written: recovery relies on that (:mod:`backend.journal.local.scan`).

A record's position is known when it is appended, so that the engine can apply it at once.  Segments are preallocated
before they are needed, and the last one is a reserve for operations that must continue when the disk is full (receives,
deletes, checkpoints, compaction).  So an append is refused before anything has changed, and a commit never finds the
disk full.

All methods are called in the event loop that created the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from backend import instruments
from backend.api import StorageFull, Unavailable
from backend.journal.interface import Cut
from backend.journal.local.disk import Disk
from backend.journal.local.segment_allocator import AHEAD, SEGMENT_BYTES_MIN, Segment, SegmentAllocator, make_log
from backend.journal.local.segments import SegmentFiles
from backend.journal.row_buffer import RowBuffer, fail_future, release_futures
from backend.journal.rows import (
    DIRECTORY_ENTRY_BYTES,
    LOG_ID_MAX,
    ROW_HEADER_BYTES,
    ROW_OVERHEAD_BYTES,
    SEGMENT_BYTES_MAX,
    SEGMENT_HEADER_BYTES,
    SEGMENT_MAX,
    RecordView,
    SegmentHeader,
    encode_segment_header,
    place_of,
    position_of,
)
from backend.journal.salvage import check_record
from backend.journal.types import DamagedRecord

logger = logging.getLogger(__name__)

WAIT_RECORDS_MAX, POLLS_MAX = 32, 4
"""Number of records at which a row is not delayed further, and maximum number of polls for more records.

A row of one record costs about as much as a row of 32.  So after a row the next one is not written at once: answered
callers send their next calls, and other calls that arrived meanwhile are still to be read (decision 0020).
"""


class LogSettings(NamedTuple):
    segment_bytes: int = 32 << 20
    low_water_bytes: int = 64 << 20
    """Free space below which only operations that free space are accepted."""
    row_bytes: int = 512 << 10
    """Size of its records at which a row is closed (a larger record has a row of its own)."""
    idle_seconds: float = 0.05
    """Time without a commit after which an empty row records that the last one was answered."""
    segments: int = SEGMENT_MAX
    """Maximum number of segments; when nearly as many are used, the log fails, so that another one is started."""


DEFAULTS: Final = LogSettings()


class _Batch:
    """The records of one row."""

    __slots__ = ("ends", "futures", "offset", "origin", "records", "row_bytes", "segment", "seq")

    def __init__(self, segment: Segment, offset: int, seq: int) -> None:
        self.segment = segment
        self.offset = offset
        """Offset of the row in its segment."""
        self.seq = seq
        self.records: list[bytes] = []
        self.ends: list[int] = []
        self.origin = 0
        """Position of the first record."""
        self.futures: list[asyncio.Future[None]] = []
        """Futures of callers that wait for the row."""
        self.row_bytes = 0
        """Length of the row, once it is closed."""


class LocalLog(RowBuffer):
    """One incarnation's log.  Made by :meth:`create`."""

    def __init__(
        self,
        disk: Disk,
        files: SegmentFiles,
        directory: str,
        log_id: int,
        nonce: int,
        clock_ms: Callable[[], int],
        on_failure: Callable[[BaseException], None],
        settings: LogSettings,
        lock_fd: int,
        first: Segment,
    ) -> None:
        super().__init__(log_id, nonce, clock_ms, on_failure, settings.idle_seconds, first.number)
        self._disk = disk
        self._files = files
        self._directory = directory
        self._settings = settings
        self._lock_fd = lock_fd
        self._allocator = SegmentAllocator(
            disk,
            files,
            directory,
            segment_bytes=settings.segment_bytes,
            low_water_bytes=settings.low_water_bytes,
            next_number=first.number + 1,
            last_number=settings.segments,
        )
        self._abandoned: set[Segment] = set()
        """Segments that were open when the log failed."""

        self._queue: deque[_Batch] = deque()
        """Closed batches that wait for the row being written."""
        self._under_way: _Batch | None = None
        self._awake = False
        """True if a flush is scheduled or a row is being written."""
        self._write_started_at = 0.0
        """Start of the write in progress; for metrics only."""

        self._batch = _Batch(first, SEGMENT_HEADER_BYTES, 1)
        self._records = self._batch.records
        self._ends = self._batch.ends
        self._fill = 0
        """Bytes of records in the batch."""
        self._space = 0
        """Bytes that the batch can still hold, records and directory; -1 sends every append through the slow path."""
        self._beyond = 0
        """Bytes of the segment that follow."""
        self._origin = 0
        """Position of the batch's first record."""
        self._start_batch(self._batch)

    @classmethod
    async def create(
        cls,
        disk: Disk,
        files: SegmentFiles,
        name: str,
        log_id: int,
        *,
        nonce: int,
        clock_ms: Callable[[], int],
        on_failure: Callable[[BaseException], None],
        settings: LogSettings = DEFAULTS,
    ) -> LocalLog:
        """Create the folder ``name`` under ``files.root`` with the log's lock and its first segments.

        ``nonce`` are 64 random bits.  ``on_failure`` is called once, when a write has failed: the caller has to discard
        its memory and restart from what is durable.  With little free space the first segment is smaller.  Raises
        :class:`StorageFull`, :class:`LogInUse`, :class:`OSError`.
        """
        assert 0 < log_id <= LOG_ID_MAX
        assert 0 < nonce < 1 << 64
        assert SEGMENT_BYTES_MIN <= settings.segment_bytes <= SEGMENT_BYTES_MAX
        assert settings.segment_bytes % 8 == 0
        directory = files.register(log_id, name)
        lock_fd, first = await disk.run(make_log, disk, directory, settings.segment_bytes)
        files.keep_spares(log_id, settings.segment_bytes)
        log = cls(disk, files, directory, log_id, nonce, clock_ms, on_failure, settings, lock_fd, first)
        log._allocator.make()
        await log._allocator.wait()
        return log

    # --- appending --- ----

    @property
    def next_seq(self) -> int:
        """Number of the row for the next record."""
        return self._batch.seq

    @property
    def unsynced_bytes(self) -> int:
        """Bytes of the rows that are not durable yet."""
        under_way = self._under_way.row_bytes if self._under_way is not None else 0
        return under_way + sum(batch.row_bytes for batch in self._queue) + self._fill

    @property
    def next_segment(self) -> int:
        """Segment for the next record, as far as known now."""
        return self._batch.segment.number

    def append(self, record: bytes, *, reserve: bool = False) -> int:
        """Add a record to the batch being filled; return its position.

        With ``reserve`` it may use the space reserved for operations that free space.  Raises :class:`StorageFull` or
        :class:`Unavailable`, having changed nothing; never after :meth:`check_space` (or :meth:`wait_for_space`) has
        succeeded.
        """
        size = len(record) + DIRECTORY_ENTRY_BYTES
        if size > self._space or (self._allocator.refusing and not reserve):
            self._turn(size, reserve)
        self._space -= size
        position = self._origin + (self._fill >> 3)
        self._fill += size - DIRECTORY_ENTRY_BYTES
        self._records.append(record)
        self._ends.append(self._fill)
        if not self._awake:
            self._awake = True
            self._loop.call_soon(self._flush)
        return position

    def check_space(self, size_bytes: int, reserve: bool = False) -> None:
        """Check that records of this size in total can be appended now, in this iteration of the loop.

        Raises :class:`StorageFull` or :class:`Unavailable`.
        """
        if self._error is not None:
            raise self._error
        if self._closing:
            raise Unavailable("the log is closed")
        if not self._fits(size_bytes, reserve):
            self._allocator.check_free()
            raise StorageFull(self._allocator.shortage())

    async def wait_for_space(self, size_bytes: int, reserve: bool = False) -> None:
        """Check like :meth:`check_space`, but wait for a segment that is being allocated."""
        while True:
            try:
                return self.check_space(size_bytes, reserve)
            except StorageFull:
                if not await self._allocator.wait():
                    raise

    def fits_row(self, size_bytes: int) -> bool:
        """Return whether records of this size in total fit the row being filled."""
        # A record takes at least 56 bytes, its directory entry 8.
        return size_bytes + size_bytes // 7 <= self._space and not self._allocator.refusing

    def has_space(self) -> bool:
        """Return whether new messages are accepted."""
        return self._error is None and not self._closing and self._fits(4096, False)

    def is_nearly_full(self) -> bool:
        """Return whether little more than the current segment is left for new messages, because the disk is full or
        nearly full.
        """
        return self._allocator.is_nearly_full()

    def _fits(self, size_bytes: int, reserve: bool) -> bool:
        if self._allocator.refusing and not reserve:
            return False
        # A record takes at least 56 bytes, its directory entry 8; two consecutive rows hold more than row_bytes.
        need = size_bytes + size_bytes // 7 + ROW_OVERHEAD_BYTES * (2 + 2 * size_bytes // self._settings.row_bytes)
        if need <= self._space + self._beyond:
            return True
        return self._allocator.available(reserve) > 0 and need <= _capacity(
            self._allocator.ready[0], SEGMENT_HEADER_BYTES
        )

    def _turn(self, size: int, reserve: bool) -> None:
        """Make space for a record that does not fit the batch being filled, or raise."""
        if self._error is not None:
            raise self._error
        if self._closing:
            raise Unavailable("the log is closed")
        if self._allocator.refusing and not reserve:
            self._allocator.check_free()
            raise StorageFull(self._allocator.shortage())
        if size <= self._space:
            return
        batch = self._batch
        offset = batch.offset + self._row_bytes() if self._records else batch.offset
        if size > _capacity(batch.segment, offset):
            if self._allocator.available(reserve) < 1:
                self._allocator.check_free()
                raise StorageFull(self._allocator.shortage())
            if size > _capacity(self._allocator.ready[0], SEGMENT_HEADER_BYTES):
                raise ValueError(f"a record of {size} bytes does not fit a segment")
        if self._records:
            self._close_row()
        if size > _capacity(self._batch.segment, self._batch.offset):
            full = self._batch.segment
            self._batch = _Batch(self._allocator.take(), SEGMENT_HEADER_BYTES, self._batch.seq)
            self._start_batch(self._batch)
            self._close_full(full)
            if self._batch.segment.number == self._settings.segments - AHEAD:  # while there are segments left
                self._loop.call_soon(self._end_full)
        if size > self._space:  # a record larger than a usual row
            self._beyond -= size - self._space
            self._space = size

    def _start_batch(self, batch: _Batch) -> None:
        self._records = batch.records
        self._ends = batch.ends
        self._fill = 0
        capacity = _capacity(batch.segment, batch.offset)
        self._space = min(capacity, self._settings.row_bytes) if not self._closing else -1
        self._beyond = max(0, capacity - self._space)
        self._origin = batch.origin = position_of(self.log_id, batch.segment.number, batch.offset + ROW_HEADER_BYTES)

    def _row_bytes(self) -> int:
        return ROW_OVERHEAD_BYTES + self._fill + DIRECTORY_ENTRY_BYTES * len(self._records)

    def _close_row(self) -> None:
        """Close the batch being filled: later appends go into a later row."""
        batch = self._batch
        batch.row_bytes = self._row_bytes()
        self._queue.append(batch)
        if batch.records:
            # The next row may not fit this segment: then it begins the next one, and nothing follows here.
            self._cut = Cut(batch.seq, batch.segment.number)
        self._batch = _Batch(batch.segment, batch.offset + batch.row_bytes, batch.seq + 1)
        self._start_batch(self._batch)

    def barrier(self) -> asyncio.Future[None] | None:
        """Return a future that is done when all records appended so far are durable; None if they are.

        Each caller gets a future of its own, which may be cancelled.  It fails with :class:`Unavailable`.
        """
        if self._error is not None:
            return fail_future(self._loop.create_future(), self._error)
        if self._records:
            batch = self._batch
        elif self._queue:
            batch = self._queue[-1]
        elif self._under_way is not None and self._under_way.records:
            batch = self._under_way
        else:
            return None
        future = self._loop.create_future()
        batch.futures.append(future)
        return future

    def check_replicas(self) -> None:
        """Do nothing: the disk is the only replica."""

    async def on_all_replicas(self, positions: Sequence[int]) -> None:
        """Wait for the barrier: the disk is the only replica."""
        barrier = self.barrier()
        if barrier is not None:
            await barrier

    # --- committing --- ----

    def _flush(self) -> None:
        if self._under_way is not None or self._error is not None:
            return
        if not self._queue:
            if not self._records:
                self._rest()
                return
            self._close_row()
        self._under_way = self._queue.popleft()
        try:
            self._commit(self._under_way)
        # A failed assertion, for example: no caller must wait for ever.
        except Exception as error:
            self._fail(error)

    def _commit(self, batch: _Batch) -> None:
        records, time_ms = batch.records, self._clock_ms()
        chain = self._chain
        row = self._encode(batch.seq, records, batch.ends, time_ms)
        segment, position = batch.segment, batch.offset
        # This must be the next row, within its segment, and at the offset that its records' positions contain.
        assert batch.seq == self.durable_seq + 1
        assert len(row) == batch.row_bytes
        assert position & 7 == 0
        assert position + len(row) <= segment.size_bytes
        if position == SEGMENT_HEADER_BYTES:
            # The header is written with the first row, because only then is it known.
            header = SegmentHeader(self._nonce, self.log_id, segment.number, batch.seq, time_ms, chain)
            row, position = encode_segment_header(header) + row, 0
        self._awake = True
        self._write_started_at = time.perf_counter()
        self._disk.commit(segment.fd, row, position, self._committed)

    def _committed(self, error: BaseException | None) -> None:
        batch = self._under_way
        assert batch is not None
        assert batch.seq == self.durable_seq + 1
        if error is not None:
            self._fail(error)
            return
        instruments.WRITES.observe(time.perf_counter() - self._write_started_at)
        self._under_way = None
        self.durable_seq = batch.seq
        release_futures(batch.futures)
        try:
            if batch.segment is not self._batch.segment:
                self._close_full(batch.segment)
            self._allocator.check_free()
        finally:
            self._gather_soon(0, POLLS_MAX)

    def _gather(self, before: int, polls: int) -> None:
        """Write the batch once no more records arrive, or it has enough."""
        now = len(self._records)
        if polls and before < now < WAIT_RECORDS_MAX and not self._queue:
            self._gather_soon(now, polls - 1)
        else:
            self._flush()

    def _gather_soon(self, before: int, polls: int) -> None:
        """Schedule a check after the loop has polled its sockets and processed the results."""
        self._loop.call_soon(lambda: self._loop.call_soon(self._gather, before, polls))

    def _close_full(self, segment: Segment) -> None:
        """Close a full segment, unless a row of it is still to be written."""
        rows = (*self._queue, self._under_way) if self._under_way is not None else self._queue
        if all(row.segment is not segment for row in rows):
            try:
                self._disk.close(segment.fd)
            # All of it is durable: the log continues.
            except OSError as error:
                logger.warning("cannot close a segment of %s: %s", self._directory, error)

    def _end_full(self) -> None:
        """Fail because few segment numbers are left: the node starts another log, as after a failed write."""
        if self._error is None and not self._closing:
            self._fail(RuntimeError(f"log {self.log_id} is full, another one is started"))

    def _fail(self, error: BaseException) -> None:
        """Stop the log after a failed write or sync, which is not repeated.

        After such an error the kernel may mark pages as clean that were never written to the disk, and a second sync
        would succeed without proving anything.
        """
        self._error = Unavailable(f"the journal cannot be written: {error}")
        self._allocator.stop()
        self._space = -1
        self._beyond = 0
        waiting = [self._under_way, *self._queue, self._batch]
        self._under_way = None
        self._queue.clear()
        for batch in waiting:
            if batch is not None:
                self._abandoned.add(batch.segment)
                for future in batch.futures:
                    fail_future(future, self._error)
        self._wake_drain()
        self._on_failure(error)

    def _rest(self) -> None:
        self._awake = False
        super()._rest()

    def _is_idle(self) -> bool:
        return not self._awake

    # --- reading --- ----

    async def read_many(self, positions: Sequence[int]) -> list[RecordView | DamagedRecord]:
        """Return the records at these positions, in their order."""
        if not self._awake or max(positions, default=0) < self._oldest().origin:
            return await self._files.read_many(positions)
        found = {position: self._from_memory(position) for position in positions}
        missing = [position for position, view in found.items() if view is None]
        if missing:
            found.update(zip(missing, await self._files.read_many(missing), strict=True))
        return [view for position in positions if (view := found[position]) is not None]

    def _oldest(self) -> _Batch:
        """Return the oldest batch that is not durable, or the one being filled."""
        return self._under_way or (self._queue[0] if self._queue else self._batch)

    def _from_memory(self, position: int) -> RecordView | DamagedRecord | None:
        """Return a record from the batches that are not durable yet."""
        if not self._awake or position >> 44 != self.log_id or position < self._oldest().origin:
            return None
        for batch in (self._batch, *reversed(self._queue), *((self._under_way,) if self._under_way else ())):
            if position >= batch.origin:
                start = position - batch.origin << 3
                if not batch.ends or start >= batch.ends[-1]:
                    return None
                index = bisect_right(batch.ends, start)
                assert start == (batch.ends[index - 1] if index else 0)
                place = place_of(position)
                path = self._files.path(place.log_id, place.segment)
                return check_record(batch.records[index], 0, position, path, place.offset)
        return None

    # --- the end --- ----

    async def close(self) -> None:
        """Refuse appends, wait until all is durable or the log has failed, write the mark, and release the lock."""
        self._closing = True
        self._space = -1
        self._stop_marks()
        self._allocator.stop()
        await self._allocator.drain()
        if self._error is None and (self._awake or not self._marked or self._records):
            self._drained = self._loop.create_future()
            if not self._awake:
                self._flush()
            await self._drained
        self._release()

    def _release(self) -> None:
        for segment in {self._batch.segment, *self._allocator.ready, *self._abandoned}:
            with contextlib.suppress(OSError):
                self._disk.close(segment.fd)
        self._allocator.ready.clear()
        self._files.close()
        self._disk.close(self._lock_fd)


def _capacity(segment: Segment, offset: int) -> int:
    """Return the bytes of records and directory that a row at ``offset`` can hold, with space for an idle mark behind
    it.
    """
    return segment.size_bytes - offset - 2 * ROW_OVERHEAD_BYTES
