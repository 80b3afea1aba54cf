"""Metadata store in one SQLite file, used by `holdfast serve`.

The file is in WAL mode with ``synchronous=FULL``, so a committed transaction survives a power loss; except
heartbeats and reports, which are meaningless after one. A row holds its record as JSON, beside the columns that
are looked up or compared: adding a field with a default needs no migration.
"""

from __future__ import annotations

from pathlib import Path

from metadata_service.sqlite.alarms import SQLiteAlarms
from metadata_service.sqlite.changes import SQLiteChanges
from metadata_service.sqlite.credentials import SQLiteCredentials
from metadata_service.sqlite.data_keys import SQLiteDataKeys
from metadata_service.sqlite.documents import SQLiteDocuments
from metadata_service.sqlite.entries import SQLiteEntries
from metadata_service.sqlite.named_keys import SQLiteNamedKeys
from metadata_service.sqlite.queues import SQLiteQueues
from metadata_service.sqlite.registry import SQLiteRegistry
from metadata_service.sqlite.schema import open_database
from metadata_service.sqlite.streams import SQLiteStreams
from metadata_service.sqlite.thread import Worker
from metadata_service.sqlite.topics import SQLiteTopics


class SQLiteStore:
    """A :class:`~metadata_service.store.MetadataStore` in the file ``path``, readable only by its owner."""

    def __init__(self, path: Path) -> None:
        """Open the file, creating it or migrating it to this version's schema.

        Raises :class:`~metadata_service.opening.CannotOpen`.
        """
        self._worker = worker = Worker(open_database(path))
        self.queues = SQLiteQueues(worker)
        self.streams = SQLiteStreams(worker)
        self.topics = SQLiteTopics(worker)
        self.changes = SQLiteChanges(worker)
        self.entries = SQLiteEntries(worker)
        self.clusters = SQLiteRegistry(worker)
        self.alarms = SQLiteAlarms(worker)
        self.documents = SQLiteDocuments(worker)
        self.credentials = SQLiteCredentials(worker)
        self.data_keys = SQLiteDataKeys(worker)
        self.named_keys = SQLiteNamedKeys(worker)

    async def close(self) -> None:
        await self._worker.close()
