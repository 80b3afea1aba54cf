"""Rules whose absence ordinary seeds notice: no scenario is chosen for them, and no trouble is aimed at the point.

Each is taken out of the code for the length of a run, of one node or of a whole cluster, whichever journal that has.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, NamedTuple
from unittest import mock

import msgspec

from backend.api import HandleOutcome, Target, Transfer
from backend.engine.queue import QueueCommands
from backend.engine.receipt_handles import Handles
from backend.engine.transfers import IncomingTransfers
from backend.journal.cassandra.log import CassandraLog
from backend.journal.cassandra.scan import CassandraScan
from backend.journal.interface import Cut
from backend.journal.local.log import LocalLog
from backend.journal.local.scan import LocalScan
from backend.recovery import ownership, startup, takeover
from backend.recovery.checkpointer import Checkpointer
from backend.recovery.replay import Replay
from backend.serving.host import PartitionHost
from backend.serving.incarnation import Incarnation
from backend.serving.transfers import TransferWorker
from metadata_service.models import LogEntry, ShardEntry
from tests.simulator.world.cluster import ClusterWorld
from tests.simulator.world.world import SimWorld

Make = Callable[[], AbstractContextManager[Any]]

NODE_STEPS = 2000
CLUSTER_SECONDS = 15.0
"""Length of a run."""
SEEDS_MAX = 60
"""Seeds in which each rule's absence has to be noticed."""
FENCE_SECONDS = 0.3


class Ordinary(NamedTuple):
    name: str
    rule: str
    """Name of the rule in :data:`tests.simulator.mutations.rules.RULES`."""
    breaks: str
    make: Make
    """Takes the rule out."""
    of_node: bool
    """Runs of one node can notice."""
    of_cluster: bool
    """Runs of a cluster can notice."""


ORDINARY: dict[str, Ordinary] = {}


def _ordinary(rule: str, *, node: bool = True, cluster: bool = True) -> Callable[[Make], Make]:
    def register(make: Make) -> Make:
        breaks = " ".join((make.__doc__ or "").split())
        ORDINARY[make.__name__] = Ordinary(make.__name__, rule, breaks, make, node, cluster)
        return make

    return register


def run_ordinary(seed: int, *, cluster: bool) -> Counter[str]:
    """Run one seed as it is; returns its counts.  Raises what it finds."""
    if cluster:
        return ClusterWorld(seed, varied=True).run(CLUSTER_SECONDS).counts
    return SimWorld(seed).run(NODE_STEPS).counts


def noticed_by(name: str, seed: int, *, cluster: bool) -> Exception | None:
    """The error that a seed ends with when the rule is taken out; None: it does not notice."""
    with ORDINARY[name].make():
        try:
            run_ordinary(seed, cluster=cluster)
        except Exception as error:
            return error
    return None


def first_to_notice(name: str, seeds: Collection[int], *, cluster: bool) -> int | None:
    """The first of these seeds that notices."""
    return next((seed for seed in seeds if noticed_by(name, seed, cluster=cluster) is not None), None)


# --- writing --------------------------------------------------------------------------------------------------


@_ordinary("Writing 1")
def answered_before_it_is_synced() -> AbstractContextManager[Any]:
    """Answers do not wait for the row that they were computed from."""

    def barrier(self: CassandraLog) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.set_result(None)
        return future

    stack = ExitStack()
    stack.enter_context(mock.patch.object(LocalLog, "barrier", return_value=None))
    stack.enter_context(mock.patch.object(CassandraLog, "barrier", barrier))
    return stack


@_ordinary("Local files", cluster=False)
def sync_retried() -> AbstractContextManager[Any]:
    """A failed fdatasync is repeated: the kernel calls the pages clean, and the second one means nothing."""
    real = LocalLog._committed

    def committed(self: LocalLog, error: BaseException | None) -> None:
        if not isinstance(error, OSError):
            real(self, error)
            return
        batch = self._under_way
        assert batch is not None
        again = asyncio.ensure_future(self._disk.run(self._disk.fdatasync, batch.segment.fd))
        again.add_done_callback(lambda done: committed(self, done.exception()))

    return mock.patch.object(LocalLog, "_committed", committed)


