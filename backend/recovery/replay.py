"""Replay of durable data: checkpoints, and the records written since.

Damage is contained.  A corrupt body costs its message, which is quarantined when it is read.  A corrupt record stops
its queue, because later records depend on it; or its shard, if the queue is unknown.  Everything stopped is reported
with file and offset, and stays stopped until an operator accepts the loss (:mod:`backend.recovery.damage`); the rest is
served.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Collection
from itertools import islice
from typing import NamedTuple

import msgspec

from backend.api import shard_of
from backend.clocks.shard_clock import Former
from backend.engine import records, snapshot
from backend.engine.blocks import Ref
from backend.engine.fold import Fold
from backend.engine.records import UnknownRecord, decode_head
from backend.journal.checkpoints import ChunkDamaged, ChunkReader, decode_manifest
from backend.journal.interface import Journal
from backend.journal.rows import RecordView
from backend.journal.types import DamagedRecord, LogEnd, Row
from backend.serving.background import Slices
from backend.serving.shards import as_chunk_ref, as_ref
from backend.streams import records as stream_records
from backend.streams import snapshot as stream_snapshot
from backend.streams.group import GroupFold
from backend.streams.snapshot import AnyFold
from backend.streams.stream import StreamFold
from metadata_service.models import ChunkRef, LogEntry, ShardEntry, StoppedPartition

logger = logging.getLogger(__name__)

SHARDS_TOGETHER = 16
"""Number of shards that are read at the same time."""
FIRST_STREAM_KIND = stream_records.STREAM_KINDS.start
"""Kinds from here on are those of streams and groups."""
CHUNKS_TOGETHER = 64
"""Number of a shard's chunks requested together, 1.4 MB of a long queue."""
READS_AHEAD = 3
"""Number of such requests in progress while chunks are used: with remote storage it would mostly wait otherwise."""


class JournalDamaged(Exception):
    """A log is damaged, and the shards of the lost records are unknown: it is not sealed, an operator must decide."""

    def __init__(self, log_id: int, why: str) -> None:
        super().__init__(f"log {log_id}: {why}")
        self.log_id = log_id


class ShardDamage(NamedTuple):
    """Damage that keeps a partition or a shard from being served."""

    shard: int
    partition: int | None
    """None: the whole shard."""
    mark: str
    """Name of the damage, for its acceptance (:attr:`ShardEntry.accepted`)."""
    why: str
    """Reason, with file and offset."""
    queue_id: int = 0
    """Queue of the partition; 0: unknown, or a topic's partition or a group."""

    def __str__(self) -> str:
        whose = f"shard {self.shard}" if self.partition is None else f"partition {self.partition}"
        return f"{whose}: {self.why}"


class Chained(NamedTuple):
    """First rows from which the records of one log count."""

    shards: dict[tuple[int, int], int]
    """By shard and epoch."""
    stopped: dict[tuple[int, int], int]
    """By partition and epoch, for stopped partitions: earlier rows count for them, too."""

    def __bool__(self) -> bool:
        return bool(self.shards or self.stopped)

    def known_seq(self) -> int:
        """Return a row that is known to be durable."""
        return max((from_seq - 1 for from_seq in (*self.shards.values(), *self.stopped.values())), default=0)


