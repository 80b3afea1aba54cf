"""Transfers of messages between queues: dead letters, and move tasks.

A fold does not change another queue.  The source has journaled that a message leaves (``TransferOut``).  This worker
reads the message from the journal, lets the destination journal that it accepted it, and then lets the source journal
that the transfer is done.  If this node owns both, all three records go into the same log in this order.  If another
node owns the destination, it is called (:class:`backend.api.Peer`) once ``TransferOut`` is durable, and its answer is
durable there.  So after a crash at any point, the message is in exactly one of the two queues.  The source's next owner
resumes unfinished transfers; a destination that has already accepted a transfer says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from backend.api import (
    AcceptTransfers,
    BackendError,
    Configure,
    MoveTask,
    PartitionGone,
    PartitionSettings,
    PartitionState,
    PartitionUnknown,
    PeerCommand,
    RejectTransfers,
    SettingsStale,
    StorageFull,
    Target,
    Transfer,
    Unavailable,
)
from backend.engine import records
from backend.engine.records import Message, Record
from backend.lookups import Resolver
from backend.serving.background import LogThrottle, Tasks
from backend.serving.partition import Entry, OpenPartition, size_of_transfer
from backend.serving.payload_cache import PayloadCache
from backend.serving.peers import Peers
from backend.serving.shards import Shards
from backend.serving.wakeups import Wakeups
from backend.serving.writer import PartitionWriter
from metadata_service.store import StoreError

logger = logging.getLogger(__name__)

BATCH = 100
"""Maximum messages in transfer at once, for each pair of queues or task."""
RETRY_SECONDS = 0.5
ARRIVAL_SECONDS = 1.0
"""Maximum time that a receive waits for its dead letters to arrive at another queue of this node."""
CARRY_BYTES = 4 << 20
"""Maximum bytes of payloads sent to another node at once; a single message may exceed it."""


class NotReached(BackendError):
    """The destination's node is unreachable or its answer unknown, or the message is unreadable now: the transfer is
    repeated.
    """


class TransferWorker:
    """Transfers of an incarnation, with at most one transfer loop and one move task for each source partition."""

    def __init__(
        self,
        shards: Shards,
        writer: PartitionWriter,
        wakeups: Wakeups,
        payload_cache: PayloadCache,
        peers: Peers,
        resolver: Resolver,
        tasks: Tasks,
    ) -> None:
        self._shards = shards
        self._partitions = shards.partitions
        self._writer = writer
        self._wakeups = wakeups
        self._payload_cache = payload_cache
        self._peers = peers
        self._resolver = resolver
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._log_throttle = LogThrottle()

    def wake(self, partition: OpenPartition) -> None:
        """Start the loops for which the partition has work."""
        if partition.transfer_task is None and any(out.pending for out in partition.fold.outgoing.values()):
            partition.transfer_task = self._tasks.start(self._transfer_all(partition), f"transfers from {partition.id}")
        if partition.move_worker is None and partition.fold.running_task is not None:
            partition.move_worker = self._tasks.start(self._move(partition), f"the move task of {partition.id}")

    # --- transfers --------------------------------------------------------------------------------------

    async def _transfer_all(self, source: OpenPartition) -> None:
        try:
            while not source.fold.dropped:
                destinations = [to for to, out in source.fold.outgoing.items() if out.pending]
                if not destinations:
                    return
                stuck = False
                for destination in destinations:  # an unreachable one must not delay the others
                    arrived = False
                    try:
                        await self._transfer(source, destination)
                        self._log_throttle.forget((source.id, destination))
                        arrived = True
                    # A journal without a quorum recovers, or this task ends.
                    except (StorageFull, Unavailable):
                        stuck = True
                    except (BackendError, StoreError) as error:
                        if self._log_throttle.should_log((source.id, destination), str(error)):
                            logger.warning("transfers from partition %d to %d wait: %s", source.id, destination, error)
                        stuck = True
                    _end_round(source, destination, arrived)
                if stuck:
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            source.transfer_task = None
            _end_round(source, 0, False)

    async def wait_for_arrivals(self, source: OpenPartition, left: records.TransferOut) -> None:
        """Wait until messages that have just left have arrived, if their destination is a partition of this node.

        So a dead letter can be received as soon as the receive that moved it is answered.  Returns early when the
        destination refuses them at the first attempt, and after :data:`ARRIVAL_SECONDS`.
        """
        destination, last = left.destination, left.moves[-1][1]
        deadline = self._loop.time() + ARRIVAL_SECONDS
        while source.transfer_task is not None and self._shards.owns(destination):
            outgoing = source.fold.outgoing.get(destination)
            if outgoing is None or last not in outgoing.pending:
                return
            if source.transfer_round is None:
                source.transfer_round = self._loop.create_future()
            ended = source.transfer_round
            await asyncio.wait([ended], timeout=deadline - self._loop.time())
            if not ended.done() or ended.result() == (destination, False):
                return

    async def _transfer(self, source: OpenPartition, destination: int) -> None:
        """Transfer pending messages to one destination, or back if it is gone for good or the task was cancelled."""
        outgoing = source.fold.outgoing[destination]
        target = Target(destination, outgoing.queue_id)
        here = self._partitions.get(destination)
        settings = here.fold.settings if here is not None else await self._resolver.settings(target)
        pending = dict(islice(outgoing.pending.items(), BATCH))
        if settings is None:
            logger.warning("the queue of partition %d is gone: its messages go back to %d", destination, source.id)
            await self._writer.write_all(
                source, lambda _: [records.TransferBack(destination, list(pending)), records.Forgotten([destination])]
            )
            return
        if settings.state == PartitionState.RETIRED:
            await self._turn_back(source, target, settings, list(pending))
            return
        here = here or await self._open_here(destination, settings)
        # In a FIFO queue, later messages of a group may have been received since: its messages are transferred on.
        cancelled = _is_cancelled(source) and not source.fold.fifo
        back = [transfer for transfer, (_, redrive) in pending.items() if redrive and cancelled]
        if back:
            await self._call_back(source, here, target, back)
            return
        wanted = []
        lost = []
        for transfer, (number, _) in pending.items():
            found = source.fold.locate(number)
            if found is None:
                lost.append(transfer)  # quarantined meanwhile
            else:
                wanted.append((number, found[0].positions[found[1]]))
        if lost:
            await self._writer.write_all(source, lambda _: [records.TransferDone(destination, lost)])
        loaded = await self._payload_cache.load(source, wanted)
        readable = _readable(source, [number for number, _ in wanted], loaded)
        leaving = {transfer: loaded[number] for transfer, (number, _) in pending.items() if number in readable}
        if here is None:
            await self._carry(source, target, settings, leaving)
            return
        try:
            if not any(one.fold.dropped or one.closed for one in (source, here)) and not here.retired:
                self._hand_over(source, here, leaving)
        finally:  # if there was space for only some of them, those have arrived
            self._wakeups.changed(here)
            self._wakeups.changed(source)
        await self._writer.durable()

    async def _open_here(self, destination: int, settings: PartitionSettings) -> OpenPartition | None:
        """Return the destination, opened if necessary; None: it is another node's.  Raises :class:`NotOwner` if no
        other node can be called.
        """
        if destination not in self._partitions and self._shards.owns(destination):
            await self._peers.local.call(Configure(settings))
        here = self._partitions.get(destination)
        if here is None:
            self._peers.remote_owner_of(destination)
        return here

    async def _turn_back(
        self, source: OpenPartition, target: Target, settings: PartitionSettings, back: list[int]
    ) -> None:
        """Take back the messages that a retired destination has not accepted; they are sent to other partitions."""
        try:
            here = await self._open_here(target.partition, settings)
            await self._call_back(source, here, target, back)
        except PartitionGone:  # it never accepted anything, and is gone
            await self._writer.write_all(
                source, lambda _: [records.TransferBack(target.partition, back), records.Forgotten([target.partition])]
            )

    def _hand_over(
        self, source: OpenPartition, target: OpenPartition, leaving: dict[int, tuple[Message, bytes]]
    ) -> None:
        """Write that the destination has the messages and that the source drops them, with no record in between."""
        outgoing = source.fold.outgoing[target.id]
        for transfer, (head, payload) in leaving.items():
            if not _is_leaving(source, target.id, transfer):
                continue
            number = outgoing.pending[transfer][0]
            moved = source.queue.under_way(target.id, transfer, head, payload)
            self._writer.check_space(size_of_transfer(moved))
            now = target.clock()
            arrived = target.queue.transfer_in(source.id, outgoing.acked_below, moved, now)
            if arrived is not None:
                self._writer.write(target, arrived, now, payload if isinstance(arrived, Message) else b"")
            elif target.queue.refused(source.id, [transfer]):
                self._writer.write(source, records.TransferBack(target.id, [transfer]), source.clock())
                continue
            self._writer.write(source, records.TransferDone(target.id, [transfer]), source.clock())
            self._payload_cache.forget(source, [number])

    async def _carry(
        self,
        source: OpenPartition,
        target: Target,
        settings: PartitionSettings,
        leaving: dict[int, tuple[Message, bytes]],
    ) -> None:
        """Transfer messages to another node.  None is sent before the record that it leaves is durable."""
        outgoing = source.fold.outgoing[target.partition]
        acked_below, size_bytes = outgoing.acked_below, 0
        batch: list[Transfer] = []
        for transfer, (head, payload) in leaving.items():
            if not _is_leaving(source, target.partition, transfer):
                continue
            if batch and size_bytes + len(payload) > CARRY_BYTES:
                break  # a shorter one behind it may be of the same group
            batch.append(source.queue.under_way(target.partition, transfer, head, payload))
            size_bytes += len(payload)
        await self._writer.durable()
        refused = await self._ask(AcceptTransfers(target, source.id, acked_below, batch), settings)
        taken = [moved.number for moved in batch if moved.number not in refused]
        numbers = [outgoing.pending[transfer][0] for transfer in taken if transfer in outgoing.pending]
        await self._journal_answer(source, target.partition, taken, refused)
        self._payload_cache.forget(source, numbers)

    async def _call_back(
        self, source: OpenPartition, here: OpenPartition | None, target: Target, back: list[int]
    ) -> None:
        """Take back the messages of a cancelled task, except those that the destination has already accepted."""
        destination = target.partition
        command = RejectTransfers(target, source.id, source.fold.outgoing[destination].acked_below, back)
        if here is not None:
            await self._peers.local.call(command)
            refused = here.queue.refused(source.id, back)
        else:
            settings = await self._resolver.settings(target)
            if settings is None:
                return  # the next round takes them back
            await self._writer.durable()
            refused = await self._ask(command, settings)
        await self._journal_answer(
            source, destination, [transfer for transfer in back if transfer not in refused], refused
        )

    async def _ask(self, command: PeerCommand[list[int]], settings: PartitionSettings) -> list[int]:
        """Call the destination's node; configure the partition there first if it is unknown."""
        there = self._peers.remote
        assert there is not None
        try:
            try:
                return await there.call(command)
            except (PartitionUnknown, SettingsStale):
                await there.call(Configure(settings))
                return await there.call(command)
        except Unavailable as error:  # the failing journal is not this node's
            raise NotReached(str(error)) from error

    async def _journal_answer(
        self, source: OpenPartition, destination: int, taken: list[int], refused: list[int]
    ) -> None:
        """Journal the destination's durable answer: transfers accepted and those rejected for good."""

        def decide(_: int) -> list[Record]:
            pending = source.fold.outgoing[destination].pending
            done = [transfer for transfer in taken if transfer in pending]
            back = [transfer for transfer in refused if transfer in pending]
            written: list[Record] = [records.TransferDone(destination, done)] if done else []
            return [*written, records.TransferBack(destination, back)] if back else written

        await self._writer.write_all(source, decide)

    # --- move tasks -------------------------------------------------------------------------------------

    async def _move(self, source: OpenPartition) -> None:
        try:
            while (task := source.fold.running_task) is not None and not source.fold.dropped:
                try:
                    await self._move_some(source, task)
                    self._log_throttle.forget(task.task_id)
                except (StorageFull, Unavailable):
                    await asyncio.sleep(RETRY_SECONDS)
                except (BackendError, StoreError) as error:
                    if self._log_throttle.should_log(task.task_id, str(error)):
                        logger.warning("move task %s of partition %d waits: %s", task.task_id, source.id, error)
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            source.move_worker = None

    async def _move_some(self, source: OpenPartition, task: MoveTask) -> None:
        """Move a batch, or end the task when nothing is left to move."""
        under_way = sum(redrive for out in source.fold.outgoing.values() for _, redrive in out.pending.values())
        batch = max(1, min(BATCH, task.rate_per_second // 10)) if task.rate_per_second else BATCH
        batch = min(batch, task.total - task.moved - under_way)
        movable = source.queue.movable(batch, source.clock()) if task.status == "RUNNING" and batch > 0 else []
        if not movable:
            if under_way:
                await self._wait_for_transfers(source)
                return
            status = "CANCELLED" if task.status == "CANCELLING" else "COMPLETED"
            await self._writer.write_all(source, lambda _: [records.MoveTaskEnded(task.task_id, status)])
            return
        started_at = source.clock()
        chosen: list[tuple[int, Target]] = []
        for number, arn, target in await self._destinations(source, movable, task.destination_arn):
            if target is None:
                failure = "CouldNotDetermineMessageSource" if arn is None else NO_QUEUE
                ended = records.MoveTaskEnded(task.task_id, "FAILED", failure)
                await self._writer.write_all(source, lambda _, ended=ended: [ended])  # type: ignore[misc]
                return
            chosen.append((number, target))
        await self._writer.write_all(source, lambda now: source.queue.move_out(chosen, now))
        await self._wait_for_transfers(source)
        if task.rate_per_second:
            elapsed = (source.clock() - started_at) / 1000
            await asyncio.sleep(max(0.0, len(chosen) / task.rate_per_second - elapsed))

    async def move_messages(self, source: OpenPartition, numbers: Sequence[int], arn: str | None) -> list[int]:
        """Move those of the messages that can be received, and return their numbers when they have left durably."""
        source.queue.check_no_move()
        found = {number: place for number in numbers if (place := source.fold.locate(number)) is not None}
        movable = [(number, block.positions[index]) for number, (block, index) in found.items()]
        destinations = await self._destinations(source, movable, arn)
        chosen = [(number, target) for number, _, target in destinations if target is not None]
        left: list[records.TransferOut] = []

        def decide(now: int) -> list[Record]:
            source.queue.check_no_move()  # one may have started meanwhile
            left[:] = source.queue.move_out(chosen, now)
            return [*left]

        await self._writer.write_all(source, decide)
        self.wake(source)
        for one in left:
            await self.wait_for_arrivals(source, one)
        return [number for one in left for number, _ in one.moves]

    async def _destinations(
        self, source: OpenPartition, movable: Sequence[tuple[int, int]], destination_arn: str | None
    ) -> list[tuple[int, str | None, Target | None]]:
        """Return number, ARN of the destination and its target of each of the messages, given by number and position.

        Without a destination each message goes back to its original queue.
        """
        loaded = await self._payload_cache.load(source, movable)
        targets: dict[tuple[str, str | None], Target | None] = {}
        """Looked up once: most messages have the same destination."""
        found = []
        for number in _readable(source, [number for number, _ in movable], loaded):
            arn = destination_arn or loaded[number][0].origin
            # In a FIFO queue, the message's group determines the destination partition.
            group = loaded[number][0].group if source.fold.fifo else None
            if arn is not None and (arn, group) not in targets:
                targets[arn, group] = await self._resolver.target(arn, group)
            found.append((number, arn, targets[arn, group] if arn is not None else None))
        return found

    async def _wait_for_transfers(self, source: OpenPartition) -> None:
        """Wait until the transfers in progress from this source have finished."""
        self.wake(source)
        if source.transfer_task is not None:
            await asyncio.wait([source.transfer_task])


NO_QUEUE = "AWS.SimpleQueueService.NonExistentQueue"
"""FailureReason of a task whose destination does not exist."""


def _end_round(source: OpenPartition, destination: int, arrived: bool) -> None:
    """Notify the waiter of :meth:`TransferWorker.wait_for_arrivals`."""
    if source.transfer_round is not None:
        source.transfer_round.set_result((destination, arrived))
        source.transfer_round = None


def _readable(source: OpenPartition, wanted: Iterable[int], loaded: Mapping[int, Entry]) -> list[int]:
    """Return loaded messages in order, up to the first stored one that was not loaded: later ones may be of its group.

    Raises :class:`NotReached` if that leaves none.
    """
    readable: list[int] = []
    for number in wanted:
        if number in loaded:
            readable.append(number)
        elif source.fold.locate(number) is not None:
            if not readable:
                raise NotReached(f"message {number} of partition {source.id} cannot be read now")
            break
    return readable


def _is_leaving(source: OpenPartition, destination: int, transfer: int) -> bool:
    """Return whether a transfer is still pending: it was not finished, and its message not deleted."""
    pending = source.fold.outgoing[destination].pending
    return transfer in pending and source.fold.locate(pending[transfer][0]) is not None


def _is_cancelled(source: OpenPartition) -> bool:
    task = source.fold.running_task
    return task is not None and task.status == "CANCELLING"
