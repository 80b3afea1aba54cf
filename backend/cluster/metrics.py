"""Metrics of a node: messages, shards, disk space, clocks.

Nothing is maintained between scrapes: values are summed on demand, at most once in :data:`REFRESH_SECONDS`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from backend import instruments
from backend.api import SHARDS
from backend.cluster.member import Member
from backend.node import Node
from backend.serving.queue_stats import name_of
from backend.serving.stream_partition import OpenGroup, OpenStream
from backend.streams.coordinator import GroupPhase
from backend.streams.stream import StreamFold
from metadata_service.topics import subscription_id_of
from telemetry.metrics import Readings, Registry

REFRESH_SECONDS: Final = 1.0
AT_ONCE: Final = 500
"""Partitions summed before other tasks get a turn: about half a millisecond."""


class Sums:
    """Sums over all partitions of a node, as of the last :meth:`refresh`."""

    def __init__(self, node: Node, clock: Callable[[], float] = time.monotonic) -> None:
        self.visible = self.in_flight = self.delayed = self.stored_bytes = self.quarantined = 0
        self.oldest_ms = 0
        """Age of the oldest message; 0: there is none."""
        self.pending_deliveries = self.oldest_pending_ms = 0
        """Deliveries of publications still to be made, and the age of the oldest publication that has some."""
        self.waiting_notifications = self.oldest_waiting_ms = 0
        """Messages in the hidden queues of subscriptions, and the age of the oldest one."""
        self.topic_partitions = self.batch_bytes = 0
        self.unbound_bytes = self.unbound_bytes_max = 0
        """Bytes of batches in the log; of one partition, at most."""
        self.groups: Counter[GroupPhase] = Counter()
        self.lag = self.lag_max = 0
        """Records behind the committed offsets of groups; of one group, at most."""
        self.lag_unknown = 0
        """Committed offsets whose partition could not be asked."""
        self._node = node
        self._clock = clock
        self._checked_at = -REFRESH_SECONDS

    async def refresh(self) -> None:
        """Recompute the sums, unless they were computed just now."""
        now = self._clock()
        if now - self._checked_at < REFRESH_SECONDS:
            return
        self._checked_at = now
        visible = in_flight = delayed = stored_bytes = quarantined = oldest_ms = pending = oldest_pending_ms = 0
        waiting = oldest_waiting_ms = 0
        for count, partition in enumerate(list(self._node.partitions.values()), 1):
            counters = partition.fold.counters()
            visible += counters.visible
            in_flight += counters.in_flight
            delayed += counters.delayed
            stored_bytes += counters.stored_bytes
            quarantined += partition.fold.quarantined
            sent_ms = partition.fold.first_sent_ms()
            if sent_ms:
                oldest_ms = max(oldest_ms, partition.clock() - sent_ms)
                if subscription_id_of(name_of(partition)) is not None:
                    waiting += counters.visible + counters.in_flight + counters.delayed
                    oldest_waiting_ms = max(oldest_waiting_ms, partition.clock() - sent_ms)
            if partition.fold.publications:
                pending += partition.fold.pending_deliveries
                oldest_pending_ms = max(oldest_pending_ms, partition.clock() - sent_ms)
            if not count % AT_ONCE:
                await asyncio.sleep(0)
        self.visible, self.in_flight, self.delayed = visible, in_flight, delayed
        self.stored_bytes, self.quarantined, self.oldest_ms = stored_bytes, quarantined, oldest_ms
        self.pending_deliveries, self.oldest_pending_ms = pending, oldest_pending_ms
        self.waiting_notifications, self.oldest_waiting_ms = waiting, oldest_waiting_ms
        await self._refresh_streams()

    async def _refresh_streams(self) -> None:
        topic_partitions = batch_bytes = unbound_bytes = unbound_bytes_max = 0
        folds: dict[tuple[bytes, int], StreamFold] = {}
        groups: list[OpenGroup] = []
        for count, stream in enumerate(list(self._node.streams.values()), 1):
            if isinstance(stream, OpenStream):
                fold = stream.fold
                topic_partitions += 1
                batch_bytes += fold.stored_bytes
                unbound_bytes += fold.log_bytes
                unbound_bytes_max = max(unbound_bytes_max, fold.log_bytes)
                if fold.settings is not None:
                    folds[fold.settings.topic_id, fold.settings.number] = fold
            else:
                groups.append(stream)
            if not count % AT_ONCE:
                await asyncio.sleep(0)
        self.topic_partitions, self.batch_bytes = topic_partitions, batch_bytes
        self.unbound_bytes, self.unbound_bytes_max = unbound_bytes, unbound_bytes_max
        self.groups = Counter(group.coordinator.phase for group in groups)
        await self._refresh_lag(groups, folds)

    async def _refresh_lag(self, groups: Sequence[OpenGroup], folds: Mapping[tuple[bytes, int], StreamFold]) -> None:
        total = largest = unknown = count = 0
        remote = self._node.remote_ends
        for group in groups:
            lag = 0
            for topic_id, _, number, committed in list(group.fold.offsets()):
                place = topic_id, number
                ends = folds[place] if place in folds else remote.get(place)
                if ends is None:
                    unknown += 1
                else:
                    lag += max(0, ends.next_offset - max(committed.offset, ends.log_start))
                count += 1
                if not count % AT_ONCE:
                    await asyncio.sleep(0)
            total += lag
            largest = max(largest, lag)
        self.lag, self.lag_max, self.lag_unknown = total, largest, unknown


def register(
    registry: Registry,
    node: Node,
    folder: Path | None = None,
    *,
    low_water_bytes: int = 0,
    wall: Callable[[], float] = time.time,
) -> None:
    """Register the node's metrics.  ``folder``: folder of its journal, if it is on a disk of this machine."""
    sums = Sums(node)

    def messages() -> Readings:
        return {("visible",): sums.visible, ("in flight",): sums.in_flight, ("delayed",): sums.delayed}

    instruments.register(registry)
    registry.before(sums.refresh)
    registry.declare(
        "holdfast_messages",
        "Messages stored on this node: visible, in flight, delayed.",
        messages,
        labels=("state",),
        series_max=3,
    )
    registry.declare("holdfast_stored_bytes", "Bytes of the messages stored on this node.", lambda: sums.stored_bytes)
    registry.declare(
        "holdfast_oldest_message_seconds",
        "Age of the oldest message stored on this node; 0: none.",
        lambda: sums.oldest_ms / 1000,
    )
    registry.declare(
        "holdfast_pending_deliveries",
        "Deliveries of topics' publications that this node has still to make.",
        lambda: sums.pending_deliveries,
    )
    registry.declare(
        "holdfast_oldest_pending_delivery_seconds",
        "Age of the oldest publication on this node with deliveries still to be made; 0: none.",
        lambda: sums.oldest_pending_ms / 1000,
    )
    registry.declare(
        "holdfast_waiting_notifications",
        "Messages on this node that wait for HTTP endpoints of subscriptions.",
        lambda: sums.waiting_notifications,
    )
    registry.declare(
        "holdfast_oldest_waiting_notification_seconds",
        "Age of the oldest message on this node that waits for an HTTP endpoint of a subscription; 0: none.",
        lambda: sums.oldest_waiting_ms / 1000,
    )
    registry.declare("holdfast_partitions", "Queue partitions served by this node.", lambda: len(node.partitions))
    registry.declare("holdfast_shards", f"Shards of {SHARDS} that this node serves.", lambda: len(node.owned))
    registry.declare("holdfast_serving", "1: calls are served; 0: the journal is being recovered.", lambda: node.ready)
    registry.declare(
        "holdfast_storing", "1: messages are accepted; 0: no space, or no quorum.", lambda: bool(node.accepts_sends)
    )
    registry.declare(
        "holdfast_damaged", "Shards and partitions that cannot be served because their journal is damaged.",
        lambda: len(node.damage),
    )  # fmt: skip
    registry.declare(
        "holdfast_quarantined_messages",
        "Lost messages of this node's queues, whose bytes are damaged or unreadable.",
        lambda: sums.quarantined,
    )
    registry.declare(
        "holdfast_memory_share",
        "Used fraction of the memory for messages (memory_limit); 0 without a limit.",
        lambda: node.memory_share,
    )
    registry.declare(
        "holdfast_journal_unsynced_bytes", "Bytes written and not durable yet.", lambda: node.unsynced_bytes
    )
    registry.declare(
        "holdfast_clock_offset_seconds",
        "Largest difference of the queues' time to this machine's clock.",
        lambda: (node.furthest_ms(wall() * 1000)) / 1000,
    )
    _register_streams(registry, sums)
    _register_kept(registry, node)
    if folder is not None:
        _register_disk(registry, folder, low_water_bytes)