class Replay:
    """The folds under construction."""

    def __init__(self, entries: dict[int, ShardEntry]) -> None:
        self.entries = entries
        self.stopped = {one.partition: one for entry in entries.values() for one in entry.stopped}
        """Partitions that were stopped before, except those dropped since."""
        self.folds: dict[int, Fold] = {}
        self.streams: dict[int, AnyFold] = {}
        """Streams' partitions and groups."""
        self.chunks: dict[int, dict[int, tuple[Ref, list[Ref]]]] = {}
        self.partition_damage: dict[int, ShardDamage] = {}
        self.shard_damage: dict[int, ShardDamage] = {}
        self._lost: set[int] = set()
        """Partitions whose checkpoint is lost, which was accepted: they start empty."""
        self._refs: dict[int, Ref] = {}
        """References to the partitions' own chunks in their checkpoints."""
        self._resumed: set[int] = set()
        """Stopped partitions that have been served again since: their loss was accepted."""
        self._seen: dict[int, set[int]] = {}
        """By shard: the logs that hold records that count."""
        self.time_ms = 0
        """The latest time in any row or checkpoint."""
        self.row_times: dict[int, int] = {}
        """By log: the writer's clock at the last row read."""
        self._last: dict[int, tuple[int, int, int]] = {}
        """By shard: log, shard's time and owner's clock of the last applied record, or of the checkpoint."""
        self.replayed = 0

    async def load_checkpoints(self, chunks: ChunkReader) -> None:
        """Load the checkpoints of several shards concurrently, because remote reads mostly wait."""
        free = asyncio.Semaphore(SHARDS_TOGETHER)

        async def load(shard: int, entry: ShardEntry) -> None:
            async with free:
                await self._load_checkpoint(shard, entry, chunks)

        loads = [asyncio.create_task(load(shard, entry)) for shard, entry in self.entries.items()]
        try:
            await asyncio.gather(*loads)
        except BaseException:
            for one in loads:
                one.cancel()
            await asyncio.wait(loads)
            raise

    async def _load_checkpoint(self, shard: int, entry: ShardEntry, chunks: ChunkReader) -> None:
        def fetch(refs: list[Ref]) -> AsyncGenerator[bytes, None]:
            return _one_by_one(chunks, [as_chunk_ref(ref) for ref in refs])

        refs = [(one.partition, as_ref(one.checkpoint)) for one in entry.stopped if one.checkpoint is not None]
        if entry.checkpoint is not None:
            try:
                manifest = decode_manifest(await chunks.get(entry.checkpoint))
                refs += manifest.partitions
                self._last[shard] = (entry.checkpoint_log, manifest.time_ms, manifest.clock_ms)
                self.time_ms = max(self.time_ms, manifest.time_ms)
            except (ChunkDamaged, msgspec.MsgspecError) as error:
                self._stop(shard, None, "checkpoint", f"its checkpoint is damaged: {error}")
        self.chunks[shard] = {}
        for number, ref in refs:
            self._refs[number] = ref
            try:
                fold, referenced = await self._read(await snapshot.own_chunk(ref, fetch), fetch)
            except (ChunkDamaged, msgspec.MsgspecError, ValueError) as error:
                self._stop(shard, number, f"checkpoint of {number}", f"its checkpoint is damaged: {error}")
                self._lost.add(number)
                self.chunks[shard][number] = (ref, await self._referenced(ref, fetch))  # kept for the operator
                continue
            self.chunks[shard][number] = (ref, referenced)
            # Its rows may now be below the floor: then only the checkpoint has the time.
            self.time_ms = max(self.time_ms, fold.now)
            log_id, time_ms, clock_ms = self._last.get(shard, (0, 0, 0))
            # The shard's manifest, which has its time, may be damaged.
            if fold.now > time_ms:
                self._last[shard] = (log_id, fold.now, clock_ms)
            if shard not in self.shard_damage:
                if isinstance(fold, Fold):
                    self.folds[number] = fold
                else:
                    self.streams[number] = fold
            await asyncio.sleep(0)

    async def _read(self, chunk: bytes, fetch: snapshot.Fetch) -> tuple[Fold | AnyFold, list[Ref]]:
        """Return the fold of a partition's own chunk, and the references in that chunk."""
        if _is_of_streams(chunk):
            return await stream_snapshot.read(chunk, fetch)
        return await snapshot.read(chunk, fetch)

    async def _referenced(self, ref: Ref, fetch: snapshot.Fetch) -> list[Ref]:
        """Return the references in a damaged partition's own chunk, if that chunk is readable."""
        try:
            chunk = await snapshot.own_chunk(ref, fetch)
            return stream_snapshot.hanging(chunk) if _is_of_streams(chunk) else snapshot.referenced(chunk)
        except (ChunkDamaged, msgspec.MsgspecError):
            return []

    def former(self, shard: int) -> Former:
        """Return the shard's last known time, according to the journal."""
        entry = self.entries.get(shard)
        return Former() if entry is None else Former(entry.owner_log, *self._last.get(shard, (0, 0, 0)))

    def chained(self, log_id: int) -> Chained:
        """Return the first rows from which the records of a log count."""
        shards = {
            (shard, epoch): from_seq
            for shard, entry in self.entries.items()
            for chained, epoch, from_seq in entry.chain
            if chained == log_id
        }
        stopped = {
            (number, epoch): from_seq
            for number, one in self.stopped.items()
            for chained, epoch, from_seq in one.chain
            if chained == log_id
        }
        return Chained(shards, stopped)

    def apply_row(self, log_id: int, row: Row, chained: Chained) -> None:
        """Apply the records of a row that count."""
        self.time_ms = max(self.time_ms, row.time_ms)
        self.row_times[log_id] = row.time_ms
        mark = f"row {log_id}:{row.seq}"
        for position, record in row.records:
            view: RecordView | None
            if isinstance(record, DamagedRecord):
                if record.shard is not None:
                    self._seen.setdefault(record.shard, set()).add(log_id)
                view = self._salvage(record, row.seq, chained, mark)
                if view is None:
                    continue
            else:
                view = record
            from_seq = chained.shards.get((view.shard, view.epoch))
            if from_seq is not None and row.seq >= from_seq:
                if view.partition in self.stopped:
                    self._resumed.add(view.partition)
            else:
                from_seq = chained.stopped.get((view.partition, view.epoch))
                if from_seq is None or row.seq < from_seq:
                    continue
            self._seen.setdefault(view.shard, set()).add(log_id)
            self._last[view.shard] = (log_id, view.time_ms, row.time_ms)
            self._apply(view, position, mark)

    def _salvage(self, damaged: DamagedRecord, seq: int, chained: Chained, mark: str) -> RecordView | None:
        """Return the usable part of a damaged record: all of it if only the body is corrupt."""
        partitions = [damaged.partition] if damaged.partition is not None else []
        if damaged.shard is not None and not any(
            shard == damaged.shard and seq >= from_seq for (shard, _), from_seq in chained.shards.items()
        ):
            # The shard's checkpoint covers it.  But it may belong to a stopped partition that this checkpoint lacks.
            partitions = [
                number
                for (number, _), from_seq in chained.stopped.items()
                if shard_of(number) == damaged.shard and seq >= from_seq and damaged.partition in (None, number)
            ]
            if not partitions:
                return None
        if damaged.part == "body" and damaged.record is not None:
            logger.error("%s: that message or batch is lost, its partition is served", damaged)
            return damaged.record
        for number in partitions:
            self._stop(shard_of(number), number, mark, str(damaged))
        if not partitions and damaged.shard is not None:
            self._stop(damaged.shard, None, mark, str(damaged))
        # The shard of the record is unknown: the scan reports that the damage is severe.
        return None

    def _apply(self, view: RecordView, position: int, mark: str) -> None:
        number = view.partition
        if view.shard in self.shard_damage:
            return
        if view.kind == records.Dropped.KIND:
            self._dropped(view.shard, number)
            return
        if view.kind >= FIRST_STREAM_KIND:
            self._apply_stream(view, position, mark)
            return
        if number in self.partition_damage:
            return
        self.replayed += 1
        fold = self.folds.get(number)
        try:
            record = decode_head(view.kind, view.head)
            if fold is None:
                if not isinstance(record, records.Configured):
                    self._without_settings(view, mark)
                    return
                fold = self.folds[number] = Fold(number)
            fold.apply(record, view.time_ms, position, view.body_bytes)
        except (UnknownRecord, AssertionError, LookupError) as error:
            # Written by a later version, or inconsistent with the state before it.
            self._stop(view.shard, number, mark, f"a record in {mark} cannot be applied: {error}")

    def _apply_stream(self, view: RecordView, position: int, mark: str) -> None:
        """Apply a record of a stream's partition or of a group."""
        number = view.partition
        fold = self.streams.get(number)
        is_drop = view.kind == stream_records.StreamDropped.KIND
        if view.kind == stream_records.GroupDropped.KIND or (is_drop and fold is None):
            self._dropped(view.shard, number)
            return
        if number in self.partition_damage:
            return
        self.replayed += 1
        try:
            record = stream_records.decode_head(view.kind, view.head)
            if fold is None:
                if isinstance(record, stream_records.StreamConfigured):
                    fold = self.streams[number] = StreamFold(number)
                elif isinstance(record, stream_records.GroupConfigured):
                    fold = self.streams[number] = GroupFold(number)
                else:
                    self._without_settings(view, mark)
                    return
            if isinstance(record, stream_records.Batches) and self.entries[view.shard].accepted:
                _fill_gap(fold, record, view.time_ms, position)
            fold.apply(record, view.time_ms, position, view.body_bytes)  # type: ignore[arg-type]
        except (UnknownRecord, AssertionError, LookupError) as error:
            self._stop(view.shard, number, mark, f"a record in {mark} cannot be applied: {error}")
            return
        # Extents of a deleted topic are listed in its fold until they are deleted.
        if is_drop and isinstance(fold, StreamFold) and not fold.released:
            self._dropped(view.shard, number)

    def _without_settings(self, view: RecordView, mark: str) -> None:
        """Stop a partition whose first record is not its settings, unless its state is known to be lost."""
        if view.partition not in self._lost:
            self._stop(view.shard, view.partition, mark, f"its first record, in {mark}, is not its settings")
            self._lost.add(view.partition)

    def _dropped(self, shard: int, number: int) -> None:
        """Forget the partition and its damage, because its queue, topic or group was deleted."""
        self.folds.pop(number, None)
        self.streams.pop(number, None)
        self.stopped.pop(number, None)
        self._lost.discard(number)
        self.chunks.get(shard, {}).pop(number, None)
        if self.partition_damage.pop(number, None) is not None:
            logger.info("partition %d was dropped: its damage no longer matters", number)

    def still_stopped(self) -> list[StoppedPartition]:
        """Return the stopped partitions of shards that are served."""
        return [
            self._as_stopped(damage)
            for damage in self.partition_damage.values()
            if damage.shard not in self.shard_damage
        ]

    def _as_stopped(self, damage: ShardDamage) -> StoppedPartition:
        assert damage.partition is not None
        number, entry = damage.partition, self.entries[damage.shard]
        before = self.stopped.get(number)
        if before is not None and number not in self._resumed:
            return before
        chain = (*(before.chain if before is not None else ()), *self.chain_of(damage.shard))
        ref = self._refs.get(number)
        return StoppedPartition(
            number,
            damage.queue_id or (before.queue_id if before is not None else 0),
            as_chunk_ref(ref) if ref is not None else None,
            tuple(dict.fromkeys(chain)),
            tuple(sorted({*entry.live, *(before.live if before is not None else ())})),
        )

    def chain_of(self, shard: int) -> tuple[tuple[int, int, int], ...]:
        """Return the shard's chain without logs that proved to hold nothing of it.

        Call it only once all of them are sealed.  So restarts alone make no chain longer.
        """
        entry = self.entries[shard]
        kept = set(self._seen.get(shard, ()))
        if shard in self.shard_damage and entry.checkpoint is not None:
            kept.add(entry.checkpoint.log_id)  # its chunks are kept for the operator, too
        return tuple(link for link in entry.chain if link[0] in kept)

    def _stop(self, shard: int, partition: int | None, mark: str, why: str) -> None:
        """Stop serving the partition (None: the shard), unless this damage was accepted."""
        fold = self.folds.get(partition) if partition is not None else None
        queue_id = fold.settings.queue_id if fold is not None and fold.settings is not None else 0
        damage = ShardDamage(shard, partition, mark, why, queue_id)
        entry = self.entries.get(shard)
        if entry is not None and mark in entry.accepted:
            logger.warning("%s (accepted)", damage)
            return
        if partition is not None:
            self.partition_damage.setdefault(partition, damage)
            self.folds.pop(partition, None)
            self.streams.pop(partition, None)
        else:
            self.shard_damage.setdefault(shard, damage)
            for number in [number for number in (*self.folds, *self.streams) if shard_of(number) == shard]:
                self.folds.pop(number, None)
                self.streams.pop(number, None)


