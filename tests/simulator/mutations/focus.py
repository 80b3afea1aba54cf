"""Faults that a focus aims at moments of a run: functions by its name, for what ``focus.yaml`` cannot say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context
from random import Random
from typing import Any

from backend.api import HANDOVER_PARTS, AcceptTransfers, AckLevel, BackendError, Command, HandOverTokens
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


def _dies(world: ClusterWorld, process: ServerHost | None, chance: float = 1.0, seconds: float = 0.0) -> None:
    """The process is killed, perhaps: at once, before it does anything more, or after a while."""
    if isinstance(process, NodeProcess) and not world.over and world.random.random() < chance:
        if seconds:
            _later(world, seconds, _kill, world, process)
        else:
            Context().run(_kill, world, process)


def _kill(world: ClusterWorld, process: NodeProcess) -> None:
    if not world.over:
        world.nodes.kill(process)


def _this_dies(world: ClusterWorld, chance: float = 1.0) -> None:
    """The running process is killed, perhaps: just here it matters."""
    host = HOST.get()
    _dies(world, host if isinstance(host, ServerHost) else None, chance)


def _this_is_stopped(world: ClusterWorld, chance: float) -> None:
    """The running process is stopped, perhaps, for so long that it is taken for dead by the others."""
    host = HOST.get()
    stopped = any(process.stopped for process in world.nodes.living())
    if isinstance(host, NodeProcess) and not stopped and not world.over and world.random.random() < chance:
        host.stopped = True
        _later(world, 9.0, world.loop.go_on, host)


def _all_die(world: ClusterWorld) -> None:
    if not world.over:
        for process in world.nodes.living():
            world.nodes.kill(process)


def _later(world: ClusterWorld, seconds: float, what: Any, *arguments: Any) -> None:
    Context().run(world.loop.call_later, seconds, what, *arguments)


# --- zombies ---


def late_commits(world: ClusterWorld) -> None:
    _commits(world, (0.0, 0.7, 0.7), (0.02, 0.0, 0.0))


def a_late_commit(world: ClusterWorld) -> None:
    _commits(world, (0.0, 0.0, 5.0), (0.02, 0.02, 0.0))


def _commits(world: ClusterWorld, commit_seconds: Sequence[float], far_seconds: Sequence[float]) -> None:
    """Beginning with the machine that is the node's own in turn."""
    names = world.nodes.names

    def far(client: str, number: int) -> float:
        return far_seconds[(number - names.index(client)) % 3] if client in names else 0.0

    world.machines.far = far
    world.ledger.commit_delay = lambda entry, number: commit_seconds[(number - names.index(entry.node)) % 3]


def two_views(world: ClusterWorld) -> None:
    asks, writes = world.fronts

    def choose(action: str) -> Front:
        return asks if action == "count" else writes

    world.callers.choose = choose


# --- rows that are not where they should be ---


def stuck_rows(world: ClusterWorld) -> None:
    machines, random = world.machines, Random(world.random.random())

    def stuck(name: str) -> None:
        _dies(world, world.server(name), 0.5, random.random())

    def sealed(entry: LogEntry) -> None:
        machines.release(entry.log_id)

    machines.when_stuck = stuck
    world.ledger.when_sealed = sealed


def rows_after_seals(world: ClusterWorld) -> None:
    sealed = world.ledger.when_sealed
    assert sealed is not None

    def and_all_die(entry: LogEntry) -> None:
        sealed(entry)
        if world.random.random() < 0.7:
            _later(world, 0.5 + world.random.random(), _all_die, world)

    world.ledger.when_sealed = and_all_die


def first_checkpoints(world: ClusterWorld) -> None:
    world.machines.stuck_kind = Message.KIND
    world.machines.when_stuck = lambda name: _dies(world, world.server(name), 1.0, 0.5 * world.random.random())

    def changes(entries: Sequence[ShardEntry], apply: Callable[[], None]) -> bool:
        known = [world.ledger.shards.get(entry.shard) for entry in entries]
        first = any(one is not None and any(log != one.owner_log for log, _, _ in one.chain) for one in known)
        if first and all(
            one is not None and one.owner_log == two.owner_log for one, two in zip(known, entries, strict=True)
        ):
            _this_dies(world)
        return False

    world.ledger.when_changing = changes


def stopped_recoverers(world: ClusterWorld) -> None:
    machines = world.machines
    stopped: dict[int, NodeProcess] = {}

    def stuck(name: str) -> None:
        machines.stuck = 0.0
        _dies(world, world.server(name), 1.0, 0.5 * world.random.random())

    def sealing(entry: LogEntry) -> None:
        if not stopped and machines.holds(entry.log_id):
            _this_is_stopped(world, 1.0)
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
                    _dies(world, other)
            Context().run(world.loop.go_on, process)
        return False

    machines.when_stuck = stuck
    world.ledger.when_sealing, world.ledger.when_changing = sealing, changes


