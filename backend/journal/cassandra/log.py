"""The append side of a log whose rows are stored on Cassandra.

Several rows are in progress at a time.  A row is answered when it and all before it are complete (stored at a quorum),
and a read of the log's own entry, sent after that, has found the log still open: the *fence*. One read covers all rows
that were complete when it was sent.  Reads overlap, so a row waits one round trip for its fence, not 1.5 on average.  A
successor first commits ``recovering`` in the entry and then reads the rows: either it reads ours, or our read finds
``recovering``, and we answer nothing more.  Neither a suspended machine nor a wrong clock can break this.

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
from typing import Final, NamedTuple

from backend import instruments
from backend.api import StorageFull, Unavailable
from backend.journal.cassandra.replicas import Replicas
from backend.journal.cassandra.retrying_tables import pause
from backend.journal.cassandra.table_interface import RECORDS_MOST, ROWS_MOST, LogFenced, Tables, Unanswered, place
from backend.journal.interface import Cut
from backend.journal.local.segments import RottenRecord, check_record
from backend.journal.rows import (
    DIRECTORY_ENTRY_BYTES,
    LOG_ID_MAX,
    SEGMENT_MAX,
    RecordView,
    directory_entry,
    encode_row,
)

logger = logging.getLogger(__name__)

WINDOW: Final = 16
"""A row is sent only when the row this many before it is complete.  Recovery relies on that."""
READS_MOST: Final = 4
"""Maximum number of fence reads in progress."""
NO_QUORUM: Final = "the journal has no quorum now"
RECORD_BYTES_MAX: Final = 8 << 20
"""Cassandra refuses a write larger than half of a segment of its commit log (32 MiB by default)."""


class CassandraLogSettings(NamedTuple):
    segment_bytes: int = 32 << 20
    segment_rows: int = ROWS_MOST
    """Number of rows, empty ones included, at which a segment is closed; at most :data:`ROWS_MOST`."""
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
        "everywhere",
        "futures",
        "key",
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
        self.everywhere: asyncio.Future[None] | None = None
        """Future of the callers that wait until all replicas have the row; None: there are none."""
        self.complete = False
        self.sent_at = 0.0
        self.tries = 0


class CassandraLog:
    """One incarnation's log.  Made by :meth:`create`.  Implements :class:`backend.journal.interface.Log`."""

    def __init__(
        self,
        tables: Tables,
        log_id: int,
        life: int,
        clock_ms: Callable[[], int],
        on_failure: Callable[[BaseException], None],
        read_many: Callable[[Sequence[int]], Awaitable[list[RecordView | RottenRecord]]],
        settings: CassandraLogSettings,
    ) -> None:
        self.log_id = log_id
        self.durable_seq = 0
        """The last row that is answered, as are all before it."""
        self._tables = tables
        self._life = life
        self._clock_ms = clock_ms
        self._on_failure = on_failure
        self._read_many = read_many
        self._settings = settings
        self._loop = asyncio.get_running_loop()

        self._error: Unavailable | None = None
        self._closing = False
        self._rows_stall = False
        self._fence_stall = False

        self._closed: deque[_Row] = deque()
        """Rows that are closed and not sent yet."""
        self._incomplete: deque[_Row] = deque()
        """Sent rows, from the first one that is not complete."""
        self._unanswered: deque[_Row] = deque()
        """Sent rows that are not answered."""
        self._memory: dict[int, _Row] = {}
        """By key: rows that are not answered yet."""
        self._under_way = 0
        self._complete_seq = 0
        """The last row that is complete, as are all before it."""
        self._chain = 0
        self._pending_bytes = 0
        """Bytes of records in rows that are closed and not answered."""
        self._awake = False
        """A flush is certain to run."""
        self._flush_due = False
        self._cut = Cut(0, 1)
        """The boundary behind the last closed row with records."""
        self._marked = True
        """Nothing was sent since the last idle mark."""
        self._idle_since = 0.0
        self._mark_timer: asyncio.TimerHandle | None = None
        self._drained: asyncio.Future[None] | None = None
        self._room_made: asyncio.Future[None] | None = None

        self._asking: list[asyncio.Future[None]] = []
        """Futures of callers that wait for a fence read that has not begun."""
        self._asked: set[asyncio.Future[None]] = set()
        """Futures of callers whose fence read is in progress."""
        self._reads = 0
        self._read_due = False
        self._read_retry = False
        """A read failed: the next one waits for a pause."""
        self._read_tries = 0
        """Number of consecutive failed reads."""
        self._failing_since = 0.0
        """Time at which the first of those reads was sent."""

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
        self._room = settings.row_bytes
        """Bytes that it still accepts before the next check of pending bytes."""
        self._origin = self._row.key << 11
        """Position of its first record."""

    @classmethod
    async def create(
        cls,
        tables: Tables,
        log_id: int,
        *,
        life: int,
        clock_ms: Callable[[], int],
        on_failure: Callable[[BaseException], None],
        read_many: Callable[[Sequence[int]], Awaitable[list[RecordView | RottenRecord]]],
        settings: CassandraLogSettings = DEFAULTS,
    ) -> CassandraLog:
        """Begin the log.  Its entry is ``open``, and this id never had a log before.

        ``life`` are 64 random bits.  ``on_failure`` is called once, when the log is fenced or a write has failed for
        good. ``read_many`` reads records that are not in memory.  Raises :class:`Unavailable`.
        """
        assert 0 < log_id <= LOG_ID_MAX
        assert 0 < life < 1 << 64
        assert 0 < settings.segment_rows <= ROWS_MOST
        assert settings.row_bytes <= 64 * RECORDS_MOST, (
            "the least record takes 64 bytes, its line in the directory included"
        )
        try:
            await tables.add_segment(log_id, 1)
        except Unanswered as error:
            raise Unavailable(f"the journal has no quorum now: {error}") from error
        log = cls(tables, log_id, life, clock_ms, on_failure, read_many, settings)
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
        :class:`Unavailable`, having changed nothing; never after :meth:`check_room` (or :meth:`wait_room`) has
        succeeded.
        """
        size = len(record) + DIRECTORY_ENTRY_BYTES
        if size > self._room:
            self._turn(size, reserve)
        self._room -= size
        self._fill += size
        records = self._records
        position = self._origin + len(records)
        records.append(record)
        if not self._awake:
            self._awake = True
            self._loop.call_soon(self._flush)
        return position

    def check_room(self, size_bytes: int, reserve: bool = False) -> None:
        """Check that records of this size in total can be appended now, in this iteration of the loop.

        Raises :class:`StorageFull` (temporary, until rows are answered) or :class:`Unavailable`.
        """
        self._check_taking()
        # A record takes at least 56 bytes, its directory entry 8.
        if not reserve and self._filled() + size_bytes + size_bytes // 7 > self._settings.pending_bytes:
            raise StorageFull("too much waits to be written to the journal")

    async def wait_room(self, size_bytes: int, reserve: bool = False) -> None:
        """Check like :meth:`check_room`, but wait until enough is answered."""
        while True:
            try:
                return self.check_room(size_bytes, reserve)
            except StorageFull:
                if self._room_made is None:
                    self._room_made = self._loop.create_future()
                await asyncio.shield(self._room_made)

    def room(self) -> bool:
        """Return whether new messages are accepted."""
        return not (
            self._error is not None
            or self._closing
            or self._rows_stall
            or self._fence_stall
            or self._filled() >= self._settings.pending_bytes
        )

    def short(self) -> bool:
        """Return False: Cassandra manages the disk space."""
        return False

    def _check_taking(self) -> None:
        if self._error is not None:
            raise self._error
        if self._closing:
            raise Unavailable("the log is closed")
        if self._rows_stall or self._fence_stall:
            raise Unavailable(NO_QUORUM)

    def _filled(self) -> int:
        """Return the bytes of records that are not answered."""
        return self._pending_bytes + self._fill

    def _turn(self, size: int, reserve: bool) -> None:
        """Make room for a record that does not fit the row being filled, or raise."""
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
        self._room = max(size, self._settings.row_bytes - self._fill) if self._taking() else size

    def _next_row(self, seq: int) -> _Row:
        """Assign a place to the next row."""
        if self._segment_rows == self._settings.segment_rows or self._segment_bytes >= self._settings.segment_bytes:
            self._segment += 1
            self._segment_rows = self._segment_bytes = 0
            self._note_ahead()
            if self._segment == SEGMENT_MAX - 1:  # while there are places left
                self._loop.call_soon(self._fail, RuntimeError(f"log {self.log_id} is full, another one is begun"))
        key = (self.log_id << 20 | self._segment) << 13 | self._segment_rows
        row = self._memory[key] = _Row(key, self._segment, seq)
        self._segment_rows += 1
        return row

    def _taking(self) -> bool:
        """Return whether a row may be filled without a check of pending bytes."""
        return self.room() and self._pending_bytes + self._settings.row_bytes < self._settings.pending_bytes

    def _close_row(self) -> None:
        """Close the row being filled: later appends go into a later row."""
        row = self._row
        assert len(row.records) <= RECORDS_MOST
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
        self._room = self._settings.row_bytes if self._taking() else -1

    def cut(self) -> Cut:
        """Close the row being filled, so that later appends go to a later row; return the boundary."""
        if self._records and self._error is None:
            self._close_row()
        return self._cut

    def barrier(self) -> asyncio.Future[None]:
        """Return a future that is done when an answer computed now may be sent.

        If rows are incomplete, that is when the last of them is answered; otherwise, when a fence read that begins
        after this call has found the log open.  Each caller gets a future of its own, which may be cancelled.  It fails
        with :class:`Unavailable`.
        """
        future = self._loop.create_future()
        if self._error is not None:
            return _fail_future(future, self._error)
        if self._rows_stall or self._fence_stall:
            return _fail_future(future, Unavailable(NO_QUORUM))
        if self._records:
            self._row.futures.append(future)
        elif self._closed:
            self._closed[-1].futures.append(future)
        elif self._incomplete:
            # Its fence read begins when this row, and so all rows, are complete: later than now.
            self._incomplete[-1].futures.append(future)
        else:
            self._asking.append(future)
            self._want_read()
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
            everywhere = row.everywhere
            if everywhere is None or (everywhere.done() and everywhere.exception() is not None):
                if row.complete:  # its bytes are no longer in memory
                    again.add(key)
                    continue
                everywhere = row.everywhere = self._loop.create_future()
                if row.data:
                    self._replicas.put(key, row.data, everywhere)
            written.append(everywhere)
        await self.barrier()
        for everywhere in written:
            await asyncio.shield(everywhere)
        for key in again:
            await self._repeat_everywhere(key)

    async def _repeat_everywhere(self, key: int) -> None:
        """Write a row that a quorum has to all replicas; it may belong to any log.

        The bytes are the same, so concurrent repetition is harmless; if the segment is dropped meanwhile, the deletion
        prevails.
        """
        log_id, segment, number = key >> 33, key >> 13 & SEGMENT_MAX, key & ROWS_MOST - 1
        try:
            data = (await self._tables.get_rows(log_id, segment, [number])).get(number)
        except Unanswered as error:
            raise Unavailable(f"{NO_QUORUM}: {error}") from error
        if data is None:
            raise Unavailable("the message has just been written to another segment")
        everywhere = self._loop.create_future()
        self._replicas.put(key, data, everywhere)
        await everywhere

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
        entries = []
        end = 0
        for record in row.records:
            end += len(record)
            entries.append(directory_entry(record, end))
        row.data, check = encode_row(
            life=self._life,
            log_id=self.log_id,
            seq=row.seq,
            answered=self.durable_seq,
            time_ms=self._clock_ms(),
            chain=self._chain,
            records=row.records,
            directory=b"".join(entries),
        )
        self._chain = check
        self._marked = not row.records
        assert row.seq == (self._unanswered[-1].seq if self._unanswered else self.durable_seq) + 1
        row.sent_at = self._loop.time()
        self._under_way += 1
        if row.records:
            instruments.ROW_RECORDS.observe(len(row.records))
            instruments.ROW_BYTES.observe(len(row.data))
        self._incomplete.append(row)
        self._unanswered.append(row)
        self._put(row)
        if row.everywhere is not None:
            self._replicas.put(row.key, row.data, row.everywhere)

    def _put(self, row: _Row) -> None:
        """Send the row's bytes, possibly again: they never change."""
        if self._error is None:
            self._tables.put_row(
                self.log_id, row.segment, row.key & ROWS_MOST - 1, row.data, lambda error: self._written(row, error)
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
                self._complete_seq = self._incomplete.popleft().seq
                self._want_read()
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

    # --- the fence --- ----

    def _want_read(self) -> None:
        """Schedule one read of the entry for all rows completed in this iteration of the loop."""
        if not self._read_due and not self._read_retry:
            self._read_due = True
            self._loop.call_soon(self._read_entry)

    def _read_entry(self) -> None:
        if self._error is not None or not (self._read_due or self._read_retry):
            return
        self._read_due, self._read_retry = self._reads >= READS_MOST, False
        if self._read_due:
            return  # the end of a read in progress begins it
        self._reads += 1
        asking, self._asking = self._asking, []
        self._asked.update(asking)
        covers, now = self._complete_seq, self._loop.time()
        self._tables.read_state(self.log_id, lambda state: self._read(covers, asking, now, state))

    def _read(
        self, covers: int, asking: list[asyncio.Future[None]], sent_at: float, state: str | BaseException | None
    ) -> None:
        if self._error is not None:
            return
        self._reads -= 1
        self._asked.difference_update(asking)
        if state != "open":
            self._asking += [future for future in asking if not future.done()]
        if isinstance(state, Unanswered):
            self._read_tries += 1
            now = self._loop.time()
            if self._read_tries == 1:
                self._failing_since = sent_at
            if not self._fence_stall and now - self._failing_since >= self._settings.stall_seconds:
                self._fence_stall = True
                self._stall(state)
            if not self._read_retry:
                self._read_due, self._read_retry = False, True
                self._loop.call_later(pause(self._read_tries), self._read_entry)
            return
        if isinstance(state, BaseException):
            self._fail(state)
            return
        if state != "open":
            self._fail(LogFenced(f"log {self.log_id} is {state or 'unknown'}: another process goes on with its shards"))
            return
        instruments.FENCES.observe(self._loop.time() - sent_at)
        self._read_tries = 0
        for future in asking:
            if not future.done():
                future.set_result(None)
        self._answer(covers)
        if self._fence_stall:
            self._fence_stall = False
            self._go_on()
        if self._read_due:
            self._read_entry()

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
            for future in row.futures:
                if not future.done():
                    future.set_result(None)
        self._reopen()
        if not rows and not self._records and not self._closed:
            self._rest()

    def _reopen(self) -> None:
        """Accept appends again, because there is room."""
        if self._taking():
            self._room = max(self._room, self._settings.row_bytes - self._fill)
        if self._room_made is not None:
            self._room_made.set_result(None)
            self._room_made = None

    # --- failures --- ----

    def _stall(self, error: Unanswered) -> None:
        """Refuse appends and end all waits; rows in progress are still written."""
        logger.error("log %d has no quorum, calls are refused: %s", self.log_id, error)
        self._give_up_waiting(Unavailable(f"{NO_QUORUM}; whether the call took effect is not known"))
        self._room = -1
        if self._room_made is not None:
            # The waiter checks the room again.
            self._room_made.set_result(None)
            self._room_made = None
        self._want_read()

    def _go_on(self) -> None:
        if not self._rows_stall and not self._fence_stall:
            logger.warning("log %d has a quorum again", self.log_id)
            self._reopen()

    def _give_up_waiting(self, error: Unavailable) -> None:
        for row in self._memory.values():
            futures, row.futures = row.futures, []
            for future in futures:
                _fail_future(future, error)
        for future in (*self._asking, *self._asked):
            _fail_future(future, error)
        self._asking.clear()
        self._asked.clear()

    def _fail(self, error: BaseException) -> None:
        """Stop writing for good: memory may differ from what is durable."""
        if self._error is not None:
            return
        self._error = Unavailable(f"the journal cannot be written: {error}")
        self._room = -1
        self._end_waits()
        self._on_failure(error)

    def _end_waits(self) -> None:
        assert self._error is not None
        self._replicas.end(self._error)
        self._give_up_waiting(self._error)
        if self._room_made is not None:
            self._room_made.set_result(None)
            self._room_made = None
        if self._mark_timer is not None:
            self._mark_timer.cancel()
        self._wake_drain()

    # --- idle --- ----

    def _rest(self) -> None:
        """Handle that all rows are answered: wait for more, and after a while write the mark."""
        self._idle_since = self._loop.time()
        if self._marked:
            if self._closing:
                self._wake_drain()
        elif self._closing:
            self._mark()
        elif self._mark_timer is None:
            self._mark_timer = self._loop.call_at(self._idle_since + self._settings.idle_seconds, self._mark_when_idle)

    def _mark_when_idle(self) -> None:
        self._mark_timer = None
        if self._records or self._closed or self._unanswered or self._marked or self._error is not None:
            # _rest sets the timer again, or there is nothing to mark.
            return
        due = self._idle_since + self._settings.idle_seconds
        if self._loop.time() < due:
            self._mark_timer = self._loop.call_at(due, self._mark_when_idle)
        else:
            self._mark()

    def _mark(self) -> None:
        """Write an empty row: it proves that the rows before it were answered, so recovery requires them."""
        assert not self._records
        self._close_row()
        self._flush()

    # --- reading --- ----

    async def read_many(self, positions: Sequence[int]) -> list[RecordView | RottenRecord]:
        """Return the records at these positions, in their order."""
        memory = self._memory
        found = {position: self._from_memory(position) for position in positions if position >> 11 in memory}
        missing = [position for position in positions if found.get(position) is None]
        if missing:
            found.update(zip(missing, await self._read_many(missing), strict=True))
        return [view for position in positions if (view := found[position]) is not None]

    def _from_memory(self, position: int) -> RecordView | RottenRecord | None:
        row, index = self._memory[position >> 11], position & RECORDS_MOST - 1
        if index >= len(row.records):
            return None
        return check_record(row.records[index], 0, position, place(self.log_id, row.segment))

    # --- the end --- ----

    async def close(self) -> None:
        """Refuse appends, wait for a bounded time until all is answered or the log has failed, and write the mark."""
        self._closing = True
        self._room = -1
        if self._mark_timer is not None:
            self._mark_timer.cancel()
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

    def _wake_drain(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)


def _fail_future(future: asyncio.Future[None], error: Unavailable) -> asyncio.Future[None]:
    if not future.done():
        future.set_exception(error)
        future.exception()  # prevents a log line for an unretrieved exception
    return future
