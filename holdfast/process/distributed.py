"""``holdfast backend`` and ``holdfast frontend`` on many machines, with all state in Cassandra.

A backend is a node of its cluster (:mod:`backend.cluster.member`): it is assigned shards, and hands them over before it
ends. A frontend finds the nodes by their heartbeats, and the queues in Cassandra or through the metadata nodes.  Only
the audit log is on the machine's own disk.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from typing import Any, Protocol, TypeVar

from auth.encryption.encrypted_store import sealed
from auth.encryption.keyring import Keyring
from auth.lookup import Credentials
from backend.api import BackendError
from backend.cluster import metrics
from backend.cluster.liveness import clock_at_start, living, recovered_by_others
from backend.cluster.load import Load
from backend.cluster.reporter import Reporter
from backend.journal.cassandra.table_interface import Unanswered
from backend.node import Node, NodeSettings
from backend.recovery.replay import JournalDamaged
from backend.rpc.address import Address
from backend.rpc.cluster_client import ReadNodes, nodes_of
from backend.rpc.cluster_router import ClusterRouter
from backend.serving.node_clock import SteadyClock
from frontend.queues.queues import Queues
from frontend.services import Services
from holdfast import __version__, logs
from holdfast.http.listener import bind
from holdfast.process.backend import BackendRole
from holdfast.process.embedded import TRIES, StoreResolver, frontend_settings, meter_storage, now_ms, start_sealer
from holdfast.process.frontend import Changes, Frontend, run_frontend
from holdfast.process.serve import CannotStart, allow_open_files, certificate_of, log, settle
from holdfast.process.standalone import run, stop_of_signals
from holdfast.runtime.data_folder import Claim
from holdfast.runtime.keyring import naming_secret, open_shared_keyring
from holdfast.runtime.observability import Observed, tell_usage
from holdfast.runtime.peer_tls import PeerTls, advertised, listening, peer_tls
from holdfast.runtime.root_tenant import ensure_root, take_turn
from holdfast.runtime.stores import Stores
from holdfast.runtime.tracing import start_tracing
from holdfast.settings import Settings, SettingsError, cluster_secret
from metadata_service.clusters.directory import Fleet
from metadata_service.nodes.cached_client import MetadataClient
from metadata_service.nodes.change_feed import ChangeWatch
from metadata_service.nodes.invalidation import Hints
from metadata_service.store import ConditionFailed, MetadataStore

LOOK_SECONDS = 0.5
"""Minimum time between two reads of the backend clusters' reports."""


def backend(settings: Settings) -> int:
    """Run a node of the cluster until a signal; returns the exit code: 3 if it cannot continue.

    Raises as :func:`holdfast.process.serve.serve`.
    """
    secret = cluster_secret(settings)
    if not settings.cassandra:
        raise SettingsError("a backend of a cluster keeps its journal in Cassandra: cassandra has to say where that is")
    if settings.backend_node is None:
        raise SettingsError("backend_node has to name this backend among those of its cluster")
    listen = listening(settings)
    if listen.path:
        raise SettingsError("a backend of a cluster is reached from other machines: listen has to be host:port")
    address = advertised(settings, listen)
    logs.set_up(settings, "backend", settings.backend_node)
    tls = peer_tls(settings)
    return run(_backend(settings, settings.backend_node, listen, address, secret, tls))


async def _backend(
    settings: Settings, name: str, listen: Address, address: Address, secret: bytes, tls: PeerTls
) -> int:
    stop = stop_of_signals()
    async with _Closing() as closing:
        observed = closing.later(await Observed.start(settings, "backend", name))
        health = observed.health
        tracing = await start_tracing(settings)
        if tracing is not None:
            closing.later(tracing)
        stores = closing.later(Stores(settings, tls))
        metadata, entries = await stores.metadata(), await stores.entries()
        clock = SteadyClock()
        alive, _ = await asyncio.gather(living(entries, name), clock_at_start(entries, name, clock))
        if name in alive:
            raise CannotStart(
                f"another process is backend {name} of cluster {settings.cluster}, and lives: give each a backend_node "
                "of its own (two of the same name would take each other's shards away)"
            )
        own = (await metadata.register_cluster(settings.cluster)).number
        fleet = closing.later(Fleet(metadata))
        await fleet.start()
        addresses = _Addresses(fleet)
        nodes = nodes_of(entries)
        elsewhere = closing.later(
            ClusterRouter(
                lambda number: nodes if number == own else addresses.of(number),
                addresses.numbers,
                secret=secret,
                name=name,
                tls=tls.client,
            )
        )
        frontend = frontend_settings(settings)
        resolver = StoreResolver(metadata, frontend.region)
        journal = await stores.journal()
        for left in reversed(range(TRIES)):
            try:
                node = closing.later(
                    await Node.start_on(
                        journal,
                        entries,
                        resolver,
                        clock=clock,
                        settings=NodeSettings(name, memory_bytes=settings.memory_limit, shards=(), cluster=own),
                        elsewhere=elsewhere,
                    )
                )
                break
            except (BackendError, JournalDamaged, Unanswered, ConditionFailed) as error:
                if not left or not isinstance(error, ConditionFailed):
                    raise CannotStart(f"the journal of {name} in Cassandra cannot be opened: {error}") from error
                await recovered_by_others(entries, name)
        services = Services(frontend, Credentials(metadata), MetadataClient(metadata), node)
        resolver.queues.set_result(Queues(services))
        storage = meter_storage(settings, node, metadata)
        if storage is not None:
            closing.later(storage)
            closing.later(start_sealer(settings))
            tell_usage(observed.registry, settings)
        role = await BackendRole.start(
            name,
            node,
            entries,
            listen=listen,
            secret=secret,
            reached=str(address),
            tls=tls.server,
            load=Load(node),
            reporter=Reporter(metadata, settings.cluster, now_ms),
            tracing=tracing,
        )
        metrics.tell(observed.registry, node)
        metrics.tell_member(observed.registry, role.member)
        told = logs.facts(version=__version__, cluster=settings.cluster, address=address, pid=os.getpid())
        log.info("started %s", told)
        logs.say(f"Backend {name} of cluster {settings.cluster} is at {address}.")
        settle()
        health.status = "ready"
        health.hindered = lambda: "" if node.ready else "recovering"
        waiting: list[asyncio.Future[Any]] = [asyncio.ensure_future(stop.wait()), node.lost]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        waiting[0].cancel()
        health.status = "draining"
        await role.close(settings.drain_seconds, hand_over=not node.lost.done())
        code = 3 if node.lost.done() else 0
    log.info("stopped")
    return code


