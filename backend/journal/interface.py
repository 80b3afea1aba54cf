"""The interface of a journal to the backend, independent of its storage.

Two implementations keep these promises: local files (:mod:`backend.journal.local.journal`), and the tables of a
Cassandra (:mod:`backend.journal.cassandra.journal`).  They share the format of records and rows, and the conformance
suite ``tests/backend/journal/conformance.py``.

A *position* is 64 bits: the log's id (20 bits), the segment (20 bits), and 24 bits private to the journal.  Later
records of a log have higher positions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from backend.journal.checkpoints import ChunkStore
from backend.journal.extents import ExtentStore
from backend.journal.rows import RecordView
from backend.journal.types import DamagedRecord, LogEnd, Row
from metadata_service.models import LogEntry


class Cut(NamedTuple):
    """A boundary between rows: between the records appended so far and later ones.

    Row and segment are recorded together, when the last row with records is closed: an empty row after it may already
    be in another segment than the row being filled.
    """

    seq: int
    """The last row with records appended so far; 0 if there is none."""
    floor_segment: int
    """First segment to read for the rows after the cut: row ``seq + 1`` is in it, or in the next."""

    @property
    def floor_seq(self) -> int:
        """The first row behind the cut."""
        return self.seq + 1


class Log(Protocol):
    """The append side of one incarnation's log, and reads of appended records.

    Rows are numbered from 1 without gaps.  All methods are called in the event loop that created the log.
    """

    @property
    def log_id(self) -> int: ...

    @property
    def durable_seq(self) -> int:
        """The last row up to which answers may be sent."""

    @property
    def unsynced_bytes(self) -> int:
        """Approximate bytes of the rows whose answers may not be sent yet."""

    @property
    def next_seq(self) -> int:
        """Number of the row for the next record."""

    @property
    def next_segment(self) -> int:
        """Segment for the next record, as far as known now."""

    def append(self, record: bytes, *, reserve: bool = False) -> int:
        """Add a record; return its position, at which it can be read at once.

        With ``reserve`` it may use the space reserved for operations that free space.  Raises
        :class:`~backend.api.StorageFull` or :class:`~backend.api.Unavailable`, having changed nothing; never after
        :meth:`check_space` (or :meth:`wait_for_space`) has succeeded.
        """

    def check_space(self, size_bytes: int, reserve: bool = False) -> None:
        """Check that records of this size in total can be appended now, in this iteration of the loop.

        Raises :class:`~backend.api.StorageFull` (:meth:`wait_for_space` may help) or :class:`~backend.api.Unavailable`.
        """

    async def wait_for_space(self, size_bytes: int, reserve: bool = False) -> None:
        """Check like :meth:`check_space`, but wait for space that is being freed."""

    def fits_row(self, size_bytes: int) -> bool:
        """Return whether records of this size in total, if appended now, are accepted and all in one row.

        A row is durable as a whole or not at all.
        """

    def has_space(self) -> bool:
        """Return whether new messages are accepted."""

    def is_nearly_full(self) -> bool:
        """Return whether space for new messages will soon run out unless some is freed."""

    def cut(self) -> Cut:
        """Close the row being filled, so that later appends go to a later row; return the boundary."""

    def barrier(self) -> asyncio.Future[None] | None:
        """Return a future that is done when an answer computed now may be sent; None: at once.

        Then all records appended so far are durable, and the log still belonged to this incarnation at some moment
        after this call.  Each caller gets a future of its own, which may be cancelled.  It fails with
        :class:`~backend.api.Unavailable`: then it is unknown which records are durable.
        """

    def check_replicas(self) -> None:
        """Raise :class:`~backend.api.Unavailable` if :meth:`on_all_replicas` would, as far as known."""

    async def on_all_replicas(self, positions: Sequence[int]) -> None:
        """Wait like :meth:`barrier`, until every replica has these records, of this log or an earlier one.

        Raises :class:`~backend.api.Unavailable`, also when a replica is down: no other call is affected by that.
        """

    async def read_many(self, positions: Sequence[int]) -> list[RecordView | DamagedRecord]:
        """Return the records at these positions, in their order, of this log or an earlier one.

        Raises :class:`~backend.api.Unavailable` when they cannot be read now.
        """

    async def close(self) -> None:
        """Refuse appends, wait until all is durable or the log has failed, and release its resources."""


class Segments(Protocol):
    """The segments of the logs that were found, or started, by this process.  Used from one event loop."""

    def logs(self) -> list[int]:
        """Return the ids of logs that may have remains, ascending."""

    async def segments_of(self, log_id: int) -> list[tuple[int, int]]:
        """Return (segment, size in bytes) of a log, ascending; may include unused ones."""

    async def drop(self, log_id: int, segments: Iterable[int]) -> None:
        """Delete segments durably.  :class:`~backend.journal.pins.Pins` decides which ones may be deleted."""

    async def remove_log(self, log_id: int) -> bool:
        """Forget a sealed log if nothing is left of it.  Returns whether it is gone."""


class Scan(Protocol):
    """Reads a log once, from its floor on.  Iterate over :meth:`rows`; :attr:`end` is set after the last one."""

    @property
    def end(self) -> LogEnd: ...

    def rows(self) -> AsyncIterator[Row]:
        """Yield the rows in order; damaged ones with their readable content."""


class Journal(Protocol):
    """Storage of one incarnation's log, with access to earlier logs."""

    @property
    def segments(self) -> Segments: ...

    @property
    def chunks(self) -> ChunkStore: ...

    @property
    def extents(self) -> ExtentStore: ...

    @property
    def segment_bytes(self) -> int:
        """Size of a full segment, in bytes."""

    async def prepare(self) -> None:
        """Check that logs can be stored here at all.  Repeatable; the first step of a start."""

    async def refresh(self, entries: Iterable[LogEntry]) -> set[int]:
        """Return those of these logs that may have been started, by id, whichever process writes them.  They are
        readable from now on.
        """

    async def find(self, entries: Iterable[LogEntry]) -> set[int]:
        """Find logs like :meth:`refresh`, and lock them for this process until :meth:`release`.

        No other process writes or recovers them meanwhile.  Raises :class:`~backend.journal.types.LogInUse` if
        the writer of one is known to be alive.
        """

    def release(self) -> None:
        """End a recovery: release all found logs to other processes."""

    def place(self, entry: LogEntry) -> str:
        """Return a log's location as text."""

    def scan(self, entry: LogEntry, known_seq: int) -> Scan:
        """Scan a sealed or found log from its floor to its end.

        ``known_seq``: a row that a committed checkpoint or chain proves durable.
        """

    async def finalize(self, entry: LogEntry, end: LogEnd) -> None:
        """Make the end found by a scan durable, so that the log can be sealed there.

        Rows behind the last one known to be answered are written again.  Raises :class:`OSError` or
        :class:`~backend.api.Unavailable`; then nothing may depend on these rows.
        """

    async def trim(self, entry: LogEntry, end: LogEnd) -> None:
        """Free the unused space of a log that is sealed at this end."""

    async def create(
        self, entry: LogEntry, *, clock_ms: Callable[[], int], on_failure: Callable[[BaseException], None]
    ) -> Log:
        """Begin the log of a new incarnation.

        ``on_failure`` is called once, when nothing more can be written: the caller has to discard its memory and
        restart from what is durable.  Raises :class:`~backend.api.StorageFull`, :class:`~backend.api.Unavailable`,
        :class:`~backend.journal.types.LogInUse`, :class:`OSError`.
        """
