"""Rules of the journal, each taken out for the length of a cluster's run: the simulator has to notice.

A mutation patches the real code.  Where a rule is kept by Cassandra, or by the statements that it is sent, the mutation
changes what stands in for it here (:mod:`tests.simulator.quorum`, :mod:`tests.simulator.ledger`).  ``RULES`` has every
rule, with its mutations or the reason why it has none here; ``docs/simulator.md`` prints it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from contextvars import Context
from typing import Any, NamedTuple
from unittest import mock

import msgspec

from backend import node as node_module
from backend import replay, startup, takeover
from backend.api import AckLevel, HandleOutcome, Target
from backend.checkpointer import Checkpointer
from backend.engine import records, snapshot
from backend.engine.fold import Fold
from backend.engine.transfers import Outgoing, Taken
from backend.ferry import Ferry, NotReached
from backend.incarnation import Incarnation
from backend.journal import cassandra_log
from backend.journal.cassandra_journal import CassandraJournal
from backend.journal.cassandra_log import CassandraLog
from backend.journal.cassandra_scan import CassandraScan
from backend.journal.local import LocalJournal
from backend.journal.pins import Pins
from backend.journal.rows import directory_entry, encode_row
from backend.journal.tables import StateRead, Unanswered
from backend.manager import Member
from backend.node import Node
from backend.ownership import Ownership
from backend.shards import Shard, Shards
from backend.view import View
from backend.watch import Watch
from metadata_service.models import LogEntry, ShardEntry
from metadata_service.store import ConditionFailed, StoreError, StoreUnavailable
from tests.simulator import quorum
from tests.simulator.cluster import ClusterWorld
from tests.simulator.disk import SimDisk
from tests.simulator.hosts import HOST
from tests.simulator.nodes import NodeProcess
from tests.simulator.quorum import QuorumTables


class Mutation(NamedTuple):
    name: str
    rule: str
    """As in docs/simulator.md."""
    breaks: str
    make: Callable[[ClusterWorld], AbstractContextManager[Any]]
    local: bool
    """On which journal it shows."""
    scenario: str | None
    """In which of :data:`tests.simulator.cluster.SCENARIOS` it shows soonest."""


MUTATIONS: dict[str, Mutation] = {}


def _mutation(
    rule: str, *, local: bool = False, scenario: str = "usual"
) -> Callable[[Callable[[ClusterWorld], AbstractContextManager[Any]]], object]:
    def register(make: Callable[[ClusterWorld], AbstractContextManager[Any]]) -> object:
        breaks = " ".join((make.__doc__ or "").split())
        MUTATIONS[make.__name__] = Mutation(make.__name__, rule, breaks, make, local, scenario)
        return make

    return register


def run_mutated(name: str, seed: int) -> BaseException | None:
    """Run one seed with a rule taken out; what it was noticed by, or None."""
    mutation = MUTATIONS[name]
    world = ClusterWorld(seed, local=mutation.local, scenario=mutation.scenario)
    with mutation.make(world):
        try:
            world.run()
        except Exception as error:
            return error
    return None


# --- writing ------------------------------------------------------------------------------------------------


@_mutation("Writing 1")
def answered_before_the_row(world: ClusterWorld) -> AbstractContextManager[Any]:
    """Answers do not wait for the row that they were computed from."""
    return mock.patch.object(CassandraLog, "barrier", return_value=None)


@_mutation("Writing 1")
def answered_out_of_order(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A row is answered although one before it is not complete."""
    real = CassandraLog._written

    def written(self: CassandraLog, row: Any, error: BaseException | None) -> None:
        real(self, row, error)
        if error is None and self._error is None:
            for future in row.futures:
                if not future.done():
                    future.set_result(None)

    return mock.patch.object(CassandraLog, "_written", written)


@_mutation("Writing 2", scenario="zombies")
def zombie_answers(world: ClusterWorld) -> AbstractContextManager[Any]:
    """The zombie owner: rows are answered when a quorum has them, without a look at the log's entry."""
    real = CassandraLog._written

    def written(self: CassandraLog, row: Any, error: BaseException | None) -> None:
        real(self, row, error)
        if self._error is None:
            self._answer(self._complete_seq)

    return mock.patch.object(CassandraLog, "_written", written)


