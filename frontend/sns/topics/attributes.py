"""Attributes of topics: settable names, canonical values, and the attributes that are answered."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from auth.encryption.named_keys import NAME_LENGTH_MAX
from frontend.sns.messages.arn import TopicArn
from frontend.sns.messages.signing import SIGNATURE_VERSIONS
from frontend.sns.protocol import limits
from frontend.sns.protocol.errors import invalid_attribute, invalid_parameter, unknown_attribute
from frontend.sns.topics import delivery_policies, policies
from metadata_service.topics import Topic
from telemetry.texts import shown

Attributes = dict[str, str]

FIFO_SUFFIX = ".fifo"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,256}\Z")
_FIFO_NAME = re.compile(r"[A-Za-z0-9_-]{1,251}\.fifo\Z")
_SIZE = re.compile(r"[0-9]{1,9}\Z")
_BOOLEANS = ("true", "false")
_ONLY_FIFO = ("ContentBasedDeduplication", "FifoThroughputScope")
_FEEDBACK = re.compile(
    r"(HTTP|Firehose|Lambda|Application|SQS)(SuccessFeedbackRoleArn|SuccessFeedbackSampleRate|FailureFeedbackRoleArn)\Z"
)


def check_topic_name(name: str, *, fifo: bool) -> None:
    """Check the name of a new topic.  Raises InvalidParameter."""
    if fifo and not _FIFO_NAME.match(name):
        raise invalid_parameter(
            "Fifo Topic names must end with .fifo and must be made up of only uppercase and lowercase ASCII letters, "
            "numbers, underscores, and hyphens, and must be between 1 and 256 characters long."
        )
    if not fifo and not _NAME.match(name):
        raise invalid_parameter("Topic Name")


def is_topic_name(name: str) -> bool:
    """True if a topic can have this name."""
    return _NAME.match(name) is not None or _FIFO_NAME.match(name) is not None


def canonical(given: Mapping[str, str], *, fifo: bool, creating: bool = False) -> Attributes:
    """Canonical values of attributes for a topic of this type; an empty one is to be removed.

    Raises InvalidParameter.
    """
    values: Attributes = {}
    for name, text in given.items():
        if name == "FifoTopic":
            if not creating:
                raise invalid_parameter("AttributeName Reason: FifoTopic can be set only when a topic is created")
            if _choice(name, text, _BOOLEANS) == "true":
                values[name] = "true"
            continue
        if name in _ONLY_FIFO and not fifo:
            raise invalid_attribute(name, "It is only for FIFO topics")
        if _FEEDBACK.match(name):
            # Terraform's provider sets the rates of all protocols to 0 for each new topic.
            if text and (text, name.endswith("SampleRate")) != ("0", True):
                raise invalid_attribute(
                    name, "Deliveries are counted in the service's metrics, and not logged elsewhere"
                )
            continue
        check = _CHECKS.get(name)
        if check is None:
            raise unknown_attribute(name)
        values[name] = check(name, text)
    return values


def merged(stored: Mapping[str, str], values: Mapping[str, str]) -> Attributes:
    """Stored attributes after canonical ``values`` have been set."""
    return {name: value for name, value in (dict(stored) | dict(values)).items() if value != ""}


def first_difference(stored: Mapping[str, str], values: Mapping[str, str]) -> str | None:
    """Name of the first of the canonical ``values`` that differs from the topic's."""
    for name, value in values.items():
        if stored.get(name, _DEFAULTS.get(name, "")) != value:
            return name
    return None


def is_fifo_topic(stored: Mapping[str, str]) -> bool:
    return stored.get("FifoTopic") == "true"


def message_bytes_max(stored: Mapping[str, str]) -> int:
    """Bytes that a publication to the topic may have."""
    return int(stored.get("MaximumMessageSize", _DEFAULTS["MaximumMessageSize"]))


