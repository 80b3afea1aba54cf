"""Outcomes of a publication's deliveries that are decided before it is stored."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class DeliveryFailure(StrEnum):
    """Reason for which a delivery fails."""

    ABSENT = "absent"
    """There is no such queue."""
    DENIED = "denied"
    """The policy of the queue does not let the topic in."""
    TOO_LARGE = "too_large"
    """The message exceeds the queue's MaximumMessageSize."""
    TOO_MANY_ATTRIBUTES = "too_many_attributes"
    """A raw message has more attributes than a message in a queue can have."""
    SUSPENDED = "suspended"
    """The account of the queue is not active."""
    OVER_QUOTA = "over_quota"
    """The account of the queue stores as many bytes as it may."""
    FILTER_POLICY = "filter_policy"
    """The filter policy of the subscription needs more work for the message than its share."""
    ENDPOINT = "endpoint"
    """The endpoint of HTTP did not confirm it."""


class DecidedOutcomes(msgspec.Struct):
    """Outcomes of a publication's deliveries that are decided before it is stored."""

    filtered_by_attributes: int = 0
    filtered_without_attributes: int = 0
    """Those of ``filtered_by_attributes`` for which the message has no attributes."""
    filtered_by_body: int = 0
    filtered_invalid_body: int = 0
    """Those of ``filtered_by_body`` for which the body is no JSON object."""
    failures: dict[DeliveryFailure, int] = {}
    """Numbers of deliveries that fail, by reason."""
    redriven: int = 0
    """Failed deliveries that go to a dead-letter queue."""
    redrive_failed: int = 0
    """Failed deliveries that cannot go to the dead-letter queue of their subscription."""
