"""Stored messages that cannot be decrypted; tests/frontend/cases/encryption.yaml says what is encrypted."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from auth.encryption.data_keys import DataKey
from auth.encryption.keyring import Keyring
from backend.api import NewMessage, Receive, ReceivedMessage, Send
from frontend.queues import payload
from frontend.queues.payload import Payload
from metadata_service.store import StoreUnavailable
from tests.frontend.service import KEY, FrontendService

BODY = "recognisable-body"


def tamper(service: FrontendService, changes: Mapping[str, Callable[[bytes], bytes]]) -> None:
    """Change the payloads of these messages on their way to receives."""

    async def receive(command: Receive) -> list[ReceivedMessage]:
        messages = await service.backend.inside.call(command)
        for message in messages:
            message.payload = changes.get(message.message_id, bytes)(message.payload)
        return messages

    service.backend.replaced[Receive] = receive


async def received(service: FrontendService, url: str) -> list[Any]:
    answer = await service.json("ReceiveMessage", {"QueueUrl": url, "MaxNumberOfMessages": 10})
    assert answer.status == 200, answer.content
    return list(answer.json.get("Messages", []))


async def test_messages_from_before_and_after_are_read_together(service: FrontendService) -> None:
    url = await service.make_queue("q")
    await service.send(url, BODY)
    old = payload.encode(Payload(payload.FORMAT, "old body", bytes(16), "AIDAOLD"))
    await service.backend.call(Send(service.backend.calls_of(Send)[-1].target, [NewMessage(old)]))
    assert {message["Body"] for message in await received(service, url)} == {BODY, "old body"}


async def test_tampered_messages_are_reported_and_never_served(
    service: FrontendService, caplog: pytest.LogCaptureFixture
) -> None:
    url = await service.make_queue("q")
    good = await service.send(url, BODY)
    bad = [await service.send(url, BODY) for _ in range(4)]
    changes: list[Callable[[bytes], bytes]] = [
        lambda whole: whole[:-1] + bytes([whole[-1] ^ 1]),  # another tag
        lambda whole: whole[:1] + bytes([whole[1] ^ 1]) + whole[2:],  # another key
        lambda whole: whole[:10],
        lambda _: b"\xc1 nothing that was ever stored",
    ]
    tamper(service, dict(zip(bad, changes, strict=True)))
    (message,) = await received(service, url)
    assert message["MessageId"] == good
    lines = [record.getMessage() for record in caplog.records if record.name == "holdfast.encryption"]
    assert len(lines) == 4
    for message_id, line in zip(bad, lines, strict=True):
        assert f"message {message_id} of arn:aws:sqs:us-east-1:{KEY.account}:q cannot be decrypted" in line
    await service.json("DeleteMessage", {"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"]})
    service.clock.now += 60
    assert await received(service, url) == []


async def test_a_message_of_another_tenant_does_not_open(
    service: FrontendService, caplog: pytest.LogCaptureFixture
) -> None:
    url = await service.make_queue("q")
    keyring = service.app.services.keyring
    assert keyring is not None
    foreign = (await keyring.ready("999999999999")).encrypt(
        payload.encode(Payload(payload.FORMAT, "theirs", bytes(16), "AIDATHEIRS"))
    )
    message_id = await service.send(url, BODY)
    tamper(service, {message_id: lambda _: foreign})
    assert await received(service, url) == []
    assert "cannot be decrypted" in caplog.text


def other_process(service: FrontendService, monkeypatch: pytest.MonkeyPatch) -> Keyring:
    """Continue the service with a keyring that has loaded nothing; returns the one that had."""
    before = service.app.services.keyring
    assert before is not None
    monkeypatch.setattr(service.app.context.encryption, "_keyring", Keyring(service.store, before.masters))
    return before


def unreadable(service: FrontendService, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(account: str | None = None) -> list[DataKey]:
        raise StoreUnavailable("the store is away")

    monkeypatch.setattr(service.store.data_keys, "data_keys", fail)


async def test_keys_loaded_for_a_message_decrypt_the_others_at_once(
    service: FrontendService, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = await service.make_queue("q")
    for _ in range(3):
        await service.send(url, BODY)
    other_process(service, monkeypatch)
    loading: list[str] = []
    decrypt = Keyring.decrypt

    async def decrypt_loading(keyring: Keyring, account: str, *rest: bytes, stale: bool = False) -> bytes:
        loading.append(account)
        return await decrypt(keyring, account, *rest, stale=stale)

    monkeypatch.setattr(Keyring, "decrypt", decrypt_loading)
    assert [message["Body"] for message in await received(service, url)] == [BODY] * 3
    assert loading == [KEY.account]


async def test_keys_destroyed_during_a_receive_decrypt_none_of_its_other_messages(
    service: FrontendService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    url = await service.make_queue("q")
    for _ in range(2):
        await service.send(url, BODY)

    async def receive(command: Receive) -> list[ReceivedMessage]:
        messages = await service.backend.inside.call(command)
        first = messages[0]
        first.payload = first.payload[:1] + bytes([first.payload[1] ^ 1]) + first.payload[2:]  # a key to be looked up
        return messages

    service.backend.replaced[Receive] = receive
    keyring = service.app.services.keyring
    assert keyring is not None
    data_keys = service.store.data_keys.data_keys

    async def destroy(account: str | None = None) -> list[DataKey]:
        await keyring.destroy_tenant_keys(KEY.account)
        return await data_keys(account)

    monkeypatch.setattr(service.store.data_keys, "data_keys", destroy)
    assert await received(service, url) == []
    assert caplog.text.count("cannot be decrypted") == 2


@pytest.mark.parametrize("guarantee", ["at-most-once", "at-least-once"])
async def test_without_its_keys_a_receive_that_deletes_is_not_started(
    service: FrontendService, monkeypatch: pytest.MonkeyPatch, guarantee: str
) -> None:
    url = await service.make_queue("q", HoldfastDeliveryGuarantee=guarantee)
    await service.send(url, BODY)
    other_process(service, monkeypatch)
    with monkeypatch.context() as patch:
        unreadable(service, patch)
        answer = await service.json("ReceiveMessage", {"QueueUrl": url})
    assert answer.status == 503
    assert len(service.backend.calls_of(Receive)) == (guarantee == "at-least-once")
    service.clock.now += 60
    assert [message["Body"] for message in await received(service, url)] == [BODY]


@pytest.mark.parametrize("guarantee", ["at-most-once", "at-least-once"])
async def test_a_newer_key_that_cannot_be_loaded_costs_no_other_message(
    service: FrontendService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, guarantee: str
) -> None:
    url = await service.make_queue("q", HoldfastDeliveryGuarantee=guarantee)
    old = await service.send(url, BODY)
    other_process_ = other_process(service, monkeypatch)
    newer = await service.send(url, BODY)  # this process loads the key
    await other_process_.renew(KEY.account)
    encrypted = (await other_process_.ready(KEY.account)).encrypt(
        payload.encode(Payload(payload.FORMAT, "x", bytes(16), "AIDA"))
    )
    tamper(service, {newer: lambda _: encrypted})
    unreadable(service, monkeypatch)
    answer = await service.json("ReceiveMessage", {"QueueUrl": url, "MaxNumberOfMessages": 10})
    if guarantee == "at-least-once":
        assert answer.status == 503
        return
    assert [message["MessageId"] for message in answer.json["Messages"]] == [old]
    assert f"message {newer} of arn:aws:sqs:us-east-1:{KEY.account}:q is lost" in caplog.text
