"""Takeover of shards from logs whose writer has ended: a dead node's, or this node's own before a restart.

The steps have this order, so that after a crash at any point the next node can continue:

1. the log is fenced: no process writes it any more (:meth:`~backend.journal.interface.Journal.find`);
2. its entry is set to ``recovering``, with the incarnation that recovers it;
3. it is read from its floor to its end, and everything read is made durable;
4. its entry is set to ``sealed``, with the last row: rows found behind it never existed;
5. a shard whose owner's log is sealed is folded from its checkpoint and its chain of logs, and its entry gets the new
   owner and the next epoch, if it is still the entry that was folded.

Steps 1 to 4 are done once for a log, by any node; each node that gets some of its shards does step 5 for those.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from graphlib import TopologicalSorter

import msgspec

from backend.journal.interface import Journal
from backend.journal.types import LogEnd, LogInUse
from backend.recovery.replay import JournalDamaged, Replay, replay_log
from metadata_service.models import LogEntry, ShardEntry
from metadata_service.store import ConditionFailed, EntryStore

logger = logging.getLogger(__name__)


async def claim(
    entries: EntryStore, found: Iterable[LogEntry], started: Collection[int], own_entry: LogEntry
) -> list[LogEntry]:
    """Mark these logs as recovered by this incarnation; return those that have to be read and sealed.

    A log that was never started is sealed at once, because the recovery of the others may fail for a long time.
    """
    claimed = []
    for entry in found:
        if entry.state == "sealed":
            continue
        known = await entries.update_log(
            msgspec.structs.replace(entry, state="recovering", recovering_by=own_entry.log_id)
        )
        if entry.log_id in started:
            claimed.append(known)
        else:
            await entries.update_log(msgspec.structs.replace(known, state="sealed", sealed_seq=0))
    return claimed


async def recover(
    journal: Journal,
    entries: EntryStore,
    claimed: Sequence[LogEntry],
    known: Iterable[LogEntry],
    shards: Mapping[int, ShardEntry],
    wanted: Collection[int],
    own: int,
) -> Replay:
    """Read and seal the ``claimed`` logs, and fold the ``wanted`` of all ``shards``.

    ``known`` are the entries of all logs.  The log ``own`` is this incarnation's: it holds nothing yet of the shards
    folded here.  Raises :class:`JournalDamaged`; a log is then not sealed.  Raises :class:`ConditionFailed` if other
    nodes have changed these shards meanwhile, and so may have deleted data that was to be read.
    """
    known = list(known)
    async with _damage_as_lost_race(entries, known, {number: shards.get(number) for number in wanted}):
        replay = Replay({number: shards[number] for number in wanted if number in shards})
        others = [entry for entry in known if entry.log_id != own]
        started = await journal.refresh(others)
        chained = {log_id for entry in replay.entries.values() for log_id in entry.logs()}
        unread = {entry.log_id: entry for entry in others if entry.log_id in chained}
        unread.update((entry.log_id, entry) for entry in claimed)
        to_seal = {entry.log_id for entry in claimed}
        await replay.load_checkpoints(journal.chunks)
        for entry in in_order(unread.values(), replay.entries.values()):
            sealing = entry.log_id in to_seal
            if not sealing and entry.state != "sealed" and entry.log_id in started:
                raise LogInUse(f"{journal.place(entry)} is not sealed, and a shard is to be folded from it")
            end = await replay_log(journal, entry, started, replay, known_seq(entry.log_id, shards.values()))
            if sealing:
                assert end is not None, "it was started"
                await seal(journal, entries, entry, end)
        return replay


@asynccontextmanager
async def _damage_as_lost_race(
    entries: EntryStore, known: Collection[LogEntry], read: Mapping[int, ShardEntry | None]
) -> AsyncIterator[None]:
    """Treat damage as a lost race (:class:`ConditionFailed`) if the shard entries or the log's floor changed while they
    were read: another node may have deleted the data.
    """
    try:
        yield
    except JournalDamaged as error:
        stored = {entry.shard: entry for entry in await entries.shards()}
        if changed := [number for number, entry in read.items() if stored.get(number) != entry]:
            raise ConditionFailed(f"shards were changed by another node while they were read: {changed}") from error
        floors = {entry.floor_seq for entry in (*known, *await entries.logs()) if entry.log_id == error.log_id}
        if len(floors) > 1:
            raise ConditionFailed(f"log {error.log_id} was released by another node while it was read") from error
        raise


async def seal(journal: Journal, entries: EntryStore, claimed: LogEntry, end: LogEnd) -> None:
    """Fix the last row of a log that has been read, for ever."""
    await journal.finalize(claimed, end)
    await entries.update_log(msgspec.structs.replace(claimed, state="sealed", sealed_seq=end.seq))
    await journal.trim(claimed, end)
    if not end.seq:
        await journal.segments.remove_log(claimed.log_id)


def known_seq(log_id: int, shards: Iterable[ShardEntry]) -> int:
    """Return the last row of a log that a committed checkpoint or chain proves durable."""
    rows = [0]
    for entry in shards:
        if entry.checkpoint_log == log_id:
            rows.append(entry.checkpoint_seq)
        rows += [
            from_seq - 1
            for chain in (entry.chain, *(one.chain for one in entry.stopped))
            for chained, _, from_seq in chain
            if chained == log_id
        ]
    return max(rows)


def in_order(logs: Iterable[LogEntry], shards: Iterable[ShardEntry]) -> list[LogEntry]:
    """Return logs in an order in which each shard's records were written.

    Such an order exists: a shard moves from one log to the next of its chain only when the first is sealed, and a
    sealed log gets no shards any more.
    """
    entries = {entry.log_id: entry for entry in sorted(logs, key=lambda entry: (entry.incarnation, entry.node))}
    after: dict[int, set[int]] = {log_id: set() for log_id in entries}
    for shard in shards:
        for chain in (shard.chain, *(one.chain for one in shard.stopped)):
            links = [log_id for log_id, _, _ in chain if log_id in entries]
            for earlier, later in itertools.pairwise(dict.fromkeys(links)):
                after[later].add(earlier)
    return [entries[log_id] for log_id in TopologicalSorter(after).static_order()]


def with_owner(own_entry: LogEntry, number: int, replay: Replay) -> ShardEntry:
    """Return the entry of a folded shard, with this incarnation as its owner."""
    entry = replay.entries.get(number) or ShardEntry(shard=number, owner_log=own_entry.log_id, epoch=0)
    chain = replay.chain_of(number) if number in replay.entries else ()
    epoch = entry.epoch + 1
    return msgspec.structs.replace(
        entry, owner_log=own_entry.log_id, epoch=epoch, chain=(*chain, (own_entry.log_id, epoch, 1))
    )
