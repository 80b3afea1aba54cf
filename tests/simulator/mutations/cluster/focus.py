"""Conditions in which a mutation shows, made likely: faults at the point that its rule protects.

Nothing here breaks a rule.  With the rule in its place a run that is focused so is as good as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context
from random import Random
from typing import Any

from backend.api import HANDOVER_PARTS, AckLevel, BackendError
from backend.engine.records import Dropped, Message, Purged
from backend.recovery.checkpointer import Checkpointer
from metadata_service.clusters.partition_map import changing, open_ones
from metadata_service.models import LogEntry, ShardEntry
from metadata_service.models import Queue as StoredQueue
from metadata_service.store import StoreError
from tests.simulator.actors.backups import NAME as BACKUP
from tests.simulator.actors.backups import Backups
from tests.simulator.world.cluster import ClusterWorld
from tests.simulator.world.fronts import Front
from tests.simulator.world.hosts import HOST
from tests.simulator.world.nodes import NodeProcess
from tests.simulator.world.wires import ServerHost


def dies(world: ClusterWorld, process: ServerHost | None, chance: float = 1.0, seconds: float = 0.0) -> None:
    """The process is killed, perhaps: at once, before it does anything more, or after a while."""
    if isinstance(process, NodeProcess) and not world.over and world.random.random() < chance:
        if seconds:
            later(world, seconds, _kill, world, process)
        else:
            Context().run(_kill, world, process)


def _kill(world: ClusterWorld, process: NodeProcess) -> None:
    if not world.over:
        world.nodes.kill(process)


def this_dies(world: ClusterWorld, chance: float = 1.0) -> None:
    """The running process is killed, perhaps: just here it matters."""
    host = HOST.get()
    dies(world, host if isinstance(host, ServerHost) else None, chance)


def this_is_stopped(world: ClusterWorld, chance: float) -> None:
    """The running process is stopped, perhaps, for so long that it is taken for dead by the others."""
    host = HOST.get()
    stopped = any(process.stopped for process in world.nodes.living())
    if isinstance(host, NodeProcess) and not stopped and not world.over and world.random.random() < chance:
        host.stopped = True
        later(world, 9.0, world.loop.go_on, host)


def _all_die(world: ClusterWorld) -> None:
    if not world.over:
        for process in world.nodes.living():
            world.nodes.kill(process)


def later(world: ClusterWorld, seconds: float, what: Any, *arguments: Any) -> None:
    Context().run(world.loop.call_later, seconds, what, *arguments)


# --- zombies --------------------------------------------------------------------------------------------------


def zombies(world: ClusterWorld) -> None:
    """Nodes that are well are taken for dead, under load, and the answers to their reads of the entry take long."""
    world.machines.fence_seconds = 2.0
    world.machines.lost = 0.02
    world.callers.pace = 0.05
    world.callers.weights.update(send=60, receive=20, delete=10, purge=0)
    world.troubles.pause = 0.5
    world.troubles.faults = {"zombie": 1}


def late_commits(world: ClusterWorld) -> None:
    """Zombies, each far from the machine that has a commit at once; those that are near it have it later."""
    _commits(world, (0.0, 0.7, 0.7), (0.02, 0.0, 0.0))


def a_late_commit(world: ClusterWorld) -> None:
    """Zombies, each near a machine that has commits seconds after the others."""
    _commits(world, (0.0, 0.0, 5.0), (0.02, 0.02, 0.0))


def _commits(world: ClusterWorld, commit_seconds: Sequence[float], far_seconds: Sequence[float]) -> None:
    """Beginning with the machine that is the node's own in turn."""
    zombies(world)
    world.machines.fence_seconds = world.machines.lost = world.machines.late = 0.0
    names = world.nodes.names

    def far(client: str, number: int) -> float:
        return far_seconds[(number - names.index(client)) % 3] if client in names else 0.0

    world.machines.far = far
    world.ledger.commit_delay = lambda entry, number: commit_seconds[(number - names.index(entry.node)) % 3]


def two_views(world: ClusterWorld) -> None:
    """One frontend asks a zombie, and does not write; the other one writes, and finds its successor."""
    asks, writes = world.fronts

    def choose(action: str) -> Front:
        return asks if action == "count" else writes

    world.callers.choose = choose
    world.callers.pace = 0.1
    world.callers.weights.update(send=30, receive=10, delete=5, count=40, change=0)
    world.troubles.pause = 1.0
    world.troubles.faults = {"two_views": 1}


