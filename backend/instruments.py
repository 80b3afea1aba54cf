"""Counters and histograms of a backend: its journal, its checkpoints, and the shards that move.

:mod:`backend.cluster.metrics` has the sampled values; :data:`REROUTED` belongs to clients of backends.
"""

from __future__ import annotations

from typing import Final

from telemetry.metrics import BYTES, COUNTS, SECONDS, Counter, Histogram, Registry

WRITES: Final = Histogram(
    "holdfast_journal_write_seconds",
    "Time to make a row of the journal durable: write and sync on the local disk, or write to a quorum of "
    "Cassandra's replicas.",
    bounds=SECONDS,
)
FENCES: Final = Histogram(
    "holdfast_journal_fence_seconds",
    "Time of fence reads in Cassandra, which check before an answer that this node still owns the log.",
    bounds=SECONDS,
)
ROW_RECORDS: Final = Histogram(
    "holdfast_journal_row_records", "Records in a row of the journal, which share a write and sync.", bounds=COUNTS
)
ROW_BYTES: Final = Histogram("holdfast_journal_row_bytes", "Size of the rows of the journal.", bounds=BYTES)
FAILURES: Final = Counter(
    "holdfast_journal_failures_total", "Failures to write the journal, after which the node recovered."
)
CHECKPOINTS: Final = Histogram(
    "holdfast_checkpoint_seconds",
    "Time of a round of checkpoints over all shards.",
    bounds=(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0),
)
CHECKPOINTS_FAILED: Final = Counter(
    "holdfast_checkpoint_failures_total", "Failed rounds of checkpoints, which are retried."
)
MOVES: Final = Counter(
    "holdfast_shard_moves_total",
    "Shards gained or lost: taken (from a dead node), received (handed over by a live node), handed over.",
    labels=("how",),
    series_max=3,
)
SEALED: Final = Counter("holdfast_takeovers_total", "Logs of dead nodes that this node has sealed.")
LOST_BATCHES: Final = Counter(
    "holdfast_lost_batches_total",
    "Batches of topics whose bytes were damaged or unreadable when this process moved them to an extent.",
)
EXPIRED_DELIVERIES: Final = Counter(
    "holdfast_expired_deliveries_total",
    "Deliveries of publications given up because the publication was older than its topic's retention, or unreadable.",
)
REROUTED: Final = Counter(
    "holdfast_calls_rerouted_total",
    "Calls to a backend that no longer owned the shard, repeated at another one.",
)
for _how in ("taken", "received", "handed over"):
    MOVES.index(_how)


def register(registry: Registry) -> None:
    """Register a backend's counters and histograms."""
    registry.add(
        WRITES,
        FENCES,
        ROW_RECORDS,
        ROW_BYTES,
        FAILURES,
        CHECKPOINTS,
        CHECKPOINTS_FAILED,
        MOVES,
        SEALED,
        LOST_BATCHES,
        EXPIRED_DELIVERIES,
    )
