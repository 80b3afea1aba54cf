"""One incarnation of a node: the state that it serves between a start and its end.

The engine decides a command, the records are appended to the log and applied in memory at once, and the answer waits
until everything that it was computed from is durable.  Rows become durable in order, so that is when the row being
filled is durable.  Nothing is applied for which the log has no room.

When a write fails, the whole incarnation with its memory is discarded (:mod:`backend.node` starts the next one).
"""

from __future__ import annotations

import asyncio
import logging
import math
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from heapq import heapify, heappop, heappush
from typing import TypeVar

from backend.api import (
    AckLevel,
    Counters,
    HandleOutcome,
    Handover,
    MapStale,
    Measures,
    MoveTask,
    NewMessage,
    NotOwner,
    PartitionDamaged,
    PartitionGone,
    PartitionOpening,
    PartitionSettings,
    PartitionUnknown,
    Peeked,
    Peer,
    Receive,
    ReceivedMessage,
    SendResult,
    StorageFull,
    Target,
    Transfer,
    Unavailable,
)
from backend.engine import records
from backend.engine.blocks import MOVING
from backend.engine.fold import Fold
from backend.engine.ids import message_id, unpack_id
from backend.engine.queue import Claimed, QueueCommands
from backend.engine.records import Message, Record, RetryAnswered, encode_head
from backend.engine.timers import NEVER
from backend.journal.interface import Log
from backend.journal.rows import encode_record
from backend.resolver import Resolver
from backend.serving.account_usage import AccountUsage
from backend.serving.background import Tasks
from backend.serving.memory_limit import Memory
from backend.serving.node_clock import SLEW_MOST
from backend.serving.orphan_collector import OrphanCollector
from backend.serving.partition import RECORD_OVERHEAD_BYTES, Entry, OpenPartition, size_of_transfer
from backend.serving.payload_cache import PayloadCache
from backend.serving.peek import peek
from backend.serving.queue_stats import measured, measured_of
from backend.serving.shards import Shard, Shards
from backend.serving.token_import import TokenImport
from backend.serving.transfers import TransferWorker
from telemetry import traces

logger = logging.getLogger(__name__)

T = TypeVar("T")

QUORUM, ALL = AckLevel.QUORUM, AckLevel.ALL

COMMIT = "journal.commit"
"""Name of the span in which a sampled call waits for durability."""

IDLE_LOOK_MS = 1000
"""Maximum delay of expired timeouts in a partition without waiting receives."""
ALARMS_SPARE = 64
"""Surplus of alarms over twice the partitions above which outdated alarms are removed from the heap."""
RING_SECONDS_MIN = 0.001
NEAR_SECONDS = 1.0
"""An alarm due later than this is rechecked earlier, because the shard's time may come to run faster."""
UNSYNCED_BYTES_MOST = 8 << 20
"""Above this many unsynced bytes, LEADER and NONE sends also wait for durability.  This bounds the loss of a crash, and
the memory that a stalled disk or quorum fills.
"""
CLAIMS_ROOM_BYTES = 64 << 10
"""Upper bound on the bytes of the records of one receive, delete or visibility change."""


