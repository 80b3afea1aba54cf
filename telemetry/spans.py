"""Spans of sampled calls, by OpenTelemetry's SDK, and their export to a collector (OTLP over HTTP).

Imported only by :func:`telemetry.traces.start`.  Ended spans wait in a bounded queue for a thread that sends
them, so no call ever waits for a collector: spans that cannot be delivered are dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)
from opentelemetry.trace import Span as OtelSpan
from opentelemetry.util.types import AttributeValue

from telemetry import headers
from telemetry.headers import RemoteSpan
from telemetry.trace_metrics import CALLS_PER_SECOND_MAX, CALLS_SKIPPED, LOST_UNDELIVERED, LOST_WAITING, SPANS_LOST

logger = logging.getLogger("holdfast.telemetry")

QUEUE_SPANS_MAX: Final = 4096
BATCH_SPANS: Final = 512
CLOSE_SECONDS: Final = 3.0
"""Maximum time for which an ending process waits for the delivery of its last spans."""
LOG_SECONDS: Final = 60.0
"""Minimum interval of log lines about an unreachable collector."""

_NO_CONTEXT: Final = Context()
_T = TypeVar("_T")

Attributes = Mapping[str, AttributeValue]


class Span:
    """A unit of work of a sampled call, from its creation to :meth:`end`."""

    __slots__ = ("_span", "_tracing", "ended", "place")

    def __init__(self, tracing: Tracing, span: OtelSpan) -> None:
        self._tracing = tracing
        self._span = span
        self.ended = False
        made = span.get_span_context()
        self.place = RemoteSpan(made.trace_id, made.span_id, True, made.trace_state.to_header())

    @property
    def trace_id(self) -> str:
        return f"{self.place.trace_id:032x}"

    @property
    def span_id(self) -> str:
        return f"{self.place.span_id:016x}"

    def child(self, name: str) -> Span:
        """Create a child span in the same process."""
        return Span(self._tracing, self._tracing.tracer.start_span(name, set_span_in_context(self._span, _NO_CONTEXT)))

    async def during(self, name: str, awaited: Awaitable[_T]) -> _T:
        """Await a result within a child span."""
        child = self.child(name)
        try:
            return await awaited
        except BaseException as error:
            child.fail(type(error).__name__)
            raise
        finally:
            child.end()

    def set_attributes(self, attributes: Attributes) -> None:
        self._span.set_attributes(dict(attributes))

    def link(self, place: RemoteSpan, message_id: str) -> None:
        """Link the span to the sending of a message that it handles."""
        self._span.add_link(_context(place), {"messaging.message.id": message_id})

    def fail(self, kind: str) -> None:
        """Mark the work as failed with this kind of error."""
        self._span.set_attribute("error.type", kind)
        self._span.set_status(Status(StatusCode.ERROR))

    def end(self, name: str | None = None) -> None:
        """End the span; ``name``: its final name."""
        if name is not None:
            self._span.update_name(name)
        self.ended = True
        self._span.end()


class Tracing:
    """The traces of one process.  Created by :func:`telemetry.traces.start`."""

    def __init__(self, endpoint: str, ratio: float, about: Mapping[str, str]) -> None:
        # The exporter logs each attempt; the important events are logged here.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self.sampler = Sampler(ratio)
        self._provider = TracerProvider(
            sampler=ALWAYS_ON,  # spans are created only for sampled calls
            resource=Resource.create(dict(about)),
            shutdown_on_exit=False,
            span_limits=SpanLimits(max_attribute_length=1024),
        )
        self._provider.add_span_processor(_Queue(OTLPSpanExporter(endpoint), endpoint))
        self.tracer = self._provider.get_tracer("holdfast")

    def of_call(self, call: Mapping[bytes, bytes]) -> Span | None:
        """Create the span of a client's call with these headers, if it is sampled.  Its name is set at its end."""
        sampler = self.sampler
        if headers.TRACEPARENT not in call and headers.XRAY not in call:
            # The common case: the caller requests no trace, and the call is not sampled.
            if sampler.left > 1:
                sampler.left -= 1
                return None
            sampler.skips()
            place = None
        else:
            place = headers.read(call)
            wanted = None if place is None else place.sampled
            if wanted is False or (wanted is None and sampler.skips()):
                return None
        if not sampler.has_room(time.monotonic()):
            CALLS_SKIPPED.counts[0] += 1
            return None
        return self._start("", SpanKind.SERVER, place)

    def of_peer(self, packed: bytes, name: str) -> Span | None:
        """Create the span of a peer's request within a sampled call; None if its reference is malformed."""
        place = headers.unpack(packed)
        return None if place is None else self._start(name, SpanKind.SERVER, place)

    def of_delivery(self, name: str, links: Sequence[tuple[RemoteSpan, str]]) -> Span:
        """Create the span of an unsampled receive that returns messages whose sends were sampled."""
        return self._start(name, SpanKind.SERVER, None, links)

    def _start(
        self, name: str, kind: SpanKind, parent: RemoteSpan | None, links: Sequence[tuple[RemoteSpan, str]] = ()
    ) -> Span:
        context = _NO_CONTEXT
        if parent is not None:
            context = set_span_in_context(NonRecordingSpan(_context(parent)), context)
        made = [Link(_context(place), {"messaging.message.id": message_id}) for place, message_id in links]
        return Span(self, self.tracer.start_span(name, context, kind, links=made))

    async def close(self) -> None:
        """Deliver queued spans within :data:`CLOSE_SECONDS`; the rest is dropped."""
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def close() -> None:
            self._provider.shutdown()
            try:
                loop.call_soon_threadsafe(done.set)
            except RuntimeError:
                pass  # the loop did not wait for it, and is closed

        # not a thread of the loop's pool: the loop waits for those without limit when it closes
        threading.Thread(target=close, name="the last spans", daemon=True).start()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await done.wait()
        except TimeoutError:
            logger.warning("the last spans were not delivered within %g s", CLOSE_SECONDS)


