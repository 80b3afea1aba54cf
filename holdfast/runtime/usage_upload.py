"""Upload of recorded usage to the lake, and metrics of what waits for it."""

from __future__ import annotations

import asyncio
import time

from billing.lake.uploader import UsageUploader
from billing.metering.spool import SpoolBacklog, waiting
from holdfast.runtime.python import python
from holdfast.settings import Settings
from telemetry.metrics import Registry


def start_uploader(settings: Settings) -> UsageUploader:
    """Start the upload of all usage recorded in the data folder, by this process and others, to the lake."""
    uploader = UsageUploader(settings.usage_folder, settings.lake, settings.usage_upload_seconds, python())
    uploader.start()
    return uploader


def register_usage_metrics(registry: Registry, settings: Settings) -> None:
    """Register the amount of usage records that wait for upload."""
    found = SpoolBacklog(0, 0, 0)

    async def refresh() -> None:
        nonlocal found
        found = await asyncio.to_thread(waiting, settings.usage_folder)

    registry.before(refresh)
    registry.declare(
        "holdfast_usage_waiting_files",
        "Files of usage records that are not uploaded yet, including those in use.",
        lambda: found.files,
    )
    registry.declare("holdfast_usage_waiting_bytes", "Size of these files.", lambda: found.size_bytes)
    registry.declare(
        "holdfast_usage_waiting_seconds",
        "Age of the oldest of these files.",
        lambda: max(0.0, time.time() - found.oldest_s) if found.files else 0.0,
    )
