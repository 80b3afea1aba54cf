"""Checkpoints of shards, and removal of what they make unnecessary: log below the floor, segments and chunk files.

A checkpoint of a shard is taken in one instant of the event loop, at a cut of the log: it holds every record of the
rows up to the cut and none after.  It is published through the shard's metadata entry, together with the segments that
it references, once both the rows up to the cut and the checkpoint itself are durable.  Shards are checkpointed one
after the other, so none waits for the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import NamedTuple

import msgspec

from backend import instruments
from backend.api import StorageFull, Unavailable
from backend.engine import snapshot
from backend.engine.blocks import Block, Ref
from backend.engine.fold import Fold
from backend.engine.tokens import Chunk
from backend.journal.checkpoints import MANIFEST_FORMAT, PieceFile, PieceWriter, ShardManifest, encode_manifest
from backend.journal.interface import Journal
from backend.journal.pins import Pins, Segment
from backend.journal.rows import SEGMENT_MAX
from backend.recovery.compaction import Cleaner
from backend.serving.background import LogThrottle, Slices, in_groups
from backend.serving.incarnation import Incarnation
from backend.serving.shards import Shard, as_ref, piece_files, shard_of
from metadata_service.models import BackupPin, LogEntry, ShardEntry
from metadata_service.store import ConditionFailed, MemberStore, StoreError

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
CHAIN_MOST = 8
"""Logs in a shard's chain above which a start takes the first checkpoint at once, as starts may keep failing early."""
SPARSE = 4
"""A chunk file less than a quarter of which is needed is rewritten and deleted."""
READS_AT_ONCE = 8
"""Logs whose remains are listed at the same time."""
LEFT_BEHIND_SECONDS = 600.0
"""Delay after which a log without remains is checked once more, for writes that were still in progress.  If it is still
empty, its entry says so.
"""
MARKS_AT_ONCE = 8
"""Entries marked as swept in one sweep; few, because hand-overs wait for it."""
SEGMENT_BITS = 20
SEGMENT_MASK = (1 << SEGMENT_BITS) - 1


class RetainedSegments(NamedTuple):
    """Remains of the journal after a sweep: the segments of the own log and of sealed ones."""

    size_bytes: int
    pinned_by: dict[str, int]
    """Segments by the first of their holders (:meth:`~backend.journal.pins.Pins.held`); each counts once."""
    behind: dict[str, int]
    """For the own log, by holder: distance in segments between the oldest held segment and the current one."""
    sealed_logs: int


