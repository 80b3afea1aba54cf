"""Metrics of queues: one queue or several as JSON, an account's queues in Prometheus's format."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Path, Query, Response

from auth.principal import SCOPES, effective_scopes
from backend.api import AccountMeasures, QueueMeasures
from frontend.queue_metrics import QUEUES_MAX, QueueMetrics, measures_by_queue
from frontend.request.access import check_name, check_scopes, listed_prefixes
from frontend.request.context import Context
from frontend.rest.caller import CurrentCaller, RestCaller, RestRoute, rest_router
from frontend.rest.live.metrics import metrics_of, read_metrics, shown_metrics
from frontend.rest.models import QueueMetricsPage, QueueMetricsShown, TopicMetricsShown
from frontend.rest.problems import invalid, not_found, not_permitted
from frontend.rest.resources.queues import Account, Name
from frontend.sns.topics.attributes import is_topic_name
from frontend.topic_metrics import TOPIC_METRICS
from telemetry.prometheus import CONTENT_TYPE
from telemetry.texts import shown

TopicName = Annotated[str, Path(description="name of the topic")]
PAGE_MAX: Final = 500
"""Maximum number of queues on one page of metrics."""


def create_router(context: Context) -> APIRouter:
    """Create the routes of metrics."""
    router = rest_router("metrics", RestRoute)
    services = context.services
    pages = QueueMetrics(services.backend, services.now_ms, () if services.topics is None else TOPIC_METRICS)

    @router.get("/queues/{name}/metrics", name="queue.metrics")
    async def queue_metrics(caller: CurrentCaller, name: Name, account: Account = None) -> QueueMetricsShown:
        """Show the queue's current messages and its counters, under CloudWatch's names."""
        owner = caller.account(account)
        caller.require_queue_by_any_scope(owner, name)

        async def read() -> QueueMetricsShown:
            return await read_metrics(context, await context.access.seen_queue(caller.call_of(owner), owner, name))

        return await caller.limited("GetQueueAttributes", read)

    @router.get("/topics/{name}/metrics", name="topic.metrics")
    async def topic_metrics(caller: CurrentCaller, name: TopicName, account: Account = None) -> TopicMetricsShown:
        """Show the topic's counters, under CloudWatch's names."""
        owner = caller.account(account)
        if not is_topic_name(name):
            raise invalid(f"{shown(name, 100)!r} cannot be the name of a topic.")
        caller.target = f"arn:aws:sns:{services.settings.region}:{owner}:{name}"
        check_scopes(caller.principal, "the metrics of a topic", frozenset((*SCOPES, "monitor")))
        check_name(caller.principal, name, "topics")

        async def read() -> TopicMetricsShown:
            view = await context.queues.of_topic(owner, name)
            if view is None:
                raise not_found(f"topic {name!r}")
            parts = await context.queues.call(view, QueueMeasures(view.target))
            now_ms = services.now_ms()
            return TopicMetricsShown(
                topic=name,
                account=owner,
                time=now_ms / 1000,
                counted_since=max(one.since_ms for one in parts) / 1000,
                metrics=shown_metrics(TOPIC_METRICS, parts, now_ms),
            )

        return await caller.limited("GetQueueAttributes", read)

    @router.get("/queue-metrics", name="metrics.list")
    async def list_metrics(
        caller: CurrentCaller,
        account: Account = None,
        prefix: Annotated[str, Query(description="only names with this prefix")] = "",
        after: Annotated[str, Query(description="only names greater than this one")] = "",
        limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 100,
    ) -> QueueMetricsPage:
        """Show the current messages and the counters of the queues that the key may be used for."""
        owner = caller.account(account)
        prefixes = _listed_prefixes(caller, prefix)

        async def page() -> QueueMetricsPage:
            if not prefixes:  # the caller may see no queues
                return QueueMetricsPage(queues=[], next=None)
            command = AccountMeasures(owner, [one for one in prefixes if one], after, limit + 1)
            by_queue = measures_by_queue(await services.backend.call(command))
            names, now_ms = list(by_queue), services.now_ms()
            return QueueMetricsPage(
                queues=[metrics_of(owner, name, by_queue[name], now_ms) for name in names[:limit]],
                next=names[limit - 1] if len(names) > limit else None,
            )

        return await caller.limited("GetQueueAttributes", page)

    @router.get(
        "/metrics",
        name="metrics.scrape",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def scrape(
        caller: CurrentCaller,
        account: Account = None,
        prefix: Annotated[str, Query(description="only queues and topics with this name prefix")] = "",
        limit: Annotated[
            int, Query(ge=1, le=QUEUES_MAX, description="maximum number of queues, by name, and then of topics")
        ] = 1000,
    ) -> Response:
        """Show the queues and topics that the key may be used for, in Prometheus's format.

        They are refreshed every ten seconds at most."""
        owner = caller.account(account)
        prefixes = _listed_prefixes(caller, prefix)

        async def page() -> Response:
            content = await pages.page(owner, prefixes, limit)
            return Response(content, headers={"content-type": CONTENT_TYPE})

        return await caller.limited("GetQueueAttributes", page)

    return router


def _listed_prefixes(caller: RestCaller, prefix: str) -> list[str]:
    """Return the prefixes of the queues that the caller may list; empty: none.  Raises :class:`Problem`."""
    principal = caller.principal
    scopes = effective_scopes(principal.scopes)
    if "monitor" not in scopes and not (principal.prefixes and scopes.intersection(SCOPES)):
        raise not_permitted(
            "Queues can be listed by keys with the scope 'monitor' or 'manage', and by keys for queues of certain "
            "prefixes."
        )
    return listed_prefixes(principal, prefix)
