"""Attributes and policies of topics and subscriptions: rows of tables."""

import json
from typing import Any

import pytest

from auth.policies.policies import Decision
from auth.principal import Principal
from frontend.sns.messages.arn import TopicArn
from frontend.sns.protocol import limits
from frontend.sns.topics import attributes, policies, subscription_attributes
from frontend.sqs.protocol.errors import SqsError
from metadata_service.topics import Topic
from tests.behaviour.cases import resolve
from tests.tables import table

ARN = TopicArn("us-east-1", "111111111111", "t")
TOPIC = Topic(7, "111111111111", "t", 1, {}, {}, 0, subscriptions=3, deleted_subscriptions=2)
OWN = Principal("111111111111", "A", "arn:aws:iam::111111111111:user/a", "AKIA")
OTHER = Principal("222222222222", "B", "arn:aws:iam::222222222222:user/b", "AKIA")


@pytest.mark.parametrize("row", table(__file__, "topic values"))
def test_values_of_topics(row: list[Any]) -> None:
    given, expected, *fifo = resolve(row, {})
    values = attributes.canonical(given, fifo=bool(fifo), creating=True)
    assert attributes.merged({}, values) == expected
    assert attributes.first_difference(expected, values) is None


@pytest.mark.parametrize(("given", "text"), table(__file__, "topic refused"))
def test_values_that_no_topic_has(given: Any, text: str) -> None:
    with pytest.raises(SqsError) as caught:
        attributes.canonical(resolve(given, {}), fifo=False, creating=True)
    assert caught.value.kind.query_code == "InvalidParameter"
    assert text.lower() in caught.value.message.lower()


def test_the_type_of_a_topic_does_not_change() -> None:
    with pytest.raises(SqsError, match="only when a topic is created"):
        attributes.canonical({"FifoTopic": "true"}, fifo=True)


def test_names_of_topics() -> None:
    for name in ("a", "A_-9", "a" * 256):
        attributes.check_topic_name(name, fifo=False)
        assert attributes.is_topic_name(name)
    for name in ("a.fifo", "a" * 251 + ".fifo"):
        attributes.check_topic_name(name, fifo=True)
        assert attributes.is_topic_name(name)
    for name in ("", "a.b", "a" * 257, "~a", "ü", "a b", "a.fifo"):
        with pytest.raises(SqsError, match="Topic Name"):
            attributes.check_topic_name(name, fifo=False)
    for name in ("a", ".fifo", "a" * 252 + ".fifo"):
        with pytest.raises(SqsError, match=r"must end with \.fifo"):
            attributes.check_topic_name(name, fifo=True)


def test_a_value_that_differs_from_the_topics_or_the_default() -> None:
    stored = {"DisplayName": "a"}
    assert attributes.first_difference(stored, {"DisplayName": "b"}) == "DisplayName"
    assert attributes.first_difference(stored, {"SignatureVersion": "1", "TracingConfig": "PassThrough"}) is None
    assert attributes.first_difference(stored, {"SignatureVersion": "2"}) == "SignatureVersion"


def test_all_attributes_of_a_topic() -> None:
    shown = attributes.shown_attributes(TOPIC, ARN, 1)
    assert shown.keys() <= set(attributes.TOPIC_READABLE) | {"Policy", "DisplayName"}
    counts = [shown[f"Subscriptions{kind}"] for kind in ("Pending", "Confirmed", "Deleted")]
    assert counts == ["1", "2", "2"]
    assert (shown["TopicArn"], shown["Owner"], shown["DisplayName"]) == (str(ARN), "111111111111", "")
    assert json.loads(shown["EffectiveDeliveryPolicy"])["http"]["defaultHealthyRetryPolicy"]["numRetries"] == 3
    assert "FifoTopic" not in shown
    fifo = Topic(7, "111111111111", "t.fifo", 1, {"FifoTopic": "true", "DisplayName": "d"}, {}, 0)
    found = attributes.shown_attributes(fifo, ARN, 0)
    assert (found["FifoTopic"], found["ContentBasedDeduplication"], found["DisplayName"]) == ("true", "false", "d")


# --- policies ----------------------------------------------------------------------------------------------


def decide(text: str, who: Principal, action: str) -> Decision:
    facts = {"aws:sourceowner": who.account}
    return policies.stored_policy(text).decide(who, action, str(ARN), facts.get)


