"""FIFO queues: order within groups, deduplication, receive attempts and expired handles."""

from __future__ import annotations

import hashlib
from typing import Any

from tests.compat.walk.kit import LONG_POLL_SECONDS, RECEIVE_BATCH, Walk, step


def group_of(message: dict[str, Any]) -> str:
    """Return the group of a message that was received with its system attributes."""
    return str(message["Attributes"]["MessageGroupId"])


@step
def a_group_in_flight_is_blocked_and_others_are_not(walk: Walk) -> None:
    url = walk.queue("groups", fifo=True, ContentBasedDeduplication="true")
    for body in ("a1", "a2", "b1", "a3", "b2"):
        walk.send(url, body, MessageGroupId=body[0])
    first = walk.one(url, **walk.system("All"))
    assert first["Body"] == "a1"
    others = walk.receive(url, RECEIVE_BATCH, **walk.system("All"))
    assert [m["Body"] for m in others] == ["b1", "b2"]
    assert {group_of(m) for m in others} == {"b"}
    assert walk.receive(url, RECEIVE_BATCH) == []
    walk.delete(url, [first])
    rest = walk.collect(url, 2, **walk.system("All"))
    assert [m["Body"] for m in rest] == ["a2", "a3"]
    numbers = [int(m["Attributes"]["SequenceNumber"]) for m in [first, *rest]]
    assert numbers == sorted(set(numbers))
    walk.delete(url, [*others, *rest])
    assert walk.counters(url) == (0, 0, 0)


@step
def order_survives_batches_and_returns(walk: Walk) -> None:
    url = walk.queue("order", fifo=True)
    bodies = [str(i) for i in range(30)]
    for start in range(0, 30, 10):
        entries = [
            {"Id": body, "MessageBody": body, "MessageGroupId": "g", "MessageDeduplicationId": body}
            for body in bodies[start : start + 10]
        ]
        answer = walk.client.send_message_batch(QueueUrl=url, Entries=entries)
        assert [e["Id"] for e in answer["Successful"]] == bodies[start : start + 10]
        assert all(e["SequenceNumber"] for e in answer["Successful"])
    returned = walk.receive(url, RECEIVE_BATCH, WaitTimeSeconds=LONG_POLL_SECONDS)
    assert [m["Body"] for m in returned] == bodies[: len(returned)]
    for message in reversed(returned):
        walk.client.change_message_visibility(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)
    assert [m["Body"] for m in walk.collect(url, 30, delete=True)] == bodies


@step
def twins_are_accepted_and_kept_once(walk: Walk) -> None:
    url = walk.queue("twins", fifo=True, ContentBasedDeduplication="true")
    first = walk.send(url, "one", MessageGroupId="g")[0]
    again = walk.send(url, "one", MessageGroupId="another")[0]
    digest = hashlib.sha256(b"one").hexdigest()
    named = walk.send(url, "other", MessageGroupId="g", MessageDeduplicationId=digest)[0]
    for twin in (again, named):
        assert (twin["MessageId"], twin["SequenceNumber"]) == (first["MessageId"], first["SequenceNumber"])
    (message,) = walk.collect(url, 1, delete=True, **walk.system("All"))
    assert message["Attributes"]["MessageDeduplicationId"] == digest
    walk.send(url, "one", MessageGroupId="g")
    assert walk.counters(url) == (0, 0, 0)
    walk.client.purge_queue(QueueUrl=url)
    walk.send(url, "one", MessageGroupId="g")
    assert walk.counters(url) == (1, 0, 0)


@step
def the_deduplication_scope_may_be_the_group(walk: Walk) -> None:
    url = walk.queue("scope", fifo=True, DeduplicationScope="messageGroup", FifoThroughputLimit="perMessageGroupId")
    for group in ("a", "b", "a"):
        walk.send(url, f"from {group}", MessageGroupId=group, MessageDeduplicationId="same")
    assert {m["Body"] for m in walk.collect(url, 2)} == {"from a", "from b"}


@step
def a_repeated_attempt_receives_the_same_handles(walk: Walk) -> None:
    url = walk.queue("attempt", fifo=True, ContentBasedDeduplication="true")
    for body in ("a", "b", "c"):
        walk.send(url, body, MessageGroupId="g")
    first = walk.receive(url, 2, WaitTimeSeconds=LONG_POLL_SECONDS, ReceiveRequestAttemptId="try-1")
    again = walk.receive(url, 2, WaitTimeSeconds=LONG_POLL_SECONDS, ReceiveRequestAttemptId="try-1")
    assert [m["Body"] for m in first] == ["a", "b"]
    assert [m["ReceiptHandle"] for m in again] == [m["ReceiptHandle"] for m in first]
    assert walk.receive(url, 2, ReceiveRequestAttemptId="try-2") == []


@step
def an_expired_handle_deletes_nothing(walk: Walk) -> None:
    url = walk.queue("expired", fifo=True, ContentBasedDeduplication="true")
    walk.send(url, "x", MessageGroupId="g")
    old = walk.one(url, VisibilityTimeout=1)
    new = walk.one(url)
    with walk.refused("InvalidParameterValue", text="The receipt handle has expired"):
        walk.client.delete_message(QueueUrl=url, ReceiptHandle=old["ReceiptHandle"])
    entries = [
        {"Id": "old", "ReceiptHandle": old["ReceiptHandle"]},
        {"Id": "new", "ReceiptHandle": new["ReceiptHandle"]},
    ]
    answer = walk.client.delete_message_batch(QueueUrl=url, Entries=entries)
    assert [e["Id"] for e in answer["Successful"]] == ["new"]
    assert [(e["Id"], e["Code"]) for e in answer["Failed"]] == [("old", "ReceiptHandleIsInvalid")]


@step
def fifo_queues_refuse_what_they_cannot_keep(walk: Walk) -> None:
    client, url = walk.client, walk.queue("strict", fifo=True)
    with walk.refused("MissingParameter", text="MessageGroupId"):
        walk.send(url, "x", MessageDeduplicationId="1")
    with walk.refused("InvalidParameterValue", text="MessageDeduplicationId"):
        walk.send(url, "x", MessageGroupId="g")
    with walk.refused("InvalidParameterValue", text="DelaySeconds"):
        walk.send(url, "x", MessageGroupId="g", MessageDeduplicationId="1", DelaySeconds=1)
    with walk.refused("InvalidParameterValue", text="MessageGroupId"):
        client.send_message_batch(
            QueueUrl=url, Entries=[{"Id": "a", "MessageBody": "x", "MessageDeduplicationId": "1"}]
        )
    with walk.refused("InvalidParameterValue"):
        client.create_queue(QueueName=walk.name("no-suffix"), Attributes={"FifoQueue": "true"})
    with walk.refused("InvalidAttributeName", text="FifoQueue"):
        client.create_queue(QueueName=walk.name("standard"), Attributes={"FifoQueue": "false"})
    assert walk.counters(url) == (0, 0, 0)
