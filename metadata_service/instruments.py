"""What a metadata node counts of the calls that it answers."""

from __future__ import annotations

from typing import Final

from telemetry import caches
from telemetry.metrics import SECONDS, Counter, Histogram, Registry

CALLS: Final = Counter(
    "holdfast_metadata_calls_total",
    "Calls of other processes by method and outcome: ok, refused (what was asked for is not so), failed.",
    labels=("method", "outcome"),
    most=200,
)
SECONDS_OF_CALLS: Final = Histogram(
    "holdfast_metadata_call_seconds", "Time of calls that were answered.", bounds=SECONDS
)


def tell(registry: Registry) -> None:
    """Show all of it."""
    registry.add(CALLS, SECONDS_OF_CALLS, caches.LOOKUPS)
