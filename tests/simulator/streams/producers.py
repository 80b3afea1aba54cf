"""Clients of topics in the simulator: producers, idempotent and not, readers, and who deletes records."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from random import Random
from typing import Any, Protocol, TypeVar

from backend import api
from backend.api import AckLevel, Command, Target
from backend.rpc.connection import NotSent
from backend.stream_api import NewBatch, StreamError, StreamRefused
from backend.stream_commands import (
    AppendBatch,
    ConfigureStream,
    DeleteRecords,
    DropStream,
    FetchBatches,
    Fetched,
    FindEpochEnd,
    ReadStreamEnds,
    SearchTimestamp,
)
from metadata_service.store import StoreError
from tests.simulator.checks.model import Violation
from tests.simulator.streams.history import KEPT_BATCHES, SentBatch, StreamHistory

T = TypeVar("T")

UNKNOWN = (api.BackendError, StoreError, TimeoutError, NotSent)
"""Ends of a call after which it may or may not have taken effect."""
IN_FLIGHT_MAX = 3
"""Batches that a producer sends before it has an answer."""
LEVELS = (None, AckLevel.QUORUM, AckLevel.QUORUM, AckLevel.LEADER, AckLevel.NONE, AckLevel.ALL)


class StreamPort(Protocol):
    """Access of clients to the service, whatever it consists of."""

    async def call(self, command: Command[T]) -> T: ...

    def begin_call(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a client's call."""

    def event(self, what: str, *details: object) -> None: ...


async def opened(
    port: StreamPort, configure: Callable[[], Command[Any]], action: Callable[[], Awaitable[T]], tries: int = 6
) -> T:
    """Make a call as a frontend does: open the partition if its node does not know it."""
    for _ in range(tries):
        try:
            return await action()
        except (api.PartitionUnknown, api.SettingsStale):
            await port.call(configure())
    raise api.Unavailable("the partition cannot be opened")


async def answered(action: Callable[[], Awaitable[T]], seconds: float = 60.0) -> T:
    """Repeat a call until it is answered, when all faults have ended."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while True:
        try:
            return await action()
        except StreamRefused:
            raise
        except UNKNOWN:
            if loop.time() > until:
                raise
        await asyncio.sleep(0.2)


class Producer:
    """An idempotent producer of one partition."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.epoch = 0
        self.sequence = 0
        self.pending: list[SentBatch] = []
        """Batches without an answer, in order."""
        self.sent: list[SentBatch] = []
        """All batches of this epoch, in order."""
        self.former: SentBatch | None = None
        """The last batch of the former epoch."""

    @property
    def is_known(self) -> bool:
        """True when a batch of this epoch is stored."""
        return any(batch.acked for batch in self.sent)

    @property
    def is_full(self) -> bool:
        """True while the oldest batch without an answer would soon be too old to be recognized."""
        if not self.pending:
            return False
        if not self.is_known or len(self.pending) >= IN_FLIGHT_MAX:
            return True
        return self.pending[0] not in self.sent[1 - KEPT_BATCHES :]

    def must_take(self, batch: SentBatch) -> bool:
        """Return whether a batch is accepted if it is sent now, or recognized."""
        return batch in self.sent[-KEPT_BATCHES:] and (batch.acked or self.pending[:1] == [batch])


