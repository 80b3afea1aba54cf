"""Metrics of pushes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from telemetry.metrics import SECONDS, Counter, Gauge, Histogram, Registry

OUTCOMES: Final = ("delivered", "refused", "throttled", "timeout", "unreachable")
PUSHES: Final = Counter(
    "holdfast_pushes_total",
    "Attempts to push a message, by outcome: delivered (2xx), throttled (429 or 503), refused (any other answer), "
    "timeout (no answer in time), unreachable (no connection, or not allowed).",
    labels=("outcome",),
    series_max=len(OUTCOMES),
)
PUSH_SECONDS: Final = Histogram("holdfast_push_seconds", "Time of a call of a push endpoint.", bounds=SECONDS)
CALLS: Final = Gauge("holdfast_push_calls", "Calls of push endpoints in progress.")
QUEUES: Final = Gauge("holdfast_push_queues", "Queues whose messages this process pushes.")
SLOWED: Final = Gauge(
    "holdfast_push_queues_slowed",
    "Queues whose pushes are paused, because their endpoint has asked for it or cannot be reached.",
)

for _outcome in OUTCOMES:
    PUSHES.index(_outcome)


def attempted(outcome: str, seconds: float) -> None:
    """Count an attempt."""
    PUSHES.add(outcome)
    PUSH_SECONDS.observe(seconds)


def register(
    registry: Registry, queues: Callable[[], int], slowed: Callable[[], int], calls: Callable[[], int]
) -> None:
    """Register all metrics of pushes."""
    QUEUES.read_by(queues)
    SLOWED.read_by(slowed)
    CALLS.read_by(calls)
    registry.add(PUSHES, PUSH_SECONDS, CALLS, QUEUES, SLOWED)
