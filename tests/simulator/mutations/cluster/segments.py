"""Rules of segments, checkpoints and what they make superfluous, taken out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

import msgspec

from backend.journal.cassandra.log import CassandraLog
from backend.journal.interface import Cut
from backend.journal.pins import Pins
from backend.recovery.checkpointer import Checkpointer
from backend.serving.shards import Shard
from metadata_service.models import LogEntry, ShardEntry
from metadata_service.store import ConditionFailed, StoreError
from tests.simulator.mutations.cluster import focus
from tests.simulator.mutations.cluster.registry import mutation
from tests.simulator.world import quorum
from tests.simulator.world.cluster import ClusterWorld


@mutation("Segments 1")
def live_segment_dropped(world: ClusterWorld) -> AbstractContextManager[Any]:
    """Segments below the floor go although messages in them live."""
    return mock.patch.object(Pins, "set_live", return_value=None)


@mutation("Segments 1")
def chained_segment_dropped(world: ClusterWorld) -> AbstractContextManager[Any]:
    """Segments of a sealed log go although a shard is still to be folded from them."""
    return mock.patch("backend.recovery.checkpointer.pins_of", _pins_without_chains)


def _pins_without_chains(own: int, entry: LogEntry, known: dict[int, LogEntry], shards: list[ShardEntry]) -> Pins:
    pins = Pins()
    for log in known.values():
        floor = entry if log.log_id == own else log
        pins.set_floor(log.log_id, 1 << 30 if log.state == "sealed" else floor.floor_segment)
    for shard in shards:
        pins.set_live(shard.shard, shard.segments())
    return pins


@mutation("Segments 1")
def floor_moved_too_early(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A log's floor passes shards that have no checkpoint behind it."""
    return mock.patch.object(Shard, "dirty", property(lambda self: self.number % 2 == 0))


@mutation("Segments 1", focus=focus.idle_marks)
def floor_of_two_places(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A floor names the row behind the last record, and the segment that comes to be filled: behind empty rows that is
    another one."""
    real = CassandraLog.cut

    def cut(self: CassandraLog) -> Cut:
        return real(self)._replace(floor_segment=self.next_segment)

    return mock.patch.object(CassandraLog, "cut", cut)


@mutation("Segments 1", focus=focus.restarts)
def candidates_after_the_entries(world: ClusterWorld) -> AbstractContextManager[Any]:
    """Removable segments are computed from the entries that the sweep before has read."""
    real = Checkpointer._sweep
    read: dict[Checkpointer, list[ShardEntry]] = {}

    async def sweep(self: Checkpointer) -> None:
        shards = await self._entries.shards()
        before = read.get(self, shards)
        read[self] = shards

        async def as_they_were() -> list[ShardEntry]:
            return before

        with mock.patch.object(self._entries, "shards", as_they_were):
            await real(self)

    return mock.patch.object(Checkpointer, "_sweep", sweep)


@mutation("Segments 2", scenario="moving", focus=focus.stopped_checkpointers)
def checkpoint_of_a_former_owner(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A checkpoint is committed whoever owns the shard by now."""
    real = Checkpointer.__init__

    class Forced:
        def __init__(self, entries: Any) -> None:
            self._entries = entries

        def __getattr__(self, name: str) -> Any:
            return getattr(self._entries, name)

        async def update_shards(self, entries: Sequence[ShardEntry]) -> list[ShardEntry]:
            while True:
                try:
                    return list(await self._entries.update_shards(entries))
                except ConditionFailed:
                    versions = {entry.shard: entry.version for entry in await self._entries.shards()}
                    entries = [msgspec.structs.replace(entry, version=versions[entry.shard]) for entry in entries]

    def init(self: Checkpointer, node: Any, entry: Any, entries: Any, *rest: Any) -> None:
        real(self, node, entry, Forced(entries), *rest)

    return mock.patch.object(Checkpointer, "__init__", init)


@mutation("Segments 4", focus=focus.changes_of_the_dead)
def pieces_of_an_owner_dropped(world: ClusterWorld) -> AbstractContextManager[Any]:
    """Pieces of checkpoints are dropped by others while the log that wrote them owns a shard, too."""
    real = Checkpointer._drop_pieces

    async def drop(self: Checkpointer, files: Any, shards: list[ShardEntry], backups: Any) -> set[int]:
        own = self._node.log.log_id
        return await real(
            self, files, [msgspec.structs.replace(one, owner_log=own, chain=()) for one in shards], backups
        )

    return mock.patch.object(Checkpointer, "_drop_pieces", drop)


@mutation("Segments 4", scenario="moving", focus=focus.late_changes)
def pieces_dropped_while_a_change_is_unsettled(world: ClusterWorld) -> AbstractContextManager[Any]:
    """Pieces that a checkpoint may name are dropped when it is not known whether it was committed."""
    real = Checkpointer._checkpoint

    async def checkpoint(self: Checkpointer) -> None:
        before = {one.file for one in await self._pieces.list_files(self.entry.log_id)}
        try:
            await real(self)
        except StoreError:
            for one in await self._pieces.list_files(self.entry.log_id):
                if one.file not in before:
                    await self._pieces.drop_file(one.log_id, one.file)
            raise

    return mock.patch.object(Checkpointer, "_checkpoint", checkpoint)


@mutation("Segments 1", focus=focus.late_gifts)
def swept_logs_do_not_say_so(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A swept log does not say so: its rows are still asked for where a shard is given to that log afterwards."""

    async def say(self: Checkpointer, log: LogEntry) -> LogEntry:
        return log

    return mock.patch.object(Checkpointer, "_say_replayed", say)


@mutation("Segments 5", scenario="moving", focus=focus.clocks_set_back)
@contextmanager
def heartbeats_ordered_by_clocks(world: ClusterWorld) -> Iterator[None]:
    """The newer of two heartbeats is the one with the greater time by its writer's clock."""
    world.ledger.beat_order = lambda beat: beat.time_ms
    yield


@mutation("Segments 6", focus=focus.restarts)
@contextmanager
def entries_read_as_they_were(world: ClusterWorld) -> Iterator[None]:
    """Deciding reads are not made at SERIAL: they may return an earlier state."""
    world.ledger.stale_seconds = 8.0
    yield


@mutation("Segments 5")
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
