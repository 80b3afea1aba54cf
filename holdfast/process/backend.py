"""A backend process: a node of a backend cluster that serves calls and publishes its address in heartbeats.

:class:`BackendRole` combines a node on any journal with its cluster's entries in any store.  :func:`run_backend` runs
it on one machine, with the entries in the SQLite file of the data folder and the journal beside it: one process that
owns all shards, or several that share them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from backend.cluster import metrics
from backend.cluster.liveness import WATCH_SECONDS
from backend.cluster.load import Load
from backend.cluster.member import Member
from backend.cluster.reporter import Reporter
from backend.journal.local.log import LogSettings
from backend.node import Node
from backend.resolver import StoreResolver, StoreStreamResolver
from backend.rpc.address import UNIX_PATH_BYTES_MAX, Address, ServerTls
from backend.rpc.cluster_client import ClusterBackend, nodes_of
from backend.rpc.server import BackendServer, serve_backend
from holdfast import __version__
from holdfast.heap import freeze_heap
from holdfast.process.manager import Managing, rule_of
from holdfast.process.node import meter_storage, now_ms, open_node
from holdfast.runtime.data_folder import NODE
from holdfast.runtime.errors import CannotStart
from holdfast.runtime.observability import Observability
from holdfast.runtime.tracing import start_tracing
from holdfast.settings import Settings
from metadata_service.clusters.directory import ClusterDirectory
from metadata_service.models import FIRST_CLUSTER
from metadata_service.sqlite.store import SQLiteStore
from metadata_service.store import MemberStore

if TYPE_CHECKING:
    from telemetry.spans import Tracing

LEAVE_SECONDS: Final = 60.0
"""Timeout of the hand-over of shards before a node ends; other nodes take over the remaining ones afterwards."""


class BackendRole:
    """A served node that is a member of its cluster.  Created by :meth:`start`."""

    def __init__(self, node: Node, server: BackendServer, member: Member) -> None:
        self.node = node
        self.member = member
        self.address = server.address
        """Listening address, with the actual port."""
        self._server = server

    @classmethod
    async def start(
        cls,
        name: str,
        node: Node,
        entries: MemberStore,
        *,
        listen: Address,
        secret: bytes,
        reached: str | None = None,
        tls: ServerTls | None = None,
        load: Load | None = None,
        reporter: Reporter | None = None,
        expected: Collection[str] = (),
        tracing: Tracing | None = None,
    ) -> BackendRole:
        """Serve the node to callers that know the ``secret``, and join the cluster.

        ``reached``: address for the heartbeat, if others do not reach the node where it listens.  ``load``,
        ``reporter`` and ``expected``: see :class:`~backend.cluster.member.Member`.  ``tracing`` makes the spans of
        sampled calls.  The caller closes the node, after :meth:`close`.  Raises :class:`CannotStart`.
        """
        try:
            server = await serve_backend(
                node,
                secret=secret,
                path=listen.path or None,
                host=listen.host or None,
                port=listen.port,
                name=name,
                tls=tls,
                tracing=tracing,
            )
        except OSError as error:
            raise CannotStart(f"{listen} cannot be listened on: {error.strerror}") from error
        address = str(server.address) if reached is None else reached
        member = Member(
            *(name, node, entries, now_ms, address),
            load=load,
            reporter=reporter,
            observe_seconds=WATCH_SECONDS if listen.host else 0.0,
            expected=expected,
            callers=lambda: server.callers,
            release=__version__,
        )
        member.start()
        return cls(node, server, member)

    async def close(self, drain_seconds: float, *, hand_over: bool) -> None:
        """Accept no more calls, answer those in progress, and leave the cluster.

        ``hand_over``: first give all shards to other nodes, so that they stay available.  Otherwise, or if no other
        node lives, they wait for the next start of this node, or for another node's takeover.
        """
        if hand_over:
            await self.member.leave(LEAVE_SECONDS)
        else:
            await self.member.stop()
        self.node.drain()
        await self._server.drain(drain_seconds)
        await self.member.stop()


class Sockets:
    """Unix sockets in the data folder.  Processes that share the folder find them by name alone."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._short: str | None = None

    def at(self, name: str) -> Address:
        """Return the address of a socket, independent of the length of the folder's path."""
        path = os.fspath(self._data / name)
        if len(os.fsencode(path)) > UNIX_PATH_BYTES_MAX:
            if self._short is None:
                folder = os.open(self._data, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)  # open for the process's life
                self._short = f"/proc/self/fd/{folder}"
            path = f"{self._short}/{name}"
        return Address(path=path)

    def reach(self, address: str) -> Address:
        """Resolve an address from a heartbeat; one in this folder is relative to it."""
        parsed = Address.parse(address)
        return self.at(parsed.path) if parsed.path and not parsed.path.startswith("/") else parsed


