"""Topics: create, list, show, change, delete; and the test of filter policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import orjson
from fastapi import APIRouter, Path, Query, Response

from backend.api import Measures
from frontend.request.request import Members
from frontend.rest.caller import CurrentCaller, RestRoute, rest_router
from frontend.rest.listing import list_permitted
from frontend.rest.message_forms import attribute_members
from frontend.rest.problems import Problem
from frontend.rest.topics.access import RestTopics
from frontend.rest.topics.models import (
    DeliveryCounts,
    FilterTest,
    FilterTested,
    SubscriptionCounts,
    TopicChange,
    TopicGiven,
    TopicLine,
    TopicMade,
    TopicPage,
    TopicShown,
)
from frontend.sns.actions.topics import change_topic
from frontend.sns.filters.compiler import compile_filter_policy
from frontend.sns.filters.expressions import FilterPolicyInvalid
from frontend.sns.filters.work import TooMuchWork
from frontend.sns.messages.publication import message_attributes
from frontend.sns.topics.selection import SubscriptionSelector
from metadata_service.topics import Topic, hidden_queue_name

PAGE_MAX = 1_000

Account = Annotated[str | None, Query(description="account of the topics; operators may name any")]
TopicName = Annotated[str, Path(description="the topic's name")]
_SUBSCRIPTIONS = ("SubscriptionsConfirmed", "SubscriptionsPending", "SubscriptionsDeleted")
_SHOWN_APART = frozenset(("Owner", "TopicArn", *_SUBSCRIPTIONS))
"""Attributes that are members of their own."""


def create_router(topics: RestTopics) -> APIRouter:
    """Create the routes of topics."""
    router = rest_router("topics", RestRoute)
    sns = topics.sns

    @router.get("/topics", name="topic.list")
    async def list_topics(
        caller: CurrentCaller,
        account: Account = None,
        prefix: Annotated[str, Query(description="only names with this prefix")] = "",
        after: Annotated[str, Query(description="only names greater than this one")] = "",
        limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 100,
    ) -> TopicPage:
        """List the topics of an account, by name, that the key may be used for."""
        owner = caller.account(account)
        caller.require_scope("manage")

        async def read(one: str, count: int) -> list[Topic]:
            return await sns.topics.client.list_topics(owner, prefix=one, after=after, limit=count)

        async def page() -> TopicPage:
            found = await list_permitted(read, caller.principal.prefixes, prefix, limit + 1)
            lines = [
                TopicLine(name=one.name, account=owner, subscriptions=one.subscriptions, created=one.created_s)
                for one in found[:limit]
            ]
            return TopicPage(topics=lines, next=lines[-1].name if len(found) > limit else None)

        return await caller.limited("manage", page)

    @router.post("/topics", name="topic.create", status_code=201)
    async def create(caller: CurrentCaller, given: TopicGiven, account: Account = None) -> TopicMade:
        """Create a topic.  One that exists with the same attributes and tags is no error."""
        owner = caller.account(account)
        arn = topics.arn(caller, owner, given.name)
        await caller.require_tenant(owner)
        members: Members = {"Name": given.name, "Attributes": given.attributes, "Tags": _tags(given.tags)}
        await topics.carry_out(caller, caller.call_of(owner), "CreateTopic", members)
        return TopicMade(name=given.name, account=owner, arn=str(arn))

    @router.get("/topics/{name}", name="topic.show")
    async def show(caller: CurrentCaller, name: TopicName, account: Account = None) -> TopicShown:
        """Show a topic's attributes, and numbers of subscriptions and of pending deliveries; its tags to managers."""
        owner = caller.account(account)
        arn = topics.arn(caller, owner, name)
        got = await topics.carry_out(caller, caller.call_of(owner), "GetTopicAttributes", {"TopicArn": str(arn)})
        attributes: dict[str, str] = got["Attributes"]
        view = await sns.topics.find(arn)
        if view is None:
            raise Problem(404, "NotFound", "The topic was deleted meanwhile.")
        confirmed, pending, deleted = (int(attributes[one]) for one in _SUBSCRIPTIONS)
        return TopicShown(
            name=name,
            account=owner,
            arn=str(arn),
            created=view.topic.created_s,
            subscriptions=SubscriptionCounts(confirmed=confirmed, pending=pending, deleted=deleted),
            deliveries=_deliveries(await topics.measures(owner, hidden_queue_name(name))),
            attributes={one: value for one, value in attributes.items() if one not in _SHOWN_APART},
            tags=view.topic.tags if "manage" in caller.principal.scopes else None,
        )

    @router.patch("/topics/{name}", name="topic.change", status_code=204)
    async def change(caller: CurrentCaller, name: TopicName, given: TopicChange, account: Account = None) -> Response:
        """Change a topic's attributes, then its tags.  If one of the steps is refused, the earlier ones stay."""
        owner = caller.account(account)
        arn = str(topics.arn(caller, owner, name))
        call = caller.call_of(owner)
        added = {key: value for key, value in given.tags.items() if value is not None}
        removed = [key for key, value in given.tags.items() if value is None]
        if given.attributes or not given.tags:

            async def change_attributes() -> None:
                await change_topic(sns, call, arn, given.attributes)

            await caller.pipeline.limited(call, "manage", change_attributes)
        if removed:
            await topics.carry_out(caller, call, "UntagResource", {"ResourceArn": arn, "TagKeys": removed})
        if added:
            await topics.carry_out(caller, call, "TagResource", {"ResourceArn": arn, "Tags": _tags(added)})
        return Response(status_code=204)

    @router.delete("/topics/{name}", name="topic.delete", status_code=204)
    async def delete(caller: CurrentCaller, name: TopicName, account: Account = None) -> Response:
        """Delete the topic with its subscriptions and pending deliveries, irrevocably."""
        owner = caller.account(account)
        arn = topics.arn(caller, owner, name)
        call = caller.call_of(owner)
        await sns.access.topic(call, "DeleteTopic", str(arn))  # DeleteTopic says nothing of one that does not exist
        await topics.carry_out(caller, call, "DeleteTopic", {"TopicArn": str(arn)})
        return Response(status_code=204)

    @router.post("/filter-policies/test", name="filter_policy.test")
    async def test_filter(caller: CurrentCaller, given: FilterTest) -> FilterTested:
        """Test if a subscription with this filter policy gets a message, without publishing it."""
        caller.require_scope("manage")

        async def test() -> FilterTested:
            return FilterTested(matches=await _matches(sns.planner.selector, caller.principal.account, given))

        return await caller.limited("manage", test)

    return router


def _tags(given: dict[str, str]) -> list[Members]:
    return [{"Key": key, "Value": value} for key, value in given.items()]


def _deliveries(parts: Sequence[Measures] | None) -> DeliveryCounts | None:
    if parts is None:
        return None
    return DeliveryCounts(
        pending=sum(one.pending_deliveries for one in parts), dropped=sum(one.dropped_deliveries for one in parts)
    )


async def _matches(selector: SubscriptionSelector, account: str, given: FilterTest) -> bool:
    """True if the policy lets the message through; an empty policy does.  Raises :class:`Problem`."""
    attributes = message_attributes(attribute_members(given.attributes))
    text = given.policy if isinstance(given.policy, str) else orjson.dumps(given.policy).decode()
    try:
        policy = compile_filter_policy(text, given.scope)
    except FilterPolicyInvalid as error:
        raise Problem(400, "InvalidFilterPolicy", str(error)) from None
    if policy is None:
        return True
    try:
        return await selector.matches(account, policy, attributes, given.body)
    except TooMuchWork:
        raise Problem(
            400, "FilterPolicyTooCostly", "The policy takes too much work for this message, so its delivery would fail."
        ) from None
