"""Routes that check the policies of queues and topics."""

from __future__ import annotations

from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Path, Query

from frontend.queues.policies import GOVERNED_BY, access_policy, stored_access_policy
from frontend.request.access import NEVER_LOCKED, SHARED
from frontend.request.context import Context
from frontend.rest.caller import CurrentCaller, RestRoute, rest_router
from frontend.rest.policy_checks.decisions import PolicyHolder, decide
from frontend.rest.policy_checks.models import PolicyAnswer, PolicyQuestion
from frontend.rest.topics.access import RestTopics
from frontend.sns.actions import access as topic_access
from frontend.sns.topics.policies import GOVERNED, SERVICE, stored_policy, topic_policy

Account = Annotated[str | None, Query(description="account of the queue or topic; operators may name any")]
Name = Annotated[str, Path(description="name of the queue or topic")]
_GOVERNED_OF_QUEUES = frozenset(GOVERNED_BY.values())


class CheckingRoute(RestRoute):
    """A route that decides on a call that is not made: it is not audited."""

    audited = False


def create_router(context: Context) -> APIRouter:
    """Create the route for queues."""
    router = rest_router("queues", CheckingRoute)

    @router.post("/queues/{name}/policy-check", name="queue.policy_check")
    async def check(
        caller: CurrentCaller, name: Name, question: PolicyQuestion, account: Account = None
    ) -> PolicyAnswer:
        """Check if the queue's policy, or another one, permits a call, and by which statement."""
        owner = caller.account(account)
        caller.require_queue("manage", owner, name)

        async def answer() -> PolicyAnswer:
            view = await context.access.queue(caller.call_of(owner), "GetQueueAttributes", owner, name)
            policy = view.policy
            if question.policy is not None:
                policy = stored_access_policy(access_policy(_text(question.policy)))
            holder = PolicyHolder(
                owner, view.arn, policy, "sqs", _GOVERNED_OF_QUEUES, SHARED, NEVER_LOCKED, unsigned=True
            )
            return decide(context.services, holder, question)

        return await caller.limited("GetQueueAttributes", answer)

    return router


def create_topic_router(topics: RestTopics) -> APIRouter:
    """Create the route for topics."""
    router = rest_router("topics", CheckingRoute)
    sns = topics.sns

    @router.post("/topics/{name}/policy-check", name="topic.policy_check")
    async def check(
        caller: CurrentCaller, name: Name, question: PolicyQuestion, account: Account = None
    ) -> PolicyAnswer:
        """Check if the topic's policy, or another one, permits a call, and by which statement."""
        owner = caller.account(account)
        arn = str(topics.arn(caller, owner, name))
        caller.require_scope("manage")

        async def answer() -> PolicyAnswer:
            view = await sns.access.topic(caller.call_of(owner), "GetTopicAttributes", arn)
            policy = view.policy
            if question.policy is not None:
                policy = stored_policy(topic_policy(_text(question.policy)))
            holder = PolicyHolder(
                owner, arn, policy, SERVICE, GOVERNED, GOVERNED, topic_access.NEVER_LOCKED, unsigned=False
            )
            return decide(sns.services, holder, question)

        return await caller.limited("GetQueueAttributes", answer)

    return router


def _text(policy: dict[str, Any] | str) -> str:
    return policy if isinstance(policy, str) else orjson.dumps(policy).decode()
