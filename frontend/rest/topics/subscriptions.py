"""Subscriptions of topics: create, confirm, list, show, change, delete."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from backend.api import Measures
from frontend.queue_metrics import age_seconds
from frontend.request.request import Members
from frontend.rest.caller import CurrentCaller, RestRoute, rest_router
from frontend.rest.problems import invalid
from frontend.rest.topics.access import RestTopics, call_for, subscription_id
from frontend.rest.topics.models import (
    SubscriptionBacklog,
    SubscriptionConfirmed,
    SubscriptionGiven,
    SubscriptionLine,
    SubscriptionList,
    SubscriptionShown,
    SubscriptionToken,
    SubscriptionUpdate,
)
from frontend.rest.topics.topics import PAGE_MAX, TopicName
from frontend.sns.actions.access import permits
from frontend.sns.actions.subscriptions import change_subscription
from frontend.sns.protocol.errors import NOT_FOUND
from frontend.sns.topics.subscription_attributes import SUBSCRIPTION_SETTABLE
from frontend.sqs.protocol.errors import SqsError
from metadata_service.arn import QueueArn
from metadata_service.topics import PUSHED_PROTOCOLS, Subscription, subscription_queue_name

Account = Annotated[
    str | None,
    Query(description="account of the topic; operators act as that account, and for others the topic's policy decides"),
]
SubscriptionId = Annotated[str, Path(description="the subscription's id, a UUID")]
_QUEUES = "sqs"


def create_router(topics: RestTopics) -> APIRouter:
    """Create the routes of subscriptions."""
    router = rest_router("topics", RestRoute)
    sns = topics.sns

    @router.post("/topics/{name}/subscriptions", name="subscription.create", status_code=201)
    async def subscribe(
        caller: CurrentCaller, name: TopicName, given: SubscriptionGiven, account: Account = None
    ) -> SubscriptionShown:
        """Subscribe an endpoint to the topic.  One of another account's queue waits for its confirmation."""
        owner, call = call_for(caller, account)
        topic = topics.arn(caller, owner, name)
        members: Members = {
            "TopicArn": str(topic),
            **_endpoint(topics, call.principal.account, given),
            "Attributes": given.attributes,
            "ReturnSubscriptionArn": True,
        }
        made = await topics.carry_out(caller, call, "Subscribe", members)
        caller.target = made["SubscriptionArn"]
        return _shown(
            await topics.carry_out(
                caller, call, "GetSubscriptionAttributes", {"SubscriptionArn": made["SubscriptionArn"]}
            )
        )

    @router.post("/topics/{name}/subscriptions/confirm", name="subscription.confirm")
    async def confirm(
        caller: CurrentCaller, name: TopicName, given: SubscriptionToken, account: Account = None
    ) -> SubscriptionConfirmed:
        """Confirm a subscription by the token that its endpoint has got."""
        owner, call = call_for(caller, account)
        members: Members = {
            "TopicArn": str(topics.arn(caller, owner, name)),
            "Token": given.token,
            "AuthenticateOnUnsubscribe": str(given.authenticate_on_unsubscribe).lower(),
        }
        caller.require_scope("manage")
        confirmed: str = (await topics.carry_out(caller, call, "ConfirmSubscription", members))["SubscriptionArn"]
        caller.target = confirmed
        return SubscriptionConfirmed(id=_id_in(confirmed), arn=confirmed)

    @router.get("/topics/{name}/subscriptions", name="subscription.list")
    async def list_subscriptions(
        caller: CurrentCaller,
        name: TopicName,
        account: Account = None,
        after: Annotated[str, Query(description="`next` of the previous page")] = "",
        limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 100,
    ) -> SubscriptionList:
        """List the subscriptions of a topic, by their ids."""
        owner, call = call_for(caller, account)
        topic = topics.arn(caller, owner, name)
        position = subscription_id(after) if after else b""

        async def page() -> SubscriptionList:
            view = await sns.access.topic(call, "ListSubscriptionsByTopic", str(topic))
            found = await sns.topics.client.list_subscriptions(view.topic, after=position, limit=limit + 1)
            lines = [_line(topics, one) for one in found[:limit]]
            return SubscriptionList(subscriptions=lines, next=lines[-1].id if len(found) > limit else None)

        return await caller.pipeline.limited(call, "manage", page)

    @router.get("/subscriptions", name="subscription.list_own")
    async def list_own(
        caller: CurrentCaller,
        account: Annotated[str | None, Query(description="account of the subscriber; operators may name any")] = None,
        after: Annotated[str, Query(description="`next` of the previous page")] = "",
        limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 100,
    ) -> SubscriptionList:
        """List the subscriptions of an account, to its own topics and to those of others.

        A page of a key with prefixes may have fewer than are left, because it has only those that the key may be used
        for.
        """
        subscriber = caller.account(account)
        caller.require_scope("manage")

        async def page() -> SubscriptionList:
            try:
                found = await sns.topics.client.owner_subscriptions(subscriber, after=after, limit=limit)
            except ValueError:
                raise invalid("`after` is the `next` of the page before, as it was given.") from None
            permitted = [one for one in found.subscriptions if permits(caller.principal.prefixes, one)]
            return SubscriptionList(subscriptions=[_line(topics, one) for one in permitted], next=found.after or None)

        return await caller.limited("manage", page)

    @router.get("/topics/{name}/subscriptions/{subscription}", name="subscription.show")
    async def show(
        caller: CurrentCaller, name: TopicName, subscription: SubscriptionId, account: Account = None
    ) -> SubscriptionShown:
        """Show a subscription, for its owner and for that of the topic."""
        owner, call = call_for(caller, account)
        named = topics.subscription_arn(caller, owner, name, subscription)
        shown = _shown(
            await topics.carry_out(caller, call, "GetSubscriptionAttributes", {"SubscriptionArn": str(named)})
        )
        if shown.protocol in PUSHED_PROTOCOLS:
            parts = await topics.measures(owner, subscription_queue_name(named.subscription_id))
            shown.backlog = None if parts is None else _backlog(parts, sns.services.now_ms())
        return shown

    @router.patch("/topics/{name}/subscriptions/{subscription}", name="subscription.change", status_code=204)
    async def change(
        caller: CurrentCaller,
        name: TopicName,
        subscription: SubscriptionId,
        given: SubscriptionUpdate,
        account: Account = None,
    ) -> Response:
        """Change attributes of a subscription, as its owner."""
        owner, call = call_for(caller, account)
        named = topics.subscription_arn(caller, owner, name, subscription)

        async def change_attributes() -> None:
            await change_subscription(sns, call, {"SubscriptionArn": str(named)}, given.attributes)

        await caller.pipeline.limited(call, "manage", change_attributes)
        return Response(status_code=204)

    @router.delete("/topics/{name}/subscriptions/{subscription}", name="subscription.delete", status_code=204)
    async def unsubscribe(
        caller: CurrentCaller, name: TopicName, subscription: SubscriptionId, account: Account = None
    ) -> Response:
        """Delete a subscription, as its owner or that of the topic.  Its pending deliveries are still made."""
        owner, call = call_for(caller, account)
        named: Members = {"SubscriptionArn": str(topics.subscription_arn(caller, owner, name, subscription))}
        try:
            await topics.carry_out(caller, call, "GetSubscriptionAttributes", named)
        except SqsError as error:
            if error.kind is NOT_FOUND:  # other processes may not know that yet
                await topics.carry_out(caller, call, "Unsubscribe", named)
            raise
        await topics.carry_out(caller, call, "Unsubscribe", named)
        return Response(status_code=204)

    return router


