"""Endpoints of subscriptions: validation of a protocol and its endpoint."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import Final, NamedTuple

from frontend.alarms.webhooks import WebhookFailed, host_of, permitted_address
from frontend.request.access import check_name
from frontend.request.request import Call, Members
from frontend.settings import FrontendSettings
from frontend.sns.messages.publication import PROTOCOL
from frontend.sns.protocol import limits
from frontend.sns.protocol.errors import invalid_attribute, invalid_parameter, missing_parameter
from frontend.sns.topics import subscription_attributes
from frontend.sns.topics.attributes import FIFO_SUFFIX, Attributes
from frontend.sqs.protocol.validation import is_queue_name
from metadata_service import arn
from metadata_service.arn import QueueArn
from metadata_service.queue_settings import PUSH_URL, SUBSCRIBED_TOPIC
from metadata_service.topics import PUSHED_PROTOCOLS, Subscription
from telemetry.texts import shown

_OTHER_PROTOCOLS: Final = ("email", "email-json", "sms", "application", "lambda", "firehose")
_RETENTION_SECONDS: Final = 1_209_600
"""Retention of hidden queues: the longest, because a maximum rate of deliveries may make messages wait."""


class SubscriptionEndpoint(NamedTuple):
    """A protocol and an endpoint, of the form that the protocol needs."""

    protocol: str
    text: str
    queue: QueueArn | None
    """The queue; None: it is a URL."""

    @property
    def fifo(self) -> bool:
        return self.queue is not None and self.queue.name.endswith(FIFO_SUFFIX)


def read_endpoint(settings: FrontendSettings, call: Call, members: Members) -> SubscriptionEndpoint:
    """The endpoint that is to be subscribed.  Raises InvalidParameter and AccessDenied."""
    protocol = members.get("Protocol")
    if not protocol:
        raise missing_parameter("Protocol")
    if protocol != PROTOCOL and protocol not in PUSHED_PROTOCOLS:
        reason = (
            f"endpoints of the protocol {protocol} are not served here. Topics deliver to queues (protocol sqs) and "
            "to endpoints of HTTP (http and https)"
            if protocol in _OTHER_PROTOCOLS
            else f"{shown(protocol)} is not a protocol of SNS"
        )
        raise invalid_parameter(f"Protocol Reason: {reason}")
    text = members.get("Endpoint")
    if not text:
        raise missing_parameter("Endpoint")
    if protocol == PROTOCOL:
        return SubscriptionEndpoint(protocol, text, _queue(settings, call, text))
    _check_url(settings, protocol, text)
    return SubscriptionEndpoint(protocol, text, None)


def endpoint_of(subscription: Subscription) -> SubscriptionEndpoint:
    """The endpoint of a subscription."""
    queue = arn.parse(subscription.endpoint) if subscription.queue_name is None else None
    return SubscriptionEndpoint(subscription.protocol, subscription.endpoint, queue)


def queue_attributes(url: str, topic_name: str) -> dict[str, str]:
    """Attributes of the hidden queue of a subscription with this endpoint."""
    return {
        PUSH_URL: url,
        SUBSCRIBED_TOPIC: topic_name,
        "MaximumMessageSize": str(limits.MESSAGE_BYTES_MAX),
        "MessageRetentionPeriod": str(_RETENTION_SECONDS),
    }


def check_dead_letter(call: Call, stored: Attributes, endpoint: SubscriptionEndpoint, owner: str, region: str) -> None:
    """Check that the caller may give this RedrivePolicy to a subscription of the account ``owner``.

    Only the owner's own queues are permitted, because only the endpoint is confirmed by the account that it belongs to.
    Raises InvalidParameter and AccessDenied.
    """
    text = subscription_attributes.dead_letter_arn(stored)
    target = None if text is None else arn.parse(text)
    if target is None:
        return
    queue = endpoint.queue
    reason = ""
    if (target.account, target.region) != (owner, region):
        reason = "The dead-letter queue has to be in the account and region of the subscription"
    elif target.name.endswith(FIFO_SUFFIX) != endpoint.fifo:
        reason = (
            "The dead-letter queue of an endpoint of HTTP cannot be a FIFO queue"
            if queue is None
            else "The dead-letter queue has to be of the type of the subscribed queue"
        )
    elif not is_queue_name(target.name):
        reason = "deadLetterTargetArn is an invalid arn"
    if reason:
        raise invalid_attribute("RedrivePolicy", reason)
    check_name(call.principal, target.name)


def _queue(settings: FrontendSettings, call: Call, text: str) -> QueueArn:
    queue = arn.parse(text) if len(text) <= limits.ARN_LENGTH_MAX else None
    if queue is None or not is_queue_name(queue.name) or not queue.account.isdigit():
        raise invalid_parameter("SQS endpoint ARN")
    if queue.region != settings.region:
        raise invalid_parameter(f"Endpoint Reason: the service has no queues in the region {shown(queue.region)}")
    check_name(call.principal, queue.name)
    return queue


def _check_url(settings: FrontendSettings, protocol: str, text: str) -> None:
    """Check an endpoint of HTTP, as far as its host's addresses need not be known.  Raises InvalidParameter."""
    if not settings.push:
        raise invalid_parameter("Protocol Reason: pushes are switched off on this service (HOLDFAST_PUSH)")
    if settings.external_url is None:
        raise invalid_parameter(
            "Protocol Reason: messages to endpoints of HTTP contain URLs of this service, and it does not know its "
            "own. Its operator has to set external_url (HOLDFAST_EXTERNAL_URL)"
        )
    if not (text.isascii() and text.isprintable() and text.startswith(f"{protocol}://")):
        raise invalid_parameter(
            f"Endpoint Reason: it is a URL of printable ASCII characters that begins with {protocol}://"
        )
    networks = [ip_network(network) for network in settings.webhook_networks]
    try:
        host = host_of(text)
        try:
            address = ip_address(host.strip("[]"))
        except ValueError:  # a name, whose addresses are checked at each call
            if protocol == "http" and not networks:
                raise WebhookFailed(
                    "endpoints are called by https, except in networks that the operator has allowed "
                    "(HOLDFAST_WEBHOOK_NETWORKS)"
                ) from None
        else:
            permitted_address(host, [address], networks, secure=protocol == "https")
    except (ValueError, WebhookFailed) as error:
        raise invalid_parameter(f"Endpoint Reason: it cannot be called: {error}") from None