def _is_of_streams(chunk: bytes) -> bool:
    """Return whether a partition's own chunk is that of a stream's partition or of a group."""
    return stream_snapshot.is_stream(chunk) or stream_snapshot.is_group(chunk)


def _fill_gap(fold: AnyFold, record: stream_records.Batches, now: int, position: int) -> None:
    """Keep the offsets of batches before this one whose records are damaged, which was accepted.

    They get the position of this record, which does not hold them, so they are read as lost batches.
    """
    if isinstance(fold, StreamFold) and record.base_offset > fold.next_offset:
        missing = record.base_offset - fold.next_offset
        fold.apply(stream_records.Batches(fold.next_offset, missing, record.leader_epoch), now, position)


async def _one_by_one(chunks: ChunkReader, refs: list[ChunkRef]) -> AsyncGenerator[bytes, None]:
    """Yield these chunks in order, with later ones read ahead.  Raises the errors of :meth:`ChunkReader.get_many`."""
    starts = iter(range(0, len(refs), CHUNKS_TOGETHER))
    reads: deque[asyncio.Task[list[bytes]]] = deque()
    slices = Slices()
    try:
        while True:
            for start in islice(starts, READS_AHEAD + 1 - len(reads)):
                read = asyncio.create_task(chunks.get_many(refs[start : start + CHUNKS_TOGETHER]))
                read.add_done_callback(_retrieve_error)
                reads.append(read)
            if not reads:
                return
            for chunk in await reads.popleft():
                yield chunk
                await slices.step()
    finally:
        for read in reads:
            read.cancel()


