"""A simulated cluster: several nodes, their journal and metadata, frontends and clients, all from one seed.

On the *quorum* journal the nodes are machines of their own over three machines that keep tables; on the *local* one
they are processes of one machine.  Everything fails: processes are killed and stopped, networks cut and slow, clocks
wrong, machines away, disks; nodes are drained and restarted one after the other.  Clients go on meanwhile, and
:mod:`tests.simulator.history` says whether what they were told can be.  In the end everything is healed, and has to
work again within a bounded time; then all that there is, is received.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextvars import Context
from hashlib import blake2b
from random import Random
from typing import Any, TypeVar
from unittest import mock

from backend.api import (
    AckLevel,
    AttemptExpired,
    BackendError,
    DeadLetter,
    NewMessage,
    PartitionSettings,
    PartitionUnknown,
    Receive,
    SettingsStale,
    Target,
    Unavailable,
)
from backend.client import ClientLimits
from backend.clock import SteadyClock
from backend.cluster import ClusterBackend
from backend.journal.cassandra_journal import CassandraJournal
from backend.journal.cassandra_log import CassandraLogSettings
from backend.journal.log import LogSettings
from backend.journal.segments import LogInUse
from backend.journal.tables import StateRead
from backend.link import NotSent
from backend.living import WATCH_SECONDS, time_of
from backend.manager import Member, undrain
from backend.node import Node, NodeSettings
from backend.partition import Partition
from backend.replay import JournalDamaged
from metadata_service.store import StoreError
from tests.simulator.disk import SimDisk
from tests.simulator.fleet import Process
from tests.simulator.history import Claim, History, Msg, Queue
from tests.simulator.hosts import Host, HostLoop, Net
from tests.simulator.ledger import HostEntries, Ledger
from tests.simulator.loop import close_dead
from tests.simulator.model import Violation
from tests.simulator.quorum import Machines, QuorumTables
from tests.simulator.store import SimStore
from tests.simulator.wires import Server, wire
from tests.simulator.world import EPOCH, Report, deterministic

T = TypeVar("T")

SHARDS = 16
"""Fewer than a real cluster has: each has more to go through."""
LIMITS = ClientLimits(call_seconds=4.0)
REPEATS_SECONDS = 25.0
"""So long a client repeats a call with a token; the windows are twice as long."""
SECONDS = 25.0
"""Of a run, in virtual time, before everything is healed."""
RESTS_SECONDS = 120.0
"""So long after the last fault everything works again."""
FRONTENDS = ("front1", "front2")


class NetMachines(Machines):
    """The machines of the store, each with its ways to each client."""

    def __init__(self, random: Random, net: Net) -> None:
        super().__init__(random)
        self.net = net
        self.fence_seconds = 0.0
        """So long the answer to a read of a log's entry is on its way at most, beside the usual."""

    def delay(self, client: QuorumTables, number: int, *, back: bool) -> float | None:
        seconds = super().delay(client, number, back=back)
        assert isinstance(client, HostTables)
        ways = (("rows", client.name), (f"rows{number}", client.name))
        if seconds is None or not all(self.net.open(*(way if back else way[::-1])) for way in ways):
            return None
        return seconds

    def wipe(self, number: int) -> None:
        """A machine is replaced by an empty one, which gets what the others have."""
        lost = self.machines[number]
        lost.cells, lost.graves = {}, {}
        for other in self.machines:
            for partition, timestamp in other.graves.items():
                lost.delete(partition, timestamp)
        for other in self.machines:
            for partition, cells in other.cells.items():
                for row, (timestamp, value) in cells.items():
                    lost.store(partition, row, timestamp, value)


class HostTables(QuorumTables):
    def __init__(self, machines: NetMachines, name: str) -> None:
        super().__init__(machines)
        self.name = name
        self._net_machines = machines

    def read_state(self, log_id: int, done: StateRead) -> None:
        loop, machines = asyncio.get_running_loop(), self._net_machines
        seconds = machines.random.random() * machines.fence_seconds

        def later(state: str | BaseException | None) -> None:
            if seconds:
                loop.call_later(seconds, done, state)
            else:
                done(state)

        super().read_state(log_id, later)


class NodeProcess(Server):
    """One start of a backend node."""

    def __init__(self, name: str, process: Process | None) -> None:
        super().__init__(name)
        self.node: Node | None = None
        self.member: Member | None = None
        self.process = process
        """Its hold on the machine's disk, where it has one."""


