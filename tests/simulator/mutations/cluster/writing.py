"""Rules of writing, taken out: what an answer, or whatever else leaves a process, waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

from backend import node as node_module
from backend.engine.fold import Fold
from backend.journal.cassandra import log
from backend.journal.cassandra.log import CassandraLog
from backend.journal.cassandra.table_interface import StateRead, Unanswered
from backend.journal.rows import directory_entry, encode_row
from backend.node import Node
from backend.recovery import replay
from backend.recovery.checkpointer import Checkpointer
from backend.serving.host import PartitionHost
from backend.serving.incarnation import Incarnation
from backend.serving.shards import Shard, Shards, ShardTime
from backend.serving.transfers import TransferWorker
from metadata_service.models import ShardEntry
from tests.simulator.mutations.cluster import focus
from tests.simulator.mutations.cluster.registry import mutation
from tests.simulator.world.cluster import ClusterWorld
from tests.simulator.world.hosts import HOST, Host
from tests.simulator.world.quorum import QuorumTables


def _done(_: CassandraLog) -> asyncio.Future[None]:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.set_result(None)
    return future


@mutation("Writing 1")
def answered_before_the_row(world: ClusterWorld) -> AbstractContextManager[Any]:
    """Answers do not wait for the row that they were computed from."""
    return mock.patch.object(CassandraLog, "barrier", _done)


@mutation("Writing 1", scenario="slow", focus=focus.stuck_rows)
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


@mutation("Writing 2", scenario="zombies", focus=focus.zombies)
def zombie_answers(world: ClusterWorld) -> AbstractContextManager[Any]:
    """The zombie owner: rows are answered when a quorum has them, without a look at the log's entry."""
    real = CassandraLog._written

    def written(self: CassandraLog, row: Any, error: BaseException | None) -> None:
        real(self, row, error)
        if self._error is None:
            self._answer(self._complete_seq)

    return mock.patch.object(CassandraLog, "_written", written)