def _register_streams(registry: Registry, sums: Sums) -> None:
    registry.declare(
        "holdfast_topic_partitions", "Partitions of topics served by this node.", lambda: sums.topic_partitions
    )
    registry.declare(
        "holdfast_consumer_groups",
        "Consumer groups served by this node, by state: Empty, PreparingRebalance, CompletingRebalance, Stable, Dead.",
        lambda: {(phase.value,): sums.groups[phase] for phase in GroupPhase},
        labels=("state",),
        series_max=len(GroupPhase),
    )
    registry.declare(
        "holdfast_consumer_lag_records",
        "Records behind the committed offsets of this node's consumer groups.",
        lambda: sums.lag,
    )
    registry.declare(
        "holdfast_consumer_lag_records_max",
        "The same, of the consumer group with the most.",
        lambda: sums.lag_max,
    )
    registry.declare(
        "holdfast_consumer_lag_unknown",
        "Committed offsets of this node's consumer groups in partitions that could not be asked, or were deleted.",
        lambda: sums.lag_unknown,
    )
    registry.declare(
        "holdfast_batch_bytes", "Bytes of the topics' batches stored on this node.", lambda: sums.batch_bytes
    )
    registry.declare(
        "holdfast_unbound_batch_bytes",
        "Bytes of the topics' batches that are still in the log, not in extents.",
        lambda: sums.unbound_bytes,
    )
    registry.declare(
        "holdfast_unbound_batch_bytes_max",
        "The same, of the topic partition with the most.",
        lambda: sums.unbound_bytes_max,
    )


