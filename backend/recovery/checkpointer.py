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
from backend.api import StorageFull, Unavailable, shard_of
from backend.engine import snapshot
from backend.engine.blocks import Ref
from backend.engine.fold import Fold
from backend.extent_ids import ExtentId
from backend.journal.checkpoints import MANIFEST_FORMAT, ChunkFile, ChunkWriter, ShardManifest, encode_manifest
from backend.journal.interface import Journal
from backend.journal.pins import Pins, Segment
from backend.journal.rows import SEGMENT_MAX
from backend.recovery.compaction import Compaction
from backend.recovery.served import Served
from backend.serving.background import LogThrottle, PacedSlices, Slices, in_groups
from backend.serving.shards import Shard, as_ref, chunk_files
from backend.serving.stream_partition import OpenStream
from backend.streams import snapshot as stream_snapshot
from backend.streams.snapshot import AnyFold, Holder
from backend.streams.stream import ExtentNumber
from metadata_service.models import BackupPin, LogEntry, ShardEntry
from metadata_service.store import ConditionFailed, MemberStore, StoreError

logger = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
CHAIN_MAX = 8
"""Logs in a shard's chain above which a start takes the first checkpoint at once, as starts may keep failing early."""
SPARSE = 4
"""A chunk file less than a quarter of which is needed is rewritten and deleted."""
PASSES_MAX = 4
PACED_PASSES = 2
"""Passes over the changed chunks of a shard, and those of them that rest.  More would change during longer passes, and
be left for the instant of the checkpoint.
"""
CHANGED_FEW = 2
"""Chunks written in a pass, up to which no further pass follows: their successors are few enough to be written in the
instant of the checkpoint.
"""
READS_AT_ONCE = 8
"""Logs whose remains are listed at the same time."""
LEFT_BEHIND_SECONDS = 600.0
"""Delay after which a log without remains is checked again, for writes that were still in progress.  If it is still
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


class _Capture:
    """State captured of a shard that is not published yet; with its entry, the whole checkpoint."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.entry = shard.entry
        self.chunks: dict[int, tuple[Ref, list[Ref]]] = {}
        self.fresh: list[tuple[snapshot.Holder, Ref]] = []
        self.fresh_of_streams: list[tuple[Holder, Ref]] = []
        self.folds: list[Fold | AnyFold] = []
        self.released: list[tuple[OpenStream, list[ExtentNumber]]] = []
        """Extents that hold nothing any more, as the checkpoint lists them."""

    def undo(self) -> None:
        """Mark everything as changed again, because the checkpoint was not published.

        References to chunks that were never written must be forgotten: otherwise the next checkpoint would name them,
        too.
        """
        for holder, ref in (*self.fresh, *self.fresh_of_streams):
            if holder.ref == ref:
                holder.ref = None
        for fold in self.folds:
            fold.changed = True
        self.shard.changed = True


