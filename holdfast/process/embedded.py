"""The embedded service: metadata in SQLite, a journal on the local disk, and one frontend, all in one process."""

from __future__ import annotations

import logging
import os
import socket
import time
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from auth.audit import AuditFile, AuditLog
from auth.credentials import AccessKey
from auth.encryption.encrypted_store import encrypted
from auth.encryption.keyring import Keyring
from auth.limits import parse_limits
from auth.lookup import Credentials
from backend.api import SHARDS
from backend.cluster import metrics
from backend.cluster.load import Load
from backend.cluster.storage_meter import StorageMeter
from backend.journal.local.log import LogSettings
from backend.node import Node
from backend.resolver import StoreResolver, StoreStreamResolver
from billing.metering.meter import Meter
from billing.metering.spool import waiting
from billing.reports.reader import Reader
from frontend.alarm_keeper import Keeper
from frontend.alarms.alarms import Alarms
from frontend.alarms.webhooks import Webhooks
from frontend.app import FrontendApp, create_app
from frontend.document_jobs import Documents
from frontend.push.endpoint import Endpoints
from frontend.push.pushers import Pushers, PushStore
from frontend.rest.tenant_removal import finish_deletions
from frontend.services import Services
from frontend.settings import FrontendSettings
from frontend.usage_stream import UsageStream
from holdfast import __version__
from holdfast.http.certificate import Certificate
from holdfast.kafka.listener import KafkaClients
from holdfast.networks import parse_networks
from holdfast.process.node import meter_storage, open_node
from holdfast.runtime.declared.resources import declare
from holdfast.runtime.errors import CannotStart
from holdfast.runtime.frontend_metrics import register_frontend_metrics
from holdfast.runtime.keyring import naming_secret
from holdfast.runtime.python import python
from holdfast.runtime.tracing import start_tracing
from holdfast.runtime.usage_upload import outbox_of, start_uploader
from holdfast.settings import Settings
from metadata_service.models import ClusterReport, ReportedNode
from metadata_service.nodes.cached_client import MetadataClient
from metadata_service.nodes.cached_streams import StreamClient
from metadata_service.nodes.cached_topics import TopicClient
from metadata_service.sqlite.store import SQLiteStore
from metadata_service.store import AlarmStore, DocumentStore, StreamStore
from ratelimit.address import MEMORY
from ratelimit.limiter import BaseLimiter, Limiter
from telemetry.metrics import Registry

if TYPE_CHECKING:
    from auth.tokens.oidc import Oidc

logger = logging.getLogger("holdfast.usage")


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


def open_audit(settings: Settings) -> AuditLog:
    """Open the audit log.  Raises :class:`CannotStart`."""
    try:
        return AuditLog(AuditFile(settings.audit_path))
    except OSError as error:
        raise CannotStart(f"the audit log {settings.audit_path} cannot be written: {error.strerror}") from error


def count_usage(services: Services, settings: Settings, store: DocumentStore, *, uploads: bool = True) -> None:
    """Start metering, if the settings enable it; ``uploads``: and upload the records to the lake.

    Raises :class:`CannotStart`.
    """
    if settings.usage == "off":
        if settings.usage_stream is not None:
            raise CannotStart('usage_stream needs usage records: set usage = "on", or remove usage_stream')
        if uploads:
            _log_what_waits(settings)
        return
    try:
        services.meter = Meter.start(settings.usage_folder, os.uname().nodename)
    except OSError as error:
        raise CannotStart(f"usage cannot be counted in {settings.usage_folder}: {error.strerror}") from error
    services.meter.run()
    services.lake = Reader(settings.lake, python())
    services.documents = Documents(store, services.lake, services.clock)
    if not uploads:
        return
    if settings.usage_stream is None:
        services.uploader = start_uploader(settings)
    else:
        account, outbox = settings.usage_stream_account or settings.account, outbox_of(settings)
        published = UsageStream(services, outbox, account, settings.usage_stream, settings.kafka_partitions)
        services.publisher = published
        services.uploader = start_uploader(settings, outbox, published.wake)


def _log_what_waits(settings: Settings) -> None:
    """Log usage that was recorded before metering was disabled, and is not uploaded."""
    found = waiting(settings.usage_folder)
    if found.files:
        logger.warning(
            '%d usage files in %s are not uploaded: set usage = "on", or upload them with '
            "`python -m billing.lake.upload %s LAKE`",
            found.files,
            settings.usage_folder,
            settings.usage_folder,
        )


def keep_alarms(services: Services, settings: Settings, store: AlarmStore) -> None:
    """Enable tenants' alarms, if the settings do, and stand for election as the process that evaluates them.

    To be called before anything is served; closed with the services.
    """
    if settings.alarms == "off" or services.keyring is None:
        return
    webhooks = Webhooks(parse_networks(settings.webhook_networks))
    services.alarms = Alarms(store, services.keyring, webhooks, services.clock)
    name = f"{os.uname().nodename}:{os.getpid()}"
    services.keeper = Keeper(services, services.alarms, name, seconds=settings.alarm_seconds)


def push_messages(services: Services, settings: Settings, store: PushStore, *, alone: bool) -> None:
    """Enable the push of queues' messages, if the settings do.  ``alone``: this process is the only frontend.

    To be called before anything is served; closed with the services.
    """
    if settings.push == "off":
        return
    endpoints = Endpoints(parse_networks(settings.webhook_networks))
    name = f"{os.uname().nodename}:{os.getpid()}"
    services.pusher = Pushers(services, store, endpoints, name, alone=alone)


_SAME_SETTINGS = {field.name for field in fields(FrontendSettings)}.intersection(Settings.__struct_fields__) - {
    "encryption",
    "default_limits",
    "push",
    "webhook_networks",
}
"""Settings of a frontend that are the same as the service's."""


def frontend_settings(settings: Settings, processes: int = 1) -> FrontendSettings:
    """Return the settings of one of ``processes`` frontends."""
    return FrontendSettings(
        **{name: getattr(settings, name) for name in _SAME_SETTINGS},
        encryption=settings.encryption == "on",
        push=settings.push == "on",
        webhook_networks=tuple(str(network) for network in parse_networks(settings.webhook_networks)),
        default_limits=parse_limits(settings.default_limits),
        processes=processes,
    )


def limiter_of(settings: Settings, processes: int = 1) -> BaseLimiter[Any]:
    """Make the limiter that checks calls against tenants' rates, for one of ``processes``; not started yet."""
    if settings.rate_limit_storage == MEMORY:
        return Limiter(processes=processes)
    from ratelimit.shared import SharedLimiter  # loads the Redis client, which nothing else needs

    return SharedLimiter(settings.rate_limit_storage, processes=max(processes, settings.rate_limit_processes))


def oidc_of(settings: Settings) -> Oidc | None:
    """Make the validator of the trusted issuer's tokens, if the settings have an issuer."""
    trusted = settings.oidc()
    if trusted is None:
        return None
    from auth.tokens.issuer_documents import oidc_client  # loads an HTTP client, which nothing else needs
    from auth.tokens.oidc import Oidc

    return Oidc(trusted, oidc_client(), clock=time.monotonic)
