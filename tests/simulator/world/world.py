"""One simulated run: a backend node with its disk, metadata and clients, all from one seed.

The driver stands outside the event loop.  In each step it lets a client make a call, or lets something go wrong, and
then lets a little time pass.  Now and then it waits until nothing is under way, looks at all that is stored, and
compares what recovery makes of the journal with what is in memory.
"""

import asyncio
import copy
from collections import Counter
from random import Random
from typing import Any

from backend.api import Delete, OverLimit, PartitionSettings, Receive, ReceiveOptions, StorageFull, Unavailable
from backend.clocks.node_clock import SteadyClock
from backend.engine import snapshot
from backend.engine.blocks import DEAD
from backend.engine.fold import Fold
from backend.incarnation import Incarnation
from backend.journal.local.log import LogSettings
from backend.journal.rows import RecordView
from backend.lookups import StreamResolver
from backend.node import Node, NodeSettings
from backend.serving.partition import OpenPartition
from metadata_service.store import StoreError
from tests.simulator.actors.clients import Clients
from tests.simulator.actors.rot import Flip, flip_a_bit
from tests.simulator.checks.model import Model, QueueModel, Violation
from tests.simulator.draws import BODY_BYTES_COMMON, BODY_BYTES_MAX, node_draws
from tests.simulator.world.disk import SimDisk
from tests.simulator.world.loop import SimLoop, Stuck, close_dead
from tests.simulator.world.runs import RecordedRun, Report, deterministic
from tests.simulator.world.store import SimStore

EPOCH = 1_700_000_000.0
ROOT = "/journal"