def register_member(registry: Registry, member: Member) -> None:
    """Register the metrics of the node's view of its cluster."""

    def nodes() -> Readings | None:
        view = member.managed
        if view is None:
            return None
        return {
            ("live",): len(view.live),
            ("draining",): sum(view.draining(name) for name in view.live),
            ("unreachable",): len(view.unreachable & view.live.keys()),
        }

    def unassigned() -> float | None:
        view = member.managed
        return None if view is None else sum(view.owner(shard) is None for shard in range(SHARDS))

    registry.declare(
        "holdfast_clock_behind_cluster_seconds",
        "Lead of the cluster's time (median of its nodes' clocks) over this machine's clock, as far as "
        "heartbeats prove it.",
        lambda: member.clock_behind_ms / 1000,
    )
    registry.declare(
        "holdfast_cluster_nodes",
        "Nodes of the backend cluster, as its manager sees them; draining and unreachable nodes are live, too.",
        nodes,
        labels=("state",),
        series_max=3,
    )
    registry.declare(
        "holdfast_cluster_unassigned_shards", "Shards without a live owner, as the manager sees it.", unassigned
    )


def _register_kept(registry: Registry, node: Node) -> None:
    def pinned() -> Readings | None:
        return None if node.kept is None else {(kind,): count for kind, count in node.kept.pinned_by.items()}

    def behind() -> Readings | None:
        return None if node.kept is None else {(kind,): count for kind, count in node.kept.behind.items()}

    registry.declare(
        "holdfast_journal_bytes",
        "Size of the journal's segments, as of the last checkpoint.",
        lambda: None if node.kept is None else node.kept.size_bytes,
    )
    registry.declare(
        "holdfast_journal_pinned_segments",
        "Closed segments of the journal by the reason to keep them: replay (a restart reads them), messages "
        "(with live messages), checkpoint (a shard has none after them), backup (being copied), nothing (about "
        "to be deleted).",
        pinned,
        labels=("by",),
        series_max=5,
    )
    registry.declare(
        "holdfast_journal_oldest_pinned_segments",
        "Distance in segments from the oldest kept segment to the current one, by the reason to keep it.",
        behind,
        labels=("by",),
        series_max=5,
    )
    registry.declare(
        "holdfast_journal_sealed_logs",
        "Earlier logs that are still needed.",
        lambda: None if node.kept is None else node.kept.sealed_logs,
    )


def _register_disk(registry: Registry, folder: Path, low_water_bytes: int) -> None:
    def free_bytes() -> float:
        found = os.statvfs(folder)
        return found.f_bavail * found.f_frsize

    def size_bytes() -> float:
        found = os.statvfs(folder)
        return (found.f_blocks - found.f_bfree + found.f_bavail) * found.f_frsize

    registry.declare("holdfast_disk_free_bytes", "Free space on the disk of the journal.", free_bytes)
    registry.declare("holdfast_disk_size_bytes", "Usable size of the disk of the journal.", size_bytes)
    registry.declare(
        "holdfast_disk_low_water_bytes",
        "Free space below which messages are refused.",
        lambda: low_water_bytes,
    )
