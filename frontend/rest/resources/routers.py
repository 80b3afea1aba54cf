"""All routes under ``/v1``."""

from __future__ import annotations

from fastapi import APIRouter

from frontend.request.context import Context
from frontend.rest.account import audit, limit_use
from frontend.rest.live import events
from frontend.rest.live.queue_pages import QueuePages
from frontend.rest.policy_checks import routes as policy_checks
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
from frontend.rest.topics import publications, subscriptions, topics
from frontend.rest.topics.access import RestTopics
from frontend.sns.actions.context import SnsContext


def create_routers(context: Context, sns: SnsContext | None) -> list[APIRouter]:
    """Create the routes of all resources.  ``sns``: context of SNS's actions; None: there are no topics."""
    services = context.services
    pages = QueuePages(context)
    of_streams = [] if services.streams is None else _create_stream_routers(RestStreams(context))
    of_topics = [] if sns is None else _create_topic_routers(RestTopics(sns))
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
        policy_checks.create_router(context),
        usage.create_router(services),
        documents.create_router(services),
        audit.create_router(services),
        limit_use.create_router(context),
        *of_streams,
        *of_topics,
    ]


def _create_topic_routers(of_topics: RestTopics) -> list[APIRouter]:
    return [
        topics.create_router(of_topics),
        subscriptions.create_router(of_topics),
        publications.create_router(of_topics),
        policy_checks.create_topic_router(of_topics),
    ]


def _create_stream_routers(of_streams: RestStreams) -> list[APIRouter]:
    return [
        streams.create_router(of_streams),
        records.create_router(of_streams),
        *groups.create_routers(of_streams),
    ]
