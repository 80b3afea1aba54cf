"""How an incarnation begins: recovery of what its predecessors wrote.

A restart is a takeover: the new incarnation claims the earlier logs of its node, reads each from its floor to its end,
makes that end durable, seals it, and takes the shards over with the next epoch.  State is what the last checkpoint
holds and the records since, folded by the same code that runs live.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

import msgspec

from backend.api import SHARDS
from backend.journal.interface import Journal, Log, Segments
from backend.journal.pins import Pins
from backend.replay import Replay, replay_log
from backend.shards import Shards
from metadata_service.models import LogEntry, ShardEntry
from metadata_service.store import EntryStore

logger = logging.getLogger(__name__)


class Started(NamedTuple):
    """What recovery leaves to serve."""

    entry: LogEntry
    log: Log
    shards: Shards
    pins: Pins
    time_ms: int
    """The last time that any row carried."""


async def start(
    journal: Journal,
    name: str,
    entries: EntryStore,
    *,
    clock: Callable[[], int],
    open_clock: Callable[[int], Awaitable[None]],
    on_failure: Callable[[BaseException], None],
) -> Started:
    """Recover, and begin a new incarnation of the node ``name``.

    Raises :class:`JournalDamaged`, :class:`LogInUse` (another process serves these logs), and what the store and the
    journal raise; then it may be tried again.
    """
    await journal.prepare()
    earlier = sorted(await entries.logs(name), key=attrgetter("incarnation"))  # the ids are in no order
    try:
        begun = await journal.find(earlier)
        shard_entries = {entry.shard: entry for entry in await entries.shards()}
        mine = await entries.new_incarnation(name, _spare(earlier, begun, shard_entries.values()))
        earlier = [entry for entry in earlier if entry.log_id != mine.log_id]
        claimed: dict[int, LogEntry] = {}
        for entry in earlier:
            if entry.state == "sealed":
                continue
            known = await entries.update_log(
                msgspec.structs.replace(entry, state="recovering", recovering_by=mine.log_id)
            )
            if entry.log_id in begun:
                claimed[entry.log_id] = known
            else:  # never begun: it is settled at once, for whatever keeps this start from succeeding may last
                await entries.update_log(msgspec.structs.replace(known, state="sealed", sealed_seq=0))
        recovery = Replay(shard_entries)
        await recovery.load_checkpoints(journal.pieces)
        for entry in earlier:
            if entry.log_id not in claimed and not recovery.chained(entry.log_id):
                continue
            end = await replay_log(journal, entry, begun, recovery)
            if entry.log_id in claimed:
                assert end is not None, "it was begun"
                await journal.settle(entry, end)
                await entries.update_log(
                    msgspec.structs.replace(claimed[entry.log_id], state="sealed", sealed_seq=end.seq)
                )
                await journal.trim(entry, end)
                if not end.seq:
                    await journal.segments.remove_log(entry.log_id)
        await open_clock(recovery.time_ms)
        for fold in recovery.folds.values():
            fold.advance(clock())
        log = await journal.create(mine, clock_ms=clock, on_failure=on_failure)
        try:
            shards = await _take_over(entries, mine, recovery)
        except BaseException:
            await log.close()
            raise
    finally:
        journal.release()
    logger.info("recovered %d partitions, %d records replayed", len(recovery.folds), recovery.replayed)
    pins = _pins(journal.segments, earlier, mine, shards)
    return Started(mine, log, shards, pins, recovery.time_ms)


def _spare(earlier: Sequence[LogEntry], begun: set[int], shards: Iterable[ShardEntry]) -> LogEntry | None:
    """A log of which nothing is left: its entry may serve again.

    It is sealed, and the journal says that it was never begun, or is gone: there are no rows and no pieces of
    checkpoints of it, and what a new incarnation writes under its id cannot be taken for it.  No shard mentions it, so
    no position names a message in it.
    """
    mentioned = {log_id for shard in shards for log_id in shard.mentions()}
    for entry in earlier:
        if entry.state == "sealed" and entry.log_id not in begun and entry.log_id not in mentioned:
            return entry
    return None


async def _take_over(entries: EntryStore, mine: LogEntry, recovery: Replay) -> Shards:
    """Own all shards from now on, each with the next epoch, its chain going on in this incarnation's log."""
    taken = []
    for number in range(SHARDS):
        entry = recovery.entries.get(number) or ShardEntry(shard=number, owner_log=mine.log_id, epoch=0)
        chain = recovery.chain_of(number) if number in recovery.entries else ()
        taken.append(
            msgspec.structs.replace(
                entry,
                owner_log=mine.log_id,
                epoch=entry.epoch + 1,
                chain=(*chain, (mine.log_id, entry.epoch + 1, 1)),
            )
        )
    shards = Shards(await entries.update_shards(taken))
    for number, harm in recovery.shard_harm.items():
        shards.all[number].damage = str(harm)
    for stopped in recovery.still_stopped():
        shards.stop(stopped, str(recovery.partition_harm[stopped.partition]))
    for fold in recovery.folds.values():
        shard = shards.of(fold.partition)
        fold.open(shard.epoch)
        shards.add(fold)
    for number, known in recovery.pieces.items():
        shards.all[number].pieces = known
    return shards


def _pins(segments: Segments, earlier: Sequence[LogEntry], mine: LogEntry, shards: Shards) -> Pins:
    pins = Pins()
    floors = {entry.log_id: entry.floor_segment for entry in earlier}
    for log_id in segments.logs():
        pins.set_floor(log_id, floors.get(log_id, 0))
    pins.set_floor(mine.log_id, mine.floor_segment)
    for shard in shards.all:
        pins.set_live(shard.number, shard.entry.segments())
        # Of its own log the floor says all: it passes a shard only when that has no records below, or a checkpoint.
        earlier_logs = [log_id for log_id in shard.entry.logs() if log_id != mine.log_id]
        pins.set_chain(shard.number, [(log_id, floors.get(log_id, 0)) for log_id in earlier_logs])
    return pins
