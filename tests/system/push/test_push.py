"""Push of messages with real processes, which are killed while they push."""

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.frontend.hooks import Hook, hook
from tests.holdfast.command import holdfast
from tests.servers.server import ACCOUNT, Server
from tests.servers.several import Several
from tests.servers.waiting import wait_until

SETTINGS = {"WEBHOOK_NETWORKS": "127.0.0.0/8"}


def bodies(listening: Hook) -> list[str]:
    return [call.body.decode() for call in listening.calls]


def wait_for_calls(listening: Hook, count: int) -> None:
    wait_until(lambda: len(listening.calls) >= count, f"{count} messages are pushed")


def test_messages_are_pushed_and_dead_letters_kept(tmp_path: Path) -> None:
    with hook() as listening, Server(tmp_path, SETTINGS) as server:
        client = server.client()
        dead = client.create_queue(QueueName="dead")["QueueUrl"]
        redrive = {"deadLetterTargetArn": f"arn:aws:sqs:us-east-1:{ACCOUNT}:dead", "maxReceiveCount": 2}
        url = client.create_queue(
            QueueName="orders",
            Attributes={
                "HoldfastPushUrl": listening.url,
                "HoldfastPushMinimumBackoffSeconds": "1",
                "RedrivePolicy": json.dumps(redrive),
            },
        )["QueueUrl"]
        sent = client.send_message(
            QueueUrl=url,
            MessageBody="first",
            MessageAttributes={"kind": {"DataType": "String", "StringValue": "ü"}},
        )
        wait_until(lambda: bodies(listening) == ["first"], "the message is pushed")
        call = listening.calls[0]
        made = holdfast(server, "queue", "push-secret", "orders")
        assert made.code == 0, made.err
        assert call.is_signed_by(made.out.strip())
        assert call.headers["Holdfast-Message-Id"] == call.headers["Idempotency-Key"] == sent["MessageId"]
        assert json.loads(call.headers["Holdfast-Message-Attributes"]) == {"kind": {"type": "String", "value": "ü"}}

        def is_empty() -> bool:
            names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
            counted = client.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
            return set(counted.values()) == {"0"}

        wait_until(is_empty, "the message is deleted")
        listening.statuses += [500, 500]
        client.send_message(QueueUrl=url, MessageBody="poison")
        (message,) = wait_until(
            lambda: client.receive_message(QueueUrl=dead, WaitTimeSeconds=1).get("Messages"), "it is a dead letter"
        )
        assert message["Body"] == "poison"
        assert bodies(listening) == ["first", "poison", "poison"]
        assert "hush" not in server.log_text(), "the log has no secret parts of URLs"


@pytest.mark.long
def test_kill_during_pushes_loses_nothing(tmp_path: Path) -> None:
    sent = {f"message {number}" for number in range(200)}
    with hook() as listening, Server(tmp_path, SETTINGS) as server:
        client = server.client()
        url = client.create_queue(
            QueueName="orders",
            Attributes={
                "HoldfastPushConcurrency": "2",
                "HoldfastPushTimeoutSeconds": "1",
                "HoldfastPushMaximumBackoffSeconds": "10",
                "VisibilityTimeout": "0",
            },
        )["QueueUrl"]
        for number in range(200):
            client.send_message(QueueUrl=url, MessageBody=f"message {number}")
        client.set_queue_attributes(QueueUrl=url, Attributes={"HoldfastPushUrl": listening.url})
        for _ in range(3):
            wait_for_calls(listening, len(listening.calls) + 5)
            listening.gate.clear()
            wait_for_calls(listening, len(listening.calls) + 1)
            server.kill()  # a call is in progress, and delivered messages may not be deleted yet
            listening.gate.set()
            server.start()
        wait_until(lambda: set(bodies(listening)) == sent, "each message is pushed at least once", 120)


@pytest.mark.long
def test_several_frontends_push_once_and_replace_each_other(tmp_path: Path) -> None:
    with hook() as listening, Several(tmp_path, SETTINGS, frontends=3) as server:
        client = server.client()
        urls = [
            client.create_queue(
                QueueName=f"q{number}",
                Attributes={
                    "HoldfastPushUrl": listening.url,
                    "HoldfastPushTimeoutSeconds": "1",
                    "VisibilityTimeout": "0",
                },
            )["QueueUrl"]
            for number in range(6)
        ]

        def send(first: int) -> set[str]:
            sent = set()
            for number in range(first, first + 20):
                for url in urls:
                    body = f"{url.rpartition('/')[2]} {number}"
                    client.send_message(QueueUrl=url, MessageBody=body)
                    sent.add(body)
            return sent

        every = send(0)
        wait_until(lambda: set(bodies(listening)) == every, "all are pushed")
        wait_until(lambda: len(listening.calls) >= len(every), "all are recorded")
        assert max(Counter(bodies(listening)).values()) == 1, "each is pushed once"
        killed = server.kill_child("frontend-1")
        server.wait_again("frontend-1", killed)
        client = server.client()
        every |= send(20)
        wait_until(lambda: set(bodies(listening)) == every, "all are pushed after a kill", 120)


@pytest.mark.long
def test_dead_endpoints_of_a_tenant_delay_no_other(tmp_path: Path) -> None:
    with hook() as dead, hook() as listening, Server(tmp_path, SETTINGS) as server:
        dead.gate.clear()
        client = server.client()
        for number in range(5):
            url = client.create_queue(
                QueueName=f"dead{number}",
                Attributes={"HoldfastPushUrl": dead.url, "HoldfastPushConcurrency": "1000"},
            )["QueueUrl"]
            for body in range(40):
                client.send_message(QueueUrl=url, MessageBody=str(body))
        wait_until(lambda: len(dead.calls) >= 20, "the dead endpoints hold calls")
        url = client.create_queue(QueueName="live", Attributes={"HoldfastPushUrl": listening.url})["QueueUrl"]
        for number in range(50):
            client.send_message(QueueUrl=url, MessageBody=str(number))
        wait_until(lambda: len(set(bodies(listening))) == 50, "the other queue is pushed")
        assert not dead.gate.is_set(), "the calls of the dead endpoints are not answered"
