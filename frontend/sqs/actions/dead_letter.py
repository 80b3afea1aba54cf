"""Dead-letter queues: validation of redrive targets, and listing of sources."""

from __future__ import annotations

from auth.principal import Principal
from frontend.queues import policies
from frontend.queues.view import QueueView
from frontend.request.access import check_credential, in_prefixes
from frontend.request.context import Context
from frontend.request.request import Call, Members
from frontend.sqs.actions import paging
from frontend.sqs.protocol.errors import invalid_value
from metadata_service import arn


async def check_target(
    context: Context, account: str, policy: str, source_arn: str, fifo: bool, principal: Principal | None
) -> None:
    """Check that a queue may use this canonical RedrivePolicy, and that ``principal`` may set it.

    Raises InvalidParameterValue and AccessDenied.
    """
    redrive = policies.stored_redrive_policy(policy)
    named = arn.parse(redrive.dead_letter_arn)
    if principal is not None and named is not None:
        check_credential(principal, "SetQueueAttributes", named.name)
    target = await context.queues.by_arn(redrive.dead_letter_arn, account)
    reason = ""
    if target is None:
        reason = "Dead letter target does not exist."
    elif target.fifo != fifo:
        reason = "Dead-letter queue must be same type of queue as the source."
    elif not policies.allows_source(target.queue.attributes.get("RedriveAllowPolicy"), source_arn):
        reason = "The redrive allow policy of the dead-letter queue does not permit this source queue."
    if reason:
        raise invalid_value(policy, "RedrivePolicy", reason)


async def list_dead_letter_source_queues(context: Context, call: Call, view: QueueView, members: Members) -> Members:
    size = paging.page_size(members)
    account = view.queue.account
    names = await context.metadata.dead_letter_sources(account, view.arn, after=paging.after(members), limit=size + 1)
    names, token = paging.page(names, size, members)
    names = in_prefixes(call.principal, names)
    result: Members = {"queueUrls": [call.queue_url(account, name) for name in names]}
    if token:
        result["NextToken"] = token
    return result
