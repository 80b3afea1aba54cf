"""ChangeMessageVisibility."""

from __future__ import annotations

from collections.abc import Sequence

from backend.api import HandleOutcome
from frontend.sqs import validation
from frontend.sqs.actions.context import Context
from frontend.sqs.actions.messages import handle_error
from frontend.sqs.calls import Call, Members
from frontend.sqs.errors import missing_parameter
from frontend.sqs.queues import QueueView


async def change_message_visibility(context: Context, call: Call, view: QueueView, members: Members) -> None:
    handle, seconds = members.get("ReceiptHandle"), members.get("VisibilityTimeout")
    if not handle:
        raise missing_parameter("ReceiptHandle")
    if seconds is None:
        raise missing_parameter("VisibilityTimeout")
    validation.visibility_timeout(seconds)
    queues, change, changes = context.queues, context.backend.change_visibility, [(handle, seconds)]
    outcomes: Sequence[HandleOutcome] = await queues.run(view, change, changes)
    if outcomes[0]:
        outcomes = await queues.of_others(view, change, changes, [handle], outcomes, HandleOutcome.GONE)
        if outcomes[0]:
            raise handle_error(handle, outcomes[0], seconds)
