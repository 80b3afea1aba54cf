"""Rules of moves between queues, taken out."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from backend.engine import records, snapshot
from backend.engine.transfers import IncomingTransfers, Outgoing
from backend.serving.partition import OpenPartition
from backend.serving.transfers import NotReached, TransferWorker
from tests.simulator.mutations.cluster import focus
from tests.simulator.mutations.cluster.registry import mutation
from tests.simulator.world.cluster import ClusterWorld


@mutation("Moves", focus=focus.moves)
def let_go_before_it_is_taken(world: ClusterWorld) -> AbstractContextManager[Any]:
    """The source lets go of what it has sent, whatever became of it."""
    real = TransferWorker._ask

    async def ask(self: TransferWorker, *rest: Any) -> list[int]:
        try:
            return await real(self, *rest)
        except NotReached:
            return []

    return mock.patch.object(TransferWorker, "_ask", ask)


@mutation("Moves", focus=focus.moves)
def taken_twice(world: ClusterWorld) -> AbstractContextManager[Any]:
    """The destination does not remember what it has taken."""
    return mock.patch.object(IncomingTransfers, "has", return_value=False)


@mutation("Moves", focus=focus.moves)
def marks_forgotten_in_checkpoints(world: ClusterWorld) -> AbstractContextManager[Any]:
    """The transfers that a destination has taken do not move with its shard."""
    real = snapshot.read

    async def read(*what: Any) -> Any:
        fold, hanging = await real(*what)
        fold.taken.clear()
        return fold, hanging

    return mock.patch.object(snapshot, "read", read)


@mutation("Moves", focus=focus.moves)
def given_up_without_never(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A source that does not hear of a transfer keeps the message, without having the destination say never."""

    async def ask(self: TransferWorker, target: Any, settings: Any, asked: Any) -> list[int]:
        try:
            return await real(self, target, settings, asked)
        except NotReached:
            for source in list(self._node.partitions.values()):
                outgoing = source.fold.outgoing.get(target.partition)
                if outgoing is not None and outgoing.pending:
                    back = records.TransferBack(target.partition, list(outgoing.pending))
                    await self._node.write_all(source, lambda _, back=back: [back])  # type: ignore[misc]
            raise

    real = TransferWorker._ask
    return mock.patch.object(TransferWorker, "_ask", ask)


@mutation("Moves", focus=focus.moves)
def mark_raised_too_early(world: ClusterWorld) -> AbstractContextManager[Any]:
    """The mark that a source sends says that also transfers under way are done."""
    return mock.patch.object(Outgoing, "below", property(lambda self: self.next))


@mutation("Moves", scenario="maps", focus=focus.maps_of_moves)
def retired_destination_not_asked(world: ClusterWorld) -> AbstractContextManager[Any]:
    """Transfers in progress to a partition that has retired come back, although it does not say which it has taken."""

    async def turn_back(
        self: TransferWorker, source: OpenPartition, target: Any, settings: Any, back: list[int]
    ) -> None:
        await self._node.write_all(source, lambda _: [records.TransferBack(target.partition, back)])

    return mock.patch.object(TransferWorker, "_turn_back", turn_back)
