"""Messages: content, batches, FIFO queues, and what takes real time: delays, visibility timeouts and long polls."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.compat.walk.kit import Walk, step, text_md5

TRACE = "Root=1-5759e988-bd862e3fe1be46a994272793"


@step
def a_message_comes_back_as_it_was_sent(walk: Walk) -> None:
    client, url = walk.client, walk.queue("round-trip")
    body = "<&amp;> \"quoted\" 'single'\r\nlone\rreturn\ttab % + = grüße 漢字 🐘"
    attributes: dict[str, dict[str, Any]] = {
        "text": {"DataType": "String", "StringValue": "a <b> & c"},
        "number.one": {"DataType": "Number.int", "StringValue": "-12.50"},
        "bytes": {"DataType": "Binary.png", "BinaryValue": bytes(range(256))},
    }
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": TRACE}}
    sent = client.send_message(
        QueueUrl=url, MessageBody=body, MessageAttributes=attributes, MessageSystemAttributes=trace
    )
    assert sent["MD5OfMessageBody"] == text_md5(body)
    assert len(sent["MD5OfMessageSystemAttributes"]) == 32

    message = walk.one(url, MessageAttributeNames=["All"], **walk.system("All"))
    assert (message["MessageId"], message["Body"], message["MD5OfBody"]) == (sent["MessageId"], body, text_md5(body))
    assert message["MessageAttributes"] == attributes
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert (message["Attributes"]["AWSTraceHeader"], message["Attributes"]["ApproximateReceiveCount"]) == (TRACE, "1")
    client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert walk.counters(url) == (0, 0, 0)
    plain = walk.send(url, "é" * (512 * 1024))[0]
    assert not {"MD5OfMessageAttributes", "MD5OfMessageSystemAttributes", "SequenceNumber"} & set(plain)
    largest = walk.one(url)
    assert largest["Body"] == "é" * (512 * 1024)
    assert not {"Attributes", "MessageAttributes", "MD5OfMessageAttributes"} & set(largest)


@step
def a_batch_may_fail_in_part(walk: Walk) -> None:
    client, url = walk.client, walk.queue("batch")
    attributes = {"n": {"DataType": "Number", "StringValue": "1"}}
    answer = client.send_message_batch(
        QueueUrl=url,
        Entries=[
            {"Id": "good", "MessageBody": "good", "MessageAttributes": attributes},
            {"Id": "late", "MessageBody": "late", "DelaySeconds": 901},
            {"Id": "also-good", "MessageBody": "also good"},
        ],
    )
    assert [e["Id"] for e in answer["Successful"]] == ["good", "also-good"]
    assert answer["Successful"][0]["MD5OfMessageBody"] == text_md5("good")
    assert len(answer["Successful"][0]["MD5OfMessageAttributes"]) == 32
    (failed,) = answer["Failed"]
    assert (failed["Id"], failed["Code"], failed["SenderFault"]) == ("late", "InvalidParameterValue", True)

    messages = walk.collect(url, 2)
    handles = [{"Id": m["Body"].replace(" ", "_"), "ReceiptHandle": m["ReceiptHandle"]} for m in messages]
    bad = {"Id": "bad", "ReceiptHandle": "garbage"}
    hidden = client.change_message_visibility_batch(
        QueueUrl=url, Entries=[{**entry, "VisibilityTimeout": 60} for entry in [*handles, bad]]
    )
    deleted = client.delete_message_batch(QueueUrl=url, Entries=[bad, *handles])
    for changed in (hidden, deleted):
        assert {e["Id"] for e in changed["Successful"]} == {"good", "also_good"}
        assert [(e["Id"], e["Code"], e["SenderFault"]) for e in changed["Failed"]] == [
            ("bad", "ReceiptHandleIsInvalid", True)
        ]
    assert walk.counters(url) == (0, 0, 0)


@step
def messages_come_when_they_are_due(walk: Walk) -> None:
    client, url = walk.client, walk.queue("delay", DelaySeconds="900")
    started_at = time.monotonic()
    walk.send(url, "due", DelaySeconds=1)
    walk.send(url, "much later")
    assert walk.counters(url) == (0, 0, 2)
    first = walk.one(url)
    assert first["Body"] == "due"
    assert time.monotonic() - started_at >= 0.9
    client.change_message_visibility(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=0)
    assert walk.one(url, VisibilityTimeout=1)["MessageId"] == first["MessageId"]
    third = walk.one(url, **walk.system("All"))  # a long poll lasts until the second one's delay has ended
    assert third["Attributes"]["ApproximateReceiveCount"] == "3"


@step
def a_long_poll_answers_at_the_first_message(walk: Walk) -> None:
    url = walk.queue("poll", ReceiveMessageWaitTimeSeconds="1")
    with ThreadPoolExecutor(1) as pool:
        started_at = time.monotonic()
        polled = pool.submit(walk.receive, url, 10, WaitTimeSeconds=20)
        walk.send(url, "ping")
        assert [m["Body"] for m in polled.result(30)] == ["ping"]
    assert time.monotonic() - started_at < 10
    for options in ({"WaitTimeSeconds": 1}, {}):
        started_at = time.monotonic()
        assert walk.receive(url, **options) == []
        assert 0.9 <= time.monotonic() - started_at < 10


@step
def a_fifo_queue_keeps_the_order_of_its_groups(walk: Walk) -> None:
    url = walk.queue("groups", fifo=True, ContentBasedDeduplication="true")
    sent = [walk.send(url, body, MessageGroupId=body[0])[0] for body in ("a1", "a2", "b1", "a3", "b2")]
    again = walk.send(url, "a1", MessageGroupId="another")[0]
    assert (again["MessageId"], again["SequenceNumber"]) == (sent[0]["MessageId"], sent[0]["SequenceNumber"])
    attempt: dict[str, Any] = {"WaitTimeSeconds": 20, "ReceiveRequestAttemptId": "try-1", **walk.system("All")}
    (first,), (repeated,) = walk.receive(url, **attempt), walk.receive(url, **attempt)
    assert (first["Body"], first["ReceiptHandle"]) == ("a1", repeated["ReceiptHandle"])
    others = walk.receive(url, 10, **walk.system("All"))
    assert [(m["Body"], m["Attributes"]["MessageGroupId"]) for m in others] == [("b1", "b"), ("b2", "b")]
    assert walk.receive(url, 10) == []
    walk.delete(url, [first])
    rest = walk.collect(url, 2, **walk.system("All"))
    assert [m["Body"] for m in rest] == ["a2", "a3"]
    numbers = [int(m["Attributes"]["SequenceNumber"]) for m in [first, *rest]]
    assert numbers == sorted(set(numbers))