# --- rows that are not where they should be -------------------------------------------------------------------


def stuck_rows(world: ClusterWorld) -> None:
    """Rows reach one machine only, while their writer goes on; then it dies.  They turn up when its log is sealed."""
    machines, random = world.machines, Random(world.random.random())
    machines.slow_seconds, machines.stuck, machines.lost, machines.repairs = 0.005, 0.02, 0.0, False
    machines.stuck_seconds = 7.0
    world.callers.pace = 0.04
    world.callers.weights.update(send=50, receive=40, delete=10)
    world.nodes.row_bytes = 1 << 8
    world.troubles.pause = 1.0
    world.troubles.faults = {"zombie": 1}

    def stuck(name: str) -> None:
        dies(world, world.server(name), 0.5, random.random())

    def sealed(entry: LogEntry) -> None:
        machines.release(entry.log_id)

    machines.when_stuck = stuck
    world.ledger.when_sealed = sealed


def rows_after_seals(world: ClusterWorld) -> None:
    """The same, and soon after the seal everybody dies: what was folded is folded again, with what came meanwhile."""
    stuck_rows(world)
    world.callers.repeat_seconds = 0.5
    sealed = world.ledger.when_sealed
    assert sealed is not None

    def and_all_die(entry: LogEntry) -> None:
        sealed(entry)
        if world.random.random() < 0.7:
            later(world, 0.5 + world.random.random(), _all_die, world)

    world.ledger.when_sealed = and_all_die


def first_checkpoints(world: ClusterWorld) -> None:
    """The same with sends that reach no machine; successors die of their first checkpoints: what they have folded and
    gone on from is folded again, with rows that have turned up since."""
    stuck_rows(world)
    machines = world.machines
    machines.stuck, machines.stuck_at, machines.stuck_kind = 0.03, (-1,), Message.KIND
    machines.when_stuck = lambda name: dies(world, world.server(name), 1.0, 0.5 * world.random.random())
    world.callers.tokens, world.callers.repeat_seconds = 1.0, 0.5
    world.nodes.checkpoint_segments, world.nodes.segment_bytes = 12, 16 << 10
    world.callers.pace = 0.06
    world.troubles.pause = 0.0

    def changes(entries: Sequence[ShardEntry], apply: Callable[[], None]) -> bool:
        known = [world.ledger.shards.get(entry.shard) for entry in entries]
        first = any(one is not None and any(log != one.owner_log for log, _, _ in one.chain) for one in known)
        if first and all(
            one is not None and one.owner_log == two.owner_log for one, two in zip(known, entries, strict=True)
        ):
            this_dies(world)
        return False

    world.ledger.when_changing = changes


def stopped_recoverers(world: ClusterWorld) -> None:
    """A reader of a log is stopped before the log is sealed, and rows turn up before another one reads it.

    It goes on when clients were answered from those rows, and all but it die before there is a checkpoint of them.
    """
    stuck_rows(world)
    machines, nodes = world.machines, world.nodes
    machines.stuck_at, machines.stuck_seconds, machines.late, world.ledger.late = (-1,), 60.0, 0.0, 0.0
    nodes.checkpoint_segments, nodes.segment_bytes = 12, 1 << 10
    world.callers.tokens, world.callers.repeat_seconds = 1.0, 0.5
    world.callers.pace = 0.03
    world.callers.weights["purge"] = 0.0
    world.troubles.pause = 0.0
    stopped: dict[int, NodeProcess] = {}

    def stuck(name: str) -> None:
        machines.stuck = 0.0
        dies(world, world.server(name), 1.0, 0.5 * world.random.random())

    def sealing(entry: LogEntry) -> None:
        if not stopped and machines.holds(entry.log_id):
            this_is_stopped(world, 1.0)
            host = HOST.get()
            if isinstance(host, NodeProcess) and host.stopped:
                stopped[entry.log_id] = host
                machines.release(entry.log_id)

    def changes(entries: Sequence[ShardEntry], apply: Callable[[], None]) -> bool:
        known = [one for entry in entries if (one := world.ledger.shards.get(entry.shard)) is not None]
        first = {log for one in known for log, _, _ in one.chain if log != one.owner_log}
        process = next((stopped[log] for log in first & stopped.keys() if stopped[log].stopped), None)
        if process is not None and all(one.owner_log == entries[0].owner_log for one in known):
            for other in world.nodes.living():
                if other is not process:
                    dies(world, other)
            Context().run(world.loop.go_on, process)
        return False

    machines.when_stuck = stuck
    world.ledger.when_sealing, world.ledger.when_changing = sealing, changes


