"""``holdfast frontend`` on many machines, with all state in Cassandra.

It finds the nodes by their heartbeats, and the queues in Cassandra or through the metadata nodes.  Only the audit log
is on the machine's own disk.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

from auth.encryption.encrypted_store import encrypted
from auth.encryption.keyring import Keyring
from backend.rpc.cluster_router import ClusterRouter
from backend.rpc.fleet_addresses import FleetAddresses
from holdfast import __version__, logs
from holdfast.http.listener import bind
from holdfast.kafka.address import bind_kafka
from holdfast.process.frontend import ChangeFeed, Frontend, run_frontend
from holdfast.process.serve import Closing, allow_open_files, certificate_of, connections_of, log, run, stop_of_signals
from holdfast.runtime.data_folder import FolderLock
from holdfast.runtime.keyring import naming_secret, open_shared_keyring
from holdfast.runtime.observability import Observability
from holdfast.runtime.peer_tls import PeerTls, peer_tls
from holdfast.runtime.root_tenant import ensure_root, take_turn
from holdfast.runtime.stores import Stores
from holdfast.settings import Settings, cluster_secret
from metadata_service.clusters.directory import ClusterDirectory
from metadata_service.nodes.cached_client import MetadataClient
from metadata_service.nodes.cached_streams import StreamClient
from metadata_service.nodes.cached_topics import TopicClient
from metadata_service.nodes.change_feed import ChangeWatch
from metadata_service.store import MetadataStore

if TYPE_CHECKING:
    from metadata_service.nodes.invalidation import InvalidationChannel


def frontend(settings: Settings) -> int:
    """Serve clients until a signal; returns the exit code.  Raises as :func:`holdfast.process.serve.serve`."""
    secret = cluster_secret(settings)
    logs.set_up(settings, "frontend")
    tls = peer_tls(settings)
    claim = FolderLock(settings.data, shared=True) if settings.audit_file is None else None
    try:
        allow_open_files(connections_of(settings))
        return run(_frontend(settings, secret, tls))
    finally:
        if claim is not None:
            claim.release()


async def _frontend(settings: Settings, secret: bytes, tls: PeerTls) -> int:
    stop = stop_of_signals()
    certificate = certificate_of(settings)
    sockets = bind(settings.host, settings.port)
    kafka_sockets = bind_kafka(settings)
    name = f"frontend {os.uname().nodename}:{sockets[0].getsockname()[1]}"
    async with Closing() as closing:
        observed = closing.later(await Observability.start(settings, "frontend"))
        stores = closing.later(Stores(settings, tls))
        metadata = await stores.metadata()
        keyring = await prepare_shared(settings, metadata)
        fleet = closing.later(ClusterDirectory(metadata.clusters))
        await fleet.start()
        addresses = FleetAddresses(fleet)
        backend = ClusterRouter(addresses.of, addresses.numbers, secret=secret, name=name, tls=tls.client)
        cache, streams = MetadataClient(metadata.queues), StreamClient(metadata.streams)
        topics = TopicClient(metadata.topics, shared=True)
        changes = _following(settings, metadata, cache, streams, topics)
        service = await Frontend.over(
            settings, metadata, keyring, cache, streams, topics, changes, backend, fleet=fleet
        )
        if certificate is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, certificate.reload)

        def started(_: object) -> None:
            port = sockets[0].getsockname()[1]
            log.info("started %s", logs.facts(version=__version__, port=port, pid=os.getpid()))

        code = await run_frontend(
            *(settings, service, certificate, sockets, kafka_sockets, stop, started, observed), lingers=lambda: True
        )
    log.info("stopped")
    return code


async def prepare_shared(settings: Settings, store: MetadataStore) -> Keyring:
    """Create the service's secrets, and the root tenant with its key, unless an earlier start did.

    Several processes may do this concurrently and repeatedly.  Raises
    :class:`~auth.encryption.master_keys.KeyringError`,
    :class:`~metadata_service.store.StoreError` and :class:`SettingsError`.
    """
    keyring = await open_shared_keyring(settings, store)
    secrets = encrypted(store.credentials, keyring)
    await take_turn(secrets, settings.account)
    await naming_secret(secrets)  # before the key, because other processes wait for the key
    root, new = await ensure_root(secrets, settings)
    if new:
        log.info(
            "the root tenant has a new access key %s",
            logs.facts(account=root.account, access_key_id=root.access_key_id, secret="see: holdfast key show"),
        )
    return keyring


class _Learning:
    """Implements :class:`holdfast.process.frontend.ChangeFeed` by polling for changes, and by invalidation messages."""

    def __init__(self, watch: ChangeWatch, invalidation: InvalidationChannel | None) -> None:
        self._watch = watch
        self._invalidation = invalidation

    async def start(self) -> None:
        await self._watch.start()
        if self._invalidation is not None:
            self._invalidation.start()

    async def close(self) -> None:
        if self._invalidation is not None:
            await self._invalidation.close()
        await self._watch.close()


def _following(
    settings: Settings, store: MetadataStore, metadata: MetadataClient, streams: StreamClient, topics: TopicClient
) -> ChangeFeed:
    """Make the source of changes that other processes make to what these caches have."""
    invalidation = None
    if settings.metadata_invalidation is not None:
        from metadata_service.nodes.invalidation import InvalidationChannel  # loads the Redis client

        invalidation = InvalidationChannel(settings.metadata_invalidation, metadata)
    return _Learning(ChangeWatch(store.changes, metadata, streams, topics), invalidation)
