"""Dead letters and the tasks that move them back."""

from __future__ import annotations

import json
from typing import Any

from tests.compat.walk.kit import Walk, step
from tests.servers.waiting import wait_until


def redrive(dead_arn: str, most: int) -> dict[str, Any]:
    """Return the attribute that moves messages received ``most`` times to the queue of ``dead_arn``."""
    return {"RedrivePolicy": json.dumps({"deadLetterTargetArn": dead_arn, "maxReceiveCount": most})}


def fail(walk: Walk, url: str, receives: int) -> None:
    """Receive each message ``receives`` times without deleting, then once more, which moves it."""
    for _ in range(receives):
        assert walk.one(url, VisibilityTimeout=0)
    assert walk.receive(url, 10) == []


def finished(walk: Walk, source_arn: str) -> dict[str, Any]:
    """Return the newest move task of the queue, once it has ended."""

    def ended() -> dict[str, Any] | None:
        task: dict[str, Any] = walk.client.list_message_move_tasks(SourceArn=source_arn)["Results"][0]
        return None if task["Status"] in ("RUNNING", "CANCELLING") else task

    return wait_until(ended, "the move task has ended")


@step
def a_message_that_fails_too_often_moves_to_the_dead_letters(walk: Walk) -> None:
    client, dead = walk.client, walk.queue("dead")
    url = walk.queue("failing", **redrive(walk.arn(dead), 2))
    attributes = {"a": {"DataType": "String", "StringValue": "kept"}}
    sent = walk.send(url, "poison", MessageAttributes=attributes)[0]
    original = walk.one(url, VisibilityTimeout=0, **walk.system("All"))
    fail(walk, url, receives=1)
    moved = walk.one(dead, MessageAttributeNames=["All"], **walk.system("All"))
    assert (moved["MessageId"], moved["Body"]) == (sent["MessageId"], "poison")
    assert moved["MessageAttributes"] == attributes
    assert moved["Attributes"]["DeadLetterQueueSourceArn"] == walk.arn(url)
    assert moved["Attributes"]["SenderId"] == original["Attributes"]["SenderId"]
    assert moved["Attributes"]["SentTimestamp"] == original["Attributes"]["SentTimestamp"]
    assert walk.counters(url) == (0, 0, 0)

    more = {walk.queue("failing", **redrive(walk.arn(dead), 1000)) for _ in range(2)} | {url}
    pages = list(
        client.get_paginator("list_dead_letter_source_queues").paginate(QueueUrl=dead, PaginationConfig={"PageSize": 2})
    )
    assert [len(page["queueUrls"]) for page in pages] == [2, 1]
    assert {source for page in pages for source in page["queueUrls"]} == more
    assert not client.list_dead_letter_source_queues(QueueUrl=url).get("queueUrls")


@step
def a_fifo_queue_keeps_the_order_of_its_dead_letters(walk: Walk) -> None:
    dead = walk.queue("dead", fifo=True)
    url = walk.queue("failing", fifo=True, ContentBasedDeduplication="true", **redrive(walk.arn(dead), 1))
    for body in ("a1", "a2"):
        walk.send(url, body, MessageGroupId="a")
    held = walk.collect(url, 2)
    for message in held:
        walk.client.change_message_visibility(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)
    assert walk.receive(url, 10) == []
    assert [m["Body"] for m in walk.collect(dead, 2)] == ["a1", "a2"]


