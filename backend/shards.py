"""The shards that a node owns: their partitions, their entries in the metadata, and what is damaged."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from zlib import crc32

from backend.api import SHARDS
from backend.engine.blocks import Ref
from backend.engine.fold import Fold
from backend.partition import Partition
from metadata_service.models import PieceRef, ShardEntry, StoppedPartition

DROPPED_KEPT = 4096


def shard_of(partition: int) -> int:
    """The shard that a partition hashes to; fixed for ever."""
    return crc32(partition.to_bytes(8, "big")) % SHARDS


class Shard:
    """One shard, as its owner holds it."""

    __slots__ = ("changed", "damage", "entry", "number", "partitions", "pieces")

    def __init__(self, entry: ShardEntry) -> None:
        self.entry = entry
        self.number = entry.shard
        self.partitions: dict[int, Partition] = {}
        self.pieces: dict[int, tuple[Ref, list[Ref]]] = {}
        """For each partition its piece in the last checkpoint, and those that hang on it."""
        self.changed = False
        """A partition came or went since the last checkpoint."""
        self.damage: str | None = None
        """Why nothing of this shard can be served."""

    @property
    def epoch(self) -> int:
        return self.entry.epoch

    @property
    def dirty(self) -> bool:
        """The last checkpoint does not say all."""
        return self.changed or any(partition.fold.changed for partition in self.partitions.values())

    def files(self) -> dict[tuple[int, int], int]:
        """(log, file) → bytes of pieces in it that the last checkpoint rests on."""
        used: dict[tuple[int, int], int] = {}
        manifests = [self.entry.checkpoint, *(one.checkpoint for one in self.entry.stopped)]
        refs: Iterable[Ref] = (ref for own, hanging in self.pieces.values() for ref in (own, *hanging))
        for log_id, file, _, length, _ in refs:
            used[log_id, file] = used.get((log_id, file), 0) + length
        for manifest in manifests:
            if manifest is None:
                continue
            key = (manifest.log_id, manifest.file)
            used[key] = used.get(key, 0) + manifest.length
        return used


class Shards:
    """All shards of a node."""

    def __init__(self, entries: Iterable[ShardEntry]) -> None:
        self.all = [Shard(entry) for entry in entries]
        assert [shard.number for shard in self.all] == list(range(SHARDS))
        self.partitions: dict[int, Partition] = {}
        self.damage: dict[int, str] = {}
        """Partition → why it cannot be served."""
        self.stopped: dict[int, StoppedPartition] = {}
        """Of these, where what is left of them lies."""
        self._dropped: OrderedDict[int, None] = OrderedDict()

    def of(self, partition: int) -> Shard:
        return self.all[shard_of(partition)]

    def add(self, fold: Fold) -> Partition:
        """Serve a partition from now on."""
        shard = self.of(fold.partition)
        partition = Partition(fold, shard.number, shard.epoch)
        self.partitions[fold.partition] = shard.partitions[fold.partition] = partition
        shard.changed = True
        return partition

    def remove(self, partition: Partition) -> None:
        shard = self.all[partition.shard]
        del self.partitions[partition.id]
        del shard.partitions[partition.id]
        shard.changed = True

    def drop(self, partition: int) -> None:
        """Remember that a partition was dropped: its number never comes again, but a caller's old view may name it."""
        self._dropped[partition] = None
        if len(self._dropped) > DROPPED_KEPT:
            self._dropped.popitem(last=False)

    def was_dropped(self, partition: int) -> bool:
        """Whether it was, of late.  What is older, the metadata have known to be gone for long."""
        return partition in self._dropped

    def stop(self, stopped: StoppedPartition, why: str) -> None:
        """A partition cannot be served, though others of its shard can."""
        self.damage[stopped.partition] = why
        self.stopped[stopped.partition] = stopped

    def forget_damage(self, partition: int) -> None:
        """Its queue was deleted, durably: what is left of it need not be kept."""
        shard = self.of(partition)
        del self.damage[partition]
        del self.stopped[partition]
        shard.pieces.pop(partition, None)
        shard.changed = True

    def damage_of(self, partition: int) -> str | None:
        """Why a partition that is not open cannot be; None if it can."""
        return self.damage.get(partition) or self.of(partition).damage


def as_ref(piece: PieceRef) -> Ref:
    return (piece.log_id, piece.file, piece.offset, piece.length, piece.crc)


def as_piece(ref: Ref) -> PieceRef:
    return PieceRef(*ref)
