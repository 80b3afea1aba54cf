"""ChangeMessageVisibility."""

from __future__ import annotations

from frontend.queues.view import QueueView
from frontend.request.context import Context
from frontend.request.request import Call, Members
from frontend.sqs.actions.messages import handle_error
from frontend.sqs.protocol import validation
from frontend.sqs.protocol.errors import missing_parameter


async def change_message_visibility(context: Context, call: Call, view: QueueView, members: Members) -> None:
    handle, seconds = members.get("ReceiptHandle"), members.get("VisibilityTimeout")
    if not handle:
        raise missing_parameter("ReceiptHandle")
    if seconds is None:
        raise missing_parameter("VisibilityTimeout")
    validation.visibility_timeout(seconds)
    (outcome,) = await context.queues.change_visibility(view, [(handle, seconds)])
    if outcome:
        raise handle_error(handle, outcome, seconds)
