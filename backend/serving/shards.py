"""The shards that a node owns: their partitions, their entries in the metadata, and their damage.

A call for a partition of any other shard raises :class:`~backend.api.NotOwner`, with the owner's name as far as it is
known.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from backend.api import NotOwner, shard_of
from backend.clocks.node_clock import SteadyClock
from backend.clocks.shard_clock import Former, ShardClock
from backend.engine.blocks import Ref
from backend.engine.fold import Fold
from backend.engine.timers import NEVER
from backend.serving.partition import OpenPartition
from backend.serving.stream_partition import OpenGroup, OpenStream, StreamPartition
from backend.streams.snapshot import AnyFold
from backend.streams.stream import StreamFold
from metadata_service.models import ChunkRef, ShardEntry, StoppedPartition, cluster_of

logger = logging.getLogger(__name__)

DROPPED_KEPT = 4096

ChunkRefs = dict[int, tuple[Ref, list[Ref]]]
"""By partition: the reference to its own chunk in a checkpoint, and the references in that chunk."""

ShardTime = Callable[[int, Former, float], float]
"""Returns the time at which a shard continues, from the shard, its journaled times and its new owner's clock."""


def owners_time(shard: int, former: Former, time_ms: float) -> float:
    """Return the new owner's time: nothing is known about the clocks of former owners."""
    return time_ms


class Recovered(Protocol):
    """State of shards as a replay has folded it (:class:`backend.recovery.replay.Replay`)."""

    folds: dict[int, Fold]
    streams: dict[int, AnyFold]
    chunks: dict[int, ChunkRefs]

    @property
    def partition_damage(self) -> Mapping[int, object]: ...

    @property
    def shard_damage(self) -> Mapping[int, object]: ...

    def former(self, shard: int) -> Former:
        """Return the last known time of a shard."""

    def still_stopped(self) -> list[StoppedPartition]:
        """Return the partitions that are not served because their data is damaged."""


class Shard:
    """One shard, as its owner holds it."""

    __slots__ = ("changed", "chunks", "clock", "damage", "entry", "leaving", "number", "partitions", "streams")

    def __init__(self, entry: ShardEntry, clock: ShardClock) -> None:
        self.entry = entry
        self.number = entry.shard
        self.clock = clock
        self.partitions: dict[int, OpenPartition] = {}
        """Partitions of queues."""
        self.streams: dict[int, StreamPartition] = {}
        """Partitions of topics, and groups."""
        self.chunks: ChunkRefs = {}
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
        return (
            self.changed
            or any(partition.fold.changed for partition in self.partitions.values())
            or any(stream.fold.changed for stream in self.streams.values())
        )

    @property
    def has_released(self) -> bool:
        """True if extents wait for their deletion, which follows a checkpoint."""
        return any(isinstance(stream, OpenStream) and stream.fold.released for stream in self.streams.values())

    @property
    def blocks(self) -> int:
        """Number of its blocks of messages, and of similar chunks of streams and groups."""
        queues = sum(len(partition.fold.blocks) for partition in self.partitions.values())
        return queues + sum(stream.blocks for stream in self.streams.values())

    def files(self) -> dict[tuple[int, int], int]:
        """Return (log, file) → bytes of the chunks in it that the last checkpoint needs."""
        return chunk_files(self.entry, self.chunks)


