"""Frontend processes, which serve clients by calls to backend processes (:mod:`holdfast.process.backend`).

All of them open the metadata file, so they are on one machine; they communicate by :mod:`backend.rpc.wire`.  A frontend
has no state that answers depend on: its memory has caches at most a second old, and counts of failed sign-ins.  So any
frontend can serve any call, and when one dies its clients continue with another.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import socket
from collections.abc import Awaitable, Callable
from typing import Protocol

from auth.encryption.encrypted_store import encrypted
from auth.encryption.keyring import Keyring
from auth.lookup import Credentials
from backend.api import Peer
from backend.rpc.handshake import HandshakeRefused
from frontend.app import create_app
from frontend.http.bodies import ROOM_BYTES, Room
from frontend.rest.tenant_removal import finish_deletions
from frontend.services import Services
from holdfast.heap import freeze_heap
from holdfast.http.certificate import Certificate
from holdfast.http.listener import HttpServer
from holdfast.kafka.listener import KafkaClients
from holdfast.process.serve import server_of
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
from holdfast.runtime.keyring import naming_secret, read_keyring
from holdfast.runtime.observability import Observability, register_server_metrics
from holdfast.runtime.root_tenant import operators_key
from holdfast.runtime.tracing import start_tracing
from holdfast.settings import Settings
from metadata_service.clusters.directory import ClusterDirectory
from metadata_service.nodes.cached_client import MetadataClient
from metadata_service.nodes.cached_streams import StreamClient
from metadata_service.nodes.cached_topics import TopicClient
from metadata_service.nodes.change_feed import ChangeWatch
from metadata_service.sqlite.store import SQLiteStore
from metadata_service.store import MetadataStore
from telemetry.metrics import Registry

BODIES_BYTES_MIN = 64 << 20
"""Minimum memory of each frontend for bodies being received; one process's limit is divided among the frontends."""


class RemoteBackends(Peer, Protocol):
    """Backends in other processes."""

    @property
    def connected(self) -> bool:
        """Return whether any of them can be called."""

    async def ready(self, seconds: float) -> None:
        """Wait until one can be called.  Raises :class:`~backend.rpc.handshake.HandshakeRefused`, and
        :class:`~backend.api.Unavailable`.
        """

    async def close(self) -> None: ...


class ChangeFeed(Protocol):
    """Source of changes that other processes make to queues, streams and topics."""

    async def start(self) -> None:
        """Start, before anything is cached."""

    async def close(self) -> None: ...


Connect = Callable[[SQLiteStore], Awaitable[RemoteBackends]]
"""Function that starts connecting to the backends of these metadata."""


