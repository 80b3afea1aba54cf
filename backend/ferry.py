"""Moves messages between queues: dead letters, and move tasks.

A fold never touches another queue.  The source has journaled that a message leaves (``TransferOut``); the ferry reads
it from the journal, has the destination journal that it took it, and then the source that it lets go.  All three go
into the same log in this order, so whatever a crash leaves of them, the message is in exactly one of the two queues.
What was under way at a crash is taken up again at the start; a destination that has taken a transfer says so.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import islice
from typing import TYPE_CHECKING

from backend.api import BackendError, MoveTask, StorageFull, Target, Unavailable
from backend.engine import records
from backend.engine.records import Message
from backend.partition import Partition
from backend.tasks import Complaints
from metadata_service.store import StoreError

if TYPE_CHECKING:
    from backend.incarnation import Incarnation

logger = logging.getLogger(__name__)

BATCH = 100
"""Messages that are under way at once, for each pair of queues or task."""
RETRY_SECONDS = 0.5


class Ferry:
    """At most one transfer loop and one move task for each source partition."""

    def __init__(self, incarnation: Incarnation) -> None:
        self._node = incarnation
        self._complaints = Complaints()

    def kick(self, partition: Partition) -> None:
        """Look whether the partition has something to be moved."""
        if partition.ferry is None and any(out.pending for out in partition.fold.outgoing.values()):
            partition.ferry = self._node.tasks.start(self._transfer_all(partition), f"transfers from {partition.id}")
        if partition.mover is None and partition.fold.running_task is not None:
            partition.mover = self._node.tasks.start(self._move(partition), f"the move task of {partition.id}")

    # --- transfers --------------------------------------------------------------------------------------

    async def _transfer_all(self, source: Partition) -> None:
        try:
            while not source.fold.dropped:
                destinations = [to for to, out in source.fold.outgoing.items() if out.pending]
                if not destinations:
                    return
                stuck = False
                for destination in destinations:  # one that cannot be reached does not keep the others waiting
                    try:
                        await self._transfer(source, destination)
                        self._complaints.settled((source.id, destination))
                    except StorageFull:
                        stuck = True
                    except Unavailable:
                        return  # the next incarnation takes it up again
                    except (BackendError, StoreError) as error:
                        if self._complaints.is_news((source.id, destination), str(error)):
                            logger.warning("transfers from partition %d to %d wait: %s", source.id, destination, error)
                        stuck = True
                if stuck:
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            source.ferry = None

    async def _transfer(self, source: Partition, destination: int) -> None:
        """Bring what is under way to one destination there, or back if that is gone for good."""
        node, outgoing = self._node, source.fold.outgoing[destination]
        target = await self._open(Target(destination, outgoing.queue_id))
        pending = dict(islice(outgoing.pending.items(), BATCH))
        if target is None:
            logger.warning("the queue of partition %d is gone: its messages go back to %d", destination, source.id)
            await node.write_all(
                source, lambda _: [records.TransferBack(destination, list(pending)), records.Forgotten([destination])]
            )
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
            await node.write_all(source, lambda _: [records.TransferDone(destination, lost)])
        loaded = await node.windows.load(source, wanted)
        try:
            if not any(one.fold.dropped or one.closed for one in (source, target)):
                self._hand_over(source, target, {t: n for t, (n, _) in pending.items()}, loaded)
        finally:  # when there was room for some of them only, those have arrived
            node.changed(target)
            node.changed(source)
        await node.durable()

    def _hand_over(
        self, source: Partition, target: Partition, pending: dict[int, int], loaded: dict[int, tuple[Message, bytes]]
    ) -> None:
        """Write that the destination has the messages and that the source lets go, with nothing in between."""
        node, now = self._node, self._node.clock()
        for transfer, number in pending.items():
            entry = loaded.get(number)
            if entry is None or transfer not in source.fold.outgoing[target.id].pending:
                continue
            head, payload = entry
            node.log.check_room(len(payload) + 512 + 4 * len(head.group or "") + len(head.origin or ""))
            arrived = target.queue.transfer_in(source.fold, transfer, number, head, now)
            if arrived is not None:
                node.write(target, arrived, now, payload)
            node.write(source, records.TransferDone(target.id, [transfer]), now)
            node.windows.forget(source, [number])

    async def _open(self, target: Target) -> Partition | None:
        """The destination, opened if need be; None if its queue is deleted for good."""
        node = self._node
        partition = node.partitions.get(target.partition)
        if partition is None:
            settings = await node.resolver.settings(target)
            if settings is None:
                return None
            await node.configure(settings)
            partition = node.partitions.get(target.partition)
        return partition

    # --- move tasks -------------------------------------------------------------------------------------

    async def _move(self, source: Partition) -> None:
        try:
            while (task := source.fold.running_task) is not None and not source.fold.dropped:
                try:
                    await self._move_some(source, task)
                    self._complaints.settled(task.task_id)
                except StorageFull:
                    await asyncio.sleep(RETRY_SECONDS)
                except Unavailable:
                    return
                except (BackendError, StoreError) as error:
                    if self._complaints.is_news(task.task_id, str(error)):
                        logger.warning("move task %s of partition %d waits: %s", task.task_id, source.id, error)
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            source.mover = None

    async def _move_some(self, source: Partition, task: MoveTask) -> None:
        """Move a batch, or end the task when there is nothing more to move."""
        node = self._node
        under_way = sum(redrive for out in source.fold.outgoing.values() for _, redrive in out.pending.values())
        batch = max(1, min(BATCH, task.rate_per_second // 10)) if task.rate_per_second else BATCH
        batch = min(batch, task.total - task.moved - under_way)
        movable = source.queue.movable(batch, node.clock()) if task.status == "RUNNING" and batch > 0 else []
        if not movable:
            if under_way:
                await self._settled(source)
                return
            status = "CANCELLED" if task.status == "CANCELLING" else "COMPLETED"
            await node.write_all(source, lambda _: [records.MoveEnded(task.task_id, status)])
            return
        began = node.clock()
        loaded = await node.windows.load(source, movable)
        chosen: list[tuple[int, Target]] = []
        targets: dict[str, Target | None] = {}
        """Asked once for each batch: most messages of one have the same destination."""
        for number, _ in movable:
            if number not in loaded:
                continue
            arn = task.destination_arn or loaded[number][0].origin
            if arn is not None and arn not in targets:
                targets[arn] = await node.resolver.target(arn)
            target = targets[arn] if arn is not None else None
            if target is None:
                failure = "CouldNotDetermineMessageSource" if arn is None else NO_QUEUE
                ended = records.MoveEnded(task.task_id, "FAILED", failure)
                await node.write_all(source, lambda _, ended=ended: [ended])  # type: ignore[misc]
                return
            chosen.append((number, target))
        await node.write_all(source, lambda now: source.queue.move_out(chosen, now))
        await self._settled(source)
        if task.rate_per_second:
            elapsed = (node.clock() - began) / 1000
            await asyncio.sleep(max(0.0, len(chosen) / task.rate_per_second - elapsed))

    async def _settled(self, source: Partition) -> None:
        """Until what is under way from this source has arrived."""
        self.kick(source)
        if source.ferry is not None:
            await asyncio.wait([source.ferry])


NO_QUEUE = "AWS.SimpleQueueService.NonExistentQueue"
"""FailureReason of a task whose destination does not exist."""
