"""Attributes of subscriptions: settable names, canonical values, and the attributes that are answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import orjson

from frontend.sns.filters.compiler import FilterScope, compile_filter_policy
from frontend.sns.filters.expressions import FilterPolicyInvalid
from frontend.sns.filters.policy import FilterPolicy
from frontend.sns.protocol import limits
from frontend.sns.protocol.errors import invalid_attribute, invalid_parameter, unknown_attribute
from frontend.sns.topics import delivery_policies
from frontend.sns.topics.attributes import Attributes, json_object
from metadata_service import arn
from metadata_service.arn import QueueArn
from metadata_service.topics import Subscription
from telemetry.texts import shown

SUBSCRIPTION_SETTABLE = (
    "DeliveryPolicy",
    "FilterPolicy",
    "FilterPolicyScope",
    "RawMessageDelivery",
    "RedrivePolicy",
)
SUBSCRIPTION_READABLE = (
    *("ConfirmationWasAuthenticated", "Endpoint", "Owner", "PendingConfirmation", "Protocol", "SubscriptionArn"),
    *("EffectiveDeliveryPolicy", "SubscriptionPrincipal", "TopicArn", *SUBSCRIPTION_SETTABLE),
)
_SCOPES = ("MessageAttributes", "MessageBody")
_DEFAULTS = {"RawMessageDelivery": "false", "FilterPolicyScope": "MessageAttributes"}
_REFUSED = {
    "ReplayPolicy": "Topics do not archive messages here, so none can be replayed",
    "SubscriptionRoleArn": "It is for the protocol firehose, which is not served here",
}


def canonical(given: Mapping[str, str]) -> Attributes:
    """Canonical values of attributes; an empty one is to be removed.  Raises InvalidParameter."""
    return {name: _value(name, text) for name, text in given.items()}


def merged(stored: Mapping[str, str], values: Mapping[str, str]) -> Attributes:
    """Stored attributes after canonical ``values`` have been set.  Raises InvalidParameter if they do not fit.

    The scope of a filter policy is removed with it, so that it is not that of a later one.
    """
    result = {name: value for name, value in (dict(stored) | dict(values)).items() if value != ""}
    if values.get("FilterPolicy") == "" and "FilterPolicyScope" not in values:
        result.pop("FilterPolicyScope", None)
    for name, default in _DEFAULTS.items():
        if result.get(name) == default:
            del result[name]
    delivery_policies.check_content_type(result)
    compiled(result)
    return result


def compiled(stored: Mapping[str, str]) -> FilterPolicy | None:
    """The filter policy of a subscription; None: it has none.  Raises InvalidParameter."""
    text = stored.get("FilterPolicy")
    if text is None:
        return None
    try:
        return compile_filter_policy(text, filter_scope(stored))
    except FilterPolicyInvalid as error:
        raise invalid_parameter(f"Attributes Reason: {error}") from None


def filter_scope(stored: Mapping[str, str]) -> FilterScope:
    return cast(FilterScope, stored.get("FilterPolicyScope", _DEFAULTS["FilterPolicyScope"]))


def dead_letter_arn(stored: Mapping[str, str]) -> str | None:
    """ARN of the queue for messages that cannot be delivered."""
    policy = stored.get("RedrivePolicy")
    return None if policy is None else str(orjson.loads(policy)["deadLetterTargetArn"])


def queue_of(subscription: Subscription) -> QueueArn | None:
    """The queue that messages are delivered to: the subscribed one, or the hidden queue of an endpoint of HTTP."""
    hidden = subscription.queue_name
    return arn.parse(subscription.endpoint) if hidden is None else QueueArn("", subscription.topic_account, hidden)


def has_expired(subscription: Subscription, now_s: float) -> bool:
    """True if a subscription was not confirmed in time."""
    return subscription.pending and now_s >= subscription.token_s + limits.PENDING_SECONDS


def is_same(stored: Mapping[str, str], values: Mapping[str, str]) -> bool:
    """True if none of the canonical ``values`` differs from the subscription's."""
    for name, value in values.items():
        current = stored.get(name, _DEFAULTS.get(name, ""))
        given = value or _DEFAULTS.get(name, "")
        if current == given:
            continue
        if name != "FilterPolicy" or not current or not given or orjson.loads(current) != orjson.loads(given):
            return False
    return True


def shown_attributes(
    subscription: Subscription, subscription_arn: str, topic_arn: str, topic_attributes: Mapping[str, str]
) -> Attributes:
    """All attributes of a subscription.  ``topic_attributes``: those that are stored of its topic."""
    stored = subscription.attributes
    found = {
        "SubscriptionArn": subscription_arn,
        "TopicArn": topic_arn,
        "Owner": subscription.owner,
        "Protocol": subscription.protocol,
        "Endpoint": subscription.endpoint,
        "PendingConfirmation": "true" if subscription.pending else "false",
        "ConfirmationWasAuthenticated": "true" if subscription.confirmed_by else "false",
        "RawMessageDelivery": "false",
    }
    if subscription.confirmed_by:
        found["SubscriptionPrincipal"] = subscription.confirmed_by
    if subscription.queue_name is not None:
        found["EffectiveDeliveryPolicy"] = delivery_policies.shown_subscription_delivery(topic_attributes, stored)
    found |= dict(stored)
    found.pop("FilterPolicyScope", None)
    if "FilterPolicy" in stored:
        found["FilterPolicyScope"] = filter_scope(stored)
    return found


def _value(name: str, text: str) -> str:
    match name:
        case "RawMessageDelivery":
            if text.lower() not in ("true", "false"):
                raise invalid_attribute(name, f"Invalid value [{shown(text)}]. Must be true or false.")
            return text.lower()
        case "FilterPolicyScope":
            if text not in _SCOPES:
                raise invalid_attribute(name, f"Invalid value [{shown(text)}]. Must be {' or '.join(_SCOPES)}.")
            return text
        case "FilterPolicy":
            return "" if text.strip() in ("", "{}") else text
        case "RedrivePolicy":
            return _redrive_policy(text) if text else text
        case "DeliveryPolicy":
            return delivery_policies.subscription_delivery_policy(text) if text else text
    if name in _REFUSED:
        if text:
            raise invalid_attribute(name, _REFUSED[name])
        return ""
    raise unknown_attribute(name)


def _redrive_policy(text: str) -> str:
    name = "RedrivePolicy"
    given = json_object(name, text)
    if not given:
        return ""
    if given.keys() != {"deadLetterTargetArn"}:
        raise invalid_attribute(name, "It has the member deadLetterTargetArn, and no other")
    target = given["deadLetterTargetArn"]
    if not isinstance(target, str) or arn.parse(target) is None:
        raise invalid_attribute(name, "deadLetterTargetArn is an invalid arn")
    return orjson.dumps({"deadLetterTargetArn": target}).decode()
