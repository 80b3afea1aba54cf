"""Calls that fail with SQS's own errors: missing queues, bad parameters, bad batches, bad signatures."""

from __future__ import annotations

from typing import Any

import botocore
from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.httpsession import URLLib3Session

from tests.compat.walk.kit import Walk, step, text_md5
from tests.compat.walk.queues import NO_QUEUE

ENTRY = {"Id": "a", "ReceiptHandle": "x"}
ON_A_QUEUE: dict[str, dict[str, Any]] = {
    "add_permission": {"Label": "a", "AWSAccountIds": ["111122223333"], "Actions": ["*"]},
    "change_message_visibility": {"ReceiptHandle": "x", "VisibilityTimeout": 1},
    "change_message_visibility_batch": {"Entries": [{**ENTRY, "VisibilityTimeout": 1}]},
    "delete_message": {"ReceiptHandle": "x"},
    "delete_message_batch": {"Entries": [ENTRY]},
    "delete_queue": {},
    "get_queue_attributes": {},
    "list_dead_letter_source_queues": {},
    "list_queue_tags": {},
    "purge_queue": {},
    "receive_message": {"WaitTimeSeconds": 20},
    "remove_permission": {"Label": "a"},
    "send_message": {"MessageBody": "x"},
    "send_message_batch": {"Entries": [{"Id": "a", "MessageBody": "x"}]},
    "set_queue_attributes": {"Attributes": {"DelaySeconds": "1"}},
    "tag_queue": {"Tags": {"a": "b"}},
    "untag_queue": {"TagKeys": ["a"]},
}
"""Every action that takes a QueueUrl, with the other parameters of a valid call."""


@step
def no_action_finds_a_queue_that_is_not_there(walk: Walk) -> None:
    url = f"{walk.target.endpoint}/{walk.target.account}/{walk.name('missing')}"
    for action, parameters in ON_A_QUEUE.items():
        with walk.refused(NO_QUEUE, shape="QueueDoesNotExist", text="The specified queue does not exist"):
            getattr(walk.client, action)(QueueUrl=url, **parameters)
    with walk.refused(NO_QUEUE, shape="QueueDoesNotExist"):
        walk.client.get_queue_url(QueueName=walk.name("missing"))


@step
def parameters_out_of_range_are_named(walk: Walk) -> None:
    client, url = walk.client, walk.queue("range")
    text = "Value 11 for parameter MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, if provided."
    with walk.refused("InvalidParameterValue", text=text):
        walk.receive(url, 11)
    with walk.refused("InvalidParameterValue", text="WaitTimeSeconds"):
        walk.receive(url, WaitTimeSeconds=21)
    with walk.refused("MissingParameter", text="MessageBody"):
        client.send_message(QueueUrl=url, MessageBody="")
    with walk.refused("InvalidMessageContents", shape="InvalidMessageContents"):
        client.send_message(QueueUrl=url, MessageBody="\ufffe")
    empty = {"note": {"DataType": "String", "StringValue": ""}}
    with walk.refused("InvalidParameterValue", text="note"):
        client.send_message(QueueUrl=url, MessageBody="x", MessageAttributes=empty)
    with walk.refused("InvalidParameterValue"):
        client.create_queue(QueueName="not a name")
    assert walk.counters(url) == (0, 0, 0)


@step
def batches_that_make_no_sense_fail_whole(walk: Walk) -> None:
    client, url = walk.client, walk.queue("batches")

    def send(*ids: str) -> None:
        client.send_message_batch(QueueUrl=url, Entries=[{"Id": i, "MessageBody": "x"} for i in ids])

    prefix = "AWS.SimpleQueueService."
    with walk.refused(f"{prefix}EmptyBatchRequest", shape="EmptyBatchRequest"):
        send()
    text = "Maximum number of entries per request are 10. You have sent 11."
    with walk.refused(f"{prefix}TooManyEntriesInBatchRequest", shape="TooManyEntriesInBatchRequest", text=text):
        send(*map(str, range(11)))
    with walk.refused(f"{prefix}BatchEntryIdsNotDistinct", shape="BatchEntryIdsNotDistinct", text="Id twice repeated."):
        send("once", "twice", "twice")
    with walk.refused(f"{prefix}InvalidBatchEntryId", shape="InvalidBatchEntryId"):
        send("no spaces")
    assert walk.counters(url) == (0, 0, 0)


@step
def only_good_signatures_get_in(walk: Walk) -> None:
    known, secret = walk.target.access_key_id, walk.target.secret_access_key
    wrong = walk.new_client(aws_access_key_id=known, aws_secret_access_key=secret[::-1])
    with walk.refused("SignatureDoesNotMatch", status=403):
        wrong.list_queues()
    stranger = walk.new_client(aws_access_key_id="AKIANOBODYKNOWSTHIS1", aws_secret_access_key=secret)
    with walk.refused("InvalidClientTokenId", status=403):
        stranger.list_queues()
    unsigned = walk.new_client(config=Config(signature_version=botocore.UNSIGNED))
    with walk.refused("MissingAuthenticationToken", status=403):
        unsigned.list_queues()
    elsewhere = walk.new_client(region_name="eu-west-3")
    with walk.refused("SignatureDoesNotMatch", status=403):
        elsewhere.list_queues()


def presigned(walk: Walk, action: str, url: str, seconds: int = 60, **parameters: str) -> str:
    """Return a presigned URL for ``action``.  A client of the JSON protocol cannot make one for GET."""
    if walk.protocol == "query":
        method = "".join(f"_{c.lower()}" if c.isupper() else c for c in action).lstrip("_")
        arguments = {"QueueUrl": url, **parameters}
        return str(walk.client.generate_presigned_url(method, arguments, ExpiresIn=seconds, HttpMethod="GET"))
    request = AWSRequest("GET", url, params={"Action": action, "Version": "2012-11-05", **parameters})
    credentials = walk.session.get_credentials().get_frozen_credentials()
    SigV4QueryAuth(credentials, "sqs", walk.target.region, expires=seconds).add_auth(request)
    return str(request.prepare().url)


@step
def presigned_urls_need_no_key(walk: Walk) -> None:
    def get(url: str) -> tuple[int, str]:
        answer = URLLib3Session().send(AWSRequest("GET", url).prepare())
        return answer.status_code, answer.text

    url = walk.queue("presigned")
    status, text = get(presigned(walk, "SendMessage", url, MessageBody="<by> link"))
    assert (status, text_md5("<by> link") in text) == (200, True), text
    link = presigned(walk, "ReceiveMessage", url)
    status, text = get(link)
    assert (status, "<Body>&lt;by&gt; link</Body>" in text) == (200, True), text
    status, text = get(link.replace("Action=ReceiveMessage", "Action=PurgeQueue"))
    assert (status, "<Code>SignatureDoesNotMatch</Code>" in text) == (403, True), text
    assert walk.counters(url) == (0, 1, 0)
