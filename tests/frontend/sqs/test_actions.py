"""The operations over a backend in a dictionary.

SQS's facts are tested in tests/behaviour; here the implementation is.
"""

from __future__ import annotations

from base64 import b64decode
from hashlib import blake2b, md5, sha256
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest

from auth.credentials import Tenant
from backend.api import HandleOutcome, Receive, ReceivedMessage
from frontend.queues.payload import FORMAT, Payload, decode, encode
from frontend.request.settings import FrontendSettings
from frontend.sqs.actions import messages, paging
from frontend.sqs.actions.batches import _entry_error
from frontend.sqs.protocol.errors import OVER_LIMIT, SqsError
from metadata_service.clusters.directory import ClusterDirectory
from metadata_service.models import ClusterReport, cluster_of
from tests.frontend.fakes import KEY, NAMING, FrontendService, running

ARN = f"arn:aws:sqs:us-east-1:{KEY.account}:"


async def failed(service: FrontendService, action: str, **members: Any) -> tuple[int, str]:
    answer = await service.json(action, members)
    assert answer.status >= 400, answer.content
    return answer.status, answer.code


# --- messages ----------------------------------------------------------------------------------------------


async def test_what_is_stored_with_a_message(service: FrontendService) -> None:
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
    [partition] = service.backend.partitions.values()
    new = partition.messages[answer.json["MessageId"]].new
    stored = await service.app.sqs.context.seals.open(KEY.account, new.payload)
    assert (new.delay_seconds, new.group, new.token, new.also) == (5, "fair", None, None)
    assert stored.body == "bödy"
    assert stored.sender == KEY.principal_id
    assert stored.attributes == (("a", "Binary", b"\x00\xff"),)
    assert stored.trace_header == "Root=1"


async def tokens(service: FrontendService, **members: Any) -> tuple[bytes | None, bytes | None]:
    answer = await service.json("SendMessage", {"MessageGroupId": "g", "MessageBody": "body", **members})
    assert answer.status == 200, answer.content
    for partition in service.backend.partitions.values():
        message = partition.messages.pop(answer.json["MessageId"], None)
        if message is not None:
            partition.tokens.clear()
            return message.new.token, message.new.also
    raise AssertionError("not stored")


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


async def test_who_reads_a_token_cannot_try_out_bodies(service: FrontendService) -> None:
    url = await service.make_queue("a.fifo", FifoQueue="true", ContentBasedDeduplication="true")
    token, _ = await tokens(service, QueueUrl=url)
    queue = await service.store.get_queue(KEY.account, "a.fifo")
    guess = f"q\0{sha256(b'body').hexdigest()}".encode()
    by_key = blake2b(queue.handle_key, key=NAMING, digest_size=32).digest()
    assert token == blake2b(guess, digest_size=16, key=by_key).digest(), "the same at each start and in each process"
    without_the_secret = blake2b(queue.handle_key, digest_size=32).digest()
    for known in (b"", queue.handle_key, without_the_secret):
        assert token != blake2b(guess, digest_size=16, key=known).digest()
    other = await service.make_queue("b.fifo", FifoQueue="true", ContentBasedDeduplication="true")
    assert token not in await tokens(service, QueueUrl=other), "nor which queues have the same"


async def test_a_duplicate_is_answered_like_the_first(service: FrontendService) -> None:
    url = await service.make_queue("q.fifo", FifoQueue="true")
    members = {"QueueUrl": url, "MessageBody": "b", "MessageGroupId": "g", "MessageDeduplicationId": "d"}
    first, second = await service.json("SendMessage", members), await service.json("SendMessage", members)
    assert first.json == second.json
    assert len(first.json["SequenceNumber"]) == 20


async def test_the_length_of_a_message_counts_its_attributes(service: FrontendService) -> None:
    url = await service.make_queue("q", MaximumMessageSize="1024")
    attribute = {"aé": {"DataType": "String.x", "StringValue": "v"}}
    fits = "x" * (1024 - len("aé".encode()) - len("String.x") - 1)
    good = {"QueueUrl": url, "MessageBody": fits, "MessageAttributes": attribute}
    assert (await service.json("SendMessage", good)).status == 200
    answer = await service.json("SendMessage", good | {"MessageBody": fits + "x"})
    assert answer.code == "InvalidParameterValue"
    assert answer.message == "One or more parameters are invalid. Reason: Message must be shorter than 1024 bytes."


