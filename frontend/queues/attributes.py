"""Queue attributes: settable names, canonical values, defaults, and consistency rules.

Names and defaults: :mod:`metadata_service.queue_settings`.  This service's own attributes are left out of ``All``
unless set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from auth.encryption.named_keys import NAME_LENGTH_MAX
from frontend.alarms.webhooks import host_of
from frontend.queues import policies
from frontend.sqs.protocol import limits
from frontend.sqs.protocol.errors import INVALID_ATTRIBUTE_NAME, SqsError, invalid_attribute_value
from frontend.sqs.protocol.model import QUEUE_ATTRIBUTE_NAMES
from metadata_service.clusters.partition_map import PARTITIONS_MAX
from metadata_service.queue_settings import (
    ACK_LEVEL,
    DELIVERY_GUARANTEE,
    MAXIMUM_BYTES,
    MAXIMUM_DELAY,
    MAXIMUM_MESSAGES,
    NUMBER_DEFAULTS,
    PARTITIONS,
    PUSH_BACKOFF_MAX,
    PUSH_BACKOFF_MIN,
    PUSH_CONCURRENCY,
    PUSH_SECRET_VERSION,
    PUSH_TIMEOUT,
    PUSH_URL,
    is_fifo,
    number,
)

STORED_BYTES = "HoldfastStoredBytes"
"""A counter besides those of SQS; returned only if requested by name."""

Attributes = dict[str, str]


class _Bounds(NamedTuple):
    minimum: int
    maximum: int


_NUMBERS = {
    "DelaySeconds": _Bounds(0, limits.HOLDFAST_DELAY_SECONDS_MAX),
    "MaximumMessageSize": _Bounds(limits.MESSAGE_BYTES_SETTING_MIN, limits.MESSAGE_BYTES_MAX),
    "MessageRetentionPeriod": _Bounds(limits.RETENTION_SECONDS_MIN, limits.RETENTION_SECONDS_MAX),
    "ReceiveMessageWaitTimeSeconds": _Bounds(0, limits.WAIT_SECONDS_MAX),
    "VisibilityTimeout": _Bounds(0, limits.VISIBILITY_SECONDS_MAX),
    "KmsDataKeyReusePeriodSeconds": _Bounds(limits.KMS_REUSE_SECONDS_MIN, limits.KMS_REUSE_SECONDS_MAX),
    MAXIMUM_DELAY: _Bounds(limits.DELAY_SECONDS_MAX, limits.HOLDFAST_DELAY_SECONDS_MAX),
    MAXIMUM_MESSAGES: _Bounds(0, limits.HOLDFAST_LENGTH_MAX),
    MAXIMUM_BYTES: _Bounds(0, limits.HOLDFAST_LENGTH_MAX),
    PARTITIONS: _Bounds(1, PARTITIONS_MAX),
    PUSH_CONCURRENCY: _Bounds(1, limits.PUSH_CONCURRENCY_MAX),
    PUSH_TIMEOUT: _Bounds(1, limits.PUSH_TIMEOUT_SECONDS_MAX),
    PUSH_BACKOFF_MIN: _Bounds(1, limits.PUSH_BACKOFF_SECONDS_MAX),
    PUSH_BACKOFF_MAX: _Bounds(1, limits.PUSH_BACKOFF_SECONDS_MAX),
    PUSH_SECRET_VERSION: _Bounds(1, limits.PUSH_SECRET_VERSION_MAX),
}
_CHOICES = {
    "FifoQueue": ("true", "false"),
    "ContentBasedDeduplication": ("true", "false"),
    "SqsManagedSseEnabled": ("true", "false"),
    "DeduplicationScope": ("queue", "messageGroup"),
    "FifoThroughputLimit": ("perQueue", "perMessageGroupId"),
    DELIVERY_GUARANTEE: ("at-least-once", "at-most-once"),
    ACK_LEVEL: ("all", "quorum", "leader", "none"),
}
_REMOVABLE = ("Policy", "RedrivePolicy", "RedriveAllowPolicy", "KmsMasterKeyId", PUSH_URL)
"""Attributes that are removed by setting them to an empty string."""
SETTABLE = (*_NUMBERS, *_CHOICES, *_REMOVABLE)

_SHOWN_DEFAULTS = (
    "VisibilityTimeout",
    "MaximumMessageSize",
    "MessageRetentionPeriod",
    "DelaySeconds",
    "ReceiveMessageWaitTimeSeconds",
)
_DEFAULTS_ALL = {name: str(NUMBER_DEFAULTS[name]) for name in _SHOWN_DEFAULTS} | {"SqsManagedSseEnabled": "true"}
_DEFAULTS_FIFO = {
    "FifoQueue": "true",
    "ContentBasedDeduplication": "false",
    "DeduplicationScope": "queue",
    "FifoThroughputLimit": "perQueue",
}
COUNTERS = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)
_UNKNOWN_ON_STANDARD = ("FifoQueue", "ContentBasedDeduplication")
"""Attributes unknown to standard queues, both to set and to read (observed)."""
_OWN_NUMBERS = (
    *(MAXIMUM_DELAY, MAXIMUM_MESSAGES, MAXIMUM_BYTES, PARTITIONS),
    *(PUSH_CONCURRENCY, PUSH_TIMEOUT, PUSH_BACKOFF_MIN, PUSH_BACKOFF_MAX, PUSH_SECRET_VERSION),
)
OWN = {name: str(NUMBER_DEFAULTS[name]) for name in _OWN_NUMBERS} | {
    DELIVERY_GUARANTEE: "at-least-once",
    ACK_LEVEL: "quorum",
    PUSH_URL: "",
}
"""Settable attributes that SQS does not have, with their defaults."""
READABLE = frozenset((*QUEUE_ATTRIBUTE_NAMES, *OWN, STORED_BYTES))


class Settable(NamedTuple):
    """The values that an attribute can be set to."""

    name: str
    bounds: tuple[int, int] | None
    """Least and greatest value of a number."""
    choices: tuple[str, ...]
    """All values; empty: any number in the bounds, or any text."""
    default: str | None
    removable: bool
    """True if an empty text removes it."""
    fifo_only: bool
    fixed: bool
    """True if it can be set only when the queue is created."""


def settable() -> list[Settable]:
    """All attributes that can be set."""
    defaults = {name: str(value) for name, value in NUMBER_DEFAULTS.items()} | _DEFAULTS_ALL | _DEFAULTS_FIFO | OWN
    return [
        Settable(
            name,
            bounds=_NUMBERS.get(name),
            choices=_CHOICES.get(name, ()),
            default=defaults.get(name),
            removable=name in _REMOVABLE,
            fifo_only=name in _DEFAULTS_FIFO,
            fixed=name in ("FifoQueue", PARTITIONS),
        )
        for name in SETTABLE
    ]


def effective(stored: Mapping[str, str], *, encryption: bool = True) -> Attributes:
    """All attributes that are set or have a default.  ``encryption``: the service encrypts messages."""
    defaults = _DEFAULTS_ALL | _DEFAULTS_FIFO if is_fifo(stored) else _DEFAULTS_ALL
    every = defaults | dict(stored)
    if not encryption:
        every["SqsManagedSseEnabled"] = "false"
        every.pop("KmsMasterKeyId", None)
    return every


def is_encrypted(stored: Mapping[str, str]) -> bool:
    """True if messages of the queue are stored encrypted, in either way."""
    return stored.get("SqsManagedSseEnabled", "true") == "true" or "KmsMasterKeyId" in stored


def check_readable(name: str, *, fifo: bool) -> None:
    """Check that GetQueueAttributes may return it.  Raises InvalidAttributeName."""
    if name not in READABLE or (not fifo and name in _UNKNOWN_ON_STANDARD):
        raise unknown(name)


def unknown(name: str) -> SqsError:
    return SqsError(INVALID_ATTRIBUTE_NAME, f"Unknown Attribute {name}.")


def canonical(given: Mapping[str, str], *, fifo: bool, encryption: bool = True) -> Attributes:
    """Canonical values of attributes for a queue of this type; an empty one is to be removed.

    ``encryption``: the service encrypts messages.

    Raises InvalidAttributeName, InvalidAttributeValue, InvalidParameterValue.
    """
    values: Attributes = {}
    for name, text in given.items():
        if name not in SETTABLE:
            raise unknown(name)
        if not fifo:
            _refuse_on_standard(name)
        values[name] = _canonical_value(name, text)
    if values.get("FifoQueue") == "false":
        raise invalid_attribute_value("FifoQueue", "Modifying queue type is not supported.")
    if values.get("SqsManagedSseEnabled") == "true" and values.get("KmsMasterKeyId"):
        raise _both_encryptions()
    if not encryption:
        for name in ("SqsManagedSseEnabled", "KmsMasterKeyId"):
            if values.get(name) not in (None, "", "false"):
                raise invalid_attribute_value(name, "Encryption is switched off on this service (HOLDFAST_ENCRYPTION).")
    return values


def check_push(values: Mapping[str, str], *, push: bool) -> None:
    """Raise InvalidAttributeValue if canonical ``values`` have an endpoint, and the service does not ``push``."""
    if values.get(PUSH_URL) and not push:
        raise invalid_attribute_value(PUSH_URL, "Pushes are switched off on this service (HOLDFAST_PUSH).")


def merged(stored: Mapping[str, str], values: Mapping[str, str]) -> Attributes:
    """Stored attributes after canonical ``values`` have been set.

    Raises InvalidAttributeName and InvalidAttributeValue if the result is inconsistent.
    """
    result = {name: value for name, value in (dict(stored) | dict(values)).items() if value != ""}
    if values.get("KmsMasterKeyId") and values.get("SqsManagedSseEnabled") is None:
        result["SqsManagedSseEnabled"] = "false"
    if result.get("SqsManagedSseEnabled") == "true" and "KmsMasterKeyId" in result:
        raise _both_encryptions()
    if result.get("KmsDataKeyReusePeriodSeconds") == str(NUMBER_DEFAULTS["KmsDataKeyReusePeriodSeconds"]):
        del result["KmsDataKeyReusePeriodSeconds"]
    if int(result.get("DelaySeconds", 0)) > number(result, MAXIMUM_DELAY):
        raise invalid_attribute_value("DelaySeconds")
    scope = result.get("DeduplicationScope", "queue")
    if is_fifo(result) and number(result, PARTITIONS) > 1 and scope != "messageGroup":
        raise invalid_attribute_value(
            PARTITIONS,
            "A FIFO queue can have several partitions only while its DeduplicationScope is messageGroup, for its "
            "messages are shared out by their groups.",
        )
    if result.get("FifoThroughputLimit") == "perMessageGroupId" and scope != "messageGroup":
        raise invalid_attribute_value(
            "FifoThroughputLimit",
            "The perMessageGroupId value is allowed only when the value for DeduplicationScope is messageGroup.",
        )
    if number(result, PUSH_BACKOFF_MIN) > number(result, PUSH_BACKOFF_MAX):
        raise invalid_attribute_value(PUSH_BACKOFF_MIN, f"It cannot be larger than {PUSH_BACKOFF_MAX}.")
    if is_fifo(result) and result.get(ACK_LEVEL) == "none":
        raise invalid_attribute_value(
            ACK_LEVEL,
            "The value none is not allowed for a FIFO queue: a send is answered with its SequenceNumber, which has to "
            "be waited for.",
        )
    return result


def check_partitions_stay(stored: Mapping[str, str], values: Mapping[str, str]) -> None:
    """Raise InvalidAttributeValue if canonical ``values`` would change the number of partitions."""
    if number(values, PARTITIONS) != number(stored, PARTITIONS) and PARTITIONS in values:
        raise invalid_attribute_value(PARTITIONS, "It can be set only when the queue is created.")


def first_difference(stored: Mapping[str, str], values: Mapping[str, str], *, encryption: bool = True) -> str | None:
    """Name of the first of the canonical ``values`` that differs from the queue's."""
    current = effective(stored, encryption=encryption)
    for name, value in values.items():
        default = OWN.get(name) or (str(NUMBER_DEFAULTS[name]) if name in _NUMBERS else "")
        if current.get(name, default) != value:
            return name
    return None


