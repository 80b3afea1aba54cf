"""Metrics of the calls that a metadata node answers."""

from __future__ import annotations

from typing import Final

from telemetry import caches
from telemetry.metrics import SECONDS, Counter, Histogram, Registry

CALLS: Final = Counter(
    "holdfast_metadata_calls_total",
    "Calls of other processes by method and outcome: ok, refused (a condition does not hold), failed.",
    labels=("method", "outcome"),
    series_max=200,
)
SECONDS_OF_CALLS: Final = Histogram("holdfast_metadata_call_seconds", "Time of answered calls.", bounds=SECONDS)


def register(registry: Registry) -> None:
    """Register all metrics of the node."""
    registry.add(CALLS, SECONDS_OF_CALLS, caches.LOOKUPS)