def _endpoint(topics: RestTopics, account: str, given: SubscriptionGiven) -> Members:
    """Protocol and endpoint of a new subscription.  Raises :class:`Problem`."""
    if given.queue is None:
        return {"Protocol": given.protocol or "", "Endpoint": given.endpoint or ""}
    if given.protocol is not None or given.endpoint is not None:
        raise invalid("A subscription has either `queue`, or `protocol` and `endpoint`.")
    region = topics.sns.services.settings.region
    return {"Protocol": _QUEUES, "Endpoint": str(QueueArn(region, account, given.queue))}


def _line(topics: RestTopics, one: Subscription) -> SubscriptionLine:
    named = topics.sns.topics.subscription_arn(one)
    return SubscriptionLine(
        id=str(uuid.UUID(bytes=one.subscription_id)),
        arn=str(named),
        topic=one.topic_name,
        topic_account=one.topic_account,
        owner=one.owner,
        protocol=one.protocol,
        endpoint=one.endpoint,
        confirmed=not one.pending,
        raw=one.attributes.get("RawMessageDelivery") == "true",
        filtered=one.has_filter_policy,
        created=one.created_s,
    )


def _shown(answer: Members) -> SubscriptionShown:
    """The subscription in an answer of GetSubscriptionAttributes, without its backlog."""
    given: dict[str, str] = answer["Attributes"]
    return SubscriptionShown(
        id=_id_in(given["SubscriptionArn"]),
        arn=given["SubscriptionArn"],
        topic_arn=given["TopicArn"],
        owner=given["Owner"],
        protocol=given["Protocol"],
        endpoint=given["Endpoint"],
        confirmed=given["PendingConfirmation"] == "false",
        confirmed_by=given.get("SubscriptionPrincipal"),
        attributes={name: given[name] for name in SUBSCRIPTION_SETTABLE if name in given},
        backlog=None,
    )


def _backlog(parts: Sequence[Measures], now_ms: int) -> SubscriptionBacklog:
    """The content of a subscription's hidden queue."""
    pending = sum(one.visible + one.in_flight + one.delayed for one in parts)
    oldest = max(age_seconds(one, now_ms) for one in parts)
    return SubscriptionBacklog(pending=pending, oldest_seconds=oldest if pending else None)


def _id_in(subscription_arn: str) -> str:
    return subscription_arn.rpartition(":")[2]