def slow_readers(world: ClusterWorld) -> None:
    """Writers that were stopped, and taken for dead, go on just when others read their logs, and hear of it late."""
    machines, nodes = world.machines, world.nodes
    machines.news_seconds, machines.scan_seconds, machines.lost = 4.0, 1.0, 0.0
    nodes.checkpoint_segments, nodes.segment_bytes, nodes.row_bytes = 1, 8 << 10, 1 << 8
    world.callers.pace = 0.03
    world.callers.weights.update(send=60, receive=20, delete=10)
    world.troubles.pause = 1.0
    world.troubles.faults = {"stop": 1}

    def listed(log_id: int, segment: int) -> None:
        writer = _writer(world, log_id)
        if writer is not None and writer.stopped and writer.node is not None and writer.node._incarnation is not None:
            filled = writer.node._incarnation.log.next_segment
            if segment == filled:
                Context().run(world.loop.go_on, writer)

    machines.when_listed = listed


def idle_marks(world: ClusterWorld) -> None:
    """So little is written that about every second row is empty, and segments of few rows end with one; a node dies
    soon after the floor of its log has moved."""
    world.nodes.segment_rows, world.nodes.idle_seconds = 5, 0.05
    world.nodes.checkpoint_segments = 1
    world.callers.pace = 0.6
    world.callers.weights.update(send=12, receive=4, delete=2, change=0, count=40)
    world.troubles.pause = 0.0

    def moved(entry: LogEntry) -> None:
        dies(world, _writer(world, entry.log_id), 0.5, 0.3 + world.random.random())

    world.ledger.when_floor_moved = moved


def lone_rows(world: ClusterWorld) -> None:
    """A machine that alone has a row of a log that was just sealed is lost, and so is all that was in memory."""
    stuck_rows(world)
    world.machines.stuck_seconds = 60.0
    world.troubles.pause = 0.0

    def sealed(entry: LogEntry) -> None:
        alone = world.machines.lone_holders(entry.log_id, entry.sealed_seq or 0)
        if alone and all(machine.up for machine in world.machines.machines):
            later(world, 0.0, lambda: world.tasks.append(world.loop.create_task(replaced(min(alone)))))
            later(world, 0.5, _all_die, world)

    async def replaced(number: int) -> None:
        if await world.troubles.away(number, 2.0):
            world.machines.wipe(number)

    world.ledger.when_sealed = sealed


def forgetful(world: ClusterWorld) -> None:
    """One machine loses what it was told long ago, others lack a row here and there, and logs are long."""
    world.machines.lost, world.machines.repairs = 0.15, False
    world.nodes.checkpoint_segments, world.nodes.segment_bytes = 12, 4 << 10
    world.callers.pace = 0.05
    world.troubles.pause = 1.5
    world.troubles.faults = {"forget": 6, "kill": 3}


# --- metadata -------------------------------------------------------------------------------------------------


def outages(world: ClusterWorld) -> None:
    """The store is away for a little longer than it takes to be taken for dead, again and again."""
    world.troubles.pause = 3.0
    world.troubles.outage_seconds = (5.0,)


def restarts(world: ClusterWorld) -> None:
    """Shards move, nodes begin anew, and each checkpoint lets go of something."""
    world.nodes.checkpoint_segments, world.nodes.segment_bytes = 1, 4 << 10
    world.callers.pace = 0.05
    world.troubles.pause = 0.7
    world.troubles.faults = {"kill": 6, "drain": 6, "rolling": 2}


def late_changes(world: ClusterWorld) -> None:
    """Many changes of shards take effect when their caller has given up."""
    world.nodes.checkpoint_segments, world.nodes.segment_bytes = 1, 4 << 10

    def late(entries: Sequence[ShardEntry], apply: Callable[[], None]) -> bool:
        if world.over or world.random.random() >= 0.3:
            return False
        later(world, world.ledger.timeout_seconds + 0.5, apply)
        return True

    world.ledger.when_changing = late


