"""How an incarnation begins: recovery of what its predecessors wrote.

A restart is a takeover: the new incarnation claims the earlier logs of its node, reads each from its floor to its end,
makes that end durable, seals it, and takes the shards over with the next epoch.  State is what the last checkpoint
holds and the records since, folded by the same code that runs live.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from backend.api import SHARDS
from backend.checkpointer import decode_manifest
from backend.engine import records, snapshot
from backend.engine.blocks import Ref
from backend.engine.fold import Fold
from backend.engine.records import UnknownRecord, decode_head
from backend.journal.checkpoints import LocalPieces, PieceDamaged
from backend.journal.disk import Disk
from backend.journal.log import LocalLog, LogSettings
from backend.journal.pins import Pins
from backend.journal.recovery import LogEnd, Row, Scan, rewrite_tail
from backend.journal.rows import RecordView
from backend.journal.segments import RottenRecord, SegmentFiles, lock_log
from backend.shards import Shards, as_piece, shard_of
from metadata_service.models import LogEntry, ShardEntry
from metadata_service.store import EntryStore

logger = logging.getLogger(__name__)


class JournalDamaged(Exception):
    """A log is damaged in a way that leaves open whose records are lost: it is not sealed, an operator must decide."""


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


class _Recovery:
    """The folds under construction."""

    def __init__(self, entries: dict[int, ShardEntry]) -> None:
        self.entries = entries
        self.folds: dict[int, Fold] = {}
        self.pieces: dict[int, dict[int, tuple[Ref, list[Ref]]]] = {}
        self.partition_damage: dict[int, str] = {}
        self.shard_damage: dict[int, str] = {}
        self.time_ms = 0
        self.replayed = 0

    async def load_checkpoints(self, pieces: LocalPieces) -> None:
        async def fetch(refs: list[Ref]) -> list[bytes]:
            return await pieces.get_many([as_piece(ref) for ref in refs])

        for shard, entry in self.entries.items():
            if entry.checkpoint is None:
                continue
            self.pieces[shard] = {}
            try:
                manifest = decode_manifest(await pieces.get(entry.checkpoint))
            except (PieceDamaged, msgspec.MsgspecError) as error:
                self._stop_shard(shard, f"its checkpoint is damaged: {error}")
                continue
            for number, ref in manifest.partitions:
                try:
                    self.folds[number], hanging = await snapshot.read(ref, fetch)
                except (PieceDamaged, msgspec.MsgspecError, ValueError) as error:
                    self._stop_partition(number, f"its checkpoint is damaged: {error}")
                    continue
                self.pieces[shard][number] = (ref, hanging)
                # Its rows may be below the floor by now: then only the checkpoint carries the time.
                self.time_ms = max(self.time_ms, self.folds[number].now)
                await asyncio.sleep(0)

    def chained(self, log_id: int) -> dict[tuple[int, int], int]:
        """(shard, epoch) → the row from which the log counts for it."""
        return {
            (shard, epoch): from_seq
            for shard, entry in self.entries.items()
            for chained, epoch, from_seq in entry.chain
            if chained == log_id
        }

    def apply_row(self, row: Row, chained: dict[tuple[int, int], int]) -> None:
        self.time_ms = max(self.time_ms, row.time_ms)
        for position, record in row.records:
            view: RecordView | None
            if isinstance(record, RottenRecord):
                view = self._salvage(record, row)
                if view is None:
                    continue
            else:
                view = record
            from_seq = chained.get((view.shard, view.epoch))
            if from_seq is None or row.seq < from_seq:
                continue
            self._apply(view, position)

    def _salvage(self, rotten: RottenRecord, row: Row) -> RecordView | None:
        """What may be applied of a damaged record: all, if only its body is rotten."""
        if rotten.part == "body" and rotten.record is not None:
            logger.error("%s: that message is lost, its queue goes on", rotten)
            return rotten.record
        if rotten.partition is not None:
            self._stop_partition(rotten.partition, str(rotten))
        elif rotten.shard is not None:
            self._stop_shard(rotten.shard, str(rotten))
        else:
            raise JournalDamaged(f"{rotten} (row {row.seq}): it cannot be said whose it is")
        return None

    def _apply(self, view: RecordView, position: int) -> None:
        number = view.partition
        if number in self.partition_damage or view.shard in self.shard_damage:
            return
        self.replayed += 1
        try:
            record = decode_head(view.kind, view.head)
        except UnknownRecord as error:
            self._stop_partition(number, str(error))
            return
        fold = self.folds.get(number)
        if fold is None:
            if not isinstance(record, records.Configured):
                self._stop_partition(number, f"its first record, at position {position:#x}, is not its settings")
                return
            fold = self.folds[number] = Fold(number)
        fold.apply(record, view.time_ms, position)
        if fold.dropped:
            del self.folds[number]

    def _stop_partition(self, number: int, why: str) -> None:
        logger.error("partition %d is stopped: %s", number, why)
        self.partition_damage.setdefault(number, why)
        self.folds.pop(number, None)

    def _stop_shard(self, shard: int, why: str) -> None:
        logger.error("shard %d is stopped: %s", shard, why)
        self.shard_damage.setdefault(shard, why)
        for number in [number for number in self.folds if shard_of(number) == shard]:
            del self.folds[number]


async def start(
    disk: Disk,
    root: str,
    name: str,
    entries: EntryStore,
    *,
    clock: Callable[[], int],
    not_before: Callable[[int], None],
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
    earlier = await entries.logs(name)
    locks: list[int] = []
    try:
        for entry in earlier:
            if (folder := _folder(entry)) in present:
                directory = files.register(entry.log_id, folder)
                locks.append(await disk.run(lock_log, disk, directory))
        mine = await entries.new_incarnation(name)
        open_logs = [entry for entry in earlier if entry.state != "sealed"]
        claimed = {
            entry.log_id: await entries.update_log(
                msgspec.structs.replace(entry, state="recovering", recovering_by=mine.log_id)
            )
            for entry in open_logs
        }
        shard_entries = {entry.shard: entry for entry in await entries.shards()}
        recovery = _Recovery(shard_entries)
        await recovery.load_checkpoints(pieces)
        for entry in earlier:
            chained = recovery.chained(entry.log_id)
            if not chained and entry.log_id not in claimed:
                continue
            end = await _replay(disk, files, entry, present, recovery, chained)
            if entry.log_id in claimed:
                sealed = msgspec.structs.replace(
                    claimed[entry.log_id], state="sealed", sealed_seq=end.seq if end else 0
                )
                await entries.update_log(sealed)
                if end is not None:
                    await files.trim(entry.log_id, end.segment, end.offset)
        not_before(recovery.time_ms)
        for fold in recovery.folds.values():
            fold.advance(clock())
        log = await LocalLog.create(
            disk,
            files,
            _folder(mine),
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


async def _replay(
    disk: Disk,
    files: SegmentFiles,
    entry: LogEntry,
    present: set[str],
    recovery: _Recovery,
    chained: dict[tuple[int, int], int],
) -> LogEnd | None:
    """Fold a log's records, and make its end durable if it is not sealed; None if it was never begun."""
    if _folder(entry) not in present:
        if entry.state == "sealed" and entry.sealed_seq:
            raise JournalDamaged(f"the folder {files.root}/{_folder(entry)} of log {entry.log_id} is missing")
        return None
    directory = files.directory(entry.log_id)
    known = max((from_seq - 1 for from_seq in chained.values()), default=0)
    scan = Scan(
        disk,
        directory,
        entry.log_id,
        from_segment=entry.floor_segment,
        from_seq=entry.floor_seq,
        known_seq=max(known, entry.floor_seq - 1),
        sealed_seq=entry.sealed_seq if entry.state == "sealed" else None,
    )
    async for row in scan.rows():
        recovery.apply_row(row, chained)
    for damage in scan.end.damage:
        logger.error("journal damage: %s", damage)
    if scan.end.severe:
        raise JournalDamaged("; ".join(str(damage) for damage in scan.end.damage))
    if entry.state != "sealed":
        await rewrite_tail(disk, directory, scan.end)
    return scan.end


async def _take_over(entries: EntryStore, mine: LogEntry, recovery: _Recovery) -> Shards:
    """Own all shards from now on, each with the next epoch, its chain going on in this incarnation's log."""
    taken = []
    for number in range(SHARDS):
        entry = recovery.entries.get(number) or ShardEntry(shard=number, owner_log=mine.log_id, epoch=0)
        taken.append(
            msgspec.structs.replace(
                entry,
                owner_log=mine.log_id,
                epoch=entry.epoch + 1,
                chain=(*entry.chain, (mine.log_id, entry.epoch + 1, 1)),
            )
        )
    shards = Shards(await entries.update_shards(taken))
    for number, why in recovery.shard_damage.items():
        shards.all[number].damage = why
    shards.damage.update(recovery.partition_damage)
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
        pins.set_live(shard.number, shard.entry.live)
        # Of its own log the floor says all: it passes a shard only when that has no records below, or a checkpoint.
        earlier_logs = [log_id for log_id, _, _ in shard.entry.chain if log_id != mine.log_id]
        pins.set_chain(shard.number, [(log_id, floors.get(log_id, 0)) for log_id in earlier_logs])
    return pins


def _folder(entry: LogEntry) -> str:
    return f"{entry.node}-{entry.incarnation}"
