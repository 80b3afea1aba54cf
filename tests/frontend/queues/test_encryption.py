"""Stored messages: encrypted as the queue requires, decrypted or left out, and readable from before encryption."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from auth.encryption.data_keys import DataKey
from auth.encryption.keyring import Keyring
from backend.api import NewMessage, Target
from frontend.queues import payload
from frontend.queues.payload import Payload
from frontend.request.settings import FrontendSettings
from metadata_service.store import StoreUnavailable
from tests.frontend.fakes import KEY, FrontendService, running

SECRETS = ("recognisable-body", "recognisable-attribute", "recognisable-trace", KEY.principal_id)


def stored(service: FrontendService) -> Iterator[NewMessage]:
    for partition in service.backend.partitions.values():
        for message in partition.messages.values():
            yield message.new


async def send(service: FrontendService, url: str, **members: Any) -> str:
    answer = await service.json(
        "SendMessage",
        {
            "QueueUrl": url,
            "MessageBody": "recognisable-body",
            "MessageAttributes": {"a": {"DataType": "String", "StringValue": "recognisable-attribute"}},
            "MessageSystemAttributes": {"AWSTraceHeader": {"DataType": "String", "StringValue": "recognisable-trace"}},
            **members,
        },
    )
    assert answer.status == 200, answer.content
    return str(answer.json["MessageId"])


async def received(service: FrontendService, url: str) -> list[Any]:
    answer = await service.json(
        "ReceiveMessage",
        {"QueueUrl": url, "MaxNumberOfMessages": 10, "AttributeNames": ["All"], "MessageAttributeNames": ["All"]},
    )
    assert answer.status == 200, answer.content
    return list(answer.json.get("Messages", []))


def in_clear(service: FrontendService) -> set[str]:
    return {secret for new in stored(service) for secret in SECRETS if secret.encode() in new.payload}


async def test_nothing_of_a_message_is_stored_in_clear(service: FrontendService) -> None:
    standard = await service.make_queue("q")
    fifo = await service.make_queue("q.fifo", FifoQueue="true")
    await send(service, standard)
    await send(service, fifo, MessageGroupId="g", MessageDeduplicationId="recognisable-deduplication")
    entries = [{"Id": str(n), "MessageBody": f"recognisable-body {n}"} for n in range(10)]
    answer = await service.json("SendMessageBatch", {"QueueUrl": standard, "Entries": entries})
    assert len(answer.json["Successful"]) == 10
    assert len(list(stored(service))) == 12
    assert in_clear(service) == set()
    assert not any(b"recognisable" in new.payload for new in stored(service))

    (message,) = await received(service, fifo)
    assert message["Body"] == "recognisable-body"
    assert message["MessageAttributes"]["a"]["StringValue"] == "recognisable-attribute"
    assert message["Attributes"]["AWSTraceHeader"] == "recognisable-trace"
    assert message["Attributes"]["SenderId"] == KEY.principal_id
    assert message["Attributes"]["MessageDeduplicationId"] == "recognisable-deduplication"


@pytest.mark.parametrize(
    ("attributes", "sealed"),
    [
        ({}, True),
        ({"SqsManagedSseEnabled": "true"}, True),
        ({"SqsManagedSseEnabled": "false"}, False),
        ({"KmsMasterKeyId": "alias/mine"}, True),
    ],
)
async def test_a_queue_is_sealed_as_its_attributes_say(
    service: FrontendService, attributes: dict[str, str], sealed: bool
) -> None:
    url = await service.make_queue("q", **attributes)
    await send(service, url)
    assert in_clear(service) == (set() if sealed else set(SECRETS))
    assert [message["Body"] for message in await received(service, url)] == ["recognisable-body"]


async def test_a_service_can_be_told_not_to_seal(tmp_path: Path) -> None:
    async with running(tmp_path, FrontendSettings(encryption=False)) as service:
        url = await service.make_queue("q")
        await send(service, url)
        assert in_clear(service) == set(SECRETS)
        assert len(await received(service, url)) == 1
        asked = {"QueueUrl": url, "AttributeNames": ["All"]}
        shown = (await service.json("GetQueueAttributes", asked)).json["Attributes"]
        assert shown["SqsManagedSseEnabled"] == "false"
        wanted = {"QueueUrl": url, "Attributes": {"SqsManagedSseEnabled": "true"}}
        refused = await service.json("SetQueueAttributes", wanted)
        assert (refused.status, refused.code) == (400, "InvalidAttributeValue")
        assert await service.make_queue("q", SqsManagedSseEnabled="false") == url


async def test_messages_from_before_and_after_are_read_together(service: FrontendService) -> None:
    url = await service.make_queue("q")
    await send(service, url)
    (partition,) = service.backend.partitions.values()
    old = payload.encode(Payload(payload.FORMAT, "old body", bytes(16), "AIDAOLD"))
    settings = partition.settings
    await service.backend.send(Target(settings.partition, settings.queue_id, settings.version), [NewMessage(old)])
    assert {message["Body"] for message in await received(service, url)} == {"recognisable-body", "old body"}


async def test_what_was_tampered_with_is_reported_and_never_served(
    service: FrontendService, caplog: pytest.LogCaptureFixture
) -> None:
    url = await service.make_queue("q")
    good = await send(service, url)
    bad = [await send(service, url) for _ in range(4)]
    (partition,) = service.backend.partitions.values()
    for number, message_id in enumerate(bad):
        new = partition.messages[message_id].new
        whole = new.payload
        new.payload = [
            whole[:-1] + bytes([whole[-1] ^ 1]),  # another tag
            whole[:1] + bytes([whole[1] ^ 1]) + whole[2:],  # another key
            whole[:10],
            b"\xc1 nothing that was ever stored",
        ][number]
    assert [message["MessageId"] for message in await received(service, url)] == [good]
    lines = [record.getMessage() for record in caplog.records if record.name == "holdfast.seals"]
    assert len(lines) == 4
    for message_id, line in zip(bad, lines, strict=True):
        assert f"message {message_id} of arn:aws:sqs:us-east-1:{KEY.account}:q cannot be opened" in line
    service.clock.now += 60
    for message_id in (good, bad[0], bad[1]):
        partition.messages.pop(message_id)
    assert await received(service, url) == []


async def test_a_message_of_another_tenant_does_not_open(
    service: FrontendService, caplog: pytest.LogCaptureFixture
) -> None:
    url = await service.make_queue("q")
    keyring = service.app.services.keyring
    assert keyring is not None
    theirs = (await keyring.ready("999999999999")).seal(
        payload.encode(Payload(payload.FORMAT, "theirs", bytes(16), "AIDATHEIRS"))
    )
    message_id = await send(service, url)
    (partition,) = service.backend.partitions.values()
    partition.messages[message_id].new.payload = theirs
    assert await received(service, url) == []
    assert "cannot be opened" in caplog.text


def other_process(service: FrontendService, monkeypatch: pytest.MonkeyPatch) -> Keyring:
    """Continue the service with a keyring that has loaded nothing; returns the one that had."""
    before = service.app.services.keyring
    assert before is not None
    monkeypatch.setattr(service.app.sqs.context.seals, "_keyring", Keyring(service.store, before.masters))
    return before


def unreadable(service: FrontendService, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(account: str | None = None) -> list[DataKey]:
        raise StoreUnavailable("the store is away")

    monkeypatch.setattr(service.store, "data_keys", fail)


@pytest.mark.parametrize("guarantee", ["at-most-once", "at-least-once"])
async def test_without_its_keys_a_receive_that_deletes_is_not_begun(
    service: FrontendService, monkeypatch: pytest.MonkeyPatch, guarantee: str
) -> None:
    url = await service.make_queue("q", HoldfastDeliveryGuarantee=guarantee)
    await send(service, url)
    other_process(service, monkeypatch)
    with monkeypatch.context() as patch:
        unreadable(service, patch)
        answer = await service.json("ReceiveMessage", {"QueueUrl": url})
    assert answer.status == 503
    started = [name for name, _ in service.backend.calls if name == "receive"]
    assert started == ([] if guarantee == "at-most-once" else ["receive"])
    service.clock.now += 60
    assert [message["Body"] for message in await received(service, url)] == ["recognisable-body"]


@pytest.mark.parametrize("guarantee", ["at-most-once", "at-least-once"])
async def test_a_newer_key_that_cannot_be_loaded_costs_no_other_message(
    service: FrontendService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, guarantee: str
) -> None:
    url = await service.make_queue("q", HoldfastDeliveryGuarantee=guarantee)
    old = await send(service, url)
    elsewhere = other_process(service, monkeypatch)
    newer = await send(service, url)  # this process loads the key
    await elsewhere.renew(KEY.account)
    sealed = (await elsewhere.ready(KEY.account)).seal(payload.encode(Payload(payload.FORMAT, "x", bytes(16), "AIDA")))
    (partition,) = service.backend.partitions.values()
    partition.messages[newer].new.payload = sealed
    unreadable(service, monkeypatch)
    answer = await service.json("ReceiveMessage", {"QueueUrl": url, "MaxNumberOfMessages": 10})
    if guarantee == "at-least-once":
        assert answer.status == 503
        return
    assert [message["MessageId"] for message in answer.json["Messages"]] == [old]
    assert f"message {newer} of arn:aws:sqs:us-east-1:{KEY.account}:q is lost" in caplog.text
