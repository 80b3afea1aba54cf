"""Queues with boto3, by their names or URLs: filled, counted and emptied."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

STATES = ("", "NotVisible", "Delayed")
"""Ends of the names of the counters: visible messages, messages in flight, delayed messages."""


def url_of(client: Any, queue: str) -> str:
    return queue if "/" in queue else str(client.get_queue_url(QueueName=queue)["QueueUrl"])


def attribute(client: Any, queue: str, name: str) -> str:
    answer = client.get_queue_attributes(QueueUrl=url_of(client, queue), AttributeNames=[name])
    return str(answer["Attributes"][name])


def count(client: Any, queue: str, *states: str) -> int:
    """Number of messages in these states, by default of visible ones."""
    return sum(int(attribute(client, queue, f"ApproximateNumberOfMessages{state}")) for state in states or ("",))


def redrive(client: Any, dead: str, receives_max: int = 1) -> str:
    """The RedrivePolicy of queues whose dead letters go to ``dead``."""
    return json.dumps({"deadLetterTargetArn": attribute(client, dead, "QueueArn"), "maxReceiveCount": receives_max})


def sending_policy(arn: str, *principals: str) -> str:
    """A Policy that allows these principals to send to the queue."""
    statement = {"Sid": "one", "Effect": "Allow", "Principal": {"AWS": principals}, "Action": "sqs:SendMessage"}
    return json.dumps({"Version": "2012-10-17", "Statement": [{**statement, "Resource": arn}]})


def send_all(client: Any, queue: str, entries: Sequence[Mapping[str, Any]]) -> None:
    """Send messages in batches of ten; ids are assigned."""
    url = url_of(client, queue)
    for first in range(0, len(entries), 10):
        batch = [{"Id": str(place), **entry} for place, entry in enumerate(entries[first : first + 10])]
        answer = client.send_message_batch(QueueUrl=url, Entries=batch)
        assert not answer.get("Failed"), answer


def fifo_entries(total: int, groups: int) -> list[dict[str, str]]:
    """Entries of numbered messages, which take turns over the groups."""
    return [
        {"MessageBody": f"{place}", "MessageGroupId": f"g{place % groups}", "MessageDeduplicationId": f"d{place}"}
        for place in range(total)
    ]


def drained(client: Any, queue: str) -> list[dict[str, Any]]:
    """Receive and delete all messages available now, with all of their attributes, in the order of their delivery."""
    url = url_of(client, queue)
    found: list[dict[str, Any]] = []
    asked: dict[str, Any] = {"MaxNumberOfMessages": 10, "AttributeNames": ["All"], "MessageAttributeNames": ["All"]}
    while messages := client.receive_message(QueueUrl=url, VisibilityTimeout=600, **asked).get("Messages"):
        found += messages
        entries = [{"Id": str(place), "ReceiptHandle": one["ReceiptHandle"]} for place, one in enumerate(messages)]
        client.delete_message_batch(QueueUrl=url, Entries=entries)
    return found


def bodies(client: Any, queue: str) -> list[str]:
    """Bodies of all messages available now, which are deleted."""
    return [message["Body"] for message in drained(client, queue)]


def essence(message: Mapping[str, Any], *, fifo: bool = False) -> tuple[Any, ...]:
    """The parts of a message that must not change when it is moved."""
    names = ("MessageGroupId", "AWSTraceHeader", *(("MessageDeduplicationId",) if fifo else ()))
    attributes = {
        name: (value["DataType"], value.get("StringValue"), value.get("BinaryValue"))
        for name, value in message.get("MessageAttributes", {}).items()
    }
    return (message["Body"], sorted(attributes.items()), *(message["Attributes"].get(name) for name in names))
