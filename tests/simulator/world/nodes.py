"""The backend nodes of a simulated cluster: started, killed, and restarted by their supervisors."""

from __future__ import annotations

import asyncio
from contextvars import Context
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from backend.api import BackendError
from backend.clocks.node_clock import SteadyClock
from backend.cluster.liveness import WATCH_SECONDS, clock_at_start, recovered_by_others
from backend.cluster.member import Member
from backend.journal.cassandra.journal import CassandraJournal
from backend.journal.cassandra.log import CassandraLogSettings
from backend.journal.cassandra.table_interface import ROWS_MAX
from backend.journal.local.log import LogSettings
from backend.journal.types import LogInUse
from backend.node import Node, NodeSettings
from backend.rpc.cluster_client import ClusterBackend
from backend.serving.partition import OpenPartition
from metadata_service.store import StoreError
from tests.simulator.clocks import let_the_first_be_alone
from tests.simulator.world.catalog import resolver_over
from tests.simulator.world.fleet import SimProcess
from tests.simulator.world.machines import HostTables
from tests.simulator.world.wires import ServerHost
from tests.simulator.world.world import EPOCH

if TYPE_CHECKING:
    from tests.simulator.world.cluster import ClusterWorld


class NodeProcess(ServerHost):
    """One start of a backend node."""

    def __init__(self, name: str, process: SimProcess | None) -> None:
        super().__init__(name)
        self.node: Node | None = None
        self.member: Member | None = None
        self.process = process
        """Its hold on the machine's disk, where it has one."""
        self.entries: Any = None
        """Those of logs, shards and nodes, once it has asked for them."""


