"""The shards that a node owns: their partitions, their entries in the metadata, and their damage.

A call for a partition of any other shard raises :class:`~backend.api.NotOwner`, with the owner's name as far as it is
known.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol
from zlib import crc32

from backend.api import SHARDS, NotOwner
from backend.engine.blocks import Ref
from backend.engine.fold import Fold
from backend.engine.timers import NEVER
from backend.serving.node_clock import SteadyClock
from backend.serving.partition import OpenPartition
from backend.serving.shard_clock import Former, ShardClock
from metadata_service.models import PieceRef, ShardEntry, StoppedPartition, cluster_of

logger = logging.getLogger(__name__)

DROPPED_KEPT = 4096

Pieces = dict[int, tuple[Ref, list[Ref]]]
"""By partition: the reference to its own chunk in a checkpoint, and the references in that chunk."""

ShardTime = Callable[[int, Former, float], float]
"""Returns the time at which a shard continues, from the shard, its journaled times and its new owner's clock."""


def owners_time(shard: int, former: Former, time_ms: float) -> float:
    """Return the new owner's time: nothing is known about the clocks of former owners."""
    return time_ms


class Recovered(Protocol):
    """State of shards as a replay has folded it (:class:`backend.recovery.replay.Replay`)."""

    folds: dict[int, Fold]
    pieces: dict[int, Pieces]

    @property
    def partition_harm(self) -> Mapping[int, object]: ...

    @property
    def shard_harm(self) -> Mapping[int, object]: ...

    def former(self, shard: int) -> Former:
        """Return the last known time of a shard."""

    def still_stopped(self) -> list[StoppedPartition]:
        """Return the partitions that are not served because their data is damaged."""


def shard_of(partition: int) -> int:
    """Return the shard that a partition hashes to; fixed for ever."""
    return crc32(partition.to_bytes(8, "big")) % SHARDS


class Shard:
    """One shard, as its owner holds it."""

    __slots__ = ("changed", "clock", "damage", "entry", "leaving", "number", "partitions", "pieces")

    def __init__(self, entry: ShardEntry, clock: ShardClock) -> None:
        self.entry = entry
        self.number = entry.shard
        self.clock = clock
        self.partitions: dict[int, OpenPartition] = {}
        self.pieces: Pieces = {}
        """References to the chunks of the last checkpoint."""
        self.changed = False
        """True if a partition was added or removed since the last checkpoint."""
        self.leaving = False
        """True during its hand-over: no partition of it is served."""
        self.damage: str | None = None
        """Damage that stops the whole shard; None: it is served."""

    @property
    def epoch(self) -> int:
        return self.entry.epoch

    @property
    def dirty(self) -> bool:
        """True if the state has changed since the last checkpoint."""
        return self.changed or any(partition.fold.changed for partition in self.partitions.values())

    @property
    def blocks(self) -> int:
        """Number of its blocks of messages."""
        return sum(len(partition.fold.blocks) for partition in self.partitions.values())

    def files(self) -> dict[tuple[int, int], int]:
        """Return (log, file) → bytes of the chunks in it that the last checkpoint needs."""
        return piece_files(self.entry, self.pieces)


def piece_files(entry: ShardEntry, pieces: Pieces) -> dict[tuple[int, int], int]:
    """Return (log, file) → bytes of the chunks in it that a shard's checkpoint needs."""
    used: dict[tuple[int, int], int] = {}
    manifests = [entry.checkpoint, *(one.checkpoint for one in entry.stopped)]
    refs: Iterable[Ref] = (ref for own, hanging in pieces.values() for ref in (own, *hanging))
    for log_id, file, _, length, _ in refs:
        used[log_id, file] = used.get((log_id, file), 0) + length
    for manifest in manifests:
        if manifest is None:
            continue
        key = (manifest.log_id, manifest.file)
        used[key] = used.get(key, 0) + manifest.length
    return used