class SimWorld(RecordedRun):
    def __init__(self, seed: int, trace: bool = False, rot: bool = False) -> None:
        super().__init__(seed, trace)
        self.rot = Random(-seed) if rot else None
        """Flips bits, where the disk is to rot."""
        self.flips: list[Flip] = []
        random = self.random
        self.disk = SimDisk(
            Random(random.random()),
            latency_seconds=random.choice(((0.0001, 0.002), (0.00005, 0.0002), (0.001, 0.05))),
            cold=random.choice((0.0, 0.3, 1.0)),
        )
        self.disk.on_power_cut = self._halt
        self.store = SimStore(Random(random.random()))
        self.latency = self.disk.latency_seconds
        draws = self.draws = node_draws(seed)
        self.settings = NodeSettings(
            "node",
            LogSettings(segment_bytes=draws.segment_bytes, low_water_bytes=32 << 10, row_bytes=draws.row_bytes),
            checkpoint_segments=draws.checkpoint_segments,
            payload_cache_bytes=random.choice((0, 2000, 20_000, 1 << 20)),
        )
        self.payload_max = min(self.settings.log.segment_bytes, 64 << 10) // random.choice((12, 60))
        self.big_bodies = draws.big_bodies
        """Messages that are still to have bodies near 1 MiB."""
        self.groups = random.choice((1, 3, 8))
        self.fair = random.random() < 0.6
        self.suspended = 0.0
        self.wall_offset = 0.0
        self.loop = SimLoop(random, 0.0, lag=random.choice((0.0, 0.1, 0.5)))  # type: ignore[abstract]
        self.loop.cost_seconds = draws.cost_seconds
        self.model = Model()
        self.queues: list[QueueModel] = []
        self.old: list[QueueModel] = []
        """Queues that were deleted."""
        self._last_partition = 0
        self._dead: list[asyncio.Task[None]] = []
        self.node: Node
        self.clock: SteadyClock
        self.streams_resolver: StreamResolver | None = None
        """Lookups of topics, where there are any."""
        self.clients = Clients(self, Random(random.random()))
        self.pace = random.choice((0.0005, 0.002, 0.02))
        """Mean seconds between steps."""
        self.trouble = random.choice((0.0, 0.004, 0.01, 0.03))
        """Probability of a fault, by step."""
        self._make_queues()

    # --- queues ---

    def _make_queues(self) -> None:
        random = self.random
        for number in range(random.choice((1, 2, 3)) + self.draws.more_queues):
            dead = None
            if random.random() < 0.6:
                dead = self.add_queue(f"dead{number}", random.random() < 0.5, None)
            fifo = dead.fifo if dead is not None else random.random() < 0.5
            self.add_queue(f"queue{number}", fifo, dead)

    def add_queue(self, name: str, fifo: bool, dead_letter: QueueModel | None) -> QueueModel:
        random = self.random
        self._last_partition += 1
        number = self._last_partition
        settings = PartitionSettings(
            partition=number * 7919,
            queue_id=number,
            version=1,
            arn=f"{name}.{number}",
            handle_key=number.to_bytes(16, "big"),
            fifo=fifo,
            retention_seconds=random.choice((60, 3600, 345_600, 345_600)),
            delay_seconds=random.choice((0, 0, 0, 1, 5)),
            in_flight_limit=random.choice((3, 20, 120_000)),
            token_window_seconds=random.choice(self.draws.windows_seconds),
            retry_window_seconds=random.choice(self.draws.windows_seconds[:2]),
            messages_max=random.choice((0, 0, 0, 0, 100)),
            bytes_max=random.choice((0, 0, 0, 0, 60_000)),
        )
        queue = QueueModel(settings, dead_letter, random.choice((1, 2, 3)))
        queue.lossy = dead_letter is not None and dead_letter.lossy
        self.store.queues[queue.pid] = settings
        self.queues.append(queue)
        if dead_letter is not None:
            dead_letter.enters = True
        return queue

    def replace_queue(self) -> None:
        """Delete a queue and make another, without the deleted one as its dead-letter queue, as the frontend does."""
        queue = self.random.choice(self.queues)
        if queue.unsettled:
            return
        self.clients.drop(queue)
        self.queues.remove(queue)
        self.old.append(queue)
        dead = queue.dead_letter
        self.add_queue("again", queue.fifo, None if dead is None or dead.unsettled else dead)

    def body_bytes_max(self) -> int:
        """Length of the longest body that may be sent."""
        return BODY_BYTES_MAX if self.draws.big_bodies else max(BODY_BYTES_COMMON, self.payload_max)

    # --- time ---

    def wall(self) -> float:
        return EPOCH + self.loop.now + self.suspended + self.wall_offset

    def now(self) -> int:
        """The shard's time."""
        return self.clock()

    # --- reports of the run --------

    def count(self, what: str) -> None:
        self.counts[what] += 1

    def _halt(self) -> None:
        self.loop.halted = True

    def check(self) -> None:
        """Raises what went wrong since the last look."""
        if self.clients.error is not None:
            raise self.clients.error
        if self.loop.failures:
            raise Violation(self.loop.failures[0])

    # --- processes ---

    def start(self) -> None:
        """Start the service, as often as it takes."""
        for attempt in range(50):
            self.clock = SteadyClock(self.wall, lambda: self.loop.now, lambda: self.loop.now + self.suspended)
            work = Node.start(
                self.disk, ROOT, self.store, self.store, clock=self.clock, settings=self.settings,
                streams=self.streams_resolver,
            )  # fmt: skip
            try:
                node = self.loop.complete(work, 300)
            except (StoreError, OSError, StorageFull, Unavailable) as error:
                self.event("not started", type(error).__name__)
                if attempt > 20:
                    self.heal()
                self._end_process(power=False)
                continue
            if node is not None:
                self.node = node
                self.event("started", self.now(), self.wall())
                return
            self.check()
            self._end_process(power=True)
        raise Violation("the service does not start")

    def _end_process(self, *, power: bool) -> None:
        self.check()
        self._dead += self.loop.bury()
        self.clients.died()
        if power:
            self.disk.crash()
        else:
            self.disk.kill()
        down = self.random.choice((0.01, 1.0, 1.0, 70.0)) if self.random.random() < 0.5 else 0.1
        self.loop = SimLoop(self.random, self.loop.now + down, self.loop.lag)  # type: ignore[abstract]
        self.loop.cost_seconds = self.draws.cost_seconds

    def crash(self, *, power: bool) -> None:
        """The process dies, or the machine; the service starts again."""
        self.event("power lost" if power else "killed")
        self._end_process(power=power)
        self.start()
        if self.random.random() < 0.2:
            self._recovered_again()

    def _recovered_again(self) -> None:
        """Recovery twice gives the same state."""
        if any(one.transfer_task or one.fanout_task or one.move_worker for one in self.partitions()):
            return
        before = self.folds()
        self._end_process(power=self.random.random() < 0.5)
        self.start()
        self._compare(before, "a second recovery")

    def restart(self) -> None:
        """A clean end and a new start."""
        self.event("restart")
        try:
            self.loop.complete(self.node.close(), 600)
        except (StoreError, OSError) as error:
            self.event("not closed", type(error).__name__)
        self.check()
        self._end_process(power=self.loop.halted)
        self.start()

    # --- what the driver may look at ---

    @property
    def incarnation(self) -> Incarnation:
        incarnation = self.node._incarnation
        assert incarnation is not None
        return incarnation

    def partitions(self) -> list[OpenPartition]:
        return list(self.incarnation.partitions.values())

    def quiet(self) -> bool:
        return (
            self.node.ready
            and self.incarnation.log.barrier() is None
            and not any(
                partition.transfer_task or partition.fanout_task or partition.move_worker
                for partition in self.partitions()
                if self.sound(partition)
            )
        )

    def sound(self, partition: OpenPartition) -> bool:
        """No damage has hit the partition, or what its messages go to."""
        return not any(queue.lossy for queue in (*self.queues, *self.old) if queue.pid == partition.id)

    def folds(self) -> dict[int, Any]:
        """Return the states that a recovery has to give again, by partition."""
        return {partition.id: partition.fold for partition in self.partitions()}

    def state_of(self, fold: Any, now: int) -> dict[str, Any]:
        """Return the state that two recoveries of a partition have to agree on."""
        return _state(fold, now)

    def _compare(self, before: dict[int, Any], what: str) -> None:
        after = self.folds()
        now = max(self.now(), *(fold.now for fold in (*before.values(), *after.values())), 0)
        damaged = {queue.pid for queue in (*self.queues, *self.old) if queue.lossy}
        old = {number: self.state_of(fold, now) for number, fold in before.items() if number not in damaged}
        # A copy, for its own clock may be behind what the old one's has counted since the last row.
        new = {
            number: self.state_of(copy.deepcopy(fold), now) for number, fold in after.items() if number not in damaged
        }
        if old != new:
            raise Violation(f"{what} gives another state: {_difference(old, new)}")
        self.counts["compared"] += 1

    # --- what goes wrong ---

    def heal(self) -> None:
        self.disk.capacity_bytes = 1 << 40
        self.disk.failing_syncs = 0
        self.disk.passing = 0.0
        self.disk.latency_seconds = self.latency
        self.store.failing = 0.0

    def trouble_now(self) -> None:
        random = self.random
        what = random.choices(_TROUBLES, _TROUBLE_WEIGHTS)[0]
        if what in ("kill", "power"):
            self.crash(power=what == "power")
        elif what == "cut":
            self.disk.cut_power_at(self.disk.operations + random.randrange(40))
        elif what == "restart":
            self.restart()
        elif what == "sync":
            self.disk.failing_syncs = random.choice((1, 1, 3))
        elif what == "full":
            used = (1 << 40) - self.disk.free_bytes("/") if self.disk.capacity_bytes == 1 << 40 else 0
            self.disk.capacity_bytes = used + random.randrange(100_000)
        elif what == "files":
            self.disk.passing = random.choice((0.02, 0.3, 1.0))
        elif what == "store":
            self.store.failing = random.choice((0.05, 0.3, 1.0))
        elif what == "slow":
            self.disk.latency_seconds = (0.01, random.choice((0.1, 1.0)))
        elif what == "heal":
            self.heal()
        elif what == "clock":
            self.wall_offset += random.uniform(-400, 400)
        elif what == "sleep":
            self.suspended += random.uniform(0.5, 100)
        elif what == "leap":
            self.loop.run_for(random.choice((2, 20, 100)))
        elif what == "purge":
            self.clients.purge(random.choice(self.queues))
        elif what == "replace":
            self.replace_queue()
        else:
            self.verify()
        self.count(what)

    def _flip(self, rot: Random) -> None:
        flip = flip_a_bit(self.disk, rot, {flip.path for flip in self.flips})
        if flip is None:
            return
        self.flips.append(flip)
        self.event("flipped", flip.path, flip.offset, flip.hit)
        if flip.hit == "body":
            msg = self.model.messages.get(flip.payload)
            if msg is not None:
                msg.must, msg.relaxed, msg.rotten = False, True, msg.may
        elif flip.hit != "frame":
            queues = [*self.queues, *self.old]
            hit = {queue for queue in queues if flip.hit == "checkpoint" or queue.pid == flip.partition}
            while more := {q for q in queues if q not in hit and (q.reach() & hit or any(q in h.reach() for h in hit))}:
                hit |= more
            for queue in hit:
                queue.lossy = queue.came_back = True
            for msg in self.model.messages.values():
                if msg.home.lossy:
                    msg.must, msg.relaxed = False, True

    def _check_damage(self) -> None:
        """Check that stopped partitions were hit by damage and are reported, and undeliverable messages too."""
        hit = {flip.path for flip in self.flips if flip.hit in ("record", "checkpoint")}
        for damage in self.node.damage:
            if not any(path in damage for path in hit):
                raise Violation(f"damaged: {damage}")

    # --- a look at everything ---

    def run_until_idle(self) -> None:
        """Until nothing is under way: faults healed, calls answered, transfers arrived."""
        self.heal()
        self.disk.cut_power_at(1 << 60)
        loop = self.loop
        loop.halted = False
        loop.until(lambda: self.node.ready, 120)
        loop.until(lambda: not self.clients.calls, 300)
        self.check()
        for queue in [*self.queues, *self.old]:
            if queue.purge_asked and not queue.drop_asked:
                self.clients.start(self.clients.do_purge(queue, 0))
            if queue.drop_asked and not queue.dropped:
                self.clients.start(self.clients.do_drop(queue, 0))
        loop.until(lambda: not self.clients.calls, 300)
        self.check()
        loop.until(self.quiet, 900)
        self.check()

    def verify(self) -> None:
        """Wait until nothing is under way, and hold all that is stored against the model."""
        self.run_until_idle()
        if self.random.random() < 0.5:
            self.loop.complete(self.node.checkpoint(), 300)  # possible again, whatever became of earlier ones
        self._check_damage()
        started_at = self.now()
        found = self.loop.complete(self._stored(), 300)
        assert found is not None
        self.check()
        self.model.seen(found, started_at, self.now())
        held = 0
        for partition in self.partitions():
            _check_fold(partition)
            if partition.waiters:
                raise Violation(f"partition {partition.id} has waiters that nobody is")
            held += sum(len(payload) + 300 for _, payload in partition.cached.values())
        if held + self.incarnation.payload_cache.bytes_left != self.settings.payload_cache_bytes:
            raise Violation(f"the payload cache holds {held}, and {self.incarnation.payload_cache.bytes_left} are left")
        self.event("looked", len(found))

    async def _stored(self) -> dict[bytes, list[tuple[QueueModel, int, int]]]:
        found: dict[bytes, list[tuple[QueueModel, int, int]]] = {}
        models = {queue.pid: queue for queue in self.queues}
        for partition in self.partitions():
            queue = models.get(partition.id)
            if queue is None or queue.lossy:
                continue
            fold = partition.fold
            fold.advance(self.now())
            living = [
                (block.base + index, block.positions[index], block.sent[index])
                for block in fold.blocks.values()
                for index, state in enumerate(block.states)
                if state != DEAD
            ]
            counted, stored, readable = fold.stored_bytes, 0, True
            views = await self.incarnation.log.read_many([position for _, position, _ in living])
            for (number, position, sent), view in zip(living, views, strict=True):
                again = fold.locate(number)
                if again is not None and (there := again[0].positions[again[1]]) != position:
                    (view,) = await self.incarnation.log.read_many([there])  # the cleaner was here
                if not isinstance(view, RecordView):
                    if view.file in {flip.path for flip in self.flips}:
                        readable = False
                        continue
                    raise Violation(f"message {number} of {queue.arn} cannot be read: {view}")
                found.setdefault(view.body, []).append((queue, number, sent))
                stored += len(view.body)
            if stored != counted and readable:
                raise Violation(f"{queue.arn} counts {counted} bytes, and stores {stored}")
            messages_max, bytes_max = queue.settings.messages_max, queue.settings.bytes_max
            if not queue.enters:  # messages from other queues may exceed the limits
                if messages_max and len(living) > messages_max:
                    raise Violation(
                        f"{queue.arn} stores {len(living)} messages, and at most {messages_max} were let in"
                    )
                if bytes_max and counted >= bytes_max + self.body_bytes_max() + 10:
                    raise Violation(f"{queue.arn} stores {counted} bytes, and at most {bytes_max} were let in")
        return found

    def verify_and_recover(self) -> None:
        """Check that the state in memory and its recovery from the journal are the same."""
        self.verify()
        self.loop.until(self.quiet, 900)
        before = self.folds()
        self._end_process(power=self.random.random() < 0.5)
        self.start()
        self._compare(before, "recovery")

    # --- the run ---

    def step(self) -> None:
        """One call of one client."""
        self.clients.step()

    def run(self, steps: int) -> Report:
        random = self.random
        with deterministic(random, self.reports, self.draws.tick_seconds):
            try:
                self.start()
                for step in range(1, steps + 1):
                    self.step()
                    if self.trouble and random.random() < self.trouble:
                        self.trouble_now()
                    if self.rot is not None and self.rot.random() < 0.004:
                        self._flip(self.rot)
                    if random.random() < 0.8:
                        self.loop.run_for(random.expovariate(1 / self.pace))
                    if self.loop.halted or self.disk.is_cut:  # the loop may not have run since the cut
                        self.check()
                        self.event("power cut")
                        self._end_process(power=True)
                        self.start()
                    if step % 500 == 0:
                        self.verify_and_recover()
                    if self.loop.failures or self.clients.error:
                        self.check()
                self._drain()
            finally:
                self._dead += self.loop.bury()
                self.clients.close()
                close_dead(self._dead)
        return self.report()

    def _drain(self) -> None:
        """At the end everything that must be there can be received, and then nothing is left."""
        self.verify_and_recover()
        for _ in range(400):
            self.loop.complete(self._drain_once(), 600)
            self.check()
            self.loop.until(self.quiet, 900)
            if not any(partition.fold.blocks for partition in self.live()):
                break
            self.loop.run_for(2)
        else:
            raise Violation(f"cannot be emptied: {[p.fold.counters() for p in self.live()]}")
        self.verify()
        self._check_reports()
        self.loop.complete(self.node.checkpoint(), 600)
        self.loop.complete(self.node.checkpoint(), 600)
        self._check_leaks()
        self._delete_damaged()

    def _check_reports(self) -> None:
        """A message that rot has cost was not passed over in silence."""
        for flip in self.flips:
            msg = self.model.messages.get(flip.payload)
            if msg is not None and msg.rotten and not msg.home.lossy and not msg.ended_otherwise(self.now()):
                if not any(flip.path in report for report in self.reports):
                    raise Violation(f"{msg.name} is gone since {flip.path}:{flip.offset} was hit, and nobody says so")
                self.counts["rotten"] += 1

    def live(self) -> list[OpenPartition]:
        known = {queue.pid for queue in self.queues if not queue.lossy}
        return [partition for partition in self.partitions() if partition.id in known]

    async def _drain_once(self) -> None:
        model, clients = self.model, self.clients
        for queue in [queue for queue in self.queues if not queue.lossy]:
            while True:
                asked, asked_at = self.now(), model.tick
                command = ReceiveOptions(10, 30, 0, clients.dead_letter_of(queue))
                try:
                    answer = await clients.call(queue, lambda target: self.node.call(Receive(target, command)))  # noqa: B023
                except OverLimit:
                    break
                held = model.received(queue, answer, 30_000, asked, asked_at, self.now())
                if not held:
                    break
                asked = self.now()
                model.deleting(held)
                handles = [text for text, _ in held]
                outcomes = await clients.call(queue, lambda target: self.node.call(Delete(target, handles)))  # noqa: B023
                model.deleted(queue, held, outcomes, asked, self.now())

    def _check_leaks(self) -> None:
        """Check that nothing is left in memory or on the disk when the queues are empty."""
        for partition in self.live():
            fold = partition.fold
            left = (fold.in_flight, fold.segments, fold.lane_names, partition.waiters)
            sums = (fold.visible, fold.delayed, fold.moving, fold.stored_bytes)
            if any(left) or len(fold.lanes) != 1 or any(sums):
                raise Violation(f"an empty queue still holds {str(left)[:300]}")
        if any(flip.hit in ("record", "checkpoint") for flip in self.flips):
            return  # what is damaged is kept for the operator
        self.loop.until(lambda: not self._peers_that_are_gone(), 120)
        files = Counter(path.rsplit(".")[-1] for path in self.disk.paths())
        if files["log"] > 6 or files["bin"] > self.checkpoint_files_max():
            raise Violation(f"files are left: {self.disk.paths()}")
        if self.loop.waiting() > 12:
            raise Violation(f"{self.loop.waiting()} timers are left")

    def checkpoint_files_max(self) -> int:
        """Return how many files of checkpoints may be left when the queues are empty."""
        return len(self.partitions()) + 2

    def _delete_damaged(self) -> None:
        """A queue that is damaged can be deleted, and with it goes its damage."""
        stopped = self.incarnation.shards.stopped
        damaged = [queue for queue in self.queues if queue.pid in stopped]
        for queue in damaged:
            self.event("damaged queue deleted", queue.pid)
            self.clients.drop(queue)
            self.queues.remove(queue)
            self.old.append(queue)
        self.run_until_idle()
        for _ in range(2 if damaged else 0):
            gone = {queue.pid for queue in damaged}
            if gone & self.incarnation.shards.stopped.keys() or gone & self.incarnation.partitions.keys():
                raise Violation(f"deleted, and still there: {gone}, {self.node.damage}")
            self.crash(power=True)
            self.run_until_idle()
            self.loop.complete(self.node.checkpoint(), 600)

    def _peers_that_are_gone(self) -> set[int]:
        """Partitions that were dropped, and that others still keep transfers of."""
        known = {peer for p in self.partitions() for peer in (*p.fold.outgoing, *p.fold.incoming)}
        return known - self.incarnation.partitions.keys()