class Frontend:
    """Implements :class:`holdfast.process.serve.Service` over backends in other processes.  Created by
    :meth:`start`."""

    def __init__(
        self, settings: Settings, services: Services, store: MetadataStore, backend: RemoteBackends, changes: ChangeFeed
    ) -> None:
        self._settings = settings
        self.app = create_app(services)
        self.kafka = KafkaClients(settings, self.app, store.streams)
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Never completed: a missing backend may recover."""
        self._services = services
        self._store = store
        self._backend = backend
        self._changes = changes

    @classmethod
    async def start(
        cls, settings: Settings, connect: Connect, *, processes: int = 1, first: bool = True, uploads: bool = True
    ) -> Frontend:
        """Start a frontend of these backends, one of ``processes`` behind one port.

        ``first``: do the work of a service's start, which is to finish interrupted deletions and to declare the queues
        of the settings.  ``uploads``: upload usage to the lake.  Raises :class:`CannotStart`,
        :class:`~auth.encryption.master_keys.KeyringError` and :class:`~metadata_service.store.StoreError`.
        """
        store = SQLiteStore(settings.metadata_file)
        fleet = ClusterDirectory(store.clusters)
        try:
            keyring = await read_keyring(settings, store)
            if keyring is None:
                raise CannotStart(f"the data folder {settings.data} has no keyring yet: start the backend first")
            await fleet.start()
            backend = await connect(store)
        except BaseException:
            await fleet.close()
            await store.close()
            raise
        metadata, streams = MetadataClient(store.queues), StreamClient(store.streams)
        topics = TopicClient(store.topics, shared=True)
        changes = ChangeWatch(store.changes, metadata, streams, topics)
        return await cls.over(
            settings,
            store,
            keyring,
            metadata,
            streams,
            topics,
            changes,
            backend,
            processes=processes,
            first=first,
            uploads=uploads,
            fleet=fleet,
        )

    @classmethod
    async def over(
        cls,
        settings: Settings,
        store: MetadataStore,
        keyring: Keyring,
        metadata: MetadataClient,
        streams: StreamClient,
        topics: TopicClient,
        changes: ChangeFeed,
        backend: RemoteBackends,
        *,
        processes: int = 1,
        first: bool = True,
        uploads: bool = True,
        fleet: ClusterDirectory | None = None,
    ) -> Frontend:
        """Start a frontend over any metadata and backends; it closes them at its end, or if it cannot start.

        ``changes`` update the caches ``metadata``, ``streams`` and ``topics`` after other processes' writes; the
        ``fleet``, which is started, assigns new queues to clusters.
        """
        try:
            credentials = Credentials(encrypted(store.credentials, keyring))
            naming = await naming_secret(credentials.store)
            audit = open_audit(settings)
        except BaseException:
            if fleet is not None:
                await fleet.close()
            await backend.close()
            await store.close()
            raise
        services = Services(
            dataclasses.replace(frontend_settings(settings, processes), shared=True),
            credentials,
            metadata,
            backend,
            streams=streams,
            topics=topics,
            serving=lambda: backend.connected,
            audit=audit,
            keyring=keyring,
            limiter=limiter_of(settings, processes),
            oidc=oidc_of(settings),
            bodies=Room(max(BODIES_BYTES_MIN, ROOM_BYTES // processes)),
            naming=naming,
            fleet=fleet,
        )
        services.tracing = await start_tracing(settings)
        keep_alarms(services, settings, store.alarms)
        push_messages(services, settings, store, alone=False)
        try:
            count_usage(services, settings, store.documents, uploads=uploads)
        except CannotStart:
            await backend.close()
            await services.close()
            await store.close()
            raise
        made = cls(settings, services, store, backend, changes)
        try:
            await made._start(settings, first)
        except BaseException:
            await made.close()
            raise
        return made

    async def _start(self, settings: Settings, first: bool) -> None:
        try:
            await self._backend.ready(math.inf)  # a backend may take long to recover a large journal
        except HandshakeRefused as error:
            raise CannotStart(f"the backend refuses this frontend: {error}") from error
        await self._services.limiter.start()
        await self._changes.start()
        if self._services.keeper is not None:
            self._services.keeper.start()
        if self._services.publisher is not None:
            self._services.publisher.start()
        if self._services.pusher is not None:
            self._services.pusher.start()
        if first:
            await finish_deletions(self._services)
            await self._declare(settings)

    async def _declare(self, settings: Settings) -> None:
        if settings.queues or settings.topics:
            root = await operators_key(self._services.credentials.store, settings.account)
            if root is None:
                raise CannotStart(
                    f"account {settings.account} has no operator's access key, with which declared queues and "
                    "topics are created; the next start of the backend creates one"
                )
            await declare(self._services, root, settings.queues, settings.topics)

    @property
    def connected(self) -> bool:
        """Return whether any backend can be called."""
        return self._backend.connected

    def register_metrics(self, registry: Registry) -> None:
        register_frontend_metrics(registry, self._services, self._settings, lambda: self.kafka.connections)

    async def drain(self) -> None:
        self.kafka.start_drain()  # while HTTP's connections drain, so that both have the same time
        self.app.start_drain()

    async def close(self) -> None:
        await self.kafka.close()
        await self.app.drain()
        await self._services.stop_publishing()
        if self._services.pusher is not None:
            await self._services.pusher.close()  # while delivered messages can still be deleted
        await self._changes.close()
        if self._services.fleet is not None:
            await self._services.fleet.close()
        await self._backend.close()
        await self._services.close()
        await self._store.close()


async def run_frontend(
    settings: Settings,
    service: Frontend,
    certificate: Certificate | None,
    sockets: list[socket.socket],
    kafka_sockets: list[socket.socket],
    stop: asyncio.Event,
    started: Callable[[HttpServer], None],
    observed: Observability,
    *,
    processes: int = 1,
    lingers: Callable[[], bool] = lambda: False,
) -> int:
    """Serve clients until ``stop``; returns the exit code.  Without sockets, connections arrive by
    :meth:`HttpServer.take` and :meth:`KafkaClients.take`.

    ``lingers`` is called at the stop; it returns True if other frontends continue, to which clients can move
    (:class:`HttpServer`).
    """
    try:

        def ready() -> None:
            started(server)
            freeze_heap()
            observed.health.status = "ready"

        if settings.kafka_port:
            service.kafka.start(kafka_sockets, certificate, processes=processes)
        server = server_of(settings, service, certificate, stop, ready, processes=processes, lingers=lingers)
        service.register_metrics(observed.registry)
        register_server_metrics(observed.registry, server, certificate)
        observed.health.not_ready_reason = lambda: (
            "draining" if stop.is_set() else "" if service.connected else "disconnected"
        )
        await server.serve(sockets)
        return 0
    finally:
        await service.close()
