"""An open queue partition of a node: its fold, and state that a restart may forget."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeAlias

from backend.api import (
    MapStale,
    NotificationCounts,
    NotOwner,
    PartitionGone,
    PartitionSettings,
    PartitionState,
    Publication,
    SettingsStale,
    Target,
    Transfer,
)
from backend.engine.fold import Fold
from backend.engine.ids import salt_of
from backend.engine.queue import QueueCommands
from backend.engine.receipt_handles import Handles
from backend.engine.records import Message, MessagePublished
from backend.engine.timers import NEVER

Entry: TypeAlias = tuple[Message, bytes]
"""A message in memory: its head and its payload."""

RECORD_OVERHEAD_BYTES = 192
"""Upper bound on the bytes of a message's record, without its payload, group and id."""


class OpenPartition:
    """One open partition."""

    __slots__ = (
        "account",
        "cached",
        "clock",
        "closed",
        "deduplicated",
        "deleted",
        "dropped_before",
        "dropped_noted",
        "empty_receives",
        "epoch",
        "fanout_task",
        "fold",
        "id",
        "is_first_owner",
        "loading",
        "mean_bytes",
        "move_worker",
        "notifications",
        "queue",
        "received",
        "recorded_byte_ms",
        "sent",
        "sent_bytes",
        "shard",
        "since_ms",
        "token_import_task",
        "transfer_round",
        "transfer_task",
        "waiters",
        "wakeup_at",
        "wakeup_ms",
    )

    def __init__(self, fold: Fold, shard: int, epoch: int, clock: Callable[[], int]) -> None:
        """``clock``: the shard's clock."""
        assert fold.settings is not None
        self.id = fold.partition
        self.account = fold.settings.account
        self.shard = shard
        self.epoch = epoch
        self.clock = clock
        self.fold = fold
        key = fold.settings.handle_key
        self.queue = QueueCommands(fold, Handles(fold.partition, key), salt_of(key))
        self.waiters: OrderedDict[asyncio.Future[None], bool] = OrderedDict()
        """Long polls, the longest waiting first; the value is True for those that only watch and claim nothing."""
        self.cached: dict[int, Entry] = {}
        """Messages likely to be received soon (:mod:`backend.serving.payload_cache`)."""
        self.loading: asyncio.Future[None] | None = None
        """Done when the read in progress has cached the messages that it read ahead."""
        self.mean_bytes = 1024.0
        """Moving average of the size of its messages' records."""
        self.wakeup_ms = NEVER
        """Time of the next wakeup of this partition, in its shard's time."""
        self.wakeup_at = 0.0
        """Time of the same wakeup in the loop's time, or somewhat earlier."""
        self.closed = False
        """True if its shard is in hand-over, or now belongs to another node: nothing may be written any more."""
        self.is_first_owner = False
        """True if this node is the partition's first owner."""
        self.recorded_byte_ms = 0
        """Byte-milliseconds of storage since it was opened that are already recorded
        (:mod:`backend.cluster.storage_meter`)."""
        self.since_ms = fold.now
        """Start of the counts below (:class:`~backend.api.Measures` defines them)."""
        self.sent = self.sent_bytes = self.deduplicated = 0
        self.received = self.empty_receives = self.deleted = 0
        self.notifications: NotificationCounts | None = None
        self.dropped_before = fold.dropped_deliveries
        """Deliveries that were given up before."""
        self.dropped_noted = fold.dropped_deliveries
        """Deliveries given up that are counted in the metrics, and logged."""
        self.transfer_task: asyncio.Task[None] | None = None
        self.transfer_round: asyncio.Future[tuple[int, bool]] | None = None
        """Resolved with (destination, success) at the end of the next transfer round; set while a receive waits for
        it.
        """
        self.fanout_task: asyncio.Task[None] | None = None
        self.move_worker: asyncio.Task[None] | None = None
        self.token_import_task: asyncio.Task[None] | None = None

    def weigh(self, payload_bytes: float) -> None:
        """Update the mean record size with a payload of this size."""
        self.mean_bytes += (payload_bytes + RECORD_OVERHEAD_BYTES - self.mean_bytes) / 8

    @property
    def claimable(self) -> bool:
        """True if a receive would find a message."""
        fold = self.fold
        assert fold.settings is not None
        return fold.order.any(fold.now) and len(fold.in_flight) < fold.settings.in_flight_limit

    @property
    def retired(self) -> bool:
        assert self.fold.settings is not None
        return self.fold.settings.state == PartitionState.RETIRED

    def check_not_retired(self) -> None:
        """Raise :class:`PartitionGone` if the partition has retired."""
        if self.retired:
            raise self.gone()

    def gone(self) -> PartitionGone:
        """Error for calls to a partition that has retired."""
        return PartitionGone(f"partition {self.id} has retired")

    def check_open(self) -> None:
        """Raise :class:`NotOwner` if the shard was handed over.  For callers that have awaited since they found the
        partition.
        """
        if self.closed:
            raise NotOwner(self.shard, None)

    def check(self, target: Target) -> None:
        """Raise :class:`PartitionGone`, :class:`SettingsStale` or :class:`MapStale` if the target is outdated."""
        settings = self.fold.settings
        assert settings is not None
        if settings.queue_id != target.queue_id or self.fold.dropped:
            raise PartitionGone(f"partition {self.id} is of another queue now")
        if settings.version != target.version:
            self._check_version(settings, target.version)

    def _check_version(self, settings: PartitionSettings, known: int) -> None:
        if settings.version < known:
            raise SettingsStale(f"partition {self.id} has settings {settings.version}, the caller {known}")
        # 0: the caller is another partition, which knows only the number.
        if 0 < known < settings.map_version:
            raise MapStale(f"the queue of partition {self.id} has a map of version {settings.map_version}")


def columns_bytes(published: MessagePublished) -> int:
    """Return an upper bound on the bytes of a publication's deliveries in its record."""
    columns = (published.partitions, published.queues, published.subscriptions, published.raw)
    return sum(map(len, columns)) + len(published.tokens) + len(published.also) + 64


def size_of_publication(publication: Publication) -> int:
    """Return an upper bound on the bytes to record a publication, and each of its deliveries with the payload."""
    each = len(publication.payload) + 512 + 4 * len(publication.group or "")
    return each * (1 + len(publication.deliveries))


def size_of_transfer(moved: Transfer) -> int:
    """Return an upper bound on the bytes to record that the message has arrived, and that its source drops it."""
    return len(moved.payload) + 512 + 4 * len(moved.group or "") + len(moved.origin or "")