@_ordinary("Writing 2", node=False)
def fence_valid_for_a_while() -> AbstractContextManager[Any]:
    """A read of the log's entry counts for 0.3 s, also for rows that are completed after it was sent."""
    real_read, real_want = CassandraLog._read, CassandraLog._want_read
    valid_until: dict[CassandraLog, float] = {}

    def read(self: CassandraLog, covers: int, asking: Any, sent_at: float, state: Any) -> None:
        if state == "open":
            valid_until[self] = sent_at + FENCE_SECONDS
        real_read(self, covers, asking, sent_at, state)

    def want_read(self: CassandraLog) -> None:
        if self._error is None and self._loop.time() < valid_until.get(self, 0.0):
            self._loop.call_soon(answer, self)
        else:
            real_want(self)

    def answer(self: CassandraLog) -> None:
        asking, self._asking = self._asking, []
        for future in asking:
            if not future.done():
                future.set_result(None)
        if self._error is None:
            self._answer(self._complete_seq)

    return mock.patch.multiple(CassandraLog, _read=read, _want_read=want_read)


class _NothingIsAwaited:
    """An incarnation of which everything counts as durable at once."""

    def __init__(self, incarnation: PartitionHost) -> None:
        self._incarnation = incarnation

    def __getattr__(self, name: str) -> Any:
        return getattr(self._incarnation, name)

    async def durable(self) -> None:
        return None


@_ordinary("Writing 4")
def checkpoint_of_rows_not_durable() -> AbstractContextManager[Any]:
    """A checkpoint is published before the rows are durable that it holds."""
    real = Checkpointer._checkpoint

    async def checkpoint(self: Checkpointer) -> None:
        node = self._node
        self._node = _NothingIsAwaited(node)  # type: ignore[assignment]
        try:
            await real(self)
        finally:
            self._node = node

    return mock.patch.object(Checkpointer, "_checkpoint", checkpoint)


@_ordinary("Writing 4", node=False)
def transfer_carried_before_it_is_durable() -> AbstractContextManager[Any]:
    """Another node takes a message before it is durable that the message leaves."""
    real = TransferWorker._carry

    async def carry(self: TransferWorker, *rest: Any) -> None:
        node = self._node
        self._node = _NothingIsAwaited(node)
        try:
            await real(self, *rest)
        finally:
            self._node = node

    return mock.patch.object(TransferWorker, "_carry", carry)


@_ordinary("Writing 4", node=False)
def taken_before_it_is_durable() -> AbstractContextManager[Any]:
    """Another node is answered that its messages were taken before that is durable: it lets go of them."""
    real = Incarnation.take

    async def take(self: Incarnation, target: Target, source: int, below: int, moved: Sequence[Transfer]) -> list[int]:
        async def durable() -> None:
            return None

        with mock.patch.object(self, "durable", durable):
            return await real(self, target, source, below, moved)

    return mock.patch.object(Incarnation, "take", take)


# --- recovery -------------------------------------------------------------------------------------------------


@_ordinary("Recovery 2")
def last_row_not_read() -> AbstractContextManager[Any]:
    """A log is recovered without its last row."""

    def without_the_last(real: Callable[[Any], AsyncIterator[Any]]) -> Callable[[Any], AsyncIterator[Any]]:
        async def rows(self: Any) -> AsyncIterator[Any]:
            last = None
            async for row in real(self):
                if last is not None:
                    yield last
                last = row

        return rows

    stack = ExitStack()
    stack.enter_context(mock.patch.object(LocalScan, "rows", without_the_last(LocalScan.rows)))
    stack.enter_context(mock.patch.object(CassandraScan, "rows", without_the_last(CassandraScan.rows)))
    return stack


