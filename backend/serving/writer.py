"""Writes of an incarnation: a record is appended to the log and applied to its partition's fold at once.

Rows become durable in order, so everything appended so far is durable when the row being filled is durable.  If the log
has no space, nothing is applied, and the command is decided again when there is space
(:meth:`PartitionWriter.with_space`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, Protocol, TypeVar

from backend.api import PartitionGone, StorageFull
from backend.engine.records import Purged, Record, encode_head
from backend.journal.interface import Log
from backend.journal.rows import encode_record
from backend.serving.background import Tasks
from backend.serving.partition import OpenPartition
from backend.serving.payload_cache import PayloadCache
from backend.serving.shards import Shard
from backend.serving.wakeups import Wakeups
from telemetry import traces

A = TypeVar("A")
T = TypeVar("T")

COMMIT = "journal.commit"
"""Name of the span in which a sampled call waits for durability."""


class SpaceNeeded(StorageFull):
    """The log has no space for the records of a decision now; none was written."""

    def __init__(self, full: StorageFull, size_bytes: int, reserve: bool = False) -> None:
        """``size_bytes``: upper bound on the bytes of the records; ``reserve``: they may use reserved space."""
        super().__init__(*full.args)
        self.size_bytes = size_bytes
        self.reserve = reserve


class AnyRecord(Protocol):
    """A record of a queue, a stream or a group."""

    KIND: ClassVar[int]


class Writable(Protocol):
    """An open partition, as far as a write needs it."""

    id: int
    shard: int
    epoch: int
    fold: Any
    """The state that the records are applied to."""


class PartitionWriter:
    """Writes the records of an incarnation's partitions."""

    def __init__(self, log: Log, payload_cache: PayloadCache, wakeups: Wakeups, tasks: Tasks) -> None:
        self._log = log
        self._payload_cache = payload_cache
        self._wakeups = wakeups
        self._tasks = tasks
        self._is_durable = asyncio.get_running_loop().create_future()
        """Done."""
        self._is_durable.set_result(None)

    def write(
        self, partition: Writable, record: AnyRecord, now: int, body: bytes = b"", *, reserve: bool = True
    ) -> None:
        """Append one record and apply it.  Raises :class:`StorageFull` or :class:`Unavailable`, having changed nothing.

        Never raises them after :meth:`check_space` has accepted its size.
        """
        data = encode_record(
            record.KIND, partition.shard, partition.id, partition.epoch, now, encode_head(record), body
        )
        position = self._log.append(data, reserve=reserve)
        try:
            partition.fold.apply(record, now, position, len(body))
        # It is in the log, and perhaps half applied in memory.
        except Exception as error:
            self._tasks.failed(f"a record of partition {partition.id}", error)
            raise

    def write_records(self, partition: Writable, written: Sequence[AnyRecord], now: int) -> None:
        """Append and apply records without a body, all or none.  Raises :class:`SpaceNeeded` or
        :class:`Unavailable`.
        """
        try:
            if len(written) > 1:
                self._log.check_space(_size_of(written), True)
            for record in written:
                self.write(partition, record, now)
        except StorageFull as full:
            raise SpaceNeeded(full, _size_of(written), True) from None

    def append(self, shard: Shard, partition: int, record: AnyRecord) -> int:
        """Append a record of a partition that is not open, which is known to fit; return its time."""
        now = shard.clock()
        data = encode_record(record.KIND, shard.number, partition, shard.epoch, now, encode_head(record))
        self._log.append(data, reserve=True)
        return now

    # --- space ------------------------------------------------------------------------------------------

    def check_space(self, size_bytes: int, reserve: bool = False) -> None:
        """Check like :meth:`backend.journal.interface.Log.check_space`, raising :class:`SpaceNeeded`."""
        try:
            self._log.check_space(size_bytes, reserve)
        except StorageFull as full:
            raise SpaceNeeded(full, size_bytes, reserve) from None

    async def with_space(self, decide: Callable[[A], T], argument: A) -> T:
        """Call ``decide``, which writes its decision; after each wait for space, call it again."""
        while True:
            try:
                return decide(argument)
            except SpaceNeeded as needed:
                # The next segment may be in allocation.
                await self._log.wait_for_space(needed.size_bytes, needed.reserve)

    # --- durability -------------------------------------------------------------------------------------

    async def write_all(self, partition: OpenPartition, decide: Callable[[int], Sequence[Record]]) -> None:
        """Append and apply records without a body, all or none, and wait until they are durable.

        ``decide`` returns the records for a given time; it is called again after a wait for space.  Raises
        :class:`PartitionGone` when the partition has been dropped: nothing may follow that record.
        """

        def write(partition: OpenPartition) -> None:
            partition.check_open()
            if partition.fold.dropped:
                raise PartitionGone(f"the queue of partition {partition.id} was deleted")
            now = partition.clock()
            written = decide(now)
            self.write_records(partition, written, now)
            if any(isinstance(record, Purged) for record in written):
                self._payload_cache.clear(partition)

        await self.with_space(write, partition)
        self._wakeups.changed(partition)
        await self.durable()

    def durable(self) -> Awaitable[None]:
        """Return an awaitable that ends when all records appended so far are durable."""
        barrier = self._log.barrier()
        if barrier is None:
            return self._is_durable
        return barrier if traces.current.get() is None else timed(barrier)


def timed(barrier: Awaitable[None]) -> Awaitable[None]:
    """Return an awaitable for ``barrier``; in a sampled call, the wait is a span."""
    span = traces.current.get()
    return barrier if span is None or span.ended else span.during(COMMIT, barrier)


def _size_of(written: Sequence[AnyRecord]) -> int:
    """Return an upper bound on the bytes of records without a body."""
    return sum(len(encode_head(record)) + 64 for record in written)
