"""Messages about a subscription to its endpoint: the request to confirm it, and the notice of its end.

They are signed, and name URLs of the service.  These begin with the service's own URL, never with the Host of the
caller, who may not be the owner of the endpoint.  A service that does not know its URL names paths alone.
"""

from __future__ import annotations

import secrets
import uuid

from backend.api import BackendError
from frontend.queues.view import QueueView
from frontend.request.request import Call
from frontend.sns.actions.context import SnsContext
from frontend.sns.actions.endpoints import endpoint_of
from frontend.sns.messages import rendering
from frontend.sns.messages.rendering import Confirmation
from frontend.sns.topics.view import TopicView
from metadata_service.store import ConditionFailed, SubscriptionNotFound
from metadata_service.topics import Subscription, SubscriptionChange

_TOKEN_BYTES = 32


def new_token() -> str:
    return secrets.token_hex(_TOKEN_BYTES)


async def ask_for_confirmation(context: SnsContext, call: Call, view: TopicView, subscription: Subscription) -> None:
    """Send a confirmation to the endpoint, if it can get one.

    Raises the backend's errors if the endpoint is one of HTTP, whose only way to be confirmed this is.
    """
    queue = endpoint_of(subscription).queue
    if queue is None:
        destination = await context.planner.hidden_queue(subscription)
    else:
        destination = await context.planner.permitted_queue(view, queue)
    if destination is None:
        return
    try:
        await _send(context, view, subscription, destination)
    except BackendError as error:
        if queue is None:
            raise
        # The subscription stays pending, and another Subscribe sends another confirmation.
        context.base.log.warning("%s a confirmation could not be sent to %s: %s", call.request_id, queue, error)


async def deactivate(context: SnsContext, call: Call, view: TopicView, subscription: Subscription) -> bool:
    """End a subscription of an endpoint of HTTP, whose owner can restore it as long as others can be confirmed.

    Returns False if it was changed meanwhile.
    """
    change = SubscriptionChange(
        token=new_token(), now_ms=context.services.now_ms(), confirmed_by="", authenticate_on_unsubscribe=False
    )
    try:
        subscription = await context.topics.client.update_subscription(subscription, change)
    except (ConditionFailed, SubscriptionNotFound):
        return False
    destination = await context.planner.hidden_queue(subscription)
    if destination is not None:
        try:
            await _send(context, view, subscription, destination, ended=True)
        except BackendError as error:
            # It has ended all the same, and can be subscribed again.
            context.base.log.warning(
                "%s the endpoint of subscription %s gets no notice of its end: %s",
                *(call.request_id, context.topics.subscription_arn(subscription), error),
            )
    return True


async def _send(
    context: SnsContext, view: TopicView, subscription: Subscription, destination: QueueView, *, ended: bool = False
) -> None:
    confirmation = Confirmation(
        str(uuid.uuid4()),
        subscription.token,
        str(view.arn),
        subscription.token_s * 1000,
        str(context.topics.subscription_arn(subscription)) if ended else None,
    )
    base_url = context.services.settings.external_url or ""
    signer = await context.signing.signer()
    version = view.signature_version
    body = rendering.render_confirmation(
        confirmation,
        base_url=base_url,
        signature_version=version,
        signature=await signer.sign(rendering.signed_confirmation(confirmation, base_url), version),
        certificate=signer.certificate,
    )
    await context.sender.confirm(view, destination, body)