class Sampler:
    """Sampling of calls whose headers do not decide it, and the limit for all calls."""

    def __init__(self, ratio: float, chance: random.Random | None = None) -> None:
        """``ratio``: sampled part of the calls, from 0 to 1; each call is decided independently."""
        self._chance = chance or random.Random()
        self._ratio = ratio
        self.left = self._gap()
        """Number of calls up to and including the next sampled one.  Drawing this number is cheaper than
        drawing one per call, and equivalent."""
        self._second = 0
        self._started = 0

    def _gap(self) -> float:
        if self._ratio >= 1:
            return 1
        if self._ratio <= 0:
            return math.inf
        return 1 + math.floor(math.log(1 - self._chance.random()) / math.log1p(-self._ratio))

    def skips(self) -> bool:
        """Count a call; True if it is not sampled."""
        self.left -= 1
        if self.left > 0:
            return True
        self.left = self._gap()
        return False

    def has_room(self, now: float) -> bool:
        """True if one more call may be sampled in this second; ``now`` in seconds of a monotonic clock."""
        if int(now) != self._second:
            self._second, self._started = int(now), 0
        self._started += 1
        return self._started <= CALLS_PER_SECOND_MAX


class _Queue(SpanProcessor):
    """The SDK's own queue and thread, with counts of dropped spans."""

    def __init__(self, exporter: SpanExporter, endpoint: str) -> None:
        self._waiting = 0
        self._lock = threading.Lock()
        self._batches = BatchSpanProcessor(
            _Delivery(exporter, endpoint, self._taken),
            max_queue_size=QUEUE_SPANS_MAX,
            max_export_batch_size=BATCH_SPANS,
        )

    def on_end(self, span: ReadableSpan) -> None:
        with self._lock:
            full = self._waiting >= QUEUE_SPANS_MAX
            self._waiting += not full
        if full:
            SPANS_LOST.counts[LOST_WAITING] += 1
        else:
            self._batches.on_end(span)

    def _taken(self, count: int) -> None:
        with self._lock:
            self._waiting -= count

    def shutdown(self) -> None:
        self._batches.shutdown()  # type: ignore[no-untyped-call]  # so it is in the SDK


class _Delivery(SpanExporter):
    """Exporter called only by the SDK's thread."""

    def __init__(self, exporter: SpanExporter, endpoint: str, taken: Callable[[int], None]) -> None:
        self._exporter = exporter
        self._endpoint = endpoint
        self._taken = taken
        self._failing = False
        self._logged_at = -math.inf

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._taken(len(spans))
        result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS:
            if self._failing:
                logger.info("traces reach %s again", self._endpoint)
            self._failing = False
            return result
        SPANS_LOST.counts[LOST_UNDELIVERED] += len(spans)
        self._failing = True
        now = time.monotonic()
        if now - self._logged_at >= LOG_SECONDS:
            self._logged_at = now
            lost = SPANS_LOST.counts[LOST_UNDELIVERED]
            logger.warning("traces do not reach %s: %d spans were lost since the start", self._endpoint, lost)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


def _context(place: RemoteSpan) -> SpanContext:
    """The SDK's context for a remote span."""
    return SpanContext(
        place.trace_id,
        place.span_id,
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED if place.sampled else TraceFlags.DEFAULT),
        trace_state=TraceState.from_header([place.state]) if place.state else None,
    )