@step
def redrive_policies_name_a_queue_that_allows_it(walk: Walk) -> None:
    client, url = walk.client, walk.queue("careful")
    arn = walk.arn(url)
    with walk.refused("InvalidParameterValue", text="RedrivePolicy"):
        client.set_queue_attributes(QueueUrl=url, Attributes=redrive(f"{arn}-never-made", 3))
    with walk.refused("InvalidParameterValue", text="RedrivePolicy"):
        client.set_queue_attributes(QueueUrl=url, Attributes=redrive(arn, 1001))
    denying = walk.queue("denying", RedriveAllowPolicy=json.dumps({"redrivePermission": "denyAll"}))
    with walk.refused("InvalidParameterValue", text="RedrivePolicy"):
        client.set_queue_attributes(QueueUrl=url, Attributes=redrive(walk.arn(denying), 3))
    assert "RedrivePolicy" not in walk.attributes(url)

    dead = walk.queue("allowing")
    client.set_queue_attributes(QueueUrl=url, Attributes=redrive(walk.arn(dead), 3))
    wanted = json.dumps({"deadLetterTargetArn": walk.arn(dead), "maxReceiveCount": 3}, separators=(",", ":"))
    assert walk.attributes(url, "RedrivePolicy")["RedrivePolicy"] == wanted
    client.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": ""})
    assert "RedrivePolicy" not in walk.attributes(url)


@step
def dead_letters_are_moved_back(walk: Walk) -> None:
    client, dead = walk.client, walk.queue("dead")
    dead_arn = walk.arn(dead)
    urls = [walk.queue("source", **redrive(dead_arn, 1)) for _ in range(2)]
    for url in urls:
        walk.send(url, f"of {url}")
        fail(walk, url, receives=1)
    wait_until(lambda: walk.counters(dead) == (2, 0, 0), "both messages are among the dead letters")
    handle = client.start_message_move_task(SourceArn=dead_arn)["TaskHandle"]
    assert handle
    task = finished(walk, dead_arn)
    assert (task["Status"], task["ApproximateNumberOfMessagesMoved"], task["SourceArn"]) == ("COMPLETED", 2, dead_arn)
    assert "TaskHandle" not in task
    for url in urls:
        back = walk.one(url, **walk.system("All"))
        assert back["Body"] == f"of {url}"
        assert back["Attributes"]["ApproximateReceiveCount"] == "1"
    assert walk.counters(dead) == (0, 0, 0)


@step
def a_slow_move_task_is_seen_and_cancelled(walk: Walk) -> None:
    client, dead, other = walk.client, walk.queue("dead"), walk.queue("other")
    dead_arn, other_arn = walk.arn(dead), walk.arn(other)
    walk.queue("source", **redrive(dead_arn, 1))
    for start in range(0, 30, 10):
        entries = [{"Id": str(i), "MessageBody": str(i)} for i in range(start, start + 10)]
        client.send_message_batch(QueueUrl=dead, Entries=entries)
    assert not client.list_message_move_tasks(SourceArn=dead_arn).get("Results")
    started = client.start_message_move_task(
        SourceArn=dead_arn, DestinationArn=other_arn, MaxNumberOfMessagesPerSecond=1
    )
    (running,) = client.list_message_move_tasks(SourceArn=dead_arn, MaxResults=10)["Results"]
    assert (running["Status"], running["TaskHandle"]) == ("RUNNING", started["TaskHandle"])
    assert (running["DestinationArn"], running["MaxNumberOfMessagesPerSecond"]) == (other_arn, 1)
    with walk.refused("InvalidParameterValue"):
        client.start_message_move_task(SourceArn=dead_arn)
    assert walk.one(other)
    moved = client.cancel_message_move_task(TaskHandle=started["TaskHandle"])["ApproximateNumberOfMessagesMoved"]
    assert 1 <= moved < 30
    assert finished(walk, dead_arn)["Status"] == "CANCELLED"
    assert walk.counters(dead)[0] + sum(walk.counters(other)) == 30


@step
def move_tasks_of_nothing_are_refused(walk: Walk) -> None:
    client, url = walk.client, walk.queue("no-dead-letters")
    missing, shape = "ResourceNotFoundException", "ResourceNotFoundException"
    with walk.refused("InvalidParameterValue"):
        client.start_message_move_task(SourceArn=walk.arn(url))
    with walk.refused(missing, status=404, shape=shape):
        client.start_message_move_task(SourceArn=walk.arn(url) + "-never-made")
    with walk.refused("InvalidParameterValue"):
        client.cancel_message_move_task(TaskHandle="garbage")
    with walk.refused(missing, status=404, shape=shape):
        client.list_message_move_tasks(SourceArn=walk.arn(url) + "-never-made")
