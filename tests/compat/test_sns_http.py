"""Topics with boto3's client for SNS and endpoints of HTTP, with real processes, which are killed while they push."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from botocore.config import Config

from tests.frontend.hooks import Hook, RecordedCall, hook
from tests.servers.server import Server, aws_client
from tests.servers.waiting import wait_until


@pytest.fixture
def listening() -> Iterator[Hook]:
    with hook() as made:
        yield made


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path, {"WEBHOOK_NETWORKS": "127.0.0.0/8"})
    made.settings["HOLDFAST_EXTERNAL_URL"] = made.endpoint
    with made as running:
        yield running


def sns_client(server: Server) -> Any:
    return aws_client(
        "sns",
        endpoint_url=server.endpoint,
        region_name=server.region,
        aws_access_key_id=server.access_key_id,
        aws_secret_access_key=server.secret_access_key,
        config=Config(retries={"max_attempts": 5, "mode": "standard"}),
    )


def of_type(listening: Hook, kind: str) -> list[RecordedCall]:
    return [call for call in list(listening.calls) if call.headers["x-amz-sns-message-type"] == kind]


def confirmed(server: Server, listening: Hook, topic: str, **attributes: str) -> str:
    """Subscribe the endpoint, confirm that as its owner does, and return the subscription's ARN."""
    sns = sns_client(server)
    made = sns.subscribe(
        TopicArn=topic, Protocol="http", Endpoint=listening.url, ReturnSubscriptionArn=True, Attributes=attributes
    )

    def is_confirmed() -> bool:  # only the last message has the token that is valid
        asked = of_type(listening, "SubscriptionConfirmation")
        return any(httpx.get(call.json["SubscribeURL"]).status_code == 200 for call in reversed(asked))

    wait_until(is_confirmed, "the endpoint is asked, and confirms")
    return str(made["SubscriptionArn"])


def test_an_endpoint_is_subscribed_gets_notifications_and_is_unsubscribed(server: Server, listening: Hook) -> None:
    sns, sqs = sns_client(server), server.client()
    topic = sns.create_topic(Name="news")["TopicArn"]
    dead = sqs.create_queue(QueueName="dead")["QueueUrl"]
    dead_arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    allow = {
        "Effect": "Allow",
        "Principal": {"Service": "sns.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": dead_arn,
        "Condition": {"ArnEquals": {"aws:SourceArn": topic}},
    }
    sqs.set_queue_attributes(
        QueueUrl=dead, Attributes={"Policy": json.dumps({"Version": "2012-10-17", "Statement": [allow]})}
    )
    redrive = json.dumps({"deadLetterTargetArn": dead_arn})
    arn = confirmed(server, listening, topic, RedrivePolicy=redrive)
    sent = sns.publish(TopicArn=topic, Message="first", Subject="s")
    wait_until(lambda: bool(of_type(listening, "Notification")), "the notification is pushed")
    (call,) = of_type(listening, "Notification")
    assert (call.json["Message"], call.json["MessageId"]) == ("first", sent["MessageId"])
    assert call.headers["x-amz-sns-subscription-arn"] == arn
    assert httpx.get(call.json["SigningCertURL"]).text.startswith("-----BEGIN CERTIFICATE")
    listening.statuses.append(404)
    sns.publish(TopicArn=topic, Message="refused")
    (message,) = wait_until(
        lambda: sqs.receive_message(QueueUrl=dead, WaitTimeSeconds=1).get("Messages"), "it is a dead letter"
    )
    assert json.loads(message["Body"])["Message"] == "refused"
    assert httpx.get(call.json["UnsubscribeURL"]).status_code == 200
    wait_until(lambda: bool(of_type(listening, "UnsubscribeConfirmation")), "the endpoint is notified of its end")
    sns.unsubscribe(SubscriptionArn=arn)
    assert sns.list_subscriptions()["Subscriptions"] == []
    assert sqs.list_queues().get("QueueUrls") == [dead]
    assert "hush" not in server.log_text(), "the log has no secret parts of URLs"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_each_answered_publication_is_pushed_over_kill_9(server: Server, listening: Hook) -> None:
    topic = sns_client(server).create_topic(Name="t")["TopicArn"]
    retries = {"minDelayTarget": 1, "maxDelayTarget": 1, "numRetries": 100}
    policy = json.dumps({"healthyRetryPolicy": retries})
    listening.gate.clear()
    made = sns_client(server).subscribe(
        TopicArn=topic, Protocol="http", Endpoint=listening.url, Attributes={"DeliveryPolicy": policy}
    )
    assert made["SubscriptionArn"] == "pending confirmation"
    server.kill()  # the confirmation may be on its way
    listening.gate.set()
    server.start()
    confirmed(server, listening, topic)
    answered: set[str] = set()
    for turn in range(3):
        sns = sns_client(server)
        for number in range(30):
            sns.publish(TopicArn=topic, Message=f"{turn}-{number}")
            answered.add(f"{turn}-{number}")
        listening.gate.clear()
        server.kill()  # calls are in progress, and delivered messages may not be deleted yet
        listening.gate.set()
        server.start()
    wait_until(
        lambda: {call.json["Message"] for call in of_type(listening, "Notification")} == answered,
        "each publication is pushed at least once",
        180,
    )
