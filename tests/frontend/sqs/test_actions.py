"""The operations over a backend in memory.

SQS's facts are tested in tests/behaviour; here the implementation is.
"""

from base64 import b64decode
from hashlib import blake2b, md5, sha256
from typing import Any

import orjson
import pytest

from backend.api import Configure, HandleOutcome, Receive, ReceivedMessage, ReceiveOptions, Send
from frontend.queues.payload import FORMAT, Payload, decode, encode
from frontend.sqs.actions import messages, paging
from frontend.sqs.actions.batches import _entry_error
from frontend.sqs.protocol.errors import OVER_LIMIT, SqsError
from metadata_service.clusters.directory import ClusterDirectory
from metadata_service.models import ClusterReport, cluster_of
from tests.frontend.service import KEY, NAMING, FrontendService

ARN = f"arn:aws:sqs:us-east-1:{KEY.account}:"
REDRIVE = orjson.dumps({"deadLetterTargetArn": ARN + "dlq", "maxReceiveCount": 3}).decode()


async def failed(service: FrontendService, action: str, **members: Any) -> tuple[int, str]:
    answer = await service.json(action, members)
    assert answer.status >= 400, answer.content
    return answer.status, answer.code


# --- messages ----------------------------------------------------------------------------------------------


async def test_stored_fields_of_a_message(service: FrontendService) -> None:
    url = await service.make_queue("q")
    answer = await service.json(
        "SendMessage",
        {
            "QueueUrl": url,
            "MessageBody": "bödy",
            "DelaySeconds": 5,
            "MessageGroupId": "fair",
            "MessageAttributes": {"a": {"DataType": "Binary", "BinaryValue": "AP8="}},
            "MessageSystemAttributes": {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1"}},
        },
    )
    assert answer.json["MD5OfMessageBody"] == md5("bödy".encode()).hexdigest()
    assert set(answer.json) == {
        "MD5OfMessageBody",
        "MD5OfMessageAttributes",
        "MD5OfMessageSystemAttributes",
        "MessageId",
    }
    (new,) = service.backend.calls_of(Send)[-1].messages
    stored = await service.app.context.encryption.decrypt(KEY.account, new.payload)
    assert (new.delay_seconds, new.group, new.token, new.also) == (5, "fair", None, None)
    assert stored.body == "bödy"
    assert stored.sender == KEY.principal_id
    assert stored.attributes == (("a", "Binary", b"\x00\xff"),)
    assert stored.trace_header == "Root=1"


async def tokens(service: FrontendService, **members: Any) -> tuple[bytes | None, bytes | None]:
    answer = await service.json("SendMessage", {"MessageGroupId": "g", "MessageBody": "body", **members})
    assert answer.status == 200, answer.content
    (message,) = service.backend.calls_of(Send)[-1].messages
    return message.token, message.also


async def test_tokens_of_fifo_messages(service: FrontendService) -> None:
    by_queue = await service.make_queue("a.fifo", FifoQueue="true", ContentBasedDeduplication="true")
    digest = sha256(b"body").hexdigest()
    content = await tokens(service, QueueUrl=by_queue)
    assert content == await tokens(service, QueueUrl=by_queue, MessageDeduplicationId=digest)
    assert content[0] != content[1]
    other_group = await tokens(service, QueueUrl=by_queue, MessageGroupId="h")
    assert other_group[0] == content[0]
    assert other_group[1] != content[1]
    changed = {"QueueUrl": by_queue, "Attributes": {"DeduplicationScope": "messageGroup"}}
    assert (await service.json("SetQueueAttributes", changed)).status == 200
    assert content == (await tokens(service, QueueUrl=by_queue, MessageDeduplicationId=digest))[::-1]
    assert len(content[0] or b"") == 16


async def test_a_token_does_not_allow_to_try_out_bodies(service: FrontendService) -> None:
    url = await service.make_queue("a.fifo", FifoQueue="true", ContentBasedDeduplication="true")
    token, _ = await tokens(service, QueueUrl=url)
    queue = await service.store.queues.get_queue(KEY.account, "a.fifo")
    guess = f"q\0{sha256(b'body').hexdigest()}".encode()
    by_key = blake2b(queue.handle_key, key=NAMING, digest_size=32).digest()
    assert token == blake2b(guess, digest_size=16, key=by_key).digest(), "the same at each start and in each process"
    without_the_secret = blake2b(queue.handle_key, digest_size=32).digest()
    for known in (b"", queue.handle_key, without_the_secret):
        assert token != blake2b(guess, digest_size=16, key=known).digest()
    other = await service.make_queue("b.fifo", FifoQueue="true", ContentBasedDeduplication="true")
    assert token not in await tokens(service, QueueUrl=other), "nor which queues have the same"


async def test_options_of_a_receive_at_the_backend(service: FrontendService) -> None:
    dlq = await service.make_queue("dlq")
    url = await service.make_queue("q", VisibilityTimeout="77", RedrivePolicy=REDRIVE)

    async def command() -> ReceiveOptions:
        members = {"QueueUrl": url, "MaxNumberOfMessages": 4, "ReceiveRequestAttemptId": "is ignored"}
        assert (await service.json("ReceiveMessage", members)).status == 200
        return service.backend.calls_of(Receive)[-1].options

    first = await command()
    assert (first.max_messages, first.visibility_seconds, first.wait_seconds, first.attempt) == (4, 77, 0, None)
    assert first.dead_letter is not None
    assert first.dead_letter.max_receives == 3
    # A deleted dead-letter queue takes nothing: messages stay in their queue.
    await service.json("DeleteQueue", {"QueueUrl": dlq})
    assert (await command()).dead_letter is None


def test_twins_in_a_fifo_dead_letter_queue_have_deduplication_ids_of_their_own() -> None:
    stored = encode(Payload(FORMAT, "b", b"\0" * 16, "s", deduplication_id="d"))
    received = ReceivedMessage("m", "h", stored, 7, 1, 1000, 1000, "g")
    assert messages._system_attributes(received, decode(stored), True)["MessageDeduplicationId"] == "d"
    received.origin = ARN + "q.fifo"
    attributes = messages._system_attributes(received, decode(stored), True)
    assert attributes["MessageDeduplicationId"] == "m"
    assert attributes["DeadLetterQueueSourceArn"] == ARN + "q.fifo"
    assert attributes["SequenceNumber"] == "00000000000000000007"


@pytest.mark.parametrize(
    ("outcome", "code", "entry_code"),
    [
        (HandleOutcome.MALFORMED, "ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid"),
        (HandleOutcome.OTHER_QUEUE, "ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid"),
        (HandleOutcome.EXPIRED, "InvalidParameterValue", "ReceiptHandleIsInvalid"),
        (HandleOutcome.GONE, "InvalidParameterValue", "InvalidParameterValue"),
        (HandleOutcome.BEYOND_LIMIT, "InvalidParameterValue", "InvalidParameterValue"),
    ],
)
def test_outcomes_of_handles(outcome: HandleOutcome, code: str, entry_code: str) -> None:
    assert messages.handle_error("h", outcome, 5).kind.query_code == code
    assert _entry_error({"Id": "1", "ReceiptHandle": "h"}, outcome).kind.query_code == entry_code


# --- queues ------------------------------------------------------------------------------------------------


def test_there_is_a_next_token_only_with_max_results() -> None:
    names = ["a", "b", "c"]
    assert paging.page(names, 2, {}) == (["a", "b"], None)
    page, token = paging.page(names, 2, {"MaxResults": 2})
    assert page == ["a", "b"]
    assert paging.after({"NextToken": token}) == "b"
    assert paging.page(names, 3, {"MaxResults": 3}) == (names, None)


async def test_settings_of_a_partition_follow_the_queue(service: FrontendService) -> None:
    url = await service.make_queue("q")
    await service.json(
        "SetQueueAttributes", {"QueueUrl": url, "Attributes": {"MessageRetentionPeriod": "60", "DelaySeconds": "7"}}
    )
    settings = service.backend.calls_of(Configure)[-1].settings
    assert (settings.retention_seconds, settings.delay_seconds, settings.arn) == (60, 7, ARN + "q")


# --- move tasks --------------------------------------------------------------------------------------------


async def test_the_handle_of_a_move_task_names_its_source(service: FrontendService) -> None:
    await service.make_queue("dlq")
    await service.make_queue("q", RedrivePolicy=REDRIVE)
    started = await service.json("StartMessageMoveTask", {"SourceArn": ARN + "dlq"})
    assert orjson.loads(b64decode(started.json["TaskHandle"], altchars=b"-_"))["sourceArn"] == ARN + "dlq"


def test_an_error_without_a_text_has_that_of_its_kind() -> None:
    assert SqsError(OVER_LIMIT).message == OVER_LIMIT.text


# --- several backend clusters ------------------------------------------------------------------------------


async def test_new_queues_go_to_the_clusters_that_take_them(service: FrontendService) -> None:
    now = 1000.0
    for name in ("local", "east", "west"):
        cluster = await service.store.clusters.register_cluster(name)
        await service.store.clusters.report_cluster(
            ClusterReport(cluster.number, 1, 1, 0, 0.95 if name == "west" else 0.1)
        )
    fleet = service.app.context.services.fleet = ClusterDirectory(
        service.store.clusters, clock=lambda: now, wall=lambda: 0.0
    )
    await fleet.refresh()
    made = set()
    for number in range(20):
        await service.make_queue(f"q{number}")
        queue = await service.store.queues.get_queue(KEY.account, f"q{number}")
        made.add(cluster_of(queue.partitions[0].id))
    assert made == {0, 1}
    now += 60
    assert await failed(service, "CreateQueue", QueueName="new") == (503, "ServiceUnavailable")
    assert (await service.json("CreateQueue", {"QueueName": "q1"})).status == 200, "it is there already"
