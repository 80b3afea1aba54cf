"""Traces: sampling of calls, and the current span.

Only *sampled* calls leave spans.  The caller's headers decide (:mod:`telemetry.headers`), within a limit per process
(:mod:`telemetry.trace_metrics`); without such headers, calls are sampled at random at a ratio.  A call that is not
sampled costs two header lookups and a comparison; spans are created, and OpenTelemetry loaded, only for sampled calls
(:mod:`telemetry.spans`, which is not imported unless a collector is configured).

The current span is passed on implicitly: to the call's tasks by :data:`current`, to other processes and to
messages packed (:meth:`telemetry.headers.RemoteSpan.pack`).
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from telemetry.spans import Span, Tracing

current: Final[ContextVar[Span | None]] = ContextVar("holdfast_span", default=None)
"""The current span; it may have ended if this is background work of a call."""


async def start(endpoint: str, ratio: float, about: dict[str, str]) -> Tracing:
    """Start sending spans to the collector at this URL.  ``ratio``: for calls whose headers leave sampling
    open.

    ``about`` holds the process's resource attributes by OpenTelemetry's names.  Loads OpenTelemetry, in a
    thread.  The collector need not be running.
    """

    def start() -> Tracing:
        from telemetry.spans import Tracing

        return Tracing(endpoint, ratio, about)

    return await asyncio.to_thread(start)
