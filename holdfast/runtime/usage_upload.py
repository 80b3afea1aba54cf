"""Upload of recorded usage to the lake, and metrics of what waits for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from billing.lake.outbox import Outbox, OutboxBacklog
from billing.lake.uploader import UsageUploader
from billing.metering.spool import SpoolBacklog, waiting
from holdfast.runtime.python import python
from holdfast.settings import Settings
from telemetry.metrics import Registry


def start_uploader(
    settings: Settings, outbox: Outbox | None = None, on_uploaded: Callable[[], None] = lambda: None
) -> UsageUploader:
    """Start the upload of all usage recorded in the data folder, by this process and others, to the lake.

    ``outbox``: gets the records too.  ``on_uploaded`` is called after each upload.
    """
    folder, lake, seconds = settings.usage_folder, settings.lake, settings.usage_upload_seconds
    uploader = UsageUploader(folder, lake, seconds, python(), outbox=outbox, on_uploaded=on_uploaded)
    uploader.start()
    return uploader


def outbox_of(settings: Settings) -> Outbox:
    """Return the outbox of the usage stream."""
    return Outbox(settings.usage_outbox_folder, settings.usage_stream_outbox_bytes)


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


def register_outbox_metrics(registry: Registry, settings: Settings) -> None:
    """Register the amount of usage records that wait for their publication to the usage stream."""
    outbox = outbox_of(settings)
    found = OutboxBacklog(0, 0, 0, 0)

    async def refresh() -> None:
        nonlocal found
        found = await asyncio.to_thread(outbox.backlog)

    registry.before(refresh)
    registry.declare(
        "holdfast_usage_stream_waiting_records",
        "Usage records that are in the lake, and not published to the usage stream yet.",
        lambda: found.records,
    )
    registry.declare("holdfast_usage_stream_waiting_bytes", "Size of these records.", lambda: found.size_bytes)
    registry.declare(
        "holdfast_usage_stream_dropped_records_total",
        "Usage records that are in the lake, and were dropped from the usage stream for lack of room.",
        lambda: found.dropped,
    )