async def test_the_delay_that_a_queue_of_our_own_kind_allows(service: FrontendService) -> None:
    url = await service.make_queue("q", HoldfastMaximumDelaySeconds="1209600")
    assert (
        await service.json("SendMessage", {"QueueUrl": url, "MessageBody": "b", "DelaySeconds": 1_209_600})
    ).status == 200
    answer = await service.json("GetQueueAttributes", {"QueueUrl": url, "AttributeNames": ["All"]})
    assert answer.json["Attributes"]["HoldfastMaximumDelaySeconds"] == "1209600"
    plain = await service.make_queue("plain")
    answer = await service.json("GetQueueAttributes", {"QueueUrl": plain, "AttributeNames": ["All"]})
    assert "HoldfastMaximumDelaySeconds" not in answer.json["Attributes"]
    asked = {"QueueUrl": plain, "AttributeNames": ["HoldfastMaximumDelaySeconds"]}
    assert (await service.json("GetQueueAttributes", asked)).json["Attributes"] == {
        "HoldfastMaximumDelaySeconds": "900"
    }


async def test_the_bytes_that_are_stored_are_told_when_they_are_asked_for(service: FrontendService) -> None:
    url = await service.make_queue("q")

    async def read(*names: str) -> dict[str, str]:
        asked = {"QueueUrl": url, "AttributeNames": list(names)}
        attributes: dict[str, str] = (await service.json("GetQueueAttributes", asked)).json["Attributes"]
        return attributes

    assert await read("HoldfastStoredBytes") == {"HoldfastStoredBytes": "0"}
    await service.json("SendMessage", {"QueueUrl": url, "MessageBody": "b" * 5000})
    assert 5000 < int((await read("HoldfastStoredBytes"))["HoldfastStoredBytes"]) < 5200
    assert "HoldfastStoredBytes" not in await read("All")
    assert (await read("All", "HoldfastStoredBytes")).keys() == {*await read("All"), "HoldfastStoredBytes"}
    answer = await service.json("SetQueueAttributes", {"QueueUrl": url, "Attributes": {"HoldfastStoredBytes": "1"}})
    assert answer.code == "InvalidAttributeName"


async def test_what_a_receive_asks_of_the_backend(service: FrontendService) -> None:
    dlq = await service.make_queue("dlq")
    policy = orjson.dumps({"deadLetterTargetArn": ARN + "dlq", "maxReceiveCount": 3}).decode()
    url = await service.make_queue("q", VisibilityTimeout="77", RedrivePolicy=policy)

    async def command() -> Receive:
        members = {"QueueUrl": url, "MaxNumberOfMessages": 4, "ReceiveRequestAttemptId": "is ignored"}
        assert (await service.json("ReceiveMessage", members)).status == 200
        found: Receive = service.backend.calls[-1][1]
        return found

    first = await command()
    assert (first.most, first.visibility_seconds, first.wait_seconds, first.attempt) == (4, 77, 0, None)
    assert first.dead_letter is not None
    assert first.dead_letter.max_receives == 3
    # A deleted dead-letter queue takes nothing: messages stay in their queue.
    await service.json("DeleteQueue", {"QueueUrl": dlq})
    assert (await command()).dead_letter is None


