"""Actions on subscriptions: subscribe, confirm, list, attributes, unsubscribe."""

from __future__ import annotations

import secrets
import uuid
from hmac import compare_digest

from backend.api import BackendError
from frontend.query.next_tokens import next_token
from frontend.request.access import check_name
from frontend.request.request import Call, Members
from frontend.sns.actions import paging
from frontend.sns.actions.context import SnsContext
from frontend.sns.messages import rendering
from frontend.sns.messages.arn import subscription_arn, topic_arn
from frontend.sns.messages.publication import PROTOCOL
from frontend.sns.messages.rendering import Confirmation
from frontend.sns.protocol import limits
from frontend.sns.protocol.errors import (
    CONCURRENT_ACCESS,
    FILTER_POLICY_LIMIT_EXCEEDED,
    SUBSCRIPTION_LIMIT_EXCEEDED,
    denied,
    invalid_attribute,
    invalid_parameter,
    missing_parameter,
    subscription_does_not_exist,
    topic_does_not_exist,
)
from frontend.sns.topics import subscription_attributes
from frontend.sns.topics.attributes import FIFO_SUFFIX, Attributes
from frontend.sns.topics.view import TopicView
from frontend.sqs.protocol.errors import SqsError
from frontend.sqs.protocol.validation import is_queue_name
from metadata_service import arn
from metadata_service.arn import QueueArn
from metadata_service.store import (
    ConditionFailed,
    SubscriptionExists,
    SubscriptionNotFound,
    TooManyFilterPolicies,
    TooManySubscriptions,
    TopicNotFound,
)
from metadata_service.topics import NewSubscription, Subscription, SubscriptionChange
from telemetry.texts import shown

_OTHER_PROTOCOLS = ("http", "https", "email", "email-json", "sms", "application", "lambda", "firehose")
_TRIES = 8
_PENDING = "pending confirmation"
_PENDING_IN_LIST = "PendingConfirmation"
_TOKEN_BYTES = 32


async def subscribe(context: SnsContext, call: Call, members: Members) -> Members:
    text = members.get("TopicArn")
    if not text:
        raise missing_parameter("TopicArn")
    queue = _endpoint(context, call, members)
    facts = {"sns:protocol": PROTOCOL, "sns:endpoint": str(queue)}
    view = await context.access.topic(call, "Subscribe", text, facts=facts)
    if not view.fifo and queue.name.endswith(FIFO_SUFFIX):
        raise invalid_parameter(
            "Invalid parameter: Endpoint Reason: FIFO SQS Queues can not be subscribed to standard SNS topics"
        )
    values = subscription_attributes.canonical(members.get("Attributes") or {})
    stored = subscription_attributes.merged({}, values)
    _check_dead_letter(stored, queue)
    is_own = queue.account == call.principal.account
    new = NewSubscription(
        topic_id=view.topic.topic_id,
        owner=call.principal.account,
        protocol=PROTOCOL,
        endpoint=str(queue),
        attributes=stored,
        now_ms=context.services.now_ms(),
        token="" if is_own else secrets.token_hex(_TOKEN_BYTES),
        confirmed_by=call.principal.arn if is_own else "",
        subscriptions_max=limits.SUBSCRIPTIONS_FIFO_MAX if view.fifo else limits.SUBSCRIPTIONS_MAX,
        filter_policies_max=limits.FILTER_POLICIES_MAX,
    )
    subscription = await _ensure_subscription(context, view, new, values)
    if subscription.pending:
        await _ask_for_confirmation(context, call, view, subscription, queue)
    if subscription.pending and not members.get("ReturnSubscriptionArn"):
        return {"SubscriptionArn": _PENDING}
    return {"SubscriptionArn": str(context.topics.subscription_arn(subscription))}