class BackendParameters(NamedTuple):
    """Parameters of one backend process of a machine."""

    name: str
    """Name of the process, for the logs of others."""
    node: str
    """Name of the node in the cluster's entries, and in the names of its logs."""
    nodes: Sequence[str]
    """All nodes that exist while this one runs; the first of them takes over the shards of former ones."""
    listen: Address
    reached: str
    """Address for the heartbeat; see :meth:`Sockets.reach`."""


def alone(listen: Address) -> BackendParameters:
    """Parameters of the only backend of a data folder, at any listening address."""
    reached = Address(path=os.path.abspath(listen.path)) if listen.path else listen
    return BackendParameters("backend", NODE, (NODE,), listen, str(reached))


def in_folder(data: Path, name: str, node: str, nodes: Sequence[str]) -> BackendParameters:
    """Parameters of a backend whose socket is in the data folder."""
    socket = f"{name}.sock"
    return BackendParameters(name, node, nodes, Sockets(data).at(socket), str(Address(path=socket)))


async def run_backend(
    settings: Settings,
    backend: BackendParameters,
    secret: bytes,
    stop: asyncio.Event,
    started: Callable[[BackendRole], None],
    observed: Observability,
    *,
    hand_over: Callable[[], bool] = lambda: True,
) -> int:
    """Serve the journal to frontends until ``stop``; returns the exit code: 3 if it cannot continue.

    ``hand_over`` is called at the stop; it returns True if other nodes continue and should get the shards.  Raises
    :class:`CannotStart` and :class:`~metadata_service.store.StoreError`.
    """
    async with AsyncExitStack() as stack:
        tracing = await start_tracing(settings)
        if tracing is not None:
            stack.push_async_callback(tracing.close)
        store = SQLiteStore(settings.metadata_file)
        stack.push_async_callback(store.close)
        nodes = nodes_of(store.entries, Sockets(settings.data).reach)
        peers = await ClusterBackend.connect(nodes, secret=secret, name=backend.name)
        stack.push_async_callback(peers.close)
        resolver = StoreResolver(store.queues, settings)
        node = await open_node(
            *(settings, store, resolver),
            name=backend.node,
            nodes=backend.nodes,
            peers=peers,
            streams=StoreStreamResolver(store.streams),
        )
        stack.push_async_callback(node.close)
        storage = meter_storage(settings, node, store.queues, store.streams, store.topics)
        if storage is not None:
            stack.push_async_callback(storage.close)
        role = await BackendRole.start(
            backend.node,
            node,
            store.entries,
            listen=backend.listen,
            secret=secret,
            reached=backend.reached,
            load=Load(node, settings.journal_folder),
            reporter=Reporter(store.clusters, FIRST_CLUSTER, now_ms),
            expected=backend.nodes,
            tracing=tracing,
        )
        if len(backend.nodes) > 1:  # with a single backend there is no gain in splitting a queue
            managing = Managing(
                store, ClusterDirectory(store.clusters), peers, resolver, backend.name, rule_of(settings)
            )
            stack.push_async_callback(managing.close)
            await managing.start()
        metrics.register(
            observed.registry, node, settings.journal_folder, low_water_bytes=LogSettings().low_water_bytes
        )
        metrics.register_member(observed.registry, role.member)
        started(role)
        freeze_heap()
        observed.health.status = "ready"
        observed.health.not_ready_reason = lambda: "draining" if stop.is_set() else "" if node.ready else "recovering"
        waiting: list[asyncio.Future[Any]] = [asyncio.ensure_future(stop.wait()), node.lost]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        waiting[0].cancel()
        await role.close(settings.drain_seconds, hand_over=not node.lost.done() and hand_over())
        return 3 if node.lost.done() else 0
