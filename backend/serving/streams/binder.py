"""The binder of a node: moves batches of streams from the log into extents, and applies the retention.

It works one bind at a time, so that it takes little from the commits.  A bind that fails is repeated later, into
another extent; until then the batches stay in the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from backend import instruments
from backend.api import BackendError, StorageFull, Unavailable
from backend.extent_ids import ExtentId
from backend.journal.extents import ExtentStore
from backend.journal.interface import Log
from backend.journal.rows import RecordView, segment_key
from backend.serving.background import LogThrottle, Slices
from backend.serving.shards import Shards
from backend.serving.stream_partition import OpenStream, StreamPartition
from backend.serving.streams.batch_reader import batch_in, damage_in
from backend.serving.writer import PartitionWriter
from backend.stream_api import NO_TIMESTAMP
from backend.streams import binding
from backend.streams.binding import BindPlan
from backend.streams.commands import LogPlace
from backend.streams.extents import ExtentBatch, ExtentWriter
from backend.streams.records import Batches
from backend.streams.stream import TailLine

logger = logging.getLogger(__name__)

CHECK_SECONDS: Final = 1.0
BINDS_MAX: Final = 64
"""Binds of one stream in each turn, so that a busy one does not keep others from theirs."""
RETENTION_SECONDS: Final = 30.0
"""Interval in which the retention of all streams is checked."""


READ_BYTES: Final = 1 << 20
READ_BATCHES: Final = 200
"""Size and number of the batches that a bind reads together: other tasks run in between."""


class _Bind(NamedTuple):
    """A bind whose bytes are synced."""

    stream: OpenStream
    plan: BindPlan
    length: int
    lost: int


class Binder:
    """The binder of one incarnation."""

    def __init__(self, log: Log, shards: Shards, writer: PartitionWriter, store: ExtentStore) -> None:
        self._log = log
        self._shards = shards
        self._writer = writer
        self._store = store
        self._in_log: dict[int, OpenStream] = {}
        """Streams that may have batches in the log."""
        self._abandoned: list[ExtentId] = []
        """Extents that no record names, and nobody writes any more."""
        self._searched: dict[int, int] = {}
        """Epochs of the shards whose orphans were found since this owner opened them, by the shard's number."""
        self._trim_at = 0.0
        self._log_throttle = LogThrottle()

    def watch(self, stream: OpenStream) -> None:
        """Bind the stream's batches when they are due."""
        self._in_log[stream.id] = stream

    def opened(self, streams: Iterable[StreamPartition]) -> None:
        """Take over streams that have just been opened."""
        for stream in streams:
            if isinstance(stream, OpenStream):
                self.watch(stream)

    async def run(self) -> None:
        """Bind, trim and delete for as long as the node serves."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            await self.turn()

    async def turn(self) -> None:
        """Do what is due now."""
        await self._bind_due()
        now = asyncio.get_running_loop().time()
        if now >= self._trim_at:
            self._trim_at = now + RETENTION_SECONDS
            await self.trim()
        try:
            await self._delete()
            self._log_throttle.forget("delete")
        except Unavailable as error:
            if self._log_throttle.should_log("delete", str(error)):
                logger.warning("unused extents cannot be deleted now: %s", error)

    # --- bind -------------------------------------------------------------------------------------------

    async def _bind_due(self) -> None:
        slices = Slices()
        for stream in list(self._in_log.values()):
            try:
                for _ in range(BINDS_MAX):
                    if not self._is_due(stream):
                        break
                    await self._bind(stream)
                self._log_throttle.forget(stream.id)
            except BackendError as error:
                if self._log_throttle.should_log(stream.id, str(error)):
                    logger.warning("batches of partition %d stay in the log for now: %s", stream.id, error)
            if not self._is_served(stream) or not len(stream.fold.tail):
                self._in_log.pop(stream.id, None)
            await slices.step()

    def _is_served(self, stream: OpenStream) -> bool:
        return self._shards.streams.get(stream.id) is stream

    def _is_due(self, stream: OpenStream) -> bool:
        segment = segment_key(self._log.log_id, self._log.next_segment)
        return self._is_served(stream) and stream.binder.is_due(segment, stream.until(self._log.durable_seq))

    async def _bind(self, stream: OpenStream) -> None:
        """Move batches into an extent.  Raises :class:`StorageFull` and :class:`Unavailable`."""
        plan = stream.binder.plan(stream.until(self._log.durable_seq))
        assert plan is not None, "it is due"
        try:
            writer = self._writer_of(stream, plan)
            slices = Slices()
            lost = 0
            async for batch in self._read(stream, plan):
                writer.add(batch)
                lost += batch.payload is None
                await slices.step()
            await self._store.append(plan.extent, plan.length, writer.finish())
            await self._writer.with_space(self._record, _Bind(stream, plan, writer.length, lost))
        except BaseException:
            stream.binder.abandon(plan)
            stream.extent_writer = None
            raise
        finally:
            self._abandoned += stream.binder.abandoned
            stream.binder.abandoned.clear()

    async def _read(self, stream: OpenStream, plan: BindPlan) -> AsyncIterator[ExtentBatch]:
        """Yield the planned batches, without the payloads that are lost."""
        lines = iter([stream.fold.tail_line(index) for index in range(len(plan.batches))])
        for places in _groups(plan.batches):
            views = await self._log.read_many([place.position for place in places])
            for place, view in zip(places, views, strict=True):
                line = next(lines)
                record = batch_in(stream, place, view)
                if record is not None and isinstance(view, RecordView):
                    yield ExtentBatch(record, view.body, view.time_ms, view.key_id)
                    continue
                if stream.closed or stream.fold.tail_base > place.base_offset:
                    raise Unavailable("its batches were deleted while they were read")
                logger.error("offset %d of partition %d is lost: %s", place.base_offset, stream.id, damage_in(view))
                yield ExtentBatch(_head_of(stream, line, place.end_offset), None, line.time_ms)

    def _writer_of(self, stream: OpenStream, plan: BindPlan) -> ExtentWriter:
        if plan.is_new:
            first = plan.batches[0].base_offset
            stream.extent_writer = ExtentWriter(plan.extent, first, stream.clock())
        writer = stream.extent_writer
        assert writer is not None, "an extent is continued by the owner that began it"
        assert (writer.extent, writer.length) == (plan.extent, plan.length), "each of its binds has succeeded"
        return writer

    def _record(self, bind: _Bind) -> None:
        """Write the record of a bind."""
        stream = bind.stream
        stream.check_open()
        written = stream.binder.bound(bind.plan, bind.length, bind.lost)
        if not written:
            stream.extent_writer = None
        self._writer.write_records(stream, written, stream.clock())
        instruments.LOST_BATCHES.add(count=bind.lost)

    # --- retention --------------------------------------------------------------------------------------

    async def trim(self) -> None:
        """Remove what the retention of the streams does not allow any more."""
        slices = Slices()
        for stream in [stream for stream in self._shards.streams.values() if isinstance(stream, OpenStream)]:
            try:
                if self._is_served(stream):
                    self._trim(stream)
                self._log_throttle.forget(("trim", stream.id))
            except (StorageFull, Unavailable) as error:
                if self._log_throttle.should_log(("trim", stream.id), str(error)):
                    logger.warning("partition %d keeps old batches for now: %s", stream.id, error)
            await slices.step()

    def _trim(self, stream: OpenStream) -> None:
        now = stream.clock()
        stream.fold.advance(now)
        written = binding.trim(stream.fold, stream.fold.now, stream.until(self._log.durable_seq))
        self._writer.write_records(stream, written, now)

    # --- unused extents -----------------------------------------------------------------------------------

    async def _delete(self) -> None:
        """Delete extents that nothing names and nothing will name."""
        opened = {number: shard.epoch for number, shard in self._shards.owned.items() if not shard.leaving}
        if opened.items() - self._searched.items():
            new = [number for number, epoch in opened.items() if self._searched.get(number) != epoch]
            async for extents in self._store.list_extents(new):
                found = self._orphans(extents)
                if found:
                    logger.info("%d extents of former owners, which no record names, are deleted", len(found))
                await self._store.delete(found)
            self._searched = opened
        if self._abandoned:
            await self._store.delete(self._abandoned)
            self._abandoned.clear()

    def _orphans(self, found: Iterable[ExtentId]) -> list[ExtentId]:
        """Return those of the stored extents that belong to shards served here, and that no record names."""
        by_partition: dict[int, list[ExtentId]] = {}
        for extent in found:
            by_partition.setdefault(extent.partition, []).append(extent)
        orphans: list[ExtentId] = []
        for partition, extents in by_partition.items():
            stream = self._shards.streams.get(partition)
            if isinstance(stream, OpenStream):
                orphans += binding.orphans(stream.fold, extents)
            elif stream is None and self._shards.owns(partition) and self._shards.damage_of(partition) is None:
                # The topic was deleted, and the last owner ended before the extents were.
                epoch = self._shards.of(partition).epoch
                orphans += [extent for extent in extents if extent.epoch < epoch]
        return orphans


def _groups(places: Sequence[LogPlace]) -> Iterator[list[LogPlace]]:
    """Split the batches of a bind into parts that are read together."""
    group: list[LogPlace] = []
    group_bytes = 0
    for place in places:
        group.append(place)
        group_bytes += place.size_bytes
        if group_bytes >= READ_BYTES or len(group) == READ_BATCHES:
            yield group
            group, group_bytes = [], 0
    if group:
        yield group


def _head_of(stream: OpenStream, line: TailLine, end_offset: int) -> Batches:
    """Return a head for a batch whose record cannot be read, as far as the fold knows it."""
    return Batches(
        line.base_offset,
        end_offset - line.base_offset,
        stream.fold.epoch_at(line.base_offset),
        NO_TIMESTAMP,
        line.max_timestamp,
    )
