"""Metrics and limits of traces."""

from __future__ import annotations

from typing import Final

from telemetry.metrics import Counter

CALLS_PER_SECOND_MAX: Final = 100
"""Limit per process, because callers may request spans for every call, and these cost about as much as the call."""

SPANS_LOST = Counter(
    "holdfast_trace_spans_lost_total",
    "Spans that did not reach the collector, because it was unreachable or too many were waiting.",
    labels=("reason",),
    series_max=2,
)
LOST_WAITING: Final = SPANS_LOST.index("queue_full")
LOST_UNDELIVERED: Final = SPANS_LOST.index("undelivered")
CALLS_SKIPPED = Counter(
    "holdfast_trace_calls_passed_over_total",
    "Calls without spans although they were requested, because there were too many in one second.",
)
