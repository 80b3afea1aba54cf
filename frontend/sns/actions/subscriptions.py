"""Actions on subscriptions: subscribe, confirm, list, attributes, unsubscribe."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import msgspec

from frontend.query.next_tokens import next_token
from frontend.request.access import check_name
from frontend.request.request import Call, Members
from frontend.sns.actions import paging
from frontend.sns.actions.access import permits
from frontend.sns.actions.confirmations import ask_for_confirmation, deactivate, new_token
from frontend.sns.actions.context import SnsContext
from frontend.sns.actions.endpoints import (
    check_dead_letter,
    endpoint_of,
    queue_attributes,
    read_endpoint,
)
from frontend.sns.messages.arn import TopicArn, subscription_arn, topic_arn
from frontend.sns.protocol import limits
from frontend.sns.protocol.errors import (
    CONCURRENT_ACCESS,
    FILTER_POLICY_LIMIT_EXCEEDED,
    SUBSCRIPTION_LIMIT_EXCEEDED,
    denied,
    invalid_parameter,
    missing_parameter,
    subscription_does_not_exist,
    topic_does_not_exist,
)
from frontend.sns.topics import subscription_attributes
from frontend.sns.topics.attributes import Attributes
from frontend.sns.topics.deletion import delete_subscription_of
from frontend.sns.topics.subscription_attributes import has_expired
from frontend.sns.topics.view import TopicView
from frontend.sqs.protocol.errors import SERVICE_UNAVAILABLE, SqsError
from metadata_service.clusters.policy import NoCluster
from metadata_service.store import (
    ConditionFailed,
    SubscriptionExists,
    SubscriptionNotFound,
    TooManyFilterPolicies,
    TooManyPushedSubscriptions,
    TooManySubscriptions,
    TopicNotFound,
)
from metadata_service.topics import NewSubscription, Subscription, SubscriptionChange

_TRIES = 8
_PENDING = "pending confirmation"
_PENDING_IN_LIST = "PendingConfirmation"


async def subscribe(context: SnsContext, call: Call, members: Members) -> Members:
    text = members.get("TopicArn")
    if not text:
        raise missing_parameter("TopicArn")
    settings = context.services.settings
    endpoint = read_endpoint(settings, call, members)
    facts = {"sns:protocol": endpoint.protocol, "sns:endpoint": endpoint.text}
    view = await context.access.topic(call, "Subscribe", text, facts=facts)
    if view.fifo and endpoint.queue is None:
        raise invalid_parameter("Protocol Reason: FIFO topics deliver to queues (protocol sqs) only")
    if not view.fifo and endpoint.fifo:
        raise invalid_parameter(
            "Invalid parameter: Endpoint Reason: FIFO SQS Queues can not be subscribed to standard SNS topics"
        )
    values = subscription_attributes.canonical(members.get("Attributes") or {})
    stored = subscription_attributes.merged({}, values)
    account = call.principal.account
    check_dead_letter(call, stored, endpoint, account, settings.region)
    is_own = endpoint.queue is not None and endpoint.queue.account == account
    new = NewSubscription(
        topic_id=view.topic.topic_id,
        owner=account,
        protocol=endpoint.protocol,
        endpoint=endpoint.text,
        attributes=stored,
        now_ms=context.services.now_ms(),
        token="" if is_own else new_token(),
        confirmed_by=call.principal.arn if is_own else "",
        subscriptions_max=limits.SUBSCRIPTIONS_FIFO_MAX if view.fifo else limits.SUBSCRIPTIONS_MAX,
        filter_policies_max=limits.FILTER_POLICIES_MAX,
    )
    if endpoint.queue is None:
        queues_max = await context.base.throttle.queues_max(view.topic.account)
        pushed_max = limits.PUSHED_SUBSCRIPTIONS_MAX
        new = msgspec.structs.replace(
            new,
            queue_attributes=queue_attributes(endpoint.text, view.topic.name),
            clusters=_clusters(context, view, endpoint.text),
            pushed_max=pushed_max if queues_max is None else min(pushed_max, queues_max),
        )
    await _remove_expired(context, view)
    subscription = await _ensure_subscription(context, view, new, values)
    if subscription.pending:
        await ask_for_confirmation(context, call, view, subscription)
    if subscription.pending and not members.get("ReturnSubscriptionArn"):
        return {"SubscriptionArn": _PENDING}
    return {"SubscriptionArn": str(context.topics.subscription_arn(subscription))}


def _clusters(context: SnsContext, view: TopicView, url: str) -> tuple[int, ...]:
    """Backend clusters of the hidden queue of a new subscription.  Raises ServiceUnavailable."""
    try:
        return tuple(context.services.clusters_for(view.topic.account, f"{view.topic.name} {url}", 1))
    except NoCluster as error:
        context.base.log.error(
            "topic %r of account %s gets no endpoint: %s", view.topic.name, view.topic.account, error
        )
        raise SqsError(SERVICE_UNAVAILABLE, "No new endpoints can be subscribed at the moment. Try again.") from None


async def _remove_expired(context: SnsContext, view: TopicView) -> None:
    """Delete the topic's subscriptions that were not confirmed in time."""
    now_s = context.services.clock()
    for one in await context.topics.client.subscriptions(view.topic):
        if has_expired(one, now_s):
            await _remove_pending(context, one)