async def test_attempts_are_those_of_fifo_queues(service: FrontendService) -> None:
    url = await service.make_queue("q.fifo", FifoQueue="true")
    await service.json("ReceiveMessage", {"QueueUrl": url, "ReceiveRequestAttemptId": "a"})
    assert service.backend.calls[-1][1].attempt == "a"
    code = await failed(service, "ReceiveMessage", QueueUrl=url, ReceiveRequestAttemptId="a b")
    assert code == (400, "InvalidParameterValue")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["All"], {"a", "a.b", "c"}),
        (["*"], {"a", "a.b", "c"}),
        ([".*"], {"a", "a.b", "c"}),
        (["a.*"], {"a", "a.b"}),
        (["c", "nonsense"], {"c"}),
        (["AWS.", "..foo"], set()),
        ([], set()),
    ],
)
async def test_filters_of_message_attributes(service: FrontendService, names: list[str], expected: set[str]) -> None:
    url = await service.make_queue("q")
    attributes = {name: {"DataType": "String", "StringValue": "v"} for name in ("a", "a.b", "c")}
    sent = await service.json("SendMessage", {"QueueUrl": url, "MessageBody": "b", "MessageAttributes": attributes})
    answer = await service.json("ReceiveMessage", {"QueueUrl": url, "MessageAttributeNames": names})
    message = answer.json["Messages"][0]
    assert set(message.get("MessageAttributes", {})) == expected
    assert ("MD5OfMessageAttributes" in message) is bool(expected)
    if expected:
        whole = sent.json["MD5OfMessageAttributes"]
        assert (message["MD5OfMessageAttributes"] == whole) is (len(expected) == 3)


async def test_system_attributes_are_those_that_were_asked_for(service: FrontendService) -> None:
    url = await service.make_queue("q")
    for names in ({"AttributeNames": ["SenderId"]}, {"MessageSystemAttributeNames": ["SenderId", "Policy"]}):
        await service.json("SendMessage", {"QueueUrl": url, "MessageBody": "b"})
        answer = await service.json("ReceiveMessage", {"QueueUrl": url, **names})
        assert answer.json["Messages"][0]["Attributes"] == {"SenderId": KEY.principal_id}
    await service.json("SendMessage", {"QueueUrl": url, "MessageBody": "b"})
    answer = await service.json("ReceiveMessage", {"QueueUrl": url, "AttributeNames": ["MessageGroupId"]})
    assert "Attributes" not in answer.json["Messages"][0]
    assert await failed(service, "ReceiveMessage", QueueUrl=url, AttributeNames=["Nonsense"]) == (
        400,
        "InvalidAttributeName",
    )


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


def test_an_error_does_not_repeat_a_handle_without_end() -> None:
    assert len(messages.handle_error("h" * 1_000_000, HandleOutcome.MALFORMED).message) < 3_000


# --- batches -----------------------------------------------------------------------------------------------


async def test_entries_of_a_batch_fail_one_by_one(service: FrontendService) -> None:
    url = await service.make_queue("q", MaximumMessageSize="1024")
    entries = [
        {"Id": "good", "MessageBody": "b"},
        {"Id": "characters", "MessageBody": "\x00"},
        {"Id": "long", "MessageBody": "x" * 1025},
        {"Id": "empty", "MessageBody": ""},
        {"Id": "late", "MessageBody": "b", "DelaySeconds": 901},
        {"Id": "attribute", "MessageBody": "b", "MessageAttributes": {"aws.x": {"DataType": "String"}}},
        {"Id": "last", "MessageBody": "b"},
    ]
    answer = await service.json("SendMessageBatch", {"QueueUrl": url, "Entries": entries})
    assert answer.status == 200
    assert [entry["Id"] for entry in answer.json["Successful"]] == ["good", "last"]
    assert [(entry["Id"], entry["Code"]) for entry in answer.json["Failed"]] == [
        ("characters", "InvalidMessageContents"),
        ("long", "InvalidParameterValue"),
        ("empty", "MissingParameter"),
        ("late", "InvalidParameterValue"),
        ("attribute", "InvalidParameterValue"),
    ]
    assert all(entry["SenderFault"] for entry in answer.json["Failed"])
    assert answer.json["Failed"][1]["Message"].startswith("One or more parameters cannot be validated.")


async def test_a_batch_in_which_nothing_fails_says_nothing_of_failures(service: FrontendService) -> None:
    url = await service.make_queue("q")
    answer = await service.json("SendMessageBatch", {"QueueUrl": url, "Entries": [{"Id": "1", "MessageBody": "b"}]})
    assert set(answer.json) == {"Successful"}


