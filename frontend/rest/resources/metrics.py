"""Metrics of queues: one queue as JSON, an account's queues in Prometheus's format."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from auth.principal import held
from frontend.queue_metrics import METRICS, QUEUES_MOST, QueueMetrics, value_of
from frontend.request.access import listed_prefixes
from frontend.rest.caller import AdminRoute, Who
from frontend.rest.models import MetricShown, QueueMetricsShown
from frontend.rest.problems import not_permitted
from frontend.rest.resources.queues import Account, Name
from frontend.sqs.actions.context import Context
from telemetry.prometheus import CONTENT_TYPE


def create_router(context: Context) -> APIRouter:
    """Create the routes of metrics."""
    router = APIRouter(route_class=AdminRoute, tags=["metrics"])
    services = context.services
    pages = QueueMetrics(context.backend, services.now_ms)

    @router.get("/queues/{name}/metrics", name="queue.metrics")
    async def queue_metrics(who: Who, name: Name, account: Account = None) -> QueueMetricsShown:
        """Show the queue's current messages and its counters, under CloudWatch's names."""
        owner = who.account(account)
        who.require_queue_by_any_scope(owner, name)

        async def read() -> QueueMetricsShown:
            view = await context.access.seen_queue(who.call_of(owner), owner, name)
            parts = await context.queues.run(view, context.backend.measures)
            now_ms = services.now_ms()
            values = {metric: value_of(metric, parts, now_ms) for metric in METRICS}
            return QueueMetricsShown(
                queue=name,
                account=owner,
                time=now_ms / 1000,
                counted_since=max(one.since_ms for one in parts) / 1000,
                metrics=[
                    MetricShown(name=metric.name, unit=metric.unit, value=value, counter=metric.counts)
                    for metric, value in values.items()
                    if value is not None
                ],
            )

        return await who.visit.within_limits(who.call, "GetQueueAttributes", read)

    @router.get(
        "/metrics",
        name="metrics.scrape",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def scrape(
        who: Who,
        account: Account = None,
        prefix: Annotated[str, Query(description="only queues with this name prefix")] = "",
        limit: Annotated[int, Query(ge=1, le=QUEUES_MOST, description="maximum number of queues, by name")] = 1000,
    ) -> Response:
        """Show the queues that the key may be used for, in Prometheus's format; refreshed every ten seconds at
        most."""
        owner = who.account(account)
        principal = who.principal
        if "monitor" not in held(principal.scopes) and not (principal.scopes and principal.prefixes):
            raise not_permitted(
                "Queues can be listed by keys with the scope 'monitor' or 'manage', and by keys for queues "
                "of certain prefixes."
            )

        async def page() -> Response:
            content = await pages.page(owner, listed_prefixes(principal, prefix), limit)
            return Response(content, headers={"content-type": CONTENT_TYPE})

        return await who.visit.within_limits(who.call, "GetQueueAttributes", page)

    return router