def shown_attributes(topic: Topic, arn: TopicArn, pending: int) -> Attributes:
    """All attributes of a topic.  ``pending``: number of its subscriptions that are not confirmed."""
    stored = topic.attributes
    found = {
        "Policy": stored.get("Policy") or policies.default_policy(str(arn), topic.account),
        "Owner": topic.account,
        "SubscriptionsPending": str(pending),
        "TopicArn": str(arn),
        "EffectiveDeliveryPolicy": delivery_policies.shown_topic_delivery(stored),
        "SubscriptionsConfirmed": str(topic.subscriptions - pending),
        "SubscriptionsDeleted": str(topic.deleted_subscriptions),
        "DisplayName": "",
        "MaximumMessageSize": _DEFAULTS["MaximumMessageSize"],
    }
    if is_fifo_topic(stored):
        found |= {"FifoTopic": "true", "ContentBasedDeduplication": "false"}
    return found | dict(stored)


# --- values ------------------------------------------------------------------------------------------------


def _choice(name: str, text: str, choices: tuple[str, ...]) -> str:
    value = text.lower() if choices is _BOOLEANS else text
    if value not in choices:
        raise invalid_attribute(name, f"It is {' or '.join(choices)}, not {shown(text)}")
    return value


def _one_of(*choices: str) -> Callable[[str, str], str]:
    return lambda name, text: _choice(name, text, choices)


def _boolean(name: str, text: str) -> str:
    return _choice(name, text, _BOOLEANS)


def _display_name(name: str, text: str) -> str:
    if len(text) > limits.DISPLAY_NAME_LENGTH_MAX or not text.isprintable():
        raise invalid_attribute(name, f"It has at most {limits.DISPLAY_NAME_LENGTH_MAX} characters, all printable")
    return text


def _key_name(name: str, text: str) -> str:
    if len(text) > NAME_LENGTH_MAX or not text.isprintable():
        raise invalid_attribute(
            name, f"The id, alias or ARN of a key has at most {NAME_LENGTH_MAX} characters, all of them printable"
        )
    return text


def _message_size(name: str, text: str) -> str:
    size_min, size_max = limits.MESSAGE_BYTES_SETTING_MIN, limits.MESSAGE_BYTES_MAX
    if not _SIZE.match(text) or not size_min <= int(text) <= size_max:
        raise invalid_attribute(name, f"It is a number of bytes from {size_min} to {size_max} here, not {shown(text)}")
    return str(int(text))


def _policy(name: str, text: str) -> str:
    return policies.topic_policy(text) if text else text


def _delivery_policy(name: str, text: str) -> str:
    return delivery_policies.topic_delivery_policy(text) if text else text


def json_object(name: str, text: str) -> dict[str, Any]:
    """Parse the value of an attribute that is an object in JSON.  Raises InvalidParameter."""
    given = None
    if len(text) <= limits.ATTRIBUTE_BYTES_MAX:
        try:
            given = orjson.loads(text)
        except orjson.JSONDecodeError:
            pass
    if not isinstance(given, dict):
        raise invalid_attribute(name, f"It is an object in JSON of at most {limits.ATTRIBUTE_BYTES_MAX} bytes")
    return given


def _archive_policy(name: str, text: str) -> str:
    if text and json_object(name, text):
        raise invalid_attribute(name, "Topics do not archive messages here")
    return ""


_CHECKS: dict[str, Callable[[str, str], str]] = {
    "ArchivePolicy": _archive_policy,
    "ContentBasedDeduplication": _boolean,
    "DeliveryPolicy": _delivery_policy,
    "DisplayName": _display_name,
    "FifoThroughputScope": _one_of("Topic", "MessageGroup"),
    "KmsMasterKeyId": _key_name,
    "MaximumMessageSize": _message_size,
    "Policy": _policy,
    "SignatureVersion": _one_of(*SIGNATURE_VERSIONS),
    "TracingConfig": _one_of("PassThrough", "Active"),
}
TOPIC_SETTABLE = ("FifoTopic", *_CHECKS)
_DEFAULTS = {
    "ContentBasedDeduplication": "false",
    "MaximumMessageSize": str(limits.MESSAGE_BYTES_MAX),
    "SignatureVersion": "1",
    "TracingConfig": "PassThrough",
    "FifoThroughputScope": "Topic",
}
TOPIC_READABLE = (
    *("Owner", "SubscriptionsConfirmed", "SubscriptionsDeleted", "SubscriptionsPending", "TopicArn"),
    *("EffectiveDeliveryPolicy", *TOPIC_SETTABLE),
)
