"""Amazon Resource Names of topics and subscriptions."""

from __future__ import annotations

import re
import uuid
from functools import lru_cache
from typing import NamedTuple

from frontend.sns.protocol.errors import invalid_parameter
from frontend.sns.protocol.limits import ARN_LENGTH_MAX

_ACCOUNT = re.compile(r"[0-9]{12}\Z")
_PARTS = 6
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\Z")


class TopicArn(NamedTuple):
    region: str
    account: str
    name: str

    def __str__(self) -> str:
        return f"arn:aws:sns:{self.region}:{self.account}:{self.name}"


class SubscriptionArn(NamedTuple):
    topic: TopicArn
    subscription_id: bytes
    """16 bytes."""

    def __str__(self) -> str:
        return f"{self.topic}:{uuid.UUID(bytes=self.subscription_id)}"


@lru_cache(maxsize=1_024)
def topic_arn(text: str, parameter: str = "TopicArn") -> TopicArn:
    """Parse the ARN of a topic.  Raises InvalidParameter."""
    parts = _parts(text, parameter)
    if len(parts) != _PARTS:
        raise invalid_parameter(parameter)
    return TopicArn(parts[3], parts[4], parts[5])


def subscription_arn(text: str, parameter: str = "SubscriptionArn") -> SubscriptionArn:
    """Parse the ARN of a subscription.  Raises InvalidParameter."""
    parts = _parts(text, parameter)
    if len(parts) != _PARTS + 1 or not _UUID.match(parts[6]):
        raise invalid_parameter(f"{parameter} Reason: it is not the ARN of a subscription")
    return SubscriptionArn(TopicArn(parts[3], parts[4], parts[5]), uuid.UUID(parts[6]).bytes)


def _parts(text: str, parameter: str) -> list[str]:
    """Parts of an ARN of SNS, as many as it has."""
    if len(text) > ARN_LENGTH_MAX:
        raise invalid_parameter(f"{parameter} Reason: An ARN has at most {ARN_LENGTH_MAX} characters")
    parts = text.split(":", _PARTS + 1)
    if len(parts) < _PARTS:
        raise invalid_parameter(f"{parameter} Reason: An ARN must have at least {_PARTS} elements, not {len(parts)}")
    if parts[0] != "arn" or not parts[1] or parts[2] != "sns" or not all(parts[3:]) or not _ACCOUNT.match(parts[4]):
        raise invalid_parameter(parameter)
    return parts
