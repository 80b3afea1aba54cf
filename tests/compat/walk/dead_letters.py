"""Dead letters and the tasks that move them back."""

from __future__ import annotations

import json
from typing import Any

from tests.compat.walk.kit import Walk, step
from tests.servers.waiting import wait_until


def redrive(dead_arn: str, receives_max: int) -> dict[str, Any]:
    """Return the attribute that moves messages received this often to the queue of ``dead_arn``."""
    return {"RedrivePolicy": json.dumps({"deadLetterTargetArn": dead_arn, "maxReceiveCount": receives_max})}


def finished(walk: Walk, source_arn: str) -> dict[str, Any]:
    """Return the newest move task of the queue, once it has ended."""

    def ended() -> dict[str, Any] | None:
        task: dict[str, Any] = walk.client.list_message_move_tasks(SourceArn=source_arn)["Results"][0]
        return None if task["Status"] in ("RUNNING", "CANCELLING") else task

    return wait_until(ended, "the move task has ended")


@step
def a_message_that_fails_too_often_is_a_dead_letter_and_moved_back(walk: Walk) -> None:
    client, dead = walk.client, walk.queue("dead")
    dead_arn = walk.arn(dead)
    url = walk.queue("failing", **redrive(dead_arn, 1))
    sent = walk.send(url, "poison")[0]
    assert walk.one(url, VisibilityTimeout=0)
    assert walk.receive(url, 10) == []
    moved = walk.one(dead, VisibilityTimeout=0, **walk.system("All"))
    assert (moved["MessageId"], moved["Body"]) == (sent["MessageId"], "poison")
    assert moved["Attributes"]["DeadLetterQueueSourceArn"] == walk.arn(url)
    assert not client.list_message_move_tasks(SourceArn=dead_arn).get("Results")
    assert client.start_message_move_task(SourceArn=dead_arn)["TaskHandle"]
    task = finished(walk, dead_arn)
    assert (task["Status"], task["ApproximateNumberOfMessagesMoved"], task["SourceArn"]) == ("COMPLETED", 1, dead_arn)
    assert walk.one(url)["Body"] == "poison"

    more = {walk.queue("failing", **redrive(dead_arn, 1000)) for _ in range(2)} | {url}
    pages = list(
        client.get_paginator("list_dead_letter_source_queues").paginate(QueueUrl=dead, PaginationConfig={"PageSize": 2})
    )
    assert [len(page["queueUrls"]) for page in pages] == [2, 1]
    assert {source for page in pages for source in page["queueUrls"]} == more


@step
def a_slow_move_task_is_seen_and_cancelled(walk: Walk) -> None:
    client, dead, other = walk.client, walk.queue("dead"), walk.queue("other")
    dead_arn, other_arn = walk.arn(dead), walk.arn(other)
    walk.queue("source", **redrive(dead_arn, 1))
    entries = [{"Id": str(i), "MessageBody": str(i)} for i in range(10)]
    for _ in range(3):
        client.send_message_batch(QueueUrl=dead, Entries=entries)
    started = client.start_message_move_task(
        SourceArn=dead_arn, DestinationArn=other_arn, MaxNumberOfMessagesPerSecond=1
    )
    (running,) = client.list_message_move_tasks(SourceArn=dead_arn, MaxResults=10)["Results"]
    assert (running["Status"], running["TaskHandle"]) == ("RUNNING", started["TaskHandle"])
    assert (running["DestinationArn"], running["MaxNumberOfMessagesPerSecond"]) == (other_arn, 1)
    assert walk.one(other)
    moved = client.cancel_message_move_task(TaskHandle=started["TaskHandle"])["ApproximateNumberOfMessagesMoved"]
    assert 1 <= moved < 30
    assert finished(walk, dead_arn)["Status"] == "CANCELLED"
    assert walk.counters(dead)[0] + sum(walk.counters(other)) == 30