def changes_of_the_dead(world: ClusterWorld) -> None:
    """A node dies committing a checkpoint; the change takes effect when its log is sealed and swept by others."""
    ledger = world.ledger
    world.nodes.checkpoint_segments, world.nodes.segment_bytes = 1, 4 << 10
    world.callers.pace = 0.05
    world.troubles.pause = 3.0
    world.troubles.faults = {"drain": 1}
    held: dict[int, list[Callable[[], None]]] = {}

    def hold(entries: Sequence[ShardEntry], apply: Callable[[], None]) -> bool:
        host = HOST.get()
        known = [ledger.shards.get(entry.shard) for entry in entries]
        same = all(one is not None and one.owner_log == two.owner_log for one, two in zip(known, entries, strict=True))
        if not isinstance(host, NodeProcess) or not same or world.over or world.random.random() >= 0.15:
            return False
        held.setdefault(entries[0].owner_log, []).append(apply)
        dies(world, host)
        return True

    def sealed(entry: LogEntry) -> None:
        for apply in held.pop(entry.log_id, []):
            later(world, 0.1, apply)
        _all_sweep(world)

    ledger.when_changing = hold
    ledger.when_sealed = sealed


def _all_sweep(world: ClusterWorld) -> None:
    for process in world.nodes.living():
        node = process.node
        if node is not None and node._checkpointer is not None and node.ready and not process.stopped:
            process.run(world.loop, _swept(node._checkpointer))


async def _swept(checkpointer: Checkpointer) -> None:
    with suppress(BackendError, StoreError):
        async with checkpointer._lock:
            if not checkpointer._unsettled:
                await checkpointer._sweep()


def late_gifts(world: ClusterWorld) -> None:
    """A shard is given to a node that dies meanwhile; that takes effect when its log is sealed, and others have
    swept."""
    world.nodes.checkpoint_segments, world.nodes.segment_bytes = 1, 4 << 10
    world.callers.pace = 0.05
    world.troubles.pause = 3.0
    world.troubles.faults = {"drain": 1}
    held: dict[int, list[Callable[[], None]]] = {}

    def hold(entries: Sequence[ShardEntry], apply: Callable[[], None]) -> bool:
        log_id = entries[0].owner_log
        successor = _writer(world, log_id)
        if log_id not in held:
            if successor is None or successor is HOST.get() or world.over or world.random.random() >= 0.3:
                return False
            held[log_id] = []
            dies(world, successor)
        held[log_id].append(apply)
        return True

    def give(log_id: int) -> None:
        for apply in held.pop(log_id):
            apply()

    def sealed(entry: LogEntry) -> None:
        if entry.log_id in held:
            later(world, 5.0, _all_sweep, world)
            later(world, 6.0, give, entry.log_id)

    world.ledger.when_changing = hold
    world.ledger.when_sealed = sealed


def stopped_checkpointers(world: ClusterWorld) -> None:
    """A node that commits a checkpoint is stopped just before, for so long that others take over."""
    world.nodes.checkpoint_segments, world.nodes.segment_bytes = 1, 4 << 10
    world.troubles.pause = 3.0

    def stops(entries: Sequence[ShardEntry], apply: Callable[[], None]) -> bool:
        this_is_stopped(world, 0.1)
        return False

    world.ledger.when_changing = stops


def wrong_clocks(world: ClusterWorld) -> None:
    """A node's clock is an hour ahead."""
    world.nodes.offsets["node1"] = 3600.0


def clocks_behind(world: ClusterWorld) -> None:
    """A node's clock is an hour behind, and is alone at first, so that shards begin by it; others know better later."""
    world.nodes.offsets["node1"] = -3600.0
    world.nodes.first, world.nodes.alone_seconds, world.nodes.all_killed_at = "node1", 6.0, 0.0


def wrong_clock_first(world: ClusterWorld) -> None:
    """A node's clock is an hour ahead.  All nodes are killed together, also in the end, and it comes back alone."""
    world.nodes.offsets["node1"] = 3600.0
    world.nodes.first, world.nodes.alone_seconds = "node1", 20.0
    world.all_die = 1.0
    world.troubles.faults["all"] = 4


