"""A backend in memory, for tests: the engine and the commands of a node, without journal, disk and metadata."""

import asyncio
from collections.abc import AsyncIterator, Collection, Coroutine, Sequence
from typing import Any

from backend.api import SHARDS, Answer, Command, Unavailable, shard_of
from backend.clocks.node_clock import SteadyClock
from backend.clocks.shard_clock import ShardClock
from backend.extent_ids import ExtentId
from backend.incarnation import Incarnation
from backend.journal.interface import Cut
from backend.journal.rows import RecordView, decode_record, place_of, position_of
from backend.journal.types import DamagedRecord
from backend.lookups import Resolver
from backend.serving.background import Tasks
from backend.serving.shards import Shard, Shards
from metadata_service.models import ShardEntry


class MemoryLog:
    """Implements :class:`backend.journal.interface.Log`: each record is a row of its own, durable at once."""

    log_id = 1
    next_segment = 0
    unsynced_bytes = 0

    def __init__(self) -> None:
        self._records: list[bytes] = []

    @property
    def durable_seq(self) -> int:
        return len(self._records)

    @property
    def next_seq(self) -> int:
        return len(self._records) + 1

    def append(self, record: bytes, *, reserve: bool = False) -> int:
        self._records.append(record)
        return position_of(self.log_id, self.next_segment, (len(self._records) - 1) << 3)

    def check_space(self, size_bytes: int, reserve: bool = False) -> None:
        """Accept any size."""

    async def wait_for_space(self, size_bytes: int, reserve: bool = False) -> None:
        """Accept any size."""

    def fits_row(self, size_bytes: int) -> bool:
        return True

    def has_space(self) -> bool:
        return True

    def is_nearly_full(self) -> bool:
        return False

    def cut(self) -> Cut:
        return Cut(self.durable_seq, self.next_segment)

    def barrier(self) -> asyncio.Future[None] | None:
        return None

    def check_replicas(self) -> None:
        """Do nothing: there is one replica."""

    async def on_all_replicas(self, positions: Sequence[int]) -> None:
        """Do nothing: there is one replica."""

    async def read_many(self, positions: Sequence[int]) -> list[RecordView | DamagedRecord]:
        views = [decode_record(self._records[place_of(position).offset >> 3], 0) for position in positions]
        return [view for view in views if isinstance(view, RecordView)]

    async def close(self) -> None:
        """Do nothing."""


class MemoryExtents:
    """Implements :class:`backend.journal.extents.ExtentStore`."""

    def __init__(self) -> None:
        self._extents: dict[ExtentId, bytes] = {}

    async def append(self, extent: ExtentId, offset: int, data: bytes) -> None:
        assert len(self._extents.get(extent, b"")) == offset
        self._extents[extent] = self._extents.get(extent, b"") + data

    async def read(self, extent: ExtentId, size_bytes: int, offset: int) -> bytes:
        return self._extents.get(extent, b"")[offset : offset + size_bytes]

    async def delete(self, extents: Sequence[ExtentId]) -> None:
        for extent in extents:
            self._extents.pop(extent, None)

    async def list_extents(self, shards: Collection[int]) -> AsyncIterator[list[ExtentId]]:
        yield [extent for extent in self._extents if shard_of(extent.partition) in shards]


class MemoryBackend:
    """Implements :class:`backend.api.Peer`: owns all shards of a cluster from its creation to :meth:`close`."""

    def __init__(self, resolver: Resolver, clock: SteadyClock | None = None) -> None:
        self.clock = clock or SteadyClock()
        shards = Shards(self.clock)
        for number in range(SHARDS):
            shards.owned[number] = Shard(ShardEntry(number, MemoryLog.log_id, 1), ShardClock(self.clock))
        self.partitions = shards.partitions
        # No payload cache: the log is in memory.
        self._incarnation: Incarnation | None = Incarnation(
            MemoryLog(), shards, resolver, 0, Tasks(self._end), MemoryExtents()
        )
        self._error = Unavailable("")
        self._incarnation.start()

    def call(self, command: Command[Answer]) -> Coroutine[Any, Any, Answer]:
        if self._incarnation is None:
            raise self._error
        return self._incarnation.call(command)

    def drain(self) -> None:
        """End all long polls now, with empty answers."""
        if self._incarnation is not None:
            self._incarnation.drain()

    async def close(self) -> None:
        self._end(Unavailable("the node is closed"))

    def _end(self, error: BaseException) -> None:
        if self._incarnation is not None:
            incarnation, self._incarnation, self._error = self._incarnation, None, Unavailable(str(error))
            incarnation.stop(self._error)
