"""``holdfast backend`` on many machines: a node of its cluster (:mod:`backend.cluster.member`), all state in Cassandra.

It is assigned shards, and hands them over before it ends.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from backend.api import BackendError
from backend.clocks.node_clock import SteadyClock
from backend.cluster import metrics
from backend.cluster.liveness import clock_at_start, live_nodes, recovered_by_others
from backend.cluster.load import Load
from backend.cluster.reporter import Reporter
from backend.journal.cassandra.table_interface import Unanswered
from backend.node import Node, NodeSettings
from backend.recovery.replay import JournalDamaged
from backend.resolver import StoreResolver, StoreStreamResolver
from backend.rpc.address import Address
from backend.rpc.cluster_client import nodes_of
from backend.rpc.cluster_router import ClusterRouter
from backend.rpc.fleet_addresses import FleetAddresses
from holdfast import __version__, logs
from holdfast.heap import freeze_heap
from holdfast.process.backend import BackendRole
from holdfast.process.node import TRIES, meter_storage, now_ms
from holdfast.process.serve import Closing, log, run, stop_of_signals
from holdfast.runtime.errors import CannotStart
from holdfast.runtime.observability import Observability
from holdfast.runtime.peer_tls import PeerTls, advertised, listening, peer_tls
from holdfast.runtime.stores import Stores
from holdfast.runtime.tracing import start_tracing
from holdfast.runtime.usage_upload import register_usage_metrics, start_uploader
from holdfast.settings import Settings, SettingsError, cluster_secret
from metadata_service.clusters.directory import ClusterDirectory
from metadata_service.store import ConditionFailed


def backend(settings: Settings) -> int:
    """Run a node of the cluster until a signal; returns the exit code: 3 if it cannot continue.

    Raises as :func:`holdfast.process.serve.serve`.
    """
    secret = cluster_secret(settings)
    if not settings.cassandra:
        raise SettingsError("a backend of a cluster keeps its journal in Cassandra: set cassandra")
    if settings.backend_node is None:
        raise SettingsError("backend_node has to name this backend among those of its cluster")
    listen = listening(settings)
    if listen.path:
        raise SettingsError("a backend of a cluster must be reachable from other machines: listen has to be host:port")
    address = advertised(settings, listen)
    logs.set_up(settings, "backend", settings.backend_node)
    tls = peer_tls(settings)
    return run(_backend(settings, settings.backend_node, listen, address, secret, tls))


async def _backend(
    settings: Settings, name: str, listen: Address, address: Address, secret: bytes, tls: PeerTls
) -> int:
    stop = stop_of_signals()
    async with Closing() as closing:
        observed = closing.later(await Observability.start(settings, "backend", name))
        health = observed.health
        tracing = await start_tracing(settings)
        if tracing is not None:
            closing.later(tracing)
        stores = closing.later(Stores(settings, tls))
        metadata, entries = await stores.metadata(), await stores.entries()
        clock = SteadyClock()
        alive, _ = await asyncio.gather(live_nodes(entries, name), clock_at_start(entries, name, clock))
        if name in alive:
            raise CannotStart(
                f"another process is backend {name} of cluster {settings.cluster}, and is live: give each its "
                "own backend_node (two nodes with one name would take each other's shards)"
            )
        own = (await metadata.clusters.register_cluster(settings.cluster)).number
        fleet = closing.later(ClusterDirectory(metadata.clusters))
        await fleet.start()
        addresses = FleetAddresses(fleet)
        nodes = nodes_of(entries)
        peers = closing.later(
            ClusterRouter(
                lambda number: nodes if number == own else addresses.of(number),
                addresses.numbers,
                secret=secret,
                name=name,
                tls=tls.client,
            )
        )
        resolver = StoreResolver(metadata.queues, settings)
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
                        peers=peers,
                        streams=StoreStreamResolver(metadata.streams),
                    )
                )
                break
            except (BackendError, JournalDamaged, Unanswered, ConditionFailed) as error:
                if not left or not isinstance(error, ConditionFailed):
                    raise CannotStart(f"the journal of {name} in Cassandra cannot be opened: {error}") from error
                await recovered_by_others(entries, name)
        storage = meter_storage(settings, node, metadata.queues, metadata.streams, metadata.topics)
        if storage is not None:
            closing.later(storage)
            closing.later(start_uploader(settings))
            register_usage_metrics(observed.registry, settings)
        role = await BackendRole.start(
            name,
            node,
            entries,
            listen=listen,
            secret=secret,
            reached=str(address),
            tls=tls.server,
            load=Load(node),
            reporter=Reporter(metadata.clusters, settings.cluster, now_ms),
            tracing=tracing,
        )
        metrics.register(observed.registry, node)
        metrics.register_member(observed.registry, role.member)
        started = logs.facts(version=__version__, cluster=settings.cluster, address=address, pid=os.getpid())
        log.info("started %s", started)
        logs.say(f"Backend {name} of cluster {settings.cluster} is at {address}.")
        freeze_heap()
        health.status = "ready"
        health.not_ready_reason = lambda: "" if node.ready else "recovering"
        waiting: list[asyncio.Future[Any]] = [asyncio.ensure_future(stop.wait()), node.lost]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        waiting[0].cancel()
        health.status = "draining"
        await role.close(settings.drain_seconds, hand_over=not node.lost.done())
        code = 3 if node.lost.done() else 0
    log.info("stopped")
    return code