class StreamClients:
    """All clients of the topics of a run."""

    def __init__(self, port: StreamPort, streams: list[StreamHistory], random: Random) -> None:
        self._port = port
        self._random = random
        self.streams = streams
        self._producers: dict[int, list[Producer]] = {}
        for one in streams:
            self._add_producers(one)
        self._positions: dict[int, int] = {}
        """By partition: the offset at which its reader continues."""
        self._sent = 0
        self.bytes_max = random.choice((40, 300, 3_000))
        self.deletions = random.choice((0.0, 0.3, 2.0))
        self._actions: dict[Callable[[StreamHistory], None], float] = {
            self.produce: 30.0,
            self.produce_again: 4.0,
            self.produce_plain: 10.0,
            self.repeat: 3.0,
            self.next_epoch: 0.5,
            self.fence: 0.5,
            self.follow: 12.0,
            self.read_old: 10.0,
            self.ends: 3.0,
            self.search: 4.0,
            self.epoch_end: 1.0,
            self.delete: self.deletions,
        }

    def _add_producers(self, stream: StreamHistory) -> None:
        partition = stream.settings.partition
        self._producers[partition] = [Producer(partition * 10 + n) for n in range(self._random.choice((1, 2, 4)))]

    def replace(self, stream: StreamHistory, new: StreamHistory) -> None:
        """Delete a topic, which the metadata do not have any more, and use another one."""
        stream.is_deleted = True
        self._add_producers(new)
        self.streams[self.streams.index(stream)] = new
        self._port.begin_call(self._drop(stream))

    async def _drop(self, stream: StreamHistory) -> None:
        """Delete a topic's partition.  If the process dies, nobody asks for it again."""
        settings = stream.settings
        await answered(lambda: self._port.call(DropStream(Target(settings.partition, settings.stream_id))), 600)
        self._port.event("topic deleted", settings.partition)

    def step(self) -> None:
        """One call of one client."""
        random = self._random
        (action,) = random.choices(list(self._actions), list(self._actions.values()))
        action(random.choice(self.streams))

    def died(self) -> None:
        """Note that the process with all calls under way has died."""
        for stream in self.streams:
            for batch in stream.batches.values():
                batch.ended()

    async def _call(self, stream: StreamHistory, make: Callable[[Target], Command[T]]) -> T:
        settings = stream.settings
        target = Target(settings.partition, settings.stream_id, settings.version)

        def configure() -> ConfigureStream:
            if stream.is_deleted:
                raise api.PartitionGone("its topic was deleted")
            return ConfigureStream(settings)

        try:
            answer = await opened(self._port, configure, lambda: self._port.call(make(target)))
        except StreamRefused:
            if not stream.is_deleted:
                raise
        if stream.is_deleted:  # any answer is possible
            raise api.PartitionGone("its topic was deleted")
        return answer

    # --- producers --------------------------------------------------------------------------------------

    def _new(self, stream: StreamHistory) -> NewBatch:
        random = self._random
        self._sent += 1
        payload = b"b%07d." % self._sent + bytes([self._sent % 251]) * random.choice(
            (0, 10, random.randrange(self.bytes_max))
        )
        stamp = -1
        if random.random() < 0.8:
            stamp = max(0, stream.time_ms() + random.choice((0, 0, -1_000, random.randrange(-100_000, 1_000))))
        return NewBatch(payload, random.choice((1, 1, 2, 7, 100)), len(payload), stamp, stamp)

    def produce(self, stream: StreamHistory) -> None:
        """Send the next batch of an idempotent producer, after those that have no answer."""
        producer = self._random.choice(self._producers[stream.settings.partition])
        if producer.is_full:
            self._send_pending(stream, producer)
            return
        new = self._new(stream)
        new.producer_id, new.producer_epoch, new.base_sequence = producer.number, producer.epoch, producer.sequence
        producer.sequence += new.record_count
        batch = stream.sending(new)
        batch.calls, batch.under_way = 0, 0
        producer.pending.append(batch)
        producer.sent.append(batch)
        if all(one.under_way for one in producer.pending[:-1]):
            self._port.begin_call(self._append(stream, producer, batch))
        else:
            self._send_pending(stream, producer)

    def produce_again(self, stream: StreamHistory) -> None:
        """Repeat the batches without an answer, also those under way."""
        producer = self._random.choice(self._producers[stream.settings.partition])
        for batch in list(producer.pending):
            self._port.begin_call(self._append(stream, producer, batch))

    def _send_pending(self, stream: StreamHistory, producer: Producer) -> None:
        for batch in list(producer.pending):
            if not batch.under_way:
                self._port.begin_call(self._append(stream, producer, batch))

    def repeat(self, stream: StreamHistory) -> None:
        """Repeat a batch that was answered."""
        producer = self._random.choice(self._producers[stream.settings.partition])
        back = self._random.choice((1, 2, KEPT_BATCHES, KEPT_BATCHES, 9))
        if len(producer.sent) >= back and producer.sent[-back].acked:
            self._port.begin_call(self._append(stream, producer, producer.sent[-back]))

    def next_epoch(self, stream: StreamHistory) -> None:
        """Begin another epoch, as a producer that has restarted does."""
        producer = self._random.choice(self._producers[stream.settings.partition])
        if not producer.pending and producer.sent:
            producer.former = producer.sent[-1]
            producer.epoch, producer.sequence = producer.epoch + 1, 0
            producer.sent.clear()

    def fence(self, stream: StreamHistory) -> None:
        """Send a batch of a former epoch."""
        producer = self._random.choice(self._producers[stream.settings.partition])
        former = producer.former
        if former is not None and producer.is_known:
            new = self._new(stream)
            new.producer_id, new.producer_epoch = producer.number, former.new.producer_epoch
            new.base_sequence = former.new.base_sequence + former.count
            self._port.begin_call(self._fenced(stream, stream.sending(new)))

    async def _fenced(self, stream: StreamHistory, batch: SentBatch) -> None:
        try:
            await self._call(stream, lambda target: AppendBatch(target, batch.new))
        except StreamRefused as error:
            stream.sequence_refused(batch, error, must_be_taken=False)
            if error.error is not StreamError.INVALID_PRODUCER_EPOCH:
                raise Violation(f"a producer of a former epoch is refused with {error.error.name}") from None
        except api.StorageFull:
            stream.refused(batch)
        except UNKNOWN:
            stream.refused(batch)  # it is stored in no case
        else:
            raise Violation(f"{stream.name} accepts a batch of a former epoch of its producer")

    async def _append(self, stream: StreamHistory, producer: Producer, batch: SentBatch) -> None:
        if batch.calls:
            batch.calls += 1
            batch.under_way += 1
        else:
            batch.calls = batch.under_way = 1
        must_be_taken, stored = producer.must_take(batch), batch.acked
        asked = stream.ask()
        try:
            answer = await self._call(stream, lambda target: AppendBatch(target, batch.new))
        except StreamRefused as error:
            # Meanwhile others may have been sent, so that it is not among the last five any more.
            stream.sequence_refused(batch, error, must_be_taken=must_be_taken and producer.must_take(batch))
        except api.StorageFull:
            stream.refused(batch)
        except UNKNOWN:
            stream.unanswered(batch)
        else:
            self._port.event("appended", stream.settings.partition, answer.base_offset)
            if stored and not answer.duplicate:
                raise Violation(f"{stream.name} stores a batch again: {batch.new.payload[:10]!r}")
            stream.appended(batch, AckLevel.QUORUM, answer, asked)
            if batch in producer.pending:
                producer.pending.remove(batch)

    def produce_plain(self, stream: StreamHistory) -> None:
        """Send a batch without a producer, at any acknowledgement level."""
        level = self._random.choice(LEVELS)
        self._port.begin_call(self._append_plain(stream, stream.sending(self._new(stream)), level))

    async def _append_plain(self, stream: StreamHistory, batch: SentBatch, level: AckLevel | None) -> None:
        asked = stream.ask()
        try:
            answer = await self._call(stream, lambda target: AppendBatch(target, batch.new, level))
        except api.StorageFull:
            stream.refused(batch)
        except UNKNOWN:
            stream.unanswered(batch)
        else:
            self._port.event("appended", stream.settings.partition, answer.base_offset, level)
            stream.appended(batch, AckLevel.QUORUM if level is None else level, answer, asked)

    # --- readers ----------------------------------------------------------------------------------------

    def follow(self, stream: StreamHistory) -> None:
        """Read on from the reader's position, perhaps with a wait."""
        position = max(self._positions.get(stream.settings.partition, 0), stream.shown)
        self._port.begin_call(self._follow(stream, position, self._random.choice((0, 0, 0.5, 3))))

    async def _follow(self, stream: StreamHistory, position: int, wait_seconds: float) -> None:
        end = await self._fetch(stream, position, wait_seconds)
        if end is not None:
            known = self._positions.get(stream.settings.partition, 0)
            self._positions[stream.settings.partition] = max(known, end)

    def read_old(self, stream: StreamHistory) -> None:
        random = self._random
        if stream.end:
            lowest = max(0, stream.shown - 5) if random.random() < 0.2 else min(stream.shown, stream.end)
            self._port.begin_call(self._read_old(stream, random.randint(lowest, stream.end)))

    async def _read_old(self, stream: StreamHistory, offset: int) -> None:
        await self._fetch(stream, offset, 0)

    async def _fetch(self, stream: StreamHistory, offset: int, wait_seconds: float) -> int | None:
        """Return the offset behind the batches that were read; None: nothing is known."""
        bytes_max = self._random.choice((1, 1_000, 1_000, 50_000, 1 << 20))
        asked = stream.ask()
        try:
            answer = await self._call(stream, lambda target: FetchBatches(target, offset, bytes_max, wait_seconds))
        except StreamRefused as error:
            if error.error is not StreamError.OFFSET_OUT_OF_RANGE:
                raise Violation(f"{stream.name} refuses a fetch with {error.error.name}") from None
            stream.out_of_range(offset, asked)
            return None
        except UNKNOWN:
            return None
        self._port.event("fetched", stream.settings.partition, offset, len(answer.batches), answer.durable_end)
        stream.fetched(offset, answer, asked)
        return answer.batches[-1].end_offset if answer.batches else None

    def ends(self, stream: StreamHistory) -> None:
        self._port.begin_call(self._ends(stream))

    async def _ends(self, stream: StreamHistory) -> None:
        asked = stream.ask()
        try:
            answer = await self._call(stream, ReadStreamEnds)
        except UNKNOWN:
            return
        stream.ends(answer, asked)

    def search(self, stream: StreamHistory) -> None:
        random = self._random
        timestamp = max(0, stream.time_ms() - random.choice((0, 500, random.randrange(100_000))))
        from_offset = random.choice((0, random.randint(0, stream.end)))
        self._port.begin_call(self._search(stream, timestamp, from_offset))

    async def _search(self, stream: StreamHistory, timestamp: int, from_offset: int) -> None:
        asked = stream.ask()
        try:
            answer = await self._call(stream, lambda target: SearchTimestamp(target, timestamp, from_offset))
        except UNKNOWN:
            return
        self._port.event("searched", stream.settings.partition, None if answer is None else answer.batch.base_offset)
        stream.searched(timestamp, from_offset, answer, asked)

    def epoch_end(self, stream: StreamHistory) -> None:
        epochs = {batch.epoch for batch in stream.batches.values() if batch.epoch is not None}
        if epochs:
            self._port.begin_call(self._epoch_end(stream, self._random.choice(sorted(epochs))))

    async def _epoch_end(self, stream: StreamHistory, epoch: int) -> None:
        asked = stream.ask()
        try:
            answer = await self._call(stream, lambda target: FindEpochEnd(target, epoch))
        except UNKNOWN:
            return
        stream.epoch_ended(epoch, answer, asked)

    def delete(self, stream: StreamHistory) -> None:
        """Delete the oldest records, mostly a few."""
        if stream.end > stream.shown:
            span = stream.end - stream.shown
            before = stream.shown + self._random.choice((1, max(1, span // 4), self._random.randint(1, span)))
            stream.deleting(before)
            self._port.begin_call(self._delete(stream, before))

    async def _delete(self, stream: StreamHistory, before: int) -> None:
        asked = stream.ask()
        try:
            log_start = await self._call(stream, lambda target: DeleteRecords(target, before))
        except UNKNOWN:
            return
        self._port.event("records deleted", stream.settings.partition, before)
        stream.records_deleted(before, log_start, asked)

    # --- everything -------------------------------------------------------------------------------------

    async def read_all(self) -> None:
        """Read all partitions from the beginning to the end."""
        for stream in self.streams:
            offset = stream.start
            while True:
                asked = stream.ask()
                try:
                    answer = await answered(partial(self._fetch_part, stream, offset))
                except StreamRefused:
                    stream.out_of_range(offset, asked)
                    ends = await answered(partial(self._call, stream, ReadStreamEnds))
                    stream.ends(ends, asked)
                    offset = ends.log_start.offset
                    continue
                stream.fetched(offset, answer, asked)
                if not answer.batches:
                    break
                offset = answer.batches[-1].end_offset
            stream.check_sequences()

    async def _fetch_part(self, stream: StreamHistory, offset: int) -> Fetched:
        return await self._call(stream, lambda target: FetchBatches(target, offset, 1 << 20))

    async def _delete_to_end(self, stream: StreamHistory) -> int:
        return await self._call(stream, lambda target: DeleteRecords(target, stream.end))

    async def delete_all(self) -> None:
        """Delete all records."""
        for stream in self.streams:
            stream.deleting(stream.end)
            asked = stream.ask()
            log_start = await answered(partial(self._delete_to_end, stream))
            stream.records_deleted(stream.end, log_start, asked)