_TROUBLE = {
    "kill": 4, "power": 4, "cut": 5, "restart": 2, "sync": 3, "full": 2, "store": 3, "files": 2, "slow": 1, "heal": 4,
    "clock": 2, "sleep": 1, "leap": 3, "purge": 2, "replace": 1, "verify": 2,
}  # fmt: skip
_TROUBLES = list(_TROUBLE)
_TROUBLE_WEIGHTS = list(_TROUBLE.values())


def _state(fold: Fold, now: int) -> dict[str, Any]:
    fold.advance(now)
    fold.tokens.expire(now)
    fold.retries.expire(now)
    state = snapshot.describe(fold)
    for key in ("next_number", "purged_below"):  # every owner begins with numbers of its own
        del state[key]
    return state


def _difference(old: dict[int, dict[str, Any]], new: dict[int, dict[str, Any]]) -> str:
    if old.keys() != new.keys():
        return f"partitions {sorted(old)} and {sorted(new)}"
    for number, state in old.items():
        for key, value in state.items():
            other = new[number][key]
            if value != other and isinstance(value, dict):
                keys = [k for k in {**value, **other} if value.get(k) != other.get(k)]
                return f"{key} of {number}: {[(k, value.get(k), other.get(k)) for k in keys[:3]]}"
            if value != other:
                return f"{key} of {number}: {value} and {other}"
    return ""