def slow_readers(world: ClusterWorld) -> None:
    def listed(log_id: int, segment: int) -> None:
        writer = _writer(world, log_id)
        if writer is not None and writer.stopped and writer.node is not None and writer.node._incarnation is not None:
            filled = writer.node._incarnation.log.next_segment
            if segment == filled:
                Context().run(world.loop.go_on, writer)

    world.machines.when_listed = listed


def idle_marks(world: ClusterWorld) -> None:
    def moved(entry: LogEntry) -> None:
        _dies(world, _writer(world, entry.log_id), 0.5, 0.3 + world.random.random())

    world.ledger.when_floor_moved = moved


def lone_rows(world: ClusterWorld) -> None:
    def sealed(entry: LogEntry) -> None:
        alone = world.machines.lone_holders(entry.log_id, entry.sealed_seq or 0)
        if alone and all(machine.up for machine in world.machines.machines):
            _later(world, 0.0, lambda: world.tasks.append(world.loop.create_task(replaced(min(alone)))))
            _later(world, 0.5, _all_die, world)

    async def replaced(number: int) -> None:
        if await world.troubles.away(number, 2.0):
            world.machines.wipe(number)

    world.ledger.when_sealed = sealed


# --- metadata ---


def late_changes(world: ClusterWorld) -> None:
    def late(entries: Sequence[ShardEntry], apply: Callable[[], None]) -> bool:
        if world.over or world.random.random() >= 0.3:
            return False
        _later(world, world.ledger.timeout_seconds + 0.5, apply)
        return True

    world.ledger.when_changing = late


def changes_of_the_dead(world: ClusterWorld) -> None:
    ledger = world.ledger
    held: dict[int, list[Callable[[], None]]] = {}

    def hold(entries: Sequence[ShardEntry], apply: Callable[[], None]) -> bool:
        host = HOST.get()
        known = [ledger.shards.get(entry.shard) for entry in entries]
        same = all(one is not None and one.owner_log == two.owner_log for one, two in zip(known, entries, strict=True))
        if not isinstance(host, NodeProcess) or not same or world.over or world.random.random() >= 0.15:
            return False
        held.setdefault(entries[0].owner_log, []).append(apply)
        _dies(world, host)
        return True

    def sealed(entry: LogEntry) -> None:
        for apply in held.pop(entry.log_id, []):
            _later(world, 0.1, apply)
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
            if not checkpointer._indeterminate:
                await checkpointer._sweep()


def late_gifts(world: ClusterWorld) -> None:
    held: dict[int, list[Callable[[], None]]] = {}

    def hold(entries: Sequence[ShardEntry], apply: Callable[[], None]) -> bool:
        log_id = entries[0].owner_log
        successor = _writer(world, log_id)
        if log_id not in held:
            if successor is None or successor is HOST.get() or world.over or world.random.random() >= 0.3:
                return False
            held[log_id] = []
            _dies(world, successor)
        held[log_id].append(apply)
        return True

    def give(log_id: int) -> None:
        for apply in held.pop(log_id):
            apply()

    def sealed(entry: LogEntry) -> None:
        if entry.log_id in held:
            _later(world, 5.0, _all_sweep, world)
            _later(world, 6.0, give, entry.log_id)

    world.ledger.when_changing = hold
    world.ledger.when_sealed = sealed


def stopped_checkpointers(world: ClusterWorld) -> None:
    def stops(entries: Sequence[ShardEntry], apply: Callable[[], None]) -> bool:
        _this_is_stopped(world, 0.1)
        return False

    world.ledger.when_changing = stops


def clocks_set_back(world: ClusterWorld) -> None:
    _later(world, 20.0, world.nodes.offsets.update, {"node1": 0.0})


def dead_recoverers(world: ClusterWorld) -> None:
    def sealing(entry: LogEntry) -> None:
        if entry.node in world.nodes.gone:
            _this_dies(world, 0.8)

    world.ledger.when_sealing = sealing


def returned_shards(world: ClusterWorld) -> None:
    had: dict[int, set[int]] = {}

    def gives(entries: Sequence[ShardEntry], apply: Callable[[], None]) -> bool:
        for entry in entries:
            known = world.ledger.shards.get(entry.shard)
            if known is not None and known.owner_log != entry.owner_log:
                had.setdefault(entry.shard, set()).add(known.owner_log)
                if entry.owner_log in had[entry.shard]:
                    _dies(world, _writer(world, entry.owner_log), 0.2, 0.5 + world.random.random())
        return False

    world.ledger.when_changing = gives


def _writer(world: ClusterWorld, log_id: int) -> NodeProcess | None:
    """The process that writes a log."""
    return next(
        (one for one in world.nodes.living() if one.node and one.node.ready and one.node.ownership.log_id == log_id),
        None,
    )


