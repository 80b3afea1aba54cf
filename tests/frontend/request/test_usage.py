"""Metering of calls, before they are answered."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
import pytest_asyncio

from auth.credentials import Tenant, new_access_key
from auth.limits import Rate, TenantLimits
from backend.api import Unavailable
from billing.metering.buffers import Buffer, BufferFull, finished
from billing.metering.meter import Meter
from billing.metering.usage import COUNTS, UsageKey
from tests.frontend.fakes import KEY, FrontendService, running

OTHER = "222222222222"


class Metered(NamedTuple):
    """A service, and its meter."""

    service: FrontendService
    meter: Meter
    folder: Path

    async def counted(self) -> dict[UsageKey, dict[str, int]]:
        """Counts since the last call, without zero counts and bytes."""
        found = await self.all()
        return {key: {name: n for name, n in of.items() if n and "bytes" not in name} for key, of in found.items()}

    async def all(self) -> dict[UsageKey, dict[str, int]]:
        """Counts since the last call."""
        self.meter.switch()
        while self.meter._finishing:
            await asyncio.wait(set(self.meter._finishing))
        found: dict[UsageKey, dict[str, int]] = {}
        for buffer in finished(self.folder):
            for record in buffer.records():
                assert record.key not in found
                found[record.key] = dict(zip(COUNTS, record.counts, strict=True))
            buffer.remove()
            buffer.close()
        return found


@pytest_asyncio.fixture
async def metered(tmp_path: Path) -> AsyncIterator[Metered]:
    folder = tmp_path / "usage"
    meter = Meter.start(folder, "host-1")
    async with running(tmp_path, meter=meter) as service:
        yield Metered(service, meter, folder)
    await meter.close()


def key(queue: str, action: str, kind: str = "standard", account: str = KEY.account, **tags: str) -> UsageKey:
    return msgspec.convert((account, queue, 0, kind, action, tuple(tags.items())), UsageKey)


def plain(counted: dict[UsageKey, dict[str, int]]) -> dict[UsageKey, dict[str, int]]:
    """Counts without the ids of queues, which a test does not know."""
    return {msgspec.structs.replace(one, queue_id=0): counts for one, counts in counted.items()}


async def test_every_action_counts_what_it_carries(metered: Metered) -> None:
    service = metered.service
    queue = {"QueueUrl": await service.make_queue("q")}
    entries = [{"Id": str(number), "MessageBody": "x"} for number in range(3)]
    await service.json("SendMessage", queue | {"MessageBody": "x"})
    await service.query("SendMessage", queue | {"MessageBody": "x"})
    await service.json("SendMessageBatch", queue | {"Entries": entries})
    received = (await service.json("ReceiveMessage", queue | {"MaxNumberOfMessages": 10})).json["Messages"]
    assert "Messages" not in (await service.json("ReceiveMessage", queue)).json
    handles = [message["ReceiptHandle"] for message in received]
    some = [{"Id": str(number), "ReceiptHandle": handle} for number, handle in enumerate(handles[:2])]
    await service.json("ChangeMessageVisibility", queue | {"ReceiptHandle": handles[0], "VisibilityTimeout": 9})
    await service.json("DeleteMessageBatch", queue | {"Entries": [*some, {"Id": "wrong", "ReceiptHandle": "x"}]})
    await service.json("DeleteMessage", queue | {"ReceiptHandle": handles[2]})
    await service.json("GetQueueAttributes", queue)
    await service.json("ListQueues")
    assert plain(await metered.counted()) == {
        key("", "CreateQueue", ""): {"calls": 1, "chunks": 1},
        key("", "ListQueues", ""): {"calls": 1, "chunks": 1},
        key("q", "SendMessage"): {"calls": 2, "chunks": 2, "messages": 2},
        key("q", "SendMessageBatch"): {"calls": 1, "chunks": 1, "messages": 3},
        key("q", "ReceiveMessage"): {"calls": 2, "chunks": 2, "messages": len(received), "empty": 1},
        key("q", "ChangeMessageVisibility"): {"calls": 1, "chunks": 1, "messages": 1},
        key("q", "DeleteMessageBatch"): {"calls": 1, "chunks": 1, "messages": 2},
        key("q", "DeleteMessage"): {"calls": 1, "chunks": 1, "messages": 1},
        key("q", "GetQueueAttributes"): {"calls": 1, "chunks": 1},
    }


@pytest.mark.parametrize(("size", "chunks"), [(65_536, 1), (65_537, 2), (200_000, 4)])
async def test_what_is_large_counts_by_begun_chunks_of_its_bodies_and_attributes(
    metered: Metered, size: int, chunks: int
) -> None:
    service = metered.service
    queue = {"QueueUrl": await service.make_queue("q")}
    name, value = "né", b"\0\1\2"
    attributes = {name: {"DataType": "Binary", "BinaryValue": base64.b64encode(value).decode()}}
    around = len(name.encode()) + len("Binary") + len(value)
    # Two bytes each in UTF-8, and six as an escape in JSON: neither is the size that counts.
    half = "é" * ((size - around) // 2) + "x" * ((size - around) % 2)
    sent = await service.json("SendMessage", queue | {"MessageBody": half, "MessageAttributes": attributes})
    assert sent.status == 200
    entries = [{"Id": str(number), "MessageBody": "x" * (size // 2)} for number in range(2)]
    await service.json("SendMessageBatch", queue | {"Entries": [*entries, {"Id": "odd", "MessageBody": "x"}]})
    asked = {"MaxNumberOfMessages": 1, "MessageAttributeNames": ["All"]}
    first = (await service.json("ReceiveMessage", queue | asked)).json["Messages"][0]
    assert first["Body"] == half
    counted = plain(await metered.counted())
    assert counted[key("q", "SendMessage")]["chunks"] == chunks
    assert counted[key("q", "SendMessageBatch")]["chunks"] == -(-(2 * (size // 2) + 1) // 65_536)
    assert counted[key("q", "ReceiveMessage")]["chunks"] == chunks


async def test_bytes_are_those_of_the_bodies_of_requests_and_answers(metered: Metered) -> None:
    service = metered.service
    queue = {"QueueUrl": await service.make_queue("q")}
    await metered.all()
    answer = await service.json("SendMessage", body=(body := msgspec.json.encode(queue | {"MessageBody": "x" * 100})))
    wrong = await service.json("SendMessage", body=b"{}")
    ((_, counts), (_, others)) = sorted((await metered.all()).items(), key=lambda item: item[0].queue, reverse=True)
    assert (counts["bytes_in"], counts["bytes_out"]) == (len(body), len(answer.content))
    assert (others["bytes_in"], others["bytes_out"]) == (2, len(wrong.content))


async def test_kinds_and_tags_are_told_apart(metered: Metered) -> None:
    service = metered.service
    await service.json("CreateQueue", {"QueueName": "q", "tags": {"team": "a"}})
    fifo = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    await service.json("CreateQueue", {"QueueName": "o.fifo", "Attributes": fifo})
    await metered.all()
    for name, more in (("q", {}), ("q", {"MessageGroupId": "g"}), ("o.fifo", {"MessageGroupId": "g"})):
        await service.json("SendMessage", {"QueueUrl": service.url(name), "MessageBody": "x", **more})
    entries = [{"Id": "1", "MessageBody": "x"}, {"Id": "2", "MessageBody": "x", "MessageGroupId": "g"}]
    await service.json("SendMessageBatch", {"QueueUrl": service.url("q"), "Entries": entries})
    await service.json("TagQueue", {"QueueUrl": service.url("q"), "Tags": {"team": "b"}})
    await service.json("SendMessage", {"QueueUrl": service.url("q"), "MessageBody": "x"})
    counted = plain(await metered.counted())
    assert {one: counts["calls"] for one, counts in counted.items()} == {
        key("q", "SendMessage", team="a"): 1,
        key("q", "SendMessage", "fair", team="a"): 1,
        key("o.fifo", "SendMessage", "fifo"): 1,
        key("q", "SendMessageBatch", "fair", team="a"): 1,
        key("q", "TagQueue", team="a"): 1,
        key("q", "SendMessage", team="b"): 1,
    }


async def test_refused_throttled_and_failed_calls_are_counted_apart(metered: Metered) -> None:
    service = metered.service
    queue = {"QueueUrl": await service.make_queue("q")}
    await metered.all()
    await service.json("SendMessage", queue | {"MessageBody": "x", "DelaySeconds": 901})
    await service.json("SendMessage", {"QueueUrl": service.url("absent"), "MessageBody": "x"})
    service.backend.fail_with = Unavailable("no journal")
    await service.json("SendMessage", queue | {"MessageBody": "x"})
    service.backend.fail_with = None
    credentials = service.app.services.credentials
    tenant = await credentials.store.get_tenant(KEY.account)
    assert tenant is not None
    await credentials.update_tenant(msgspec.structs.replace(tenant, limits=TenantLimits(each_queue=Rate(0.001, 1))))
    for _ in range(3):
        await service.json("SendMessage", queue | {"MessageBody": "x"})
    assert plain(await metered.counted()) == {
        key("q", "SendMessage"): {
            "calls": 1,
            "chunks": 1,
            "messages": 1,
            "refused": 1,
            "throttled": 2,
            "failed": 1,
        },
        key("", "SendMessage", ""): {"refused": 1},
    }


async def test_the_owner_of_the_queue_pays_and_who_is_not_let_in_pays_for_that(metered: Metered) -> None:
    service = metered.service
    await service.store.put_tenant(Tenant(OTHER, "others"))
    other = new_access_key(OTHER)
    await service.store.put_access_key(other)
    url = await service.make_queue("open")
    await service.make_queue("closed")
    statement = {"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage", "Resource": "*"}
    policy = msgspec.json.encode({"Version": "2012-10-17", "Statement": [statement]}).decode()
    await service.json("SetQueueAttributes", {"QueueUrl": url, "Attributes": {"Policy": policy}})
    await metered.all()
    headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": "AmazonSQS.SendMessage"}
    for name in ("open", "closed"):
        body = msgspec.json.encode({"QueueUrl": service.url(name), "MessageBody": "x"})
        await service.signed("POST", "/", body, headers, other)
        await service.unsigned("POST", "/", body, headers)
    assert plain(await metered.counted()) == {
        key("open", "SendMessage"): {"calls": 2, "chunks": 2, "messages": 2},
        key("", "SendMessage", "", OTHER): {"refused": 1},
    }


async def test_messages_over_rest_are_counted_as_the_actions_that_they_are(metered: Metered) -> None:
    service = metered.service
    await service.make_queue("q")
    await metered.all()
    path = "/v1/queues/q/messages"
    sent = await service.signed("POST", path, b"hello", {"Content-Type": "text/plain"})
    assert sent.status == 201
    (received,) = (await service.get(path)).json["messages"]
    assert (await service.get(path)).status == 204
    assert (await service.get("/v1/queues")).status == 200
    assert (
        await service.signed("POST", "/v1/queues/absent/messages", b"x", {"Content-Type": "text/plain"})
    ).status == 404
    handle = received["receipt_handle"]
    assert (await service.signed("DELETE", f"{path}?receipt_handle={handle}", b"", {})).status == 204
    found = plain(await metered.all())
    assert {one: (counts["calls"], counts["refused"], counts["messages"]) for one, counts in found.items()} == {
        key("q", "SendMessage"): (1, 0, 1),
        key("q", "ReceiveMessage"): (2, 0, 1),
        key("q", "DeleteMessage"): (1, 0, 1),
        key("", "SendMessage", ""): (0, 1, 0),
    }
    assert found[key("q", "SendMessage")]["bytes_in"] == len(b"hello")
    assert found[key("q", "SendMessage")]["bytes_out"] == len(sent.content)


async def test_what_cannot_be_counted_is_not_answered_with_success(
    metered: Metered, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = metered.service
    await service.make_queue("q")
    await metered.all()

    def full(*_: object) -> int:
        raise BufferFull

    with monkeypatch.context() as patched:
        patched.setattr(Buffer, "add", full)
        answer = await service.json("SendMessage", {"QueueUrl": service.url("q"), "MessageBody": "x"})
        assert (answer.status, answer.code) == (503, "ServiceUnavailable")
        over_rest = await service.signed("POST", "/v1/queues/q/messages", b"x", {"Content-Type": "text/plain"})
        assert (over_rest.status, over_rest.json["code"]) == (503, "ServiceUnavailable")
    assert (await service.json("SendMessage", {"QueueUrl": service.url("q"), "MessageBody": "x"})).status == 200
    assert [counts["calls"] for counts in (await metered.counted()).values()] == [1]
