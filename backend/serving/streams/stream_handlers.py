"""Handlers of the commands for streams."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from backend.api import (
    AckLevel,
    Command,
    PartitionDamaged,
    PartitionGone,
    PartitionUnknown,
    StorageFull,
    Target,
)
from backend.call_order import CallOrder
from backend.journal.interface import Log
from backend.serving.background import Slices
from backend.serving.memory_limit import Memory
from backend.serving.shards import Shards
from backend.serving.stream_partition import OpenStream
from backend.serving.streams.batch_reader import BatchReader
from backend.serving.streams.binder import Binder
from backend.serving.wakeups import Wakeups
from backend.serving.writer import PartitionWriter, SpaceNeeded
from backend.stream_api import Appended, FoundOffset, StreamRefused, StreamSettings
from backend.stream_commands import (
    AppendBatch,
    ConfigureStream,
    DeleteRecords,
    DropStream,
    FetchBatches,
    Fetched,
    FindEpochEnd,
    PartitionEnds,
    ReadStreamEnds,
    ReadTopicEnds,
    SearchTimestamp,
    StreamEnds,
    TimestampFound,
)
from backend.streams.records import StreamConfigured, StreamDropped
from backend.streams.stream import BASE_OFFSET, StreamFold

logger = logging.getLogger(__name__)

UNSYNCED_BYTES_MAX = 8 << 20
"""Above this many unsynced bytes, LEADER and NONE appends also wait for durability."""
RECORD_BYTES = 8192
"""Upper bound on the bytes of a record that creates or drops a partition."""
BATCH_OVERHEAD_BYTES = 256
"""Upper bound on the bytes of a batch's record, without its payload."""


