"""The part of a log's append side that is common to local files and Cassandra: the row being filled, and its encoding.

A log appends records to the row being filled directly; here are its boundary, the checksums that chain the rows, and
the idle mark, an empty row written after a while without records.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from backend import instruments
from backend.api import Unavailable
from backend.journal.interface import Cut
from backend.journal.rows import encode_directory, encode_row


class RowBuffer(ABC):
    """Collects records into rows.  Used from one event loop."""

    def __init__(
        self,
        log_id: int,
        nonce: int,
        clock_ms: Callable[[], int],
        on_failure: Callable[[BaseException], None],
        idle_seconds: float,
        first_segment: int,
    ) -> None:
        self.log_id = log_id
        self.durable_seq = 0
        """The last row that is durable, as are all before it; its answers may be sent."""
        self._nonce = nonce
        self._clock_ms = clock_ms
        self._on_failure = on_failure
        self._idle_seconds = idle_seconds
        self._loop = asyncio.get_running_loop()
        self._error: Unavailable | None = None
        self._closing = False
        self._records: list[bytes] = []
        """Records of the row being filled."""
        self._chain = 0
        """Checksum of the last encoded row."""
        self._cut = Cut(0, first_segment)
        """The boundary behind the last closed row with records."""
        self._marked = True
        """True if no row was encoded since the last idle mark."""
        self._idle_since = 0.0
        self._mark_timer: asyncio.TimerHandle | None = None
        self._drained: asyncio.Future[None] | None = None

    @abstractmethod
    def _close_row(self) -> None:
        """Close the row being filled: later appends go into a later row."""

    @abstractmethod
    def _flush(self) -> None:
        """Write what can be written now."""

    @abstractmethod
    def _is_idle(self) -> bool:
        """Return whether no row is being filled or written."""

    def cut(self) -> Cut:
        """Close the row being filled, so that later appends go to a later row; return the boundary."""
        if self._records and self._error is None:
            self._close_row()
        return self._cut

    def _encode(self, seq: int, records: list[bytes], ends: Iterable[int], time_ms: int) -> bytes:
        """Return the bytes of the next row.  ``ends``: the offset behind each record."""
        row, self._chain = encode_row(
            nonce=self._nonce,
            log_id=self.log_id,
            seq=seq,
            answered=self.durable_seq,
            time_ms=time_ms,
            chain=self._chain,
            records=records,
            directory=encode_directory(records, ends),
        )
        self._marked = not records
        if records:
            instruments.ROW_RECORDS.observe(len(records))
            instruments.ROW_BYTES.observe(len(row))
        return row

    def _rest(self) -> None:
        """Handle that all rows are answered: wait for more, and after a while write the mark."""
        self._idle_since = self._loop.time()
        if self._marked:
            self._wake_drain()
        elif self._closing:
            self._mark()
        elif self._mark_timer is None:
            self._mark_timer = self._loop.call_at(self._idle_since + self._idle_seconds, self._mark_when_idle)

    def _mark_when_idle(self) -> None:
        self._mark_timer = None
        if not self._is_idle() or self._marked or self._error is not None:
            # _rest sets the timer again, or there is nothing to mark.
            return
        due = self._idle_since + self._idle_seconds
        if self._loop.time() < due:
            self._mark_timer = self._loop.call_at(due, self._mark_when_idle)
        else:
            self._mark()

    def _mark(self) -> None:
        """Write an empty row: it proves that the rows before it were answered, so recovery requires them."""
        assert not self._records
        self._close_row()
        self._flush()

    def _stop_marks(self) -> None:
        if self._mark_timer is not None:
            self._mark_timer.cancel()

    def _wake_drain(self) -> None:
        """End the wait of a close."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)


def fail_future(future: asyncio.Future[None], error: Unavailable) -> asyncio.Future[None]:
    """Fail a future that may be done already, and that no caller may be waiting for."""
    if not future.done():
        future.set_exception(error)
        future.exception()  # prevents a log line for an unretrieved exception
    return future


def release_futures(futures: Iterable[asyncio.Future[None]]) -> None:
    """Resolve the futures that are not cancelled."""
    for future in futures:
        if not future.done():
            future.set_result(None)
