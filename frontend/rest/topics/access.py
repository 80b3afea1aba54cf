"""Access to topics and subscriptions for REST: SNS's actions, carried out for the caller."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from backend.api import BackendError, Measures, QueueMeasures
from frontend.request.request import Call, Members
from frontend.rest.caller import RestCaller
from frontend.rest.problems import invalid
from frontend.sns.actions.context import SnsContext
from frontend.sns.messages.arn import SubscriptionArn, TopicArn
from frontend.sns.operations import SNS_OPERATIONS
from frontend.sns.topics.attributes import is_topic_name
from frontend.sqs.protocol.errors import SqsError
from telemetry.texts import shown


class RestTopics:
    """Topics, as the routes need them."""

    def __init__(self, sns: SnsContext) -> None:
        self.sns = sns

    # --- names ---

    def arn(self, caller: RestCaller, account: str, name: str) -> TopicArn:
        """ARN of the request's topic, whose name is valid, for the audit log too.  Raises :class:`Problem`."""
        arn = self.sns.topics.arn(account, name)
        caller.target = str(arn)
        if not is_topic_name(name):
            raise invalid(f"{shown(name, 100)!r} cannot be the name of a topic.")
        return arn

    def subscription_arn(self, caller: RestCaller, account: str, name: str, given: str) -> SubscriptionArn:
        """ARN of the request's subscription, for the audit log too.  Raises :class:`Problem`."""
        topic = self.arn(caller, account, name)
        arn = SubscriptionArn(topic, subscription_id(given))
        caller.target = str(arn)
        return arn

    # --- actions ---

    async def carry_out(self, caller: RestCaller, call: Call, name: str, members: Members) -> Members:
        """Carry out an action of SNS within the limits of the caller's account.  Raises its errors."""
        action = SNS_OPERATIONS[name]

        async def act() -> Members:
            return await action.run(self.sns, call, members) or {}

        return await caller.pipeline.limited(call, action.limit, act)

    async def publish(self, caller: RestCaller, read: Callable[[], Members]) -> Members:
        """Publish a message as the caller; the request is counted as a call of ``Publish``.  Raises its errors.

        ``read`` parses the members, after the caller's limits have admitted the call.
        """
        request, call, action = caller.request, caller.call, SNS_OPERATIONS["Publish"]
        request.action, request.call = "sns:Publish", call

        async def act() -> Members:
            members = request.members = read()
            return await action.run(self.sns, call, members) or {}

        result = request.result = await caller.pipeline.limited(call, action.limit, act)
        return result

    async def measures(self, account: str, name: str) -> list[Measures] | None:
        """Statistics of the partitions of the hidden queue with this name; None: they cannot be read now."""
        queues = self.sns.base.queues
        try:
            hidden = await queues.hidden(account, name)
            return None if hidden is None else await queues.call(hidden, QueueMeasures(hidden.target))
        except (SqsError, BackendError):
            return None


def call_for(caller: RestCaller, account: str | None) -> tuple[str, Call]:
    """The account of the topic, and the call: for operators one of that account, for others their own.

    The policy of another account's topic decides on their calls.  Raises :class:`Problem`.
    """
    if caller.principal.role == "operator":
        owner = caller.account(account)
        return owner, caller.call_of(owner)
    return caller.owner(account), caller.call


def subscription_id(text: str) -> bytes:
    """Parse the id of a subscription.  Raises :class:`Problem`."""
    try:
        parsed = uuid.UUID(text)
    except ValueError:
        parsed = None
    if parsed is None or str(parsed) != text:
        raise invalid(f"{shown(text, 100)!r} is not the id of a subscription, which is a UUID in lower case.")
    return parsed.bytes
