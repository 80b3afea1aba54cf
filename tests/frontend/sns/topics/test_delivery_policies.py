"""Delivery policies: rows of tables, and properties of all backoff functions."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies

from frontend.sns.topics import delivery_policies, subscription_attributes
from frontend.sns.topics.delivery_policies import BACKOFF_FUNCTIONS, RetryPolicy
from frontend.sqs.protocol.errors import SqsError
from tests.behaviour.cases import resolve
from tests.tables import read_yaml

TABLES = read_yaml(Path(__file__).with_name("delivery.yaml"))


def delays(policy: RetryPolicy) -> list[float]:
    """Seconds before each retry, until there is none."""
    found: list[float] = []
    while (seconds := policy.delay(len(found) + 1)) is not None:
        found.append(seconds)
    return found


@pytest.mark.parametrize(("policy", "expected"), TABLES["delays"])
def test_delays(policy: dict[str, Any], expected: Any) -> None:
    expected = [36] * 100 if isinstance(expected, dict) else expected
    text = json.dumps({"healthyRetryPolicy": policy})
    assert delivery_policies.subscription_delivery_policy(text)
    made = msgspec.convert(policy, RetryPolicy)
    assert [round(seconds, 1) for seconds in delays(made)] == expected
    assert made.delay(len(expected) + 50) is None


@pytest.mark.parametrize(("kind", "text", "reason"), TABLES["refused"])
def test_policies_that_are_refused(kind: str, text: Any, reason: str) -> None:
    check = (
        delivery_policies.topic_delivery_policy if kind == "topic" else delivery_policies.subscription_delivery_policy
    )
    with pytest.raises(SqsError) as caught:
        check(resolve(text, {}))
    assert caught.value.kind.query_code == "InvalidParameter"
    assert reason in caught.value.message


@pytest.mark.parametrize(("topic", "own", "retries", "per_second", "content_type"), TABLES["effective"])
def test_values_that_hold(
    topic: str | None, own: str | None, retries: int, per_second: int | None, content_type: str
) -> None:
    of_topic = {"DeliveryPolicy": delivery_policies.topic_delivery_policy(topic)} if topic else {}
    of_subscription = {"DeliveryPolicy": delivery_policies.subscription_delivery_policy(own)} if own else {}
    effective = delivery_policies.effective_delivery(of_topic, of_subscription)
    assert (effective.retries.num_retries, effective.receives_per_second) == (retries, per_second)
    assert effective.content_type == content_type
    shown = json.loads(delivery_policies.shown_subscription_delivery(of_topic, of_subscription))
    assert shown["healthyRetryPolicy"]["numRetries"] == retries
    assert shown["throttlePolicy"] == (None if per_second is None else {"maxReceivesPerSecond": per_second})
    assert delivery_policies.subscription_delivery_policy(json.dumps(shown)), "what is shown can be set"
    http = json.loads(delivery_policies.shown_topic_delivery(of_topic))
    assert delivery_policies.topic_delivery_policy(json.dumps(http))


def test_content_types_of_raw_deliveries() -> None:
    policy = {"DeliveryPolicy": '{"requestPolicy":{"headerContentType":"text/csv"}}'}
    raw = subscription_attributes.merged({}, policy | {"RawMessageDelivery": "true"})
    with pytest.raises(SqsError, match="unless RawMessageDelivery is true"):
        subscription_attributes.merged({}, policy)
    with pytest.raises(SqsError, match="unless RawMessageDelivery is true"):
        subscription_attributes.merged(raw, {"RawMessageDelivery": "false"})


@given(
    strategies.sampled_from(BACKOFF_FUNCTIONS),
    strategies.integers(1, 100),
    strategies.integers(1, 3600),
    strategies.integers(1, 3600),
)
def test_every_backoff_grows_from_the_minimum_to_the_maximum(function: Any, retries: int, one: int, other: int) -> None:
    low, high = sorted((one, other))
    found = delays(RetryPolicy(low, high, retries, backoff_function=function))
    assert len(found) == retries
    assert found == sorted(found)
    assert found[0] == low
    assert retries == 1 or found[-1] == pytest.approx(high)