def clocks_set_back(world: ClusterWorld) -> None:
    """A node's clock was ahead, and is set."""
    world.nodes.offsets["node1"] = 3600.0
    later(world, 20.0, world.nodes.offsets.update, {"node1": 0.0})


def dead_recoverers(world: ClusterWorld) -> None:
    """Nodes burn down, and whoever takes over what one had dies before it has said so."""
    world.troubles.pause = 3.0
    world.troubles.faults = {"gone": 2, "kill": 1}

    def sealing(entry: LogEntry) -> None:
        if entry.node in world.nodes.gone:
            this_dies(world, 0.8)

    world.ledger.when_sealing = sealing


def returned_shards(world: ClusterWorld) -> None:
    """Shards come back to an incarnation that had them before, and it dies before it has taken a checkpoint."""
    world.nodes.checkpoint_segments, world.nodes.segment_bytes = 12, 16 << 10
    world.callers.pace = 0.05
    world.troubles.pause = 1.5
    world.troubles.faults = {"drain": 1}
    had: dict[int, set[int]] = {}

    def gives(entries: Sequence[ShardEntry], apply: Callable[[], None]) -> bool:
        for entry in entries:
            known = world.ledger.shards.get(entry.shard)
            if known is not None and known.owner_log != entry.owner_log:
                had.setdefault(entry.shard, set()).add(known.owner_log)
                if entry.owner_log in had[entry.shard]:
                    dies(world, _writer(world, entry.owner_log), 0.2, 0.5 + world.random.random())
        return False

    world.ledger.when_changing = gives


def _writer(world: ClusterWorld, log_id: int) -> NodeProcess | None:
    """The process that writes a log."""
    return next(
        (one for one in world.nodes.living() if one.node and one.node.ready and one.node.ownership.log_id == log_id),
        None,
    )


# --- backups --------------------------------------------------------------------------------------------------


def backups(world: ClusterWorld) -> None:
    """One backup after the other is taken, while much is sent, received and deleted, and segments go."""
    world.nodes.checkpoint_segments, world.nodes.segment_bytes = 1, 4 << 10
    world.callers.pace = 0.03
    world.troubles.pause = 3.0

    def begin() -> None:
        backing_up = Backups(world, Random(world.random.random())).run()
        world.tasks.append(world.loop.create_task(backing_up))

    later(world, 3.0, begin)


def slow_backups(world: ClusterWorld) -> None:
    """The same, and whoever takes them is far from the tables: some holds do not last.  Little else changes."""
    backups(world)
    world.nodes.checkpoint_segments = 12
    world.troubles.pause = 0.0
    world.machines.far = lambda client, number: 0.2 if client == BACKUP else 0.0


# --- answers --------------------------------------------------------------------------------------------------


def weak_answers(world: ClusterWorld) -> None:
    """Much is asked of queues whose sends are answered from memory, by nodes whose rows are not written; they die."""
    stuck_rows(world)
    world.always = frozenset({"weak"})
    world.weak_levels = (AckLevel.LEADER,)
    world.machines.stuck, world.machines.stuck_at = 0.01, (-1,)
    world.callers.visibility_seconds = (15, 30)
    world.callers.weights.update(send=50, receive=30, delete=30)


def weak_rows(world: ClusterWorld) -> None:
    """Machines lack rows, are away, and nodes die."""
    world.always = frozenset({"weak"})
    world.machines.lost, world.machines.repairs = 0.1, False
    world.callers.pace = 0.1
    world.nodes.checkpoint_segments = 8
    world.troubles.pause = 1.0
    world.troubles.faults = {"kill": 4, "wipe": 4}


def strong_answers(world: ClusterWorld) -> None:
    world.always = frozenset({"strong"})
    world.machines.lost = 0.05


# --- moves ----------------------------------------------------------------------------------------------------


def moves(world: ClusterWorld) -> None:
    """Most messages become dead letters, and come back."""
    world.always = frozenset({"dead"})
    world.callers.visibility_seconds = (0, 1, 5)
    world.callers.pace = 0.05
    world.callers.weights.update(receive=60, delete=6, move=10)
    world.nodes.checkpoint_segments = 1
    world.net.twice = 0.2
    world.troubles.pause = 1.5
    world.troubles.faults = {"deaf": 6, "cut": 3, "kill": 2}


