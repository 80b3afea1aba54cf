"""Validation of publications, and ARNs: rows of tables."""

import uuid
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend.sns.messages import arn, publication
from frontend.sns.messages.publication import PublicationContent, TopicRules
from frontend.sns.messages.random_ids import RandomIds
from frontend.sns.protocol.limits import MESSAGE_BYTES_MAX
from frontend.sqs.protocol.errors import SqsError
from tests.behaviour.cases import resolve
from tests.tables import table

TOPICS = {
    "standard": TopicRules(fifo=False, content_based=False),
    "fifo": TopicRules(fifo=True, content_based=False),
    "content-based": TopicRules(fifo=True, content_based=True),
}


@pytest.mark.parametrize("row", table(__file__, "accepted"))
def test_accepted(row: list[Any]) -> None:
    members, expected, *topic = resolve(row, {})
    read = publication.read_publication(members, TOPICS[topic[0] if topic else "standard"])
    found = msgspec.structs.asdict(read) | {"attributes": [list(attribute) for attribute in read.attributes]}
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize("row", table(__file__, "refused"))
def test_refused(row: list[Any]) -> None:
    members, code, text, *topic = resolve(row, {})
    with pytest.raises(SqsError) as caught:
        publication.read_publication(members, TOPICS[topic[0] if topic else "standard"])
    assert caught.value.kind.query_code == code
    assert text in caught.value.message


def test_the_ids_of_a_batch_on_a_fifo_topic() -> None:
    publication.check_ordered({"MessageGroupId": "g"}, TOPICS["content-based"])
    with pytest.raises(SqsError, match="MessageGroupId"):
        publication.check_ordered({}, TOPICS["fifo"])


def test_the_size() -> None:
    publication.check_size(MESSAGE_BYTES_MAX)
    with pytest.raises(SqsError, match="Message too long"):
        publication.check_size(MESSAGE_BYTES_MAX + 1)


def test_a_stored_publication_is_read_again() -> None:
    content = PublicationContent(
        1, "arn:aws:sns:r:a:t", "id", 5, "m", "s", (("a", "Binary", b"\xff"), ("b", "String", "c")), "2", b"sig", "cert"
    )
    assert publication.decode_publication(publication.encode_publication(content)) == content


@pytest.mark.parametrize(("text", "reason"), table(__file__, "topic arns refused"))
def test_arns_of_no_topic(text: Any, reason: str) -> None:
    with pytest.raises(SqsError) as caught:
        arn.topic_arn(resolve(text, {}))
    assert caught.value.kind.query_code == "InvalidParameter"
    assert reason in caught.value.message


@pytest.mark.parametrize(("text", "reason"), table(__file__, "subscription arns refused"))
def test_arns_of_no_subscription(text: str, reason: str) -> None:
    with pytest.raises(SqsError) as caught:
        arn.subscription_arn(text)
    assert reason in caught.value.message


@given(st.binary(min_size=16, max_size=16))
def test_arns_are_read_as_they_are_written(subscription_id: bytes) -> None:
    topic = arn.TopicArn("us-east-1", "123456789012", "a-topic.fifo")
    assert arn.topic_arn(str(topic)) == topic
    subscription = arn.SubscriptionArn(topic, subscription_id)
    assert arn.subscription_arn(str(subscription)) == subscription
    assert str(subscription).endswith(":" + str(uuid.UUID(bytes=subscription_id)))


def test_random_ids_are_uuids_of_version_4() -> None:
    make = RandomIds()
    made = [make() for _ in range(1_000)]
    assert len(set(made)) == 1_000
    parsed = [uuid.UUID(text) for text in made]
    assert list(map(str, parsed)) == made
    assert {(one.version, one.variant) for one in parsed} == {(4, uuid.RFC_4122)}
