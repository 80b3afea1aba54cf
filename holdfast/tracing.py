"""The traces of a process, as the settings say."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast import __version__, logs
from holdfast.settings import Settings
from telemetry import traces

if TYPE_CHECKING:
    from telemetry.spans import Tracing

_PATH = "v1/traces"
"""Of a collector, by OTLP."""


async def start_tracing(settings: Settings) -> Tracing | None:
    """What makes this process's spans; None: nobody is to have any.  It is closed by whoever asked for it."""
    endpoint = settings.trace_endpoint
    if not endpoint:
        return None
    if endpoint.count("/") == 2 or endpoint.endswith("/"):
        endpoint = f"{endpoint.rstrip('/')}/{_PATH}"
    role, process = logs.who()
    about = {
        "service.name": "holdfast",
        "service.version": __version__,
        "service.instance.id": process or f"{os.uname().nodename}:{os.getpid()}",  # as metrics have it
        "holdfast.role": role,
    }
    return await traces.start(endpoint, settings.trace_ratio, about)
