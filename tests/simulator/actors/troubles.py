"""Faults of a simulated cluster, and their durations."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from contextvars import Context
from random import Random
from typing import TYPE_CHECKING

from backend.api import BackendError
from backend.cluster.member import undrain
from metadata_service.store import StoreError
from tests.simulator.scenarios import LOCAL_FAULTS, QUORUM_FAULTS
from tests.simulator.world.nodes import NodeProcess

if TYPE_CHECKING:
    from tests.simulator.world.cluster import ClusterWorld

FRONTENDS = ("front1", "front2")


class Troubles:
    """One fault after the other; they overlap.  Each lasts for a while, or until the world is healed."""

    def __init__(self, world: ClusterWorld) -> None:
        self.pause = world.random.choice((0.0, 0.5, 1.0, 1.0, 1.0, 2.0, 2.0))
        """Mean seconds between faults; 0: none."""
        self.faults: dict[str, float] = dict(LOCAL_FAULTS if world.local else QUORUM_FAULTS)
        """Relative frequency of each fault: the methods ``_fault_`` below."""
        self.outage_seconds: tuple[float, ...] = (1.0, 4.0, 9.0)
        self.zombie_seconds = 8.0
        self.brittle = 0.0
        """Probability that a process dies when it has a change of the metadata made, at once or within a second."""
        self._zombie = False
        """There is one."""
        self._cascade = False
        """There is one."""
        self._chances = Random(f"changes of {world.seed}")
        self._world = world
        self._nodes = world.nodes

    async def run(self, random: Random) -> None:
        world = self._world
        while not world.over:
            await asyncio.sleep(random.expovariate(1 / self.pause))
            name = random.choices(list(self.faults), list(self.faults.values()))[0]
            world.event(name)
            world.tasks.append(world.loop.create_task(getattr(self, f"_fault_{name}")(random)))

    def on_change(self, name: str) -> None:
        """Kill a node, perhaps, that asks for a change of the metadata."""
        process = self._nodes.processes.get(name)
        if not self.brittle or process is None or self._world.over or self._chances.random() >= self.brittle:
            return
        seconds = self._chances.choice((0.0, 0.01, 0.1, 1.0)) * self._chances.random()
        Context().run(self._world.loop.call_later, seconds, self._die, process)

    def _die(self, process: NodeProcess) -> None:
        if not self._world.over:
            self._nodes.kill(process)

    async def last(self, seconds: float) -> None:
        """So long a fault lasts at the usual speed, unless all are healed before."""
        until = self._world.loop.now + seconds * self._world.haste
        while self._world.loop.now < until and not self._world.over:
            await asyncio.sleep(min(0.1, max(0.001, until - self._world.loop.now)))

    async def _fault_kill(self, random: Random) -> None:
        if (process := self._nodes.any_one(random)) is not None:
            self._nodes.kill(process)

    async def _fault_kill_manager(self, random: Random) -> None:
        cluster = self._world.store._cluster if self._world.local else self._world.ledger.cluster
        for process in self._nodes.living():
            if process.node is not None and process.node.ready and process.node.ownership.log_id == cluster.manager:
                self._nodes.kill(process)

    async def _fault_lost_rows(self, random: Random) -> None:
        """A process dies, and what it has written last of its log never reached anything."""
        process, mute = self._nodes.any_one(random), self._world.machines.mute
        if process is not None and process.name not in mute:
            mute.add(process.name)
            await self.last(random.choice((0.02, 0.2, 0.8, 1.5)))
            self._nodes.kill(process)
            mute.discard(process.name)

    async def _fault_all(self, random: Random) -> None:
        """All nodes are killed together."""
        self._nodes.kill_all()

    async def _fault_gone(self, random: Random) -> None:
        """A machine burns down."""
        process = self._nodes.any_one(random)
        if process is not None and len(self._nodes.names) - len(self._nodes.gone) > 2:
            self._nodes.gone.add(process.name)
            self._nodes.kill(process)

    async def _fault_stop(self, random: Random) -> None:
        """SIGSTOP, and SIGCONT after a while: mostly when another has taken over."""
        process = self._nodes.any_one(random)
        if process is None or process.stopped:
            return
        process.stopped = True
        await self.last(random.choice((0.5, 3.0, random.uniform(4.5, 8.0), random.uniform(4.5, 8.0), 15.0)))
        self._world.event("goes on", process.name)
        self._world.loop.go_on(process)

    async def _fault_cut_store(self, random: Random) -> None:
        """A node and the store, one way or both: all of it, one machine, only rows, or only transactions.

        The last makes a zombie of a node that is well: it is taken for dead, and writes on.
        """
        process = self._nodes.any_one(random)
        if process is not None:
            name, ways = process.name, []
            to, fro = random.choice(((True, True), (True, True), (True, False), (False, True)))
            for store in random.choice((("rows", "entries"), ("entries",), ("entries",), ("rows",), ("rows1",))):
                ways += [(name, store)] * to + [(store, name)] * fro
            await self._cut(ways, random.choice((1.0, 4.0, 8.0, 12.0)))

    async def _fault_zombie(self, random: Random) -> None:
        """A node that is well is taken for dead: its transactions fail, its rows do not."""
        await self._one_zombie(random, ())

    async def _fault_two_views(self, random: Random) -> None:
        """Make a zombie that one of the frontends continues to call, while the other finds the new owner."""
        await self._one_zombie(random, FRONTENDS[1:])

    async def _one_zombie(self, random: Random, cut_off: Sequence[str]) -> None:
        """One at a time, so that there are others to take it for dead."""
        owners = [one for one in self._nodes.living() if one.node is not None and one.node.owned]
        if owners and not self._zombie:
            self._zombie = True
            name = random.choice(owners).name
            ways = [(name, "entries"), *((name, to) for to in cut_off), *((to, name) for to in cut_off)]
            await self._cut(ways, self.zombie_seconds)
            self._zombie = False

    async def _fault_cut(self, random: Random) -> None:
        """A node, and other nodes or frontends."""
        process = self._nodes.any_one(random)
        if process is not None:
            others = [*FRONTENDS, *(name for name in self._nodes.names if name != process.name)]
            chosen = random.sample(others, random.randint(1, len(others)))
            ways = [(process.name, other) for other in chosen] + [(other, process.name) for other in chosen]
            if random.random() < 0.4:
                ways = random.sample(ways, len(ways) // 2)
            await self._cut(ways, random.choice((0.5, 3.0, 8.0)))

    async def _cut(self, ways: list[tuple[str, str]], seconds: float) -> None:
        for way in ways:
            self._world.net.cut(*way)
        await self.last(seconds)
        for way in ways:
            self._world.net.mend(*way)

    async def _fault_deaf(self, random: Random) -> None:
        """Drop the answers from one node to another, and let the first hand its shards over."""
        living = self._nodes.living()
        if len(living) > 1:
            one, other = random.sample(living, 2)
            drain = self._world.loop.create_task(self._drain(other, random.random() < 0.5))
            await self._cut([(other.name, one.name)], 6.0)
            await drain

    async def _fault_machine(self, random: Random) -> None:
        """One of the machines of the store is away for a while."""
        await self.away(random.randrange(3), random.choice((0.5, 3.0, 10.0)))

    async def _fault_wipe(self, random: Random) -> None:
        """One of the machines of the store dies, and another takes its place, which gets what the others have.

        That takes longer than any answer is on its way: what it said to have, and nobody else had, was not written.
        """
        number = random.randrange(3)
        if await self.away(number, 2.0):
            self._world.machines.wipe(number)

    async def away(self, number: int, seconds: float) -> bool:
        machines = self._world.machines.machines
        if not all(machine.up for machine in machines):
            return False
        machines[number].up = False
        await self.last(seconds)
        machines[number].up = True
        return not self._world.over

    async def _fault_outage(self, random: Random) -> None:
        """Two machines of the store are away: nothing can be written."""
        machines = self._world.machines.machines
        if all(machine.up for machine in machines):
            for machine in machines[:2]:
                machine.up = False
            await self.last(random.choice(self.outage_seconds))
            for machine in machines[:2]:
                machine.up = True

    async def _fault_slow(self, random: Random) -> None:
        machines, net = self._world.machines, self._world.net
        usual = machines.slow_seconds, net.slow_seconds
        if max(usual) < 0.05:
            machines.slow_seconds, net.slow_seconds = random.choice(((0.1, 0.002), (0.01, 0.2), (0.3, 0.05)))
            await self.last(random.choice((1.0, 5.0)))
            machines.slow_seconds, net.slow_seconds = usual

    async def _fault_drain(self, random: Random) -> None:
        if (process := self._nodes.any_one(random)) is not None:
            await self._drain(process, random.random() < 0.5)

    async def _drain(self, process: NodeProcess, restart: bool) -> None:
        if process.member is None or process.node is None:
            return
        member, node, store = process.member, process.node, self._nodes.store_of(process)

        async def leave() -> None:
            with contextlib.suppress(BackendError, StoreError):
                await member.leave(8.0)
                if restart:
                    await member.stop()
                    await node.close()
                else:
                    await undrain(store, process.name)

        work = process.run(self._world.loop, leave())
        until = self._world.loop.now + 20
        while not work.done() and process.alive and self._world.loop.now < until:
            await asyncio.sleep(0.05)
        if restart:
            self._nodes.kill(process)

    async def _fault_ailing(self, random: Random) -> None:
        """A node ails: an operator drains it, lets it have shards again, and it dies soon after."""
        if (process := self._nodes.any_one(random)) is not None:
            await self._drain(process, False)
            await self.last(random.choice((0.5, 2.0, 4.0)))
            self._nodes.kill(process)

    async def _fault_cascade(self, random: Random) -> None:
        """A node dies, and soon after it a node that has taken shards of it; each loses what it has written last."""
        process = self._nodes.any_one(random)
        if process is None or process.node is None or self._cascade:
            return
        self._cascade = True
        shards, mute = set(process.node.owned), self._world.machines.mute
        for _ in range(random.choice((1, 2, 3))):
            mute.add(process.name)
            await self.last(random.choice((0.1, 0.4, 1.0)))
            self._nodes.kill(process)
            mute.discard(process.name)
            until = self._world.loop.now + 10
            while not (others := self._owners(shards)) and self._world.loop.now < until and not self._world.over:
                await asyncio.sleep(0.02)
            if not others or self._world.over:
                break
            process = random.choice(others)
        self._cascade = False

    def _owners(self, shards: set[int]) -> list[NodeProcess]:
        return [one for one in self._nodes.living() if one.node is not None and shards & set(one.node.owned)]

    async def _fault_rolling(self, random: Random) -> None:
        """All are restarted, one after the other."""
        for name in self._nodes.names:
            process = self._nodes.processes.get(name)
            if process is not None and process.alive and not process.stopped and not self._world.over:
                await self._drain(process, True)
                await asyncio.sleep(1.0)

    async def _fault_disk(self, random: Random) -> None:
        process = self._nodes.any_one(random)
        if process is not None and process.process is not None:
            process.process.failing_syncs = 1

    async def _fault_files(self, random: Random) -> None:
        """A process is out of file descriptors, or of memory for reads."""
        process = self._nodes.any_one(random)
        if process is not None and process.process is not None:
            process.process.passing = random.choice((0.05, 0.3, 1.0))
            await self.last(random.choice((0.5, 3.0, 9.0)))
            process.process.passing = 0.0

    async def _fault_metadata(self, random: Random) -> None:
        self._world.store.failing = random.choice((0.05, 0.3, 1.0))
        await self.last(random.choice((0.5, 3.0, 9.0)))
        self._world.store.failing = 0.0

    async def _fault_power(self, random: Random) -> None:
        """The machine loses power: all of its processes, and what no disk had yet."""
        for process in self._nodes.living():
            self._nodes.kill(process)
        self._world.disk.crash()

    async def _fault_forget(self, random: Random) -> None:
        """Let a machine of the store lose old data without noticing."""
        if self._world.machines.lose_segments(0):
            self._world.event("forgotten")

    async def _fault_map(self, random: Random) -> None:
        """Split a queue, drain partitions of it, or replace them; not a fault."""
        await self._world.maps.change(random)
