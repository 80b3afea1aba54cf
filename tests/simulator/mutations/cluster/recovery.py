"""Rules of recovery, takeover and hand-over, taken out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest import mock

import msgspec

from backend.cluster.failure_detector import FailureDetector
from backend.cluster.member import Member
from backend.cluster.view import View
from backend.journal.cassandra.journal import CassandraJournal
from backend.journal.cassandra.scan import CassandraScan
from backend.recovery import replay, takeover
from backend.recovery.checkpointer import Checkpointer
from backend.recovery.ownership import Ownership
from backend.serving.incarnation import Incarnation
from metadata_service.models import LogEntry, ShardEntry
from metadata_service.store import ConditionFailed, StoreError
from tests.simulator.mutations.cluster import focus
from tests.simulator.mutations.cluster.registry import mutation
from tests.simulator.world.cluster import ClusterWorld


@mutation("Recovery 1", scenario="zombies", focus=focus.zombies)
def read_before_it_is_fenced(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A log is read and sealed without having said before that it is being recovered."""

    async def claim(
        entries: Any, found: Iterable[LogEntry], started: Collection[int], mine: LogEntry
    ) -> list[LogEntry]:
        return [entry for entry in found if entry.state != "sealed"]

    return mock.patch.multiple("backend.recovery.ownership", claim=claim)


@mutation("Recovery 2", scenario="slow", focus=focus.first_checkpoints)
def gap_is_read_over(world: ClusterWorld) -> AbstractContextManager[Any]:
    """Rows behind the first one that is missing are taken for part of the log."""
    real = CassandraScan._scan_past

    async def scan_past(self: CassandraScan, *rest: Any) -> int:
        await real(self, *rest)
        return 1 << 60

    async def has_arrived(self: CassandraScan, seq: int) -> bool:
        return False

    return mock.patch.multiple(CassandraScan, _scan_past=scan_past, _has_arrived=has_arrived, _report=lambda *_: None)


