"""Metrics of a node: messages, shards, disk space, clocks.

Nothing is maintained between scrapes: values are summed on demand, at most once in :data:`LOOK_SECONDS`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from backend import instruments
from backend.api import SHARDS
from backend.cluster.member import Member
from backend.node import Node
from telemetry.metrics import Readings, Registry

LOOK_SECONDS: Final = 1.0
AT_ONCE: Final = 500
"""Partitions summed before other tasks get a turn: about half a millisecond."""


class Sums:
    """Sums over all partitions of a node, as of the last :meth:`refresh`."""

    def __init__(self, node: Node, clock: Callable[[], float] = time.monotonic) -> None:
        self.visible = self.in_flight = self.delayed = self.stored_bytes = self.quarantined = 0
        self.oldest_ms = 0
        """Age of the oldest message; 0: there is none."""
        self._node = node
        self._clock = clock
        self._looked_at = -LOOK_SECONDS

    async def refresh(self) -> None:
        """Recompute the sums, unless they were computed just now."""
        now = self._clock()
        if now - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = now
        visible = in_flight = delayed = stored_bytes = quarantined = oldest_ms = 0
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
            if not count % AT_ONCE:
                await asyncio.sleep(0)
        self.visible, self.in_flight, self.delayed = visible, in_flight, delayed
        self.stored_bytes, self.quarantined, self.oldest_ms = stored_bytes, quarantined, oldest_ms


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
        "Messages that are stored here: visible, in flight, delayed.",
        messages,
        labels=("state",),
        most=3,
    )
    registry.declare("holdfast_stored_bytes", "Bytes of the messages that are stored here.", lambda: sums.stored_bytes)
    registry.declare(
        "holdfast_oldest_message_seconds",
        "Age of the oldest message that is stored here; 0: none is.",
        lambda: sums.oldest_ms / 1000,
    )
    registry.declare("holdfast_partitions", "Partitions of queues that are served here.", lambda: len(node.partitions))
    registry.declare("holdfast_shards", f"Shards of {SHARDS} that this node serves.", lambda: len(node.owned))
    registry.declare("holdfast_serving", "1: calls are served; 0: the journal is being recovered.", lambda: node.ready)
    registry.declare(
        "holdfast_storing", "1: messages are taken; 0: there is no room, or no quorum.", lambda: bool(node.room)
    )
    registry.declare(
        "holdfast_damaged", "Shards and partitions that cannot be served, for the journal is damaged there.",
        lambda: len(node.damage),
    )  # fmt: skip
    registry.declare(
        "holdfast_quarantined_messages",
        "Messages of the queues here that are lost, for their bytes are damaged or cannot be read.",
        lambda: sums.quarantined,
    )
    registry.declare(
        "holdfast_memory_share",
        "Part of the memory for messages (memory_limit) that is used; 0 without a limit.",
        lambda: node.memory_share,
    )
    registry.declare(
        "holdfast_journal_unsynced_bytes", "What was written and is not durable yet.", lambda: node.unsynced_bytes
    )
    registry.declare(
        "holdfast_clock_offset_seconds",
        "How far the time of the queues is ahead of this machine's clock, of those where it is furthest from it.",
        lambda: (node.furthest_ms(wall() * 1000)) / 1000,
    )
    _register_kept(registry, node)
    if folder is not None:
        _register_disk(registry, folder, low_water_bytes)


def register_member(registry: Registry, member: Member) -> None:
    """Register the metrics of the node's view of its cluster."""

    def nodes() -> Readings | None:
        view = member.managed
        if view is None:
            return None
        return {
            ("live",): len(view.live),
            ("draining",): sum(view.draining(name) for name in view.live),
            ("cut off",): len(view.cut_off & view.live.keys()),
        }

    def unassigned() -> float | None:
        view = member.managed
        return None if view is None else sum(view.owner(shard) is None for shard in range(SHARDS))

    registry.declare(
        "holdfast_clock_behind_cluster_seconds",
        "How far the cluster's time, the median of its nodes' clocks, is ahead of this machine's clock; no more than "
        "the heartbeats prove.",
        lambda: member.clock_behind_ms / 1000,
    )
    registry.declare(
        "holdfast_cluster_nodes",
        "Nodes of the backend cluster, as its manager sees them; those that drain or are cut off live, too.",
        nodes,
        labels=("state",),
        most=3,
    )
    registry.declare(
        "holdfast_cluster_unassigned_shards", "Shards that no live node has, as the manager sees it.", unassigned
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
        "Closed segments of the journal by what holds them: replay (a restart reads them), messages (some in them "
        "live), checkpoint (a shard has none behind them), backup (one copies them), nothing (about to go).",
        pinned,
        labels=("by",),
        most=5,
    )
    registry.declare(
        "holdfast_journal_oldest_pinned_segments",
        "How many segments the oldest one that is held lies behind the one that is written to, by what holds it.",
        behind,
        labels=("by",),
        most=5,
    )
    registry.declare(
        "holdfast_journal_sealed_logs",
        "Earlier logs of which something is still needed.",
        lambda: None if node.kept is None else node.kept.sealed_logs,
    )


def _register_disk(registry: Registry, folder: Path, low_water_bytes: int) -> None:
    def free_bytes() -> float:
        found = os.statvfs(folder)
        return found.f_bavail * found.f_frsize

    def size_bytes() -> float:
        found = os.statvfs(folder)
        return (found.f_blocks - found.f_bfree + found.f_bavail) * found.f_frsize

    registry.declare("holdfast_disk_free_bytes", "Room on the disk of the journal.", free_bytes)
    registry.declare("holdfast_disk_size_bytes", "Size of the disk of the journal, for who may use it.", size_bytes)
    registry.declare(
        "holdfast_disk_low_water_bytes",
        "With less room than this, no more messages are taken.",
        lambda: low_water_bytes,
    )
