"""Handlers of the commands of one incarnation.

The engine decides a command, the records are appended to the log and applied in memory at once, and the answer waits
until everything that it was computed from is durable (:mod:`backend.serving.writer`).
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from backend.api import (
    AcceptTransfers,
    AccountBytes,
    AccountMeasures,
    AckLevel,
    Answer,
    CancelMove,
    ChangeVisibility,
    Command,
    Configure,
    Counters,
    CountMessages,
    CountNotifications,
    Delete,
    DeleteOnce,
    Drop,
    Forget,
    HandleOutcome,
    Handover,
    HandOverTokens,
    ListMoves,
    MapStale,
    Measures,
    MoveMessages,
    MoveTask,
    NotificationCounts,
    PartitionDamaged,
    PartitionGone,
    PartitionOpening,
    PartitionSettings,
    PartitionUnknown,
    Peeked,
    PeekMessages,
    PendingTokenSources,
    Publication,
    Publish,
    Purge,
    QueueMeasures,
    Receive,
    ReceivedMessage,
    RejectTransfers,
    Release,
    Retire,
    Send,
    SendResult,
    StartMove,
    StorageFull,
    Target,
    Transfer,
    Unavailable,
    Watch,
)
from backend.engine import records
from backend.engine.blocks import MOVING
from backend.engine.claims import Claimed
from backend.engine.fold import Fold
from backend.engine.ids import message_ids, unpack_id
from backend.engine.records import Message, RetryAnswered
from backend.journal.interface import Log
from backend.serving.memory_limit import Memory
from backend.serving.orphan_collector import OrphanCollector
from backend.serving.partition import (
    RECORD_OVERHEAD_BYTES,
    DeliveryPlan,
    Entry,
    OpenPartition,
    columns_bytes,
    size_of_transfer,
)
from backend.serving.payload_cache import PayloadCache
from backend.serving.peek import peek
from backend.serving.queue_stats import AccountUsage, measured, measured_of
from backend.serving.shards import Shards
from backend.serving.token_import import TokenImport
from backend.serving.transfers import TransferWorker
from backend.serving.wakeups import Wakeups, end_waits
from backend.serving.writer import PartitionWriter, SpaceNeeded, timed
from telemetry import traces

logger = logging.getLogger(__name__)

QUORUM, ALL = AckLevel.QUORUM, AckLevel.ALL

UNSYNCED_BYTES_MAX = 8 << 20
"""Above this many unsynced bytes, LEADER and NONE sends also wait for durability.  This bounds the loss of a crash, and
the memory that a stalled disk or quorum fills.
"""
RECORD_BYTES = 4096
"""Upper bound on the bytes of a record that creates or drops a partition."""


class ImmediateDeliverer(Protocol):
    """Makes deliveries of publications together with these."""

    def plan(self, source: OpenPartition, publications: Sequence[Publication]) -> DeliveryPlan: ...

    def deliver(
        self, publications: Sequence[Publication], plan: DeliveryPlan, answers: Sequence[SendResult]
    ) -> int: ...


class CommandHandlers:
    """Runs the commands of :mod:`backend.api` on the partitions of an incarnation."""

    def __init__(
        self,
        log: Log,
        shards: Shards,
        writer: PartitionWriter,
        wakeups: Wakeups,
        payload_cache: PayloadCache,
        memory: Memory,
        transfers: TransferWorker,
        immediate: ImmediateDeliverer,
        wake_fanout: Callable[[OpenPartition], None],
        token_import: TokenImport,
        orphan_collector: OrphanCollector,
        others: Mapping[type[Command[Any]], Callable[[Any], Coroutine[Any, Any, Any]]],
    ) -> None:
        """``wake_fanout`` begins deliveries of publications; ``others``: handlers of further commands."""
        self._log = log
        self._shards = shards
        self._partitions = shards.partitions
        self._writer = writer
        self._wakeups = wakeups
        self._payload_cache = payload_cache
        self._memory = memory
        self._transfers = transfers
        self._immediate = immediate
        self._wake_fanout = wake_fanout
        self._token_import = token_import
        self._orphan_collector = orphan_collector
        self._usage = AccountUsage(shards.partitions, shards.streams)
        self._loop = asyncio.get_running_loop()
        self._handlers: dict[type[Command[Any]], Callable[[Any], Coroutine[Any, Any, Any]]] = {
            Configure: self.configure,
            Drop: self.drop,
            Purge: self.purge,
            Send: self.send,
            Publish: self.send,
            Receive: self.receive,
            Watch: self.watch,
            Release: self.release,
            Delete: self.delete,
            DeleteOnce: self.delete_once,
            ChangeVisibility: self.change_visibility,
            CountMessages: self.count_messages,
            AccountBytes: self.account_bytes,
            QueueMeasures: self.queue_measures,
            AccountMeasures: self.account_measures,
            CountNotifications: self.count_notifications,
            PeekMessages: self.peek,
            StartMove: self.start_move,
            MoveMessages: self.move_messages,
            ListMoves: self.list_moves,
            CancelMove: self.cancel_move,
            AcceptTransfers: self.accept_transfers,
            RejectTransfers: self.reject_transfers,
            HandOverTokens: self.hand_over,
            PendingTokenSources: self.pending_token_sources,
            Retire: self.retire,
            Forget: self.forget,
            **others,
        }

    def call(self, command: Command[Answer]) -> Coroutine[Any, Any, Answer]:
        return self._handlers[type(command)](command)

    def _find(self, target: Target) -> OpenPartition:
        partition = self._partitions.get(target.partition)
        if partition is None:
            damage = self._shards.damage_of(target.partition)
            if damage is not None:
                raise PartitionDamaged(damage)
            raise PartitionUnknown(f"partition {target.partition} is not open")
        partition.check(target)
        return partition

    # --- sending ----------------------------------------------------------------------------------------

    async def send(self, command: Send | Publish) -> list[SendResult]:
        try:
            partition, answers = self._store(command)
        except (SpaceNeeded, PartitionOpening):
            partition, answers = await self._store_later(command)
        level = partition.fold.ack_level
        if level is not QUORUM:
            await self._acknowledged(partition, level, answers)
            return answers
        barrier = self._log.barrier()
        if barrier is not None:
            await (barrier if traces.current.get() is None else timed(barrier))
        return answers

    def _store(self, command: Send | Publish) -> tuple[OpenPartition, list[SendResult]]:
        """Append the messages; return their partition and the answers.

        Raises :class:`SpaceNeeded` and :class:`PartitionOpening`.
        """
        partition = self._find(command.target)
        now = partition.clock()
        queue = partition.queue
        plan: DeliveryPlan | None = None
        if isinstance(command, Send):
            written, answers = queue.send(command.messages, now)
        else:
            plan = self._immediate.plan(partition, command.messages)
            written, answers = queue.publish(command.messages, plan[0], now)
        stored = stored_bytes = 0
        if written:  # a repeat of a stored message is answered even without memory or replicas
            if self._memory.full:
                raise self._memory.refusal()
            if partition.fold.ack_level is ALL:
                self._log.check_replicas()
            try:
                if len(written) > 1:
                    self._log.check_space(_size_of(written))
                if plan is not None and plan[1] and isinstance(command, Publish):
                    stored_bytes += self._immediate.deliver(command.messages, plan, answers)
                for record, payload in written:
                    self._writer.write(partition, record, now, payload, reserve=False)
                    if isinstance(record, Message):
                        stored += 1
                        stored_bytes += len(payload)
            except StorageFull as full:
                raise SpaceNeeded(full, _size_of(written)) from None
            if plan is None:
                self._payload_cache.keep(partition, written)
            elif partition.fold.publications:
                self._payload_cache.keep(partition, written)
                self._wake_fanout(partition)  # deliveries on this node share the row, if the disk is busy
            if stored:
                partition.sent += stored
                partition.sent_bytes += stored_bytes
                partition.weigh(stored_bytes / stored)
            self._wakeups.changed(partition)
        partition.deduplicated += len(answers) - stored
        return partition, answers

    async def _store_later(self, command: Send | Publish) -> tuple[OpenPartition, list[SendResult]]:
        """Store like :meth:`_store`, but wait for space in the log and for the import of the partition's tokens."""
        while True:
            try:
                return await self._writer.with_space(self._store, command)
            except PartitionOpening:
                if not await self._token_import.wait(self._find(command.target)):
                    raise

    async def _acknowledged(self, partition: OpenPartition, level: AckLevel, answers: Sequence[SendResult]) -> None:
        """Wait until a send may be answered at a level other than QUORUM.

        At ALL, a repeat also waits until every replica has the original message, whichever node wrote it; except if the
        message is gone, or stayed in the partition that this one was split from.
        """
        if level is ALL:
            found = [partition.fold.locate(stored.number) for stored in answers]  # a message may be gone
            await self._log.on_all_replicas([place[0].positions[place[1]] for place in found if place is not None])
        elif self._log.unsynced_bytes > UNSYNCED_BYTES_MAX:
            await self._writer.durable()

    # --- receiving --------------------------------------------------------------------------------------

    async def receive(self, command: Receive) -> list[ReceivedMessage]:
        options = command.options
        deadline = self._loop.time() + options.wait_seconds if options.wait_seconds else 0.0
        while True:
            try:
                partition, claims, left = self._claim(command)
            except SpaceNeeded:
                partition, claims, left = await self._writer.with_space(self._claim, command)
            if claims:
                break
            if left is not None:
                await self._transfers.wait_for_arrivals(partition, left)
                partition.check_open()
            partition.check_not_retired()  # its messages are now in other partitions
            remaining = deadline - self._loop.time() if deadline else 0.0
            if remaining <= 0 or self._wakeups.draining:
                if not options.partial:
                    partition.empty_receives += 1
                return []
            await self._wakeups.wait(partition, remaining)
        if options.attempt is not None:
            # A client that lost the answer repeats the attempt, so the claims stay.
            return await self._deliver(partition, claims, left)
        try:
            return await self._deliver(partition, claims, left)
        except (asyncio.CancelledError, Unavailable):
            # The client has disconnected or gets an error.  The messages become visible again, and the receive does not
            # count.
            self._release(partition, claims)
            raise

    def _claim(self, command: Receive) -> tuple[OpenPartition, list[Claimed], records.TransferOut | None]:
        """Claim messages; return their partition, the claims, and the record of dead letters that leave.

        Raises :class:`SpaceNeeded`.
        """
        partition = self._find(command.target)
        now, left = partition.clock(), None
        written, claims = partition.queue.receive(command.options, now)
        if written:
            self._writer.write_records(partition, written, now)
            if partition.fold.outgoing:
                for record in written:
                    if isinstance(record, records.TransferOut):
                        left = record
                self._transfers.wake(partition)
            self._wakeups.changed(partition)
        return partition, claims, left

    async def watch(self, command: Watch) -> bool:
        target, wait_seconds = command.target, command.wait_seconds
        deadline = self._loop.time() + wait_seconds
        while True:
            partition = self._find(target)
            partition.fold.advance(partition.clock())
            if partition.claimable:
                return True
            partition.check_not_retired()
            remaining = deadline - self._loop.time() if wait_seconds else 0.0
            if remaining <= 0 or self._wakeups.draining:
                return False
            await self._wakeups.wait(partition, remaining, watches_only=True)

    def _release(self, partition: OpenPartition, claims: Sequence[Claimed]) -> None:
        if partition.fold.dropped or partition.closed:
            return
        now = partition.clock()
        try:
            for record in partition.queue.release_claims(((claim.number, claim.receives) for claim in claims), now):
                self._writer.write(partition, record, now)
        except (StorageFull, Unavailable):
            return  # their visibility timeout frees them
        self._wakeups.changed(partition)

    async def _deliver(
        self, partition: OpenPartition, claims: Sequence[Claimed], left: records.TransferOut | None
    ) -> list[ReceivedMessage]:
        """Return the claimed messages with payloads, once the claim is durable and dead letters have arrived."""
        if left is not None:
            await self._transfers.wait_for_arrivals(partition, left)
        barrier = self._log.barrier()
        numbers = [claim.number for claim in claims]
        found = self._payload_cache.take(partition, numbers)
        if None in found:
            found = await self._payload_cache.fill(partition, claims, found)
        at_most_once = partition.fold.at_most_once
        if at_most_once:
            found = await self._delete_delivered(partition, claims, found)
            barrier = self._log.barrier()
        issue = partition.queue.handles.issue
        ids = message_ids(partition.id, numbers, partition.queue.id_salt)
        answer = []
        for claim, entry, computed_id in zip(claims, found, ids, strict=True):
            if entry is None:
                continue
            record, payload = entry
            number = claim.number
            answer.append(
                received := ReceivedMessage(
                    computed_id if record.message_id is None else unpack_id(record.message_id),
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
            if type(record) is not Message:
                received.subscription, received.raw, received.publication_number = records.subscription_of(record)
        if barrier is not None:
            if at_most_once:
                await _in_any_case(barrier)
            else:
                await (barrier if traces.current.get() is None else timed(barrier))
        partition.received += len(answer)
        return answer

    async def _delete_delivered(
        self, partition: OpenPartition, claims: Sequence[Claimed], found: Sequence[Entry | None]
    ) -> list[Entry | None]:
        """Delete the messages that are to be delivered, and return the entries that may be delivered.

        The claim and this record mostly share a row.  If a crash separates them, no client has received the messages,
        and they become visible again when their claims end.  Messages that were delivered to another client, or left
        for another queue, while their payloads were read here are not delivered.  Those that topics delivered stay
        claimed: the caller may have to load the key of another account before it can read them.
        """

        def delete(partition: OpenPartition) -> list[Entry | None]:
            partition.check_open()
            fold = partition.fold
            kept: list[Entry | None] = []
            gone: list[int] = []
            for claim, entry in zip(claims, found, strict=True):
                at = fold.locate(claim.number) if entry is not None else None
                if at is None or at[0].states[at[1]] == MOVING:
                    kept.append(None)
                    continue
                if entry is not None and records.subscription_of(entry[0])[0] is None:
                    gone.append(claim.number)
                kept.append(entry)
            if gone:
                self._writer.write_records(partition, [records.Deleted(gone)], partition.clock())
                self._wakeups.changed(partition)
            return kept

        return await self._writer.with_space(delete, partition)

    # --- receipt handles --------------------------------------------------------------------------------

    async def release(self, command: Release) -> None:
        partition = self._find(command.target)
        await self._writer.write_all(partition, lambda now: partition.queue.release(command.handles, now))

    async def delete(self, command: Delete) -> list[HandleOutcome]:
        try:
            outcomes = self._delete(command)
        except SpaceNeeded:
            outcomes = await self._writer.with_space(self._delete, command)
        await self._writer.durable()
        return outcomes

    def _delete(self, command: Delete) -> list[HandleOutcome]:
        partition = self._find(command.target)
        now = partition.clock()
        written, outcomes = partition.queue.delete(command.handles, now)
        self._writer.write_records(partition, written, now)
        for record in written:
            if isinstance(record, records.Deleted):
                self._payload_cache.forget(partition, record.numbers)
                partition.deleted += len(record.numbers)
        self._wakeups.changed(partition)
        return outcomes

    async def delete_once(self, command: DeleteOnce) -> list[bool]:
        def delete(command: DeleteOnce) -> list[bool]:
            partition = self._find(command.target)
            now = partition.clock()
            written, deleted = partition.queue.delete_once(command.handles, now)
            self._writer.write_records(partition, written, now)
            for record in written:
                assert isinstance(record, records.Deleted)
                self._payload_cache.forget(partition, record.numbers)
            self._wakeups.changed(partition)
            return deleted

        deleted = await self._writer.with_space(delete, command)
        await self._writer.durable()
        return deleted

    async def change_visibility(self, command: ChangeVisibility) -> list[HandleOutcome]:
        try:
            outcomes = self._change_visibility(command)
        except SpaceNeeded:
            outcomes = await self._writer.with_space(self._change_visibility, command)
        await self._writer.durable()
        return outcomes

    def _change_visibility(self, command: ChangeVisibility) -> list[HandleOutcome]:
        partition = self._find(command.target)
        now = partition.clock()
        written, outcomes = partition.queue.change_visibility(command.changes, now)
        self._writer.write_records(partition, written, now)
        self._wakeups.changed(partition)
        return outcomes

    # --- the queue as a whole ---------------------------------------------------------------------------

    async def configure(self, command: Configure) -> None:
        settings = command.settings
        partition = self._partitions.get(settings.partition)
        if partition is None:
            damage = self._shards.damage_of(settings.partition)
            if damage is not None:
                raise PartitionDamaged(damage)
            await self._log.wait_for_space(RECORD_BYTES, True)
            partition = self._partitions.get(settings.partition)
        if self._shards.was_dropped(settings.partition):
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
        await self._writer.write_all(partition, lambda _: partition.queue.configure(settings))
        self._token_import.wake(partition)
        if known < settings.map_version:
            # The queue's sends go to other partitions from now on, so waiting receives must also be sent to these.
            stale = MapStale(f"the queue of partition {partition.id} has a map of version {settings.map_version}")
            end_waits(partition, stale)

    def _open(self, settings: PartitionSettings) -> OpenPartition:
        """Create a partition that has never been written to; its first record is known to fit."""
        shard = self._shards.of(settings.partition)
        fold = Fold(settings.partition)
        fold.open(shard.epoch)
        record = records.Configured(settings)
        fold.apply(record, self._writer.append(shard, fold.partition, record))
        partition = self._shards.add(fold)
        partition.is_first_owner = True
        return partition

    async def drop(self, command: Drop) -> None:
        target = command.target
        partition = self._partitions.get(target.partition)
        if partition is None or partition.fold.settings is None:
            self._shards.of(target.partition)
            if target.partition in self._shards.damage:
                await self._drop_damaged(target)
            self._shards.drop(target.partition)
            return await self._writer.durable()
        await self._log.wait_for_space(RECORD_BYTES, True)
        partition.check_open()
        if partition.fold.settings.queue_id == target.queue_id and not partition.fold.dropped:
            now = partition.clock()
            self._writer.write(partition, records.Dropped(target.queue_id), now)
            self._payload_cache.remove(partition)
            self._shards.remove(partition)
            self._shards.drop(partition.id)
            gone = PartitionGone(f"the queue of partition {partition.id} was deleted")
            end_waits(partition, gone)
            fold = partition.fold
            if fold.outgoing or fold.incoming:
                peers = {*fold.outgoing, *fold.incoming}
                self._orphan_collector.forget(partition.id, peers)
        return await self._writer.durable()

    async def _drop_damaged(self, target: Target) -> None:
        """Drop a damaged partition: a replay ignores its damage when it reaches this record."""
        await self._log.wait_for_space(RECORD_BYTES, True)
        number = target.partition
        shard = self._shards.of(number)
        if number not in self._shards.damage:
            return  # another call has dropped it first
        self._writer.append(shard, number, records.Dropped(target.queue_id))
        logger.warning("the queue of partition %d was deleted, and with it the damaged data", number)
        self._shards.forget_damage(number)
        peers = [
            one.id for one in self._partitions.values() if number in one.fold.outgoing or number in one.fold.incoming
        ]
        if peers:
            self._orphan_collector.forget(number, peers)

    async def purge(self, command: Purge) -> None:
        partition = self._find(command.target)
        await self._writer.write_all(partition, lambda _: partition.queue.purge(command.purge_id))

    async def count_messages(self, command: CountMessages) -> Counters:
        partition = self._find(command.target)
        partition.fold.advance(partition.clock())
        counters = partition.fold.counters()
        await self._writer.durable()
        return counters

    async def account_bytes(self, command: AccountBytes) -> int:
        return await self._usage.stored_bytes(command.account)

    async def queue_measures(self, command: QueueMeasures) -> list[Measures]:
        partition = self._find(command.target)
        partition.fold.advance(partition.clock())
        return [measured(partition)]

    async def account_measures(self, command: AccountMeasures) -> list[Measures]:
        return await measured_of(self._partitions, command)

    async def count_notifications(self, command: CountNotifications) -> None:
        partition = self._find(command.target)
        if partition.notifications is None:
            partition.notifications = NotificationCounts()
        partition.notifications.add(command.counts)

    async def peek(self, command: PeekMessages) -> list[Peeked]:
        partition = self._find(command.target)
        partition.fold.advance(partition.clock())
        peeked = await peek(self._log, partition, command.max_messages, command.after)
        await self._writer.durable()
        return peeked

    # --- transfers from partitions of other nodes ---------------------------------------------------------

    async def accept_transfers(self, command: AcceptTransfers) -> list[int]:
        def accept(moved: Transfer) -> OpenPartition:
            partition = self._find(command.target)
            partition.check_not_retired()
            self._writer.check_space(size_of_transfer(moved))
            now = partition.clock()
            arrived = partition.queue.transfer_in(source, command.acked_below, moved, now)
            if arrived is not None:
                self._writer.write(partition, arrived, now, moved.payload if isinstance(arrived, Message) else b"")
            return partition

        source, partition = command.source, self._find(command.target)
        partition.check_not_retired()
        if self._memory.full:
            raise self._memory.refusal()
        try:
            for moved in command.transfers:
                partition = await self._writer.with_space(accept, moved)
        finally:  # if there was space for only some of them, those have arrived
            self._wakeups.changed(partition)
        refused = partition.queue.refused(source, [moved.number for moved in command.transfers])
        await self._writer.durable()
        return refused

    async def reject_transfers(self, command: RejectTransfers) -> list[int]:
        partition = self._find(command.target)
        source, acked_below, numbers = command.source, command.acked_below, command.numbers
        await self._writer.write_all(
            partition, lambda _: partition.queue.reject_transfers(source, acked_below, numbers)
        )
        return partition.queue.refused(source, numbers)

    # --- between the partitions of a queue ----------------------------------------------------------------

    async def hand_over(self, command: HandOverTokens) -> Handover:
        partition = self._find(command.target)
        handover = partition.queue.hand_over(command.slot, command.part, partition.clock())
        await self._writer.durable()
        return handover

    async def pending_token_sources(self, command: PendingTokenSources) -> list[int]:
        partition = self._find(command.target)
        self._token_import.wake(partition)
        sources = list(partition.fold.pending_token_sources)
        await self._writer.durable()
        return sources

    async def retire(self, command: Retire) -> bool:
        partition = self._find(command.target)
        await self._writer.write_all(partition, lambda now: partition.queue.retire(now, command.linger_seconds))
        if partition.retired:
            end_waits(partition, partition.gone())
        return partition.retired

    async def forget(self, command: Forget) -> None:
        partition = self._find(command.target)
        if partition.retired and not partition.fold.incoming:
            await self.drop(Drop(command.target))

    # --- move tasks -------------------------------------------------------------------------------------

    async def start_move(self, command: StartMove) -> MoveTask:
        partition = self._find(command.target)
        task_id = command.task_id or str(uuid.uuid4())
        destination_arn, rate = command.destination_arn, command.rate_per_second
        await self._writer.write_all(
            partition, lambda now: partition.queue.start_move(task_id, destination_arn, rate, now)
        )
        self._transfers.wake(partition)
        return next(task for task in partition.fold.tasks if task.task_id == task_id)

    async def move_messages(self, command: MoveMessages) -> list[int]:
        partition = self._find(command.target)
        return await self._transfers.move_messages(partition, command.numbers, command.destination_arn)

    async def list_moves(self, command: ListMoves) -> list[MoveTask]:
        partition = self._find(command.target)
        tasks = list(partition.fold.tasks)
        await self._writer.durable()
        return tasks

    async def cancel_move(self, command: CancelMove) -> MoveTask:
        partition = self._find(command.target)
        await self._writer.write_all(partition, lambda _: partition.queue.cancel_move(command.task_id))
        return next(task for task in partition.fold.tasks if task.task_id == command.task_id)


async def _in_any_case(barrier: asyncio.Future[None]) -> None:
    """Wait for an irrevocable write: a cancellation has no effect, and the caller gets the result."""
    while not barrier.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([barrier])
    barrier.result()


def _size_of(written: Sequence[tuple[Message | RetryAnswered, bytes]]) -> int:
    """Return an upper bound on the bytes of these messages."""
    size_bytes = RECORD_OVERHEAD_BYTES * len(written)
    for record, payload in written:
        size_bytes += len(payload)
        if isinstance(record, Message):
            if record.group is not None:
                size_bytes += 4 * len(record.group)
            if isinstance(record, records.MessagePublished):
                size_bytes += columns_bytes(record)
    return size_bytes
