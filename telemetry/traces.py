"""Traces: sampling of calls, and the current span.

A call is *sampled* or leaves nothing.  The caller's headers decide (:mod:`telemetry.headers`), as long as
callers do not ask for more than :data:`CALLS_PER_SECOND_MOST`; otherwise calls are sampled at random at a
ratio.  A call that is not sampled costs two header lookups and a comparison; spans are created, and
OpenTelemetry loaded, only for sampled calls (:mod:`telemetry.spans`, which is not imported unless a collector
is configured).

The current span is passed on implicitly: to the call's tasks by :data:`current`, to other processes and to
messages packed (:meth:`telemetry.headers.RemoteSpan.pack`).
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from telemetry.metrics import Counter

if TYPE_CHECKING:
    from telemetry.spans import Span, Tracing

CALLS_PER_SECOND_MOST: Final = 100
"""Limit per process.  Callers may ask for spans of every call, and these cost about as much as the call."""

current: Final[ContextVar[Span | None]] = ContextVar("holdfast_span", default=None)
"""The current span; it may have ended, in background work of a call."""

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


async def start(endpoint: str, ratio: float, about: dict[str, str]) -> Tracing:
    """Start sending spans to the collector at this URL.  ``ratio``: for calls whose headers leave sampling
    open.

    ``about`` holds the process's resource attributes by OpenTelemetry's names.  Loads OpenTelemetry, in a
    thread.  The collector need not be running.
    """

    def begin() -> Tracing:
        from telemetry.spans import Tracing

        return Tracing(endpoint, ratio, about)

    return await asyncio.to_thread(begin)
