"""Stores of a process: in the data folder or in Cassandra, as the settings say.

In Cassandra there is a keyspace for the metadata, and one for each backend cluster with its logs, shards, heartbeats
and journal.  A process has one connection for all of these.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING

from backend.journal.interface import Journal
from backend.journal.local.disk import RealDisk
from backend.journal.local.journal import LocalJournal
from backend.journal.local.log import LogSettings
from holdfast.runtime.peer_tls import NO_TLS, PeerTls
from holdfast.settings import Settings, SettingsError, cluster_secret
from metadata_service.nodes.remote_store import RemoteStore
from metadata_service.nodes.ring import RingView, parse_members
from metadata_service.sqlite.store import SQLiteStore
from metadata_service.store import MemberStore, MetadataStore

if TYPE_CHECKING:  # the driver is large, and not needed without Cassandra
    from metadata_service.cassandra.driver.connection import CassandraConnection, CassandraSettings
    from metadata_service.cassandra.store import CassandraStore

COLLECT_SECONDS = 3600
"""Approximate interval at which a process removes half-created records from Cassandra."""


class Stores:
    """The stores in the settings, each opened on first use; closed together.

    In a data folder, which the caller has claimed, one file has everything: metadata and entries are the same store.
    """

    def __init__(self, settings: Settings, tls: PeerTls = NO_TLS) -> None:
        """Set up the stores.  ``tls``: for connections to the metadata nodes."""
        self._settings = settings
        self._tls = tls
        self._remote: MetadataStore | None = None
        self._connection: CassandraConnection | None = None
        self._sqlite: SQLiteStore | None = None
        self._metadata: CassandraStore | None = None
        self._entries: CassandraStore | None = None

    async def metadata(self) -> MetadataStore:
        """Open the metadata, through the metadata nodes if there are any.

        Raises :class:`~metadata_service.opening.CannotOpen` and :class:`SettingsError`.
        """
        if self._settings.metadata_nodes:
            if self._remote is None:
                secret = cluster_secret(self._settings)
                self._remote = RemoteStore(view_of(self._settings), secret, tls=self._tls.context)
            return self._remote
        if not self._settings.cassandra:
            return self._folder()
        if self._metadata is None:
            from metadata_service.cassandra.store import CassandraStore

            self._metadata = await CassandraStore.open(
                await self._connected(),
                self._settings.cassandra_keyspace,
                collect_seconds=COLLECT_SECONDS,
                wait=self._settings.schema_migration == "wait",
            )
        return self._metadata

    async def entries(self) -> MemberStore:
        """Open the logs, shards and heartbeats of the cluster.  Raises as :meth:`metadata`."""
        return (self._folder() if not self._settings.cassandra else await self._cluster()).entries

    async def journal(self) -> Callable[[], Journal]:
        """Return a function that makes the cluster's journal, called for each incarnation of a node.

        Raises as :meth:`metadata`, and :class:`~backend.journal.cassandra.table_interface.Unanswered`.
        """
        if not self._settings.cassandra:
            folder, log = self._settings.journal_folder, LogSettings(segment_bytes=self._settings.segment_bytes)
            return lambda: LocalJournal(RealDisk(), str(folder), log)
        from backend.journal.cassandra.journal import CassandraJournal
        from backend.journal.cassandra.log import CassandraLogSettings
        from backend.journal.cassandra.tables import JOURNAL, CassandraTables

        entries = await self._cluster()
        await entries.bring(JOURNAL)
        connection = entries.keyspace.connection
        tables = await CassandraTables.open(connection, entries.keyspace.name, entries.fence)
        settings = CassandraLogSettings(segment_bytes=self._settings.segment_bytes)
        return lambda: CassandraJournal(tables, settings)

    async def close(self) -> None:
        """Close the stores.  May be called repeatedly."""
        for store in (self._remote, self._metadata, self._entries, self._sqlite):
            if store is not None:
                await store.close()
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def _folder(self) -> SQLiteStore:
        if self._sqlite is None:
            self._sqlite = SQLiteStore(self._settings.metadata_file)
        return self._sqlite

    async def _cluster(self) -> CassandraStore:
        if self._entries is None:
            from metadata_service.cassandra.store import CassandraStore

            self._entries = await CassandraStore.open(
                await self._connected(),
                cluster_keyspace(self._settings),
                wait=self._settings.schema_migration == "wait",
            )
        return self._entries

    async def _connected(self) -> CassandraConnection:
        """Return a share of the connection."""
        if self._connection is None:
            from metadata_service.cassandra.driver.connection import CassandraConnection

            self._connection = await CassandraConnection.open(connection_settings(self._settings))
        return self._connection.share()


def view_of(settings: Settings) -> RingView:
    """Return the ring of metadata nodes in the settings."""
    return RingView.of(settings.metadata_nodes_version, parse_members(settings.metadata_nodes))


async def open_metadata(settings: Settings) -> MetadataStore:
    """Open the metadata directly, for a metadata node.

    Raises :class:`~metadata_service.opening.CannotOpen` and :class:`SettingsError`.
    """
    if not settings.cassandra:
        return SQLiteStore(settings.metadata_file)
    from metadata_service.cassandra.driver.connection import CassandraConnection
    from metadata_service.cassandra.store import CassandraStore

    connection = await CassandraConnection.open(connection_settings(settings))
    return await CassandraStore.open(
        connection,
        settings.cassandra_keyspace,
        collect_seconds=COLLECT_SECONDS,
        wait=settings.schema_migration == "wait",
    )


def cluster_keyspace(settings: Settings, cluster: str | None = None) -> str:
    """Return the keyspace of a backend cluster's entries and journal: of this one, or the one in the settings."""
    name = settings.cluster if cluster is None else cluster
    if settings.cassandra_cluster_keyspace and name == settings.cluster:
        return settings.cassandra_cluster_keyspace
    return f"{settings.cassandra_keyspace}_{name.replace('-', '_')}"


