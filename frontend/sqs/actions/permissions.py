"""AddPermission and RemovePermission: statements of the queue's Policy attribute."""

from __future__ import annotations

from collections.abc import Callable

from frontend.queues import policies
from frontend.queues.queues import Update
from frontend.queues.view import QueueView
from frontend.request.context import Context
from frontend.request.request import Call, Members
from frontend.sqs.protocol.errors import missing_parameter
from metadata_service.models import Queue


async def add_permission(context: Context, call: Call, view: QueueView, members: Members) -> None:
    for name, wire in (("Label", "Label"), ("AWSAccountIds", "AWSAccountId"), ("Actions", "ActionName")):
        if not members.get(name):
            raise missing_parameter(wire)
    label, accounts, actions = members["Label"], members["AWSAccountIds"], members["Actions"]
    await _change_policy(
        context, view, lambda policy: policies.with_permission(policy, view.arn, label, accounts, actions)
    )


async def remove_permission(context: Context, call: Call, view: QueueView, members: Members) -> None:
    label = members.get("Label")
    if not label:
        raise missing_parameter("Label")
    await _change_policy(context, view, lambda policy: policies.without_permission(policy, label))


async def _change_policy(context: Context, view: QueueView, change: Callable[[str | None], str | None]) -> None:
    def update(queue: Queue) -> Update:
        attributes = dict(queue.attributes)
        policy = change(attributes.pop("Policy", None))
        if policy is not None:
            attributes["Policy"] = policy
        return Update(attributes=attributes)

    await context.queues.change(view, update)
