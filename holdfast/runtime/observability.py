"""Observability of a process: health checks, metrics, and the export of metrics.

All of it is served at ``health_listen``, apart from the tenants' port: Prometheus has no secret of the service, and
tenants must not see the activity of others.  It contains nothing about single queues or accounts.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from holdfast import __version__
from holdfast.http.certificate import Certificate
from holdfast.runtime.health import Health, serve_health
from holdfast.settings import Settings
from telemetry import process
from telemetry.metrics import Family, Registry, joined
from telemetry.prometheus import text
from telemetry.trace_metrics import CALLS_SKIPPED, SPANS_LOST

if TYPE_CHECKING:
    from holdfast.http.listener import HttpServer

SERVICE: Final = "holdfast"
Others = Callable[[], Awaitable[Sequence[tuple[str, Sequence[Family]]]]]
"""Function that asks other processes for their metrics; returns them with the processes' names."""


class Observability:
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
        process.register(self.registry, __version__, role)

    @classmethod
    async def start(cls, settings: Settings, role: str, name: str = "", *, listens: bool = True) -> Observability:
        """Serve at ``health_listen``, and export metrics if the settings say so.  Raises
        :class:`~holdfast.runtime.errors.CannotStart`.

        ``listens``: False if another process serves for this one.
        """
        observed = cls(settings, role, name or f"{os.uname().nodename}:{os.getpid()}")
        if listens:
            observed.health = await serve_health(settings.health_listen, observed.metrics)
            observed._closing.append(observed.health.close)
        if settings.trace_endpoint:
            observed.registry.add(SPANS_LOST, CALLS_SKIPPED)
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


def register_server_metrics(registry: Registry, server: HttpServer, certificate: Certificate | None) -> None:
    """Register the metrics of a listener."""
    clients = server.registry
    registry.declare("holdfast_connections", "Connections of clients.", lambda: len(clients.connections))
    registry.declare(
        "holdfast_connections_limit",
        "Maximum number of connections of this process.",
        lambda: clients.limits.connections,
    )
    registry.declare("holdfast_calls_under_way", "Requests in progress.", lambda: len(clients.tasks))
    if certificate is not None:
        registry.declare(
            "holdfast_certificate_valid_until_seconds",
            "Expiry of the certificate for clients, Unix time.",
            lambda: certificate.valid_until_s,
        )