@pytest.mark.parametrize(
    ("action", "entry"),
    [
        ("SendMessageBatch", {"MessageBody": "b"}),
        ("DeleteMessageBatch", {"ReceiptHandle": "h"}),
        ("ChangeMessageVisibilityBatch", {"ReceiptHandle": "h", "VisibilityTimeout": 1}),
    ],
)
async def test_what_fails_a_whole_batch(service: FrontendService, action: str, entry: dict[str, Any]) -> None:
    url = await service.make_queue("q")
    prefix = "AWS.SimpleQueueService."

    async def code(*entries: dict[str, Any]) -> tuple[str, str]:
        answer = await service.json(action, {"QueueUrl": url, "Entries": list(entries)})
        assert answer.status == 400
        return answer.code, answer.message

    name = f"{action}RequestEntry"
    assert await code() == (f"{prefix}EmptyBatchRequest", f"There should be at least one {name} in the request.")
    assert (await service.json(action, {"QueueUrl": url})).code == f"{prefix}EmptyBatchRequest"
    assert await code(*[{"Id": str(number), **entry} for number in range(11)]) == (
        f"{prefix}TooManyEntriesInBatchRequest",
        "Maximum number of entries per request are 10. You have sent 11.",
    )
    assert await code(*[{"Id": number, **entry} for number in "abcbc"]) == (
        f"{prefix}BatchEntryIdsNotDistinct",
        "Id b repeated.",
    )
    for bad in ("", "a b", "x" * 81, "é", "a\n"):
        assert (await code({"Id": bad, **entry}))[0] == f"{prefix}InvalidBatchEntryId"
    assert (await code(entry))[0] == "MissingParameter"
    for member in entry:
        partial = {key: value for key, value in entry.items() if key != member}
        assert await code({"Id": "1", **partial}) == (
            "MissingParameter",
            f"The request must contain the parameter {name}.1.{member}.",
        )


async def test_identifiers_of_one_entry_fail_a_whole_batch_of_a_fifo_queue(service: FrontendService) -> None:
    url = await service.make_queue("q.fifo", FifoQueue="true")
    good = {"MessageBody": "b", "MessageGroupId": "g", "MessageDeduplicationId": "d"}
    for member, text in (
        ("MessageGroupId", "The request must contain the parameter MessageGroupId."),
        ("MessageDeduplicationId", messages.NO_DEDUPLICATION),
    ):
        bad = {key: value for key, value in good.items() if key != member}
        entries = [{"Id": "good", **good}, {"Id": "bad", **bad}]
        answer = await service.json("SendMessageBatch", {"QueueUrl": url, "Entries": entries})
        assert (answer.status, answer.code, answer.message) == (400, "InvalidParameterValue", text)


async def test_a_batch_that_is_too_long(service: FrontendService) -> None:
    url = await service.make_queue("q")
    entries = [{"Id": str(number), "MessageBody": "x" * 524_288} for number in range(2)]
    assert (await service.json("SendMessageBatch", {"QueueUrl": url, "Entries": entries})).status == 200
    entries[0]["MessageBody"] += "x"
    answer = await service.json("SendMessageBatch", {"QueueUrl": url, "Entries": entries})
    assert answer.code == "AWS.SimpleQueueService.BatchRequestTooLong"
    assert answer.message == "Batch requests cannot be longer than 1048576 bytes. You have sent 1048577 bytes."


# --- queues ------------------------------------------------------------------------------------------------


async def test_lists_come_in_pages(service: FrontendService) -> None:
    for number in range(5):
        await service.make_queue(f"a{number}")
    await service.make_queue("b")
    seen: list[str] = []
    token: str | None = None
    while True:
        members = {"MaxResults": 2, "QueueNamePrefix": "a"} | ({"NextToken": token} if token else {})
        answer = await service.json("ListQueues", members)
        seen += answer.json.get("QueueUrls", [])
        token = answer.json.get("NextToken")
        if token is None:
            break
    assert seen == [service.url(f"a{number}") for number in range(5)]
    assert "NextToken" not in (await service.json("ListQueues")).json
    assert (await service.json("ListQueues", {"QueueNamePrefix": "none"})).json == {}
    refused: list[dict[str, Any]] = [{"MaxResults": 0}, {"MaxResults": 1001}, {"NextToken": "é"}, {"NextToken": "AAAA"}]
    for wrong in refused:
        assert await failed(service, "ListQueues", **wrong) == (400, "InvalidParameterValue")