@mutation("Recovery 2", scenario="zombies", focus=focus.slow_readers)
def gap_not_asked_again(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A row that was missing while its writer lives is taken for lost, and nobody is asked for it again."""

    async def has_arrived(self: CassandraScan, seq: int) -> bool:
        return False

    return mock.patch.multiple(CassandraScan, _has_arrived=has_arrived, _to_be_asked=lambda *_: False)


@mutation("Recovery 2", focus=focus.forgetful)
def answered_rows_not_missed(world: ClusterWorld) -> AbstractContextManager[Any]:
    """The first row that a quorum does not find is the end, also below what was answered, and behind a seal's word."""
    nothing = property(lambda self: 0, lambda self, value: None)
    real = CassandraScan._scan_past

    async def scan_past(self: CassandraScan, *rest: Any) -> int:
        await real(self, *rest)
        return self._seq

    stack = ExitStack()
    stack.enter_context(mock.patch.object(CassandraScan, "_known", nothing, create=True))
    stack.enter_context(mock.patch.object(CassandraScan, "_scan_past", scan_past))
    return stack


@mutation("Recovery 3", scenario="slow", focus=focus.lone_rows)
def tail_not_written_again(world: ClusterWorld) -> AbstractContextManager[Any]:
    """Recovery builds on rows that perhaps one machine alone has."""

    async def finalize(self: CassandraJournal, entry: LogEntry, end: Any) -> None:
        return None

    return mock.patch.object(CassandraJournal, "finalize", finalize)


@mutation("Recovery 4", scenario="slow", focus=focus.stopped_recoverers)
def seal_set_again(world: ClusterWorld) -> AbstractContextManager[Any]:
    """Whoever has read a log seals it where it has read to, whoever else has sealed it meanwhile."""

    async def seal(journal: Any, entries: Any, claimed: LogEntry, end: Any) -> None:
        await journal.finalize(claimed, end)
        while True:
            try:
                await entries.update_log(msgspec.structs.replace(claimed, state="sealed", sealed_seq=end.seq))
                break
            except ConditionFailed:
                (stored,) = [one for one in await entries.logs() if one.log_id == claimed.log_id]
                claimed = msgspec.structs.replace(claimed, version=stored.version)
        await journal.trim(claimed, end)

    return mock.patch.object(takeover, "seal", seal)


@mutation("Recovery 4", scenario="slow", focus=focus.rows_after_seals)
def rows_after_the_seal(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A sealed log is read as far as there are rows."""
    real = CassandraScan.__init__

    def init(self: CassandraScan, *rest: Any, **more: Any) -> None:
        real(self, *rest, **{**more, "sealed_seq": None})

    return mock.patch.object(CassandraScan, "__init__", init)


@mutation("Recovery 5", scenario="moving")
def epoch_not_raised(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A shard that is handed over stays in its epoch: what a successor wrote when it had it before counts again."""
    real = Checkpointer._conclude

    async def conclude(self: Checkpointer) -> None:
        for number, (entry, successor) in self._giving.items():
            epoch = self._node.shards.owned[number].epoch
            chain = (*entry.chain[:-1], (entry.owner_log, epoch, 1))
            self._giving[number] = (msgspec.structs.replace(entry, epoch=epoch, chain=chain), successor)
        await real(self)

    return mock.patch.object(Checkpointer, "_conclude", conclude)


@mutation("Recovery 5", scenario="moving", focus=focus.returned_shards)
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


@mutation("Recovery 5")
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

    with (
        mock.patch.object(View, "can_take", return_value=True),
        mock.patch.object(Ownership, "take", take),
    ):
        yield


@mutation("Recovery 5")
@contextmanager
def entries_changed_unconditionally(world: ClusterWorld) -> Iterator[None]:
    """Entries are written whatever version they have."""
    world.ledger.conditions = False
    yield


@mutation("Recovery, the manager finishes what others began", focus=focus.dead_recoverers)
def recoveries_not_finished(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A recovery whose recoverer has died is left as it is."""
    real = Ownership.seal

    async def seal(self: Ownership, log_id: int) -> None:
        (entry,) = [one for one in await self._entries.logs() if one.log_id == log_id]
        if entry.state == "open":
            await real(self, log_id)

    return mock.patch.object(Ownership, "seal", seal)


@mutation("Recovery, hand-over", scenario="moving")
def served_while_it_is_handed_over(world: ClusterWorld) -> AbstractContextManager[Any]:
    """The owner takes commands after the last checkpoint."""
    return mock.patch.object(Incarnation, "close_shard", return_value=None)


@mutation("Recovery, hand-over")
def taken_without_an_entry(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A new owner serves a shard before its entry says so."""
    real = Ownership.take

    async def take(self: Ownership, numbers: Collection[int]) -> set[int]:
        async def as_if_stored(entries: Sequence[ShardEntry]) -> list[ShardEntry]:
            return list(entries)

        with mock.patch.object(self._entries, "update_shards", as_if_stored):
            return await real(self, numbers)

    return mock.patch.object(Ownership, "take", take)


@mutation("Recovery, unknown transactions", scenario="moving", focus=focus.late_changes)
def unknown_change_settled_by_reading(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A hand-over whose end is not known is taken for failed when the old entry is read."""
    real = Checkpointer.give

    async def give(self: Checkpointer, numbers: Collection[int], successor: LogEntry) -> None:
        try:
            await real(self, numbers, successor)
        except StoreError:
            stored = {entry.shard: entry for entry in await self._entries.shards()}
            for number in list(self._giving):
                if stored[number].owner_log == self.entry.log_id:
                    del self._giving[number]
                    self._node.reopen_shard(self._node.shards.owned[number])
            raise

    return mock.patch.object(Checkpointer, "give", give)


@mutation("Recovery, unknown transactions")
def entries_that_name_the_node_not_looked_for(world: ClusterWorld) -> AbstractContextManager[Any]:
    """A node serves what it is to have, and does not look for what it was given."""
    real = Member._follow

    async def follow(self: Member, view: View) -> None:
        wanted = {number: entry for number, entry in view.shards.items() if view.wanted(number) == self._name}
        await real(self, view._replace(shards=wanted))

    return mock.patch.object(Member, "_follow", follow)


@mutation("Recovery, the watcher", scenario="outages", focus=focus.outages)
def blind_time_counts(world: ClusterWorld) -> AbstractContextManager[Any]:
    """Time in which the watcher could not read or write the metadata counts against the others."""
    stack = ExitStack()
    stack.enter_context(mock.patch.object(FailureDetector, "blind", return_value=None))
    stack.enter_context(mock.patch("backend.cluster.failure_detector.GAP_SECONDS", 1e9))
    return stack