class _Taken:
    """State captured of a shard that is not published yet; with its entry, the whole checkpoint."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.entry = shard.entry
        self.pieces: dict[int, tuple[Ref, list[Ref]]] = {}
        self.fresh: list[tuple[Block | Chunk, Ref]] = []
        self.folds: list[Fold] = []

    def undo(self) -> None:
        """Mark everything as changed again, because the checkpoint was not published.

        References to chunks that were never written must be forgotten: otherwise the next checkpoint would name them,
        too.
        """
        for holder, ref in self.fresh:
            if holder.ref == ref:
                holder.ref = None
        for fold in self.folds:
            fold.changed = True
        self.shard.changed = True


class Checkpointer:
    """Takes checkpoints of an incarnation's shards and deletes what they make unnecessary."""

    def __init__(
        self,
        node: Incarnation,
        entry: LogEntry,
        entries: MemberStore,
        journal: Journal,
        every_segments: int,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.entry = entry
        self.kept: RetainedSegments | None = None
        """Remains as of the last sweep."""
        self._node = node
        self._entries = entries
        self._journal = journal
        self._pieces = journal.pieces
        self._segments = journal.segments
        self._every = every_segments
        self._wall = wall
        self._cleaner = Cleaner(node, journal.segment_bytes)
        chained = {log_id for shard in node.shards.owned.values() for log_id, _, _ in shard.entry.chain}
        self._begun_at = 1 if chained == {node.log.log_id} else 1 - every_segments
        """Segment of the log at the last checkpoint.  Set at the start so that one is soon due if earlier logs can be
        freed.
        """
        self._lock = asyncio.Lock()
        self._unsettled = False
        """A change of the metadata is in progress, or has ended with an unknown outcome."""
        self._emptied: dict[int, float] = {}
        """Sealed logs found empty, and the loop's time at which each was."""
        self._giving: dict[int, tuple[ShardEntry, str]] = {}
        """Shards in hand-over: their next entries, and the name of the new owner."""

    def soon(self) -> None:
        """Schedule a checkpoint without waiting for more records, because shards folded from other logs have
        arrived.
        """
        self._begun_at = self._node.log.next_segment - self._every

    async def run(self) -> None:
        """Take checkpoints when they are due, until cancelled."""
        log_throttle = LogThrottle()
        shards = self._node.shards.owned.values()
        longest = max((len(one.entry.chain) for one in shards if one.damage is None), default=0)
        pause = LOOK_SECONDS if longest <= CHAIN_MOST else 0.0
        while True:
            await asyncio.sleep(pause)
            pause = LOOK_SECONDS
            log = self._node.log
            full = log.short()
            due = log.next_segment - self._begun_at >= self._every or (full and self._something_to_gain())
            if not due and not self._giving:
                continue
            try:
                await self.checkpoint()
                if await self._cleaner.clean(log.log_id, log.next_segment, eager=full):
                    await self.checkpoint()
                log_throttle.settled("checkpoint")
            except (Unavailable, StorageFull, StoreError) as error:
                if log_throttle.should_log("checkpoint", str(error)):
                    logger.warning("no checkpoint now: %s", error)

    def _something_to_gain(self) -> bool:
        return any(shard.dirty for shard in self._node.shards.owned.values())

    async def checkpoint(self) -> None:
        """Checkpoint all shards once.

        Raises :class:`StoreError`, :class:`StorageFull` or :class:`Unavailable`; nothing but the work is lost then.
        """
        async with self._lock:
            started_at = time.perf_counter()
            try:
                await self._checkpoint()
            except OSError as error:
                instruments.CHECKPOINTS_FAILED.add()
                raise Unavailable(f"a checkpoint failed: {error}") from error
            except (Unavailable, StorageFull, StoreError):
                instruments.CHECKPOINTS_FAILED.add()
                raise
            instruments.CHECKPOINTS.observe(time.perf_counter() - started_at)

    async def _checkpoint(self) -> None:
        node, log = self._node, self._node.log
        if self._unsettled:
            await self._resolve()
        writer = await self._pieces.begin(log.log_id)
        cut = log.cut()
        taken: list[_Taken] = []
        slices = Slices()
        try:
            for shard in list(node.shards.owned.values()):
                assert not shard.leaving, "the floor must not pass it"
                if shard.damage is not None:
                    continue  # Damage must be found again at the next start; it has no records in this log.
                if shard.dirty or any(log_id != log.log_id for log_id, _, _ in shard.entry.chain):
                    one = _Taken(shard)
                    taken.append(one)
                    for _ in self._take_ahead(one, writer):
                        await slices.step()
                    self._take(one, writer)
                await slices.step()
            await node.durable()
            await writer.finish()
            self._unsettled = True
            stored = await self._entries.update_shards([one.entry for one in taken]) if taken else []
            self._unsettled = False
        except BaseException:
            for one in taken:
                one.undo()
            raise
        for one, entry in zip(taken, stored, strict=True):
            one.shard.entry = entry
            one.shard.pieces = one.pieces
        self._begun_at = log.next_segment
        if cut.floor_seq > self.entry.floor_seq:
            moved = msgspec.structs.replace(self.entry, floor_segment=cut.floor_segment, floor_seq=cut.floor_seq)
            self._unsettled = True
            self.entry = await self._entries.update_log(moved)
            self._unsettled = False
        await self._sweep()

    async def _resolve(self) -> None:
        """Resolve a conditional write with an unknown outcome: reread the entries' versions and retry from them.

        The stored shard entry's content is not adopted: the next checkpoint captures that shard again and writes its
        entry.
        """
        own = self._node.log.log_id
        for entry in await self._entries.shards():
            shard = self._node.shards.owned.get(entry.shard)
            if shard is None:
                continue
            if entry.shard in self._giving:
                continue
            if (entry.owner_log, entry.epoch) != (own, shard.epoch):
                raise Unavailable(f"shard {entry.shard} has another owner, log {entry.owner_log}")
            if entry.version != shard.entry.version:
                shard.entry = msgspec.structs.replace(shard.entry, version=entry.version)
                shard.changed = True
        self.entry = next(entry for entry in await self._entries.logs(self.entry.node) if entry.log_id == own)
        await self._conclude()
        self._unsettled = False

    # --- hand-over --------------------------------------------------------------------------------------

    async def give(self, numbers: Collection[int], successor: LogEntry) -> None:
        """Hand these shards, which are owned, over to the incarnation that writes the log ``successor``.

        When it returns, their entries name the new owner.  Raises :class:`StorageFull` and :class:`Unavailable`: the
        shards are then still served.  Raises :class:`StoreError`: the outcome is unknown, and the shards are not served
        until a later call of this method, or of :meth:`checkpoint`, has resolved it.
        """
        async with self._lock:
            try:
                if self._unsettled:
                    await self._resolve()
                shards = [self._node.shards.owned[number] for number in numbers if number in self._node.shards.owned]
                final = await self._last_checkpoint(shards)
                for shard, entry in zip(shards, final, strict=True):
                    epoch = shard.epoch + 1
                    # The checkpoint holds all records of the own log, so the new owner folds nothing from it.
                    chain = (
                        *(link for link in entry.chain if link[0] != self.entry.log_id),
                        (successor.log_id, epoch, 1),
                    )
                    given = msgspec.structs.replace(entry, owner_log=successor.log_id, epoch=epoch, chain=chain)
                    self._giving[shard.number] = (given, successor.node)
                self._unsettled = True
                await self._conclude()
                self._unsettled = False
            except OSError as error:
                raise Unavailable(f"a checkpoint failed: {error}") from error

    async def _last_checkpoint(self, shards: list[Shard]) -> list[ShardEntry]:
        """Stop serving these shards, and write all of their state in memory; return their final entries.

        The chunks are durable then, and so are every record in them and every answer given.
        """
        node = self._node
        ahead = await self._pieces.begin(node.log.log_id)
        writer = await self._pieces.begin(node.log.log_id)
        taken: dict[int, _Taken] = {}
        slices = Slices()
        try:
            # Capture and store while the shards are still served, so that little is left to do once they are closed.
            for shard in shards:
                if shard.damage is None:
                    taken[shard.number] = _Taken(shard)
                    for _ in self._take_ahead(taken[shard.number], ahead):
                        await slices.step()
            await ahead.finish()
            for shard in shards:
                node.close_shard(shard)
            for one in taken.values():
                self._take(one, writer)
            await asyncio.gather(node.durable(), writer.finish())  # the shards are not served meanwhile
        except BaseException:
            for one in taken.values():
                one.undo()
            for shard in shards:
                if shard.leaving:
                    node.reopen_shard(shard)
            raise
        return [taken[shard.number].entry if shard.number in taken else shard.entry for shard in shards]

    async def _conclude(self) -> None:
        """Finish the hand-overs in progress.

        Reading the old entry does not resolve a change with an unknown outcome, for the change may still take effect.
        So the change is repeated: one of the two takes effect, and then the other cannot.
        """
        own = self._node.log.log_id
        while self._giving:
            try:
                await self._entries.update_shards([entry for entry, _ in self._giving.values()])
                gone = list(self._giving)
            except ConditionFailed:
                gone = []
                stored = {entry.shard: entry for entry in await self._entries.shards()}
                for number, (entry, successor) in self._giving.items():
                    if (stored[number].owner_log, stored[number].epoch) == (own, entry.epoch - 1):
                        again = msgspec.structs.replace(entry, version=stored[number].version)
                        self._giving[number] = (again, successor)
                    else:
                        gone.append(number)
            for number in gone:
                _, successor = self._giving.pop(number)
                self._node.shards.remove_shard(self._node.shards.owned[number], successor)

    def _take_ahead(self, taken: _Taken, writer: PieceWriter) -> Iterator[None]:
        """Write the shard's changed state, step by step: commands may run between two steps.

        A block that changes afterwards forgets its chunk and is written again by :meth:`_take`, which therefore has
        little left to do however large the shard is.
        """
        for partition in list(taken.shard.partitions.values()):
            if partition.fold.changed:
                yield from snapshot.ahead(partition.fold, lambda piece: as_ref(writer.add(piece)), taken.fresh)

    def _take(self, taken: _Taken, writer: PieceWriter) -> None:
        """Capture the shard's state at one cut, in one instant."""
        log, shard = self._node.log, taken.shard
        through = log.cut().seq  # not an empty row behind it: no answer waits for that one
        live: set[int] = set()
        stopped = [one for number, one in self._node.shards.stopped.items() if shard_of(number) == shard.number]
        for number, partition in shard.partitions.items():
            fold = partition.fold
            known = shard.pieces.get(number)
            if known is None or fold.changed:
                taken.folds.append(fold)
                known = snapshot.take(fold, lambda piece: as_ref(writer.add(piece)), taken.fresh)
                fold.changed = False
            taken.pieces[number] = known
            live.update(fold.segments)
        manifest = None
        if taken.pieces:
            refs = [(number, ref) for number, (ref, _) in taken.pieces.items()]
            content = ShardManifest(MANIFEST_FORMAT, refs, shard.clock(), self._node.shards.clock())
            manifest = writer.add(encode_manifest(content))
        taken.pieces.update((one.partition, known) for one in stopped if (known := shard.pieces.get(one.partition)))
        shard.changed = False
        taken.entry = msgspec.structs.replace(
            shard.entry,
            checkpoint=manifest,
            checkpoint_log=log.log_id,
            checkpoint_seq=through,
            chain=((log.log_id, shard.epoch, through + 1),),
            live=tuple(sorted((key >> SEGMENT_BITS, key & SEGMENT_MASK) for key in live)),
            # Without stopped partitions, no replayed record can match a mark.
            accepted=shard.entry.accepted if stopped else (),
            stopped=tuple(stopped),
        )
        files = piece_files(taken.entry, taken.pieces)
        taken.entry = msgspec.structs.replace(taken.entry, files=tuple(sorted(files)))

    # --- removal ----------------------------------------------------------------------------------------

    async def _sweep(self) -> None:
        """Delete chunk files, segments and whole logs that are no longer needed.

        A node sweeps its own log and all sealed logs, whoever wrote them, until nothing is left of them.

        Candidates are listed before the entries are read.  A candidate that no entry names then will never be named
        again: a checkpoint references only segments named by the entry before it, or segments of its owner's log at or
        above the floor.  A shard that is handed to a log which has been sealed has no records in it
        (:meth:`_say_replayed`).  So it does not matter which other nodes are sweeping.
        """
        own = self._node.log.log_id
        current = self._node.log.next_segment
        known = {entry.log_id: entry for entry in await self._entries.logs()}
        sealed = self._to_be_swept(known.values())
        await self._journal.refresh(known[log_id] for log_id in sealed)
        swept = [log_id for log_id in self._segments.logs() if log_id == own or log_id in sealed]
        listed = await in_groups([partial(self._segments.segments_of, log_id) for log_id in swept], READS_AT_ONCE)
        segments = dict(zip(swept, listed, strict=True))
        in_files = await in_groups([partial(self._pieces.list_files, log_id) for log_id in swept], READS_AT_ONCE)
        files = [file for found in in_files for file in found]
        shards = await self._entries.shards()
        backups = await self._backups()
        kept = await self._drop_pieces(files, shards, backups)
        pins = pins_of(own, self.entry, known, shards)
        for backup in backups:
            pins.set_backup(backup.name, {log_id: segment for log_id, segment, _ in backup.logs})
        dropped: set[Segment] = set()
        removed: list[int] = []
        chained = {log_id for shard in shards for log_id in shard.logs()}
        for log_id in swept:
            found = [(log_id, number) for number, _ in segments[log_id]]
            droppable = pins.droppable(at for at in found if log_id != own or at[1] < current)
            if log_id != own and log_id not in chained:
                entry = await self._say_replayed(known[log_id])
                if entry is None:
                    continue
                known[log_id] = entry
            if droppable:
                await self._segments.drop(log_id, [number for _, number in droppable])
                dropped.update(droppable)
            if log_id != own and len(droppable) == len(found) and log_id not in kept:
                removed.append(log_id)
        await in_groups([partial(self._segments.remove_log, log_id) for log_id in removed], READS_AT_ONCE)
        left = {*chained, *(one.log_id for one in files), *(log_id for log_id, found in segments.items() if found)}
        for log_id in left:
            self._emptied.pop(log_id, None)
        await self._say_swept([known[log_id] for log_id in sorted(sealed - left)])
        self.kept = _kept(own, current, pins, segments, dropped)

    def _to_be_swept(self, known: Iterable[LogEntry]) -> set[int]:
        """Return the sealed logs that may have remains, and a few of those due for their second check."""
        logs = {entry.log_id for entry in known if entry.state == "sealed" and not entry.swept}
        self._emptied = {log_id: at for log_id, at in self._emptied.items() if log_id in logs}
        due_at = asyncio.get_running_loop().time() - LEFT_BEHIND_SECONDS
        due = [log_id for log_id, at in self._emptied.items() if at <= due_at]
        return logs - self._emptied.keys() | set(due[:MARKS_AT_ONCE])

    async def _say_swept(self, empty: Iterable[LogEntry]) -> None:
        """Record the logs that this sweep found empty; mark the entries of those found empty for the second time.

        Writes in progress when their writer was fenced have arrived by the second check, and would have been found.
        """
        now = asyncio.get_running_loop().time()
        for log in empty:
            if self._emptied.get(log.log_id, now) > now - LEFT_BEHIND_SECONDS:
                self._emptied[log.log_id] = now
                continue
            with contextlib.suppress(ConditionFailed):  # another node marks it
                await self._entries.update_log(msgspec.structs.replace(log, swept=True))

    async def _say_replayed(self, log: LogEntry) -> LogEntry | None:
        """Raise a sealed log's floor above its end, before anything of it is deleted, if no shard is folded from it.

        A shard may still come to name the log: its owner hands it to the log's writer without knowing yet that this was
        fenced.  The log then holds nothing of the shard, and the next owner must not treat the deleted part as missing.
        Returns the entry; None: another node has just changed it, and may know better.
        """
        past = (log.sealed_seq or 0) + 1
        if log.floor_seq < past:
            try:
                return await self._entries.update_log(
                    msgspec.structs.replace(log, floor_segment=SEGMENT_MAX + 1, floor_seq=past)
                )
            except ConditionFailed:
                return None
        return log

    async def _backups(self) -> list[BackupPin]:
        """Return the pins of backups.  Call it last, after everything else that a sweep depends on was read.

        A backup takes the entries and sets its pin at one moment.  If the pin is not set yet, that moment is still to
        come: the entries that the backup will take are no older than those read here, so they need nothing that these
        do not need. The service takes precedence over a backup: when the disk is full, pins are ignored.
        """
        pins = (await self._entries.cluster()).pins
        if not pins:
            return []
        if self._node.log.short():
            logger.warning("there is no room: what backups hold is let go, and they fail")
            return []
        return [pin for pin in pins if self._wall() * 1000 < pin.until_ms]

    async def _drop_pieces(
        self, files: list[PieceFile], shards: list[ShardEntry], backups: list[BackupPin]
    ) -> set[int]:
        """Delete the chunk files that no checkpoint needs; return the logs whose folders still have files.

        Covers the own log, and logs that own no shard any more: while a log owns one, its writer may have a change in
        progress that names chunks which no entry names yet.
        """
        own = self._node.log.log_id
        owned = self._node.shards.owned
        here: dict[tuple[int, int], int] = {}
        for shard in owned.values():
            for key, size in shard.files().items():
                here[key] = here.get(key, 0) + size
        needed = set(here)
        # Chunks of an unreadable shard are named only in its entry; in an older entry, not even there.
        whole = {log_id for entry in shards for log_id in entry.logs()} | {entry.owner_log for entry in shards}
        for entry in shards:
            needed.update(entry.files or ())
            if entry.shard not in owned and entry.files_unknown:
                whole.update(one.log_id for one in files)
        held: dict[int, int] = {}
        for backup in backups:
            for log_id, _, last in backup.logs:
                held[log_id] = max(last, held.get(log_id, 0))
        kept: set[int] = set()
        sparse = set()
        for log_id, file, size in files:
            key = (log_id, file)
            if key not in needed and file > held.get(log_id, 0) and (log_id == own or log_id not in whole):
                await self._pieces.drop_file(log_id, file)
                continue
            kept.add(log_id)
            if key in here and here[key] * SPARSE < size:
                sparse.add(key)
        self._write_again(sparse)
        return kept

    def _write_again(self, sparse: set[tuple[int, int]]) -> None:
        """Make the next checkpoint rewrite the chunks of these files."""
        if not sparse:
            return
        for shard in self._node.shards.owned.values():
            for number, (own, hanging) in shard.pieces.items():
                partition = shard.partitions.get(number)
                if partition is None or not any(ref[:2] in sparse for ref in (own, *hanging)):
                    continue
                fold = partition.fold
                fold.changed = True
                holders: list[Block | Chunk] = [*fold.blocks.values(), *fold.tokens.chunks(), *fold.retries.chunks()]
                for holder in holders:
                    if holder.ref is not None and holder.ref[:2] in sparse:
                        holder.ref = None


def pins_of(own: int, entry: LogEntry | None, known: dict[int, LogEntry], shards: list[ShardEntry]) -> Pins:
    """Return the pins on segments of the own log and of the sealed ones.

    ``entry`` is the newest entry of the log ``own`` (0: no own log).
    """
    pins = Pins()
    chained = {log_id for shard in shards for log_id in shard.logs()}
    for log in known.values():
        floor = entry if entry is not None and log.log_id == own else log
        gone = log.state == "sealed" and log.log_id not in chained
        pins.set_floor(log.log_id, SEGMENT_MAX + 1 if gone else floor.floor_segment)
    for shard in shards:
        pins.set_live(shard.shard, shard.segments())
        # The own log's floor suffices: it passes a shard only when that has no records below it, or has a checkpoint.
        starts = {log_id: known[log_id].floor_segment for log_id in shard.logs() if log_id != own and log_id in known}
        pins.set_chain(shard.shard, starts.items())
    return pins


def _kept(
    own: int, current: int, pins: Pins, segments: dict[int, list[tuple[int, int]]], dropped: set[Segment]
) -> RetainedSegments:
    left = [(log_id, number, size) for log_id, found in segments.items() for number, size in found]
    left = [one for one in left if one[:2] not in dropped]
    pinned_by: dict[str, int] = {}
    behind: dict[str, int] = {}
    for log_id, number, _ in left:
        if log_id == own and number >= current:
            continue  # the current segment, or one created ahead
        holder = next((kind for kind, _ in pins.held(log_id, number)), "nothing")  # the next sweep deletes it
        pinned_by[holder] = pinned_by.get(holder, 0) + 1
        if log_id == own:
            behind[holder] = max(behind.get(holder, 0), current - number)
    return RetainedSegments(
        sum(size for _, _, size in left), pinned_by, behind, len({log_id for log_id, _, _ in left if log_id != own})
    )
