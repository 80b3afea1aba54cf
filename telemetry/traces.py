"""Traces: which calls leave spans, and the span that is being worked in.

A call is *sampled* or leaves nothing.  Where the caller's headers say whether (:mod:`telemetry.headers`), so it is, as
long as callers do not ask for more than :data:`CALLS_PER_SECOND_MOST`; else one call of so many, at random.  A call
that is not sampled costs a look at two headers and a comparison; spans, and OpenTelemetry with them, are made for
sampled calls only (:mod:`telemetry.spans`, which nothing imports while no collector is named).

The span goes where the call goes without being handed on: to the tasks that it starts by :data:`current`, to other
processes and to messages packed (:meth:`telemetry.headers.Place.pack`).
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from telemetry.metrics import Counter

if TYPE_CHECKING:
    from telemetry.spans import Span, Tracing

CALLS_PER_SECOND_MOST: Final = 100
"""Of one process.  Who calls may ask for spans of each call, and they cost about what the call does."""

current: Final[ContextVar[Span | None]] = ContextVar("holdfast_span", default=None)
"""The span that is being worked in; it may have ended, in what a call has left behind."""

SPANS_LOST = Counter(
    "holdfast_trace_spans_lost_total",
    "Spans that have not reached the collector, because it could not be reached or too many waited for it.",
    labels=("reason",),
    most=2,
)
LOST_WAITING: Final = SPANS_LOST.place("queue_full")
LOST_UNDELIVERED: Final = SPANS_LOST.place("undelivered")
CALLS_PASSED_OVER = Counter(
    "holdfast_trace_calls_passed_over_total",
    "Calls that left no spans though they were to, because there were too many of them in a second.",
)


async def start(endpoint: str, ratio: float, about: dict[str, str]) -> Tracing:
    """Begin to send spans to the collector at this URL.  ``ratio``: of calls whose headers leave it open.

    ``about`` says which process this is, by OpenTelemetry's names of a resource's attributes.  Loads OpenTelemetry, in
    a thread.  The collector need not be there.
    """

    def begin() -> Tracing:
        from telemetry.spans import Tracing

        return Tracing(endpoint, ratio, about)

    return await asyncio.to_thread(begin)
