"""The journal on Cassandra, the counterpart of :mod:`backend.journal.local.journal` on files.

Only the fence (:mod:`backend.journal.cassandra.log`) excludes a second writer: a process that has committed
``recovering`` in a log's entry may read and seal that log, even if its writer is alive.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Final, Protocol

from backend.api import Unavailable
from backend.journal.cassandra.checkpoint_chunks import CassandraChunks
from backend.journal.cassandra.extents import CassandraExtents
from backend.journal.cassandra.log import DEFAULTS, CassandraLog, CassandraLogSettings
from backend.journal.cassandra.retrying_tables import RetryingTables
from backend.journal.cassandra.rows import key_of, missing_record, record_in, rows_of
from backend.journal.cassandra.scan import CassandraScan
from backend.journal.cassandra.table_interface import Tables, Unanswered
from backend.journal.rows import RecordView
from backend.journal.types import DamagedRecord, LogEnd, Row
from metadata_service.models import LogEntry

ROWS_READ: Final = 16
"""Number of rows read at a time: a mebibyte of typical rows."""


class CheckedTables(Tables, Protocol):
    """Tables, with a check of their server's configuration."""

    async def check(self) -> None:
        """Check that answered writes are durable there.  Raises if they are not and durability is required."""


class CassandraSegments:
    """Implements :class:`backend.journal.interface.Segments`."""

    def __init__(self, tables: Tables, segment_bytes: int) -> None:
        self._tables = tables
        self._segment_bytes = segment_bytes
        self._known: set[int] = set()

    def register(self, log_id: int) -> None:
        self._known.add(log_id)

    def logs(self) -> list[int]:
        return sorted(self._known)

    async def segments_of(self, log_id: int) -> list[tuple[int, int]]:
        try:
            return [(segment, self._segment_bytes) for segment in await self._tables.segments(log_id)]
        except Unanswered as error:
            raise Unavailable(f"the segments of log {log_id} cannot be listed: {error}") from error

    async def drop(self, log_id: int, segments: Iterable[int]) -> None:
        try:
            for segment in sorted(segments):
                await self._tables.drop_segment(log_id, segment)
        except Unanswered as error:
            raise Unavailable(f"a segment of log {log_id} cannot be deleted: {error}") from error

    async def remove_log(self, log_id: int) -> bool:
        if await self.segments_of(log_id):
            return False
        self._known.discard(log_id)
        return True


class CassandraJournal:
    """Implements :class:`backend.journal.interface.Journal`."""

    def __init__(self, server: CheckedTables, settings: CassandraLogSettings = DEFAULTS) -> None:
        self._server = server
        self._tables = tables = RetryingTables(server)
        self.segments = CassandraSegments(tables, settings.segment_bytes)
        self.chunks = CassandraChunks(tables)
        self.extents = CassandraExtents(tables)
        self._settings = settings
        self._scans: dict[int, CassandraScan] = {}

    @property
    def segment_bytes(self) -> int:
        return self._settings.segment_bytes

    async def prepare(self) -> None:
        try:
            await self._server.check()
        except Unanswered as error:
            raise Unavailable(f"Cassandra does not answer: {error}") from error

    async def refresh(self, entries: Iterable[LogEntry]) -> set[int]:
        """Return all of them: rows of a log may still appear as long as its entry is open."""
        found = {entry.log_id for entry in entries}
        for log_id in found:
            self.segments.register(log_id)
        return found

    async def find(self, entries: Iterable[LogEntry]) -> set[int]:
        """Return all of them; no lock is taken, because the fence excludes other writers."""
        return await self.refresh(entries)

    def release(self) -> None:
        self._scans.clear()

    def place(self, entry: LogEntry) -> str:
        return f"log {entry.log_id} on Cassandra"

    def scan(self, entry: LogEntry, known_seq: int) -> _Scan:
        scan = self._scans[entry.log_id] = CassandraScan(
            self._tables,
            entry.log_id,
            from_segment=entry.floor_segment,
            from_seq=entry.floor_seq,
            known_seq=known_seq,
            sealed_seq=entry.sealed_seq if entry.state == "sealed" else None,
            accepted=entry.accepted,
        )
        return _Scan(scan)

    async def finalize(self, entry: LogEntry, end: LogEnd) -> None:
        scan = self._scans[entry.log_id]
        assert scan.end is end, "the folded rows are made durable"
        for row in scan.tail:
            if row.seq <= end.seq:
                try:
                    await self._tables.rewrite(entry.log_id, row.segment, row.row, row.data)
                except Unanswered as error:
                    raise Unavailable(f"the end of log {entry.log_id} cannot be written: {error}") from error

    async def trim(self, entry: LogEntry, end: LogEnd) -> None:
        segments = [number for number, _ in await self.segments.segments_of(entry.log_id)]
        await self.segments.drop(entry.log_id, [number for number in segments if number > end.segment or not end.seq])

    async def create(
        self, entry: LogEntry, *, clock_ms: Callable[[], int], on_failure: Callable[[BaseException], None]
    ) -> CassandraLog:
        log = await CassandraLog.create(
            self._tables,
            entry.log_id,
            nonce=secrets.randbits(63) + 1,
            clock_ms=clock_ms,
            on_failure=on_failure,
            read_many=self.read_many,
            settings=self._settings,
        )
        self.segments.register(entry.log_id)
        return log

    async def read_many(self, positions: Sequence[int]) -> list[RecordView | DamagedRecord]:
        """Return the records at these positions, in their order.  Raises :class:`Unavailable`."""
        found: dict[int, bytes] = {}
        try:
            for (log_id, segment), rows in rows_of(list(positions)).items():
                for at in range(0, len(rows), ROWS_READ):
                    wanted = rows[at : at + ROWS_READ]
                    page = await self._tables.get_rows(log_id, segment, wanted)
                    if len(page) < len(wanted):
                        # A single replica may have them: rows count as lost only after a read from all replicas.
                        page = await self._tables.at_consistency_all().get_rows(log_id, segment, wanted)
                    found.update((key_of(log_id, segment, row), data) for row, data in page.items())
        except Unanswered as error:
            raise Unavailable(f"messages cannot be read now: {error}") from error
        return [
            record_in(data, position) if (data := found.get(position >> 11)) is not None else missing_record(position)
            for position in positions
        ]


class _Scan:
    """A scan that hides the tables' errors."""

    def __init__(self, scan: CassandraScan) -> None:
        self._scan = scan

    @property
    def end(self) -> LogEnd:
        return self._scan.end

    async def rows(self) -> AsyncIterator[Row]:
        try:
            async for row in self._scan.rows():
                yield row
        except Unanswered as error:
            raise Unavailable(f"a log cannot be read now: {error}") from error