def test_there_is_a_next_token_only_for_those_who_gave_max_results() -> None:
    names = ["a", "b", "c"]
    assert paging.page(names, 2, {}) == (["a", "b"], None)
    page, token = paging.page(names, 2, {"MaxResults": 2})
    assert page == ["a", "b"]
    assert paging.after({"NextToken": token}) == "b"
    assert paging.page(names, 3, {"MaxResults": 3}) == (names, None)


async def test_a_declared_name_can_be_created_again_with_what_it_has(service: FrontendService) -> None:
    await service.make_queue("q", DelaySeconds="5")
    assert await service.make_queue("q") == service.url("q")
    assert await service.make_queue("q", DelaySeconds="05", VisibilityTimeout="30") == service.url("q")
    answer = await service.json("CreateQueue", {"QueueName": "q", "Attributes": {"DelaySeconds": "6"}})
    assert answer.code == "QueueAlreadyExists"
    assert answer.message.endswith("a different value for attribute DelaySeconds")


async def test_a_name_is_held_after_its_deletion(service: FrontendService) -> None:
    url = await service.make_queue("q")
    assert (await service.json("DeleteQueue", {"QueueUrl": url})).status == 200
    assert await failed(service, "CreateQueue", QueueName="q") == (
        400,
        "AWS.SimpleQueueService.QueueDeletedRecently",
    )
    service.clock.now += 61
    await service.make_queue("q")


async def test_what_a_queue_tells_its_partition(service: FrontendService) -> None:
    url = await service.make_queue("q")
    await service.json(
        "SetQueueAttributes", {"QueueUrl": url, "Attributes": {"MessageRetentionPeriod": "60", "DelaySeconds": "7"}}
    )
    call, settings = service.backend.calls[-1]
    assert call == "configure"
    assert (settings.retention_seconds, settings.delay_seconds, settings.arn) == (60, 7, ARN + "q")


async def test_a_dead_letter_target_is_checked_when_it_is_set(service: FrontendService) -> None:
    await service.make_queue("fifo.fifo", FifoQueue="true")
    await service.make_queue("closed", RedriveAllowPolicy='{"redrivePermission":"denyAll"}')
    url = await service.make_queue("q")
    for target in ("none", "fifo.fifo", "closed"):
        policy = orjson.dumps({"deadLetterTargetArn": ARN + target, "maxReceiveCount": 3}).decode()
        attributes = {"RedrivePolicy": policy}
        assert await failed(service, "SetQueueAttributes", QueueUrl=url, Attributes=attributes) == (
            400,
            "InvalidParameterValue",
        )
        assert (await failed(service, "CreateQueue", QueueName="new", Attributes=attributes))[0] == 400


async def test_purges_have_an_interval(service: FrontendService) -> None:
    url = await service.make_queue("q")
    await service.json("SendMessage", {"QueueUrl": url, "MessageBody": "b"})
    assert (await service.json("PurgeQueue", {"QueueUrl": url})).status == 200
    assert (await service.json("ReceiveMessage", {"QueueUrl": url})).json == {}
    answer = await service.json("PurgeQueue", {"QueueUrl": url})
    assert (answer.status, answer.code) == (403, "AWS.SimpleQueueService.PurgeQueueInProgress")
    assert answer.message == "Only one PurgeQueue operation on q is allowed every 60 seconds."
    service.clock.now += 61
    assert (await service.json("PurgeQueue", {"QueueUrl": url})).status == 200


async def test_a_setting_keeps_queues_with_messages(tmp_path: Path) -> None:
    async with running(tmp_path, FrontendSettings(forbid_deleting_nonempty_queues=True)) as service:
        url = await service.make_queue("q")
        await service.json("SendMessage", {"QueueUrl": url, "MessageBody": "b"})
        assert (await failed(service, "DeleteQueue", QueueUrl=url))[1].endswith("UnsupportedOperation")
        await service.json("PurgeQueue", {"QueueUrl": url})
        assert (await service.json("DeleteQueue", {"QueueUrl": url})).status == 200


