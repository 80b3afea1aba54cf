"""How an incarnation begins: recovery of what its predecessors wrote.

A restart is a takeover: the new incarnation claims the earlier logs of its node, reads each from its floor to its end,
makes that end durable, seals it, and takes the shards over with the next epoch.  State is what the last checkpoint
holds and the records since, folded by the same code that runs live.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

import msgspec

from backend.api import SHARDS
from backend.journal.checkpoints import LocalPieces
from backend.journal.disk import Disk
from backend.journal.log import LocalLog, LogSettings
from backend.journal.pins import Pins
from backend.journal.recovery import rewrite_tail
from backend.journal.segments import SegmentFiles, lock_log
from backend.replay import Replay, folder_of, replay_log
from backend.shards import Shards
from metadata_service.models import LogEntry, ShardEntry
from metadata_service.store import EntryStore

logger = logging.getLogger(__name__)


class Started(NamedTuple):
    """What recovery leaves to serve."""

    entry: LogEntry
    log: LocalLog
    shards: Shards
    pins: Pins
    files: SegmentFiles
    pieces: LocalPieces
    time_ms: int
    """The last time that any row carried."""


async def start(
    disk: Disk,
    root: str,
    name: str,
    entries: EntryStore,
    *,
    clock: Callable[[], int],
    open_clock: Callable[[int], Awaitable[None]],
    on_failure: Callable[[BaseException], None],
    settings: LogSettings,
) -> Started:
    """Recover, and begin a new incarnation of the node ``name``.

    Raises :class:`JournalDamaged`, :class:`LogInUse` (another process serves these logs), and what the store, the disk
    and the log raise; then it may be tried again.
    """
    files = SegmentFiles(disk, root)
    pieces = LocalPieces(disk, files)
    await disk.run(disk.mkdir, root)
    present = set(await disk.run(disk.listdir, root))
    earlier = sorted(await entries.logs(name), key=attrgetter("incarnation"))  # the ids are in no order
    locks: list[int] = []
    try:
        for entry in earlier:
            if (folder := folder_of(entry)) in present:
                directory = files.register(entry.log_id, folder)
                locks.append(await disk.run(lock_log, disk, directory))
        shard_entries = {entry.shard: entry for entry in await entries.shards()}
        mine = await entries.new_incarnation(name, _spare(earlier, present, shard_entries.values()))
        earlier = [entry for entry in earlier if entry.log_id != mine.log_id]
        claimed: dict[int, LogEntry] = {}
        for entry in earlier:
            if entry.state == "sealed":
                continue
            known = await entries.update_log(
                msgspec.structs.replace(entry, state="recovering", recovering_by=mine.log_id)
            )
            if folder_of(entry) in present:
                claimed[entry.log_id] = known
            else:  # never begun: it is settled at once, for whatever keeps this start from succeeding may last
                await entries.update_log(msgspec.structs.replace(known, state="sealed", sealed_seq=0))
        recovery = Replay(shard_entries)
        await recovery.load_checkpoints(pieces)
        for entry in earlier:
            if entry.log_id not in claimed and not recovery.chained(entry.log_id):
                continue
            end = await replay_log(disk, files, entry, present, recovery)
            if entry.log_id in claimed:
                assert end is not None, "its folder is there"
                await rewrite_tail(disk, files.directory(entry.log_id), end)
                await entries.update_log(
                    msgspec.structs.replace(claimed[entry.log_id], state="sealed", sealed_seq=end.seq)
                )
                await files.trim(entry.log_id, end.segment, end.offset)
                if not end.seq:
                    await files.remove_log(entry.log_id)
        await open_clock(recovery.time_ms)
        for fold in recovery.folds.values():
            fold.advance(clock())
        log = await LocalLog.create(
            disk,
            files,
            folder_of(mine),
            mine.log_id,
            life=secrets.randbits(63) + 1,
            clock_ms=clock,
            on_failure=on_failure,
            settings=settings,
        )
        try:
            shards = await _take_over(entries, mine, recovery)
        except BaseException:
            await log.close()
            raise
    finally:
        for lock in locks:
            disk.close(lock)
    logger.info("recovered %d partitions, %d records replayed", len(recovery.folds), recovery.replayed)
    pins = _pins(files, earlier, mine, shards)
    return Started(mine, log, shards, pins, files, pieces, recovery.time_ms)


def _spare(earlier: Sequence[LogEntry], present: set[str], shards: Iterable[ShardEntry]) -> LogEntry | None:
    """A log of which nothing is left: its entry may serve again.

    It is sealed, and its process is gone, for it would hold the lock of this folder's logs.  It has no folder, so there
    are no rows and no pieces of checkpoints of it, and a new incarnation gets a folder of another name.  No shard
    mentions it, so no position names a message in it.
    """
    mentioned = {log_id for shard in shards for log_id in shard.mentions()}
    for entry in earlier:
        if entry.state == "sealed" and folder_of(entry) not in present and entry.log_id not in mentioned:
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


def _pins(files: SegmentFiles, earlier: Sequence[LogEntry], mine: LogEntry, shards: Shards) -> Pins:
    pins = Pins()
    floors = {entry.log_id: entry.floor_segment for entry in earlier}
    for log_id in files.logs():
        pins.set_floor(log_id, floors.get(log_id, 0))
    pins.set_floor(mine.log_id, mine.floor_segment)
    for shard in shards.all:
        pins.set_live(shard.number, shard.entry.segments())
        # Of its own log the floor says all: it passes a shard only when that has no records below, or a checkpoint.
        earlier_logs = [log_id for log_id in shard.entry.logs() if log_id != mine.log_id]
        pins.set_chain(shard.number, [(log_id, floors.get(log_id, 0)) for log_id in earlier_logs])
    return pins
