"""Instruments in the Prometheus text format, written by its own library.

The library is loaded at the first request, not when a process starts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from telemetry.metrics import Family

if TYPE_CHECKING:
    from prometheus_client.core import Metric

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def text(families: Sequence[Family]) -> bytes:
    """Format the answer of a scrape.  Takes milliseconds: run it in a thread if other work waits."""
    from prometheus_client import generate_latest
    from prometheus_client.registry import Collector, CollectorRegistry

    class Read(Collector):
        def collect(self) -> Iterator[Metric]:
            return (_metric(family) for family in families)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Read())
    return generate_latest(registry)


def _metric(family: Family) -> Metric:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.utils import floatToGoString

    if family.kind == "histogram":
        histogram = HistogramMetricFamily(family.name, family.help, labels=family.labels)
        bounds = [*map(floatToGoString, family.bounds), "+Inf"]
        for one in family.series:
            counts = itertools.accumulate(one.buckets)
            histogram.add_metric(one.labels, list(zip(bounds, counts, strict=True)), one.value)
        return histogram
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = kind(family.name, family.help, labels=family.labels)
    for one in family.series:
        metric.add_metric(one.labels, one.value)
    return metric
