"""Metrics of one queue or topic, by CloudWatch's names."""

from __future__ import annotations

from collections.abc import Sequence

from backend.api import Measures, QueueMeasures
from frontend.queue_metrics import METRICS, Metric, value_of
from frontend.queues.view import QueueView
from frontend.request.context import Context
from frontend.rest.models import MetricShown, QueueMetricsShown


async def read_metrics(context: Context, view: QueueView) -> QueueMetricsShown:
    """Read the queue's metrics.  Raises the errors of a call."""
    parts = await context.queues.call(view, QueueMeasures(view.target))
    return metrics_of(view.queue.account, view.queue.name, parts, context.services.now_ms())


def metrics_of(account: str, name: str, parts: Sequence[Measures], now_ms: int) -> QueueMetricsShown:
    """Metrics of the queue with these partitions."""
    return QueueMetricsShown(
        queue=name,
        account=account,
        time=now_ms / 1000,
        counted_since=max(one.since_ms for one in parts) / 1000,
        metrics=shown_metrics(METRICS, parts, now_ms),
    )


def shown_metrics(metrics: Sequence[Metric], parts: Sequence[Measures], now_ms: int) -> list[MetricShown]:
    """Values of those of the metrics that these partitions have."""
    values = ((metric, value_of(metric, parts, now_ms)) for metric in metrics)
    return [
        MetricShown(name=metric.name, unit=metric.unit, value=value, counter=metric.counts)
        for metric, value in values
        if value is not None
    ]
