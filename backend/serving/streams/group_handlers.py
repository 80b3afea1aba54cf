"""Handlers of the commands for consumer groups.

A join or a sync may wait for other members.  It gets its answer from a later decision: of another member's call, or of
the group's timer (:meth:`GroupHandlers._perform`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from backend.api import Command, PartitionDamaged, PartitionGone, PartitionUnknown, StorageFull, Target, Unavailable
from backend.engine.timers import NEVER
from backend.journal.interface import Log
from backend.serving.background import LogThrottle, Slices, Tasks
from backend.serving.shards import Shards
from backend.serving.stream_partition import OpenGroup
from backend.serving.wakeups import Wakeups
from backend.serving.writer import PartitionWriter
from backend.stream_api import (
    CommittedOffset,
    DescribedGroup,
    FetchedOffset,
    GroupSettings,
    JoinAnswer,
    JoinRequest,
    StreamError,
    SyncAnswer,
    SyncRequest,
)
from backend.stream_commands import (
    CommitOffsets,
    ConfigureGroup,
    DeleteGroup,
    DeleteOffsets,
    DeleteOffsetsAnswer,
    DescribeGroup,
    FetchOffsets,
    ForgetTopic,
    GroupHeartbeat,
    JoinGroup,
    LeaveAnswer,
    LeaveGroup,
    ListCommittedOffsets,
    ListedGroup,
    ListGroups,
    SyncGroup,
)
from backend.streams.coordinator import GroupOutcome
from backend.streams.group import GroupFold
from backend.streams.members import Token
from backend.streams.offsets import CHECK_MS
from backend.streams.records import GroupConfigured, GroupRecord

logger = logging.getLogger(__name__)

RECORD_BYTES = 4096
"""Upper bound on the bytes of a record that creates a group."""
TIMER_SECONDS_MIN = 0.001
RETRY_SECONDS = 1.0
"""Time after which a group's timer is repeated if its records cannot be written."""
EXPIRY_SECONDS = 60.0
"""Interval in which all groups are checked for expired offsets."""

Waiter = asyncio.Future[Any]
C = TypeVar("C")
T = TypeVar("T")


