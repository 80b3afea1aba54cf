"""What a backend asks of its journal, whatever it is kept on.

Two implementations keep these promises: local files (:mod:`backend.journal.local`), and the tables of a Cassandra
(:mod:`backend.journal.cassandra_journal`).  They share the format of records and rows, and the conformance suite
``tests/backend/journal/conformance.py``.

A *position* is 64 bits: the log's id (20 bits), the segment (20 bits), and 24 bits that only the journal understands.
Later records of a log have higher positions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from backend.journal.checkpoints import PieceStore
from backend.journal.recovery import LogEnd, Row
from backend.journal.rows import RecordView
from backend.journal.segments import RottenRecord
from metadata_service.models import LogEntry


class Cut(NamedTuple):
    """A boundary between rows: what was appended before it, and what will be appended later.

    Row and segment are noted together, when the last row with records is closed: an empty row behind it may already lie
    in another segment than the row being filled.
    """

    seq: int
    """The last row that holds anything appended so far; 0 if there is none."""
    floor_segment: int
    """The segment from which the log is to be read for the rows behind: row ``seq + 1`` lies in it, or in the next."""

    @property
    def floor_seq(self) -> int:
        """The first row behind."""
        return self.seq + 1


class Log(Protocol):
    """The append side of one incarnation's log, and the way back to what was appended.

    Rows are numbered from 1 without gaps.  All methods are called in the event loop that made the log.
    """

    @property
    def log_id(self) -> int: ...

    @property
    def durable_seq(self) -> int:
        """The last row whose answers may go out, and with it all before it."""

    @property
    def unsynced_bytes(self) -> int:
        """Of the rows whose answers may not go out yet, about."""

    @property
    def next_seq(self) -> int:
        """The row that the next record goes into."""

    @property
    def next_segment(self) -> int:
        """The segment that the next record goes into, as things stand."""

    def append(self, record: bytes, *, reserve: bool = False) -> int:
        """Add a record; returns its position, at which it can be read at once.

        With ``reserve`` it may use what is kept for making room.  Raises :class:`~backend.api.StorageFull` or
        :class:`~backend.api.Unavailable`, having changed nothing; never after :meth:`check_room` (or :meth:`wait_room`)
        has let it pass.
        """

    def check_room(self, size_bytes: int, reserve: bool = False) -> None:
        """Make sure that records of this size in total can be appended now, in this iteration of the loop.

        Raises :class:`~backend.api.StorageFull` (:meth:`wait_room` may help) or :class:`~backend.api.Unavailable`.
        """

    async def wait_room(self, size_bytes: int, reserve: bool = False) -> None:
        """Like :meth:`check_room`, but waits for room that is being made."""

    def room(self) -> bool:
        """Whether new messages are taken."""

    def short(self) -> bool:
        """Whether there will soon be no room for new messages unless some is made."""

    def cut(self) -> Cut:
        """Close the row being filled, so that later appends go to a later row; returns the boundary."""

    def barrier(self) -> asyncio.Future[None] | None:
        """A future that is done when an answer computed now may go out; None: at once.

        Then all that was appended so far is durable, and the log was still this incarnation's at some moment after
        this call.  Each caller gets a future of its own, which may be cancelled.  It fails with
        :class:`~backend.api.Unavailable`: then it is not known what of it is durable.
        """

    def check_replicas(self) -> None:
        """Raises :class:`~backend.api.Unavailable` when :meth:`on_all_replicas` would, as far as is known."""

    async def on_all_replicas(self, positions: Sequence[int]) -> None:
        """Like :meth:`barrier`, and every replica has the records at these positions, of this log or an earlier one.

        Raises :class:`~backend.api.Unavailable`, also when a replica is away: nothing but this call suffers from that.
        """

    async def read_many(self, positions: Sequence[int]) -> list[RecordView | RottenRecord]:
        """The records at these positions, in their order, of this log or an earlier one.

        Raises :class:`~backend.api.Unavailable` when they cannot be read now.
        """

    async def close(self) -> None:
        """Take no more, wait until all is durable or the log has failed, and let go of it."""


class Segments(Protocol):
    """The segments of the logs that were found, or begun, by this process.  Used from one event loop."""

    def logs(self) -> list[int]:
        """Ids of logs of which something may be left, ascending."""

    async def segments_of(self, log_id: int) -> list[tuple[int, int]]:
        """(segment, size in bytes) of a log, ascending; perhaps also some that were never used."""

    async def drop(self, log_id: int, segments: Iterable[int]) -> None:
        """Delete segments, durably.  Whether they may go is for :class:`~backend.journal.pins.Pins` to say."""

    async def remove_log(self, log_id: int) -> bool:
        """Forget a sealed log if nothing is left of it.  Says whether it is gone."""


class Scan(Protocol):
    """Reads a log once, from its floor on.  Iterate over :meth:`rows`; :attr:`end` is set after the last one."""

    @property
    def end(self) -> LogEnd: ...

    def rows(self) -> AsyncIterator[Row]:
        """The rows, in order, also damaged ones with what can be read of them."""


class Journal(Protocol):
    """Where one incarnation of a node keeps its log, and finds the earlier ones."""

    @property
    def segments(self) -> Segments: ...

    @property
    def pieces(self) -> PieceStore: ...

    @property
    def segment_bytes(self) -> int:
        """How large a segment becomes."""

    async def prepare(self) -> None:
        """Make sure that logs can be kept here at all.  Repeatable; the first thing that a start does."""

    async def look(self, entries: Iterable[LogEntry]) -> set[int]:
        """Which of these logs may have been begun, by id, whoever writes them.  From now on they can be read."""

    async def find(self, entries: Iterable[LogEntry]) -> set[int]:
        """Like :meth:`look`, and they are this process's until :meth:`release`: nobody else writes or recovers them.

        Raises :class:`~backend.journal.segments.LogInUse` if the writer of one is known to live.
        """

    def release(self) -> None:
        """Recovery is over: let others find all that was found."""

    def place(self, entry: LogEntry) -> str:
        """Where a log is, in words."""

    def scan(self, entry: LogEntry, known_seq: int) -> Scan:
        """Read a log that was looked at, from its floor to its end: one that is sealed, or was found.

        ``known_seq``: a row known from elsewhere to be durable, from a committed checkpoint or chain.
        """

    async def settle(self, entry: LogEntry, end: LogEnd) -> None:
        """Make the end that a scan has found durable, so that the log can be sealed there: what lay behind the last
        row known to be answered is written again.  Raises :class:`OSError` or :class:`~backend.api.Unavailable`; then
        nothing may be built on these rows.
        """

    async def trim(self, entry: LogEntry, end: LogEnd) -> None:
        """Give back what a log that is sealed at this end has taken and not used."""

    async def create(
        self, entry: LogEntry, *, clock_ms: Callable[[], int], on_failure: Callable[[BaseException], None]
    ) -> Log:
        """Begin the log of a new incarnation.

        ``on_failure`` is called once, when nothing more can be written: the caller has to throw its memory away and
        begin anew from what is durable.  Raises :class:`~backend.api.StorageFull`,
        :class:`~backend.api.Unavailable`, :class:`~backend.journal.segments.LogInUse`, :class:`OSError`.
        """
