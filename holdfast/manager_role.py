"""``holdfast manager``: the out-cluster manager, as a process (:mod:`metadata_service.manager`).

It needs the metadata, and a way to the nodes of all backend clusters, which it finds by their reports.  It keeps
nothing: any number may run, of which one acts.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack

from auth.lookup import Credentials
from backend.address import Address
from backend.api import BackendError
from backend.cluster import ReadNodes
from backend.router import ClusterRouter
from backend.splits import LINGER_SECONDS, Splits
from frontend.services import Services
from frontend.sqs.queues import Queues
from holdfast import __version__, logs
from holdfast.backend_role import now_ms
from holdfast.compose import StoreResolver, frontend_settings
from holdfast.health import serve_health
from holdfast.peers import PeerTls, peer_tls
from holdfast.serve import log, settle
from holdfast.settings import Settings, SettingsError, cluster_secret, is_distributed
from holdfast.standalone import run, stop_of_signals
from holdfast.stores import Stores
from metadata_service.client import MetadataClient
from metadata_service.clusters import SplitRule
from metadata_service.election import Election
from metadata_service.fleet import Fleet
from metadata_service.manager import ActFailed, Manager
from metadata_service.store import MetadataStore, StoreError


class Managing:
    """The manager with all that it works on, over any metadata."""

    def __init__(
        self,
        metadata: MetadataStore,
        settings: Settings,
        secret: bytes,
        tls: PeerTls,
        name: str,
        rule: SplitRule | None,
    ) -> None:
        self.fleet = Fleet(metadata)
        self.router = ClusterRouter(
            lambda number: _nodes(self.fleet, number),
            lambda: [known.cluster.number for known in self.fleet.known()],
            secret=secret,
            name=name,
            tls=tls.client,
        )
        frontend = frontend_settings(settings)
        resolver = StoreResolver(metadata, frontend.region)
        services = Services(frontend, Credentials(metadata), MetadataClient(metadata), self.router)
        resolver.queues.set_result(Queues(services))
        self.election = Election(metadata, name)
        self.manager = Manager(
            metadata, self.fleet, self.election, Acts(metadata, self.router, resolver, now_ms), rule=rule
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Until ``stop``; then another one may be the manager at once.  Raises
        :class:`~metadata_service.store.StoreError`, if the metadata cannot be read at the start."""
        await self.fleet.start()
        try:
            working = asyncio.get_running_loop().create_task(self.manager.run(), name="the out-cluster manager")
            await stop.wait()
            working.cancel()
            await asyncio.wait([working])
            try:
                await self.election.resign()
            except StoreError as error:
                log.warning("the next manager has to wait until this one is missed: %s", error)
        finally:
            await self.router.close()
            await self.fleet.close()


class Acts(Splits):
    """Implements :class:`metadata_service.manager.Acts`."""

    async def finish(self, queue_id: int, *, linger_seconds: int = LINGER_SECONDS) -> bool:
        try:
            return await super().finish(queue_id, linger_seconds=linger_seconds)
        except BackendError as error:
            raise ActFailed(str(error) or type(error).__name__) from error


def manager(settings: Settings) -> int:
    """Be an out-cluster manager until a signal, and return the exit code.

    Raises :class:`SettingsError`, :class:`~metadata_service.store.StoreError` and
    :class:`~holdfast.certificate.CertificateUnusable`.
    """
    if not is_distributed(settings):
        raise SettingsError(
            "a manager needs cassandra or metadata_nodes: it is for a service on many machines; in a data folder there "
            "is one cluster of backends, which manages itself"
        )
    secret = cluster_secret(settings)
    logs.set_up(settings.log_level)
    return run(_manager(settings, secret, peer_tls(settings)))


async def _manager(settings: Settings, secret: bytes, tls: PeerTls) -> int:
    stop = stop_of_signals()
    name = f"{os.uname().nodename}:{os.getpid()}"
    async with AsyncExitStack() as closing:
        health = await serve_health(settings.health_listen)
        closing.push_async_callback(health.close)
        stores = Stores(settings, tls)
        closing.push_async_callback(stores.close)
        managing = Managing(await stores.metadata(), settings, secret, tls, name, rule_of(settings))
        log.info("started %s", logs.facts(version=__version__, manager=name, pid=os.getpid()))
        print(f"Manager {name} is there.", flush=True)
        settle()
        health.status = "ready"
        await managing.run(stop)
    log.info("stopped")
    return 0


def rule_of(settings: Settings) -> SplitRule | None:
    """When queues are split by their rates; None: never."""
    return SplitRule(partition_rate=settings.partition_rate) if settings.partition_rate else None


def _nodes(fleet: Fleet, number: int) -> ReadNodes:
    async def read() -> dict[str, Address]:
        return {name: Address.parse(address) for name, address in fleet.nodes(number).items()}

    return read
