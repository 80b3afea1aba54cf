"""Topics with boto3's client for SNS: publications reach queues, also over kill -9 and in several processes."""

from __future__ import annotations

import json
from base64 import b64decode
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA1, SHA256

from tests.servers.server import Server, aws_client
from tests.servers.several import Several
from tests.servers.waiting import wait_until

SIGNED = ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type")


@pytest.fixture
def server(topic_server: Server) -> Server:
    return topic_server


def sns_client(server: Server) -> Any:
    return aws_client(
        "sns",
        endpoint_url=server.endpoint,
        region_name=server.region,
        aws_access_key_id=server.access_key_id,
        aws_secret_access_key=server.secret_access_key,
        config=Config(retries={"max_attempts": 1, "mode": "standard"}),
    )


def subscribed(server: Server, topic: str, queue: str, queue_attributes: Any = None, **attributes: str) -> str:
    """Create a queue that lets the topic in, subscribe it, and return its URL."""
    sqs = server.client()
    url: str = sqs.create_queue(QueueName=queue, Attributes=queue_attributes or {})["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": "sns.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": arn,
        "Condition": {"ArnEquals": {"aws:SourceArn": topic}},
    }
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": policy})
    sns_client(server).subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn, Attributes=attributes)
    return url


def received(server: Server, url: str, count: int) -> list[dict[str, Any]]:
    """Receive and delete so many messages, and find the queue empty then."""
    sqs = server.client()
    found: list[dict[str, Any]] = []

    def is_whole() -> bool:
        answer = sqs.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, MessageAttributeNames=["All"], AttributeNames=["All"]
        )
        for message in answer.get("Messages", []):
            found.append(message)
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        return len(found) >= count

    wait_until(is_whole, f"{count} messages are in {url}")
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
    assert len(found) == count
    return found


def test_a_publication_is_delivered_raw_in_json_and_by_filter(server: Server) -> None:
    sns = sns_client(server)
    topic = sns.create_topic(Name="news")["TopicArn"]
    raw = subscribed(server, topic, "raw", RawMessageDelivery="true")
    enveloped = subscribed(server, topic, "enveloped")
    filtered = subscribed(server, topic, "filtered", FilterPolicy=json.dumps({"kind": ["b", {"prefix": "c"}]}))
    kinds = {name: {"kind": {"DataType": "String", "StringValue": name}} for name in ("a", "b", "cd")}
    first = sns.publish(TopicArn=topic, Message="one", Subject="ü", MessageAttributes=kinds["a"])["MessageId"]
    batch = sns.publish_batch(
        TopicArn=topic,
        PublishBatchRequestEntries=[
            {"Id": "1", "Message": "two", "MessageAttributes": kinds["b"]},
            {"Id": "2", "Message": "three", "MessageAttributes": kinds["cd"]},
            {"Id": "3", "Message": "no", "Subject": "two\nlines"},
        ],
    )
    assert [one["Id"] for one in batch["Successful"]] == ["1", "2"]
    assert [one["Id"] for one in batch["Failed"]] == ["3"]

    plain = {message["Body"]: message for message in received(server, raw, 3)}
    assert plain.keys() == {"one", "two", "three"}
    assert plain["one"]["MessageAttributes"]["kind"]["StringValue"] == "a"
    notifications = {one["Message"]: one for one in (json.loads(m["Body"]) for m in received(server, enveloped, 3))}
    assert notifications["one"]["MessageId"] == first
    assert notifications["one"]["Subject"] == "ü"
    assert notifications["two"]["MessageAttributes"] == {"kind": {"Type": "String", "Value": "b"}}
    assert sorted(json.loads(m["Body"])["Message"] for m in received(server, filtered, 2)) == ["three", "two"]


@pytest.mark.parametrize(("version", "algorithm"), [("1", SHA1()), ("2", SHA256())])
def test_signatures_are_verified_with_the_certificate(server: Server, version: str, algorithm: SHA1 | SHA256) -> None:
    sns = sns_client(server)
    topic = sns.create_topic(Name=f"signed-{version}", Attributes={"SignatureVersion": version})["TopicArn"]
    url = subscribed(server, topic, f"signed-{version}")
    sns.publish(TopicArn=topic, Message="to be verified", Subject="s")
    (message,) = received(server, url, 1)
    notification = json.loads(message["Body"])
    assert notification["SignatureVersion"] == version
    certificate = x509.load_pem_x509_certificate(httpx.get(notification["SigningCertURL"]).content)
    key = certificate.public_key()
    assert isinstance(key, RSAPublicKey)
    text = "".join(f"{name}\n{notification[name]}\n" for name in SIGNED)
    key.verify(b64decode(notification["Signature"]), text.encode(), PKCS1v15(), algorithm)


