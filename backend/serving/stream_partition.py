"""Open partitions of streams and of groups: their folds, and state that a restart may forget."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

from backend.api import NotOwner, PartitionGone, SettingsStale, Target
from backend.streams.binding import ExtentBinder
from backend.streams.commands import StreamCommands
from backend.streams.coordinator import GroupCoordinator
from backend.streams.extents import ExtentWriter
from backend.streams.group import GroupFold
from backend.streams.members import Token
from backend.streams.offsets import OffsetCommands
from backend.streams.stream import StreamFold


class OpenStream:
    """An open partition of a topic."""

    __slots__ = (
        "binder",
        "clock",
        "closed",
        "commands",
        "durable_end",
        "epoch",
        "extent_writer",
        "fold",
        "id",
        "is_first_owner",
        "notified_seq",
        "recorded_byte_ms",
        "shard",
        "undurable",
        "waiters",
    )

    def __init__(self, fold: StreamFold, shard: int, epoch: int, clock: Callable[[], int]) -> None:
        """``clock``: the shard's clock.  All batches in the fold are durable."""
        self.id = fold.partition
        self.shard = shard
        self.epoch = epoch
        self.clock = clock
        self.fold = fold
        self.commands = StreamCommands(fold)
        self.binder = ExtentBinder(fold)
        self.extent_writer: ExtentWriter | None = None
        """Writer of the last extent, if this owner has begun it."""
        self.durable_end = fold.next_offset
        """End of the last batch in a durable row, as of the last :meth:`until`."""
        self.undurable: deque[tuple[int, int]] = deque()
        """(row, end offset) of batches whose rows were not durable then."""
        self.notified_seq = 0
        """The last batch's row when waiting fetches were last registered to be woken by its durability."""
        self.waiters: set[asyncio.Future[None]] = set()
        """Fetches that wait for a durable batch."""
        self.is_first_owner = False
        """True if this node is the partition's first owner."""
        self.recorded_byte_ms = 0
        """Byte-milliseconds of storage since it was opened that are already recorded
        (:mod:`backend.cluster.storage_meter`)."""
        self.closed = False
        """True if its shard is in hand-over, or now belongs to another node: nothing may be written any more."""

    def appended(self, seq: int) -> None:
        """Remember the row of the last batch."""
        self.undurable.append((seq, self.fold.next_offset))

    def until(self, durable_seq: int) -> int:
        """Return the end of the last batch in a durable row."""
        undurable = self.undurable
        while undurable and undurable[0][0] <= durable_seq:
            self.durable_end = max(self.durable_end, undurable.popleft()[1])
        return self.durable_end

    def durable(self, end: int) -> None:
        """Note that all batches below ``end`` are durable; let the waiting fetches check again."""
        self.durable_end = max(self.durable_end, end)
        while self.undurable and self.undurable[0][1] <= end:
            self.undurable.popleft()
        self.wake()

    def wake(self) -> None:
        """Let the waiting fetches check again."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.waiters.clear()

    def end_waits(self, error: Exception | None) -> None:
        """End the waiting fetches, with an error or with what is there."""
        for waiter in self.waiters:
            if not waiter.done():
                if error is None:
                    waiter.set_result(None)
                else:
                    waiter.set_exception(error)
        self.waiters.clear()

    def check(self, target: Target) -> None:
        """Raise :class:`PartitionGone` or :class:`SettingsStale` if the target is outdated."""
        settings = self.fold.settings
        assert settings is not None
        if settings.stream_id != target.queue_id or self.fold.dropped:
            raise PartitionGone(f"partition {self.id} is of another topic now")
        if settings.version < target.version:
            raise SettingsStale(f"partition {self.id} has settings {settings.version}, the caller {target.version}")

    def check_open(self) -> None:
        """Raise :class:`NotOwner` if the shard was handed over: for callers that have awaited since they found the
        partition.
        """
        if self.closed:
            raise NotOwner(self.shard, None)

    @property
    def blocks(self) -> int:
        """Number of chunks that a checkpoint of it may have to write."""
        fold = self.fold
        return len(fold.tail.blocks) + len(fold.extents.blocks) + len(fold.producers.blocks)


class OpenGroup:
    """An open consumer group."""

    __slots__ = (
        "checked_ms",
        "clock",
        "closed",
        "coordinator",
        "epoch",
        "fold",
        "id",
        "offsets",
        "shard",
        "timer",
        "timer_ms",
        "token",
        "waiting",
    )

    def __init__(self, fold: GroupFold, shard: int, epoch: int, clock: Callable[[], int]) -> None:
        """``clock``: the shard's clock."""
        self.id = fold.partition
        self.shard = shard
        self.epoch = epoch
        self.clock = clock
        self.fold = fold
        now = clock()
        self.coordinator = GroupCoordinator(fold, now)
        self.offsets = OffsetCommands(fold, self.coordinator)
        self.checked_ms = now
        """Time at which expired offsets were last removed."""
        self.token: Token = 0
        """Token of the last call that may wait."""
        self.waiting: dict[Token, asyncio.Future[Any]] = {}
        """Joins and syncs without an answer."""
        self.timer: asyncio.TimerHandle | None = None
        self.timer_ms = 0
        """Time for which the timer is set."""
        self.closed = False
        """True if its shard is in hand-over, or now belongs to another node: nothing may be written any more."""

    def end_waits(self, error: Exception | None) -> None:
        """End the waiting calls, with an error or without an answer."""
        for waiter in self.waiting.values():
            if not waiter.done():
                if error is None:
                    waiter.set_result(None)
                else:
                    waiter.set_exception(error)
        self.waiting.clear()

    def cancel_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def check(self, target: Target) -> None:
        """Raise :class:`PartitionGone` or :class:`SettingsStale` if the target is outdated."""
        settings = self.fold.settings
        assert settings is not None
        if settings.group_id != target.queue_id:
            raise PartitionGone(f"partition {self.id} is of another group now")
        if settings.version < target.version:
            raise SettingsStale(f"partition {self.id} has settings {settings.version}, the caller {target.version}")

    def check_open(self) -> None:
        """Raise :class:`NotOwner` if the shard was handed over: for callers that have awaited since they found the
        partition.
        """
        if self.closed:
            raise NotOwner(self.shard, None)

    @property
    def blocks(self) -> int:
        """Number of chunks that a checkpoint of it may have to write."""
        return 1 + len(self.fold.blocks)


StreamPartition: TypeAlias = OpenStream | OpenGroup
"""An open partition of a topic, or an open group."""