def _endpoint(context: SnsContext, call: Call, members: Members) -> QueueArn:
    """The queue that is to be subscribed.  Raises InvalidParameter and AccessDenied."""
    protocol = members.get("Protocol")
    if not protocol:
        raise missing_parameter("Protocol")
    if protocol != PROTOCOL:
        reason = (
            f"endpoints of the protocol {protocol} are not served here. Topics deliver to queues (protocol sqs)"
            if protocol in _OTHER_PROTOCOLS
            else f"{shown(protocol)} is not a protocol of SNS"
        )
        raise invalid_parameter(f"Protocol Reason: {reason}")
    endpoint = members.get("Endpoint")
    if not endpoint:
        raise missing_parameter("Endpoint")
    queue = arn.parse(endpoint) if len(endpoint) <= limits.ARN_LENGTH_MAX else None
    if queue is None or not is_queue_name(queue.name) or not queue.account.isdigit():
        raise invalid_parameter("SQS endpoint ARN")
    if queue.region != context.services.settings.region:
        raise invalid_parameter(f"Endpoint Reason: the service has no queues in the region {shown(queue.region)}")
    check_name(call.principal, queue.name)
    return queue


def _check_dead_letter(stored: Attributes, queue: QueueArn) -> None:
    """Check that a subscription of a queue may have this RedrivePolicy.  Raises InvalidParameter."""
    text = subscription_attributes.dead_letter_arn(stored)
    target = None if text is None else arn.parse(text)
    if target is None:
        return
    reason = ""
    if (target.account, target.region) != (queue.account, queue.region):
        reason = "The dead-letter queue has to be in the account and region of the subscribed queue"
    elif target.name.endswith(FIFO_SUFFIX) != queue.name.endswith(FIFO_SUFFIX):
        reason = "The dead-letter queue has to be of the type of the subscribed queue"
    elif not is_queue_name(target.name):
        reason = "deadLetterTargetArn is an invalid arn"
    if reason:
        raise invalid_attribute("RedrivePolicy", reason)


async def _ensure_subscription(
    context: SnsContext, view: TopicView, new: NewSubscription, values: Attributes
) -> Subscription:
    """The subscription, created now or with the same attributes before; a pending one has a new token."""
    client = context.topics.client
    for _ in range(_TRIES):
        try:
            return await client.create_subscription(view.topic, new)
        except SubscriptionExists as error:
            known = error.subscription
        except TopicNotFound:
            raise topic_does_not_exist() from None
        except TooManySubscriptions:
            raise SqsError(
                SUBSCRIPTION_LIMIT_EXCEEDED,
                f"The topic has as many subscriptions as it may have, which are {new.subscriptions_max}.",
            ) from None
        except TooManyFilterPolicies:
            raise _too_many_filter_policies() from None
        if not subscription_attributes.is_same(known.attributes, values):
            raise invalid_parameter("Attributes Reason: Subscription already exists with different attributes")
        if not known.pending:
            return known
        confirmed = not new.token
        change = SubscriptionChange(
            token=new.token, now_ms=new.now_ms, confirmed_by=new.confirmed_by if confirmed else None
        )
        try:
            return await client.update_subscription(known, change)
        except (ConditionFailed, SubscriptionNotFound):
            continue
    raise SqsError(CONCURRENT_ACCESS)


async def _ask_for_confirmation(
    context: SnsContext, call: Call, view: TopicView, subscription: Subscription, queue: QueueArn
) -> None:
    """Send a confirmation to the queue, if it exists and lets the topic in."""
    destination = await context.planner.permitted_queue(view, queue)
    if destination is None:
        return
    confirmation = Confirmation(str(uuid.uuid4()), subscription.token, str(view.arn), subscription.token_s * 1000)
    signer = await context.signing.signer()
    version = view.signature_version
    body = rendering.render_confirmation(
        confirmation,
        base_url=call.base_url,
        signature_version=version,
        signature=await signer.sign(rendering.signed_confirmation(confirmation, call.base_url), version),
        certificate=signer.certificate,
    )
    try:
        await context.sender.confirm(view, destination, subscription.subscription_id, body)
    except BackendError as error:
        # The subscription stays pending, and another Subscribe sends another confirmation.
        context.base.log.warning("%s a confirmation could not be sent to %s: %s", call.request_id, queue, error)


