"""Meaning of a queue's stored attributes: names, defaults, and typed values.  Pure.

The store holds the canonical values that were set (:mod:`frontend.queues.attributes` checks them); an attribute that
was not set has its default here.  This service's own attributes begin with ``Holdfast``.
"""

from __future__ import annotations

from collections.abc import Mapping

MAXIMUM_DELAY = "HoldfastMaximumDelaySeconds"
MAXIMUM_MESSAGES = "HoldfastMaximumMessages"
MAXIMUM_BYTES = "HoldfastMaximumBytes"
"""Maximum size of the queue; 0: no limit."""
DELIVERY_GUARANTEE = "HoldfastDeliveryGuarantee"
ACK_LEVEL = "HoldfastAckLevel"
PUSH_URL = "HoldfastPushUrl"
"""Endpoint to which messages are pushed; not set: none."""
PUSH_CONCURRENCY = "HoldfastPushConcurrency"
PUSH_TIMEOUT = "HoldfastPushTimeoutSeconds"
PUSH_BACKOFF_MIN = "HoldfastPushMinimumBackoffSeconds"
PUSH_BACKOFF_MAX = "HoldfastPushMaximumBackoffSeconds"
PUSH_SECRET_VERSION = "HoldfastPushSecretVersion"
"""Number of the signing secret; an increase replaces the secret."""
SUBSCRIBED_TOPIC = "HoldfastSubscribedTopic"
"""Name of the topic, in the hidden queue of a subscription; no call sets it."""
PARTITIONS = "HoldfastPartitions"
"""Number of partitions at creation.  Fixed afterwards: the service itself may change the number for a standard
queue, which does not show here."""

NUMBER_DEFAULTS = {
    "DelaySeconds": 0,
    "KmsDataKeyReusePeriodSeconds": 300,
    "MaximumMessageSize": 1_048_576,
    "MessageRetentionPeriod": 345_600,
    "ReceiveMessageWaitTimeSeconds": 0,
    "VisibilityTimeout": 30,
    MAXIMUM_DELAY: 900,
    MAXIMUM_MESSAGES: 0,
    MAXIMUM_BYTES: 0,
    PARTITIONS: 1,
    PUSH_CONCURRENCY: 10,
    PUSH_TIMEOUT: 15,
    PUSH_BACKOFF_MIN: 10,
    PUSH_BACKOFF_MAX: 600,
    PUSH_SECRET_VERSION: 1,
}
"""Defaults of numeric attributes: seconds, bytes or counts (Amazon SQS API Reference, SetQueueAttributes)."""


def number(stored: Mapping[str, str], name: str) -> int:
    """Value of a numeric attribute, or its default."""
    value = stored.get(name)
    return NUMBER_DEFAULTS[name] if value is None else int(value)


def is_pushed(stored: Mapping[str, str]) -> bool:
    """True if the queue pushes its messages to an endpoint."""
    return PUSH_URL in stored


def is_fifo(stored: Mapping[str, str]) -> bool:
    return stored.get("FifoQueue") == "true"
