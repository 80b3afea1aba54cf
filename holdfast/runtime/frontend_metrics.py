"""Metrics of a frontend."""

from __future__ import annotations

from auth.signatures.sigv4 import signers_known
from backend import instruments as backend_instruments
from frontend.request import instruments as frontend_instruments
from frontend.services import Services
from holdfast.runtime.usage_upload import register_usage_metrics
from holdfast.settings import Settings
from telemetry import caches
from telemetry.metrics import Readings, Registry


def register_frontend_metrics(registry: Registry, services: Services, settings: Settings) -> None:
    """Register the metrics of a frontend."""
    frontend_instruments.register(registry)
    registry.add(caches.LOOKUPS, backend_instruments.REROUTED)
    registry.declare(
        "holdfast_signing_key_lookups_total",
        "Looks for the signing key of a signature, by whether it was there (hit) or had to be made (miss).",
        _signing_keys,
        labels=("result",),
        most=2,
    )
    if services.uploader is not None:
        register_usage_metrics(registry, settings)


def _signing_keys() -> Readings:
    hits, misses = signers_known()
    return {("hit",): hits, ("miss",): misses}