@_ordinary("Recovery 5", node=False)
def epoch_stays() -> AbstractContextManager[Any]:
    """A shard that another incarnation takes, or is given, stays in its epoch."""
    real_conclude, real_owner = Checkpointer._conclude, takeover.with_owner

    async def conclude(self: Checkpointer) -> None:
        for number, (entry, successor) in self._giving.items():
            epoch = self._node.shards.owned[number].epoch
            chain = (*entry.chain[:-1], (entry.owner_log, epoch, 1))
            self._giving[number] = (msgspec.structs.replace(entry, epoch=epoch, chain=chain), successor)
        await real_conclude(self)

    def with_owner(mine: LogEntry, number: int, replay: Replay) -> ShardEntry:
        entry = real_owner(mine, number, replay)
        epoch = max(1, entry.epoch - 1)
        chain = (*entry.chain[:-1], (entry.owner_log, epoch, 1))
        return msgspec.structs.replace(entry, epoch=epoch, chain=chain)

    stack = ExitStack()
    stack.enter_context(mock.patch.object(Checkpointer, "_conclude", conclude))
    for module in (startup, ownership):
        stack.enter_context(mock.patch.object(module, "with_owner", with_owner))
    return stack


# --- checkpoints ----------------------------------------------------------------------------------------------


@_ordinary("Segments 1")
def floor_after_the_shards() -> AbstractContextManager[Any]:
    """The floor that a checkpoint moves to is taken after the shards: what was written meanwhile lies below it."""
    real_checkpoint, real_take = Checkpointer._checkpoint, Checkpointer._take
    cuts: dict[Checkpointer, Cut] = {}

    def take(self: Checkpointer, *rest: Any) -> None:
        real_take(self, *rest)
        cuts[self] = self._node.log.cut()

    class Later:
        def __init__(self, checkpointer: Checkpointer) -> None:
            self._checkpointer = checkpointer
            self._entries: Any = checkpointer._entries

        def __getattr__(self, name: str) -> Any:
            return getattr(self._entries, name)

        async def update_log(self, entry: LogEntry) -> LogEntry:
            if entry.log_id == self._checkpointer.entry.log_id and self._checkpointer in cuts:
                cut = cuts[self._checkpointer]
                entry = msgspec.structs.replace(entry, floor_seq=cut.floor_seq, floor_segment=cut.floor_segment)
            updated: LogEntry = await self._entries.update_log(entry)
            return updated

    async def checkpoint(self: Checkpointer) -> None:
        entries = self._entries
        self._entries = Later(self)
        cuts.pop(self, None)
        try:
            await real_checkpoint(self)
        finally:
            self._entries = entries

    return mock.patch.multiple(Checkpointer, _take=take, _checkpoint=checkpoint)


# --- queues ---------------------------------------------------------------------------------------------------


@_ordinary("Moves", node=False)
def low_water_mark_ignored() -> AbstractContextManager[Any]:
    """A destination does not ask the mark of a source whether it has taken a transfer, only the numbers above it."""
    return mock.patch.object(IncomingTransfers, "has", lambda self, transfer: transfer in self.above)


@_ordinary("Receipt handles")
def old_handles_taken_by_fifo() -> AbstractContextManager[Any]:
    """A FIFO queue takes the handle of an earlier receive for that of the one that holds the message."""
    real_delete, real_change = QueueCommands.delete, QueueCommands.change_visibility

    class Lenient:
        def __init__(self, queue: QueueCommands, handles: Handles) -> None:
            self._queue = queue
            self._handles = handles

        def read(self, text: str) -> tuple[int, int, int] | HandleOutcome:
            handle = self._handles.read(text)
            if isinstance(handle, HandleOutcome):
                return handle
            number, receives, received_ms = handle
            found = self._queue.fold.locate(number)
            return number, found[0].receives_of(found[1]) if found is not None else receives, received_ms

    def lenient(real: Callable[..., Any]) -> Callable[..., Any]:
        def command(self: QueueCommands, *rest: Any) -> Any:
            assert self.fold.settings is not None
            if not self.fold.settings.fifo:
                return real(self, *rest)
            handles = self.handles
            self.handles = Lenient(self, handles)  # type: ignore[assignment]
            try:
                return real(self, *rest)
            finally:
                self.handles = handles

        return command

    return mock.patch.multiple(QueueCommands, delete=lenient(real_delete), change_visibility=lenient(real_change))