def dying_sources(world: ClusterWorld) -> None:
    """A node whose messages have just been taken dies, and some of its rows have not been written."""
    moves(world)
    world.machines.stuck, world.machines.repairs = 0.1, False

    def answering(server: ServerHost, method: str, arguments: tuple[Any, ...]) -> None:
        if method == "take":
            source = [one for one in world.nodes.living() if one.node and arguments[1] in one.node.partitions]
            dies(world, source[0] if source else None, 0.3)

    world.when_answering = answering


def dying_takers(world: ClusterWorld) -> None:
    """Nodes die whose last rows have reached nothing, while many messages are on their way to them."""
    moves(world)
    world.callers.visibility_seconds = (0,)
    world.callers.weights.update(send=60, receive=80)
    world.troubles.pause = 4.0
    world.troubles.faults = {"lost_rows": 1}


def dying_givers(world: ClusterWorld) -> None:
    """A node that has given shards away dies, and some of its rows have not been written; calls are repeated soon."""
    world.machines.stuck, world.machines.stuck_at, world.machines.repairs = 0.03, (-1,), False
    world.callers.repeat_seconds = 0.5
    world.callers.pace = 0.05
    world.troubles.faults.update(kill=0, stop=0, rolling=0)

    def gives(entries: Sequence[ShardEntry], apply: Callable[[], None]) -> bool:
        known = world.ledger.shards.get(entries[0].shard)
        host = HOST.get()
        if known is not None and known.owner_log != entries[0].owner_log and isinstance(host, NodeProcess):
            dies(world, host, 0.5, 0.1 + 0.2 * world.random.random())
        return False

    world.ledger.when_changing = gives


# --- maps -----------------------------------------------------------------------------------------------------


def maps(world: ClusterWorld) -> None:
    """Maps change all the time, what drains is soon empty, and calls with tokens are repeated."""
    world.callers.pace = 0.05
    world.callers.visibility_seconds = (2, 5)
    world.callers.weights.update(send=30, receive=60, delete=60)
    world.troubles.pause = 0.5
    world.troubles.faults = {"map": 20, "kill": 1, "drain": 1}


def splits(world: ClusterWorld) -> None:
    """Queues get partitions, one by one, and some frontends do not hear of it."""
    maps(world)
    world.maps.acts = ("split",)
    world.callers.weights.update(send=60, receive=20, delete=20)


def moved_partitions(world: ClusterWorld) -> None:
    """Partitions of FIFO queues are put in the places of others that have messages, which wait to be received."""
    maps(world)
    world.always = frozenset({"strong"})
    world.maps.acts = ("move",)
    world.callers.visibility_seconds = (15, 30)
    world.callers.weights.update(send=40, receive=30, delete=20)


def parents_die(world: ClusterWorld) -> None:
    """Whoever has partitions of a queue whose map was just changed dies, with answers and tokens on their way."""
    splits(world)

    def mapped(queue: StoredQueue) -> None:
        ids = {one.id for one in queue.partitions}
        for process in world.nodes.living():
            if process.node is not None and ids & process.node.partitions.keys():
                dies(world, process, 0.5, world.random.random() * 0.1)

    world.when_mapped = mapped


def dying_parents(world: ClusterWorld) -> None:
    """Queues are split just when rows of those who have partitions of them reach no machine any more; who has handed
    tokens over nevertheless dies."""
    splits(world)
    world.callers.tokens, world.callers.repeat_seconds = 1.0, 0.5
    world.callers.pace = 0.03
    world.troubles.pause = 0.0
    lonely: set[str] = set()

    def act() -> None:
        if world.over:
            return
        later(world, 4.0, act)
        queue = world.catalog.queues[world.random.choice(world.mapped)]
        ids = {one.id for one in queue.partitions}
        parents = [one for one in world.nodes.living() if one.node is not None and ids & one.node.partitions.keys()]
        if parents and not lonely and not changing(queue.partitions):
            name = world.random.choice(parents).name
            lonely.add(name)
            world.net.cut(name, "rows")
            later(world, 0.7, world.maps.begin, queue.queue_id, world.random)
            later(world, 3.5, mend, name)

    def mend(name: str) -> None:
        if name in lonely:
            lonely.remove(name)
            world.net.mend(name, "rows")

    def answering(server: ServerHost, method: str, arguments: tuple[Any, ...]) -> None:
        if method == "hand_over" and arguments[2] == HANDOVER_PARTS - 1 and server.name in lonely:
            dies(world, server, 1.0, 0.1)
            later(world, 0.11, mend, server.name)

    world.when_answering = answering
    later(world, 4.0, act)