async def confirm_subscription(context: SnsContext, call: Call, members: Members) -> Members:
    text, token = members.get("TopicArn"), members.get("Token")
    if not text:
        raise missing_parameter("TopicArn")
    if not token or len(token) > limits.TOKEN_LENGTH_MAX:
        raise invalid_parameter("Token")
    authenticate = members.get("AuthenticateOnUnsubscribe") or "false"
    if authenticate.lower() not in ("true", "false"):
        raise invalid_parameter("AuthenticateOnUnsubscribe Reason: it is true or false")
    view = await context.topics.find(topic_arn(text), fresh=True)
    subscriptions = () if view is None else await context.topics.client.subscriptions(view.topic)
    given = token.encode()
    found = [one for one in subscriptions if one.pending and compare_digest(one.token.encode(), given)]
    if not found:
        raise invalid_parameter("Token")
    subscription = found[0]
    if context.services.clock() >= subscription.token_s + limits.PENDING_SECONDS:
        raise invalid_parameter("Token Reason: it has expired. Subscribe again for another one")
    change = SubscriptionChange(
        token="",
        confirmed_by=call.principal.arn if not call.principal.anonymous else "",
        authenticate_on_unsubscribe=not call.principal.anonymous and authenticate.lower() == "true",
    )
    try:
        confirmed = await context.topics.client.update_subscription(subscription, change)
    except (ConditionFailed, SubscriptionNotFound):
        raise SqsError(CONCURRENT_ACCESS) from None
    return {"SubscriptionArn": str(context.topics.subscription_arn(confirmed))}


async def unsubscribe(context: SnsContext, call: Call, members: Members) -> None:
    subscription = await _find(context, members)
    if subscription is None:
        return  # as SNS does: it is idempotent
    principal = call.principal
    if principal.anonymous:
        if subscription.authenticate_on_unsubscribe:
            raise denied("anonymous", "Unsubscribe", str(members["SubscriptionArn"]), "without a signature")
    else:
        context.access.check_credential(principal, "Unsubscribe")
        _check_owner(call, "Unsubscribe", subscription, members, topic_owner=True)
    await context.topics.client.delete_subscription(subscription)


async def get_subscription_attributes(context: SnsContext, call: Call, members: Members) -> Members:
    context.access.check_credential(call.principal, "GetSubscriptionAttributes")
    subscription = await _existing(context, call, "GetSubscriptionAttributes", members, topic_owner=True)
    named = context.topics.subscription_arn(subscription)
    return {"Attributes": subscription_attributes.shown_attributes(subscription, str(named), str(named.topic))}


async def set_subscription_attributes(context: SnsContext, call: Call, members: Members) -> None:
    name = members.get("AttributeName")
    if not name:
        raise missing_parameter("AttributeName")
    context.access.check_credential(call.principal, "SetSubscriptionAttributes")
    for _ in range(_TRIES):
        subscription = await _existing(context, call, "SetSubscriptionAttributes", members, topic_owner=False)
        values = subscription_attributes.canonical({name: members.get("AttributeValue") or ""})
        merged = subscription_attributes.merged(subscription.attributes, values)
        queue = arn.parse(subscription.endpoint)
        if "RedrivePolicy" in values and queue is not None:
            _check_dead_letter(merged, queue)
        if merged == subscription.attributes:
            await context.topics.client.publish_changes(subscription.topic_account, subscription.topic_name)
            return
        try:
            await context.topics.client.update_subscription(
                subscription, SubscriptionChange(merged), filter_policies_max=limits.FILTER_POLICIES_MAX
            )
        except TooManyFilterPolicies:
            raise _too_many_filter_policies() from None
        except (ConditionFailed, SubscriptionNotFound):
            continue
        return
    raise SqsError(CONCURRENT_ACCESS)