async def _remove_pending(context: SnsContext, subscription: Subscription) -> None:
    """Delete a subscription that is not confirmed, unless it has changed."""
    with suppress(ConditionFailed):  # it was confirmed, or got another token
        await delete_subscription_of(
            context.services, context.topics.client, context.base.queues, subscription, unchanged=True
        )


async def _ensure_subscription(
    context: SnsContext, view: TopicView, new: NewSubscription, values: Attributes
) -> Subscription:
    """The subscription, created now or with the same attributes before; a pending one has a new token.

    A pending one of another account makes way: once confirmed it would be that account's, with its attributes.
    """
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
        except TooManyPushedSubscriptions:
            raise SqsError(
                SUBSCRIPTION_LIMIT_EXCEEDED,
                f"The account {view.topic.account} has as many subscriptions of endpoints of HTTP as it may have, "
                f"which are {new.pushed_max}. Delete one, or ask the operator of this service for more.",
            ) from None
        except TooManyFilterPolicies:
            raise _too_many_filter_policies() from None
        if known.pending and (known.owner != new.owner or has_expired(known, context.services.clock())):
            await _remove_pending(context, known)
            continue
        if not subscription_attributes.is_same(known.attributes, values):
            raise invalid_parameter("Attributes Reason: Subscription already exists with different attributes")
        if not known.pending:
            return known
        change = SubscriptionChange(token=new.token, now_ms=new.now_ms, confirmed_by=new.confirmed_by)
        try:
            return await client.update_subscription(known, change)
        except (ConditionFailed, SubscriptionNotFound):
            continue
    raise SqsError(CONCURRENT_ACCESS)


async def confirm_subscription(context: SnsContext, call: Call, members: Members) -> Members:
    text, token = members.get("TopicArn"), members.get("Token")
    if not text:
        raise missing_parameter("TopicArn")
    if not token or len(token) > limits.TOKEN_LENGTH_MAX:
        raise invalid_parameter("Token")
    authenticate = members.get("AuthenticateOnUnsubscribe") or "false"
    if authenticate.lower() not in ("true", "false"):
        raise invalid_parameter("AuthenticateOnUnsubscribe Reason: it is true or false")
    if not call.principal.anonymous:
        context.access.check_credential(call.principal, "ConfirmSubscription")
    elif authenticate.lower() == "true":
        raise denied("anonymous", "ConfirmSubscription", text, "with AuthenticateOnUnsubscribe and without a signature")
    return {
        "SubscriptionArn": str(
            context.topics.subscription_arn(
                await _confirmed(context, call, topic_arn(text), token, authenticate.lower() == "true")
            )
        )
    }