class Incarnation:
    """Serves the partitions of its shards.  Implements :class:`backend.api.Backend`."""

    def __init__(
        self,
        log: Log,
        shards: Shards,
        resolver: Resolver,
        window_bytes: int,
        tasks: Tasks,
        memory_bytes: int = 0,
        elsewhere: Peer | None = None,
    ) -> None:
        self.log = log
        self.tasks = tasks
        self.shards = shards
        self.resolver = resolver
        self.elsewhere = elsewhere
        """Access to the nodes that own the other shards; None: there are none, or they cannot be called."""
        self.partitions = shards.partitions
        self.transfers = TransferWorker(self)
        self.token_import = TokenImport(self)
        self._collector = OrphanCollector(self)
        self._usage = AccountUsage(self.partitions)
        self.memory = Memory(self.partitions, memory_bytes)
        self.loop = asyncio.get_running_loop()
        self.payload_cache = PayloadCache(log, window_bytes, self._quarantine)
        self._alarms: list[tuple[float, int]] = []
        """Heap of (time, partition): alarms of partitions, in the loop's time."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._draining = False

    def begin(self) -> None:
        """Resume everything that was in progress when the last incarnation ended."""
        self.opened(list(self.partitions.values()))
        if self.memory.most_bytes:
            self.tasks.start(self.memory.watch(), "the watch over the memory")

    def opened(self, partitions: Sequence[OpenPartition]) -> None:
        """Start serving these partitions: resume everything that was in progress in them."""
        for partition in partitions:
            self.transfers.wake(partition)
            self.token_import.wake(partition)
            self.changed(partition)
        self.tasks.start(self._collector.run([partition.id for partition in partitions]), "the collector")

    # --- common to all commands -------------------------------------------------------------------------

    def _find(self, target: Target) -> OpenPartition:
        partition = self.partitions.get(target.partition)
        if partition is None:
            damage = self.shards.damage_of(target.partition)
            if damage is not None:
                raise PartitionDamaged(damage)
            raise PartitionUnknown(f"partition {target.partition} is not open")
        partition.check(target)
        return partition

    def write(
        self, partition: OpenPartition, record: Record, now: int, body: bytes = b"", *, reserve: bool = True
    ) -> None:
        """Append one record and apply it.  Raises :class:`StorageFull` or :class:`Unavailable`, having changed nothing.

        Never raises them after :meth:`Log.check_room` has accepted its size.
        """
        data = encode_record(
            record.KIND, partition.shard, partition.id, partition.epoch, now, encode_head(record), body
        )
        position = self.log.append(data, reserve=reserve)
        try:
            partition.fold.apply(record, now, position, len(body))
        # It is in the log, and perhaps half applied in memory.
        except Exception as error:
            self.tasks.failed(f"a record of partition {partition.id}", error)
            raise

    async def write_all(self, partition: OpenPartition, decide: Callable[[int], Sequence[Record]]) -> None:
        """Append and apply records without a body, all or none, and wait until they are durable.

        ``decide`` returns the records for a given time; it is called again after a wait for room.  Raises
        :class:`PartitionGone` when the partition has been dropped: nothing may follow that record.
        """
        while True:
            partition.check_open()
            if partition.fold.dropped:
                raise PartitionGone(f"the queue of partition {partition.id} was deleted")
            now = partition.clock()
            written = decide(now)
            size_bytes = _size_of_heads(written)
            try:
                if written:
                    self.log.check_room(size_bytes, True)
                break
            except StorageFull:
                await self.log.wait_room(size_bytes, True)
        for record in written:
            self.write(partition, record, now)
            if isinstance(record, records.Purged):
                self.payload_cache.clear(partition)
        self.changed(partition)
        await self.durable()

    async def durable(self) -> None:
        """Wait until all records appended so far are durable."""
        barrier = self.log.barrier()
        if barrier is not None:
            await (barrier if traces.current.get() is None else _timed(barrier))

    def changed(self, partition: OpenPartition) -> None:
        """Handle a change of the partition: wake waiting receives, and set an alarm for its next timeout."""
        if partition.waiters:
            self._wake(partition)
            due = partition.fold.due
        else:
            due = (partition.fold.due // IDLE_LOOK_MS + 1) * IDLE_LOOK_MS
        if due < partition.alarm and partition.fold.due < NEVER:
            partition.alarm = due
            self._set_alarm(partition)

    def _set_alarm(self, partition: OpenPartition) -> None:
        """Set the timer for the partition's alarm in its shard's time, or somewhat earlier (:func:`_seconds_until`)."""
        rings_at = self.loop.time() + _seconds_until(partition)
        partition.rings_at = rings_at
        if len(self._alarms) > 2 * len(self.partitions) + ALARMS_SPARE:
            self._alarms = [(one.rings_at, one.id) for one in self.partitions.values() if one.alarm < NEVER]
            heapify(self._alarms)
        else:
            heappush(self._alarms, (rings_at, partition.id))
        if rings_at < self._timer_at:
            self._set_timer(rings_at)

    def _wake(self, partition: OpenPartition) -> None:
        if partition.claimable:
            # Wakes one receive.  It wakes the next if messages are left after its claims.
            while partition.waiters:
                waiter, looks_only = partition.waiters.popitem(last=False)
                if not waiter.done():  # otherwise its caller was cancelled a moment ago
                    waiter.set_result(None)
                    if not looks_only:
                        return

    def _set_timer(self, rings_at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = rings_at
        self._timer = self.loop.call_at(rings_at, self._ring)

    def _ring(self) -> None:
        try:
            self._schedule_due()
        # Without this, no alarm would fire any more.
        except Exception as error:
            self.tasks.failed("the alarm", error)

    def _schedule_due(self) -> None:
        self._timer = None
        self._timer_at = math.inf
        now = self.loop.time()
        while self._alarms and self._alarms[0][0] <= now:
            rings_at, number = heappop(self._alarms)
            partition = self.partitions.get(number)
            if partition is None or partition.rings_at != rings_at or partition.alarm == NEVER:
                continue
            time_ms = partition.clock()
            if time_ms < partition.alarm:
                self._set_alarm(partition)
                continue
            partition.alarm = NEVER
            partition.fold.advance(time_ms)
            self.payload_cache.trim(partition)
            self.changed(partition)
        if self._alarms:
            self._set_timer(max(self._alarms[0][0], now + RING_SECONDS_MIN))

    # --- sending ----------------------------------------------------------------------------------------

    async def send(self, target: Target, messages: Sequence[NewMessage]) -> list[SendResult]:
        while True:
            partition = self._find(target)
            now = partition.clock()
            try:
                written, answers = partition.queue.send(messages, now)
            except PartitionOpening:
                if await self.token_import.wait(partition):
                    continue
                raise
            level = partition.fold.ack_level
            if written and self.memory.full:  # a repeat of a stored message is answered even then
                raise self.memory.refusal()
            if level is ALL and written:
                self.log.check_replicas()
            try:
                stored = self._store(partition, written, now) if written else 0
                if stored != len(answers):
                    partition.deduplicated += len(answers) - stored
                break
            except StorageFull:
                # A segment may just be being allocated.  Afterwards the command is decided again.
                await self.log.wait_room(_size(written))
        if level is not QUORUM:
            await self._acknowledged(partition, level, answers)
            return answers
        barrier = self.log.barrier()
        if barrier is not None:
            await (barrier if traces.current.get() is None else _timed(barrier))
        return answers

    async def _acknowledged(self, partition: OpenPartition, level: AckLevel, answers: Sequence[SendResult]) -> None:
        """Wait until a send may be answered at a level other than QUORUM.

        At ALL, a repeat also waits until every replica has the original message, whoever wrote it; except if the
        message is gone, or stayed in the partition that this one was split from.
        """
        if level is ALL:
            found = [partition.fold.locate(stored.number) for stored in answers]  # a message may be gone by now
            await self.log.on_all_replicas([place[0].positions[place[1]] for place in found if place is not None])
        elif self.log.unsynced_bytes > UNSYNCED_BYTES_MOST:
            await self.durable()

    def _store(self, partition: OpenPartition, written: list[tuple[Message | RetryAnswered, bytes]], now: int) -> int:
        """Append the records; return the number of messages among them."""
        if len(written) > 1:
            self.log.check_room(_size(written))
        stored = stored_bytes = 0
        for record, payload in written:
            self.write(partition, record, now, payload, reserve=False)
            if isinstance(record, Message):
                stored += 1
                stored_bytes += len(payload)
        self.payload_cache.keep(partition, written)
        if stored:
            partition.sent += stored
            partition.sent_bytes += stored_bytes
            partition.weigh(stored_bytes / stored)
        self.changed(partition)
        return stored

    # --- receiving --------------------------------------------------------------------------------------

    async def receive(self, target: Target, command: Receive) -> list[ReceivedMessage]:
        deadline = self.loop.time() + command.wait_seconds if command.wait_seconds else 0.0
        while True:
            partition = self._find(target)
            now, left = partition.clock(), None
            written, claims = partition.queue.receive(command, now)
            if written:
                try:
                    if len(written) > 1:
                        self.log.check_room(_size_of_heads(written), True)
                    for record in written:
                        self.write(partition, record, now)
                        if isinstance(record, records.TransferOut):
                            left = record
                except StorageFull:
                    await self.log.wait_room(CLAIMS_ROOM_BYTES, True)
                    continue
                if partition.fold.outgoing:
                    self.transfers.wake(partition)
                self.changed(partition)
            if claims:
                break
            if left is not None:
                await self.transfers.brought(partition, left)
                partition.check_open()
            partition.check_not_retired()  # its messages are in other partitions by now
            remaining = deadline - self.loop.time() if deadline else 0.0
            if remaining <= 0 or self._draining:
                if not command.partial:
                    partition.empty_receives += 1
                return []
            await self._wait(partition, remaining)
        if command.attempt is not None:
            # A client that lost the answer repeats the attempt, so the claims stay.
            return await self._deliver(partition, claims, left)
        try:
            return await self._deliver(partition, claims, left)
        except (asyncio.CancelledError, Unavailable):
            # The client has disconnected or gets an error.  The messages become visible again, and the receive does not
            # count.
            self._release(partition, claims)
            raise

    async def watch(self, target: Target, wait_seconds: float) -> bool:
        deadline = self.loop.time() + wait_seconds
        while True:
            partition = self._find(target)
            partition.fold.advance(partition.clock())
            if partition.claimable:
                return True
            partition.check_not_retired()
            remaining = deadline - self.loop.time() if wait_seconds else 0.0
            if remaining <= 0 or self._draining:
                return False
            await self._wait(partition, remaining, looks_only=True)

    async def _wait(self, partition: OpenPartition, seconds: float, *, looks_only: bool = False) -> None:
        """Wait until a message may be available or the time is over."""
        waiter = self.loop.create_future()
        partition.waiters[waiter] = looks_only
        timeout = self.loop.call_later(seconds, _resolve, waiter)
        self.changed(partition)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.changed(partition)  # it had been woken: wake another one
            raise
        finally:
            timeout.cancel()
            partition.waiters.pop(waiter, None)

    def _release(self, partition: OpenPartition, claims: Sequence[Claimed]) -> None:
        if partition.fold.dropped or partition.closed:
            return
        now = partition.clock()
        try:
            for record in partition.queue.release_claims(((claim.number, claim.receives) for claim in claims), now):
                self.write(partition, record, now)
        except (StorageFull, Unavailable):
            return  # their visibility timeout frees them
        self.changed(partition)

    async def _deliver(
        self, partition: OpenPartition, claims: Sequence[Claimed], left: records.TransferOut | None
    ) -> list[ReceivedMessage]:
        """Return the claimed messages with payloads, once the claim is durable and dead letters have arrived."""
        if left is not None:
            await self.transfers.brought(partition, left)
        barrier = self.log.barrier()
        found = self.payload_cache.take(partition, [claim.number for claim in claims])
        if None in found:
            found = await self.payload_cache.fill(partition, claims, found)
        if partition.fold.at_most_once:
            found = await self._delete_delivered(partition, claims, found)
            barrier = self.log.barrier()
        issue, salt = partition.queue.handles.issue, partition.queue.id_salt
        answer = []
        for claim, entry in zip(claims, found, strict=True):
            if entry is None:
                continue
            record, payload = entry
            number = claim.number
            answer.append(
                ReceivedMessage(
                    message_id(partition.id, number, salt)
                    if record.message_id is None
                    else unpack_id(record.message_id),
                    issue(number, claim.receives, claim.received_ms),
                    payload,
                    number,
                    claim.receives + claim.carried,
                    claim.first_received_ms,
                    claim.sent_ms,
                    record.group,
                    record.origin,
                )
            )
        if barrier is not None:
            if partition.fold.at_most_once:
                await _in_any_case(barrier)
            else:
                await (barrier if traces.current.get() is None else _timed(barrier))
        partition.received += len(answer)
        return answer

    async def _delete_delivered(
        self, partition: OpenPartition, claims: Sequence[Claimed], found: Sequence[Entry | None]
    ) -> list[Entry | None]:
        """Delete the messages about to be delivered, and return the entries that may be delivered.

        The claim and this record mostly share a row.  If a crash separates them, no client has received the messages,
        and they become visible again when their claims end.  Messages that were delivered to another client, or left
        for another queue, while their payloads were read here are not delivered.
        """
        fold = partition.fold
        while True:
            partition.check_open()
            kept: list[Entry | None] = []
            gone: list[int] = []
            for claim, entry in zip(claims, found, strict=True):
                at = fold.locate(claim.number) if entry is not None else None
                if at is None or at[0].states[at[1]] == MOVING:
                    kept.append(None)
                    continue
                gone.append(claim.number)
                kept.append(entry)
            if not gone:
                return kept
            deleted = records.Deleted(gone)
            try:
                self.write(partition, deleted, partition.clock())
            except StorageFull:
                await self.log.wait_room(_size_of_heads([deleted]), True)
                continue
            self.changed(partition)
            return kept

    def _quarantine(self, partition: OpenPartition, numbers: list[int]) -> None:
        partition.check_open()
        self.write(partition, records.Quarantined(numbers), partition.clock())

    # --- receipt handles --------------------------------------------------------------------------------

    async def release(self, target: Target, handles: Sequence[str]) -> None:
        partition = self._find(target)
        await self.write_all(partition, lambda now: partition.queue.release(handles, now))

    async def delete(self, target: Target, handles: Sequence[str]) -> list[HandleOutcome]:
        return await self._resolve_claims(target, QueueCommands.delete, handles)

    async def change_visibility(self, target: Target, changes: Sequence[tuple[str, int]]) -> list[HandleOutcome]:
        return await self._resolve_claims(target, QueueCommands.change_visibility, changes)

    async def _resolve_claims(
        self,
        target: Target,
        decide: Callable[[QueueCommands, Sequence[T], int], tuple[list[Record], list[HandleOutcome]]],
        asked: Sequence[T],
    ) -> list[HandleOutcome]:
        while True:
            partition = self._find(target)
            now = partition.clock()
            written, outcomes = decide(partition.queue, asked, now)
            try:
                for record in written:
                    self.write(partition, record, now)
                    if isinstance(record, records.Deleted):
                        self.payload_cache.forget(partition, record.numbers)
                        partition.deleted += len(record.numbers)
                break
            except StorageFull:
                await self.log.wait_room(CLAIMS_ROOM_BYTES, True)
        self.changed(partition)
        await self.durable()
        return outcomes

    # --- the queue as a whole ---------------------------------------------------------------------------

    async def configure(self, settings: PartitionSettings) -> None:
        partition = self.partitions.get(settings.partition)
        if partition is None:
            damage = self.shards.damage_of(settings.partition)
            if damage is not None:
                raise PartitionDamaged(damage)
            await self.log.wait_room(4096, True)
            partition = self.partitions.get(settings.partition)
        if self.shards.was_dropped(settings.partition):
            raise PartitionGone(f"the queue of partition {settings.partition} was deleted")
        known = settings.map_version
        if partition is None:
            partition = self._open(settings)
        else:
            before = partition.fold.settings
            assert before is not None
            if before.queue_id != settings.queue_id:
                raise PartitionGone(f"partition {settings.partition} is of another queue")
            known = before.map_version
        await self.write_all(partition, lambda _: partition.queue.configure(settings))
        self.token_import.wake(partition)
        if known < settings.map_version:
            # The queue's sends go to other partitions from now on: waiting receives must ask these, too.
            stale = MapStale(f"the queue of partition {partition.id} has a map of version {settings.map_version}")
            _send_away(partition, stale)

    def _open(self, settings: PartitionSettings) -> OpenPartition:
        """Create a partition that has never been written to; its first record is known to fit."""
        shard = self.shards.of(settings.partition)
        fold = Fold(settings.partition)
        fold.open(shard.epoch)
        record, now = records.Configured(settings), shard.clock()
        data = encode_record(record.KIND, shard.number, fold.partition, shard.epoch, now, encode_head(record))
        self.log.append(data, reserve=True)
        fold.apply(record, now)
        partition = self.shards.add(fold)
        partition.is_first_owner = True
        return partition

    async def drop(self, target: Target) -> None:
        partition = self.partitions.get(target.partition)
        if partition is None or partition.fold.settings is None:
            self.shards.of(target.partition)
            if target.partition in self.shards.damage:
                await self._drop_damaged(target)
            self.shards.drop(target.partition)
            return await self.durable()
        await self.log.wait_room(4096, True)
        partition.check_open()
        if partition.fold.settings.queue_id == target.queue_id and not partition.fold.dropped:
            now = partition.clock()
            self.write(partition, records.Dropped(target.queue_id), now)
            self.payload_cache.remove(partition)
            self.shards.remove(partition)
            self.shards.drop(partition.id)
            gone = PartitionGone(f"the queue of partition {partition.id} was deleted")
            _send_away(partition, gone)
            fold = partition.fold
            if fold.outgoing or fold.taken:
                peers = {*fold.outgoing, *fold.taken}
                self.tasks.start(self._collector.forget(partition.id, peers), "the collector")
        return await self.durable()

    async def _drop_damaged(self, target: Target) -> None:
        """Drop a damaged partition: a replay ignores its damage when it reaches this record."""
        await self.log.wait_room(4096, True)
        number = target.partition
        shard = self.shards.of(number)
        if number not in self.shards.damage:
            return  # another call was faster
        record = records.Dropped(target.queue_id)
        data = encode_record(record.KIND, shard.number, number, shard.epoch, shard.clock(), encode_head(record))
        self.log.append(data, reserve=True)
        logger.warning("the queue of partition %d was deleted, so is what was damaged of it", number)
        self.shards.forget_damage(number)
        peers = [one.id for one in self.partitions.values() if number in one.fold.outgoing or number in one.fold.taken]
        if peers:
            self.tasks.start(self._collector.forget(number, peers), "the collector")

    async def purge(self, target: Target, purge_id: int) -> None:
        partition = self._find(target)
        await self.write_all(partition, lambda _: partition.queue.purge(purge_id))

    async def counters(self, target: Target) -> Counters:
        partition = self._find(target)
        partition.fold.advance(partition.clock())
        counters = partition.fold.counters()
        await self.durable()
        return counters

    async def stored_bytes(self, account: str) -> int:
        return await self._usage.stored_bytes(account)

    async def measures(self, target: Target) -> list[Measures]:
        partition = self._find(target)
        partition.fold.advance(partition.clock())
        return [measured(partition)]

    async def measures_of(self, account: str, prefixes: Sequence[str], after: str, most: int) -> list[Measures]:
        return await measured_of(self.partitions, account, tuple(prefixes), after, most)

    async def peek(self, target: Target, most: int, after: int = 0) -> list[Peeked]:
        partition = self._find(target)
        partition.fold.advance(partition.clock())
        peeked = await peek(self.log, partition, most, after)
        await self.durable()
        return peeked

    # --- transfers from partitions of other nodes ---------------------------------------------------------

    async def take(self, target: Target, source: int, below: int, transfers: Sequence[Transfer]) -> list[int]:
        partition = self._find(target)
        partition.check_not_retired()
        if self.memory.full:
            raise self.memory.refusal()
        try:
            for moved in transfers:
                size_bytes = size_of_transfer(moved)
                try:
                    self.log.check_room(size_bytes)
                except StorageFull:
                    await self.log.wait_room(size_bytes)
                    partition = self._find(target)
                    partition.check_not_retired()
                now = partition.clock()
                arrived = partition.queue.transfer_in(source, below, moved, now)
                if arrived is not None:
                    self.write(partition, arrived, now, moved.payload)
        finally:  # if there was room for only some of them, those have arrived
            self.changed(partition)
        refused = partition.queue.refused(source, [moved.number for moved in transfers])
        await self.durable()
        return refused

    async def never(self, target: Target, source: int, below: int, numbers: Sequence[int]) -> list[int]:
        partition = self._find(target)
        await self.write_all(partition, lambda _: partition.queue.never(source, below, numbers))
        return partition.queue.refused(source, numbers)

    # --- between the partitions of a queue ----------------------------------------------------------------

    async def hand_over(self, target: Target, slot: int, part: int) -> Handover:
        partition = self._find(target)
        handover = partition.queue.hand_over(slot, part, partition.clock())
        await self.durable()
        return handover

    async def awaited(self, target: Target) -> list[int]:
        partition = self._find(target)
        self.token_import.wake(partition)
        awaiting = list(partition.fold.awaiting)
        await self.durable()
        return awaiting

    async def retire(self, target: Target, linger_seconds: int) -> bool:
        partition = self._find(target)
        await self.write_all(partition, lambda now: partition.queue.retire(now, linger_seconds))
        if partition.retired:
            _send_away(partition, partition.gone())
        return partition.retired

    async def forget(self, target: Target) -> None:
        partition = self._find(target)
        if partition.retired and not partition.fold.taken:
            await self.drop(target)

    # --- move tasks -------------------------------------------------------------------------------------

    async def start_move(
        self, target: Target, destination_arn: str | None, rate_per_second: int, task_id: str | None = None
    ) -> MoveTask:
        partition = self._find(target)
        task_id = task_id or str(uuid.uuid4())
        await self.write_all(
            partition, lambda now: partition.queue.start_move(task_id, destination_arn, rate_per_second, now)
        )
        self.transfers.wake(partition)
        return next(task for task in partition.fold.tasks if task.task_id == task_id)

    async def list_moves(self, target: Target) -> list[MoveTask]:
        partition = self._find(target)
        tasks = list(partition.fold.tasks)
        await self.durable()
        return tasks

    async def cancel_move(self, target: Target, task_id: str) -> MoveTask:
        partition = self._find(target)
        await self.write_all(partition, lambda _: partition.queue.cancel_move(task_id))
        return next(task for task in partition.fold.tasks if task.task_id == task_id)

    # --- shards in hand-over ----------------------------------------------------------------------------

    def close_shard(self, shard: Shard) -> None:
        """Stop serving the shard: accept no commands, end its long polls, and write no more of its records."""
        gone = NotOwner(shard.number, None)
        now = shard.clock()
        for partition in self.shards.close(shard):
            partition.fold.advance(now)  # storage usage is metered until now
            for task in (partition.transfer_task, partition.move_worker, partition.token_import_task):
                if task is not None:
                    task.cancel()
            _send_away(partition, gone)
            self.payload_cache.remove(partition)

    def reopen_shard(self, shard: Shard) -> None:
        """Serve the shard again, because its hand-over failed."""
        self.opened(self.shards.reopen(shard))

    # --- the end ----------------------------------------------------------------------------------------

    def drain(self) -> None:
        """End all long polls now, with empty answers."""
        self._draining = True
        for partition in self.partitions.values():
            _send_away(partition)

    def stop(self, error: Unavailable) -> None:
        """Stop all timers and tasks, and end all waits with ``error``."""
        self._draining = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.tasks.stop()
        for partition in self.partitions.values():
            _send_away(partition, error)


def _seconds_until(partition: OpenPartition) -> float:
    """Return the seconds until the partition's alarm is due at the earliest: shard time may run a tenth faster."""
    seconds = max(0.0, (partition.alarm - partition.clock()) / 1000)
    return seconds if seconds <= NEAR_SECONDS else max(NEAR_SECONDS, seconds / (1 + SLEW_MOST))


