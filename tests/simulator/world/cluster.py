"""A simulated cluster: several nodes, their journal and metadata, frontends and clients, all from one seed.

On the *quorum* journal the nodes are machines of their own over three machines that keep tables; on the *local* one
they are processes of one machine.  Everything fails (:mod:`tests.simulator.actors.troubles`), in some runs one thing
more than others (:mod:`tests.simulator.scenarios`), while queues are split and drained
(:mod:`tests.simulator.world.maps`). Clients go on meanwhile (:mod:`tests.simulator.actors.callers`), and
:mod:`tests.simulator.checks.history` says whether what they were told can be.  In the end everything is healed, and has
to work again within a bounded time; then all that there is, is received.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from random import Random
from typing import Any
from unittest import mock
from uuid import UUID

import msgspec

from backend.api import AckLevel, Command
from backend.cluster.failure_detector import BEAT_SECONDS, DEAD_SECONDS
from backend.cluster.liveness import WATCH_SECONDS
from backend.cluster.member import POLL_SECONDS
from backend.rpc.client import ClientLimits
from backend.rpc.cluster_client import ClusterBackend
from backend.serving.partition import OpenPartition
from metadata_service.models import NewQueue
from metadata_service.models import Queue as StoredQueue
from metadata_service.store import StoreError
from tests.simulator.actors.callers import Callers
from tests.simulator.actors.troubles import FRONTENDS, Troubles
from tests.simulator.checks.history import Place, QueueHistory, RunHistory
from tests.simulator.checks.ledger import HostEntries, Ledger, SessionEntries
from tests.simulator.checks.model import Violation
from tests.simulator.clocks import wrong_clocks
from tests.simulator.draws import vary
from tests.simulator.scenarios import SCENARIOS
from tests.simulator.sessions import in_virtual_time
from tests.simulator.world.catalog import ACCOUNT, Catalog, HostQueues, arn_of
from tests.simulator.world.disk import SimDisk
from tests.simulator.world.fronts import Front
from tests.simulator.world.hosts import HostLoop, Net
from tests.simulator.world.loop import close_dead
from tests.simulator.world.machines import NetMachines
from tests.simulator.world.maps import Maps
from tests.simulator.world.nodes import Nodes
from tests.simulator.world.runs import RecordedRun, Report, deterministic
from tests.simulator.world.store import SimStore
from tests.simulator.world.wires import ServerHost, wire

SHARDS = 16
"""Fewer than a real cluster has: each has more to go through."""
SECONDS = 25.0
"""Virtual time of a run before everything is healed."""
RESTS_SECONDS = 120.0
"""So long after the last fault everything works again."""
FORGET_SECONDS = 10.0
"""Longer than a copy of a call is on its way (:data:`tests.simulator.world.wires.MAY_ARRIVE_TWICE`)."""
DAMAGE = ("journal damage: ", "stopped: ")
"""Beginnings of the lines with which a node reports a loss."""


class ClusterWorld(RecordedRun):
    loop: HostLoop
    limits = ClientLimits(call_seconds=4.0)

    def __init__(
        self,
        seed: int,
        *,
        local: bool | None = None,
        scenario: str | None = None,
        focus: Callable[[ClusterWorld], None] | None = None,
        clocks: bool = False,
        trace: bool = False,
        varied: bool = False,
        sessions: bool = False,
    ) -> None:
        """``focus`` is what makes one thing still more likely than the scenario does.

        ``clocks``: some wall clocks are wrong (:mod:`tests.simulator.clocks`).  ``varied``: sizes, speeds and what
        clients do differ further (:func:`tests.simulator.draws.vary`).
        ``sessions``: on the quorum journal entries are changed by the product's own code, over simulated sessions.
        """
        super().__init__(seed, trace)
        random = self.random
        self.local = random.random() < 0.3 if local is None else local
        chosen = random.choice(tuple(SCENARIOS))
        self.scenario = scenario or ("usual" if self.local else chosen)
        self.error: BaseException | None = None
        self.over = False
        """Everything is healed."""
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
        self.sessions = sessions
        self.ledger.timed_out = Random(f"sessions of {seed}").choice((0.0, 0.02, 0.1))
        self.disk = SimDisk(Random(random.random()), latency_seconds=(0.0001, random.choice((0.0005, 0.005))))
        self.store = SimStore(Random(random.random()))
        self.history = RunHistory()
        self.queues: list[QueueHistory] = []
        self.mapped: list[int] = []
        """Ids of the queues whose maps change."""
        self.spread = random.choice((0.0, 0.3))
        """Probability that a queue is one of them."""
        self.chances = Random(f"chances of {seed}")
        self.deleted = self.chances.choice((0.0, 0.0, 0.3)) if focus is None else 0.0
        """Share of the queues that are deleted, of those that are no dead-letter queues."""
        self.all_die = 0.5
        """Probability that all nodes are killed in the end, and start again."""
        self.doomed: list[QueueHistory] = []
        """They are."""
        self.fronts: list[Front] = []
        self.catalog = Catalog(seed % 1000 * 1000 + 1, self._changed)
        self.nodes = Nodes(self)
        self.callers = Callers(self, Random(random.random()))
        self.maps = Maps(self, Random(random.random()))
        self.troubles = Troubles(self)
        self.tasks: list[asyncio.Task[Any]] = []
        """Tasks of the world outside.  None may fail."""
        self.when_answering: Callable[[ServerHost, Command[Any]], None] | None = None
        """Called with each answer before it leaves a node."""
        self.weak_levels: tuple[AckLevel, ...] = (AckLevel.LEADER, AckLevel.NONE)
        self.when_mapped: Callable[[StoredQueue], None] | None = None
        """Called with each map of a queue that adds partitions, when it takes effect."""
        self.always: frozenset[str] = frozenset()
        """Queues that there are in any case."""
        self.fronts += [Front(name, self.queues_for(name)) for name in FRONTENDS]
        self.haste = 1.0
        """Share of the usual time that faults last and failures take to be detected."""
        self.pairs: tuple[int, ...] = (2, 3)
        """Possible numbers of queues, beside those of special kinds."""
        self.receives_max: tuple[int, ...] = (1, 2, 4)
        """Possible numbers of receives before a message is a dead letter, by queue."""
        self._stack = contextlib.ExitStack()
        SCENARIOS[self.scenario].apply(self)
        if varied:
            vary(self)
        if focus is not None:
            focus(self)
        if clocks:
            wrong_clocks(self)
        self._make_queues()

    def _make_queues(self) -> None:
        random = self.random
        for number in range(random.choice(self.pairs)):
            fifo = random.random() < 0.5
            to_dead = random.random() < 0.6 or "dead" in self.always
            dead = self._queue(f"dead{number}", fifo) if to_dead else None
            self._queue(f"queue{number}", fifo, dead_letter=dead)
        self._queue("plain", random.random() < 0.5)
        if random.random() < 0.5 or "weak" in self.always:
            self._queue("weak", False, random.choice(self.weak_levels))
        if random.random() < 0.3 or "strong" in self.always:
            self._queue("strong", random.random() < 0.5, AckLevel.ALL)
        self.doomed += [one for one in self.queues if not one.feeds and self.chances.random() < self.deleted]

    def _queue(
        self, name: str, fifo: bool, ack_level: AckLevel = AckLevel.QUORUM, dead_letter: QueueHistory | None = None
    ) -> QueueHistory:
        random, number = self.random, len(self.queues) + 1
        queue = QueueHistory(number, arn_of(name), fifo, ack_level, number.to_bytes(16, "big"))
        attributes = {"HoldfastAckLevel": ack_level.name.lower()}
        if fifo:
            attributes.update(FifoQueue="true", DeduplicationScope="messageGroup")
        if dead_letter is not None:
            queue.dead_letter, queue.max_receives = dead_letter, random.choice(self.receives_max)
            policy = {"deadLetterTargetArn": dead_letter.arn, "maxReceiveCount": queue.max_receives}
            attributes["RedrivePolicy"] = msgspec.json.encode(policy).decode()
            dead_letter.feeds.append(queue)
        mapped = random.random() < self.spread
        self.queues.append(queue)
        if mapped:
            self.mapped.append(number)
        partitions = self.catalog.new_partitions(random.choice((1, 2)) if mapped else 1)
        stored = NewQueue(ACCOUNT, name, attributes, {}, 0, 0).made(number, partitions)
        self.catalog.add(msgspec.structs.replace(stored, handle_key=number.to_bytes(16, "big")))
        return queue

    def _changed(self, stored: StoredQueue) -> None:
        known = self.queues[stored.queue_id - 1].partitions
        new = [one.id for one in stored.partitions if one.id not in known]
        known += new
        if self.when_mapped is not None and stored.version > 1 and new:
            self.when_mapped(stored)
        for front in self.fronts:
            if self.random.random() < 0.5:
                front.hear_of(stored)

    def partitions_of(self, queue: QueueHistory) -> set[int]:
        """The partitions that it has now, or had last."""
        return {one.id for one in self.catalog.last(queue.queue_id).partitions}

    # --- reports of the run --------

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
        for report in self.reports:
            if report.startswith(DAMAGE):
                raise Violation(f"nothing that was durable is lost, and a node says: {report}")
        for task in self.tasks:
            if task.done() and not task.cancelled():
                task.result()
        if self.local:  # on Cassandra a zombie continues for a while, and its answers do not count
            owned = [shard for one in self.nodes.living() if one.node is not None for shard in one.node.owned]
            if len(owned) != len(set(owned)):
                raise Violation("a shard is served twice")

    # --- what processes reach ---

    def server(self, name: str) -> ServerHost | None:
        return self.nodes.processes.get(name)

    def answering(self, server: ServerHost, command: Command[Any]) -> None:
        if self.when_answering is not None:
            self.when_answering(server, command)

    def entries(self, name: str) -> Any:
        """The entries of logs, shards and nodes, for this process."""
        if self.local:
            return self.store
        return SessionEntries(self.ledger, name, self.loop) if self.sessions else HostEntries(self.ledger, name)

    def queues_for(self, name: str) -> HostQueues:
        return HostQueues(self.catalog, self.entries(name))

    def everywhere(self, payload: bytes) -> bool:
        """True if all replicas have, or had, this message."""
        return self.local or self.machines.had_by_all(payload[:8])

    async def _begin_front(self, front: Front) -> None:
        store = self.entries(front.name)

        async def nodes() -> dict[str, Any]:
            return {beat.node: beat.address for beat in await store.heartbeats()}

        while True:
            try:
                backend = await ClusterBackend.connect(nodes, secret=bytes(16), limits=self.limits)
                front.begin(backend)
                return
            except StoreError:
                await asyncio.sleep(0.1)

    # --- the run ---

    def run(self, seconds: float = SECONDS) -> Report:
        try:
            self.begin()
            self._run(seconds)
        finally:
            self.end()
        self.counts.update(self.history.counts)
        return self.report()

    def begin(self) -> None:
        """Start everything, until it works."""
        self._stack.enter_context(deterministic(self.random, self.reports))
        self._stack.enter_context(self._patched())
        loop, random = self.loop, self.random
        started = [front.run(loop, self._begin_front(front)) for front in self.fronts]
        for name in self.nodes.names:
            self.tasks.append(loop.create_task(self.nodes.keep(name, Random(random.random()))))
        if not self.until(lambda: all(one.done() for one in started) and self.served_by_one(), 120):
            raise Violation("the cluster does not begin")

    def end(self) -> None:
        with self._stack:
            for front in self.fronts:
                front.alive = False
            close_dead(self.loop.bury())

    @contextlib.contextmanager
    def _patched(self) -> Iterator[None]:
        random = Random(self.random.random())
        patches: dict[str, Any] = {
            "backend.api.SHARDS": SHARDS,
            "backend.recovery.checkpointer.LEFT_BEHIND_SECONDS": Random(f"sweeps of {self.seed}").choice((0.0, 3.0)),
            "backend.serving.orphan_collector.FORGET_SECONDS": FORGET_SECONDS,
            "backend.cluster.member.SHARDS": SHARDS,
            "backend.cluster.member.BEAT_SECONDS": BEAT_SECONDS * self.haste,
            "backend.cluster.member.POLL_SECONDS": POLL_SECONDS * self.haste,
            "backend.cluster.liveness.WATCH_SECONDS": WATCH_SECONDS * self.haste,
            "backend.cluster.failure_detector.BEAT_SECONDS": BEAT_SECONDS * self.haste,
            "backend.cluster.failure_detector.DEAD_SECONDS": DEAD_SECONDS * self.haste,
            "backend.rpc.cluster_client.RemoteBackend": wire(self),
            "backend.rpc.cluster_client.random": random,
            "backend.journal.cassandra.retrying_tables.random": random.random,
            "backend.journal.cassandra.journal.secrets": mock.Mock(randbits=random.getrandbits),
            **in_virtual_time(self.loop, random),
            "backend.partition_settings.random": random,
            "frontend.queues.partitioned.uuid": mock.Mock(uuid4=lambda: UUID(int=random.getrandbits(128))),
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
            self.tasks.append(loop.create_task(self.callers.run(Random(random.random()))))
        if self.mapped:
            self.tasks.append(loop.create_task(self.maps.run()))
        for queue in self.doomed:
            self.tasks.append(loop.create_task(self._delete(queue, self.chances.uniform(0.2, 0.9) * seconds)))
        self.ledger.on_change = self.troubles.on_change
        if self.troubles.pause:
            self.tasks.append(loop.create_task(self.troubles.run(Random(random.random()))))
        until = loop.now + seconds
        while loop.now < until:
            loop.run_for(0.5)
            self.check()
        self.heal()
        self._rest()
        if random.random() < self.all_die and self.scenario != "outages":
            self.nodes.kill_all()
            if self.local and random.random() < 0.5:
                self.disk.crash()
            self._rest()
        self._empty()

    async def _delete(self, queue: QueueHistory, after_seconds: float) -> None:
        await asyncio.sleep(after_seconds)
        await self.callers.delete_queue(queue)

    def heal(self) -> None:
        """No more faults, and those that there are end."""
        self.over = True
        self.net.late = self.net.lost = self.net.twice = self.machines.lost = self.machines.late = 0.0
        self.ledger.late = self.ledger.timed_out = self.store.failing = 0.0
        self.ledger.commit_delay = None
        self.machines.heal()

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
        living = self.nodes.living()
        if len(living) < len(self.nodes.names) - len(self.nodes.gone) or not all(
            one.node is not None and one.node.ready for one in living
        ):
            return False
        owned = [(shard, one.node.ownership.log_id) for one in living if one.node for shard in one.node.owned]
        return (
            sorted(owned) == sorted((entry.shard, entry.owner_log) for entry in shards.values())
            and len(owned) == SHARDS
        )

    def _shared_out(self) -> bool:
        """Each node that lives has something to do."""
        return self.served_by_one() and all(one.node is not None and one.node.owned for one in self.nodes.living())

    def _rest(self) -> None:
        """Check that after all faults the cluster works again, and that all operations in progress complete."""
        calls = self.callers.calls
        if not self.until(lambda: self.served_by_one() and not calls, RESTS_SECONDS):
            owned = {one.name: sorted(one.node.owned) if one.node else None for one in self.nodes.living()}
            raise Violation(f"the cluster does not come to rest: {owned}, {len(calls)} calls, {self.reports[-3:]}")
        self.nodes.undrain()
        if not self.until(self._shared_out, RESTS_SECONDS):
            owned = {one.name: sorted(one.node.owned) if one.node else None for one in self.nodes.living()}
            raise Violation(f"a node lives and gets no shards: {owned}")
        if not self.until(self._arrived, RESTS_SECONDS):
            raise Violation("messages are on their way and do not arrive")
        if not self.until(self.maps.settled, RESTS_SECONDS):
            raise Violation("a partition waits for tokens for ever")

    def _arrived(self) -> bool:
        return not any(one.transfer_task or one.fanout_task or one.move_worker for one in self._partitions())

    def _partitions(self, *, deleted: bool = False) -> list[OpenPartition]:
        """All that is open of queues that there are, or of others."""
        gone = self.catalog.deleted
        return [
            one
            for one in self.nodes.partitions()
            if one.fold.settings is not None and (one.fold.settings.queue_id in gone) == deleted
        ]

    def _empty(self) -> None:
        """Receive and delete all messages, and compare them with the answers to clients."""
        self.loop.run_for(40.0)  # what was in flight is visible again
        self.check()
        found: dict[bytes, list[tuple[QueueHistory, Place]]] = {}
        for _ in range(100):
            there = [queue for queue in self.queues if queue.queue_id in self.catalog.queues]
            got = sum([self.callers.take_all(queue, found) for queue in there])
            self.until(self._arrived, 60)
            left = [(one.id, one.fold.counters()) for one in self._partitions() if one.fold.blocks]
            if not got and not left and self.served_by_one():
                break
            self.loop.run_for(0.5 if got else 5.0)  # perhaps an answer was lost, with a node that had been fenced
        else:
            raise Violation(f"messages are there that cannot be received: {left}")
        self.history.finished(found)
        if rotten := [(one.id, one.fold.quarantined) for one in self.nodes.partitions() if one.fold.quarantined]:
            raise Violation(f"nothing that was durable is lost, and messages are quarantined: {rotten}")
        if not self.until(self.maps.finished, RESTS_SECONDS):
            raise Violation("a partition that has drained does not retire")
        if self.scenario == "outages" and self.ledger.sealed:
            raise Violation(f"the store was away, nodes were not, and {self.ledger.sealed} was fenced")
        if self._partitions(deleted=True):  # the deletion could not notify all of its partitions
            for process in self.nodes.living():
                self.nodes.kill(process)
            self._rest()
            if not self.until(lambda: not self._partitions(deleted=True), RESTS_SECONDS):
                stays = [one.id for one in self._partitions(deleted=True)]
                raise Violation(f"what deleted queues have left stays: partitions {stays}")


def simulate_cluster(seed: int, seconds: float = SECONDS, *, local: bool | None = None) -> Report:
    """Run one seed.  Raises :class:`Violation`, :class:`Stuck`, or whatever broke."""
    return ClusterWorld(seed, local=local).run(seconds)
