"""Observability of a process: health checks, metrics, and the export of metrics.

All of it is served at ``health_listen``, apart from the tenants' port: Prometheus has no secret of the service, and
tenants must not see the activity of others.  It contains nothing about single queues or accounts.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from auth.signatures.sigv4 import signers_known
from backend import instruments as backend_instruments
from billing.metering.spool import Waiting, waiting
from frontend.request import instruments as frontend_instruments
from holdfast import __version__
from holdfast.http.certificate import Certificate
from holdfast.runtime.health import Health, serve_health
from holdfast.settings import Settings
from telemetry import caches, process
from telemetry.metrics import Family, Readings, Registry, joined
from telemetry.prometheus import text
from telemetry.traces import CALLS_PASSED_OVER, SPANS_LOST

if TYPE_CHECKING:
    from frontend.services import Services
    from holdfast.http.listener import Server

SERVICE: Final = "holdfast"
Others = Callable[[], Awaitable[Sequence[tuple[str, Sequence[Family]]]]]
"""Function that asks other processes for their metrics; returns them with the processes' names."""


class Observed:
    """Observability of one process, from :meth:`start` to :meth:`close`."""

    def __init__(self, settings: Settings, role: str, name: str) -> None:
        """Set up one process.  ``role``: such as ``backend``; ``name``: its name among processes of this role."""
        self.registry = Registry()
        self.health = Health()
        self.others: Others | None = None
        """Other processes whose metrics this one includes; the label ``process`` then names the process of a series."""
        self._name = name
        self._settings = settings
        self._about = {
            "service.name": SERVICE,
            "service.version": __version__,
            "service.instance.id": name,
            "holdfast.role": role,
        }
        self._closing: list[Callable[[], Awaitable[None]]] = []
        process.tell(self.registry, __version__, role)

    @classmethod
    async def start(cls, settings: Settings, role: str, name: str = "", *, listens: bool = True) -> Observed:
        """Serve at ``health_listen``, and export metrics if the settings say so.  Raises
        :class:`~holdfast.process.serve.CannotStart`.

        ``listens``: False if another process serves for this one.
        """
        observed = cls(settings, role, name or f"{os.uname().nodename}:{os.getpid()}")
        if listens:
            observed.health = await serve_health(settings.health_listen, observed.metrics)
            observed._closing.append(observed.health.close)
        if settings.trace_endpoint:
            observed.registry.add(SPANS_LOST, CALLS_PASSED_OVER)
        observed._send()
        return observed

    async def close(self) -> None:
        for close in reversed(self._closing):
            await close()

    def _send(self) -> None:
        settings = self._settings
        if settings.health_listen or settings.otlp_endpoint:
            lag = asyncio.get_running_loop().create_task(process.watch_lag(), name="the lag of the loop")

            async def end() -> None:
                lag.cancel()
                await asyncio.wait([lag])

            self._closing.append(end)
        if settings.otlp_endpoint:
            from telemetry.otlp import Pusher

            pusher = Pusher(self.registry, settings.otlp_endpoint, settings.otlp_metrics_seconds, self._about)
            pusher.start()
            self._closing.append(pusher.close)

    async def read(self) -> list[Family]:
        return await self.registry.read()

    async def metrics(self) -> bytes:
        """Return the metrics in Prometheus's format."""
        families = await self.read()
        if self.others is not None:
            families = joined([(self._name, families), *await self.others()], "process")
        return await asyncio.to_thread(text, families)


def tell_frontend(registry: Registry, services: Services, settings: Settings) -> None:
    """Register the metrics of a frontend."""
    frontend_instruments.tell(registry)
    registry.add(caches.LOOKUPS, backend_instruments.REROUTED)
    registry.tell(
        "holdfast_signing_key_lookups_total",
        "Looks for the signing key of a signature, by whether it was there (hit) or had to be made (miss).",
        _signing_keys,
        labels=("result",),
        most=2,
    )
    if services.sealer is not None:
        tell_usage(registry, settings)


def tell_usage(registry: Registry, settings: Settings) -> None:
    """Register the amount of usage records that wait for upload."""
    found = Waiting(0, 0, 0)

    async def look() -> None:
        nonlocal found
        found = await asyncio.to_thread(waiting, settings.usage_folder)

    registry.before(look)
    registry.tell(
        "holdfast_usage_waiting_files",
        "Files of usage records that are not in the lake yet, those that are written to included.",
        lambda: found.files,
    )
    registry.tell("holdfast_usage_waiting_bytes", "Size of these files.", lambda: found.size_bytes)
    registry.tell(
        "holdfast_usage_waiting_seconds",
        "For how long the one has waited that was written to first.",
        lambda: max(0.0, time.time() - found.oldest_s) if found.files else 0.0,
    )


def tell_server(registry: Registry, server: Server, certificate: Certificate | None) -> None:
    """Register the metrics of a listener."""
    hall = server.hall
    registry.tell("holdfast_connections", "Connections of clients.", lambda: len(hall.connections))
    registry.tell(
        "holdfast_connections_limit", "The most of them that this process takes.", lambda: hall.limits.connections
    )
    registry.tell("holdfast_calls_under_way", "Requests that are being answered.", lambda: len(hall.tasks))
    if certificate is not None:
        registry.tell(
            "holdfast_certificate_valid_until_seconds",
            "When the certificate that clients are shown expires, Unix time.",
            lambda: certificate.valid_until_s,
        )


def _signing_keys() -> Readings:
    hits, misses = signers_known()
    return {("hit",): hits, ("miss",): misses}
