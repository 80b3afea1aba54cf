"""Metrics and limits of traces."""

from __future__ import annotations

from typing import Final

from telemetry.metrics import Counter

CALLS_PER_SECOND_MOST: Final = 100
"""Limit per process.  Callers may ask for spans of every call, and these cost about as much as the call."""

SPANS_LOST = Counter(
    "holdfast_trace_spans_lost_total",
    "Spans that did not reach the collector, because it was unreachable or too many were waiting.",
    labels=("reason",),
    most=2,
)
LOST_WAITING: Final = SPANS_LOST.place("queue_full")
LOST_UNDELIVERED: Final = SPANS_LOST.place("undelivered")
CALLS_PASSED_OVER = Counter(
    "holdfast_trace_calls_passed_over_total",
    "Calls without spans although they were requested, because there were too many in one second.",
)
