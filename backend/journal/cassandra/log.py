"""The append side of a log whose rows are stored on Cassandra.

Several rows are in progress at a time.  A row is answered when it and all before it are complete (stored at a quorum),
and a read of the log's own entry, sent after that, has found the log still open
(:mod:`backend.journal.cassandra.fence`).  A successor first commits ``recovering`` in the entry and then reads the
rows: either it reads ours, or our read finds ``recovering``, and we answer nothing more.  Neither a suspended machine
nor a wrong clock can break this.

A write without an answer is sent again, with the same bytes, until it is answered, or until the log is fenced.  While
there is no quorum, appends are refused, and waiting callers get an unknown outcome; the log recovers by itself.

A caller that wants a row on all replicas waits for the row's answer like others, and for a second write of the same
bytes in parallel.  That write fails when a replica is down; no other caller is affected, and no row's answer is delayed
by it.

A position is (log, segment, row in the segment, record in the row).  The row's place is known when its first record is
appended; its bytes are fixed when it is sent for the first time.  The number of the row in its segment is the key, so
that a position alone suffices for a read; ``seq`` is in the row's header.

All methods are called in the event loop that created the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from backend import instruments
from backend.api import StorageFull, Unavailable
from backend.journal.cassandra.fence import Fence
from backend.journal.cassandra.replicas import NO_QUORUM, Replicas
from backend.journal.cassandra.retrying_tables import pause
from backend.journal.cassandra.table_interface import RECORDS_MAX, ROWS_MAX, Tables, Unanswered, place
from backend.journal.interface import Cut
from backend.journal.row_buffer import RowBuffer, fail_future, release_futures
from backend.journal.rows import DIRECTORY_ENTRY_BYTES, LOG_ID_MAX, SEGMENT_MAX, RecordView
from backend.journal.salvage import check_record
from backend.journal.types import DamagedRecord

logger = logging.getLogger(__name__)

WINDOW: Final = 16
"""A row is sent only when the row this many before it is complete.  Recovery relies on that."""
RECORD_BYTES_MAX: Final = 8 << 20
"""Cassandra refuses a write larger than half of a segment of its commit log (32 MiB by default)."""


class CassandraLogSettings(NamedTuple):
    segment_bytes: int = 32 << 20
    segment_rows: int = ROWS_MAX
    """Number of rows, empty ones included, at which a segment is closed; at most :data:`ROWS_MAX`."""
    row_bytes: int = 60 << 10
    """Size of its records at which a row is closed (a larger record has a row of its own)."""
    rows_at_once: int = 8
    """Number of rows in progress above which a row that is not full waits for more records."""
    pending_bytes: int = 16 << 20
    """Unanswered bytes above which appends are refused until some are answered."""
    stall_seconds: float = 2.0
    """Time without an answer from a quorum after which calls are refused."""
    idle_seconds: float = 0.5
    """Time without a commit after which an empty row records that the last one was answered."""
    close_seconds: float = 5.0
    """Maximum time that a close waits for writes in progress."""


DEFAULTS: Final = CassandraLogSettings()


class _Row:
    """The records of one row, until it is answered."""

    __slots__ = (
        "complete",
        "data",
        "futures",
        "key",
        "on_all",
        "records",
        "segment",
        "sent_at",
        "seq",
        "size_bytes",
        "tries",
    )

    def __init__(self, key: int, segment: int, seq: int) -> None:
        self.key = key
        """Common part of all positions in the row: ``position >> 11``."""
        self.segment = segment
        self.seq = seq
        self.records: list[bytes] = []
        self.futures: list[asyncio.Future[None]] = []
        """Futures of callers that wait for the row."""
        self.size_bytes = 0
        """Bytes of its records."""
        self.data = b""
        """Encoded row, from when it is sent until it is complete."""
        self.on_all: asyncio.Future[None] | None = None
        """Future of the callers that wait until all replicas have the row; None: there are none."""
        self.complete = False
        self.sent_at = 0.0
        self.tries = 0


class CassandraLog(RowBuffer):
    """One incarnation's log.  Made by :meth:`create`.  Implements :class:`backend.journal.interface.Log`."""

    def __init__(
        self,
        tables: Tables,
        log_id: int,
        nonce: int,
        clock_ms: Callable[[], int],
        on_failure: Callable[[BaseException], None],
        read_many: Callable[[Sequence[int]], Awaitable[list[RecordView | DamagedRecord]]],
        settings: CassandraLogSettings,
    ) -> None:
        super().__init__(log_id, nonce, clock_ms, on_failure, settings.idle_seconds, 1)
        self._tables = tables
        self._read_many = read_many
        self._settings = settings
        self._rows_stall = False

        self._closed: deque[_Row] = deque()
        """Rows that are closed and not sent yet."""
        self._incomplete: deque[_Row] = deque()
        """Sent rows, from the first one that is not complete."""
        self._unanswered: deque[_Row] = deque()
        """Sent rows that are not answered."""
        self._memory: dict[int, _Row] = {}
        """By key: rows that are not answered yet."""
        self._under_way = 0
        self._pending_bytes = 0
        """Bytes of records in rows that are closed and not answered."""
        self._awake = False
        """True if a flush is scheduled."""
        self._flush_due = False
        self._space_made: asyncio.Future[None] | None = None

        self._fence = Fence(
            tables,
            log_id,
            stall_seconds=settings.stall_seconds,
            on_open=self._answer,
            on_stall=self._stall,
            on_recovery=self._go_on,
            on_failure=self._fail,
        )
        self._replicas = Replicas(
            tables, log_id, pending_bytes=settings.pending_bytes, stall_seconds=settings.stall_seconds
        )

        self._segment = 1
        self._segment_rows = 0
        self._segment_bytes = 0
        self._noted = 1
        """Segments up to this one are registered, so that rows may be written there."""
        self._noting: asyncio.Task[None] | None = None

        self._row = self._next_row(1)
        self._records = self._row.records
        self._fill = 0
        """Bytes of records in the row being filled, with their directory entries."""
        self._space = settings.row_bytes
        """Bytes that it still accepts before the next check of pending bytes."""
        self._origin = self._row.key << 11
        """Position of its first record."""

    @classmethod
    async def create(
        cls,
        tables: Tables,
        log_id: int,
        *,
        nonce: int,
        clock_ms: Callable[[], int],
        on_failure: Callable[[BaseException], None],
        read_many: Callable[[Sequence[int]], Awaitable[list[RecordView | DamagedRecord]]],
        settings: CassandraLogSettings = DEFAULTS,
    ) -> CassandraLog:
        """Begin the log.  Its entry is ``open``, and this id never had a log before.

        ``nonce`` are 64 random bits.  ``on_failure`` is called once, when the log is fenced or a write has failed for
        good. ``read_many`` reads records that are not in memory.  Raises :class:`Unavailable`.
        """
        assert 0 < log_id <= LOG_ID_MAX
        assert 0 < nonce < 1 << 64
        assert 0 < settings.segment_rows <= ROWS_MAX
        assert settings.row_bytes <= 64 * RECORDS_MAX, (
            "the least record takes 64 bytes, its line in the directory included"
        )
        try:
            await tables.add_segment(log_id, 1)
        except Unanswered as error:
            raise Unavailable(f"the journal has no quorum now: {error}") from error
        log = cls(tables, log_id, nonce, clock_ms, on_failure, read_many, settings)
        log._note_ahead()
        return log

    # --- appending --- ----

    @property
    def next_seq(self) -> int:
        """Number of the row for the next record."""
        return self._row.seq

    @property
    def next_segment(self) -> int:
        """Segment for the next record, as far as known now."""
        return self._row.segment

    @property
    def unsynced_bytes(self) -> int:
        """Bytes of records that are not answered."""
        return self._filled()

    def append(self, record: bytes, *, reserve: bool = False) -> int:
        """Add a record to the row being filled; return its position.

        With ``reserve`` it is accepted even above the limit of unanswered bytes.  Raises :class:`StorageFull` or
        :class:`Unavailable`, having changed nothing; never after :meth:`check_space` (or :meth:`wait_for_space`) has
        succeeded.
        """
        size = len(record) + DIRECTORY_ENTRY_BYTES
        if size > self._space:
            self._turn(size, reserve)
        self._space -= size
        self._fill += size
        records = self._records
        position = self._origin + len(records)
        records.append(record)
        if not self._awake:
            self._awake = True
            self._loop.call_soon(self._flush)
        return position

    def check_space(self, size_bytes: int, reserve: bool = False) -> None:
        """Check that records of this size in total can be appended now, in this iteration of the loop.

        Raises :class:`StorageFull` (temporary, until rows are answered) or :class:`Unavailable`.
        """
        self._check_taking()
        # A record takes at least 56 bytes, its directory entry 8.
        if not reserve and self._filled() + size_bytes + size_bytes // 7 > self._settings.pending_bytes:
            raise StorageFull("too much waits to be written to the journal")

    async def wait_for_space(self, size_bytes: int, reserve: bool = False) -> None:
        """Check like :meth:`check_space`, but wait until enough is answered."""
        while True:
            try:
                return self.check_space(size_bytes, reserve)
            except StorageFull:
                if self._space_made is None:
                    self._space_made = self._loop.create_future()
                await asyncio.shield(self._space_made)

    def fits_row(self, size_bytes: int) -> bool:
        """Return whether records of this size in total fit the row being filled."""
        # A record takes at least 56 bytes, its directory entry 8.
        return size_bytes + size_bytes // 7 <= self._space

    def has_space(self) -> bool:
        """Return whether new messages are accepted."""
        return not (
            self._error is not None
            or self._closing
            or self._stalled()
            or self._filled() >= self._settings.pending_bytes
        )

    def is_nearly_full(self) -> bool:
        """Return False: Cassandra manages the disk space."""
        return False

    def _check_taking(self) -> None:
        if self._error is not None:
            raise self._error
        if self._closing:
            raise Unavailable("the log is closed")
        if self._stalled():
            raise Unavailable(NO_QUORUM)

    def _stalled(self) -> bool:
        """Return whether a quorum has not answered for too long."""
        return self._rows_stall or self._fence.stalled

    def _filled(self) -> int:
        """Return the bytes of records that are not answered."""
        return self._pending_bytes + self._fill

    def _turn(self, size: int, reserve: bool) -> None:
        """Make space for a record that does not fit the row being filled, or raise."""
        self._check_taking()
        if size > RECORD_BYTES_MAX:
            raise ValueError(f"a record of {size} bytes is too large")
        if not reserve and self._filled() + size > self._settings.pending_bytes:
            raise StorageFull("too much waits to be written to the journal")
        if self._records and self._fill + size > self._settings.row_bytes:
            self._close_row()
            if not self._flush_due:
                self._flush_due = True
                self._loop.call_soon(self._flush)
        self._space = max(size, self._settings.row_bytes - self._fill) if self._taking() else size

    def _next_row(self, seq: int) -> _Row:
        """Assign a place to the next row."""
        if self._segment_rows == self._settings.segment_rows or self._segment_bytes >= self._settings.segment_bytes:
            self._segment += 1
            self._segment_rows = self._segment_bytes = 0
            self._note_ahead()
            if self._segment == SEGMENT_MAX - 1:  # while numbers are left
                self._loop.call_soon(self._fail, RuntimeError(f"log {self.log_id} is full, another one is started"))
        key = (self.log_id << 20 | self._segment) << 13 | self._segment_rows
        row = self._memory[key] = _Row(key, self._segment, seq)
        self._segment_rows += 1
        return row

    def _taking(self) -> bool:
        """Return whether a row may be filled without a check of pending bytes."""
        return self.has_space() and self._pending_bytes + self._settings.row_bytes < self._settings.pending_bytes

    def _close_row(self) -> None:
        """Close the row being filled: later appends go into a later row."""
        row = self._row
        assert len(row.records) <= RECORDS_MAX
        row.size_bytes = self._fill
        self._segment_bytes += row.size_bytes
        self._pending_bytes += row.size_bytes
        self._closed.append(row)
        self._row = self._next_row(row.seq + 1)
        if row.records:
            self._cut = Cut(row.seq, self._row.segment)
        self._records = self._row.records
        self._origin = self._row.key << 11
        self._fill = 0
        self._space = self._settings.row_bytes if self._taking() else -1

    def barrier(self) -> asyncio.Future[None]:
        """Return a future that is done when an answer computed now may be sent.

        If rows are incomplete, that is when the last of them is answered; otherwise, when a fence read that begins
        after this call has found the log open.  Each caller gets a future of its own, which may be cancelled.  It fails
        with :class:`Unavailable`.
        """
        future = self._loop.create_future()
        if self._error is not None:
            return fail_future(future, self._error)
        if self._stalled():
            return fail_future(future, Unavailable(NO_QUORUM))
        if self._records:
            self._row.futures.append(future)
        elif self._closed:
            self._closed[-1].futures.append(future)
        elif self._incomplete:
            # Its fence read begins when this row, and so all rows, are complete: later than now.
            self._incomplete[-1].futures.append(future)
        else:
            self._fence.wait(future)
        return future

    # --- on all replicas --- ----

    def check_replicas(self) -> None:
        """Raise :class:`Unavailable` while a replica does not answer, or too many bytes are in progress to one."""
        self._replicas.check()

    async def on_all_replicas(self, positions: Sequence[int]) -> None:
        """Wait like :meth:`barrier`, until every replica has these records, of this log or an earlier one."""
        written, again = [], set()
        for key in {position >> 11 for position in positions}:
            row = self._memory.get(key)
            if row is None:
                again.add(key)
                continue
            on_all = row.on_all
            if on_all is None or (on_all.done() and on_all.exception() is not None):
                if row.complete:  # its bytes are no longer in memory
                    again.add(key)
                    continue
                on_all = row.on_all = self._loop.create_future()
                if row.data:
                    self._replicas.put(key, row.data, on_all)
            written.append(on_all)
        await self.barrier()
        for on_all in written:
            await asyncio.shield(on_all)
        for key in again:
            await self._replicas.repeat(key)

    # --- writing rows --- ----

    def _flush(self) -> None:
        self._flush_due = False
        if self._error is not None:
            return
        try:
            while True:
                if not self._closed:
                    if not self._records or self._under_way >= self._settings.rows_at_once:
                        break
                    self._close_row()
                row = self._closed[0]
                if self._incomplete and row.seq - self._incomplete[0].seq >= WINDOW:
                    break
                if row.segment > self._noted:
                    break
                self._send(self._closed.popleft())
        # A failed assertion, for example: no caller must wait for ever.
        except Exception as error:
            self._fail(error)
            return
        # If False, the completion of rows in progress calls this again.
        self._awake = bool(self._records or self._closed)

    def _send(self, row: _Row) -> None:
        row.data = self._encode(row.seq, row.records, accumulate(map(len, row.records)), self._clock_ms())
        assert row.seq == (self._unanswered[-1].seq if self._unanswered else self.durable_seq) + 1
        row.sent_at = self._loop.time()
        self._under_way += 1
        self._incomplete.append(row)
        self._unanswered.append(row)
        self._put(row)
        if row.on_all is not None:
            self._replicas.put(row.key, row.data, row.on_all)

    def _put(self, row: _Row) -> None:
        """Send the row's bytes, possibly again: they never change."""
        if self._error is None:
            self._tables.put_row(
                self.log_id, row.segment, row.key & ROWS_MAX - 1, row.data, lambda error: self._written(row, error)
            )

    def _written(self, row: _Row, error: BaseException | None) -> None:
        if self._error is not None:
            return
        if isinstance(error, Unanswered):
            now = self._loop.time()
            row.tries += 1
            if not self._rows_stall and now - row.sent_at >= self._settings.stall_seconds:
                self._rows_stall = True
                self._stall(error)
            self._loop.call_later(pause(row.tries), self._put, row)
        elif error is not None:
            self._fail(error)
        else:
            assert not row.complete
            instruments.WRITES.observe(self._loop.time() - row.sent_at)
            row.complete = True
            row.data = b""
            self._under_way -= 1
            while self._incomplete and self._incomplete[0].complete:
                self._fence.complete_seq = self._incomplete.popleft().seq
                self._fence.request()
            if self._rows_stall and (not self._incomplete or not self._incomplete[0].tries):
                self._rows_stall = False
                self._go_on()
            self._flush()

    def _note_ahead(self) -> None:
        """Register the segment after the one being filled before it is needed."""
        if self._noting is None or self._noting.done():
            self._noting = self._loop.create_task(self._note())

    async def _note(self) -> None:
        tries = 0
        while self._noted <= self._segment and self._error is None:
            try:
                await self._tables.add_segment(self.log_id, self._noted + 1)
            except Unanswered:
                tries += 1
                await asyncio.sleep(pause(tries))
                continue
            except Exception as error:
                self._fail(error)
                return
            self._noted += 1
            self._flush()

    # --- answers --- ----

    def _answer(self, covers: int) -> None:
        """Release the answers of the rows up to this one."""
        rows = self._unanswered
        if not rows or rows[0].seq > covers:
            return
        while rows and rows[0].seq <= covers:
            row = rows.popleft()
            assert row.complete
            assert row.seq == self.durable_seq + 1
            self.durable_seq = row.seq
            self._pending_bytes -= row.size_bytes
            del self._memory[row.key]
            release_futures(row.futures)
        self._reopen()
        if not rows and not self._records and not self._closed:
            self._rest()

    def _reopen(self) -> None:
        """Accept appends again, because there is space."""
        if self._taking():
            self._space = max(self._space, self._settings.row_bytes - self._fill)
        if self._space_made is not None:
            self._space_made.set_result(None)
            self._space_made = None

    def _is_idle(self) -> bool:
        return not (self._records or self._closed or self._unanswered)

    # --- failures --- ----

    def _stall(self, error: Unanswered) -> None:
        """Refuse appends and end all waits; rows in progress are still written."""
        logger.error("log %d has no quorum, calls are refused: %s", self.log_id, error)
        self._give_up_waiting(Unavailable(f"{NO_QUORUM}; whether the call took effect is not known"))
        self._space = -1
        if self._space_made is not None:
            # The waiter checks the space again.
            self._space_made.set_result(None)
            self._space_made = None
        self._fence.request()

    def _go_on(self) -> None:
        if not self._stalled():
            logger.warning("log %d has a quorum again", self.log_id)
            self._reopen()

    def _give_up_waiting(self, error: Unavailable) -> None:
        for row in self._memory.values():
            futures, row.futures = row.futures, []
            for future in futures:
                fail_future(future, error)
        self._fence.fail_waiting(error)

    def _fail(self, error: BaseException) -> None:
        """Stop writing permanently: memory may differ from the durable state."""
        if self._error is not None:
            return
        self._error = Unavailable(f"the journal cannot be written: {error}")
        self._space = -1
        self._end_waits()
        self._on_failure(error)

    def _end_waits(self) -> None:
        assert self._error is not None
        self._replicas.end(self._error)
        self._fence.end()
        self._give_up_waiting(self._error)
        if self._space_made is not None:
            self._space_made.set_result(None)
            self._space_made = None
        self._stop_marks()
        self._wake_drain()

    # --- reading --- ----

    async def read_many(self, positions: Sequence[int]) -> list[RecordView | DamagedRecord]:
        """Return the records at these positions, in their order."""
        memory = self._memory
        found = {position: self._from_memory(position) for position in positions if position >> 11 in memory}
        missing = [position for position in positions if found.get(position) is None]
        if missing:
            found.update(zip(missing, await self._read_many(missing), strict=True))
        return [view for position in positions if (view := found[position]) is not None]

    def _from_memory(self, position: int) -> RecordView | DamagedRecord | None:
        row, index = self._memory[position >> 11], position & RECORDS_MAX - 1
        if index >= len(row.records):
            return None
        number = row.key & ROWS_MAX - 1
        return check_record(row.records[index], 0, position, place(self.log_id, row.segment), number)

    # --- the end --- ----

    async def close(self) -> None:
        """Refuse appends, wait for a bounded time until all is answered or the log has failed, and write the mark."""
        self._closing = True
        self._space = -1
        self._stop_marks()
        if self._error is None:
            self._drained = self._loop.create_future()
            if self._unanswered or self._records or self._closed:
                self._flush()
            else:
                self._rest()
            timeout = self._loop.call_later(self._settings.close_seconds, self._wake_drain)
            await self._drained
            timeout.cancel()
        if self._error is None:
            self._error = Unavailable("the log is closed")
            self._end_waits()
        if self._noting is not None:
            self._noting.cancel()
            await asyncio.wait([self._noting])