def maps_of_moves(world: ClusterWorld) -> None:
    """Whoever has sent messages away does not hear that they have arrived, while they are received and deleted, and the
    partition where they were goes out of its queue's map."""
    moves(world)
    world.callers.visibility_seconds = (0, 8)
    world.callers.weights.update(send=20, receive=60, delete=90, move=4)
    world.troubles.faults = {"map": 1, "kill": 1}
    world.troubles.pause = 4.0

    def answering(server: ServerHost, method: str, arguments: tuple[Any, ...]) -> None:
        if method != "take" or world.over or world.random.random() >= 0.5:
            return
        to, source = arguments[0], arguments[1]
        senders = [one.name for one in world.nodes.living() if one.node is not None and source in one.node.partitions]
        queue = world.catalog.queues[to.queue_id]
        is_open = any(one.id == to.partition for one in open_ones(queue.partitions))
        if senders and queue.queue_id in world.mapped and is_open and not changing(queue.partitions):
            way = server.name, senders[0]
            world.net.cut(*way)
            later(world, 12.0, world.net.mend, *way)
            world.maps.begin(queue.queue_id, world.random, to.partition)

    world.when_answering = answering


def purges(world: ClusterWorld) -> None:
    """Queues are purged again and again."""
    world.callers.weights["purge"] = 4.0
    world.callers.pace = 0.05


def dying_purgers(world: ClusterWorld) -> None:
    """A node that is about to purge a queue dies, and the row with that reaches no machine."""
    machines = world.machines
    world.callers.weights["purge"] = 2.0
    world.callers.pace = 0.05
    machines.stuck, machines.stuck_at, machines.stuck_kind, machines.stuck_seconds = 0.5, (-1,), Purged.KIND, 60.0
    machines.when_stuck = lambda name: dies(world, world.server(name), 1.0, 0.1)
    world.troubles.pause = 0.0


def deletions(world: ClusterWorld) -> None:
    """Queues are deleted, while frontends that have not heard of it call on."""
    world.deleted = 1.0
    world.callers.pace = 0.05


def dying_deleters(world: ClusterWorld) -> None:
    """A node that is about to drop a partition dies, and the row with that reaches no machine."""
    machines = world.machines
    deletions(world)
    machines.stuck, machines.stuck_at, machines.stuck_kind, machines.stuck_seconds = 1.0, (-1,), Dropped.KIND, 60.0
    machines.when_stuck = lambda name: dies(world, world.server(name), 1.0, 0.1)
    world.troubles.pause = 0.0


def unreached_deleters(world: ClusterWorld) -> None:
    """Frontends and nodes do not reach each other for a while, again and again: partitions are not told."""
    deletions(world)
    world.troubles.pause = 0.5
    world.troubles.faults = {"cut": 6, "kill": 1}


# --- local files ----------------------------------------------------------------------------------------------


def stopped_owners(world: ClusterWorld) -> None:
    """Processes are stopped for so long that others would like to take over; then all are asked again."""

    def choose(action: str) -> Front:
        stopped = any(process.stopped for process in world.nodes.living())
        return world.fronts[1] if stopped else world.random.choice(world.fronts)

    world.callers.choose = choose
    world.callers.pace = 0.05
    world.troubles.pause = 3.0
    world.troubles.faults = {"stop": 6, "kill": 1}


def power_after_seals(world: ClusterWorld) -> None:
    """The power goes when a log has just been read; what is written takes a while to be on the disk."""
    world.disk.latency_seconds = (0.02, 0.08)
    world.callers.pace = 0.05
    world.troubles.faults = {"kill": 1}
    world.troubles.pause = 1.0

    def power() -> None:
        if not world.over:
            _all_die(world)
            world.disk.crash()

    def sealed(entry: LogEntry) -> None:
        if not world.over and world.random.random() < 0.8:
            later(world, world.random.random() * 0.4, power)

    world.store.when_sealed = sealed
