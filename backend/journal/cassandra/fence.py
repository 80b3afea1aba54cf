"""The fence of a log on Cassandra: reads of the log's own entry that find it still open.

A read covers what was complete when it was sent.  Reads overlap, so a row waits one round trip for its fence, not 1.5
on average.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from backend import instruments
from backend.api import Unavailable
from backend.journal.cassandra.retrying_tables import pause
from backend.journal.cassandra.table_interface import LogFenced, Tables, Unanswered
from backend.journal.row_buffer import fail_future, release_futures

READS_MAX: Final = 4
"""Maximum number of fence reads in progress."""


class Fence:
    """Reads of one log's entry.  Used from one event loop."""

    def __init__(
        self,
        tables: Tables,
        log_id: int,
        *,
        stall_seconds: float,
        on_open: Callable[[int], None],
        on_stall: Callable[[Unanswered], None],
        on_recovery: Callable[[], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """``on_open`` is called with the last row that a read covers."""
        self.complete_seq = 0
        """The last row that is complete, as are all before it."""
        self.stalled = False
        """True while reads have had no answer for too long."""
        self._tables = tables
        self._log_id = log_id
        self._stall_seconds = stall_seconds
        self._on_open = on_open
        self._on_stall = on_stall
        self._on_recovery = on_recovery
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._ended = False
        self._waiting: list[asyncio.Future[None]] = []
        """Futures of callers that wait for a read that has not started."""
        self._waiting_for_reads: set[asyncio.Future[None]] = set()
        """Futures of callers whose read is in progress."""
        self._reads = 0
        self._read_due = False
        self._read_retry = False
        """True if the last read failed, so that the next one waits for a pause."""
        self._tries = 0
        """Number of consecutive failed reads."""
        self._failing_since = 0.0
        """Time at which the first of those reads was sent."""

    def wait(self, future: asyncio.Future[None]) -> None:
        """Resolve the future when a read that starts after this call has found the log open."""
        self._waiting.append(future)
        self.request()

    def request(self) -> None:
        """Schedule one read of the entry for all rows completed in this iteration of the loop."""
        if not self._read_due and not self._read_retry:
            self._read_due = True
            self._loop.call_soon(self._start_read)

    def fail_waiting(self, error: Unavailable) -> None:
        """Fail all waiting callers."""
        for future in (*self._waiting, *self._waiting_for_reads):
            fail_future(future, error)
        self._waiting.clear()
        self._waiting_for_reads.clear()

    def end(self) -> None:
        """Start no more reads, and ignore the results of those in progress."""
        self._ended = True

    def _start_read(self) -> None:
        if self._ended or not (self._read_due or self._read_retry):
            return
        self._read_due, self._read_retry = self._reads >= READS_MAX, False
        if self._read_due:
            return  # the end of a read in progress starts it
        self._reads += 1
        waiting, self._waiting = self._waiting, []
        self._waiting_for_reads.update(waiting)
        covers, now = self.complete_seq, self._loop.time()
        self._tables.read_state(self._log_id, lambda state: self._read(covers, waiting, now, state))

    def _read(
        self, covers: int, waiting: list[asyncio.Future[None]], sent_at: float, state: str | BaseException | None
    ) -> None:
        if self._ended:
            return
        self._reads -= 1
        self._waiting_for_reads.difference_update(waiting)
        if state != "open":
            self._waiting += [future for future in waiting if not future.done()]
        if isinstance(state, Unanswered):
            self._retry(sent_at, state)
        elif isinstance(state, BaseException):
            self._on_failure(state)
        elif state != "open":
            text = f"log {self._log_id} is {state or 'unknown'}: another process takes over its shards"
            self._on_failure(LogFenced(text))
        else:
            instruments.FENCES.observe(self._loop.time() - sent_at)
            self._tries = 0
            release_futures(waiting)
            self._on_open(covers)
            if self.stalled:
                self.stalled = False
                self._on_recovery()
            if self._read_due:
                self._start_read()

    def _retry(self, sent_at: float, error: Unanswered) -> None:
        self._tries += 1
        if self._tries == 1:
            self._failing_since = sent_at
        if not self.stalled and self._loop.time() - self._failing_since >= self._stall_seconds:
            self.stalled = True
            self._on_stall(error)
        if not self._read_retry:
            self._read_due, self._read_retry = False, True
            self._loop.call_later(pause(self._tries), self._start_read)
