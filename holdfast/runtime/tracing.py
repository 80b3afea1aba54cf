"""Tracing of a process, as the settings say."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast import __version__, logs
from holdfast.settings import Settings
from telemetry import traces

if TYPE_CHECKING:
    from telemetry.spans import Tracing

_PATH = "v1/traces"
"""Path of a collector's OTLP endpoint."""


async def start_tracing(settings: Settings) -> Tracing | None:
    """Start tracing; None: it is disabled.  The caller closes it."""
    endpoint = settings.trace_endpoint
    if not endpoint:
        return None
    if endpoint.count("/") == 2 or endpoint.endswith("/"):
        endpoint = f"{endpoint.rstrip('/')}/{_PATH}"
    role, process = logs.who()
    about = {
        "service.name": "holdfast",
        "service.version": __version__,
        "service.instance.id": process or f"{os.uname().nodename}:{os.getpid()}",  # the same name as in metrics
        "holdfast.role": role,
    }
    return await traces.start(endpoint, settings.trace_ratio, about)