def test_the_default_policy_is_for_the_owner() -> None:
    text = policies.default_policy(str(ARN), "111111111111")
    assert policies.topic_policy(text) == text
    for action in policies.OF_OWNER:
        assert decide(text, OWN, action) is Decision.ALLOWED
        assert decide(text, OTHER, action) is Decision.SILENT


def test_permissions_are_statements_beside_the_default_one() -> None:
    text = policies.with_permission(None, str(ARN), "111111111111", "l", ["222222222222"] * 2, ["Publish", "Subscribe"])
    assert decide(text, OTHER, "Publish") is decide(text, OTHER, "Subscribe") is Decision.ALLOWED
    assert decide(text, OTHER, "DeleteTopic") is Decision.SILENT
    assert decide(text, OWN, "DeleteTopic") is Decision.ALLOWED
    with pytest.raises(SqsError, match="Statement already exists"):
        policies.with_permission(text, str(ARN), "111111111111", "l", ["222222222222"], ["Publish"])
    without = policies.without_permission(text, str(ARN), "111111111111", "l")
    assert without == policies.default_policy(str(ARN), "111111111111")
    assert policies.without_permission(text, str(ARN), "111111111111", "other") == text
    assert policies.without_permission(without, str(ARN), "111111111111", "__default_statement_ID") is None


@pytest.mark.parametrize("row", table(__file__, "permissions refused"))
def test_permissions_refused(row: list[Any]) -> None:
    label, accounts, actions, text = row
    with pytest.raises(SqsError) as caught:
        policies.with_permission(None, str(ARN), "111111111111", label, accounts, actions)
    assert text in caught.value.message


def test_a_policy_has_a_bounded_number_of_statements() -> None:
    statement = {"Effect": "Allow", "Principal": "*", "Action": "SNS:Publish"}
    for count, accepted in ((limits.POLICY_STATEMENTS_MAX, True), (limits.POLICY_STATEMENTS_MAX + 1, False)):
        text = json.dumps({"Statement": [statement] * count})
        if accepted:
            assert json.loads(policies.topic_policy(text)) == json.loads(text)
        else:
            with pytest.raises(SqsError, match="at most 100 statements"):
                policies.topic_policy(text)
    many = {**statement, "Principal": {"AWS": [f"{number:012d}" for number in range(51)]}}
    with pytest.raises(SqsError, match="at most 50 principals"):
        policies.topic_policy(json.dumps({"Statement": [many]}))


def test_a_stored_policy_that_cannot_be_read_allows_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert decide('{"Statement":7}', OWN, "Publish") is Decision.SILENT
    assert "a stored policy of a topic cannot be read" in caplog.text


# --- subscriptions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "expected"), table(__file__, "subscription values"))
def test_values_of_subscriptions(given: dict[str, str], expected: dict[str, str]) -> None:
    values = subscription_attributes.canonical(given)
    assert subscription_attributes.merged({}, values) == expected
    assert (subscription_attributes.compiled(expected) is not None) == ("FilterPolicy" in expected)


@pytest.mark.parametrize(("given", "text"), table(__file__, "subscription refused"))
def test_values_that_no_subscription_has(given: dict[str, str], text: str) -> None:
    with pytest.raises(SqsError) as caught:
        subscription_attributes.merged({}, subscription_attributes.canonical(given))
    assert caught.value.kind.query_code == "InvalidParameter"
    assert text in caught.value.message


def test_a_scope_has_to_fit_the_stored_policy() -> None:
    stored = {"FilterPolicy": '{"a": {"b": ["c"]}}', "FilterPolicyScope": "MessageBody"}
    with pytest.raises(SqsError, match="does not support nested"):
        subscription_attributes.merged(stored, {"FilterPolicyScope": "MessageAttributes"})


def test_a_scope_ends_with_its_policy() -> None:
    stored = {"FilterPolicy": '{"a": {"b": ["c"]}}', "FilterPolicyScope": "MessageBody"}
    assert subscription_attributes.merged(stored, {"FilterPolicy": ""}) == {}
    both = {"FilterPolicy": "", "FilterPolicyScope": "MessageBody"}
    assert subscription_attributes.merged({}, both) == {"FilterPolicyScope": "MessageBody"}


@pytest.mark.parametrize(("stored", "given", "same"), table(__file__, "same"))
def test_subscriptions_with_the_same_attributes(stored: dict[str, str], given: dict[str, str], same: bool) -> None:
    assert subscription_attributes.is_same(stored, subscription_attributes.canonical(given)) is same