class Nodes:
    """All nodes, each a process at a time."""

    def __init__(self, world: ClusterWorld) -> None:
        random = world.random
        self.names = [f"node{number}" for number in range(random.choice((3, 3, 4, 5)))]
        self.processes: dict[str, NodeProcess] = {}
        """The last process of each."""
        self.gone: set[str] = set()
        """Nodes that never restart."""
        self.offsets = dict.fromkeys(self.names, 0.0)
        """Seconds that their wall clocks are off."""
        self.first: str | None = None
        """The node that restarts first, and alone, after all were killed together."""
        self.alone_seconds = 0.0
        self.all_killed_at: float | None = None
        """The last time of that."""
        self.rates = {name: random.choice((1.0, 1.0, 0.99, 1.01)) for name in self.names}
        """Rates of their monotonic clocks."""
        self.checkpoint_segments = random.choice((1, 2, 4))
        self.segment_bytes = random.choice((4, 16)) << 10
        rows = Random(f"rows of {world.seed}")
        self.segment_rows = rows.choice((ROWS_MAX, 16, 5))
        """On the quorum journal: few, so that a segment ends with any kind of row, empty ones included."""
        self.idle_seconds = rows.choice((0.5, 0.05))
        """After so long without a commit, an empty row is written."""
        self.row_bytes = random.choice((1, 4)) << 10
        self.rows_at_once = random.choice((4, 8))
        self.payload_cache_bytes = random.choice((0, 20_000, 1 << 20))
        self.wait_for_others = False
        """A node that starts waits until others have recovered what it has left, as a real process does."""
        self._world = world

    def living(self) -> list[NodeProcess]:
        return [process for process in self.processes.values() if process.alive]

    def any_one(self, random: Random) -> NodeProcess | None:
        living = self.living()
        return random.choice(living) if living else None

    def store_of(self, process: NodeProcess) -> Any:
        """The entries, as the process reaches them."""
        if process.entries is None:
            process.entries = (
                process.process.store if process.process is not None else self._world.entries(process.name)
            )
        return process.entries

    def partitions(self) -> list[OpenPartition]:
        """All that is open anywhere."""
        return [
            partition
            for process in self.living()
            if process.node is not None and process.node._incarnation is not None
            for partition in process.node._incarnation.partitions.values()
        ]

    def undrain(self) -> None:
        """An operator lets all nodes have shards again, also those whose own word that they are back was lost."""
        world = self._world
        if world.local:
            cluster = world.store._cluster
            world.store._cluster = msgspec.structs.replace(cluster, draining=(), version=cluster.version + 1)
        else:
            world.ledger.undrain()

    def kill(self, process: NodeProcess) -> None:
        if process.alive:
            self._world.event("killed", process.name)
            if process.process is not None:
                process.process.kill()
            self._world.loop.kill(process)

    def kill_all(self) -> None:
        self.all_killed_at = self._world.loop.now
        for process in self.living():
            self.kill(process)

    async def keep(self, name: str, random: Random) -> None:
        """The supervisor of a node: starts it again when it is dead."""
        world = self._world
        await asyncio.sleep(random.random())  # else all would do everything at the same moments
        await let_the_first_be_alone(world, name)
        while name not in self.gone:
            process = self._start(name)
            if not world.over and world.troubles.pause and "kill" in world.troubles.faults and random.random() < 0.15:
                await asyncio.sleep(random.random())
                self.kill(process)
            while process.alive:
                await asyncio.sleep(0.05)
            await asyncio.sleep(random.choice((0.05, 1.0, 6.0, 12.0)) * world.haste if not world.over else 0.05)
            await let_the_first_be_alone(world, name)

    def _start(self, name: str) -> NodeProcess:
        world = self._world
        hold = SimProcess(world.disk, world.store) if world.local else None
        process = self.processes[name] = NodeProcess(name, hold)
        work = process.run(world.loop, self._serve(process))
        work.add_done_callback(lambda task: self._served(process, task), context=Context())
        return process

    def _served(self, process: NodeProcess, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        if not isinstance(error, (StoreError, BackendError, LogInUse, OSError)):
            self._world.failed(error)
        self._world.event("not started", process.name, type(error).__name__)
        self.kill(process)

    async def _serve(self, process: NodeProcess) -> None:
        world, name, rate = self._world, process.name, self.rates[process.name]
        loop, store = world.loop, self.store_of(process)

        def wall_ms() -> int:
            return int((EPOCH + loop.now + self.offsets[name]) * 1000)

        clock = SteadyClock(lambda: wall_ms() / 1000, lambda: loop.now * rate, lambda: loop.now * rate)
        if self.wait_for_others:
            await recovered_by_others(store, name)
        await clock_at_start(store, name, clock)

        async def nodes() -> dict[str, Any]:
            return {beat.node: beat.address for beat in await store.heartbeats()}

        other_cluster = await ClusterBackend.connect(nodes, secret=bytes(16), name=name, limits=world.limits)
        resolver = resolver_over(world.queues_for(name))
        settings = NodeSettings(
            name,
            LogSettings(segment_bytes=max(16 << 10, self.segment_bytes), row_bytes=self.row_bytes, low_water_bytes=0),
            checkpoint_segments=self.checkpoint_segments,
            payload_cache_bytes=self.payload_cache_bytes,
            shards=(),
        )
        if process.process is not None:
            node = await Node.start(
                process.process, "/journal", store, resolver, clock=clock, settings=settings, peers=other_cluster
            )
        else:
            tables = HostTables(world.machines, name, store.end_hold)
            log = CassandraLogSettings(
                segment_bytes=self.segment_bytes,
                segment_rows=self.segment_rows,
                row_bytes=self.row_bytes,
                rows_at_once=self.rows_at_once,
                idle_seconds=self.idle_seconds,
                stall_seconds=1.0,
            )
            node = await Node.start_on(
                lambda: CassandraJournal(tables, log),
                store,
                resolver,
                clock=clock,
                settings=settings,
                peers=other_cluster,
            )
        member = Member(name, node, store, wall_ms, name, observe_seconds=WATCH_SECONDS * world.haste)
        member.start()
        process.node, process.member, process.backend = node, member, node
        world.event("started", name, node.ownership.log_id)
        await node.lost
