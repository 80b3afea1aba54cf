"""The embedded service: metadata in SQLite, a journal on the local disk, and one frontend, all in one process."""

from __future__ import annotations

import socket
import time
from pathlib import Path

from auth.credentials import AccessKey
from auth.encryption.encrypted_store import encrypted
from auth.encryption.keyring import Keyring
from auth.lookup import Credentials
from backend.api import SHARDS
from backend.cluster import metrics
from backend.cluster.load import Load
from backend.cluster.storage_meter import StorageMeter
from backend.journal.local.log import LogSettings
from backend.node import Node
from backend.resolver import StoreResolver, StoreStreamResolver
from frontend.app import FrontendApp, create_app
from frontend.rest.tenant_removal import finish_deletions
from frontend.services import Services
from holdfast import __version__
from holdfast.http.certificate import Certificate
from holdfast.kafka.listener import KafkaClients
from holdfast.process.node import meter_storage, open_node
from holdfast.runtime.declared.resources import declare
from holdfast.runtime.errors import CannotStart
from holdfast.runtime.frontend_metrics import register_frontend_metrics
from holdfast.runtime.frontend_services import (
    count_usage,
    frontend_settings,
    keep_alarms,
    limiter_of,
    oidc_of,
    open_audit,
    push_messages,
)
from holdfast.runtime.keyring import naming_secret
from holdfast.runtime.tracing import start_tracing
from holdfast.settings import Settings
from metadata_service.models import ClusterReport, ReportedNode
from metadata_service.nodes.cached_client import MetadataClient
from metadata_service.nodes.cached_streams import StreamClient
from metadata_service.nodes.cached_topics import TopicClient
from metadata_service.sqlite.store import SQLiteStore
from metadata_service.store import StreamStore
from telemetry.metrics import Registry


class Embedded:
    """Implements :class:`holdfast.process.serve.ClientService`."""

    def __init__(
        self, settings: Settings, app: FrontendApp, node: Node, storage: StorageMeter | None, streams: StreamStore
    ) -> None:
        self._settings = settings
        self.app = app
        self.kafka = KafkaClients(settings, app, streams)
        self.failed = node.lost
        self._node = node
        self._storage = storage

    def register_metrics(self, registry: Registry) -> None:
        register_frontend_metrics(registry, self.app.services, self._settings, lambda: self.kafka.connections)
        metrics.register(
            registry,
            self._node,
            self._settings.journal_folder,
            low_water_bytes=LogSettings().low_water_bytes,
        )

    def serve_kafka(self, sockets: list[socket.socket], certificate: Certificate | None) -> None:
        self.kafka.start(sockets, certificate)

    async def drain(self) -> None:
        self.kafka.start_drain()  # while HTTP's connections drain, so that both have the same time
        self.app.start_drain()
        self._node.drain()

    async def close(self) -> None:
        await self.kafka.close()
        await self.app.drain()
        await self.app.services.stop_publishing()
        if self.app.services.pusher is not None:
            await self.app.services.pusher.close()  # while delivered messages can still be deleted
        if self._storage is not None:
            await self._storage.close()
        await self._node.close()
        await self.app.services.close()


async def compose(settings: Settings, store: SQLiteStore, root: AccessKey, keyring: Keyring) -> Embedded:
    """Recover the journal and start the frontend on it.  Raises :class:`CannotStart`."""
    frontend = frontend_settings(settings)
    resolver = StoreResolver(store.queues, frontend)
    streams = StoreStreamResolver(store.streams)
    credentials = Credentials(encrypted(store.credentials, keyring))
    naming = await naming_secret(credentials.store)
    node = await open_node(settings, store, resolver, streams=streams)
    try:
        audit = open_audit(settings)
    except CannotStart:
        await node.close()
        raise
    services = Services(
        frontend,
        credentials,
        MetadataClient(store.queues),
        node,
        streams=StreamClient(store.streams),
        topics=TopicClient(store.topics),
        serving=lambda: node.ready,
        damaged=lambda: len(node.damage),
        audit=audit,
        keyring=keyring,
        limiter=limiter_of(settings),
        oidc=oidc_of(settings),
        naming=naming,
        alone=Alone(node, settings.journal_folder).report,
    )
    keep_alarms(services, settings, store.alarms)
    push_messages(services, settings, store, alone=True)
    try:
        services.tracing = await start_tracing(settings)
        count_usage(services, settings, store.documents)
        await services.limiter.start()
        await finish_deletions(services)
        await declare(services, root, settings.queues, settings.topics)
        storage = meter_storage(settings, node, store.queues, store.streams, store.topics)
    except BaseException:
        await node.close()
        await services.close()
        raise
    if services.keeper is not None:
        services.keeper.start()
    if services.publisher is not None:
        services.publisher.start()
    if services.pusher is not None:
        services.pusher.start()
    return Embedded(settings, create_app(services), node, storage, store.streams)


class Alone:
    """Cluster report of a node that is the only one."""

    def __init__(self, node: Node, folder: Path) -> None:
        self._node = node
        self._load = Load(node, folder)

    async def report(self) -> ClusterReport:
        """Return a report like that of a cluster's manager.

        Raises :class:`~backend.api.Unavailable` while the node restarts.
        """
        await self._load.measure()
        entry, shards = self._node.ownership.entry, len(self._node.owned)
        shown = ReportedNode(
            entry.node,
            incarnation=entry.incarnation,
            shards=shards,
            cpu=self._load.cpu,
            storage=self._load.storage,
            release=__version__,
        )
        return ClusterReport(
            cluster=0,
            term=0,
            count=0,
            time_ms=int(time.time() * 1000),
            utilisation=max(self._load.cpu, self._load.storage),
            manager=entry.node,
            nodes=(shown,),
            unassigned=SHARDS - shards,
            busy=self._load.busy,
        )