async def test_a_setting_makes_queues_by_their_first_send(tmp_path: Path) -> None:
    async with running(tmp_path, FrontendSettings(auto_create_queues=True)) as service:
        assert (await service.json("SendMessage", {"QueueUrl": "a", "MessageBody": "b"})).status == 200
        entry = {"Id": "1", "MessageBody": "b", "MessageGroupId": "g", "MessageDeduplicationId": "d"}
        assert (await service.json("SendMessageBatch", {"QueueUrl": "b.fifo", "Entries": [entry]})).status == 200
        assert (await failed(service, "ReceiveMessage", QueueUrl="c"))[1].endswith("NonExistentQueue")
        assert (await failed(service, "SendMessage", QueueUrl="not a name", MessageBody="b"))[0] == 400
        other = "http://h/210987654321/a"
        assert (await failed(service, "SendMessage", QueueUrl=other, MessageBody="b"))[1].endswith("NonExistentQueue")


async def test_attributes_of_fifo_queues_cannot_be_read_of_a_standard_queue(service: FrontendService) -> None:
    standard, fifo = await service.make_queue("q"), await service.make_queue("q.fifo", FifoQueue="true")
    for name, default in (("FifoQueue", "true"), ("ContentBasedDeduplication", "false")):
        members = {"QueueUrl": standard, "AttributeNames": ["All", name]}
        answer = await service.json("GetQueueAttributes", members)
        assert (answer.code, answer.message) == ("InvalidAttributeName", f"Unknown Attribute {name}.")
        answer = await service.json("GetQueueAttributes", members | {"QueueUrl": fifo})
        assert answer.json["Attributes"][name] == default


async def test_queues_of_other_accounts_do_not_exist(service: FrontendService) -> None:
    other = msgspec.structs.replace(KEY, access_key_id="AKIAOTHEROTHEROTHER0", account="210987654321")
    keys = service.app.services.credentials
    await keys.create_tenant(Tenant(other.account, "other"))
    await keys.put(other)
    url = await service.make_queue("mine")
    headers = {"Content-Type": "application/x-amz-json-1.0"}
    for action, members in (
        ("SendMessage", {"QueueUrl": url, "MessageBody": "b"}),
        ("ReceiveMessage", {"QueueUrl": url}),
        ("DeleteQueue", {"QueueUrl": url}),
        ("GetQueueUrl", {"QueueName": "mine", "QueueOwnerAWSAccountId": KEY.account}),
        ("ListMessageMoveTasks", {"SourceArn": ARN + "mine"}),
    ):
        target = {"X-Amz-Target": f"AmazonSQS.{action}"}
        answer = await service.signed("POST", "/", orjson.dumps(members), headers | target, other)
        assert answer.status in (400, 404)
        assert answer.code in ("AWS.SimpleQueueService.NonExistentQueue", "ResourceNotFoundException")
    target = {"X-Amz-Target": "AmazonSQS.ListQueues"}
    assert (await service.signed("POST", "/", b"{}", headers | target, other)).json == {}


async def test_urls_of_queues_of_others_do_not_exist(service: FrontendService) -> None:
    await service.make_queue("q")
    for owner in ("210987654321", "nonsense"):
        assert await failed(service, "GetQueueUrl", QueueName="q", QueueOwnerAWSAccountId=owner) == (
            400,
            "AWS.SimpleQueueService.NonExistentQueue",
        )
    answer = await service.json("GetQueueUrl", {"QueueName": "q", "QueueOwnerAWSAccountId": KEY.account})
    assert answer.json == {"QueueUrl": service.url("q")}


# --- tags and permissions ----------------------------------------------------------------------------------


async def test_tags(service: FrontendService) -> None:
    url = await service.make_queue("q")
    await service.json("TagQueue", {"QueueUrl": url, "Tags": {"a": "1", "A": "2", "b": ""}})
    await service.json("TagQueue", {"QueueUrl": url, "Tags": {"a": "3"}})
    await service.json("UntagQueue", {"QueueUrl": url, "TagKeys": ["b", "missing"]})
    assert (await service.json("ListQueueTags", {"QueueUrl": url})).json == {"Tags": {"a": "3", "A": "2"}}
    many = {f"k{number}": "v" for number in range(49)}
    assert await failed(service, "TagQueue", QueueUrl=url, Tags=many) == (400, "InvalidParameterValue")
    for tags in ({"": "v"}, {"x" * 129: "v"}, {"aws:x": "v"}, {"k": "v" * 257}, {"k\x00": "v"}):
        assert await failed(service, "TagQueue", QueueUrl=url, Tags=tags) == (400, "InvalidParameterValue")
    assert (await service.json("ListQueueTags", {"QueueUrl": url})).json == {"Tags": {"a": "3", "A": "2"}}


