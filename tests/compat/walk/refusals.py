"""Calls that fail with SQS's own errors: missing queues, bad parameters, bad batches, bad signatures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import botocore
from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.httpsession import URLLib3Session

from tests.compat.walk.kit import Walk, step, text_md5
from tests.compat.walk.queues import NO_QUEUE

TABLES = json.loads(Path(__file__).with_name("refusals.json").read_text("utf-8"))
ON_A_QUEUE: dict[str, dict[str, Any]] = TABLES["on a queue"]
"""Every action that takes a QueueUrl, with the other parameters of a valid call."""
LONG = {"Entries": [{"Id": str(number), "MessageBody": "x" * 104_858} for number in range(10)]}
REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    *TABLES["refused"],
    ("send_message_batch", LONG, "AWS.SimpleQueueService.BatchRequestTooLong", "BatchRequestTooLong"),
]
"""Calls on a queue, their codes, and the exceptions of clients whose model has them."""


@step
def no_action_finds_a_queue_that_is_not_there(walk: Walk) -> None:
    url = f"{walk.target.endpoint}/{walk.target.account}/{walk.name('missing')}"
    for action, parameters in ON_A_QUEUE.items():
        with walk.refused(NO_QUEUE, shape="QueueDoesNotExist", text="The specified queue does not exist"):
            getattr(walk.client, action)(QueueUrl=url, **parameters)
    with walk.refused(NO_QUEUE, shape="QueueDoesNotExist"):
        walk.client.get_queue_url(QueueName=walk.name("missing"))


@step
def errors_have_exceptions_of_their_own(walk: Walk) -> None:
    client, url = walk.client, walk.queue("errors")
    for action, parameters, code, shape in REFUSED:
        with walk.refused(code, shape=shape):
            getattr(client, action)(QueueUrl=url, **parameters)
    with walk.refused("ReceiptHandleIsInvalid", status=404, shape="ReceiptHandleIsInvalid"):
        client.delete_message(QueueUrl=url, ReceiptHandle="garbage")
    with walk.refused("QueueAlreadyExists", shape="QueueNameExists", text="VisibilityTimeout"):
        client.create_queue(QueueName=url.split("/")[-1], Attributes={"VisibilityTimeout": "41"})
    with walk.refused("ResourceNotFoundException", status=404, shape="ResourceNotFoundException"):
        client.list_message_move_tasks(SourceArn=walk.arn(url) + "-never-made")
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
    other_region = walk.new_client(region_name="eu-west-3")
    with walk.refused("SignatureDoesNotMatch", status=403):
        other_region.list_queues()


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