def _retrieve_error(read: asyncio.Task[list[bytes]]) -> None:
    """Retrieve the exception of a read that is no longer awaited, so that asyncio does not log it."""
    if not read.cancelled():
        read.exception()


async def replay_log(
    journal: Journal, entry: LogEntry, started: Collection[int], replay: Replay, known_seq: int
) -> LogEnd | None:
    """Fold a log's records from its floor to its end; return None if it was never started.

    ``known_seq``: a row that is known to have been durable.  Raises :class:`JournalDamaged`, unless that was accepted.
    """
    chained = replay.chained(entry.log_id)
    if entry.log_id not in started:
        if entry.sealed_seq and entry.floor_seq <= entry.sealed_seq and not entry.accepted:
            raise JournalDamaged(entry.log_id, f"{journal.place(entry)} is missing")
        return None
    scan = journal.scan(entry, max(chained.known_seq(), known_seq, entry.floor_seq - 1))
    async for row in scan.rows():
        replay.apply_row(entry.log_id, row, chained)
    if scan.end.torn is not None:
        logger.warning("the end of a log was torn: %s", scan.end.torn)
    if scan.end.severe and not entry.accepted:
        raise JournalDamaged(entry.log_id, "; ".join(str(damage) for damage in scan.end.damage))
    for damage in scan.end.damage:
        logger.error("journal damage: %s", damage)
    return scan.end