async def test_permissions_are_the_policy(service: FrontendService) -> None:
    url = await service.make_queue("q")
    members = {"QueueUrl": url, "Label": "l", "AWSAccountIds": ["111111111111"], "Actions": ["SendMessage"]}
    assert (await service.json("AddPermission", members)).status == 200
    answer = await service.json("GetQueueAttributes", {"QueueUrl": url, "AttributeNames": ["Policy"]})
    policy = answer.json["Attributes"]["Policy"]
    assert orjson.loads(policy)["Statement"][0]["Resource"] == ARN + "q"
    assert (await service.json("RemovePermission", {"QueueUrl": url, "Label": "l"})).status == 200
    assert (await service.json("GetQueueAttributes", {"QueueUrl": url, "AttributeNames": ["Policy"]})).json == {}
    for name, wire in (("Label", "Label"), ("AWSAccountIds", "AWSAccountId"), ("Actions", "ActionName")):
        answer = await service.json("AddPermission", {key: value for key, value in members.items() if key != name})
        assert answer.message == f"The request must contain the parameter {wire}."


# --- move tasks --------------------------------------------------------------------------------------------


async def test_move_tasks(service: FrontendService) -> None:
    await service.make_queue("dlq")
    policy = orjson.dumps({"deadLetterTargetArn": ARN + "dlq", "maxReceiveCount": 3}).decode()
    await service.make_queue("q", RedrivePolicy=policy)
    await service.make_queue("other")
    started = await service.json("StartMessageMoveTask", {"SourceArn": ARN + "dlq", "MaxNumberOfMessagesPerSecond": 5})
    handle = started.json["TaskHandle"]
    assert orjson.loads(b64decode(handle, altchars=b"-_"))["sourceArn"] == ARN + "dlq"
    assert await failed(service, "StartMessageMoveTask", SourceArn=ARN + "dlq") == (400, "InvalidParameterValue")
    [listed] = (await service.json("ListMessageMoveTasks", {"SourceArn": ARN + "dlq"})).json["Results"]
    assert listed == {
        "TaskHandle": handle,
        "Status": "RUNNING",
        "SourceArn": ARN + "dlq",
        "MaxNumberOfMessagesPerSecond": 5,
        "ApproximateNumberOfMessagesMoved": 0,
        "ApproximateNumberOfMessagesToMove": 0,
        "StartedTimestamp": 1_800_000_000_000,
    }
    cancelled = await service.json("CancelMessageMoveTask", {"TaskHandle": handle})
    assert cancelled.json == {"ApproximateNumberOfMessagesMoved": 0}
    assert await failed(service, "CancelMessageMoveTask", TaskHandle=handle) == (404, "ResourceNotFoundException")
    [listed] = (await service.json("ListMessageMoveTasks", {"SourceArn": ARN + "dlq"})).json["Results"]
    assert "TaskHandle" not in listed
    started = await service.json("StartMessageMoveTask", {"SourceArn": ARN + "dlq", "DestinationArn": ARN + "other"})
    listed = (await service.json("ListMessageMoveTasks", {"SourceArn": ARN + "dlq", "MaxResults": 10})).json["Results"]
    assert [task["Status"] for task in listed] == ["RUNNING", "CANCELLED"]
    assert listed[0]["DestinationArn"] == ARN + "other"