class GroupHandlers:
    """Runs the commands for groups on the groups of an incarnation."""

    def __init__(self, log: Log, shards: Shards, writer: PartitionWriter, wakeups: Wakeups, tasks: Tasks) -> None:
        self._log = log
        self._shards = shards
        self._writer = writer
        self._wakeups = wakeups
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._log_throttle = LogThrottle()
        self.handlers: Mapping[type[Command[Any]], Callable[[Any], Coroutine[Any, Any, Any]]] = {
            ConfigureGroup: self.configure,
            JoinGroup: self.join,
            SyncGroup: self.sync,
            GroupHeartbeat: self.heartbeat,
            LeaveGroup: self.leave,
            CommitOffsets: self.commit,
            FetchOffsets: self.fetch_offsets,
            ListCommittedOffsets: self.list_offsets,
            DeleteOffsets: self.delete_offsets,
            ForgetTopic: self.forget_topic,
            DescribeGroup: self.describe,
            DeleteGroup: self.delete,
            ListGroups: self.list_groups,
        }

    def _find(self, target: Target) -> OpenGroup:
        group = self._shards.streams.get(target.partition)
        if group is None:
            damage = self._shards.damage_of(target.partition)
            if damage is not None:
                raise PartitionDamaged(damage)
            raise PartitionUnknown(f"partition {target.partition} is not open")
        if not isinstance(group, OpenGroup):
            raise PartitionGone(f"partition {target.partition} is of a topic")
        group.check(target)
        return group

    def opened(self, group: OpenGroup) -> None:
        """Start the sessions of a group that has just been opened."""
        self._set_timer(group)

    # --- decisions --------------------------------------------------------------------------------------

    async def _decide(self, decide: Callable[[C], T], command: C) -> T:
        """Return a decision, whose records are written, when all that it depends on is durable."""
        decided = await self._writer.with_space(decide, command)
        await self._writer.durable()
        return decided

    def _check_space(self, group: OpenGroup, request: JoinRequest | SyncRequest | None = None) -> None:
        """Check that the records of the next decision can be written: it cannot be decided twice."""
        self._writer.check_space(group.coordinator.record_bytes_max(request), True)

    def _advance(self, group: OpenGroup) -> int:
        """End the sessions and waits whose time is over; return the time."""
        now = group.clock()
        if now >= group.coordinator.due:
            self._check_space(group)
            self._perform(group, group.coordinator.advance(now), now)
        return now

    def _perform(self, group: OpenGroup, outcome: GroupOutcome, now: int) -> None:
        """Write the records of a decision, and send its answers when they are durable."""
        for record in outcome.records:
            self._writer.write(group, record, now)
        ready = []
        for token, answer in outcome.answers:
            waiter = group.waiting.pop(token, None)
            if waiter is not None and not waiter.done():
                ready.append((waiter, answer))
        if ready:
            barrier = self._log.barrier()
            if barrier is None:
                _send(ready)
            else:
                barrier.add_done_callback(partial(_on_durable, ready))
        self._set_timer(group)

    # --- the timer --------------------------------------------------------------------------------------

    def _set_timer(self, group: OpenGroup) -> None:
        """Set the group's timer to the end of the next session or wait."""
        due = NEVER if group.fold.dropped else group.coordinator.due
        if group.closed or due == NEVER or (group.timer is not None and group.timer_ms <= due):
            return
        group.cancel_timer()
        seconds = max(TIMER_SECONDS_MIN, (due - group.clock()) / 1000)
        group.timer_ms = due
        group.timer = self._loop.call_later(seconds, self._on_timer, group)

    def _on_timer(self, group: OpenGroup) -> None:
        group.timer = None
        if group.closed or self._shards.streams.get(group.id) is not group:
            return
        try:
            self._advance(group)
            self._set_timer(group)
            self._log_throttle.forget(group.id)
        except (StorageFull, Unavailable) as error:
            if self._log_throttle.should_log(group.id, str(error)):
                logger.warning("the sessions of group %d are not ended now: %s", group.id, error)
            group.timer_ms = group.coordinator.due
            group.timer = self._loop.call_later(RETRY_SECONDS, self._on_timer, group)
        except Exception as error:
            self._tasks.failed("the timer of a group", error)

    # --- calls that may wait ------------------------------------------------------------------------------

    async def join(self, command: JoinGroup) -> JoinAnswer:
        def decide(command: JoinGroup) -> tuple[OpenGroup, Token, Waiter]:
            group = self._find(command.target)
            self._check_space(group, command.request)
            token, waiter = self._new_waiter(group)
            now = group.clock()
            self._perform(group, group.coordinator.join(token, command.request, now), now)
            return group, token, waiter

        decided = await self._writer.with_space(decide, command)
        answer = await self._answer(*decided, command.wait_seconds)
        if isinstance(answer, JoinAnswer):
            return answer
        return JoinAnswer(StreamError.REBALANCE_IN_PROGRESS, command.request.member_id)

    async def sync(self, command: SyncGroup) -> SyncAnswer:
        def decide(command: SyncGroup) -> tuple[OpenGroup, Token, Waiter]:
            group = self._find(command.target)
            self._check_space(group, command.request)
            token, waiter = self._new_waiter(group)
            now = group.clock()
            self._perform(group, group.coordinator.sync(token, command.request, now), now)
            return group, token, waiter

        decided = await self._writer.with_space(decide, command)
        answer = await self._answer(*decided, command.wait_seconds)
        return answer if isinstance(answer, SyncAnswer) else SyncAnswer(StreamError.REBALANCE_IN_PROGRESS)

    def _new_waiter(self, group: OpenGroup) -> tuple[Token, Waiter]:
        group.token += 1
        waiter = group.waiting[group.token] = self._loop.create_future()
        return group.token, waiter

    async def _answer(self, group: OpenGroup, token: Token, waiter: Waiter, wait_seconds: float) -> object:
        """Wait for the answer to a call; None: the wait is over."""
        if self._wakeups.draining:
            wait_seconds = 0.0
        timeout = self._loop.call_later(wait_seconds, _end_wait, group, token)
        try:
            return await waiter
        finally:
            timeout.cancel()
            group.waiting.pop(token, None)

    # --- members ----------------------------------------------------------------------------------------

    async def heartbeat(self, command: GroupHeartbeat) -> StreamError:
        def decide(command: GroupHeartbeat) -> StreamError:
            group = self._find(command.target)
            now = self._advance(group)
            outcome = group.coordinator.heartbeat(command.member_id, command.generation, command.instance_id, now)
            self._perform(group, outcome, now)
            return outcome.error

        return await self._decide(decide, command)

    async def leave(self, command: LeaveGroup) -> LeaveAnswer:
        def decide(command: LeaveGroup) -> LeaveAnswer:
            group = self._find(command.target)
            self._check_space(group)
            now = group.clock()
            outcome = group.coordinator.leave(list(command.departures), now)
            self._perform(group, outcome, now)
            return LeaveAnswer(outcome.error, outcome.errors)

        return await self._decide(decide, command)

    async def describe(self, command: DescribeGroup) -> DescribedGroup:
        def decide(command: DescribeGroup) -> DescribedGroup:
            group = self._find(command.target)
            self._advance(group)
            return group.coordinator.describe()

        return await self._decide(decide, command)

    async def list_groups(self, command: ListGroups) -> list[ListedGroup]:
        listed = []
        slices = Slices()
        for group in list(self._shards.streams.values()):
            settings = group.fold.settings if isinstance(group, OpenGroup) else None
            if settings is not None and settings.account == command.account and not group.fold.dropped:
                assert isinstance(group, OpenGroup)
                described = group.coordinator.describe()
                listed.append(ListedGroup(settings.name, described.protocol_type, described.state))
            await slices.step()
        await self._writer.durable()
        return listed

    # --- offsets ----------------------------------------------------------------------------------------

    async def commit(self, command: CommitOffsets) -> list[StreamError]:
        def decide(command: CommitOffsets) -> list[StreamError]:
            group = self._find(command.target)
            now = self._advance(group)
            written, errors = group.offsets.commit(
                command.member_id, command.generation, command.instance_id, command.commits, now
            )
            self._write(group, written, now)
            return errors

        return await self._decide(decide, command)

    async def fetch_offsets(self, command: FetchOffsets) -> list[CommittedOffset | None]:
        return await self._decide(lambda one: self._find(one.target).offsets.fetch(one.wanted), command)

    async def list_offsets(self, command: ListCommittedOffsets) -> list[FetchedOffset]:
        return await self._decide(lambda one: self._find(one.target).offsets.fetch_all(), command)

    async def delete_offsets(self, command: DeleteOffsets) -> DeleteOffsetsAnswer:
        def decide(command: DeleteOffsets) -> DeleteOffsetsAnswer:
            group = self._find(command.target)
            now = self._advance(group)
            error, written, errors = group.offsets.delete(command.wanted)
            self._write(group, written, now)
            return DeleteOffsetsAnswer(error, errors)

        return await self._decide(decide, command)

    async def forget_topic(self, command: ForgetTopic) -> None:
        def decide(command: ForgetTopic) -> None:
            group = self._find(command.target)
            self._write(group, group.offsets.delete_topic(command.topic_id), group.clock())

        await self._decide(decide, command)

    def _write(self, group: OpenGroup, written: Sequence[GroupRecord], now: int) -> None:
        self._writer.write_records(group, written, now)
        self._set_timer(group)

    # --- the group as a whole -----------------------------------------------------------------------------

    async def configure(self, command: ConfigureGroup) -> None:
        settings = command.settings
        if settings.partition not in self._shards.streams:
            damage = self._shards.damage_of(settings.partition)
            if damage is not None:
                raise PartitionDamaged(damage)
            await self._log.wait_for_space(RECORD_BYTES, True)
        await self._decide(self._configure, settings)

    def _configure(self, settings: GroupSettings) -> None:
        group = self._shards.streams.get(settings.partition)
        record = GroupConfigured(settings)
        if group is None:
            shard = self._shards.of(settings.partition)
            fold = GroupFold(settings.partition)
            fold.open(shard.epoch)
            fold.apply(record, self._writer.append(shard, fold.partition, record))
            self._shards.add_stream(fold)
            return
        known = group.fold.settings
        if not isinstance(group, OpenGroup) or not isinstance(known, GroupSettings):
            raise PartitionGone(f"partition {settings.partition} is of a topic")
        if known.group_id != settings.group_id:
            raise PartitionGone(f"partition {settings.partition} is of another group")
        if known.version < settings.version:
            self._write(group, [record], group.clock())

    async def delete(self, command: DeleteGroup) -> StreamError:
        def decide(command: DeleteGroup) -> StreamError:
            group = self._find(command.target)
            self._check_space(group)
            now = group.clock()
            outcome = group.coordinator.delete(now)
            self._perform(group, outcome, now)
            if group.fold.dropped:
                self._remove(group)
            return outcome.error

        return await self._decide(decide, command)

    def _remove(self, group: OpenGroup) -> None:
        """Stop serving a group that was dropped."""
        group.cancel_timer()
        group.end_waits(PartitionUnknown(f"group {group.id} was deleted"))
        self._shards.remove_stream(group)

    async def expire(self) -> None:
        """Remove expired offsets, and groups that are not used any more, for as long as the node serves."""
        while True:
            await asyncio.sleep(EXPIRY_SECONDS)
            await self.expire_due()

    async def expire_due(self) -> None:
        """Remove the expired offsets of the groups that were not checked lately."""
        slices = Slices()
        for group in [one for one in self._shards.streams.values() if isinstance(one, OpenGroup)]:
            if self._shards.streams.get(group.id) is group and group.clock() >= group.checked_ms + CHECK_MS:
                try:
                    now = self._advance(group)
                    self._write(group, group.offsets.expire(now), now)
                    group.checked_ms = now
                    if group.fold.dropped:
                        self._remove(group)
                    self._log_throttle.forget(("expiry", group.id))
                except (StorageFull, Unavailable) as error:
                    if self._log_throttle.should_log(("expiry", group.id), str(error)):
                        logger.warning("expired offsets of group %d stay for now: %s", group.id, error)
            await slices.step()


def _send(ready: Sequence[tuple[Waiter, object]]) -> None:
    for waiter, answer in ready:
        if not waiter.done():
            waiter.set_result(answer)


def _on_durable(ready: Sequence[tuple[Waiter, object]], barrier: asyncio.Future[None]) -> None:
    """Send answers whose records are durable now, or are not known to be."""
    error = Unavailable("the node is closed") if barrier.cancelled() else barrier.exception()
    if error is None:
        _send(ready)
        return
    for waiter, _ in ready:
        if not waiter.done():
            waiter.set_exception(error)


def _end_wait(group: OpenGroup, token: Token) -> None:
    waiter = group.waiting.pop(token, None)
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