def _check_fold(partition: OpenPartition) -> None:
    """The sums are what is stored, and nothing dead is kept."""
    fold = partition.fold
    states: Counter[int] = Counter()
    for block in fold.blocks.values():
        live = sum(1 for state in block.states if state != DEAD)
        if not live or live != block.live:
            raise Violation(f"a block of partition {partition.id} counts {block.live} living messages, not {live}")
        states.update(block.states)
    del states[DEAD]
    counters = fold.counters()
    total = counters.visible + counters.in_flight + counters.delayed
    if total != states.total() or sum(fold.segments.values()) != total:
        raise Violation(f"partition {partition.id} counts {counters}, and stores {states}")
    if sum(lane.live for lane in fold.lanes.values()) != total:
        raise Violation(f"the lanes of partition {partition.id} count wrongly")
    if fold.timers.count > 4 * (len(fold.in_flight) + fold.delayed) + 4097:
        raise Violation(f"partition {partition.id} has {fold.timers.count} timers")


def simulate(seed: int, steps: int = 2000, *, rot: bool = False) -> Report:
    """Run one seed.  Raises :class:`Violation`, :class:`Stuck`, or whatever broke."""
    return SimWorld(seed, rot=rot).run(steps)


__all__ = ["Report", "SimWorld", "Stuck", "Violation", "simulate"]