async def _confirmed(context: SnsContext, call: Call, topic: TopicArn, token: str, authenticate: bool) -> Subscription:
    """The subscription that this token confirms, or has confirmed before.  Raises ConfirmSubscription's errors."""
    client, principal = context.topics.client, call.principal
    change = SubscriptionChange(
        token="",
        confirmed_by="" if principal.anonymous else principal.arn,
        authenticate_on_unsubscribe=authenticate,
    )
    for _ in range(_TRIES):
        view = await context.topics.find(topic, fresh=True)
        subscriptions = () if view is None else await client.subscriptions(view.topic)
        subscription = next((one for one in subscriptions if one.is_confirmed_by(token)), None)
        if subscription is None:
            raise invalid_parameter("Token")
        if not subscription.pending:  # the call is repeated, because its answer was lost
            await client.publish_changes(subscription.topic_account, subscription.topic_name)
            return subscription
        if has_expired(subscription, context.services.clock()):
            raise invalid_parameter("Token Reason: it has expired. Subscribe again for another one")
        try:
            return await client.update_subscription(subscription, change)
        except (ConditionFailed, SubscriptionNotFound):
            continue
    raise SqsError(CONCURRENT_ACCESS)


async def unsubscribe(context: SnsContext, call: Call, members: Members) -> None:
    """End a subscription.

    If neither its owner nor a call that had to be signed ends it, its endpoint gets a notice by which it can be
    restored (SNS API Reference, Unsubscribe).
    """
    principal = call.principal
    if not principal.anonymous:
        context.access.check_credential(principal, "Unsubscribe")
    for _ in range(_TRIES):
        subscription = await _find(context, members)
        if subscription is None:  # as SNS does: it is idempotent
            topic = subscription_arn(str(members["SubscriptionArn"])).topic
            if principal.account == topic.account:  # others could have any topic read again by everyone
                await context.topics.client.publish_changes(topic.account, topic.name)
            return
        is_protected = subscription.queue_name is None or subscription.authenticate_on_unsubscribe
        if not principal.anonymous:
            _check_owner(call, "Unsubscribe", subscription, members, topic_owner=True)
        elif is_protected:
            raise denied("anonymous", "Unsubscribe", str(members["SubscriptionArn"]), "without a signature")
        elif subscription.pending:  # its endpoint gets no notifications, as soon as all processes know that
            await context.topics.client.publish_changes(subscription.topic_account, subscription.topic_name)
            return
        if is_protected or subscription.pending or principal.account == subscription.owner:
            await delete_subscription_of(context.services, context.topics.client, context.base.queues, subscription)
            return
        view = await context.topics.find(context.topics.arn(subscription.topic_account, subscription.topic_name))
        if view is None or await deactivate(context, call, view, subscription):
            return
    raise SqsError(CONCURRENT_ACCESS)


async def get_subscription_attributes(context: SnsContext, call: Call, members: Members) -> Members:
    context.access.check_credential(call.principal, "GetSubscriptionAttributes")
    subscription = await _existing(context, call, "GetSubscriptionAttributes", members, topic_owner=True)
    named = context.topics.subscription_arn(subscription)
    view = await context.topics.find(named.topic)
    if view is None:
        raise subscription_does_not_exist()
    return {
        "Attributes": subscription_attributes.shown_attributes(
            subscription, str(named), str(named.topic), view.topic.attributes
        )
    }


async def set_subscription_attributes(context: SnsContext, call: Call, members: Members) -> None:
    name = members.get("AttributeName")
    if not name:
        raise missing_parameter("AttributeName")
    await change_subscription(context, call, members, {name: members.get("AttributeValue") or ""})


async def change_subscription(context: SnsContext, call: Call, members: Members, given: Mapping[str, str]) -> None:
    """Set attributes of the subscription that the members name, all or none; an empty one is removed.

    Raises SetSubscriptionAttributes's errors.
    """
    context.access.check_credential(call.principal, "SetSubscriptionAttributes")
    for _ in range(_TRIES):
        subscription = await _existing(context, call, "SetSubscriptionAttributes", members, topic_owner=False)
        values = subscription_attributes.canonical(given)
        merged = subscription_attributes.merged(subscription.attributes, values)
        if "RedrivePolicy" in values:
            region = context.services.settings.region
            check_dead_letter(call, merged, endpoint_of(subscription), subscription.owner, region)
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
    permitted = [one for one in page.subscriptions if permits(call.principal.prefixes, one)]
    return _listed(context, permitted, page.after)


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
        queue = endpoint_of(subscription).queue
        if queue is None:
            check_name(principal, subscription.topic_name, "topics")
        else:
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
