"""Several nodes in virtual time: processes of one machine that share its disk and its metadata.

Each process has its own hold on both.  When it is killed, nothing that it began is finished, and nothing that it waited
for comes: its coroutines stay where they are.  It may be killed before a given step, a step being a change of the disk
or of the metadata, so that a test can try them all.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine
from random import Random
from typing import Any, ParamSpec, TypeVar

from backend import api
from backend.api import shard_of
from backend.clocks.node_clock import SteadyClock
from backend.journal.local.log import LogSettings
from backend.node import Node, NodeSettings
from tests.simulator.world.disk import PowerCut, SimDisk
from tests.simulator.world.loop import SimLoop, close_dead
from tests.simulator.world.store import SimStore

P = ParamSpec("P")
T = TypeVar("T")

NOW = 1_700_000_000
READS = frozenset({"logs", "shards", "settings", "target", "heartbeats", "cluster"})
"""Calls of the metadata that change nothing."""


class SimProcess(SimDisk):
    """A process's hold on the disk (descriptors, locks, work under way) and, with :attr:`store`, on the metadata."""

    _processes = 0

    def __init__(self, disk: SimDisk, store: SimStore) -> None:
        self.__dict__.update(disk.__dict__)
        SimProcess._processes += 1
        self._fds = {}
        self._next_fd = SimProcess._processes * 1_000_000
        self.alive = True
        self.steps = 0
        """Changes so far."""
        self.kill_at: int | None = None
        """Die before the change of this number."""
        self.lose_at: int | None = None
        """If the change of this number is one of the metadata, it is made, and the process dies without hearing so."""
        self.store: Any = _Store(self, store)
        self._kept: list[Any] = []

    def kill(self) -> None:
        self.alive = False
        self._life += 1
        for fd, (_, file) in list(self._fds.items()):
            if file.locked_by == fd:
                file.locked_by = None
        self._fds.clear()

    def step(self) -> bool:
        """Called before a change; returns whether the process dies at it."""
        if self.alive and self.steps == self.kill_at:
            self.kill()
        self.steps += 1
        return not self.alive

    def _changes(self) -> None:
        if self.step():
            raise PowerCut
        super()._changes()

    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        if not self.alive:
            return self.never()
        future = super().run(function, *args, **kwargs)
        self._kept.append(future)
        return future

    def never(self) -> asyncio.Future[Any]:
        """Make a future that a dead process waits for.  It is kept, so that its tasks stay where they are."""
        future = asyncio.get_running_loop().create_future()
        self._kept.append(future)
        return future

    def close(self, fd: int) -> None:
        if self.alive:  # what a dead one cleans up is no more
            super().close(fd)


class _Store:
    """The metadata, as a process sees them."""

    def __init__(self, process: SimProcess, store: SimStore) -> None:
        self._process = process
        self._store = store

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        call = getattr(self._store, name)
        process = self._process

        async def guarded(*args: Any, **kwargs: Any) -> Any:
            number = process.steps
            if not process.alive or (name not in READS and process.step()):
                await process.never()
            result = await call(*args, **kwargs)
            if name not in READS and number == process.lose_at:
                process.kill()
            if not process.alive:
                await process.never()
            return result

        return guarded


class Fleet:
    """The machine, and the nodes on it."""

    def __init__(self, seed: int = 1, *, segment_bytes: int = 16 << 10) -> None:
        self.random = Random(seed)
        self.loop = SimLoop(self.random, 0.0)  # type: ignore[abstract]
        self.disk = SimDisk(self.random)
        self.store = SimStore(self.random)
        self.segment_bytes = segment_bytes
        self.processes: dict[str, SimProcess] = {}
        self.nodes: dict[str, Node] = {}
        self._kept: list[object] = []
        """The processes that there ever were, and their nodes."""

    def run(self, work: Coroutine[Any, Any, T], seconds: float = 600) -> T:
        task = self.loop.create_task(work)
        self.loop.until(task.done, seconds)
        result: T = task.result()
        return result

    def unless_killed(self, name: str, work: Coroutine[Any, Any, Any]) -> bool:
        """Run this in the process of a node, until it is done or the process is dead.  Whether it was done."""
        task = self.loop.create_task(work)
        process = self.processes[name]
        self.loop.until(lambda: task.done() or not process.alive, 600)
        if not process.alive:
            return False
        task.result()
        return True

    def starting(
        self, name: str, shards: Collection[int] = (), peers: api.Peer | None = None
    ) -> Coroutine[Any, Any, Node]:
        """``peers``: access to the other nodes."""
        process = self.processes[name] = SimProcess(self.disk, self.store)
        self._kept.append(process)
        clock = SteadyClock(lambda: NOW + self.loop.now, lambda: self.loop.now, lambda: self.loop.now)
        settings = NodeSettings(name, LogSettings(segment_bytes=self.segment_bytes, low_water_bytes=0), shards=shards)

        async def start() -> Node:
            node = await Node.start(
                process, "/journal", process.store, self.store, clock=clock, settings=settings, peers=peers
            )
            self._kept.append(node)
            return node

        return start()

    def start(self, name: str, shards: Collection[int] = (), peers: api.Peer | None = None) -> Node:
        node = self.nodes[name] = self.run(self.starting(name, shards, peers))
        return node

    def kill(self, name: str) -> None:
        self.processes[name].kill()

    def queue(self, node: Node, number: int, **settings: Any) -> api.Target:
        made = api.PartitionSettings(number, number, 1, f"queue{number}", bytes(16), **settings)
        self.store.queues[number] = made
        self.run(node.call(api.Configure(made)))
        return api.Target(number, number, 1)

    def send(self, node: Node, target: api.Target, *bodies: bytes) -> None:
        self.run(node.call(api.Send(target, [api.NewMessage(body) for body in bodies])))

    def receive(self, node: Node, target: api.Target, seconds: int = 30) -> list[api.ReceivedMessage]:
        return self.run(node.call(api.Receive(target, api.ReceiveOptions(10, seconds))))

    def all_bodies(self, node: Node, target: api.Target) -> list[bytes]:
        """Receive all visible messages; they are in flight afterwards."""
        found: list[bytes] = []
        while received := self.receive(node, target, 6000):
            found += [one.payload for one in received]
        return sorted(found)

    def close(self) -> None:
        # The tasks of dead processes wait for objects that are no longer referenced.
        failures = [text for text in self.loop.failures if not text.startswith("Task was destroyed")]
        assert not failures, failures
        close_dead(self.loop.bury())


def partition_of(shard: int, nth: int = 0) -> int:
    """A partition that hashes to this shard."""
    return [number for number in range(1, 100 * api.SHARDS) if shard_of(number) == shard][nth]