def connection_settings(settings: Settings) -> CassandraSettings:
    """Return the settings of the Cassandra connection.  Raises :class:`SettingsError`."""
    from metadata_service.cassandra.driver.connection import CassandraSettings

    return CassandraSettings(
        contact_points=tuple(point.strip() for point in settings.cassandra.split(",") if point.strip()),
        port=settings.cassandra_port,
        replication=replication_of(settings.cassandra_replication),
        scope=settings.cassandra_scope,
        datacenter=settings.cassandra_datacenter,
        user=settings.cassandra_user,
        password=settings.cassandra_password,
        tls=_tls(settings),
        strict=settings.cassandra_strict,
    )


def replication_of(text: str) -> dict[str, int]:
    """Parse replicas by data centre, such as ``datacenter1=3,datacenter2=3``.  Raises :class:`SettingsError`."""
    replicas: dict[str, int] = {}
    for part in text.split(","):
        found = re.fullmatch(r"\s*([A-Za-z0-9_.-]+)=([1-9][0-9]?)\s*", part)
        if not found or found[1] in replicas:
            raise SettingsError(f"cassandra_replication has to be like datacenter1=3,datacenter2=3, not {text!r}")
        replicas[found[1]] = int(found[2])
    return replicas


def _tls(settings: Settings) -> ssl.SSLContext | None:
    """TLS for connections to Cassandra; None: they are not encrypted."""
    if settings.cassandra_tls_ca is None:
        return None
    try:
        context = ssl.create_default_context(cafile=settings.cassandra_tls_ca)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"cassandra_tls_ca {settings.cassandra_tls_ca} cannot be used: {error}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if settings.cassandra_tls_cert is not None:
        try:
            context.load_cert_chain(settings.cassandra_tls_cert, settings.cassandra_tls_key)
        except (OSError, ssl.SSLError) as error:
            raise SettingsError(
                f"cassandra_tls_cert {settings.cassandra_tls_cert} and cassandra_tls_key cannot be used: {error}"
            ) from None
    return context
