"""Feed of changed queues and streams in the SQLite file: :class:`~metadata_service.store.ChangeStore`."""

from __future__ import annotations

import sqlite3

from metadata_service.sqlite.thread import Worker
from metadata_service.store import QueueChanges

_CHANGES_KEPT = 1000
"""Number of changes kept for other processes.  A reader that is further behind drops its whole cache."""


class SQLiteChanges:
    """Changes of queues and streams in the file of ``worker``."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def queue_changes(self, after: int | None) -> QueueChanges:
        def read_changes(db: sqlite3.Connection) -> QueueChanges:
            last = int(db.execute("SELECT max(change) FROM queue_changes").fetchone()[0] or 0)
            if after is None or last == after:
                return QueueChanges(last, [])
            if not 0 < last - after <= _CHANGES_KEPT:
                return QueueChanges(last, None)
            query = "SELECT account, name FROM queue_changes WHERE change > ? AND change <= ?"
            return QueueChanges(last, db.execute(query, (after, last)).fetchall())

        return await self._worker.read(read_changes)


def record_change(db: sqlite3.Connection, account: str, name: str) -> None:
    """Record a changed queue or stream, so that other processes drop it from their caches."""
    change = db.execute("INSERT INTO queue_changes (account, name) VALUES (?, ?)", (account, name)).lastrowid
    assert change is not None
    db.execute("DELETE FROM queue_changes WHERE change <= ?", (change - _CHANGES_KEPT,))
