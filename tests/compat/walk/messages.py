"""Messages of standard queues: content, batches, visibility, delays and long polls."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.compat.walk.kit import Walk, attributes_md5, step, text_md5

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
    before_ms = time.time() * 1000
    sent = client.send_message(
        QueueUrl=url, MessageBody=body, MessageAttributes=attributes, MessageSystemAttributes=trace
    )
    assert sent["MD5OfMessageBody"] == text_md5(body)
    assert sent["MD5OfMessageAttributes"] == attributes_md5(attributes)
    assert sent["MD5OfMessageSystemAttributes"] == attributes_md5(trace)

    message = walk.one(url, MessageAttributeNames=["All"], **walk.system("All"))
    assert message["MessageId"] == sent["MessageId"]
    assert message["Body"] == body
    assert message["MD5OfBody"] == text_md5(body)
    assert message["MessageAttributes"] == attributes
    assert message["MD5OfMessageAttributes"] == attributes_md5(attributes)
    system = message["Attributes"]
    assert system["AWSTraceHeader"] == TRACE
    assert system["ApproximateReceiveCount"] == "1"
    assert system["SenderId"]
    assert before_ms - 1000 <= int(system["SentTimestamp"]) <= int(system["ApproximateFirstReceiveTimestamp"])
    client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert walk.counters(url) == (0, 0, 0)


@step
def only_the_attributes_asked_for_come_back(walk: Walk) -> None:
    url = walk.queue("filter")
    attributes = {n: {"DataType": "String", "StringValue": n} for n in ("a.one", "a.two", "b")}
    sent = walk.send(url, "x", MessageAttributes=attributes)[0]
    assert sent["MD5OfMessageAttributes"] == attributes_md5(attributes)

    some = walk.one(url, VisibilityTimeout=0, MessageAttributeNames=["a.*"], **walk.system("SentTimestamp"))
    subset = {n: attributes[n] for n in ("a.one", "a.two")}
    assert some["MessageAttributes"] == subset
    assert some["MD5OfMessageAttributes"] == attributes_md5(subset)
    assert set(some["Attributes"]) == {"SentTimestamp"}

    none = walk.one(url, VisibilityTimeout=0)
    assert not {"Attributes", "MessageAttributes", "MD5OfMessageAttributes"} & set(none)
    assert "Messages" not in walk.client.receive_message(QueueUrl=walk.queue("empty"))


@step
def a_message_without_attributes_has_no_attribute_digest(walk: Walk) -> None:
    sent = walk.send(walk.queue("plain"), "x")[0]
    assert not {"MD5OfMessageAttributes", "MD5OfMessageSystemAttributes", "SequenceNumber"} & set(sent)


@step
def a_message_of_one_mebibyte_is_the_largest(walk: Walk) -> None:
    url, largest = walk.queue("large"), "é" * (512 * 1024)
    sent = walk.send(url, largest)[0]
    assert sent["MD5OfMessageBody"] == text_md5(largest)
    message = walk.one(url)
    assert message["Body"] == largest
    walk.delete(url, [message])
    with walk.refused("InvalidParameterValue", text="shorter than 1048576 bytes"):
        walk.send(url, largest + "x")
    entries = [{"Id": str(i), "MessageBody": "x" * 104_857} for i in range(10)]
    assert len(walk.client.send_message_batch(QueueUrl=url, Entries=entries)["Successful"]) == 10
    entries[0]["MessageBody"] += "x" * 7
    code = "AWS.SimpleQueueService.BatchRequestTooLong"
    with walk.refused(code, shape="BatchRequestTooLong", text="1048577"):
        walk.client.send_message_batch(QueueUrl=url, Entries=entries)
    assert len(walk.collect(url, 10, delete=True)) == 10


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
    assert answer["Successful"][0]["MD5OfMessageAttributes"] == attributes_md5(attributes)
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
def visibility_is_changed_both_ways(walk: Walk) -> None:
    client, url = walk.client, walk.queue("visibility", VisibilityTimeout="600")
    walk.send(url, "x")
    first = walk.one(url, **walk.system("All"))
    assert walk.receive(url) == []
    assert walk.counters(url) == (0, 1, 0)
    client.change_message_visibility(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=0)
    second = walk.one(url, VisibilityTimeout=1, **walk.system("All"))
    assert second["MessageId"] == first["MessageId"]
    assert second["Attributes"]["ApproximateReceiveCount"] == "2"
    for stable in ("SentTimestamp", "SenderId", "ApproximateFirstReceiveTimestamp"):
        assert second["Attributes"][stable] == first["Attributes"][stable]

    third = walk.one(url, **walk.system("All"))  # a long poll lasts until the second one's delay has ended
    assert third["Attributes"]["ApproximateReceiveCount"] == "3"
    with walk.refused("InvalidParameterValue", text="VisibilityTimeout"):
        client.change_message_visibility(QueueUrl=url, ReceiptHandle=third["ReceiptHandle"], VisibilityTimeout=43201)
    walk.delete(url, [third])
    walk.delete(url, [third])
    with walk.refused("InvalidParameterValue", text="not available for visibility timeout change"):
        client.change_message_visibility(QueueUrl=url, ReceiptHandle=third["ReceiptHandle"], VisibilityTimeout=5)


@step
def delayed_messages_come_when_they_are_due(walk: Walk) -> None:
    url = walk.queue("delay", DelaySeconds="900")
    started_at = time.monotonic()
    walk.send(url, "due", DelaySeconds=1)
    walk.send(url, "much later")
    assert walk.counters(url) == (0, 0, 2)
    assert walk.one(url)["Body"] == "due"
    assert time.monotonic() - started_at >= 0.9
    with walk.refused("InvalidParameterValue", text="DelaySeconds"):
        walk.send(url, "x", DelaySeconds=901)


@step
def delays_beyond_fifteen_minutes_are_holdfasts_own(walk: Walk) -> None:
    url = walk.queue("far", HoldfastMaximumDelaySeconds="1209600")
    assert walk.attributes(url, "HoldfastMaximumDelaySeconds") == {"HoldfastMaximumDelaySeconds": "1209600"}
    walk.send(url, "in two weeks", DelaySeconds=1209600)
    assert walk.counters(url) == (0, 0, 1)
    with walk.refused("InvalidParameterValue", text="DelaySeconds"):
        walk.send(url, "x", DelaySeconds=1209601)
    assert "HoldfastMaximumDelaySeconds" not in walk.attributes(walk.queue("near"))


@step
def a_long_poll_answers_at_the_first_message(walk: Walk) -> None:
    url = walk.queue("poll")
    with ThreadPoolExecutor(1) as pool:
        started_at = time.monotonic()
        polled = pool.submit(walk.receive, url, 10, WaitTimeSeconds=20)
        walk.send(url, "ping")
        assert [m["Body"] for m in polled.result(30)] == ["ping"]
    assert time.monotonic() - started_at < 10

    started_at = time.monotonic()
    assert walk.receive(url, WaitTimeSeconds=1) == []
    assert 0.9 <= time.monotonic() - started_at < 10
    waiting = walk.queue("poll", ReceiveMessageWaitTimeSeconds="1")
    started_at = time.monotonic()
    assert walk.receive(waiting) == []
    assert 0.9 <= time.monotonic() - started_at < 10


@step
def handles_of_nothing_and_of_others_are_refused(walk: Walk) -> None:
    client, url, other = walk.client, walk.queue("handle"), walk.queue("other")
    walk.send(other, "x")
    foreign = walk.one(other)["ReceiptHandle"]
    for handle in ("garbage", foreign):
        with walk.refused("ReceiptHandleIsInvalid", status=404, shape="ReceiptHandleIsInvalid"):
            client.delete_message(QueueUrl=url, ReceiptHandle=handle)
        with walk.refused("ReceiptHandleIsInvalid", status=404, shape="ReceiptHandleIsInvalid"):
            client.change_message_visibility(QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=1)
    assert walk.counters(other) == (0, 1, 0)


@step
def fair_queues_echo_the_message_group(walk: Walk) -> None:
    url = walk.queue("fair")
    for tenant in ("one", "two"):
        walk.send(url, f"for {tenant}", MessageGroupId=tenant)
    found = {m["Body"]: m["Attributes"] for m in walk.collect(url, 2, **walk.system("All"))}
    assert {body: system["MessageGroupId"] for body, system in found.items()} == {"for one": "one", "for two": "two"}
    assert not any("SequenceNumber" in system for system in found.values())
