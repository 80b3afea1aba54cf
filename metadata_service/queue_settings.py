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
}
"""Defaults of numeric attributes: seconds, bytes or counts (Amazon SQS API Reference, SetQueueAttributes)."""


def number(stored: Mapping[str, str], name: str) -> int:
    """Value of a numeric attribute, or its default."""
    value = stored.get(name)
    return NUMBER_DEFAULTS[name] if value is None else int(value)


def is_fifo(stored: Mapping[str, str]) -> bool:
    return stored.get("FifoQueue") == "true"