async def list_subscriptions(context: SnsContext, call: Call, members: Members) -> Members:
    context.access.check_credential(call.principal, "ListSubscriptions")
    after = paging.position(members)
    try:
        page = await context.topics.client.owner_subscriptions(
            call.principal.account, after=after, limit=limits.SUBSCRIPTIONS_PAGE
        )
    except ValueError:
        raise invalid_parameter("NextToken Reason: it is of another list") from None
    return _listed(context, page.subscriptions, page.after)


async def list_subscriptions_by_topic(context: SnsContext, call: Call, members: Members) -> Members:
    text = members.get("TopicArn")
    if not text:
        raise missing_parameter("TopicArn")
    view = await context.access.topic(call, "ListSubscriptionsByTopic", text)
    try:
        after = bytes.fromhex(paging.position(members))
    except ValueError:
        raise invalid_parameter("NextToken Reason: it is of another list") from None
    found = await context.topics.client.list_subscriptions(view.topic, after=after, limit=limits.SUBSCRIPTIONS_PAGE + 1)
    page = found[: limits.SUBSCRIPTIONS_PAGE]
    return _listed(context, page, page[-1].subscription_id.hex() if len(found) > len(page) else "")


def _listed(context: SnsContext, subscriptions: list[Subscription], after: str) -> Members:
    result: Members = {
        "Subscriptions": [
            {
                "SubscriptionArn": _PENDING_IN_LIST if one.pending else str(context.topics.subscription_arn(one)),
                "Owner": one.owner,
                "Protocol": one.protocol,
                "Endpoint": one.endpoint,
                "TopicArn": str(context.topics.arn(one.topic_account, one.topic_name)),
            }
            for one in subscriptions
        ]
    }
    if after:
        result["NextToken"] = next_token(after)
    return result


async def _existing(
    context: SnsContext, call: Call, action: str, members: Members, *, topic_owner: bool
) -> Subscription:
    """The subscription that the caller owns.  ``topic_owner``: or whose topic it owns.

    Raises InvalidParameter, NotFound and AuthorizationError.
    """
    subscription = await _find(context, members)
    if subscription is None:
        raise subscription_does_not_exist()
    _check_owner(call, action, subscription, members, topic_owner=topic_owner)
    return subscription


async def _find(context: SnsContext, members: Members) -> Subscription | None:
    """The subscription with this ARN as it is stored now; None if there is none here.  Raises InvalidParameter."""
    text = members.get("SubscriptionArn")
    if not text:
        raise missing_parameter("SubscriptionArn")
    named = subscription_arn(text)
    view = await context.topics.find(named.topic)
    for _ in range(2):
        if view is None:
            return None
        try:
            return await context.topics.client.get_subscription(view.topic, named.subscription_id)
        except SubscriptionNotFound:
            view = await context.topics.find(named.topic, fresh=True)  # the topic may have been created again
    return None


def _check_owner(call: Call, action: str, subscription: Subscription, members: Members, *, topic_owner: bool) -> None:
    principal = call.principal
    if subscription.owner == principal.account:
        queue = arn.parse(subscription.endpoint)
        if queue is not None:
            check_name(principal, queue.name)
        return
    if topic_owner and subscription.topic_account == principal.account:
        check_name(principal, subscription.topic_name, "topics")
        return
    raise denied(principal.arn, action, str(members["SubscriptionArn"]), "which another account owns")


def _too_many_filter_policies() -> SqsError:
    return SqsError(
        FILTER_POLICY_LIMIT_EXCEEDED,
        f"The topic has as many subscriptions with a filter policy as it may have, which are "
        f"{limits.FILTER_POLICIES_MAX}.",
    )
