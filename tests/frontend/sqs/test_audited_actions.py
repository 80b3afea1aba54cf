"""Audit of SQS calls."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest
import pytest_asyncio

from auth.credentials import Tenant, new_access_key
from auth.limits import Rate, TenantLimits
from backend.api import StorageFull
from frontend.request.settings import FrontendSettings
from frontend.sqs.audited_actions import ACTS
from frontend.sqs.protocol.model import ACTIONS
from tests.frontend.fakes import KEY, FrontendService, running

ARN = f"arn:aws:sqs:us-east-1:{KEY.account}:"
EVERYBODY = {"Effect": "Allow", "Principal": "*", "Action": "sqs:PurgeQueue"}
JSON = {"Content-Type": "application/x-amz-json-1.0"}


@pytest_asyncio.fixture
async def service(tmp_path: Path) -> AsyncIterator[FrontendService]:
    async with running(tmp_path) as service:
        yield service


def told(line: dict[str, Any]) -> tuple[str, str, str, str]:
    return line["action"], line["target"], line["outcome"], line["reason"]


def test_every_action_is_administration_or_only_looks_or_handles_messages() -> None:
    others = ("Get", "List", "Send", "Receive", "DeleteMessage", "ChangeMessageVisibility")
    assert {name for name in ACTIONS if not name.startswith(others)} == ACTS


@pytest.mark.parametrize("protocol", ["json", "query"])
async def test_every_act_has_a_line(service: FrontendService, protocol: str) -> None:
    source = await service.make_queue("dead")
    redrive = orjson.dumps({"deadLetterTargetArn": ARN + "dead", "maxReceiveCount": "1"}).decode()
    await service.make_queue("origin", RedrivePolicy=redrive)

    async def do(action: str, members: dict[str, Any], form: dict[str, str]) -> Any:
        answer = await (service.json(action, members) if protocol == "json" else service.query(action, form))
        assert answer.status == 200, answer.content
        line = service.audited()[-1]
        assert line["request_id"] == answer.headers["x-amzn-requestid"]
        return answer

    url = {"QueueUrl": source}
    grant = {"Label": "l", "AWSAccountIds": ["111111111111"], "Actions": ["SendMessage"]}
    grant_form = {"Label": "l", "AWSAccountId.1": "111111111111", "ActionName.1": "SendMessage"}
    await do("CreateQueue", {"QueueName": "q"}, {"QueueName": "q"})
    await do(
        "SetQueueAttributes",
        url | {"Attributes": {"DelaySeconds": "1"}},
        url | {"Attribute.1.Name": "DelaySeconds", "Attribute.1.Value": "1"},
    )
    await do("TagQueue", url | {"Tags": {"k": "v"}}, url | {"Tag.1.Key": "k", "Tag.1.Value": "v"})
    await do("UntagQueue", url | {"TagKeys": ["k"]}, url | {"TagKey.1": "k"})
    await do("AddPermission", url | grant, url | grant_form)
    await do("RemovePermission", url | {"Label": "l"}, url | {"Label": "l"})
    started = await do("StartMessageMoveTask", {"SourceArn": ARN + "dead"}, {"SourceArn": ARN + "dead"})
    handle = started.json["TaskHandle"] if protocol == "json" else started.text(".//TaskHandle")
    await do("CancelMessageMoveTask", {"TaskHandle": handle}, {"TaskHandle": handle})
    await do("PurgeQueue", url, url)
    await do("DeleteQueue", url, url)
    lines = service.audited()
    on_dead = [
        "SetQueueAttributes", "TagQueue", "UntagQueue", "AddPermission", "RemovePermission", "StartMessageMoveTask"
    ]  # fmt: skip
    assert [told(line) for line in lines] == [
        ("sqs:CreateQueue", ARN + "q", "done", ""),
        *((f"sqs:{action}", ARN + "dead", "done", "") for action in on_dead),
        ("sqs:CancelMessageMoveTask", handle, "done", ""),
        *((f"sqs:{action}", ARN + "dead", "done", "") for action in ("PurgeQueue", "DeleteQueue")),
    ]
    assert {line["action"].removeprefix("sqs:") for line in lines} == ACTS
    assert {(line["principal"], line["credential"]) for line in lines} == {
        (f"arn:aws:iam::{KEY.account}:root", KEY.access_key_id)
    }
    assert {line["address"] for line in lines} == {"127.0.0.1"}


async def test_looking_and_messages_have_none(service: FrontendService) -> None:
    url = {"QueueUrl": await service.make_queue("q")}
    await service.json("SendMessage", url | {"MessageBody": "b"})
    received = (await service.json("ReceiveMessage", url)).json["Messages"]
    await service.json("DeleteMessage", url | {"ReceiptHandle": received[0]["ReceiptHandle"]})
    for action in ("GetQueueAttributes", "ListQueueTags", "ListDeadLetterSourceQueues"):
        await service.json(action, url)
    await service.json("ListQueues")
    assert service.audited() == []


async def test_acts_that_are_refused_or_fail_have_one(service: FrontendService) -> None:
    await service.make_queue("q")
    sender = msgspec.structs.replace(new_access_key(KEY.account), name="sender", scopes=("send",))
    await service.store.put_access_key(sender)
    headers = {**JSON, "X-Amz-Target": "AmazonSQS.DeleteQueue"}
    assert (await service.signed("POST", "/", b'{"QueueUrl": "q"}', headers, sender)).status == 403
    await service.json("PurgeQueue", {"QueueUrl": "none"})
    await service.query("PurgeQueue", path=f"/{KEY.account}/none")
    await service.json("TagQueue", {"QueueUrl": "https://elsewhere/", "Tags": {"k": "v"}})
    await service.json("CreateQueue", {"QueueName": "a b"})
    service.backend.fail_with = StorageFull("full")
    await service.json("PurgeQueue", {"QueueUrl": "q"})
    lines = service.audited()
    assert [told(line) for line in lines] == [
        ("sqs:DeleteQueue", ARN + "q", "refused", "AccessDenied"),
        ("sqs:PurgeQueue", ARN + "none", "refused", "AWS.SimpleQueueService.NonExistentQueue"),
        ("sqs:PurgeQueue", ARN + "none", "refused", "AWS.SimpleQueueService.NonExistentQueue"),
        ("sqs:TagQueue", "https://elsewhere/", "refused", "AWS.SimpleQueueService.NonExistentQueue"),
        ("sqs:CreateQueue", ARN + "a b", "refused", "InvalidParameterValue"),
        ("sqs:PurgeQueue", ARN + "q", "failed", "ServiceUnavailable"),
    ]
    assert lines[0]["credential"] == sender.access_key_id


async def test_what_limits_refuse_has_none(service: FrontendService) -> None:
    """A limit would be useless if each refusal cost a write."""
    await service.make_queue("q")
    limited = Tenant(KEY.account, "tests", limits=TenantLimits(manage=Rate(0.1, 1)))
    await service.store.put_tenant(limited)
    service.app.services.credentials._forget_tenant(KEY.account)
    answers = [await service.json("TagQueue", {"QueueUrl": "q", "Tags": {"k": "v"}}) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 403, 403]
    assert [told(line) for line in service.audited()] == [("sqs:TagQueue", ARN + "q", "done", "")]


async def test_a_purge_by_anybody_has_one(service: FrontendService) -> None:
    policy = orjson.dumps({"Version": "2012-10-17", "Statement": [EVERYBODY]}).decode()
    url = await service.make_queue("public", Policy=policy)
    content = orjson.dumps({"QueueUrl": url})
    headers = {**JSON, "X-Amz-Target": "AmazonSQS.PurgeQueue"}
    assert (await service.unsigned("POST", "/", content, headers)).status == 200
    (line,) = service.audited()
    assert told(line) == ("sqs:PurgeQueue", ARN + "public", "done", "")
    assert (line["principal"], line["credential"], line["address"]) == ("anonymous", "", "127.0.0.1")


async def test_a_queue_that_a_send_makes_has_one(tmp_path: Path) -> None:
    async with running(tmp_path, FrontendSettings(auto_create_queues=True)) as service:
        for _ in range(2):
            assert (await service.json("SendMessage", {"QueueUrl": "made", "MessageBody": "b"})).status == 200
        assert [told(line) for line in service.audited()] == [("sqs:CreateQueue", ARN + "made", "done", "")]