@mutation("Writing 2", scenario="zombies", focus=focus.zombies)
def fence_read_too_early(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A read of the entry answers also for rows that were completed after it was sent."""
    real = CassandraLog._read

    def read(self: CassandraLog, covers: int, *rest: Any) -> None:
        real(self, self._complete_seq, *rest)

    return mock.patch.object(CassandraLog, "_read", read)


@mutation("Writing 2", scenario="zombies", focus=focus.a_late_commit)
def fence_read_of_one_machine(world: ClusterWorld) -> AbstractContextManager[Any]:
    """The entry is read at another level than rows are written at: one machine is enough."""

    def read_state(self: QuorumTables, log_id: int, done: StateRead) -> None:
        self._machines.ask(
            self,
            lambda machine: machine.partition(("entry", log_id)).get((), (0, "open"))[1],
            lambda found: done(found if isinstance(found, Unanswered) else found[0][1]),
            needed=1,
        )

    return mock.patch.object(QuorumTables, "read_state", read_state)


@mutation("Writing 2", scenario="zombies", focus=focus.late_commits)
@contextmanager
def commits_not_awaited(world: ClusterWorld) -> Iterator[None]:
    """A successor reads the log before a majority knows that it is being recovered."""
    world.ledger.commits_awaited = False
    yield


@mutation("Writing 3", scenario="quiet", focus=focus.two_views)
def answered_at_once_without_a_record(world: ClusterWorld) -> AbstractContextManager[Any]:
    """Answers that wrote nothing wait for no fence."""
    real = CassandraLog.barrier

    def barrier(self: CassandraLog) -> Any:
        nothing = self._error is None and not (self._records or self._closed or self._unanswered)
        return _done(self) if nothing else real(self)

    return mock.patch.object(CassandraLog, "barrier", barrier)


@mutation("Writing 4", scenario="slow", focus=focus.dying_sources)
def carried_before_it_is_durable(world: ClusterWorld) -> AbstractContextManager[Any]:
    """Another node takes a message before it is durable that the message leaves."""
    real = TransferWorker._carry

    async def carry(self: TransferWorker, *rest: Any) -> None:
        with not_durable(self._node):
            await real(self, *rest)

    return mock.patch.object(TransferWorker, "_carry", carry)


@mutation("Writing 4", focus=focus.dying_takers)
def taken_before_it_is_durable(world: ClusterWorld) -> AbstractContextManager[Any]:
    """Another node is answered that its messages were taken before that is durable: it lets go of them."""
    real = Incarnation.take

    async def take(self: Incarnation, *rest: Any) -> list[int]:
        with not_durable(self):
            return await real(self, *rest)

    return mock.patch.object(Incarnation, "take", take)


@mutation("Writing 4", scenario="moving", focus=focus.dying_givers)
def handed_over_before_it_is_durable(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A shard is handed over before the rows are durable that its last checkpoint rests on."""
    real = Checkpointer._last_checkpoint

    async def last(self: Checkpointer, shards: list[Shard]) -> list[ShardEntry]:
        with not_durable(self._node):
            return await real(self, shards)

    return mock.patch.object(Checkpointer, "_last_checkpoint", last)


@mutation("Writing 4", scenario="maps", focus=focus.dying_parents)
def tokens_handed_over_before_they_are_durable(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A partition hands tokens over of sends that are not durable yet."""
    real = Incarnation.hand_over

    async def hand_over(self: Incarnation, *rest: Any) -> Any:
        with not_durable(self):
            return await real(self, *rest)

    return mock.patch.object(Incarnation, "hand_over", hand_over)


def not_durable(incarnation: PartitionHost) -> AbstractContextManager[Any]:
    async def nothing() -> None:
        return None

    return mock.patch.object(incarnation, "durable", nothing)


@mutation("Writing 5", scenario="slow", focus=focus.stuck_rows)
def unknown_write_taken_for_done(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A row of which nobody knows whether it was written is answered."""
    real = CassandraLog._written

    def written(self: CassandraLog, row: Any, error: BaseException | None) -> None:
        real(self, row, None if isinstance(error, Unanswered) else error)

    return mock.patch.object(CassandraLog, "_written", written)


@mutation("Writing 5")
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


@mutation("Writing 5", scenario="slow", focus=focus.stuck_rows)
@contextmanager
def any_number_of_rows_under_way(world: ClusterWorld) -> Iterator[None]:
    """Rows are sent however far the first one that is not complete lies behind."""
    world.nodes.rows_at_once = 1000
    with mock.patch.object(log, "WINDOW", 1 << 30):
        yield


@mutation("Writing 6", scenario="zombies", focus=focus.zombies)
@contextmanager
def memory_outlives_the_fence(world: ClusterWorld) -> Iterator[None]:
    """A node that was fenced begins anew with what it had in memory."""
    kept: dict[tuple[Host | None, int], Fold] = {}
    real_end, real_open = Node._end, Shards.open

    def end(self: Node, error: Any) -> Any:
        incarnation = real_end(self, error)
        if incarnation is not None:
            kept.update({(HOST.get(), one.id): one.fold for one in incarnation.partitions.values()})
        return incarnation

    def opened(self: Shards, entries: Iterable[ShardEntry], folded: replay.Replay, time_ms: ShardTime) -> Any:
        for number in list(folded.folds):
            mine = kept.pop((HOST.get(), number), None)
            if mine is not None:
                folded.folds[number] = mine
                mine.changed = True
        return real_open(self, entries, folded, time_ms)

    with mock.patch.object(node_module.Node, "_end", end), mock.patch.object(Shards, "open", opened):
        yield


@mutation("Writing 8", focus=focus.weak_answers)
def epoch_not_in_numbers(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A new owner numbers on where the last durable record ended: ids that were given out are given out again."""
    return mock.patch.object(Fold, "open", return_value=None)
