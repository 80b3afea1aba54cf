"""The resource interface of boto3, which many applications use in place of the client."""

from __future__ import annotations

from typing import Any

from tests.compat.walk.dead_letters import redrive
from tests.compat.walk.kit import LONG_POLL_SECONDS, Walk, step


def service(walk: Walk) -> Any:
    """Return the SQS resource; its calls are recorded."""
    resource = walk.session.resource("sqs", **walk.settings())
    walk.watched(resource.meta.client)
    return resource


@step
def a_resource_sends_receives_and_deletes(walk: Walk) -> None:
    sqs, name = service(walk), walk.name("resource")
    queue = sqs.create_queue(QueueName=name)
    assert sqs.get_queue_by_name(QueueName=name).url == queue.url
    assert [found.url for found in sqs.queues.filter(QueueNamePrefix=name)] == [queue.url]
    queue.send_message(MessageBody="one", MessageAttributes={"n": {"DataType": "Number", "StringValue": "1"}})
    (message,) = queue.receive_messages(WaitTimeSeconds=LONG_POLL_SECONDS, MessageAttributeNames=["n"])
    assert (message.body, message.message_attributes["n"]["StringValue"]) == ("one", "1")
    message.change_visibility(VisibilityTimeout=0)
    (message,) = queue.receive_messages(WaitTimeSeconds=LONG_POLL_SECONDS)
    message.delete()
    queue.send_messages(Entries=[{"Id": i, "MessageBody": i} for i in ("a", "b")])
    pair = queue.receive_messages(MaxNumberOfMessages=10, WaitTimeSeconds=LONG_POLL_SECONDS)
    queue.delete_messages(Entries=[{"Id": m.body, "ReceiptHandle": m.receipt_handle} for m in pair])
    queue.set_attributes(Attributes={"DelaySeconds": "7"})
    queue.reload()
    assert queue.attributes["DelaySeconds"] == "7"
    queue.purge()
    queue.delete()


@step
def a_resource_knows_the_sources_of_dead_letters(walk: Walk) -> None:
    sqs, dead = service(walk), walk.queue("dead")
    sources = {walk.queue("source", **redrive(walk.arn(dead), 5)) for _ in range(3)}
    assert {source.url for source in sqs.Queue(dead).dead_letter_source_queues.all()} == sources