def test_a_fifo_topic_keeps_order_and_deduplicates(server: Server) -> None:
    sns = sns_client(server)
    attributes = {"FifoTopic": "true", "ContentBasedDeduplication": "true"}
    topic = sns.create_topic(Name="orders.fifo", Attributes=attributes)["TopicArn"]
    fifo = {"FifoQueue": "true"}
    url = subscribed(server, topic, "orders.fifo", fifo, RawMessageDelivery="true")
    standard = subscribed(server, topic, "all-orders", RawMessageDelivery="true")
    answers = [sns.publish(TopicArn=topic, Message=str(number // 2), MessageGroupId="g") for number in range(12)]
    assert answers[0]["SequenceNumber"] == answers[1]["SequenceNumber"]
    assert answers[2]["SequenceNumber"] > answers[0]["SequenceNumber"]
    assert [message["Body"] for message in received(server, url, 6)] == [str(number) for number in range(6)]
    assert sorted(message["Body"] for message in received(server, standard, 6)) == [str(number) for number in range(6)]


def test_notifications_of_a_fifo_topic_have_the_number_that_publish_answered(server: Server) -> None:
    sns, sqs = sns_client(server), server.client()
    attributes = {"FifoTopic": "true", "ContentBasedDeduplication": "true"}
    topic = sns.create_topic(Name="numbered.fifo", Attributes=attributes)["TopicArn"]
    dead = sqs.create_queue(QueueName="numbered-dead.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    dead_arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    redrive = json.dumps({"deadLetterTargetArn": dead_arn, "maxReceiveCount": "1"})
    first = subscribed(server, topic, "numbered.fifo", {"FifoQueue": "true", "RedrivePolicy": redrive})
    for n in range(2):  # the messages of this queue have other numbers than the publications
        sqs.send_message(QueueUrl=first, MessageBody="sent", MessageGroupId="g", MessageDeduplicationId=f"d{n}")
    sns.publish(TopicArn=topic, Message="before the second subscription", MessageGroupId="g")
    second = subscribed(server, topic, "numbered-standard")
    answers = sns.publish_batch(
        TopicArn=topic,
        PublishBatchRequestEntries=[{"Id": str(n), "Message": f"m{n}", "MessageGroupId": "g"} for n in range(3)],
    )
    expected = {f"m{one['Id']}": one["SequenceNumber"] for one in answers["Successful"]}

    def numbers(messages: list[dict[str, Any]]) -> dict[str, str]:
        found = [json.loads(one["Body"]) for one in messages if one["Body"] != "sent"]
        return {one["Message"]: one["SequenceNumber"] for one in found if one["Message"] in expected}

    assert numbers(received(server, second, 3)) == expected

    seen: list[dict[str, Any]] = []
    letters: dict[str, dict[str, Any]] = {}

    def receive() -> None:
        """Receive each message of the first queue once; a message that was received before becomes a dead letter."""
        answer = sqs.receive_message(
            QueueUrl=first, MaxNumberOfMessages=10, VisibilityTimeout=0, AttributeNames=["All"]
        )
        seen.extend(answer.get("Messages", []))

    def are_received() -> bool:
        receive()
        return len(seen) >= 6

    def are_dead() -> bool:
        receive()
        answer = sqs.receive_message(QueueUrl=dead, MaxNumberOfMessages=10, VisibilityTimeout=0)
        letters.update({one["MessageId"]: one for one in answer.get("Messages", [])})
        return len(letters) >= 6

    wait_until(are_received, "all have been received once")
    assert numbers(seen) == expected
    assert all(one["Attributes"]["SequenceNumber"] not in one["Body"] for one in seen)
    wait_until(are_dead, "all are dead letters")
    assert numbers(list(letters.values())) == expected


def test_a_queue_that_does_not_let_the_topic_in_gets_nothing(server: Server) -> None:
    sns, sqs = sns_client(server), server.client()
    topic = sns.create_topic(Name="kept-out")["TopicArn"]
    dead = subscribed(server, topic, "kept-out-dead")
    dead_arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    sns.unsubscribe(
        SubscriptionArn=sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"][0]["SubscriptionArn"]
    )
    closed = subscribed(server, topic, "closed", RedrivePolicy=json.dumps({"deadLetterTargetArn": dead_arn}))
    sqs.set_queue_attributes(QueueUrl=closed, Attributes={"Policy": ""})
    sns.publish(TopicArn=topic, Message="not for it")
    assert [json.loads(message["Body"])["Message"] for message in received(server, dead, 1)] == ["not for it"]
    assert "Messages" not in sqs.receive_message(QueueUrl=closed)


# --- faults -----------------------------------------------------------------------------------------------------


@pytest.fixture(params=[0, 3], ids=["one process", "two frontends, three backends"])
def killed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    settings = {"SEGMENT_BYTES": str(1 << 22)}
    if request.param:
        settings["BACKENDS"] = str(request.param)
    made = Several(tmp_path, settings) if request.param else Server(tmp_path, settings)
    with made as running:
        yield running


@pytest.mark.long
@pytest.mark.timeout(600)
def test_each_answered_publication_arrives_once_over_kill_9(killed: Server) -> None:
    topic = sns_client(killed).create_topic(Name="t")["TopicArn"]
    urls = [subscribed(killed, topic, f"q{number}", RawMessageDelivery="true") for number in range(5)]
    answered: set[str] = set()
    tried: set[str] = set()
    for turn in range(4):
        sns = sns_client(killed)
        for number in range(40):
            message = f"{turn}-{number}"
            tried.add(message)
            sns.publish(TopicArn=topic, Message=message)
            answered.add(message)
        killed.kill()
        with pytest.raises((ClientError, BotoCoreError)):
            sns.publish(TopicArn=topic, Message=f"{turn}-in-vain")
        killed.start()
    sqs = killed.client()
    for url in urls:
        found: Counter[str] = Counter()

        def is_whole(url: str = url, found: Counter[str] = found) -> bool:
            for message in sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", []):
                found[message["Body"]] += 1
                sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
            return answered <= found.keys()

        wait_until(is_whole, f"all publications are in {url}")
        assert set(found.values()) == {1}
        assert found.keys() == answered
