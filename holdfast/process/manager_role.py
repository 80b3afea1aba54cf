"""``holdfast manager``: the out-cluster manager as a process (:mod:`holdfast.process.manager`).

It needs the metadata, and connections to the nodes of all backend clusters, which it finds by their reports.
"""

from __future__ import annotations

import os
from contextlib import AsyncExitStack

from backend.resolver import StoreResolver
from backend.rpc.address import Address
from backend.rpc.cluster_client import ReadNodes
from backend.rpc.cluster_router import ClusterRouter
from holdfast import __version__, logs
from holdfast.heap import freeze_heap
from holdfast.process.manager import Managing, rule_of
from holdfast.process.serve import log, run, stop_of_signals
from holdfast.runtime.observability import Observability
from holdfast.runtime.peer_tls import PeerTls, peer_tls
from holdfast.runtime.stores import Stores
from holdfast.settings import Settings, SettingsError, cluster_secret, is_distributed
from metadata_service.clusters.directory import ClusterDirectory


def manager(settings: Settings) -> int:
    """Run an out-cluster manager until a signal; returns the exit code.

    Raises :class:`SettingsError`, :class:`~metadata_service.store.StoreError` and
    :class:`~holdfast.http.certificate.CertificateUnusable`.
    """
    if not is_distributed(settings):
        raise SettingsError(
            "a manager needs cassandra or metadata_nodes: it is for a service on many machines; on one machine "
            "the backends do its work"
        )
    secret = cluster_secret(settings)
    logs.set_up(settings, "manager")
    return run(_manager(settings, secret, peer_tls(settings)))


async def _manager(settings: Settings, secret: bytes, tls: PeerTls) -> int:
    stop = stop_of_signals()
    name = f"{os.uname().nodename}:{os.getpid()}"
    async with AsyncExitStack() as closing:
        observed = await Observability.start(settings, "manager", name)
        closing.push_async_callback(observed.close)
        stores = Stores(settings, tls)
        closing.push_async_callback(stores.close)
        metadata = await stores.metadata()
        fleet = ClusterDirectory(metadata.clusters)
        router = ClusterRouter(
            lambda number: _nodes(fleet, number),
            lambda: [known.cluster.number for known in fleet.known()],
            secret=secret,
            name=name,
            tls=tls.client,
        )
        closing.push_async_callback(router.close)
        resolver = StoreResolver(metadata.queues, settings)
        managing = Managing(metadata, fleet, router, resolver, name, rule_of(settings))
        closing.push_async_callback(managing.close)
        await managing.start()
        log.info("started %s", logs.facts(version=__version__, manager=name, pid=os.getpid()))
        logs.say(f"Manager {name} is running.")
        freeze_heap()
        observed.health.status = "ready"
        await stop.wait()
    log.info("stopped")
    return 0


def _nodes(fleet: ClusterDirectory, number: int) -> ReadNodes:
    async def read() -> dict[str, Address]:
        return {name: Address.parse(address) for name, address in fleet.nodes(number).items()}

    return read
