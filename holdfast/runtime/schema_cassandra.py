"""``holdfast schema`` for Cassandra: works on the keyspaces in the settings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from backend.journal.cassandra.tables import JOURNAL
from holdfast.runtime.stores import cluster_keyspace, connection_settings
from holdfast.settings import Settings
from metadata_service.cassandra.driver.connection import CassandraConnection
from metadata_service.cassandra.driver.keyspace import CassandraKeyspace
from metadata_service.cassandra.driver.records import Records
from metadata_service.cassandra.schema.part import Part
from metadata_service.cassandra.schema.tables import METADATA, has_tables
from metadata_service.cassandra.schema.versions import CassandraVersions
from metadata_service.cassandra.store import CassandraStore
from metadata_service.schema import CannotRollBack, SchemaState


class KeyspacePart(NamedTuple):
    """Versioned part of a keyspace."""

    keyspace: str
    part: Part


def all_kept(settings: Settings) -> list[KeyspacePart]:
    """Parts that a service with these settings stores, for the backend cluster in the settings."""
    cluster = cluster_keyspace(settings)
    return [
        KeyspacePart(settings.cassandra_keyspace, METADATA),
        KeyspacePart(cluster, METADATA),
        KeyspacePart(cluster, JOURNAL),
    ]


async def show(settings: Settings) -> list[tuple[KeyspacePart, SchemaState]]:
    """Read the stored versions.  Raises :class:`~metadata_service.store.StoreError`."""
    async with _connected(settings) as connection:
        return [(kept, await _stored(connection, kept)) for kept in all_kept(settings)]


async def migrate(settings: Settings) -> None:
    """Create missing parts, and run missing migrations.  Raises :class:`~metadata_service.store.StoreError`."""
    async with _connected(settings) as connection:
        for kept in all_kept(settings):
            store = await CassandraStore.open(connection.share(), kept.keyspace)
            try:
                if kept.part is not METADATA:
                    await store.bring(kept.part)
            finally:
                await store.close()


async def roll_back(settings: Settings, name: str, to: int | None) -> None:
    """Roll back one migration of the parts with this name.  Raises :class:`~metadata_service.store.StoreError`."""
    async with _connected(settings) as connection:
        for kept in all_kept(settings):
            if kept.part.name == name:
                versions = await _versions(connection, kept)
                if versions is None:
                    raise CannotRollBack(f"there is no keyspace {kept.keyspace} with Holdfast's tables")
                await versions.roll_back(to)


async def _stored(connection: CassandraConnection, kept: KeyspacePart) -> SchemaState:
    versions = await _versions(connection, kept)
    return SchemaState(0, 0) if versions is None else await versions.stored()


async def _versions(connection: CassandraConnection, kept: KeyspacePart) -> CassandraVersions | None:
    keyspace = CassandraKeyspace(connection, kept.keyspace)
    if not await has_tables(keyspace):
        return None
    return CassandraVersions(await asyncio.to_thread(Records, keyspace), keyspace, kept.part)


@asynccontextmanager
async def _connected(settings: Settings) -> AsyncIterator[CassandraConnection]:
    connection = await CassandraConnection.open(connection_settings(settings))
    try:
        yield connection
    finally:
        await connection.close()