@_mutation("Writing 2", scenario="zombies")
def fence_read_too_early(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A read of the entry answers also for rows that were completed after it was sent."""
    real = CassandraLog._read

    def read(self: CassandraLog, covers: int, *rest: Any) -> None:
        real(self, self._complete_seq, *rest)

    return mock.patch.object(CassandraLog, "_read", read)


@_mutation("Writing 2", scenario="zombies")
def fence_read_of_one_machine(world: ClusterWorld) -> AbstractContextManager[Any]:
    """The entry is read at another level than rows are written at: one machine is enough."""
    world.ledger.commit_seconds = 0.5
    world.troubles.pause = 1.5

    def read_state(self: QuorumTables, log_id: int, done: StateRead) -> None:
        machines = self._machines
        majority, machines.majority = machines.majority, 1
        machines.ask(
            self,
            lambda machine: machine.partition(("entry", log_id)).get((), (0, None))[1],
            lambda found: done(found if isinstance(found, Unanswered) else found[0][1]),
        )
        machines.majority = majority

    return mock.patch.object(QuorumTables, "read_state", read_state)


@_mutation("Writing 2", scenario="zombies")
@contextmanager
def commits_not_awaited(world: ClusterWorld) -> Iterator[None]:
    """A successor reads the log before a majority knows that it is being recovered."""
    world.ledger.commits_awaited = False
    world.ledger.commit_seconds = 1.0
    world.troubles.pause = 1.5
    yield


@_mutation("Writing 3", scenario="quiet")
def answered_at_once_without_a_record(world: ClusterWorld) -> AbstractContextManager[Any]:
    """Answers that wrote nothing wait for no fence."""
    real = CassandraLog.barrier

    def barrier(self: CassandraLog) -> Any:
        nothing = self._error is None and not (self._records or self._closed or self._unanswered)
        return None if nothing else real(self)

    return mock.patch.object(CassandraLog, "barrier", barrier)


@_mutation("Writing 4", scenario="slow")
def carried_before_it_is_durable(world: ClusterWorld) -> AbstractContextManager[Any]:
    """Another node takes a message before it is durable that the message leaves.  (The source dies then.)"""
    real = Ferry._carry

    async def carry(self: Ferry, *rest: Any) -> None:
        with _not_durable(self._node):
            await real(self, *rest)

    async def ask(self: Ferry, *rest: Any) -> list[int]:
        refused = await real_ask(self, *rest)
        _dies(world, 0.3)
        await asyncio.sleep(0)
        return refused

    real_ask = Ferry._ask
    return mock.patch.multiple(Ferry, _carry=carry, _ask=ask)


@_mutation("Writing 4", scenario="slow")
def handed_over_before_it_is_durable(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A shard is handed over before the rows are durable that its last checkpoint rests on.  (The giver dies then.)"""
    real = Checkpointer._last_checkpoint

    async def last(self: Checkpointer, shards: list[Shard]) -> list[ShardEntry]:
        with _not_durable(self._node):
            return await real(self, shards)

    async def give(self: Checkpointer, *rest: Any) -> None:
        await real_give(self, *rest)
        _dies(world, 0.5)

    real_give = Checkpointer.give
    world.machines.slow_seconds = 0.05
    return mock.patch.multiple(Checkpointer, _last_checkpoint=last, give=give)


def _dies(world: ClusterWorld, chance: float = 1.0) -> None:
    """The running process is killed: just here it matters."""
    host = HOST.get()
    if isinstance(host, NodeProcess) and not world.over and world.random.random() < chance:
        Context().run(world.loop.call_soon, world.nodes.kill, host)


def _not_durable(incarnation: Incarnation) -> AbstractContextManager[Any]:
    async def nothing() -> None:
        return None

    return mock.patch.object(incarnation, "durable", nothing)


@_mutation("Writing 5")
def unknown_write_taken_for_done(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A row of which nobody knows whether it was written is answered.  (Sometimes its writer dies then.)"""
    real = CassandraLog._written

    def written(self: CassandraLog, row: Any, error: BaseException | None) -> None:
        real(self, row, None if isinstance(error, Unanswered) else error)
        if isinstance(error, Unanswered):
            _dies(world, 0.1)

    return mock.patch.object(CassandraLog, "_written", written)


@_mutation("Writing 5")
@contextmanager
def other_bytes_when_sent_again(world: ClusterWorld) -> Iterator[None]:
    """A row that is sent again is made anew, with what is known by then."""
    chains: dict[tuple[int, int], int] = {}
    real_send, real_put = CassandraLog._send, CassandraLog._put

    def send(self: CassandraLog, row: Any) -> None:
        chains[self.log_id, row.seq] = self._chain
        real_send(self, row)

    def put(self: CassandraLog, row: Any) -> None:
        if row.tries and not row.complete:
            end, lines = 0, []
            for record in row.records:
                end += len(record)
                lines.append(directory_entry(record, end))
            row.data, _ = encode_row(
                life=self._life, log_id=self.log_id, seq=row.seq, answered=self.durable_seq,
                time_ms=self._clock_ms(), chain=chains[self.log_id, row.seq], records=row.records,
                directory=b"".join(lines),
            )  # fmt: skip
        real_put(self, row)

    with mock.patch.multiple(CassandraLog, _send=send, _put=put):
        yield


@_mutation("Writing 5", scenario="zombies")
@contextmanager
def any_number_of_rows_under_way(world: ClusterWorld) -> Iterator[None]:
    """Rows are sent however far the first one that is not complete lies behind."""
    world.nodes.rows_at_once = 1000
    world.nodes.row_bytes = 64
    with mock.patch.object(cassandra_log, "WINDOW", 1 << 30):
        yield


@_mutation("Writing 6")
@contextmanager
def memory_outlives_the_fence(world: ClusterWorld) -> Iterator[None]:
    """A node that was fenced begins anew with what it had in memory."""
    kept: dict[int, Fold] = {}
    real_end, real_open = Node._end, Shards.open

    def end(self: Node, error: Any) -> Any:
        incarnation = real_end(self, error)
        if incarnation is not None:
            kept.update({one.id: one.fold for one in incarnation.partitions.values()})
        return incarnation

    def opened(self: Shards, entries: Iterable[ShardEntry], folded: replay.Replay, now: int) -> Any:
        for number in list(folded.folds):
            if number in kept:
                folded.folds[number] = kept.pop(number)
                folded.folds[number].changed = True
        return real_open(self, entries, folded, now)

    with mock.patch.object(node_module.Node, "_end", end), mock.patch.object(Shards, "open", opened):
        yield


@_mutation("Writing 8")
def epoch_not_in_numbers(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A new owner numbers on where the last durable record ended.  (It shows where ids are given out before.)"""
    return mock.patch.object(Fold, "open", return_value=None)


# --- recovery, takeover, hand-over --------------------------------------------------------------------------


@_mutation("Recovery 1", scenario="zombies")
def read_before_it_is_fenced(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A log is read and sealed without having said before that it is being recovered."""

    async def claim(entries: Any, found: Iterable[LogEntry], begun: Collection[int], mine: LogEntry) -> list[LogEntry]:
        return [entry for entry in found if entry.state != "sealed"]

    return mock.patch.multiple("backend.ownership", claim=claim)


@_mutation("Recovery 2", scenario="zombies")
def gap_is_read_over(world: ClusterWorld) -> AbstractContextManager[Any]:
    """Rows behind the first one that is missing are taken for part of the log."""
    real = CassandraScan._look_past

    async def look_past(self: CassandraScan, *rest: Any) -> int:
        await real(self, *rest)
        return 1 << 60

    async def has_come(self: CassandraScan, seq: int) -> bool:
        return False

    return mock.patch.multiple(CassandraScan, _look_past=look_past, _has_come=has_come, _report=lambda *_: None)


@_mutation("Recovery 2", scenario="zombies")
def gap_not_asked_again(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A row that was missing while its writer lives is taken for lost, without asking for it again."""

    async def has_come(self: CassandraScan, seq: int) -> bool:
        return False

    return mock.patch.object(CassandraScan, "_has_come", has_come)


@_mutation("Recovery 3", scenario="slow")
def tail_not_written_again(world: ClusterWorld) -> AbstractContextManager[Any]:
    """Recovery builds on rows that perhaps one machine alone has.  (That one dies then.)"""

    async def settle(self: CassandraJournal, entry: LogEntry, end: Any) -> None:
        machines = world.machines.machines
        for row in self._scans[entry.log_id].tail:
            place = ("journal", entry.log_id, row.segment)
            having = [number for number in range(3) if (row.row,) in machines[number].partition(place)]
            if row.seq <= end.seq and len(having) == 1 and not world.over:
                Context().run(world.loop.create_task, replaced(having[0]))
                return

    async def replaced(number: int) -> None:
        if await world.troubles.away(number, 2.0):
            world.machines.wipe(number)

    world.machines.repairs = False

    return mock.patch.object(CassandraJournal, "settle", settle)


@_mutation("Recovery 4", scenario="zombies")
def seal_set_again(world: ClusterWorld) -> AbstractContextManager[Any]:
    """Whoever has read a log seals it where it has read to, whoever else has sealed it meanwhile."""

    async def seal(journal: Any, entries: Any, claimed: LogEntry, end: Any) -> None:
        await journal.settle(claimed, end)
        while True:
            try:
                await entries.update_log(msgspec.structs.replace(claimed, state="sealed", sealed_seq=end.seq))
                break
            except ConditionFailed:
                (stored,) = [one for one in await entries.logs() if one.log_id == claimed.log_id]
                claimed = msgspec.structs.replace(claimed, version=stored.version)
        await journal.trim(claimed, end)

    return mock.patch.object(takeover, "seal", seal)


@_mutation("Recovery 4", scenario="zombies")
def rows_after_the_seal(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A sealed log is read as far as there are rows."""
    real = CassandraScan.__init__

    def init(self: CassandraScan, *rest: Any, **more: Any) -> None:
        real(self, *rest, **{**more, "sealed_seq": None})

    return mock.patch.object(CassandraScan, "__init__", init)


@_mutation("Recovery 5", scenario="moving")
def epoch_not_raised(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A shard that is handed over stays in its epoch: what an heir wrote when it had it before counts again."""
    real = Checkpointer._conclude

    async def conclude(self: Checkpointer) -> None:
        for number, (entry, heir) in self._giving.items():
            epoch = self._node.shards.owned[number].epoch
            chain = (*entry.chain[:-1], (entry.owner_log, epoch, 1))
            self._giving[number] = (msgspec.structs.replace(entry, epoch=epoch, chain=chain), heir)
        await real(self)

    return mock.patch.object(Checkpointer, "_conclude", conclude)


@_mutation("Recovery 5")
def records_of_other_epochs(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A fold takes all records of its shard, also those of an ownership that has ended."""
    real = replay.Replay.chained

    class Any_(dict[tuple[int, int], int]):
        def get(self, key: Any, default: Any = None) -> Any:
            return min((seq for (shard, _), seq in self.items() if shard == key[0]), default=default)

    def chained(self: replay.Replay, log_id: int) -> replay.Chained:
        found = real(self, log_id)
        return found._replace(shards=Any_(found.shards))

    return mock.patch.object(replay.Replay, "chained", chained)


@_mutation("Recovery 5")
@contextmanager
def taken_from_the_living(world: ClusterWorld) -> Iterator[None]:
    """A shard is taken although the log of its owner is not sealed."""
    real = Ownership.take

    async def take(self: Ownership, numbers: Collection[int]) -> set[int]:
        entries, logs = self._entries, self._entries.logs

        async def as_if_sealed(node: str | None = None) -> list[LogEntry]:
            return [msgspec.structs.replace(one, state="sealed") for one in await logs(node)]

        with mock.patch.object(entries, "logs", as_if_sealed):
            return await real(self, numbers)

    with mock.patch.object(View, "can_take", return_value=True), mock.patch.object(Ownership, "take", take):
        yield


@_mutation("Recovery 5")
@contextmanager
def entries_changed_unconditionally(world: ClusterWorld) -> Iterator[None]:
    """Entries are written whatever version they have."""
    world.ledger.conditions = False
    yield


@_mutation("Recovery, the manager finishes what others began", scenario="slow")
def recoveries_not_finished(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A recovery whose recoverer has died is left as it is."""
    real = Ownership.seal

    async def seal(self: Ownership, log_id: int) -> None:
        (entry,) = [one for one in await self._entries.logs() if one.log_id == log_id]
        if entry.state == "open":
            await real(self, log_id)

    return mock.patch.object(Ownership, "seal", seal)


@_mutation("Recovery, hand-over", scenario="moving")
def served_while_it_is_handed_over(world: ClusterWorld) -> AbstractContextManager[Any]:
    """The owner takes commands after the last checkpoint."""
    return mock.patch.object(Incarnation, "close_shard", return_value=None)


@_mutation("Recovery, hand-over")
def taken_without_an_entry(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A new owner serves a shard before its entry says so."""
    real = Ownership.take

    async def take(self: Ownership, numbers: Collection[int]) -> set[int]:
        async def as_if_stored(entries: Sequence[ShardEntry]) -> list[ShardEntry]:
            return list(entries)

        with mock.patch.object(self._entries, "update_shards", as_if_stored):
            return await real(self, numbers)

    return mock.patch.object(Ownership, "take", take)


@_mutation("Recovery, unknown transactions", scenario="moving")
def unknown_change_settled_by_reading(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A hand-over whose end is not known is taken for failed when the old entry is read.  (Half of them end late.)"""
    real = Checkpointer.give

    async def give(self: Checkpointer, numbers: Collection[int], heir: LogEntry) -> None:
        try:
            with _late_changes(world, self._entries):
                await real(self, numbers, heir)
        except StoreError:
            stored = {entry.shard: entry for entry in await self._entries.shards()}
            for number in list(self._giving):
                if stored[number].owner_log == self.entry.log_id:
                    del self._giving[number]
                    self._node.reopen_shard(self._node.shards.owned[number])
            raise

    return mock.patch.object(Checkpointer, "give", give)


@contextmanager
def _late_changes(world: ClusterWorld, entries: Any) -> Iterator[None]:
    """Half of the changes of shards take effect when their caller has given up."""
    real = entries.update_shards

    async def later(changed: Sequence[ShardEntry]) -> None:
        await asyncio.sleep(1.0)
        with suppress(StoreError):
            await real(changed)

    async def update_shards(changed: Sequence[ShardEntry]) -> list[ShardEntry]:
        if world.over or world.random.random() < 0.5:
            return list(await real(changed))
        asyncio.get_running_loop().create_task(later(changed))
        await asyncio.sleep(0.5)
        raise StoreUnavailable("no answer from the metadata")

    with mock.patch.object(entries, "update_shards", update_shards):
        yield


@_mutation("Recovery, unknown transactions")
def entries_that_name_the_node_not_looked_for(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A node serves what it is to have, and does not look for what it was given."""
    real = Member._follow

    async def follow(self: Member, view: View) -> None:
        wanted = {number: entry for number, entry in view.shards.items() if view.wanted(number) == self._name}
        await real(self, view._replace(shards=wanted))

    return mock.patch.object(Member, "_follow", follow)


@_mutation("Recovery, the watcher", scenario="outages")
def blind_time_counts(world: ClusterWorld) -> AbstractContextManager[Any]:
    """Time in which the watcher could not read or write the metadata counts against the others."""
    stack = ExitStack()
    stack.enter_context(mock.patch.object(Watch, "blind", return_value=None))
    stack.enter_context(mock.patch("backend.watch.GAP_SECONDS", 1e9))
    return stack


# --- segments -----------------------------------------------------------------------------------------------


@_mutation("Segments 1")
def live_segment_dropped(world: ClusterWorld) -> AbstractContextManager[Any]:
    """Segments below the floor go although messages in them live."""
    return mock.patch.object(Pins, "set_live", return_value=None)


@_mutation("Segments 1")
def chained_segment_dropped(world: ClusterWorld) -> AbstractContextManager[Any]:
    """Segments of a sealed log go although a shard is still to be folded from them."""
    return mock.patch("backend.checkpointer._pins", _pins_without_chains)


def _pins_without_chains(own: int, entry: LogEntry, known: dict[int, LogEntry], shards: list[ShardEntry]) -> Pins:
    pins = Pins()
    for log in known.values():
        floor = entry if log.log_id == own else log
        pins.set_floor(log.log_id, 1 << 30 if log.state == "sealed" else floor.floor_segment)
    for shard in shards:
        pins.set_live(shard.shard, shard.segments())
    return pins


@_mutation("Segments 1")
def floor_moved_too_early(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A log's floor passes shards that have no checkpoint behind it."""
    return mock.patch.object(Shard, "dirty", property(lambda self: self.number % 2 == 0))


@_mutation("Segments 1", scenario="moving")
def candidates_after_the_entries(world: ClusterWorld) -> AbstractContextManager[Any]:
    """What may go is looked for after the entries were read; here a while after."""
    real = Checkpointer._sweep

    async def sweep(self: Checkpointer) -> None:
        shards = await self._entries.shards()
        await asyncio.sleep(world.random.random() * 4)

        async def as_they_were() -> list[ShardEntry]:
            return shards

        with mock.patch.object(self._entries, "shards", as_they_were):
            await real(self)

    return mock.patch.object(Checkpointer, "_sweep", sweep)


@_mutation("Segments 2", scenario="moving")
def checkpoint_of_a_former_owner(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A checkpoint is committed whoever owns the shard by now.  (Sometimes its process is stopped just then.)"""
    real = Checkpointer.__init__

    class Forced:
        def __init__(self, entries: Any) -> None:
            self._entries = entries

        def __getattr__(self, name: str) -> Any:
            return getattr(self._entries, name)

        async def update_shards(self, entries: Sequence[ShardEntry]) -> list[ShardEntry]:
            host = HOST.get()
            if isinstance(host, NodeProcess) and not world.over and world.random.random() < 0.2:
                host.stopped = True
                Context().run(world.loop.call_later, 9.0, world.loop.go_on, host)
                await asyncio.sleep(0)
            versions = {entry.shard: entry.version for entry in await self._entries.shards()}
            again = [msgspec.structs.replace(entry, version=versions.get(entry.shard, 0)) for entry in entries]
            return list(await self._entries.update_shards(again))

    def init(self: Checkpointer, node: Any, entry: Any, entries: Any, *rest: Any) -> None:
        real(self, node, entry, Forced(entries), *rest)

    return mock.patch.object(Checkpointer, "__init__", init)


@_mutation("Segments 4", scenario="moving")
def pieces_of_an_owner_dropped(world: ClusterWorld) -> AbstractContextManager[Any]:
    """Pieces of checkpoints are dropped by others while the log that wrote them owns a shard, too."""
    real = Checkpointer._drop_pieces

    async def drop(self: Checkpointer, files: Any, shards: list[ShardEntry]) -> set[int]:
        own = self._node.log.log_id
        return await real(self, files, [msgspec.structs.replace(one, owner_log=own, chain=()) for one in shards])

    return mock.patch.object(Checkpointer, "_drop_pieces", drop)


@_mutation("Segments 4", scenario="moving")
def pieces_dropped_while_a_change_is_unsettled(world: ClusterWorld) -> AbstractContextManager[Any]:
    """Pieces that a checkpoint may name are dropped when it is not known whether it was committed.  (Half end late.)"""
    real = Checkpointer._checkpoint

    async def checkpoint(self: Checkpointer) -> None:
        before = {one.file for one in await self._pieces.list_files() if one.log_id == self.entry.log_id}
        try:
            with _late_changes(world, self._entries):
                await real(self)
        except StoreError:
            for one in await self._pieces.list_files():
                if one.log_id == self.entry.log_id and one.file not in before:
                    await self._pieces.drop_file(one.log_id, one.file)
            raise

    return mock.patch.object(Checkpointer, "_checkpoint", checkpoint)


@_mutation("Segments 5")
@contextmanager
def rows_live_for_a_while(world: ClusterWorld) -> Iterator[None]:
    """Rows have a time to live."""
    real = quorum.Machine.store

    def store(self: Any, partition: Any, row: Any, timestamp: int, value: Any) -> None:
        real(self, partition, row, timestamp, value)
        if partition[0] in ("journal", "pieces"):
            world.loop.call_later(12.0, self.cells.get(partition, {}).pop, row, None)

    with mock.patch.object(quorum.Machine, "store", store):
        yield


# --- moves between queues -----------------------------------------------------------------------------------


@_mutation("Moves")
def let_go_before_it_is_taken(world: ClusterWorld) -> AbstractContextManager[Any]:
    """The source lets go of what it has sent, whatever became of it."""
    real = Ferry._ask

    async def ask(self: Ferry, *rest: Any) -> list[int]:
        try:
            return await real(self, *rest)
        except NotReached:
            return []

    return mock.patch.object(Ferry, "_ask", ask)


@_mutation("Moves")
def taken_twice(world: ClusterWorld) -> AbstractContextManager[Any]:
    """The destination does not remember what it has taken."""
    return mock.patch.object(Taken, "has", return_value=False)


@_mutation("Moves")
def marks_forgotten_in_checkpoints(world: ClusterWorld) -> AbstractContextManager[Any]:
    """What a destination has taken does not move with its shard."""
    real = snapshot.read

    async def read(ref: Any, fetch: Any) -> Any:
        fold, hanging = await real(ref, fetch)
        fold.taken.clear()
        return fold, hanging

    return mock.patch.object(snapshot, "read", read)


@_mutation("Moves")
def given_up_without_never(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A source that does not hear of a transfer keeps the message, without having the destination say never."""

    async def ask(self: Ferry, target: Any, settings: Any, asked: Any) -> list[int]:
        try:
            return await real(self, target, settings, asked)
        except NotReached:
            for source in list(self._node.partitions.values()):
                outgoing = source.fold.outgoing.get(target.partition)
                if outgoing is not None and outgoing.pending:
                    back = records.TransferBack(target.partition, list(outgoing.pending))
                    await self._node.write_all(source, lambda _, back=back: [back])  # type: ignore[misc]
            raise

    real = Ferry._ask
    return mock.patch.object(Ferry, "_ask", ask)


@_mutation("Moves")
def mark_raised_too_early(world: ClusterWorld) -> AbstractContextManager[Any]:
    """The mark that a source sends says that also transfers under way are done."""
    return mock.patch.object(Outgoing, "below", property(lambda self: self.next))


# --- acknowledgement levels -----------------------------------------------------------------------------------


@_mutation("Ack levels")
def deletes_answered_like_sends(world: ClusterWorld) -> AbstractContextManager[Any]:
    """Where sends are answered from the owner's memory, so are deletes."""
    real = Incarnation.delete

    async def delete(self: Incarnation, target: Target, handles: Sequence[str]) -> list[HandleOutcome]:
        partition = self.partitions.get(target.partition)
        if partition is None or partition.fold.ack_level is not AckLevel.LEADER:
            return await real(self, target, handles)
        with _not_durable(self):
            return await real(self, target, handles)

    return mock.patch.object(Incarnation, "delete", delete)


# --- local files --------------------------------------------------------------------------------------------


@_mutation("Local files", local=True)
def lock_not_asked(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A log is taken over although the process that holds its lock lives: it may have been stopped."""
    real = SimDisk.lock

    def lock(self: SimDisk, path: str) -> int:
        file = self._names.get(path)
        if file is not None:
            file.locked_by = None
        return real(self, path)

    return mock.patch.object(SimDisk, "lock", lock)


@_mutation("Local files", local=True)
def local_tail_not_rewritten(world: ClusterWorld) -> AbstractContextManager[Any]:
    """Recovery builds on rows that it has read from the page cache and the disk never got."""

    async def settle(self: LocalJournal, entry: LogEntry, end: Any) -> None:
        return None

    return mock.patch.object(LocalJournal, "settle", settle)


@_mutation("Local files", local=True)
def ids_serve_again_too_early(world: ClusterWorld) -> AbstractContextManager[Any]:
    """The id of a log serves again while something of that log is left."""

    def spare(earlier: list[LogEntry], *_: object) -> LogEntry | None:
        return next((entry for entry in earlier if entry.state == "sealed"), None)

    return mock.patch.object(startup, "_spare", spare)