def _refuse_on_standard(name: str) -> None:
    if name in _UNKNOWN_ON_STANDARD:
        raise unknown(name)
    if name in ("DeduplicationScope", "FifoThroughputLimit"):
        raise SqsError(INVALID_ATTRIBUTE_NAME, f"You can specify the {name} only when FifoQueue is set to true.")


def _canonical_value(name: str, text: str) -> str:
    bounds = _NUMBERS.get(name)
    if bounds is not None:
        digits = text.strip()
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
            raise invalid_attribute_value(name)
        value = int(digits)
        if not bounds.minimum <= value <= bounds.maximum:
            raise invalid_attribute_value(name)
        return str(value)
    choices = _CHOICES.get(name)
    if choices is not None:
        matching = [choice for choice in choices if choice == (text.lower() if "true" in choices else text)]
        if not matching:
            raise invalid_attribute_value(name)
        return matching[0]
    if text == "":
        return text
    if name == PUSH_URL:
        return _push_url(text)
    if name == "Policy":
        return policies.access_policy(text)
    if name == "RedrivePolicy":
        return policies.redrive_policy(text)[0]
    if name == "RedriveAllowPolicy":
        return policies.redrive_allow_policy(text)
    if len(text) > NAME_LENGTH_MAX or not text.isprintable():
        raise invalid_attribute_value(
            name, f"The id, alias or ARN of a key has at most {NAME_LENGTH_MAX} characters, all of them printable."
        )
    return text


def _push_url(text: str) -> str:
    if not (text.isascii() and text.isprintable()):
        raise invalid_attribute_value(PUSH_URL, "A URL consists of printable ASCII characters.")
    try:
        host_of(text)
    except ValueError as error:
        raise invalid_attribute_value(PUSH_URL, f"It cannot be called: {error}.") from None
    return text


def _both_encryptions() -> SqsError:
    return SqsError(
        INVALID_ATTRIBUTE_NAME,
        "You can use one type of server-side encryption (SSE) at one time. You can either enable KMS SSE or SQS SSE.",
    )
