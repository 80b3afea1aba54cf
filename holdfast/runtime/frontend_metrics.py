"""Metrics of a frontend."""

from __future__ import annotations

from collections.abc import Callable

from auth.signatures.sigv4 import signers_known
from backend import instruments as backend_instruments
from frontend.request import instruments as frontend_instruments
from frontend.services import Services
from frontend.sns.topics import notifications
from frontend.usage_stream import PUBLISHED
from holdfast.runtime.usage_upload import register_outbox_metrics, register_usage_metrics
from holdfast.settings import Settings
from telemetry import caches
from telemetry.metrics import Readings, Registry


def register_frontend_metrics(
    registry: Registry, services: Services, settings: Settings, kafka_connections: Callable[[], int] = lambda: 0
) -> None:
    """Register the metrics of a frontend.  ``kafka_connections``: number of connections of Kafka's clients."""
    frontend_instruments.register(registry)
    if settings.kafka_port:  # imported on demand: a process without Kafka's clients starts sooner, and is smaller
        from frontend.kafka.metering import instruments as kafka_instruments

        kafka_instruments.register(registry, kafka_connections)
    if services.topics is not None:
        notifications.register(registry)
    registry.add(caches.LOOKUPS, backend_instruments.REROUTED)
    if services.pusher is not None:
        services.pusher.register_metrics(registry)
    registry.declare(
        "holdfast_signing_key_lookups_total",
        "Cache lookups of signing keys, by result: hit, or miss (the key had to be derived).",
        _signing_keys,
        labels=("result",),
        series_max=2,
    )
    if services.uploader is not None:
        register_usage_metrics(registry, settings)
    if services.publisher is not None:
        registry.add(PUBLISHED)
        register_outbox_metrics(registry, settings)


def _signing_keys() -> Readings:
    hits, misses = signers_known()
    return {("hit",): hits, ("miss",): misses}
