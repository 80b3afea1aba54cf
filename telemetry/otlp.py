"""Periodic export of instruments to an OpenTelemetry collector, by OTLP over HTTP.

OpenTelemetry's own exporter encodes and sends; it gets the values read here, because its SDK has no histogram
that is only sampled when read.  It runs in a thread of its own and is loaded there, so a process that exports nothing
does not load it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from telemetry.metrics import Family, Registry

if TYPE_CHECKING:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics.export import Metric, MetricsData
    from opentelemetry.sdk.resources import Resource

logger = logging.getLogger("holdfast.telemetry")

READ_SECONDS: Final = 10.0
"""Timeout of reading the instruments in the loop."""
SEND_SECONDS: Final = 10.0
"""Timeout of the collector."""
PATH: Final = "/v1/metrics"


class Pusher:
    """Exports a registry at an interval, from :meth:`start` to :meth:`close`, which does a last export."""

    def __init__(self, registry: Registry, endpoint: str, seconds: float, about: Mapping[str, str]) -> None:
        """``endpoint``: the collector's URL, without a path; ``about``: attributes of the process, such as
        ``service.name``."""
        self._registry = registry
        self._url = endpoint.rstrip("/") + PATH
        self._seconds = seconds
        self._about = dict(about)
        self._started_ns = time.time_ns()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics by OTLP", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failing = False

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def close(self) -> None:
        self._ended.set()
        await asyncio.to_thread(self._thread.join)  # the thread reads the instruments in this loop

    def _run(self) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.resources import Resource

        exporter = OTLPMetricExporter(endpoint=self._url, timeout=SEND_SECONDS)
        resource = Resource(self._about)
        while not self._ended.wait(self._seconds):
            self._send(exporter, resource)
        self._send(exporter, resource)
        with contextlib.suppress(Exception):  # the process is about to end
            exporter.shutdown()

    def _send(self, exporter: OTLPMetricExporter, resource: Resource) -> None:
        from opentelemetry.sdk.metrics.export import MetricExportResult

        assert self._loop is not None
        try:
            reading = asyncio.run_coroutine_threadsafe(self._registry.read(), self._loop)
            families = reading.result(READ_SECONDS)
            sent = exporter.export(data(families, resource, self._started_ns)) is MetricExportResult.SUCCESS
            why = "refused, or no answer"
        except Exception as error:  # no error may end the thread: the next attempt may succeed
            sent, why = False, str(error) or type(error).__name__
        if sent and self._failing:
            logger.warning("metrics reach %s again", self._url)
        elif not sent and not self._failing:
            logger.error("metrics do not reach %s: %s", self._url, why)
        self._failing = not sent


def data(families: Sequence[Family], resource: Resource, started_ns: int) -> MetricsData:
    """Convert families to the SDK's form.  ``started_ns``: start of counting."""
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    now_ns = time.time_ns()
    metrics = [_metric(family, started_ns, now_ns) for family in families if family.series]
    scope = ScopeMetrics(InstrumentationScope("holdfast"), metrics, "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _metric(family: Family, started_ns: int, now_ns: int) -> Metric:
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        Gauge,
        Histogram,
        HistogramDataPoint,
        Metric,
        NumberDataPoint,
        Sum,
    )

    if family.kind == "histogram":
        observed = [
            HistogramDataPoint(
                attributes=dict(zip(family.labels, one.labels, strict=True)),
                start_time_unix_nano=started_ns,
                time_unix_nano=now_ns,
                count=sum(one.buckets),
                sum=one.value,
                bucket_counts=list(one.buckets),
                explicit_bounds=list(family.bounds),
                min=0.0,
                max=0.0,
            )
            for one in family.series
        ]
        return Metric(
            family.name, family.help, _unit(family.name), Histogram(observed, AggregationTemporality.CUMULATIVE)
        )
    points = [
        NumberDataPoint(dict(zip(family.labels, one.labels, strict=True)), started_ns, now_ns, one.value)
        for one in family.series
    ]
    if family.kind == "counter":
        counted = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True)
        return Metric(family.name, family.help, _unit(family.name), counted)
    return Metric(family.name, family.help, _unit(family.name), Gauge(points))


def _unit(name: str) -> str:
    """Unit in OpenTelemetry's notation."""
    plain = name.removesuffix("_total")
    return "s" if plain.endswith("_seconds") else "By" if plain.endswith("_bytes") else "1"