def chunk_files(entry: ShardEntry, chunks: ChunkRefs) -> dict[tuple[int, int], int]:
    """Return (log, file) → bytes of the chunks in it that a shard's checkpoint needs."""
    used: dict[tuple[int, int], int] = {}
    manifests = [entry.checkpoint, *(one.checkpoint for one in entry.stopped)]
    refs: Iterable[Ref] = (ref for own, referenced in chunks.values() for ref in (own, *referenced))
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
        """Served partitions of queues, by id."""
        self.streams: dict[int, StreamPartition] = {}
        """Served partitions of topics, and groups, by id."""
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

    def add_stream(self, fold: AnyFold) -> StreamPartition:
        """Start serving a partition of a topic, or a group."""
        shard = self.of(fold.partition)
        opened: StreamPartition
        if isinstance(fold, StreamFold):
            opened = OpenStream(fold, shard.number, shard.epoch, shard.clock)
        else:
            opened = OpenGroup(fold, shard.number, shard.epoch, shard.clock)
        self.streams[fold.partition] = shard.streams[fold.partition] = opened
        shard.changed = True
        return opened

    def open(
        self, entries: Iterable[ShardEntry], replay: Recovered, time_ms: ShardTime
    ) -> tuple[list[OpenPartition], list[StreamPartition]]:
        """Own these shards in the state folded by ``replay``; serve their partitions and return these.

        Their time continues as ``time_ms`` returns, but not before the last journaled time.  Damage is logged only
        here: a node that folds shards which another node now owns may miss data that the owner has deleted.
        """
        opened, streams = [], []
        for entry in entries:
            former, now_ms = replay.former(entry.shard), self.clock.exact_ms()
            # In a shard without any data, nothing can end early.
            goes_on_ms = max(time_ms(entry.shard, former, now_ms), former.time_ms) if former.time_ms else now_ms
            shard = self.owned[entry.shard] = Shard(entry, ShardClock(self.clock, goes_on_ms))
            if entry.shard in replay.shard_damage:
                shard.damage = str(replay.shard_damage[entry.shard])
                logger.error("stopped: %s", shard.damage)
            shard.chunks = replay.chunks.get(entry.shard, {})
        for stopped in replay.still_stopped():
            if self.owns(stopped.partition):
                self.stop(stopped, str(replay.partition_damage[stopped.partition]))
                logger.error("stopped: %s", self.damage[stopped.partition])
        for fold in replay.folds.values():
            if self.owns(fold.partition):
                shard = self.of(fold.partition)
                fold.advance(shard.clock())
                fold.open(shard.epoch)
                opened.append(self.add(fold))
        for stream in replay.streams.values():
            if self.owns(stream.partition):
                shard = self.of(stream.partition)
                stream.advance(shard.clock())
                stream.open(shard.epoch)
                streams.append(self.add_stream(stream))
        return opened, streams

    def remove(self, partition: OpenPartition) -> None:
        shard = self.owned[partition.shard]
        del self.partitions[partition.id]
        del shard.partitions[partition.id]
        shard.changed = True

    def remove_stream(self, stream: StreamPartition) -> None:
        shard = self.owned[stream.shard]
        del self.streams[stream.id]
        del shard.streams[stream.id]
        shard.changed = True

    # --- shards in hand-over ----------------------------------------------------------------------------

    def close(self, shard: Shard) -> tuple[list[OpenPartition], list[StreamPartition]]:
        """Stop serving a shard for its hand-over.  Returns its partitions."""
        shard.leaving = True
        for stream in shard.streams.values():
            stream.closed = True
            del self.streams[stream.id]
        for partition in shard.partitions.values():
            partition.closed = True
            del self.partitions[partition.id]
        return list(shard.partitions.values()), list(shard.streams.values())

    def reopen(self, shard: Shard) -> tuple[list[OpenPartition], list[StreamPartition]]:
        """Serve a shard again whose hand-over failed.  Returns its partitions."""
        shard.leaving = False
        for stream in shard.streams.values():
            stream.closed = False
            self.streams[stream.id] = stream
        for partition in shard.partitions.values():
            partition.closed = False
            partition.wakeup_ms = NEVER  # it may have fired meanwhile
            self.partitions[partition.id] = partition
        return list(shard.partitions.values()), list(shard.streams.values())

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
        shard.chunks.pop(partition, None)
        shard.changed = True

    def damage_of(self, partition: int) -> str | None:
        """Return the damage that stops a partition that is not open; None: none.  Raises :class:`NotOwner`."""
        shard = self.of(partition)
        return self.damage.get(partition) or shard.damage


def as_ref(chunk: ChunkRef) -> Ref:
    return (chunk.log_id, chunk.file, chunk.offset, chunk.length, chunk.crc)


def as_chunk_ref(ref: Ref) -> ChunkRef:
    return ChunkRef(*ref)
