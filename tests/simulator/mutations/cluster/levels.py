"""Rules of acknowledgement levels, taken out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from backend.api import AckLevel, HandleOutcome, Target
from backend.journal.cassandra.log import CassandraLog
from backend.journal.cassandra.table_interface import Unanswered, Written
from backend.serving.incarnation import Incarnation
from tests.simulator.mutations.cluster import focus
from tests.simulator.mutations.cluster.registry import mutation
from tests.simulator.mutations.cluster.writing import not_durable
from tests.simulator.world.cluster import ClusterWorld
from tests.simulator.world.machines import MESSAGE, HostTables


@mutation("Ack levels", focus=focus.weak_answers)
def deletes_answered_like_sends(world: ClusterWorld) -> AbstractContextManager[Any]:
    """Deletes are answered from the owner's memory where sends are."""
    real = Incarnation.delete

    async def delete(self: Incarnation, target: Target, handles: Sequence[str]) -> list[HandleOutcome]:
        partition = self.partitions.get(target.partition)
        if partition is None or (
            partition.fold.ack_level is not AckLevel.LEADER and partition.fold.ack_level is not AckLevel.NONE
        ):
            return await real(self, target, handles)
        with not_durable(self):
            return await real(self, target, handles)

    return mock.patch.object(Incarnation, "delete", delete)


@mutation("Ack levels", focus=focus.strong_answers)
def all_answered_by_a_quorum(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A send that all replicas are to have is answered when a quorum has it."""

    async def written(self: CassandraLog, positions: Sequence[int]) -> None:
        await self.barrier()

    return mock.patch.object(CassandraLog, "on_all_replicas", written)


@mutation("Ack levels", scenario="slow", focus=focus.weak_rows)
def weak_rows_written_weaker(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A row with nothing but sends that are answered from memory is written to one machine: a hole before others."""
    real = HostTables.put_row

    def put_row(self: HostTables, log_id: int, segment: int, row: int, data: bytes, done: Written) -> None:
        names = MESSAGE.findall(data)
        messages = world.history.messages.values()
        weak = {msg.payload[:8] for msg in messages if msg.home.weak} if names else set()
        if not names or not weak.issuperset(names):
            real(self, log_id, segment, row, data, done)
            return
        self._net_machines.ask(
            self,
            lambda machine: machine.store(("journal", log_id, segment), (row,), 1, data),
            lambda found: done(found if isinstance(found, Unanswered) else None),
            needed=1,
            only=world.random.randrange(3),
        )

    return mock.patch.object(HostTables, "put_row", put_row)