# --- backups ---


def backups(world: ClusterWorld) -> None:
    def begin() -> None:
        backing_up = Backups(world, Random(world.random.random())).run()
        world.tasks.append(world.loop.create_task(backing_up))

    _later(world, 3.0, begin)


def slow_backups(world: ClusterWorld) -> None:
    world.machines.far = lambda client, number: 0.2 if client == BACKUP else 0.0


# --- answers ---


def weak_answers(world: ClusterWorld) -> None:
    world.weak_levels = (AckLevel.LEADER,)


# --- moves ---


def dying_sources(world: ClusterWorld) -> None:
    def answering(server: ServerHost, command: Command[Any]) -> None:
        if isinstance(command, AcceptTransfers):
            source = [one for one in world.nodes.living() if one.node and command.source in one.node.partitions]
            _dies(world, source[0] if source else None, 0.3)

    world.when_answering = answering


def dying_givers(world: ClusterWorld) -> None:
    def gives(entries: Sequence[ShardEntry], apply: Callable[[], None]) -> bool:
        known = world.ledger.shards.get(entries[0].shard)
        host = HOST.get()
        if known is not None and known.owner_log != entries[0].owner_log and isinstance(host, NodeProcess):
            _dies(world, host, 0.5, 0.1 + 0.2 * world.random.random())
        return False

    world.ledger.when_changing = gives


# --- maps ---


def parents_die(world: ClusterWorld) -> None:
    def mapped(queue: StoredQueue) -> None:
        ids = {one.id for one in queue.partitions}
        for process in world.nodes.living():
            if process.node is not None and ids & process.node.partitions.keys():
                _dies(world, process, 0.5, world.random.random() * 0.1)

    world.when_mapped = mapped


def dying_parents(world: ClusterWorld) -> None:
    lonely: set[str] = set()

    def act() -> None:
        if world.over or not world.mapped:
            return
        _later(world, 4.0, act)
        queue = world.catalog.queues[world.random.choice(world.mapped)]
        ids = {one.id for one in queue.partitions}
        parents = [one for one in world.nodes.living() if one.node is not None and ids & one.node.partitions.keys()]
        if parents and not lonely and not changing(queue.partitions):
            name = world.random.choice(parents).name
            lonely.add(name)
            world.net.cut(name, "rows")
            _later(world, 0.7, world.maps.begin, queue.queue_id, world.random)
            _later(world, 3.5, mend, name)

    def mend(name: str) -> None:
        if name in lonely:
            lonely.remove(name)
            world.net.mend(name, "rows")

    def answering(server: ServerHost, command: Command[Any]) -> None:
        if isinstance(command, HandOverTokens) and command.part == HANDOVER_PARTS - 1 and server.name in lonely:
            _dies(world, server, 1.0, 0.1)
            _later(world, 0.11, mend, server.name)

    world.when_answering = answering
    _later(world, 4.0, act)


def maps_of_moves(world: ClusterWorld) -> None:
    def answering(server: ServerHost, command: Command[Any]) -> None:
        if not isinstance(command, AcceptTransfers) or world.over or world.random.random() >= 0.5:
            return
        to, source = command.target, command.source
        senders = [one.name for one in world.nodes.living() if one.node is not None and source in one.node.partitions]
        queue = world.catalog.last(to.queue_id)
        is_open = any(one.id == to.partition for one in open_ones(queue.partitions))
        if senders and queue.queue_id in world.mapped and is_open and not changing(queue.partitions):
            way = server.name, senders[0]
            world.net.cut(*way)
            _later(world, 12.0, world.net.mend, *way)
            world.maps.begin(queue.queue_id, world.random, to.partition)

    world.when_answering = answering


def dying_purgers(world: ClusterWorld) -> None:
    _dies_of(world, Purged.KIND)


def dying_deleters(world: ClusterWorld) -> None:
    _dies_of(world, Dropped.KIND)


def _dies_of(world: ClusterWorld, kind: int) -> None:
    """A node dies soon after a row with a record of this kind, which reaches no machine."""
    world.machines.stuck_kind = kind
    world.machines.when_stuck = lambda name: _dies(world, world.server(name), 1.0, 0.1)


# --- local files ---


def stopped_owners(world: ClusterWorld) -> None:

    def choose(action: str) -> Front:
        stopped = any(process.stopped for process in world.nodes.living())
        return world.fronts[1] if stopped else world.random.choice(world.fronts)

    world.callers.choose = choose


def power_after_seals(world: ClusterWorld) -> None:
    def power() -> None:
        if not world.over:
            _all_die(world)
            world.disk.crash()

    def sealed(entry: LogEntry) -> None:
        if not world.over and world.random.random() < 0.8:
            _later(world, world.random.random() * 0.4, power)

    world.store.when_sealed = sealed