class ClusterWorld:
    """A run in progress."""

    def __init__(
        self, seed: int, *, local: bool | None = None, scenario: str | None = None, trace: bool = False
    ) -> None:
        self.seed = seed
        self.random = random = Random(seed)
        self.local = random.random() < 0.3 if local is None else local
        chosen = random.choice(tuple(SCENARIOS))
        self.scenario = "usual" if self.local else scenario or chosen
        self.events: list[str] | None = [] if trace else None
        self.counts: Counter[str] = Counter()
        self.reports: list[str] = []
        self.error: BaseException | None = None
        self.over = False
        self._digest = blake2b(digest_size=16)
        self.loop = HostLoop(random, 0.0, lag=random.choice((0.0, 0.1)))  # type: ignore[abstract]
        self.net = Net(Random(random.random()))
        self.net.late = random.choice((0.0, 0.01, 0.05))
        self.net.lost = random.choice((0.0, 0.0, 0.005))
        self.net.twice = random.choice((0.0, 0.1))
        self.machines = NetMachines(Random(random.random()), self.net)
        self.machines.slow_seconds = random.choice((0.002, 0.01))
        self.machines.late = random.choice((0.0, 0.02, 0.1))
        self.machines.lost = random.choice((0.0, 0.01, 0.05))
        self.machines.repairs = random.random() < 0.5
        self.ledger = Ledger(self.machines, self.net)
        self.ledger.late = random.choice((0.0, 0.02))
        self.disk = SimDisk(Random(random.random()), latency_seconds=(0.0001, random.choice((0.0005, 0.005))))
        self.store = SimStore(Random(random.random()))
        self.names = [f"node{number}" for number in range(random.choice((3, 3, 4, 5)))]
        self.processes: dict[str, NodeProcess] = {}
        self.fronts: dict[str, tuple[Host, ClusterBackend]] = {}
        self.offsets = dict.fromkeys(self.names, 0.0)
        self.rates = {name: random.choice((1.0, 1.0, 0.99, 1.01)) for name in self.names}
        self.checkpoint_segments = random.choice((1, 2, 4))
        self.segment_bytes = random.choice((4, 16)) << 10
        self.row_bytes = random.choice((1, 4)) << 10
        self.rows_at_once = random.choice((4, 8))
        self.window_bytes = random.choice((0, 20_000, 1 << 20))
        self.history = History()
        self.queues: list[Queue] = []
        self.held: dict[int, list[tuple[str, Msg, Claim]]] = {}
        self.pace = random.choice((0.08, 0.2))
        self.trouble = random.choice((0.0, 0.5, 1.0, 1.0, 1.0, 2.0, 2.0))
        """Mean seconds between faults; 0: none."""
        self.faults = dict(LOCAL_FAULTS if self.local else QUORUM_FAULTS)
        self.weights = {"send": 40, "receive": 34, "delete": 30, "change": 6, "count": 4, "move": 2}
        self.gone: set[str] = set()
        """Nodes that never come back."""
        SCENARIOS[self.scenario](self)
        self._stack = contextlib.ExitStack()
        self._tasks: list[asyncio.Task[Any]] = []
        self._calls: set[asyncio.Task[None]] = set()
        self._sent = 0
        self._clients = Random(random.random())
        self._make_queues()

    def _make_queues(self) -> None:
        random = self.random
        for number in range(random.choice((2, 3))):
            fifo = random.random() < 0.5
            dead = self._queue(f"dead{number}", fifo) if random.random() < 0.6 else None
            queue = self._queue(f"queue{number}", fifo)
            queue.dead_letter = dead
            queue.max_receives = random.choice((1, 2, 4))
            if dead is not None:
                dead.feeds.append(queue)
        self._queue("plain", random.random() < 0.5)
        if random.random() < 0.5:
            self._queue("weak", False, AckLevel.LEADER)

    def _queue(self, name: str, fifo: bool, ack_level: AckLevel = AckLevel.QUORUM) -> Queue:
        number = len(self.queues) + 1
        settings = PartitionSettings(
            partition=self.seed % 1000 * 100 + number,
            queue_id=number,
            version=1,
            arn=f"arn:{name}",
            handle_key=number.to_bytes(16, "big"),
            fifo=fifo,
            token_window_seconds=60,
            retry_window_seconds=60,
            ack_level=ack_level,
        )
        queue = Queue(settings)
        self.queues.append(queue)
        self.history.queues[queue.pid] = queue
        self.ledger.queues[queue.pid] = self.store.queues[queue.pid] = settings
        return queue

    # --- what is told of the run ---

    def event(self, what: str, *details: object) -> None:
        self.counts[what] += 1
        text = f"{self.loop.now:.6f} {what} {details}"
        self._digest.update(text.encode())
        if self.events is not None:
            self.events.append(text)

    def failed(self, error: BaseException) -> None:
        if self.error is None:
            self.error = error
            self.loop.halted = True

    def check(self) -> None:
        """Raises what went wrong since the last look."""
        if self.error is not None:
            raise self.error
        if self.loop.failures:
            raise Violation(self.loop.failures[0])
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    # --- processes ---

    def server(self, name: str) -> Server | None:
        return self.processes.get(name)

    def living(self) -> list[NodeProcess]:
        return [process for process in self.processes.values() if process.alive]

    def entries(self, name: str) -> Any:
        return HostEntries(self.ledger, name)

    def kill(self, process: NodeProcess) -> None:
        if process.alive:
            self.event("killed", process.name)
            if process.process is not None:
                process.process.kill()
            self.loop.kill(process)

    def start(self, name: str) -> NodeProcess:
        hold = Process(self.disk, self.store) if self.local else None
        process = self.processes[name] = NodeProcess(name, hold)
        work = process.run(self.loop, self._serve(process))
        work.add_done_callback(lambda task: self._served(process, task), context=Context())
        return process

    def _served(self, process: NodeProcess, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        if not isinstance(error, (StoreError, BackendError, LogInUse, OSError)):
            self.failed(error)
        self.event("not started", process.name, type(error).__name__)
        self.kill(process)

    async def _serve(self, process: NodeProcess) -> None:
        """What the process of a node does."""
        name, loop, rate = process.name, self.loop, self.rates[process.name]
        store = process.process.store if process.process is not None else self.entries(name)
        clock = SteadyClock(
            lambda: EPOCH + loop.now + self.offsets[name], lambda: loop.now * rate, lambda: loop.now * rate
        )
        time_ms = await time_of(store, name, lambda: int((EPOCH + loop.now + self.offsets[name]) * 1000))
        if time_ms is not None:
            clock.go_to(time_ms)

        async def nodes() -> dict[str, Any]:
            return {beat.node: beat.address for beat in await store.heartbeats()}

        elsewhere = await ClusterBackend.connect(nodes, secret=bytes(16), name=name, limits=LIMITS)
        settings = NodeSettings(
            name,
            LogSettings(segment_bytes=max(16 << 10, self.segment_bytes), row_bytes=self.row_bytes, low_water_bytes=0),
            checkpoint_segments=self.checkpoint_segments,
            window_bytes=self.window_bytes,
            shards=(),
        )
        if process.process is not None:
            node = await Node.start(
                process.process, "/journal", store, self.store, clock=clock, settings=settings, elsewhere=elsewhere
            )
        else:
            tables = HostTables(self.machines, name)
            log = CassandraLogSettings(
                segment_bytes=self.segment_bytes,
                row_bytes=self.row_bytes,
                rows_at_once=self.rows_at_once,
                stall_seconds=1.0,
            )
            node = await Node.start_on(
                lambda: CassandraJournal(tables, log), store, store, clock=clock, settings=settings, elsewhere=elsewhere
            )
        member = Member(
            name,
            node,
            store,
            lambda: int((EPOCH + loop.now + self.offsets[name]) * 1000),
            name,
            acquaint_seconds=WATCH_SECONDS,
        )
        member.start()
        process.node, process.member, process.backend = node, member, node
        self.event("started", name, node.ownership.log_id)
        await node.lost

    async def _keep(self, name: str, random: Random) -> None:
        """The supervisor of a node: starts it again when it is dead."""
        while name not in self.gone:
            process = self.start(name)
            if not self.over and self.trouble and "kill" in self.faults and random.random() < 0.15:
                await asyncio.sleep(random.random())
                self.kill(process)
            while process.alive:
                await asyncio.sleep(0.05)
            await asyncio.sleep(random.choice((0.05, 1.0, 6.0, 12.0)) if not self.over else 0.05)

    # --- clients ---

    def front(self) -> ClusterBackend:
        return self._clients.choice(list(self.fronts.values()))[1]

    async def _begin_front(self, name: str, host: Host) -> None:
        store = self.entries(name) if not self.local else self.store

        async def nodes() -> dict[str, Any]:
            return {beat.node: beat.address for beat in await store.heartbeats()}

        while True:
            try:
                self.fronts[name] = (host, await ClusterBackend.connect(nodes, secret=bytes(16), limits=LIMITS))
                return
            except StoreError:
                await asyncio.sleep(0.1)

    async def call(self, front: ClusterBackend, queue: Queue, action: Callable[[Target], Awaitable[T]]) -> T:
        """What a frontend does around each call."""
        for _ in range(4):
            try:
                return await action(Target(queue.pid, queue.settings.queue_id, queue.settings.version))
            except (PartitionUnknown, SettingsStale):
                await front.configure(queue.settings)
        raise Unavailable("the partition cannot be opened")

    def start_call(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        host = self._clients.choice(list(self.fronts.values()))[0]
        task = host.run(self.loop, self._watched(work))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard, context=Context())
        return task

    async def _watched(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            if not self.over and self._clients.random() < 0.05:
                async with asyncio.timeout(self._clients.random()):
                    await work
            else:
                await work
        except (BackendError, TimeoutError):
            self.counts["refused"] += 1
        except Violation as error:
            self.failed(error)

    async def _client(self, random: Random) -> None:
        while not self.over:
            await asyncio.sleep(random.expovariate(1 / self.pace))
            queue = random.choice(self.queues)
            (action,) = random.choices(list(self.weights), list(self.weights.values()))
            self.start_call(getattr(self, f"_{action}")(queue))

    async def _send(self, queue: Queue) -> None:
        random = self._clients
        new = []
        for _ in range(random.choice((1, 1, 1, 2, 5))):
            self._sent += 1
            name = b"m%06d." % self._sent
            one = NewMessage(name + bytes([self._sent % 251]) * random.choice((0, 20, 300, 900)))
            if queue.settings.fifo:
                one.group = f"g{random.randrange(4)}"
                one.token = blake2b(name, digest_size=16).digest()
            new.append(one)
        tokens = queue.settings.fifo or random.random() < 0.5
        tokens = tokens and not queue.weak
        if tokens and random.random() < 0.5:
            for place, one in enumerate(new):
                one.retry = self._sent.to_bytes(15, "big") + bytes((place,)) + self._sent.to_bytes(16, "big")
        tokens = queue.settings.fifo or new[0].retry is not None
        msgs = self.history.sending(queue, new)
        if tokens and random.random() < 0.2:
            self.start_call(self._send_again(queue, new, msgs, self.loop.now))  # a client that did not wait
        await self._send_again(queue, new, msgs, self.loop.now, tokens=tokens)

    async def _send_again(
        self, queue: Queue, new: list[NewMessage], msgs: list[Msg], began: float, *, tokens: bool = True
    ) -> None:
        while True:
            front = self.front()
            try:
                answers = await self.call(front, queue, lambda target: front.send(target, new))  # noqa: B023
            except NotSent:
                if not tokens:
                    for msg in msgs:
                        msg.refused = True
                    return
            except (BackendError, asyncio.CancelledError) as error:
                self.event("send failed", queue.settings.arn, type(error).__name__)
                if not tokens or isinstance(error, asyncio.CancelledError):
                    raise
            else:
                self.event("sent", queue.settings.arn, [answer.number for answer in answers])
                self.history.sent(msgs, answers)
                return
            await asyncio.sleep(self._clients.random() * 3)
            if self.loop.now > began + REPEATS_SECONDS or self.over:
                return

    async def _receive(self, queue: Queue) -> None:
        random = self._clients
        await self._receive_some(queue, random.choice((1, 3, 10)), random.choice((5, 15, 30)), random.choice((0, 0, 2)))

    async def _receive_some(self, queue: Queue, most: int, seconds: int, wait: float) -> int:
        front, history = self.front(), self.history
        asked_at, asked = history.tick(), self.loop.now
        dead = None
        if queue.dead_letter is not None:
            to = queue.dead_letter.settings
            dead = DeadLetter(queue.max_receives, Target(to.partition, to.queue_id, to.version), to.fifo)
        command = Receive(most, seconds, wait, dead)
        try:
            answer = await self.call(front, queue, lambda target: front.receive(target, command))
        except AttemptExpired:
            return 0
        self.event("received", queue.settings.arn, [(one.number, one.receives) for one in answer])
        history.received(queue, answer, seconds, asked_at, asked, self.loop.now)
        pool = self.held.setdefault(queue.pid, [])
        for one in answer:
            msg = history.messages[one.payload]
            pool.append((one.handle, msg, msg.claims[queue.pid, one.number][one.receives]))
        del pool[:-100]
        return len(answer)

    async def _delete(self, queue: Queue) -> None:
        pool = self.held.get(queue.pid)
        if pool:
            count = self._clients.choice((1, 3, 10))
            chosen, pool[-count:] = pool[-count:], []
            await self._delete_these(queue, chosen)

    async def _delete_these(self, queue: Queue, chosen: list[tuple[str, Msg, Claim]]) -> None:
        front = self.front()
        self.history.deleting([msg for _, msg, _ in chosen])
        handles = [handle for handle, _, _ in chosen]
        outcomes = await self.call(front, queue, lambda target: front.delete(target, handles))
        self.event("deleted", queue.settings.arn, outcomes)
        for (_, msg, claim), outcome in zip(chosen, outcomes, strict=True):
            self.history.deleted(msg, claim, outcome, self.loop.now)

    async def _change(self, queue: Queue) -> None:
        front, pool = self.front(), self.held.get(queue.pid)
        if pool:
            handle, _, claim = self._clients.choice(pool)
            seconds, asked = self._clients.choice((0, 5, 20)), self.loop.now
            self.history.changing(claim)
            (outcome,) = await self.call(
                front, queue, lambda target: front.change_visibility(target, [(handle, seconds)])
            )
            self.history.changed(claim, seconds, outcome, asked)

    async def _count(self, queue: Queue) -> None:
        front, asked_at = self.front(), self.history.tick()
        self.history.counted(queue, await self.call(front, queue, front.counters), asked_at)

    async def _move(self, queue: Queue) -> None:
        front = self.front()
        if queue.feeds:
            if self._clients.random() < 0.8:
                await self.call(front, queue, lambda target: front.start_move(target, None, 0))
            else:
                tasks = await self.call(front, queue, front.list_moves)
                if tasks:
                    await self.call(front, queue, lambda target: front.cancel_move(target, tasks[0].task_id))

    # --- what goes wrong ---

    async def _troubles(self, random: Random) -> None:
        while not self.over:
            await asyncio.sleep(random.expovariate(1 / self.trouble))
            name = random.choices(list(self.faults), list(self.faults.values()))[0]
            self.event(name)
            self._tasks.append(self.loop.create_task(getattr(self, f"_fault_{name}")(random)))

    def _one(self, random: Random) -> NodeProcess | None:
        living = self.living()
        return random.choice(living) if living else None

    async def _while(self, seconds: float) -> None:
        """So long a fault lasts, unless all are healed before."""
        until = self.loop.now + seconds
        while self.loop.now < until and not self.over:
            await asyncio.sleep(min(0.1, max(0.001, until - self.loop.now)))

    async def _fault_kill(self, random: Random) -> None:
        if (process := self._one(random)) is not None:
            self.kill(process)

    async def _fault_kill_manager(self, random: Random) -> None:
        cluster = self.store._cluster if self.local else self.ledger.cluster
        for process in self.living():
            if process.node is not None and process.node.ready and process.node.ownership.log_id == cluster.manager:
                self.kill(process)

    async def _fault_gone(self, random: Random) -> None:
        """A machine burns down."""
        process = self._one(random)
        if process is not None and len(self.names) - len(self.gone) > 2:
            self.gone.add(process.name)
            self.kill(process)

    async def _fault_stop(self, random: Random) -> None:
        """SIGSTOP, and SIGCONT after a while: mostly when another has taken over."""
        process = self._one(random)
        if process is None or process.stopped:
            return
        process.stopped = True
        await self._while(random.choice((0.5, 3.0, random.uniform(4.5, 8.0), random.uniform(4.5, 8.0), 15.0)))
        self.event("goes on", process.name)
        self.loop.go_on(process)

    async def _fault_cut_store(self, random: Random) -> None:
        """A node and the store, one way or both: all of it, one machine, only rows, or only transactions.

        The last makes a zombie of a node that is well: it is taken for dead, and writes on.
        """
        process = self._one(random)
        if process is not None:
            name, ways = process.name, []
            to, fro = random.choice(((True, True), (True, True), (True, False), (False, True)))
            for store in random.choice((("rows", "entries"), ("entries",), ("entries",), ("rows",), ("rows1",))):
                ways += [(name, store)] * to + [(store, name)] * fro
            await self._cut(ways, random.choice((1.0, 4.0, 8.0, 12.0)))

    async def _fault_zombie(self, random: Random) -> None:
        """A node that is well is taken for dead: its transactions fail, its rows do not."""
        process = self._one(random)
        if process is not None:
            await self._cut([(process.name, "entries")], 9.0)

    async def _fault_split(self, random: Random) -> None:
        """A zombie that one of the frontends goes on asking, while the other finds its successor."""
        process = self._one(random)
        if process is not None:
            name, front = process.name, FRONTENDS[1]
            await self._cut([(name, "entries"), (name, front), (front, name)], 12.0)

    async def _fault_cut(self, random: Random) -> None:
        """A node, and other nodes or frontends."""
        process = self._one(random)
        if process is not None:
            others = [*FRONTENDS, *(name for name in self.names if name != process.name)]
            chosen = random.sample(others, random.randint(1, len(others)))
            ways = [(process.name, other) for other in chosen] + [(other, process.name) for other in chosen]
            if random.random() < 0.4:
                ways = random.sample(ways, len(ways) // 2)
            await self._cut(ways, random.choice((0.5, 3.0, 8.0)))

    async def _cut(self, ways: list[tuple[str, str]], seconds: float) -> None:
        for way in ways:
            self.net.cut(*way)
        await self._while(seconds)
        for way in ways:
            self.net.mend(*way)

    async def _fault_machine(self, random: Random) -> None:
        """One of the machines of the store is away for a while."""
        await self._away(random.randrange(3), random.choice((0.5, 3.0, 10.0)))

    async def _fault_wipe(self, random: Random) -> None:
        """One of the machines of the store dies, and another takes its place, which gets what the others have.

        That takes longer than any answer is on its way: what it said to have, and nobody else had, was not written.
        """
        number = random.randrange(3)
        if await self._away(number, 2.0):
            self.machines.wipe(number)

    async def _away(self, number: int, seconds: float) -> bool:
        machines = self.machines.machines
        if not all(machine.up for machine in machines):
            return False
        machines[number].up = False
        await self._while(seconds)
        machines[number].up = True
        return not self.over

    async def _fault_outage(self, random: Random) -> None:
        """Two machines of the store are away: nothing can be written."""
        machines = self.machines.machines
        if all(machine.up for machine in machines):
            for machine in machines[:2]:
                machine.up = False
            await self._while(random.choice((1.0, 4.0, 9.0)))
            for machine in machines[:2]:
                machine.up = True

    async def _fault_slow(self, random: Random) -> None:
        usual = self.machines.slow_seconds, self.net.slow_seconds
        if max(usual) < 0.05:
            self.machines.slow_seconds, self.net.slow_seconds = random.choice(((0.1, 0.002), (0.01, 0.2), (0.3, 0.05)))
            await self._while(random.choice((1.0, 5.0)))
            self.machines.slow_seconds, self.net.slow_seconds = usual

    async def _fault_drain(self, random: Random) -> None:
        if (process := self._one(random)) is not None:
            await self._drained(process, random.random() < 0.5)

    async def _drained(self, process: NodeProcess, restart: bool) -> None:
        if process.member is None or process.node is None:
            return
        member, node, store = process.member, process.node, self._store_of(process)

        async def leave() -> None:
            with contextlib.suppress(BackendError, StoreError):
                await member.leave(8.0)
                if restart:
                    await member.stop()
                    await node.close()
                else:
                    await undrain(store, process.name)

        work = process.run(self.loop, leave())
        until = self.loop.now + 20
        while not work.done() and process.alive and self.loop.now < until:
            await asyncio.sleep(0.05)
        if restart:
            self.kill(process)

    def _store_of(self, process: NodeProcess) -> Any:
        return process.process.store if process.process is not None else self.entries(process.name)

    async def _fault_rolling(self, random: Random) -> None:
        """All are restarted, one after the other."""
        for name in self.names:
            process = self.processes.get(name)
            if process is not None and process.alive and not process.stopped and not self.over:
                await self._drained(process, True)
                await asyncio.sleep(1.0)

    async def _fault_disk(self, random: Random) -> None:
        process = self._one(random)
        if process is not None and process.process is not None:
            process.process.failing_syncs = 1

    async def _fault_metadata(self, random: Random) -> None:
        self.store.failing = random.choice((0.05, 0.3, 1.0))
        await self._while(random.choice((0.5, 3.0, 9.0)))
        self.store.failing = 0.0

    async def _fault_power(self, random: Random) -> None:
        """The machine loses power: all of its processes, and what no disk had yet."""
        for process in self.living():
            self.kill(process)
        self.disk.crash()

    def heal(self) -> None:
        self.over = True
        self.net.late = self.net.lost = self.net.twice = self.machines.lost = self.machines.late = 0.0
        self.ledger.late = self.store.failing = self.machines.fence_seconds = 0.0

    # --- the run ---

    def run(self, seconds: float = SECONDS) -> Report:
        try:
            self.begin()
            self._run(seconds)
        finally:
            self.end()
        self.counts.update(self.history.counts)
        return Report(self.seed, self._digest.hexdigest(), self.counts, self.loop.now)

    def begin(self) -> None:
        """Start everything, until it works."""
        self._stack.enter_context(deterministic(self.random, self.reports))
        self._stack.enter_context(self._patched())
        loop, random = self.loop, self.random
        for name in FRONTENDS:
            host = Host(name)
            self._tasks.append(host.run(loop, self._begin_front(name, host)))
        for name in self.names:
            self._tasks.append(loop.create_task(self._keep(name, Random(random.random()))))
        if not self.until(lambda: len(self.fronts) == len(FRONTENDS) and self.served_by_one(), 120):
            raise Violation("the cluster does not begin")

    def end(self) -> None:
        with self._stack:
            for host, _ in self.fronts.values():
                host.alive = False
            close_dead(self.loop.bury())

    @contextlib.contextmanager
    def _patched(self) -> Iterator[None]:
        random = Random(self.random.random())
        patches: dict[str, Any] = {
            "backend.shards.SHARDS": SHARDS,
            "backend.manager.SHARDS": SHARDS,
            "backend.cluster.RemoteBackend": wire(self),
            "backend.cluster.random": random,
            "backend.journal.patience.random": random.random,
            "backend.journal.cassandra_journal.secrets": mock.Mock(randbits=random.getrandbits),
        }
        logger = logging.getLogger("backend")
        level = logger.level
        with contextlib.ExitStack() as stack:
            for name, stand_in in patches.items():
                stack.enter_context(mock.patch(name, stand_in))
            logger.setLevel(logging.ERROR)
            yield
        logger.setLevel(level)

    def _run(self, seconds: float) -> None:
        loop, random = self.loop, self.random
        for _ in range(4):
            self._tasks.append(loop.create_task(self._client(Random(random.random()))))
        if self.trouble:
            self._tasks.append(loop.create_task(self._troubles(Random(random.random()))))
        until = loop.now + seconds
        while loop.now < until:
            loop.run_for(0.5)
            self.check()
        self.heal()
        self._rest()
        if random.random() < 0.5 and self.scenario != "outages":
            for process in self.living():
                self.kill(process)
            if self.local and random.random() < 0.5:
                self.disk.crash()
            self._rest()
        self._empty()

    def until(self, reached: Callable[[], bool], seconds: float) -> bool:
        """Until this is so.  Whether it was in time."""
        until = self.loop.now + seconds
        while not reached() and self.loop.now < until:
            self.loop.run_for(0.2)
            self.check()
        return reached()

    def served_by_one(self) -> bool:
        """Each shard is served by the node that its entry names, and by no other."""
        shards = self.store._shards if self.local else self.ledger.shards
        living = self.living()
        if len(living) < len(self.names) - len(self.gone) or not all(
            one.node is not None and one.node.ready for one in living
        ):
            return False
        owned = [(shard, one.node.ownership.log_id) for one in living if one.node for shard in one.node.owned]
        return (
            sorted(owned) == sorted((entry.shard, entry.owner_log) for entry in shards.values())
            and len(owned) == SHARDS
        )

    def partitions(self) -> list[Partition]:
        return [
            partition
            for process in self.living()
            if process.node is not None and process.node._incarnation is not None
            for partition in process.node._incarnation.partitions.values()
        ]

    def _rest(self) -> None:
        """Everything is healed: it has to work again, and what is under way has to come to an end."""
        if not self.until(lambda: self.served_by_one() and not self._calls, RESTS_SECONDS):
            owned = {one.name: sorted(one.node.owned) if one.node else None for one in self.living()}
            raise Violation(
                f"the cluster does not come to rest: {owned}, {len(self._calls)} calls, {self.reports[-3:]}"
            )
        if not self.until(lambda: not any(one.ferry or one.mover for one in self.partitions()), RESTS_SECONDS):
            raise Violation("messages are on their way and do not arrive")

    def _empty(self) -> None:
        """Receive and delete all that there is, and hold it against what clients were told."""
        self.loop.run_for(40.0)  # what was in flight is visible again
        self.check()
        found: dict[bytes, list[tuple[Queue, int]]] = {}
        for _ in range(100):
            got = sum([self._drained_once(queue, found) for queue in self.queues])
            self.until(lambda: not any(one.ferry or one.mover for one in self.partitions()), 60)
            left = [(one.id, one.fold.counters()) for one in self.partitions() if one.fold.blocks]
            if not got and not left and self.served_by_one():
                break
            self.loop.run_for(0.5 if got else 5.0)  # perhaps an answer was lost, with a node that had been fenced
        else:
            raise Violation(f"messages are there that cannot be received: {left}")
        self.history.finished(found)
        if self.scenario == "outages" and self.ledger.sealed:
            raise Violation(f"the store was away, nodes were not, and {self.ledger.sealed} was fenced")

    def _drained_once(self, queue: Queue, found: dict[bytes, list[tuple[Queue, int]]]) -> int:
        self.held[queue.pid] = []

        async def work() -> None:
            while await self._receive_some(queue, 10, 30, 0):
                front, pool = self.front(), self.held[queue.pid]
                self.held[queue.pid] = []
                for _, msg, claim in pool:
                    places = found.setdefault(msg.payload, [])
                    if (queue, claim.number) not in places:
                        places.append((queue, claim.number))
                    self.history.taken(queue, msg, claim.number)
                handles = [handle for handle, _, _ in pool]
                await self.call(front, queue, lambda target: front.delete(target, handles))  # noqa: B023

        before = sum(map(len, found.values()))
        task = self.start_call(work())
        self.until(task.done, 120)
        return sum(map(len, found.values())) - before


QUORUM_FAULTS = {
    "kill": 4, "kill_manager": 1, "gone": 1, "stop": 5, "cut_store": 5, "cut": 3, "machine": 2, "wipe": 2, "outage": 1,
    "slow": 2, "drain": 3, "rolling": 1,
}  # fmt: skip
LOCAL_FAULTS = {
    "kill": 4, "kill_manager": 1, "gone": 1, "stop": 3, "drain": 4, "rolling": 1, "disk": 3, "metadata": 3, "power": 3,
}  # fmt: skip


def _usual(world: ClusterWorld) -> None:
    """All that can go wrong, more or less often."""


def _slow(world: ClusterWorld) -> None:
    """Rows, reads and transactions take long, and each machine has something else."""
    machines = world.machines
    machines.slow_seconds, machines.late, machines.lost, machines.repairs = 0.005, 0.1, 0.03, False
    world.ledger.late = 0.05
    world.trouble = 1.5
    world.faults.update(outage=0, slow=0, kill=8, kill_manager=3, stop=4, cut_store=4, wipe=4)


def _moving(world: ClusterWorld) -> None:
    """Shards move all the time, and transactions take effect late."""
    world.ledger.late = 0.05
    world.trouble = 0.7
    world.faults.update(outage=0, drain=12, rolling=4, stop=2)


def _quiet(world: ClusterWorld) -> None:
    """Little is written, so that a zombie is not found out by its own rows."""
    world.pace = 0.3
    world.trouble = 4.0
    world.weights.update(send=12, receive=4, delete=2, change=0, count=40)
    world.faults.update(outage=0, split=30, stop=10)


def _zombies(world: ClusterWorld) -> None:
    """Nodes that are well lose their heartbeats, and answers to their reads of entries are late."""
    machines = world.machines
    machines.slow_seconds, machines.lost, machines.repairs = 0.005, 0.1, False
    machines.fence_seconds = world.random.choice((0.0, 0.3, 2.0))
    world.net.slow_seconds = 0.002
    world.trouble = 3.0
    world.faults = {"zombie": 10, "kill": 1}


def _outages(world: ClusterWorld) -> None:
    """Only the store is away, for everybody: nobody is to fence anybody."""
    world.machines.late = world.machines.lost = world.net.late = world.net.lost = world.ledger.late = 0.0
    world.trouble = 12.0
    world.faults = {"outage": 1}


SCENARIOS: dict[str, Callable[[ClusterWorld], None]] = {
    "usual": _usual, "slow": _slow, "moving": _moving, "quiet": _quiet, "zombies": _zombies, "outages": _outages
}  # fmt: skip


def simulate_cluster(seed: int, seconds: float = SECONDS, *, local: bool | None = None) -> Report:
    """Run one seed.  Raises :class:`Violation`, :class:`Stuck`, or whatever broke."""
    return ClusterWorld(seed, local=local).run(seconds)


__all__ = ["ClusterWorld", "JournalDamaged", "simulate_cluster"]
