"""All routes under ``/v1``."""

from __future__ import annotations

from fastapi import APIRouter

from frontend.request.context import Context
from frontend.rest.account import audit, limit_use
from frontend.rest.live import events
from frontend.rest.live.queue_pages import QueuePages
from frontend.rest.resources import (
    alarms,
    clusters,
    data_keys,
    documents,
    groups,
    keys,
    messages,
    metrics,
    queues,
    records,
    roles,
    streams,
    tenants,
    usage,
)
from frontend.rest.stream_access import RestStreams


def create_routers(context: Context) -> list[APIRouter]:
    """Create the routes of all resources."""
    services = context.services
    pages = QueuePages(context)
    of_streams = [] if services.streams is None else _create_stream_routers(RestStreams(context))
    return [
        tenants.create_router(services),
        keys.create_router(services),
        data_keys.create_router(services),
        roles.create_router(services),
        clusters.create_router(services),
        queues.create_router(context, pages),
        events.create_router(context, pages),
        metrics.create_router(context),
        alarms.create_router(context),
        messages.create_router(),
        usage.create_router(services),
        documents.create_router(services),
        audit.create_router(services),
        limit_use.create_router(context),
        *of_streams,
    ]


def _create_stream_routers(of_streams: RestStreams) -> list[APIRouter]:
    return [
        streams.create_router(of_streams),
        records.create_router(of_streams),
        *groups.create_routers(of_streams),
    ]
