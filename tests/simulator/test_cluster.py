"""A cluster under seeded trouble: whatever happens to its nodes, nothing that was acknowledged is lost.

Clients send, receive and delete through whichever node serves a queue.  Meanwhile processes are killed, also in the
middle of a takeover or of a start, and come back; nodes are drained; syncs fail; calls of the metadata fail, with
either outcome.  In the end everything is killed, one node takes all, and what it finds is compared with what was
answered.
"""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from backend.api import SHARDS, BackendError, HandleOutcome, NewMessage, NotOwner, Receive, Target
from backend.cluster.member import Member, undrain
from backend.journal.local.segments import LogInUse
from backend.node import Node
from metadata_service.store import StoreError
from tests.simulator.world.fleet import NOW, Fleet, SimProcess, partition_of

NAMES = ("a", "b", "c")
SHARDS_USED = (3, 40, 77, 120, 170, 201)
ANSWERED_WITHIN = 5.0


class _Run:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.fleet = Fleet(seed, segment_bytes=32 << 10)
        self.targets = [Target(partition_of(shard), partition_of(shard), 1) for shard in SHARDS_USED]
        self.members: dict[str, Member] = {}
        self.sent: set[bytes] = set()
        self.stored: dict[bytes, str] = {}
        """The answered message, with its id."""
        self.perhaps_deleted: set[bytes] = set()
        self.deleted: set[bytes] = set()
        self.over = False
        self.faults = 0

    # --- clients ----------------------------------------------------------------------------------------

    def living(self) -> list[Node]:
        return [node for name, node in self.fleet.nodes.items() if self.fleet.processes[name].alive]

    async def client(self, number: int) -> None:
        random = Random(self.random.random())
        count = 0
        while not self.over:
            target = random.choice(self.targets)
            node = random.choice(self.living() or [None])
            await asyncio.sleep(random.uniform(0.001, 0.2))
            if node is None:
                continue
            try:
                async with asyncio.timeout(ANSWERED_WITHIN):
                    if random.random() < 0.6:
                        count += 1
                        await self.send(node, target, b"%d-%d" % (number, count))
                    else:
                        await self.receive(node, target)
            except (BackendError, TimeoutError):
                continue

    async def send(self, node: Node, target: Target, body: bytes) -> None:
        self.sent.add(body)
        node = await self.owner(node, target)
        (stored,) = await node.send(target, [NewMessage(body)])
        assert stored.message_id not in self.stored.values()
        self.stored[body] = stored.message_id

    async def receive(self, node: Node, target: Target) -> None:
        node = await self.owner(node, target)
        received = await node.receive(target, Receive(3, 20))
        for message in received:
            assert message.payload in self.sent
            assert message.payload not in self.deleted
            if message.payload in self.stored:
                assert self.stored[message.payload] == message.message_id
            self.perhaps_deleted.add(message.payload)
            node = await self.owner(node, target)
            (outcome,) = await node.delete(target, [message.handle])
            if outcome == HandleOutcome.DONE:
                self.deleted.add(message.payload)

    async def owner(self, node: Node, target: Target) -> Node:
        """As a frontend does: ask one, and go where it says."""
        for _ in range(3):
            try:
                settings = self.fleet.store.queues[target.partition]
                await node.configure(settings)
                return node
            except NotOwner as error:
                other = self.fleet.nodes.get(error.owner or "")
                if other is None:
                    await asyncio.sleep(0.1)
                else:
                    node = other
        return node

    # --- nodes ------------------------------------------------------------------------------------------

    async def keep_up(self, name: str) -> None:
        """The supervisor of a node: starts it again when it is dead."""
        fleet, random = self.fleet, Random(self.random.random())
        while not self.over:
            fleet.nodes.pop(name, None)
            starting = fleet.starting(name)
            process = fleet.processes[name]
            if random.random() < 0.3:
                process.kill_at = random.randrange(40)
            task = asyncio.get_running_loop().create_task(starting)
            while not task.done() and process.alive:
                await asyncio.sleep(0.05)
            if process.alive and task.exception() is None:
                process.kill_at = None
                node = fleet.nodes[name] = task.result()
                clock = lambda: int((NOW + fleet.loop.now) * 1000)  # noqa: E731
                member = self.members[name] = Member(name, node, process.store, clock)
                member.start()
                await self.until_dead(process, node)
            elif process.alive:
                assert isinstance(task.exception(), (StoreError, BackendError, LogInUse, OSError)), task.exception()
                process.kill()
            await asyncio.sleep(random.choice((0.05, 1.0, 6.0, 15.0)))

    async def until_dead(self, process: SimProcess, node: Node) -> None:
        while process.alive:
            assert not node.lost.done(), node.lost.exception()
            await asyncio.sleep(0.05)

    async def trouble(self) -> None:
        fleet, random = self.fleet, self.random
        while not self.over:
            await asyncio.sleep(random.uniform(0.2, 8))
            alive = [name for name in fleet.nodes if fleet.processes[name].alive]
            if not alive:
                continue
            name = random.choice(alive)
            process = fleet.processes[name]
            self.faults += 1
            match random.choice(("kill", "kill", "kill later", "sync", "store", "drain", "quiet")):
                case "kill":
                    process.kill()
                case "kill later":
                    process.kill_at = process.steps + random.randrange(100)
                case "sync":
                    process.failing_syncs = 1
                case "store":
                    fleet.store.failing = random.choice((0.05, 0.3, 1.0))
                    await asyncio.sleep(random.uniform(0.1, 8))
                    fleet.store.failing = 0.0
                case "drain" if name in self.members:
                    try:
                        async with asyncio.timeout(20):
                            await self.members[name].leave(10)
                            await undrain(process.store, name)
                    except (BackendError, StoreError, TimeoutError):
                        continue
                case _:
                    await asyncio.sleep(5)

    # --- the run ----------------------------------------------------------------------------------------

    def go(self, seconds: float) -> None:
        fleet = self.fleet
        first = fleet.start("first", range(SHARDS))
        for target in self.targets:
            fleet.queue(first, target.partition)
        fleet.kill("first")
        del fleet.nodes["first"]
        work = [self.keep_up(name) for name in NAMES] + [self.client(number) for number in range(6)] + [self.trouble()]

        async def begin() -> list[asyncio.Task[None]]:
            return [asyncio.get_running_loop().create_task(one) for one in work]

        tasks = fleet.run(begin())
        until = fleet.loop.now + seconds
        while fleet.loop.now < until:
            fleet.loop.run_for(1.0)
            self.check(tasks)
        self.over = True
        fleet.store.failing = 0.0
        for process in fleet.processes.values():
            process.kill()
        fleet.loop.run_for(ANSWERED_WITHIN + 20)
        self.check(tasks)
        last = fleet.start("last", range(SHARDS))
        fleet.loop.run_for(30)  # what was in flight is visible again
        found: set[bytes] = set()
        for target in self.targets:
            found.update(fleet.all_bodies(last, target))
        lost = self.stored.keys() - self.perhaps_deleted - found
        assert not lost, f"{len(lost)} of {len(self.stored)} are lost"
        assert not found & self.deleted
        assert found <= self.sent

    def check(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            if task.done() and not task.cancelled():
                task.result()
        owners = [shard for node in self.living() for shard in node.owned]
        assert len(owners) == len(set(owners)), "a shard is served twice"


@pytest.mark.parametrize("seed", range(6))
def test_nothing_acknowledged_is_lost(seed: int) -> None:
    run = _Run(seed)
    run.go(60)
    assert len(run.stored) > 100
    assert run.faults > 3
    run.fleet.close()
