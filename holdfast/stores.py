"""Where the metadata of a cluster are: in the SQLite file of the data folder, or in Cassandra, as the settings say."""

from __future__ import annotations

import re

from holdfast.settings import Settings, SettingsError
from metadata_service.sqlite import SQLiteStore
from metadata_service.store import MetadataStore

COLLECT_SECONDS = 3600
"""About how often a process removes from Cassandra what was left half-made."""


def replication_of(text: str) -> dict[str, int]:
    """Replicas in each data centre, as ``datacenter1=3,datacenter2=3`` says.  Raises :class:`SettingsError`."""
    replicas: dict[str, int] = {}
    for part in text.split(","):
        found = re.fullmatch(r"\s*([A-Za-z0-9_.-]+)=([1-9][0-9]?)\s*", part)
        if not found or found[1] in replicas:
            raise SettingsError(f"cassandra_replication has to be like datacenter1=3,datacenter2=3, not {text!r}")
        replicas[found[1]] = int(found[2])
    return replicas


async def open_metadata(settings: Settings) -> MetadataStore:
    """Raises :class:`~metadata_service.opening.CannotOpen` and :class:`SettingsError`."""
    if not settings.cassandra:
        return SQLiteStore(settings.metadata_file)
    replication = replication_of(settings.cassandra_replication)
    from metadata_service.cassandra import CassandraStore  # the driver is large, and not needed without it
    from metadata_service.cassandra_connection import CassandraSettings

    return await CassandraStore.open(
        CassandraSettings(
            contact_points=tuple(point.strip() for point in settings.cassandra.split(",") if point.strip()),
            port=settings.cassandra_port,
            keyspace=settings.cassandra_keyspace,
            replication=replication,
            scope=settings.cassandra_scope,
            datacenter=settings.cassandra_datacenter,
            user=settings.cassandra_user,
            password=settings.cassandra_password,
            strict=settings.cassandra_strict,
        ),
        collect_seconds=COLLECT_SECONDS,
    )
