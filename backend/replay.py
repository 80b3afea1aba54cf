"""Folding what is durable: checkpoints, and the records since.

Damage is kept small.  A rotten body costs its message, which is quarantined when it is read.  A rotten record stops
its queue, for what comes after it rests on it; its shard, where the queue cannot be known.  Whatever is stopped is
said, with file and offset, and stays stopped until an operator has accepted the loss (:mod:`backend.damage`); the rest
is served.
"""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

import msgspec

from backend.checkpointer import decode_manifest
from backend.engine import records, snapshot
from backend.engine.blocks import Ref
from backend.engine.fold import Fold
from backend.engine.records import UnknownRecord, decode_head
from backend.journal.checkpoints import LocalPieces, PieceDamaged
from backend.journal.disk import Disk
from backend.journal.recovery import LogEnd, Row, Scan
from backend.journal.rows import RecordView
from backend.journal.segments import RottenRecord, SegmentFiles
from backend.shards import as_piece, shard_of
from metadata_service.models import LogEntry, ShardEntry

logger = logging.getLogger(__name__)


class JournalDamaged(Exception):
    """A log is damaged in a way that leaves open whose records are lost: it is not sealed, an operator must decide."""

    def __init__(self, log_id: int, why: str) -> None:
        super().__init__(f"log {log_id}: {why}")
        self.log_id = log_id


class Harm(NamedTuple):
    """Something that cannot be served, because what it rests on is damaged."""

    shard: int
    partition: int | None
    """None: the whole shard."""
    mark: str
    """Names the damage, so that it can be accepted (:attr:`ShardEntry.accepted`)."""
    why: str
    """With file and offset."""

    def __str__(self) -> str:
        whose = f"shard {self.shard}" if self.partition is None else f"partition {self.partition}"
        return f"{whose}: {self.why}"


class Replay:
    """The folds under construction."""

    def __init__(self, entries: dict[int, ShardEntry]) -> None:
        self.entries = entries
        self.folds: dict[int, Fold] = {}
        self.pieces: dict[int, dict[int, tuple[Ref, list[Ref]]]] = {}
        self.partition_harm: dict[int, Harm] = {}
        self.shard_harm: dict[int, Harm] = {}
        self._lost: set[int] = set()
        """Partitions whose checkpoint is gone, which was accepted: they begin anew."""
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
                self._stop(shard, None, "checkpoint", f"its checkpoint is damaged: {error}")
                continue
            for number, ref in manifest.partitions:
                try:
                    self.folds[number], hanging = await snapshot.read(ref, fetch)
                except (PieceDamaged, msgspec.MsgspecError, ValueError) as error:
                    self._stop(shard, number, f"checkpoint of {number}", f"its checkpoint is damaged: {error}")
                    self._lost.add(number)
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

    def apply_row(self, log_id: int, row: Row, chained: dict[tuple[int, int], int]) -> None:
        """Apply the records of a row that count."""
        self.time_ms = max(self.time_ms, row.time_ms)
        mark = f"row {log_id}:{row.seq}"
        for position, record in row.records:
            view: RecordView | None
            if isinstance(record, RottenRecord):
                view = self._salvage(record, row.seq, chained, mark)
                if view is None:
                    continue
            else:
                view = record
            from_seq = chained.get((view.shard, view.epoch))
            if from_seq is None or row.seq < from_seq:
                continue
            self._apply(view, position, mark)

    def _salvage(
        self, rotten: RottenRecord, seq: int, chained: dict[tuple[int, int], int], mark: str
    ) -> RecordView | None:
        """What may be applied of a damaged record: all, if only its body is rotten."""
        if rotten.shard is not None and not any(
            shard == rotten.shard and seq >= from_seq for (shard, _), from_seq in chained.items()
        ):
            return None  # it is behind that shard's checkpoint
        if rotten.part == "body" and rotten.record is not None:
            logger.error("%s: that message is lost, its queue goes on", rotten)
            return rotten.record
        if rotten.partition is not None:
            self._stop(shard_of(rotten.partition), rotten.partition, mark, str(rotten))
        elif rotten.shard is not None:
            self._stop(rotten.shard, None, mark, str(rotten))
        return None  # whose it was is not known: the scan says so, and that the damage is severe

    def _apply(self, view: RecordView, position: int, mark: str) -> None:
        number = view.partition
        if number in self.partition_harm or view.shard in self.shard_harm:
            return
        self.replayed += 1
        fold = self.folds.get(number)
        try:
            record = decode_head(view.kind, view.head)
            if fold is None:
                if not isinstance(record, records.Configured):
                    if number not in self._lost:
                        self._stop(view.shard, number, mark, f"its first record, in {mark}, is not its settings")
                        self._lost.add(number)
                    return
                fold = self.folds[number] = Fold(number)
            fold.apply(record, view.time_ms, position)
        except (UnknownRecord, AssertionError, LookupError) as error:
            # Written by a later version, or it does not follow from what was before it.
            self._stop(view.shard, number, mark, f"a record in {mark} cannot be applied: {error}")
            return
        if fold.dropped:
            del self.folds[number]

    def _stop(self, shard: int, partition: int | None, mark: str, why: str) -> None:
        """Serve the partition (None: the shard) no more, unless this damage was accepted."""
        harm = Harm(shard, partition, mark, why)
        entry = self.entries.get(shard)
        if entry is not None and mark in entry.accepted:
            logger.warning("%s (accepted)", harm)
            return
        logger.error("stopped: %s", harm)
        if partition is not None:
            self.partition_harm.setdefault(partition, harm)
            self.folds.pop(partition, None)
        else:
            self.shard_harm.setdefault(shard, harm)
            for number in [number for number in self.folds if shard_of(number) == shard]:
                del self.folds[number]


async def replay_log(
    disk: Disk, files: SegmentFiles, entry: LogEntry, present: set[str], replay: Replay
) -> LogEnd | None:
    """Fold a log's records from its floor to its end; None if it was never begun.

    Raises :class:`JournalDamaged`, unless that was accepted.
    """
    chained = replay.chained(entry.log_id)
    if folder_of(entry) not in present:
        if entry.state == "sealed" and entry.sealed_seq and not entry.accepted:
            raise JournalDamaged(entry.log_id, f"the folder {files.root}/{folder_of(entry)} is missing")
        return None
    known = max((from_seq - 1 for from_seq in chained.values()), default=0)
    scan = Scan(
        disk,
        files.directory(entry.log_id),
        entry.log_id,
        from_segment=entry.floor_segment,
        from_seq=entry.floor_seq,
        known_seq=max(known, entry.floor_seq - 1),
        sealed_seq=entry.sealed_seq if entry.state == "sealed" else None,
    )
    async for row in scan.rows():
        replay.apply_row(entry.log_id, row, chained)
    if scan.end.torn is not None:
        logger.warning("the end of a log was torn: %s", scan.end.torn)
    for damage in scan.end.damage:
        logger.error("journal damage: %s", damage)
    if scan.end.severe and not entry.accepted:
        raise JournalDamaged(entry.log_id, "; ".join(str(damage) for damage in scan.end.damage))
    return scan.end


def folder_of(entry: LogEntry) -> str:
    """Name of the folder that a log's files are in."""
    return f"{entry.node}-{entry.incarnation}"
