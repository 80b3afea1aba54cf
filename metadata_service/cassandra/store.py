"""Metadata store in Cassandra, shared by processes on several machines.

:mod:`metadata_service.cassandra.driver.records` explains how rows change safely,
:mod:`metadata_service.cassandra.schema.tables` lists the tables.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import Self

from metadata_service.cassandra.alarms import CassandraAlarms
from metadata_service.cassandra.changes import CassandraChanges
from metadata_service.cassandra.credentials import CassandraCredentials
from metadata_service.cassandra.data_keys import CassandraDataKeys
from metadata_service.cassandra.documents import CassandraDocuments
from metadata_service.cassandra.driver.connection import CassandraConnection, FenceQuery
from metadata_service.cassandra.driver.keyspace import CassandraKeyspace
from metadata_service.cassandra.driver.records import Records
from metadata_service.cassandra.entries import CassandraEntries, fence
from metadata_service.cassandra.named_keys import CassandraNamedKeys
from metadata_service.cassandra.queues import CassandraQueues
from metadata_service.cassandra.registry import CassandraRegistry
from metadata_service.cassandra.schema.part import Part
from metadata_service.cassandra.schema.versions import CassandraVersions, prepared
from metadata_service.cassandra.streams import CassandraStreams
from metadata_service.cassandra.topics import CassandraTopics
from metadata_service.opening import CannotOpen
from metadata_service.store import StoreError, StoreUnavailable

log = logging.getLogger("holdfast.process.metadata")


class CassandraStore:
    """A :class:`~metadata_service.store.MetadataStore` in a keyspace.

    Created by :meth:`open`, for one event loop.
    """

    def __init__(self, keyspace: CassandraKeyspace, records: Records, *, wait: bool) -> None:
        self.changes = CassandraChanges(records)
        self.queues = CassandraQueues(records, self.changes)
        self.streams = CassandraStreams(records, self.changes)
        self.topics = CassandraTopics(records, self.changes)
        self.entries = CassandraEntries(records)
        self.clusters = CassandraRegistry(records)
        self.alarms = CassandraAlarms(records)
        self.documents = CassandraDocuments(records)
        self.credentials = CassandraCredentials(records)
        self.named_keys = CassandraNamedKeys(records)
        self.data_keys = CassandraDataKeys(records, self.named_keys)
        self.keyspace = keyspace
        self.records = records
        """Access to all records, for copying and filling the keyspace."""
        self._wait = wait
        self._collecting: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        connection: CassandraConnection,
        keyspace: str,
        *,
        collect_seconds: float | None = None,
        wait: bool = False,
    ) -> Self:
        """Open the keyspace, creating it or migrating it to this version's schema; ``wait``: until another
        process has done so.

        The store takes over the connection (which may be a share of one) and closes it, also when opening
        fails.  With ``collect_seconds`` it removes unfinished objects at about that interval. Raises
        :class:`~metadata_service.opening.CannotOpen`.
        """
        opened = CassandraKeyspace(connection, keyspace)
        try:
            store = cls(opened, await prepared(opened, wait=wait), wait=wait)
            if collect_seconds is not None:
                store._collecting = asyncio.create_task(store._collect(collect_seconds), name="collector of queues")
            return store
        except StoreUnavailable as error:
            await opened.close()
            raise CannotOpen(f"keyspace {keyspace} cannot be used: {error}") from error
        except BaseException:
            await opened.close()
            raise

    async def bring(self, part: Part) -> None:
        """Migrate other tables of the keyspace to this version's schema, or wait until another process has done
        so.

        Raises :class:`~metadata_service.opening.CannotOpen` and :class:`StoreUnavailable`.
        """
        await CassandraVersions(self.records, self.keyspace, part).ready(wait=self._wait)

    async def close(self) -> None:
        if self._collecting is not None:
            self._collecting.cancel()
            await asyncio.wait([self._collecting])
        await self.keyspace.close()

    @property
    def fence(self) -> FenceQuery:
        """Query with which a log's writer reads whether its log is still open."""
        return fence(self.keyspace.name, self.entries.end_hold)

    async def _collect(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(random.uniform(0.5, 1.5) * seconds)  # spread the processes over time
            try:
                removed = await self.topics.collect()  # before the marks of hidden queues are removed
                removed += await self.queues.collect(now_ms=int(time.time() * 1000)) + await self.streams.collect()
            except StoreError as error:
                log.warning("half-made objects cannot be collected now: %s", error)
                continue
            if removed:
                log.info("collected %d unfinished creations, unfinished deletions and expired name holds", removed)