@pytest.mark.parametrize(
    ("action", "members", "expected"),
    [
        ("StartMessageMoveTask", {}, (400, "MissingParameter")),
        ("StartMessageMoveTask", {"SourceArn": "nonsense"}, (400, "InvalidParameterValue")),
        ("StartMessageMoveTask", {"SourceArn": ARN + "none"}, (404, "ResourceNotFoundException")),
        ("StartMessageMoveTask", {"SourceArn": ARN + "plain"}, (400, "InvalidParameterValue")),
        (
            "StartMessageMoveTask",
            {"SourceArn": ARN + "dlq", "DestinationArn": ARN + "none"},
            (404, "ResourceNotFoundException"),
        ),
        (
            "StartMessageMoveTask",
            {"SourceArn": ARN + "dlq", "DestinationArn": ARN + "dlq"},
            (400, "InvalidParameterValue"),
        ),
        (
            "StartMessageMoveTask",
            {"SourceArn": ARN + "dlq", "DestinationArn": ARN + "f.fifo"},
            (400, "InvalidParameterValue"),
        ),
        (
            "StartMessageMoveTask",
            {"SourceArn": ARN + "dlq", "MaxNumberOfMessagesPerSecond": 501},
            (400, "InvalidParameterValue"),
        ),
        (
            "StartMessageMoveTask",
            {"SourceArn": ARN + "dlq", "MaxNumberOfMessagesPerSecond": 0},
            (400, "InvalidParameterValue"),
        ),
        ("ListMessageMoveTasks", {"SourceArn": ARN + "none"}, (404, "ResourceNotFoundException")),
        ("ListMessageMoveTasks", {"SourceArn": ARN + "dlq", "MaxResults": 11}, (400, "InvalidParameterValue")),
        ("ListMessageMoveTasks", {"SourceArn": ARN + "dlq", "MaxResults": 0}, (400, "InvalidParameterValue")),
        ("CancelMessageMoveTask", {}, (400, "MissingParameter")),
        ("CancelMessageMoveTask", {"TaskHandle": "nonsense"}, (400, "InvalidParameterValue")),
        ("CancelMessageMoveTask", {"TaskHandle": "bnVsbA=="}, (400, "InvalidParameterValue")),
        ("CancelMessageMoveTask", {"TaskHandle": "é"}, (400, "InvalidParameterValue")),
    ],
)
async def test_move_tasks_that_are_refused(
    service: FrontendService, action: str, members: dict[str, Any], expected: tuple[int, str]
) -> None:
    await service.make_queue("dlq")
    await service.make_queue("plain")
    await service.make_queue("f.fifo", FifoQueue="true")
    policy = orjson.dumps({"deadLetterTargetArn": ARN + "dlq", "maxReceiveCount": 3}).decode()
    await service.make_queue("q", RedrivePolicy=policy)
    assert await failed(service, action, **members) == expected


async def test_sources_of_a_dead_letter_queue(service: FrontendService) -> None:
    url = await service.make_queue("dlq")
    policy = orjson.dumps({"deadLetterTargetArn": ARN + "dlq", "maxReceiveCount": 3}).decode()
    for name in ("b", "a", "c"):
        await service.make_queue(name, RedrivePolicy=policy)
    answer = await service.json("ListDeadLetterSourceQueues", {"QueueUrl": url, "MaxResults": 2})
    assert answer.json["queueUrls"] == [service.url("a"), service.url("b")]
    members = {"QueueUrl": url, "MaxResults": 2, "NextToken": answer.json["NextToken"]}
    assert (await service.json("ListDeadLetterSourceQueues", members)).json == {"queueUrls": [service.url("c")]}


def test_an_error_without_a_text_has_that_of_its_kind() -> None:
    assert SqsError(OVER_LIMIT).message == OVER_LIMIT.text


# --- several backend clusters ------------------------------------------------------------------------------


async def test_new_queues_go_to_the_clusters_that_take_them(service: FrontendService) -> None:
    now = 1000.0
    for name in ("local", "east", "west"):
        cluster = await service.store.register_cluster(name)
        await service.store.report_cluster(ClusterReport(cluster.number, 1, 1, 0, 0.95 if name == "west" else 0.1))
    fleet = service.app.sqs.context.services.fleet = ClusterDirectory(
        service.store, clock=lambda: now, wall=lambda: 0.0
    )
    await fleet.refresh()
    made = set()
    for number in range(20):
        await service.make_queue(f"q{number}")
        queue = await service.store.get_queue(KEY.account, f"q{number}")
        made.add(cluster_of(queue.partitions[0].id))
    assert made == {0, 1}
    now += 60
    assert await failed(service, "CreateQueue", QueueName="new") == (503, "ServiceUnavailable")
    assert (await service.json("CreateQueue", {"QueueName": "q1"})).status == 200, "it is there already"