class StreamHandlers:
    """Runs the commands for streams on the partitions of an incarnation."""

    def __init__(
        self,
        log: Log,
        shards: Shards,
        writer: PartitionWriter,
        wakeups: Wakeups,
        memory: Memory,
        reader: BatchReader,
        binder: Binder,
    ) -> None:
        self._log = log
        self._shards = shards
        self._writer = writer
        self._wakeups = wakeups
        self._memory = memory
        self._reader = reader
        self._binder = binder
        self._loop = asyncio.get_running_loop()
        self._order = CallOrder()
        """Order of the appends that wait for space."""
        self.handlers: Mapping[type[Command[Any]], Callable[[Any], Coroutine[Any, Any, Any]]] = {
            ConfigureStream: self.configure,
            DropStream: self.drop,
            AppendBatch: self.append,
            FetchBatches: self.fetch,
            ReadStreamEnds: self.read_ends,
            ReadTopicEnds: self.read_topic_ends,
            SearchTimestamp: self.search,
            FindEpochEnd: self.find_epoch_end,
            DeleteRecords: self.delete_records,
        }

    def _find(self, target: Target) -> OpenStream:
        stream = self._shards.streams.get(target.partition)
        if stream is None:
            damage = self._shards.damage_of(target.partition)
            if damage is not None:
                raise PartitionDamaged(damage)
            raise PartitionUnknown(f"partition {target.partition} is not open")
        if not isinstance(stream, OpenStream):
            raise PartitionGone(f"partition {target.partition} is a consumer group")
        stream.check(target)
        return stream

    # --- append -----------------------------------------------------------------------------------------

    async def append(self, command: AppendBatch) -> Appended:
        try:
            stream, answer = await self._append_in_order(command)
        except StreamRefused:
            await self._writer.durable()  # it may depend on a batch that is not durable yet
            raise
        level = stream.fold.ack_level if command.level is None else command.level
        if level is AckLevel.QUORUM:
            await self._writer.durable()
        elif level is AckLevel.ALL:
            await self._log.on_all_replicas(self._positions(stream, answer))
        elif self._log.unsynced_bytes > UNSYNCED_BYTES_MAX:
            await self._writer.durable()
        return answer

    async def _append_in_order(self, command: AppendBatch) -> tuple[OpenStream, Appended]:
        """Append the batch; a shorter one does not overtake a batch that waits for space."""
        partition = command.partition
        if not self._order.is_busy(partition):
            try:
                return self._append(command)
            except SpaceNeeded:
                pass
        with self._order.turn(partition) as turn:
            await turn.hold()
            if turn.is_after_failure and command.needs_earlier:
                raise StorageFull("an earlier batch for the partition was refused for lack of space")
            try:
                return await self._writer.with_space(self._append, command)
            except StorageFull:
                turn.fail_later()
                raise

    def _append(self, command: AppendBatch) -> tuple[OpenStream, Appended]:
        """Append the batch; return its partition and the answer.  Raises :class:`SpaceNeeded`."""
        stream = self._find(command.target)
        now = stream.clock()
        record, answer = stream.commands.append(command.batch, now)
        if record is None:
            return stream, answer
        if self._memory.full:
            raise self._memory.refusal()
        if (stream.fold.ack_level if command.level is None else command.level) is AckLevel.ALL:
            self._log.check_replicas()
        payload = command.batch.payload
        try:
            self._writer.write(stream, record, now, payload, reserve=False)
        except StorageFull as full:
            raise SpaceNeeded(full, len(payload) + BATCH_OVERHEAD_BYTES) from None
        stream.appended(self._log.next_seq)
        self._binder.watch(stream)
        if stream.waiters:
            self._wake_when_durable(stream)
        return stream, answer

    def _positions(self, stream: OpenStream, answer: Appended) -> list[int]:
        """Return the position of an appended batch, unless it is in an extent, which no replica lacks."""
        fold = stream.fold
        index = fold.tail.count_below(BASE_OFFSET, answer.base_offset) - 1
        return [fold.tail_line(index).position] if index >= 0 else []

    def _wake_when_durable(self, stream: OpenStream) -> None:
        """Let the waiting fetches check again when all batches appended so far are durable."""
        seq = stream.undurable[-1][0]
        if stream.notified_seq == seq:
            return
        barrier = self._log.barrier()
        if barrier is None:
            stream.durable(stream.fold.next_offset)
            return
        stream.notified_seq = seq
        barrier.add_done_callback(partial(_on_durable, stream, stream.fold.next_offset))

    # --- fetch ------------------------------------------------------------------------------------------

    async def fetch(self, command: FetchBatches) -> Fetched:
        deadline = self._loop.time() + command.wait_seconds if command.wait_seconds else 0.0
        while True:
            stream = self._find(command.target)
            try:
                stream.commands.check_epoch(command.epoch)
                until = self._until(stream)
                if command.offset >= until:
                    stream.commands.fetch(command.offset, command.bytes_max, until)  # refuses what is never there
                batches = await self._reader.fetch(
                    stream, command.offset, command.bytes_max, until, at_least_one=command.at_least_one
                )
            except StreamRefused:
                await self._writer.durable()  # a former owner does not know the current offsets
                raise
            remaining = deadline - self._loop.time() if deadline else 0.0
            if batches or command.offset < until or remaining <= 0 or self._wakeups.draining:
                if batches:  # an extent may have got further batches meanwhile, which are durable
                    until = max(until, batches[-1].end_offset)
                return Fetched(batches, until, stream.fold.log_start)
            await self._wait(stream, remaining)

    def _until(self, stream: OpenStream) -> int:
        """Return the end of the last durable batch."""
        until = stream.until(self._log.durable_seq)
        if stream.undurable and self._log.barrier() is None:
            stream.durable(stream.fold.next_offset)
            return stream.durable_end
        return until

    async def _wait(self, stream: OpenStream, seconds: float) -> None:
        """Wait until a batch is durable or the time is over."""
        waiter = self._loop.create_future()
        stream.waiters.add(waiter)
        if stream.undurable:
            self._wake_when_durable(stream)
        timeout = self._loop.call_later(seconds, _end_wait, waiter)
        try:
            await waiter
        finally:
            timeout.cancel()
            stream.waiters.discard(waiter)

    # --- offsets ----------------------------------------------------------------------------------------

    async def read_ends(self, command: ReadStreamEnds) -> StreamEnds:
        stream = self._find(command.target)
        try:
            stream.commands.check_epoch(command.epoch)
        finally:
            await self._writer.durable()
        until = self._until(stream)
        return StreamEnds(stream.commands.earliest(), stream.commands.latest(until), stream.fold.stored_bytes)

    async def read_topic_ends(self, command: ReadTopicEnds) -> list[PartitionEnds]:
        wanted = frozenset(command.topic_ids)
        slices = Slices()
        found = []
        for stream in [stream for stream in self._shards.streams.values() if isinstance(stream, OpenStream)]:
            fold = stream.fold
            if fold.settings is not None and fold.settings.topic_id in wanted and not fold.dropped:
                ends = PartitionEnds(fold.settings.topic_id, fold.settings.number, fold.log_start, fold.next_offset)
                found.append(ends)
            await slices.step()
        await self._writer.durable()
        return found

    async def search(self, command: SearchTimestamp) -> TimestampFound | None:
        stream = self._find(command.target)
        try:
            stream.commands.check_epoch(command.epoch)
        finally:
            await self._writer.durable()
        return await self._reader.search(stream, command.timestamp, command.from_offset, self._until(stream))

    async def find_epoch_end(self, command: FindEpochEnd) -> FoundOffset:
        stream = self._find(command.target)
        try:
            stream.commands.check_epoch(command.current_epoch)
            found = stream.commands.epoch_end(command.epoch)
        finally:
            await self._writer.durable()
        return found

    async def delete_records(self, command: DeleteRecords) -> int:
        def delete(command: DeleteRecords) -> int:
            stream = self._find(command.target)
            written, log_start = stream.commands.delete_records(command.before, self._until(stream))
            self._writer.write_records(stream, written, stream.clock())
            return log_start

        try:
            log_start = await self._writer.with_space(delete, command)
        finally:
            await self._writer.durable()
        return log_start

    # --- the partition as a whole -------------------------------------------------------------------------

    async def configure(self, command: ConfigureStream) -> None:
        settings = command.settings
        if settings.partition not in self._shards.streams:
            damage = self._shards.damage_of(settings.partition)
            if damage is not None:
                raise PartitionDamaged(damage)
            await self._log.wait_for_space(RECORD_BYTES, True)
        if self._shards.was_dropped(settings.partition):
            raise PartitionGone(f"the topic of partition {settings.partition} was deleted")
        await self._writer.with_space(self._configure, settings)
        await self._writer.durable()

    def _configure(self, settings: StreamSettings) -> None:
        stream = self._shards.streams.get(settings.partition)
        if stream is None:
            shard = self._shards.of(settings.partition)
            fold = StreamFold(settings.partition)
            fold.open(shard.epoch)
            record = StreamConfigured(settings)
            fold.apply(record, self._writer.append(shard, fold.partition, record))
            opened = self._shards.add_stream(fold)
            assert isinstance(opened, OpenStream)
            opened.is_first_owner = True
            return
        known = stream.fold.settings
        if not isinstance(stream, OpenStream) or not isinstance(known, StreamSettings):
            raise PartitionGone(f"partition {settings.partition} is a consumer group")
        if known.stream_id != settings.stream_id or stream.fold.dropped:
            raise PartitionGone(f"partition {settings.partition} is of another topic")
        self._writer.write_records(stream, stream.commands.configure(settings), stream.clock())

    async def drop(self, command: DropStream) -> None:
        target = command.target
        await self._log.wait_for_space(RECORD_BYTES, True)
        stream = self._shards.streams.get(target.partition)
        if isinstance(stream, OpenStream):
            settings = stream.fold.settings
            assert settings is not None
            if settings.stream_id == target.queue_id and not stream.fold.dropped:
                self._writer.write(stream, StreamDropped(target.queue_id), stream.clock())
                stream.end_waits(PartitionGone(f"the topic of partition {stream.id} was deleted"))
                self._shards.drop(stream.id)
                # Extents are listed in the fold until a checkpoint is published; then they are deleted.
                if not stream.fold.released:
                    self._shards.remove_stream(stream)
        elif stream is None:
            shard = self._shards.of(target.partition)
            if target.partition in self._shards.damage:
                self._writer.append(shard, target.partition, StreamDropped(target.queue_id))
                logger.warning("the topic of partition %d was deleted, and the damaged data", target.partition)
                self._shards.forget_damage(target.partition)
            self._shards.drop(target.partition)
        await self._writer.durable()


def _on_durable(stream: OpenStream, end: int, barrier: asyncio.Future[None]) -> None:
    """Wake the waiting fetches; if the log has failed, the end of the incarnation ends them."""
    if not barrier.cancelled() and barrier.exception() is None:
        stream.durable(end)


def _end_wait(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
