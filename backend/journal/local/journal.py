"""The journal on local files: the folders of the logs of all nodes that share one root."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable

from backend.journal.local.checkpoint_chunks import LocalChunks
from backend.journal.local.disk import Disk
from backend.journal.local.extents import LocalExtents
from backend.journal.local.log import DEFAULTS, LocalLog, LogSettings
from backend.journal.local.scan import LocalScan, rewrite_tail
from backend.journal.local.segments import SegmentFiles, lock_log
from backend.journal.types import LogEnd
from metadata_service.models import LogEntry


class LocalJournal:
    """Implements :class:`backend.journal.interface.Journal`.

    The fence of a log is its lock: it is free only when the process that wrote the log has ended.  A process that hangs
    keeps its lock, and with it its shards: its supervisor has to kill it, then others can take the shards over.
    """

    def __init__(self, disk: Disk, root: str, settings: LogSettings = DEFAULTS) -> None:
        self.segments = SegmentFiles(disk, root)
        self.chunks = LocalChunks(disk, self.segments)
        self.extents = LocalExtents(disk, root)
        self._disk = disk
        self._root = root
        self._settings = settings
        self._locks: dict[int, int] = {}

    @property
    def segment_bytes(self) -> int:
        return self._settings.segment_bytes

    async def prepare(self) -> None:
        await self._disk.run(self._disk.mkdir, self._root)

    async def refresh(self, entries: Iterable[LogEntry]) -> set[int]:
        present = set(await self._disk.run(self._disk.listdir, self._root))
        started = [entry for entry in entries if folder_of(entry) in present]
        for entry in started:
            self.segments.register(entry.log_id, folder_of(entry))
        return {entry.log_id for entry in started}

    async def find(self, entries: Iterable[LogEntry]) -> set[int]:
        started = await self.refresh(entries)
        for log_id in sorted(started - self._locks.keys()):
            directory = self.segments.directory(log_id)
            try:
                self._locks[log_id] = await self._disk.run(lock_log, self._disk, directory)
            # A sealed log, whose last file another node has just removed.
            except FileNotFoundError:
                started.discard(log_id)
        return started

    def release(self) -> None:
        while self._locks:
            self._disk.close(self._locks.popitem()[1])

    def place(self, entry: LogEntry) -> str:
        return f"the folder {self._root}/{folder_of(entry)}"

    def scan(self, entry: LogEntry, known_seq: int) -> LocalScan:
        return LocalScan(
            self._disk,
            self.segments.directory(entry.log_id),
            entry.log_id,
            from_segment=entry.floor_segment,
            from_seq=entry.floor_seq,
            known_seq=known_seq,
            sealed_seq=entry.sealed_seq if entry.state == "sealed" else None,
        )

    async def finalize(self, entry: LogEntry, end: LogEnd) -> None:
        await rewrite_tail(self._disk, self.segments.directory(entry.log_id), end)

    async def trim(self, entry: LogEntry, end: LogEnd) -> None:
        await self.segments.trim(entry.log_id, end.segment, end.offset)

    async def create(
        self, entry: LogEntry, *, clock_ms: Callable[[], int], on_failure: Callable[[BaseException], None]
    ) -> LocalLog:
        return await LocalLog.create(
            self._disk,
            self.segments,
            folder_of(entry),
            entry.log_id,
            nonce=secrets.randbits(63) + 1,
            clock_ms=clock_ms,
            on_failure=on_failure,
            settings=self._settings,
        )


def folder_of(entry: LogEntry) -> str:
    """Return the name of the folder of a log's files."""
    return f"{entry.node}-{entry.incarnation}"
