"""``holdfast metadata``: run one metadata node until its drain.

The node's store is Cassandra, or the SQLite file of its data folder.  Nodes on one machine share the folder, and each
opens the file.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket

import uvloop

from holdfast import __version__, logs
from holdfast.heap import freeze_heap
from holdfast.http.certificate import Certificate
from holdfast.http.listener import bind
from holdfast.process.serve import allow_open_files, certificate_of, server_of, stop_or_quit
from holdfast.runtime.data_folder import FolderLock
from holdfast.runtime.health import Health
from holdfast.runtime.observability import Observability, register_server_metrics
from holdfast.runtime.peer_tls import peer_certificate
from holdfast.runtime.stores import open_metadata, view_of
from holdfast.settings import Settings, SettingsError, cluster_secret
from metadata_service.nodes import instruments
from metadata_service.nodes.node import MetadataNode
from metadata_service.nodes.ring import RingMember, parse_members
from telemetry.metrics import Registry

log = logging.getLogger("holdfast.process.metadata")


class _Service:
    """Implements :class:`holdfast.process.serve.Service`."""

    def __init__(self, node: MetadataNode, health: Health) -> None:
        self.app = node.app
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Never completed: an unavailable store may recover."""
        self._node = node
        self._health = health

    def register_metrics(self, registry: Registry) -> None:
        instruments.register(registry)

    async def drain(self) -> None:
        self._health.status = "draining"
        self._node.drain()

    async def close(self) -> None:
        await self._node.close()


def serve_metadata(settings: Settings) -> int:
    """Run until a signal; returns the exit code.

    Raises :class:`~holdfast.runtime.data_folder.FolderUnusable`,
    :class:`~holdfast.http.certificate.CertificateUnusable`,
    :class:`~holdfast.http.listener.CannotListen`, :class:`~holdfast.runtime.errors.CannotStart`,
    :class:`~metadata_service.store.StoreError` and :class:`~holdfast.settings.SettingsError` if the start fails.
    """
    secret = cluster_secret(settings)
    member = _own_member(settings)
    logs.set_up(settings, "metadata", member.name)
    claim = None if settings.cassandra else FolderLock(settings.data, shared=True)
    try:
        certificate = peer_certificate(settings) or certificate_of(settings)
        sockets = bind(settings.host, int(member.address.rpartition(":")[2]))
        allow_open_files(settings.connections_limit)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_run(settings, member, secret, sockets, certificate))
    finally:
        if claim is not None:
            claim.release()


def _own_member(settings: Settings) -> RingMember:
    members = {member.name: member for member in parse_members(settings.metadata_nodes)}
    if settings.metadata_node is None:
        raise SettingsError("metadata_node has to name this process in metadata_nodes")
    member = members.get(settings.metadata_node)
    if member is None:
        known = ", ".join(members) or "none"
        raise SettingsError(f"metadata_node {settings.metadata_node!r} is not among metadata_nodes ({known})")
    tls = settings.cluster_tls_cert is not None or settings.tls_cert is not None
    if member.address.startswith("https:") != tls:
        raise SettingsError(
            f"the address of {member.name} in metadata_nodes has to begin with https if there is a cluster_tls_cert or "
            "a tls_cert, else with http"
        )
    return member


async def _run(
    settings: Settings, member: RingMember, secret: bytes, sockets: list[socket.socket], certificate: Certificate | None
) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop_or_quit, stop, number)
    if certificate is not None:
        loop.add_signal_handler(signal.SIGHUP, certificate.reload)
    observed = await Observability.start(settings, "metadata", member.name)
    health = observed.health
    store = await open_metadata(settings)
    try:
        node = MetadataNode(
            store,
            view_of(settings),
            member.name,
            secret,
            full_copy=settings.metadata_full_copy,
            invalidation=settings.metadata_invalidation,
        )
        service = _Service(node, health)
        try:
            await node.start()

            def started() -> None:
                facts = logs.facts(version=__version__, url=member.address, view=node.view.mark, pid=os.getpid())
                log.info("started %s", facts)
                logs.say(f"Metadata node {member.name} is at {member.address}.")
                freeze_heap()
                health.status = "ready"

            server = server_of(settings, service, certificate, stop, started)
            service.register_metrics(observed.registry)
            register_server_metrics(observed.registry, server, certificate)
            await server.serve(sockets)
            return 0
        finally:
            await service.close()
    finally:
        await store.close()
        await observed.close()
        log.info("stopped")