def _send_away(partition: OpenPartition, error: Exception | None = None) -> None:
    """End long polls at this partition, with an error, or without one to make them check once more."""
    for waiter in partition.waiters:
        _resolve(waiter, error)
    partition.waiters.clear()


def _resolve(waiter: asyncio.Future[None], error: Exception | None = None) -> None:
    """End a wait, unless it has ended."""
    if waiter.done():
        return
    if error is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(error)


async def _in_any_case(barrier: asyncio.Future[None]) -> None:
    """Wait for an irrevocable write: a cancellation has no effect, and the caller gets the result."""
    while not barrier.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([barrier])
    barrier.result()


def _timed(barrier: Awaitable[None]) -> Awaitable[None]:
    """Return an awaitable for ``barrier``; in a sampled call, the wait is a span."""
    span = traces.current.get()
    return barrier if span is None or span.ended else span.during(COMMIT, barrier)


def _size_of_heads(written: Sequence[Record]) -> int:
    """Return an upper bound on the bytes of records without a body."""
    return sum(len(encode_head(record)) + 64 for record in written)


def _size(written: Sequence[tuple[Message | RetryAnswered, bytes]]) -> int:
    """Return an upper bound on the bytes of these records."""
    return sum(
        len(payload) + RECORD_OVERHEAD_BYTES + (4 * len(record.group or "") if isinstance(record, Message) else 0)
        for record, payload in written
    )
