"""Counters and histograms of a backend: its journal, its checkpoints, and the shards that move.

:mod:`backend.cluster.metrics` has the sampled values; :data:`REROUTED` belongs to clients of backends.
"""

from __future__ import annotations

from typing import Final

from telemetry.metrics import BYTES, COUNTS, SECONDS, Counter, Histogram, Registry

WRITES: Final = Histogram(
    "holdfast_journal_write_seconds",
    "Time to make a row of the journal durable: its write and sync on the local disk, or until a quorum of Cassandra's "
    "replicas has it.",
    bounds=SECONDS,
)
FENCES: Final = Histogram(
    "holdfast_journal_fence_seconds",
    "Time of the reads of Cassandra that say, before an answer goes out, that the log is still this node's.",
    bounds=SECONDS,
)
ROW_RECORDS: Final = Histogram(
    "holdfast_journal_row_records", "Records of a row of the journal: what one write and sync serves.", bounds=COUNTS
)
ROW_BYTES: Final = Histogram("holdfast_journal_row_bytes", "Size of the rows of the journal.", bounds=BYTES)
FAILURES: Final = Counter(
    "holdfast_journal_failures_total", "How often the journal could not be written, and the node started over."
)
CHECKPOINTS: Final = Histogram(
    "holdfast_checkpoint_seconds",
    "Time of a round of checkpoints over all shards.",
    bounds=(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0),
)
CHECKPOINTS_FAILED: Final = Counter(
    "holdfast_checkpoint_failures_total", "Rounds of checkpoints that failed, and are tried again."
)
MOVES: Final = Counter(
    "holdfast_shard_moves_total",
    "Shards that came or went: taken (from a node that has ended), received (from one that has handed them over), "
    "handed over.",
    labels=("how",),
    most=3,
)
SEALED: Final = Counter(
    "holdfast_takeovers_total", "Logs of nodes that have ended, which this node has sealed so that others go on."
)
REROUTED: Final = Counter(
    "holdfast_calls_rerouted_total",
    "Calls that came to a backend which does not have the shard any more, and were made again at another.",
)
for _how in ("taken", "received", "handed over"):
    MOVES.place(_how)


def register(registry: Registry) -> None:
    """Register a backend's counters and histograms."""
    registry.add(WRITES, FENCES, ROW_RECORDS, ROW_BYTES, FAILURES, CHECKPOINTS, CHECKPOINTS_FAILED, MOVES, SEALED)
