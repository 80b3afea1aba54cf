"""Metrics of queues: one queue as JSON, an account's queues in Prometheus's format."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from auth.principal import SCOPES, effective_scopes
from frontend.queue_metrics import QUEUES_MAX, QueueMetrics
from frontend.request.access import listed_prefixes
from frontend.request.context import Context
from frontend.rest.caller import CurrentCaller, RestRoute
from frontend.rest.live.metrics import read_metrics
from frontend.rest.models import QueueMetricsShown
from frontend.rest.problems import not_permitted
from frontend.rest.resources.queues import Account, Name
from telemetry.prometheus import CONTENT_TYPE


def create_router(context: Context) -> APIRouter:
    """Create the routes of metrics."""
    router = APIRouter(route_class=RestRoute, tags=["metrics"])
    services = context.services
    pages = QueueMetrics(services.backend, services.now_ms)

    @router.get("/queues/{name}/metrics", name="queue.metrics")
    async def queue_metrics(caller: CurrentCaller, name: Name, account: Account = None) -> QueueMetricsShown:
        """Show the queue's current messages and its counters, under CloudWatch's names."""
        owner = caller.account(account)
        caller.require_queue_by_any_scope(owner, name)

        async def read() -> QueueMetricsShown:
            return await read_metrics(context, await context.access.seen_queue(caller.call_of(owner), owner, name))

        return await caller.limited("GetQueueAttributes", read)

    @router.get(
        "/metrics",
        name="metrics.scrape",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def scrape(
        caller: CurrentCaller,
        account: Account = None,
        prefix: Annotated[str, Query(description="only queues with this name prefix")] = "",
        limit: Annotated[int, Query(ge=1, le=QUEUES_MAX, description="maximum number of queues, by name")] = 1000,
    ) -> Response:
        """Show the queues that the key may be used for, in Prometheus's format; refreshed every ten seconds at
        most."""
        owner = caller.account(account)
        principal = caller.principal
        scopes = effective_scopes(principal.scopes)
        if "monitor" not in scopes and not (principal.prefixes and scopes.intersection(SCOPES)):
            raise not_permitted(
                "Queues can be listed by keys with the scope 'monitor' or 'manage', and by keys for queues "
                "of certain prefixes."
            )

        async def page() -> Response:
            content = await pages.page(owner, listed_prefixes(principal, prefix), limit)
            return Response(content, headers={"content-type": CONTENT_TYPE})

        return await caller.limited("GetQueueAttributes", page)

    return router