class Checkpointer:
    """Takes checkpoints of an incarnation's shards and deletes what they make unnecessary."""

    def __init__(
        self,
        node: Served,
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
        self._writer = node.writer
        self._entries = entries
        self._journal = journal
        self._chunks = journal.chunks
        self._segments = journal.segments
        self._every = every_segments
        self._wall = wall
        self._compaction = Compaction(node.partitions, node.writer, node.payload_cache, journal.segment_bytes)
        chained = {log_id for shard in node.shards.owned.values() for log_id, _, _ in shard.entry.chain}
        self._checkpointed_at = 1 if chained == {node.log.log_id} else 1 - every_segments
        """Segment of the log at the last checkpoint.  Set at the start so that one is soon due if earlier logs can be
        freed.
        """
        self._lock = asyncio.Lock()
        self._indeterminate = False
        """True while a change of the metadata is in progress, or after one with an unknown outcome."""
        self._emptied: dict[int, float] = {}
        """Sealed logs found empty, and the loop's time at which each was."""
        self._handing_over: dict[int, tuple[ShardEntry, str]] = {}
        """Shards in hand-over: their next entries, and the name of the new owner."""

    def soon(self) -> None:
        """Schedule a checkpoint without waiting for more records, because shards folded from other logs have
        arrived.
        """
        self._checkpointed_at = self._node.log.next_segment - self._every

    async def run(self) -> None:
        """Take checkpoints when they are due, until cancelled."""
        log_throttle = LogThrottle()
        shards = self._node.shards.owned.values()
        longest = max((len(one.entry.chain) for one in shards if one.damage is None), default=0)
        pause = CHECK_SECONDS if longest <= CHAIN_MAX else 0.0
        while True:
            await asyncio.sleep(pause)
            pause = CHECK_SECONDS
            log = self._node.log
            full = log.is_nearly_full()
            due = log.next_segment - self._checkpointed_at >= self._every or (full and self._something_to_gain())
            if not due and not self._handing_over:
                continue
            try:
                await self.checkpoint(paced=not full)
                if await self._compaction.run(log.log_id, log.next_segment, eager=full):
                    await self.checkpoint(paced=not full)
                log_throttle.forget("checkpoint")
            except (Unavailable, StorageFull, StoreError) as error:
                if log_throttle.should_log("checkpoint", str(error)):
                    logger.warning("no checkpoint now: %s", error)

    def _something_to_gain(self) -> bool:
        return any(shard.dirty for shard in self._node.shards.owned.values())

    async def checkpoint(self, *, paced: bool = True) -> None:
        """Checkpoint all shards once, without rests if it is not ``paced``.

        Raises :class:`StoreError`, :class:`StorageFull` or :class:`Unavailable`; nothing but the work is lost then.
        """
        async with self._lock:
            started_at = time.perf_counter()
            try:
                await self._checkpoint(paced)
            except OSError as error:
                instruments.CHECKPOINTS_FAILED.add()
                raise Unavailable(f"a checkpoint failed: {error}") from error
            except (Unavailable, StorageFull, StoreError):
                instruments.CHECKPOINTS_FAILED.add()
                raise
            instruments.CHECKPOINTS.observe(time.perf_counter() - started_at)

    async def _checkpoint(self, paced: bool) -> None:
        node, log = self._node, self._node.log
        if self._indeterminate:
            await self._resolve()
        writer = await self._chunks.create_file(log.log_id)
        cut = log.cut()
        captures: list[_Capture] = []
        unpaced = Slices()
        slices = PacedSlices() if paced else unpaced
        try:
            for shard in list(node.shards.owned.values()):
                assert not shard.leaving, "the floor must not pass it"
                if shard.damage is not None:
                    continue  # Damage must be found again at the next start; it has no records in this log.
                earlier = any(log_id != log.log_id for log_id, _, _ in shard.entry.chain)
                if shard.dirty or earlier or shard.has_released:
                    one = _Capture(shard)
                    captures.append(one)
                    for number in self._capture_in_steps(one, writer):
                        await (slices if number < PACED_PASSES else unpaced).step()
                    self._capture(one, writer)
                await slices.step()
            await self._writer.durable()
            await writer.finish()
            self._indeterminate = True
            stored = await self._entries.update_shards([one.entry for one in captures]) if captures else []
            self._indeterminate = False
        except BaseException:
            for one in captures:
                one.undo()
            raise
        for one, entry in zip(captures, stored, strict=True):
            one.shard.entry = entry
            one.shard.chunks = one.chunks
        self._checkpointed_at = log.next_segment
        if cut.floor_seq > self.entry.floor_seq:
            moved = msgspec.structs.replace(self.entry, floor_segment=cut.floor_segment, floor_seq=cut.floor_seq)
            self._indeterminate = True
            self.entry = await self._entries.update_log(moved)
            self._indeterminate = False
        if not await self._sweep():
            for one in captures:
                await self._delete_released(one.released)

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
            if entry.shard in self._handing_over:
                continue
            if (entry.owner_log, entry.epoch) != (own, shard.epoch):
                raise Unavailable(f"shard {entry.shard} has another owner, log {entry.owner_log}")
            if entry.version != shard.entry.version:
                shard.entry = msgspec.structs.replace(shard.entry, version=entry.version)
                shard.changed = True
        self.entry = next(entry for entry in await self._entries.logs(self.entry.node) if entry.log_id == own)
        await self._conclude()
        self._indeterminate = False

    # --- hand-over --------------------------------------------------------------------------------------

    async def hand_over(self, numbers: Collection[int], successor: LogEntry) -> None:
        """Hand these shards, which are owned, over to the incarnation that writes the log ``successor``.

        When it returns, their entries name the new owner.  Raises :class:`StorageFull` and :class:`Unavailable`: the
        shards are then still served.  Raises :class:`StoreError`: the outcome is unknown, and the shards are not served
        until a later call of this method, or of :meth:`checkpoint`, has resolved it.
        """
        async with self._lock:
            try:
                if self._indeterminate:
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
                    self._handing_over[shard.number] = (given, successor.node)
                self._indeterminate = True
                await self._conclude()
                self._indeterminate = False
            except OSError as error:
                raise Unavailable(f"a checkpoint failed: {error}") from error

    async def _last_checkpoint(self, shards: list[Shard]) -> list[ShardEntry]:
        """Stop serving these shards, and write all of their state in memory; return their final entries.

        The chunks are durable then, and so are every record in them and every answer given.
        """
        node = self._node
        ahead = await self._chunks.create_file(node.log.log_id)
        writer = await self._chunks.create_file(node.log.log_id)
        captures: dict[int, _Capture] = {}
        slices = Slices()
        try:
            # Capture and store while the shards are still served, so that little is left to do once they are closed.
            for shard in shards:
                if shard.damage is None:
                    captures[shard.number] = _Capture(shard)
                    for _ in self._capture_in_steps(captures[shard.number], ahead):
                        await slices.step()
            await ahead.finish()
            for shard in shards:
                node.close_shard(shard)
            for one in captures.values():
                self._capture(one, writer)
            await asyncio.gather(self._durable(), writer.finish())  # the shards are not served meanwhile
        except BaseException:
            for one in captures.values():
                one.undo()
            for shard in shards:
                if shard.leaving:
                    node.reopen_shard(shard)
            raise
        return [captures[shard.number].entry if shard.number in captures else shard.entry for shard in shards]

    async def _durable(self) -> None:
        await self._writer.durable()

    async def _conclude(self) -> None:
        """Finish the hand-overs in progress.

        A read of the old entry does not resolve a change with an unknown outcome, because the change may still take
        effect. So the change is repeated: one of the two takes effect, and then the other cannot.
        """
        own = self._node.log.log_id
        while self._handing_over:
            try:
                await self._entries.update_shards([entry for entry, _ in self._handing_over.values()])
                gone = list(self._handing_over)
            except ConditionFailed:
                gone = []
                stored = {entry.shard: entry for entry in await self._entries.shards()}
                for number, (entry, successor) in self._handing_over.items():
                    if (stored[number].owner_log, stored[number].epoch) == (own, entry.epoch - 1):
                        again = msgspec.structs.replace(entry, version=stored[number].version)
                        self._handing_over[number] = (again, successor)
                    else:
                        gone.append(number)
            for number in gone:
                _, successor = self._handing_over.pop(number)
                self._node.shards.remove_shard(self._node.shards.owned[number], successor)

    def _capture_in_steps(self, capture: _Capture, writer: ChunkWriter) -> Iterator[int]:
        """Write the shard's changed state, step by step: commands may run between two steps.  Yield the pass's number.

        A block that changes afterwards forgets its chunk and is written again: by the next pass, which is shorter and
        so finds fewer of them, and at last by :meth:`_capture`, which therefore has little left to do however large the
        shard is.  Receives from a FIFO queue change many blocks, because the messages of a group are far apart.
        """
        for number in range(PASSES_MAX):
            before = len(capture.fresh) + len(capture.fresh_of_streams)
            for _ in self._write_changed(capture, writer):
                yield number
            if len(capture.fresh) + len(capture.fresh_of_streams) - before <= CHANGED_FEW:
                return

    def _write_changed(self, capture: _Capture, writer: ChunkWriter) -> Iterator[None]:
        """Write each changed chunk of the shard once."""
        for partition in list(capture.shard.partitions.values()):
            if partition.fold.changed:
                yield from snapshot.capture_ahead(
                    partition.fold, lambda chunk: as_ref(writer.add(chunk)), capture.fresh
                )
        for stream in list(capture.shard.streams.values()):
            if stream.fold.changed:
                yield from stream_snapshot.ahead(
                    stream.fold, lambda chunk: as_ref(writer.add(chunk)), capture.fresh_of_streams
                )

    def _capture(self, capture: _Capture, writer: ChunkWriter) -> None:
        """Capture the shard's state at one cut, in one instant."""
        log, shard = self._node.log, capture.shard
        through = log.cut().seq  # not an empty row behind it: no answer waits for that one
        live: set[int] = set()
        stopped = [one for number, one in self._node.shards.stopped.items() if shard_of(number) == shard.number]
        for number, partition in shard.partitions.items():
            fold = partition.fold
            known = shard.chunks.get(number)
            if known is None or fold.changed:
                capture.folds.append(fold)
                known = snapshot.capture(fold, lambda chunk: as_ref(writer.add(chunk)), capture.fresh)
                fold.changed = False
            capture.chunks[number] = known
            live.update(fold.segments)
        for number, stream in shard.streams.items():
            state = stream.fold
            known = shard.chunks.get(number)
            if known is None or state.changed:
                capture.folds.append(state)
                known = stream_snapshot.take(state, lambda chunk: as_ref(writer.add(chunk)), capture.fresh_of_streams)
                state.changed = False
            capture.chunks[number] = known
            live.update(state.segments)
            if isinstance(stream, OpenStream) and stream.fold.released:
                capture.released.append((stream, list(stream.fold.released)))
        manifest = None
        if capture.chunks:
            refs = [(number, ref) for number, (ref, _) in capture.chunks.items()]
            content = ShardManifest(MANIFEST_FORMAT, refs, shard.clock(), self._node.shards.clock())
            manifest = writer.add(encode_manifest(content))
        capture.chunks.update((one.partition, known) for one in stopped if (known := shard.chunks.get(one.partition)))
        shard.changed = False
        capture.entry = msgspec.structs.replace(
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
        files = chunk_files(capture.entry, capture.chunks)
        capture.entry = msgspec.structs.replace(capture.entry, files=tuple(sorted(files)))

    # --- removal ----------------------------------------------------------------------------------------

    async def _delete_released(self, released: list[tuple[OpenStream, list[ExtentNumber]]]) -> None:
        """Delete extents that hold nothing any more, as a published checkpoint says: no replay needs them."""
        if not released:
            return
        await self._journal.extents.delete(
            [ExtentId(stream.id, *one) for stream, numbers in released for one in numbers]
        )
        shards = self._node.shards
        for stream, numbers in released:
            if stream.closed or shards.streams.get(stream.id) is not stream:
                continue
            stream.fold.forget_released(numbers)
            if stream.fold.dropped and not stream.fold.released:
                shards.remove_stream(stream)

    async def _sweep(self) -> bool:
        """Delete chunk files, segments and whole logs that are no longer needed; return whether backups are in
        progress, whose extents have to stay, too.

        A node sweeps its own log and all sealed logs, whichever node wrote them, until nothing is left of them.

        Candidates are listed before the entries are read.  A candidate that no entry names then will never be named
        again: a checkpoint references only segments named by the entry before it, or segments of its owner's log at or
        above the floor.  A shard that is handed to a log which has been sealed has no records in it
        (:meth:`_raise_floor`).  So it does not matter which other nodes are sweeping.
        """
        own = self._node.log.log_id
        current = self._node.log.next_segment
        known = {entry.log_id: entry for entry in await self._entries.logs()}
        sealed = self._to_be_swept(known.values())
        await self._journal.refresh(known[log_id] for log_id in sealed)
        swept = [log_id for log_id in self._segments.logs() if log_id == own or log_id in sealed]
        listed = await in_groups([partial(self._segments.segments_of, log_id) for log_id in swept], READS_AT_ONCE)
        segments = dict(zip(swept, listed, strict=True))
        in_files = await in_groups([partial(self._chunks.list_files, log_id) for log_id in swept], READS_AT_ONCE)
        files = [file for found in in_files for file in found]
        shards = await self._entries.shards()
        backups = await self._backups()
        kept = await self._drop_chunks(files, shards, backups)
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
                entry = await self._raise_floor(known[log_id])
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
        return bool(backups)

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

    async def _raise_floor(self, log: LogEntry) -> LogEntry | None:
        """Raise a sealed log's floor above its end, before anything of it is deleted, if no shard is folded from it.

        A shard's entry may still change to name the log: its owner may hand it to the log's writer before it knows that
        this writer was fenced.  The log then holds nothing of the shard, and the next owner must not treat the deleted
        part as missing. Returns the entry; None: another node has just changed it.
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

        A backup reads the entries and sets its pin at one moment.  If the pin is not set yet, the backup will read
        entries that are not older than those read here, and these need no files that the entries read here do not
        need.  The service takes precedence over a backup: when the disk is full, pins are ignored.
        """
        pins = (await self._entries.cluster()).pins
        if not pins:
            return []
        if self._node.log.is_nearly_full():
            logger.warning("no space is left: pins of backups are released, and these backups fail")
            return []
        return [pin for pin in pins if self._wall() * 1000 < pin.until_ms]

    async def _drop_chunks(
        self, files: list[ChunkFile], shards: list[ShardEntry], backups: list[BackupPin]
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
                await self._chunks.drop_file(log_id, file)
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
            for number, (own, referenced) in shard.chunks.items():
                partition, stream = shard.partitions.get(number), shard.streams.get(number)
                if not any(ref[:2] in sparse for ref in (own, *referenced)):
                    continue
                holders: list[snapshot.Holder | Holder]
                if partition is not None:
                    fold = partition.fold
                    fold.changed = True
                    holders = [*snapshot.holders(fold)]
                elif stream is not None:
                    stream.fold.changed = True
                    holders = [*stream_snapshot.holders(stream.fold)]
                else:
                    continue
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
        # The own log's floor suffices: it rises above a shard's records only when the shard has a checkpoint behind
        # them.
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