class Shards:
    """All shards that a node owns."""

    def __init__(self, clock: SteadyClock, cluster: int = 0) -> None:
        self.clock = clock
        """The owner's clock."""
        self.cluster = cluster
        """Number of the backend cluster: other clusters have shards with the same numbers, and other partitions."""
        self.owned: dict[int, Shard] = {}
        self.owners: Mapping[int, str] = {}
        """Shard → name of the node that owns it, as far as known, for shards not owned here."""
        self.partitions: dict[int, OpenPartition] = {}
        """Served partitions, by id."""
        self.damage: dict[int, str] = {}
        """Stopped partition → description of its damage."""
        self.stopped: dict[int, StoppedPartition] = {}
        """Remaining data of stopped partitions."""
        self._dropped: OrderedDict[int, None] = OrderedDict()

    def of(self, partition: int) -> Shard:
        """Return the shard of a partition.  Raises :class:`NotOwner`."""
        number = shard_of(partition)
        if cluster_of(partition) != self.cluster:
            raise NotOwner(number, None)
        shard = self.owned.get(number)
        if shard is None or shard.leaving:
            raise NotOwner(number, self.owners.get(number) if shard is None else None)
        return shard

    def owns(self, partition: int) -> bool:
        shard = self.owned.get(shard_of(partition))
        return shard is not None and not shard.leaving and cluster_of(partition) == self.cluster

    def add(self, fold: Fold) -> OpenPartition:
        """Start serving a partition."""
        shard = self.of(fold.partition)
        partition = OpenPartition(fold, shard.number, shard.epoch, shard.clock)
        self.partitions[fold.partition] = shard.partitions[fold.partition] = partition
        shard.changed = True
        return partition

    def open(self, entries: Iterable[ShardEntry], replay: Recovered, time_ms: ShardTime) -> list[OpenPartition]:
        """Own these shards in the state folded by ``replay``; serve their partitions and return these.

        Their time continues as ``time_ms`` returns, but not before the last journaled time.  Damage is logged only
        here: a node that folds shards which another one owns by now may miss data that the owner has deleted.
        """
        opened = []
        for entry in entries:
            former, now_ms = replay.former(entry.shard), self.clock.exact_ms()
            # In a shard without any data, nothing can end early.
            goes_on_ms = max(time_ms(entry.shard, former, now_ms), former.time_ms) if former.time_ms else now_ms
            shard = self.owned[entry.shard] = Shard(entry, ShardClock(self.clock, goes_on_ms))
            if entry.shard in replay.shard_harm:
                shard.damage = str(replay.shard_harm[entry.shard])
                logger.error("stopped: %s", shard.damage)
            shard.pieces = replay.pieces.get(entry.shard, {})
        for stopped in replay.still_stopped():
            if self.owns(stopped.partition):
                self.stop(stopped, str(replay.partition_harm[stopped.partition]))
                logger.error("stopped: %s", self.damage[stopped.partition])
        for fold in replay.folds.values():
            if self.owns(fold.partition):
                shard = self.of(fold.partition)
                fold.advance(shard.clock())
                fold.open(shard.epoch)
                opened.append(self.add(fold))
        return opened

    def remove(self, partition: OpenPartition) -> None:
        shard = self.owned[partition.shard]
        del self.partitions[partition.id]
        del shard.partitions[partition.id]
        shard.changed = True

    # --- shards in hand-over ----------------------------------------------------------------------------

    def close(self, shard: Shard) -> list[OpenPartition]:
        """Stop serving a shard for its hand-over.  Returns its partitions."""
        shard.leaving = True
        for partition in shard.partitions.values():
            partition.closed = True
            del self.partitions[partition.id]
        return list(shard.partitions.values())

    def reopen(self, shard: Shard) -> list[OpenPartition]:
        """Serve a shard again whose hand-over failed.  Returns its partitions."""
        shard.leaving = False
        for partition in shard.partitions.values():
            partition.closed = False
            partition.alarm = NEVER  # it may have fired meanwhile
            self.partitions[partition.id] = partition
        return list(shard.partitions.values())

    def remove_shard(self, shard: Shard, owner: str | None) -> None:
        """Remove a shard that another node owns from now on."""
        del self.owned[shard.number]
        for number in [number for number in self.damage if shard_of(number) == shard.number]:
            del self.damage[number]
            self.stopped.pop(number, None)
        owners = {number: name for number, name in self.owners.items() if number != shard.number}
        self.owners = owners if owner is None else {**owners, shard.number: owner}

    # --- dropped and damaged partitions -----------------------------------------------------------------

    def drop(self, partition: int) -> None:
        """Remember that a partition was dropped: its number is never reused, but a caller with an old map may name
        it.
        """
        self._dropped[partition] = None
        if len(self._dropped) > DROPPED_KEPT:
            self._dropped.popitem(last=False)

    def was_dropped(self, partition: int) -> bool:
        """Return whether it was dropped recently.  Older drops have long been visible in the metadata."""
        return partition in self._dropped

    def stop(self, stopped: StoppedPartition, why: str) -> None:
        """Mark a partition as stopped, though others of its shard are served."""
        self.damage[stopped.partition] = why
        self.stopped[stopped.partition] = stopped

    def forget_damage(self, partition: int) -> None:
        """Forget a stopped partition whose queue was durably deleted."""
        shard = self.of(partition)
        del self.damage[partition]
        del self.stopped[partition]
        shard.pieces.pop(partition, None)
        shard.changed = True

    def damage_of(self, partition: int) -> str | None:
        """Return the damage that stops a partition that is not open; None: none.  Raises :class:`NotOwner`."""
        shard = self.of(partition)
        return self.damage.get(partition) or shard.damage


def as_ref(piece: PieceRef) -> Ref:
    return (piece.log_id, piece.file, piece.offset, piece.length, piece.crc)


def as_piece(ref: Ref) -> PieceRef:
    return PieceRef(*ref)