class _Addresses:
    """Addresses of the backend clusters' nodes, from the clusters' reports."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._looked_at = 0.0

    def numbers(self) -> list[int]:
        """Return the numbers of all clusters."""
        return [known.cluster.number for known in self._fleet.known()]

    def of(self, number: int) -> ReadNodes:
        async def read() -> dict[str, Address]:
            await self._look()
            return {name: Address.parse(address) for name, address in self._fleet.nodes(number).items()}

        return read

    async def _look(self) -> None:
        """Refresh at once, shared by concurrent callers: a caller may know of a node that has just started."""
        now = asyncio.get_running_loop().time()
        if now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            await self._fleet.look()


def frontend(settings: Settings) -> int:
    """Serve clients until a signal; returns the exit code.  Raises as :func:`holdfast.process.serve.serve`."""
    secret = cluster_secret(settings)
    logs.set_up(settings, "frontend")
    tls = peer_tls(settings)
    claim = Claim(settings.data, shared=True) if settings.audit_file is None else None
    try:
        allow_open_files(settings.connections_limit)
        return run(_frontend(settings, secret, tls))
    finally:
        if claim is not None:
            claim.release()


async def _frontend(settings: Settings, secret: bytes, tls: PeerTls) -> int:
    stop = stop_of_signals()
    certificate = certificate_of(settings)
    sockets = bind(settings.host, settings.port)
    name = f"frontend {os.uname().nodename}:{sockets[0].getsockname()[1]}"
    async with _Closing() as closing:
        observed = closing.later(await Observed.start(settings, "frontend"))
        stores = closing.later(Stores(settings, tls))
        metadata = await stores.metadata()
        keyring = await prepare_shared(settings, metadata)
        fleet = closing.later(Fleet(metadata))
        await fleet.start()
        addresses = _Addresses(fleet)
        backend = ClusterRouter(addresses.of, addresses.numbers, secret=secret, name=name, tls=tls.client)
        cache, changes = _following(settings, metadata)
        service = await Frontend.over(settings, metadata, keyring, cache, changes, backend, fleet=fleet)
        if certificate is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, certificate.reload)

        def started(_: object) -> None:
            port = sockets[0].getsockname()[1]
            log.info("started %s", logs.facts(version=__version__, port=port, pid=os.getpid()))

        code = await run_frontend(
            settings, service, certificate, sockets, stop, started, observed, lingers=lambda: True
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
    secrets = sealed(store, keyring)
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
    """Implements :class:`holdfast.process.frontend.Changes` by polling for changes, and by invalidation messages."""

    def __init__(self, watch: ChangeWatch, hints: Hints | None) -> None:
        self._watch = watch
        self._hints = hints

    async def start(self) -> None:
        await self._watch.start()
        if self._hints is not None:
            self._hints.start()

    async def close(self) -> None:
        if self._hints is not None:
            await self._hints.close()
        await self._watch.close()


def _following(settings: Settings, store: MetadataStore) -> tuple[MetadataClient, Changes]:
    """Make a cache of the queues, and the source of changes that other processes make."""
    metadata = MetadataClient(store)
    hints = Hints(settings.metadata_hints, metadata) if settings.metadata_hints is not None else None
    return metadata, _Learning(ChangeWatch(store, metadata), hints)


class _Closable(Protocol):
    async def close(self) -> None: ...


T = TypeVar("T", bound=_Closable)


class _Closing(AsyncExitStack):
    """Closes opened resources in reverse order."""

    def later(self, opened: T) -> T:
        self.push_async_callback(opened.close)
        return opened
