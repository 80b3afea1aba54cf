"""Queues with named data keys: KmsMasterKeyId, sends and receives, rotation, destruction; over SQS and REST."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from auth.credentials import Tenant
from auth.encryption.keyring import Keyring
from frontend.request.settings import FrontendSettings
from frontend.rest.tenant_removal import delete_tenant
from metadata_service.store import StoreUnavailable
from tests.auth.clock import Clock
from tests.frontend.fakes import KEY, FrontendAnswer, FrontendService, running
from tests.frontend.rest.test_app import OPERATOR, OTHER, SENDER, STRANGER, call, key, problem

ARN = f"arn:aws:kms:us-east-1:{KEY.account}"
ADMIN = key("admin", role="admin")
GONE = (400, "KMS.NotFoundException")


@pytest_asyncio.fixture
async def service(tmp_path: Path) -> AsyncIterator[FrontendService]:
    async with running(tmp_path) as made:
        await made.store.put_tenant(Tenant(OTHER, "others"))
        for one in (ADMIN, OPERATOR, SENDER, STRANGER):
            await made.store.put_access_key(one)
        yield made


async def send(service: FrontendService, url: str, body: str, **members: Any) -> None:
    answer = await service.json("SendMessage", {"QueueUrl": url, "MessageBody": body, **members})
    assert answer.status == 200, answer.content


async def received(service: FrontendService, url: str, most: int = 10) -> list[str]:
    answer = await service.json("ReceiveMessage", {"QueueUrl": url, "MaxNumberOfMessages": most})
    assert answer.status == 200, answer.content
    return [message["Body"] for message in answer.json.get("Messages", [])]


async def manage(service: FrontendService, act: str, by: Any = ADMIN, **body: Any) -> FrontendAnswer:
    return await call(service, "POST", f"/v1/data-keys/{act}", json.dumps(body).encode(), by=by)


async def destroy(service: FrontendService, name: str) -> None:
    answer = await manage(service, "destroy", name=name, confirm=name)
    assert answer.status == 200, answer.content


async def listed(service: FrontendService) -> list[tuple[str, str, int]]:
    answer = await call(service, "GET", "/v1/data-keys", by=ADMIN)
    return [(key["name"], key["state"], key["versions"]) for key in answer.json["data_keys"]]


def key_ids(service: FrontendService) -> set[int]:
    return {
        int.from_bytes(message.new.payload[1:5], "big")
        for partition in service.backend.partitions.values()
        for message in partition.messages.values()
    }


async def test_the_first_message_makes_the_key(service: FrontendService) -> None:
    url = await service.make_queue("q", KmsMasterKeyId="alias/k", KmsDataKeyReusePeriodSeconds="600")
    assert await service.make_queue("q", KmsMasterKeyId="alias/k") == url, "creating it again makes no difference"
    assert await listed(service) == []
    assert await received(service, url) == []
    await send(service, url, "m")
    assert await listed(service) == [("alias/k", "active", 1)]
    assert not any(b"MessageBody" in message.new.payload for message in service.backend.partitions[1].messages.values())
    assert await received(service, url) == ["m"]


async def test_spellings_of_one_key_and_queues_under_it(service: FrontendService) -> None:
    for number, spelling in enumerate(("k", f"{ARN}:key/k", "alias/k", f"{ARN}:alias/k", "alias/aws/sqs")):
        await send(service, await service.make_queue(f"q{number}", KmsMasterKeyId=spelling), "m")
    assert await listed(service) == [("alias/k", "active", 1), ("k", "active", 1)]
    assert len(key_ids(service)) == 3
    shown = await service.json("GetQueueAttributes", {"QueueUrl": service.url("q1"), "AttributeNames": ["All"]})
    assert shown.json["Attributes"]["KmsMasterKeyId"] == f"{ARN}:key/k", "as it was given"
    assert shown.json["Attributes"]["SqsManagedSseEnabled"] == "false"


async def test_after_a_rotation_old_and_new_are_read(service: FrontendService) -> None:
    url = await service.make_queue("q", KmsMasterKeyId="k")
    await send(service, url, "before")
    rotated = await manage(service, "rotate", name=f"{ARN}:key/k")
    assert (rotated.status, rotated.json["versions"], rotated.json["name"]) == (200, 2, "k")
    await send(service, url, "after")
    assert len(key_ids(service)) == 2
    assert await received(service, url) == ["before", "after"]


@pytest.mark.parametrize("guarantee", ["at-least-once", "at-most-once"])
async def test_calls_of_a_queue_whose_key_was_destroyed_say_so_and_touch_no_message(
    service: FrontendService, guarantee: str
) -> None:
    url = await service.make_queue("q", KmsMasterKeyId="alias/k", HoldfastDeliveryGuarantee=guarantee)
    await send(service, url, "one")
    await send(service, url, "two")
    await destroy(service, "alias/k")
    entries = {"QueueUrl": url, "Entries": [{"Id": "a", "MessageBody": "m"}, {"Id": "b", "MessageBody": "m"}]}
    form = {"QueueUrl": url, "MessageBody": "m"}
    batch = {"QueueUrl": url}
    for place, id_ in enumerate("ab", 1):
        batch |= {f"SendMessageBatchRequestEntry.{place}.{name}": id_ for name in ("Id", "MessageBody")}
    answers = [
        await service.json("SendMessage", form),
        await service.json("SendMessageBatch", entries),
        await service.json("ReceiveMessage", {"QueueUrl": url}),
        await service.json("ReceiveMessage", {"QueueUrl": url, "WaitTimeSeconds": 20}),
        await service.query("SendMessage", form),
        await service.query("SendMessageBatch", batch),
        await service.query("ReceiveMessage", {"QueueUrl": url}),
    ]
    assert [(answer.status, answer.code) for answer in answers] == [GONE] * len(answers)
    assert {answer.json["__type"] for answer in answers[:4]} == {"com.amazonaws.sqs#KmsNotFound"}
    assert all("data key alias/k was destroyed" in answer.message for answer in answers)
    sent = await call(service, "POST", "/v1/queues/q/messages", b"m", type_="text/plain")
    assert problem(sent) == GONE
    assert problem(await call(service, "GET", "/v1/queues/q/messages")) == GONE

    assert [name for name, _ in service.backend.calls if name == "receive"] == [], "nothing was claimed"
    asked = {"QueueUrl": url, "AttributeNames": ["All"]}
    shown = (await service.json("GetQueueAttributes", asked)).json["Attributes"]
    assert (shown["ApproximateNumberOfMessages"], shown["ApproximateNumberOfMessagesNotVisible"]) == ("2", "0")
    assert shown["KmsMasterKeyId"] == "alias/k"
    assert await service.make_queue("q", KmsMasterKeyId="alias/k") == url
    assert (await service.json("PurgeQueue", {"QueueUrl": url})).status == 200


async def test_a_destroyed_name_makes_no_other_key_in_no_queue(service: FrontendService) -> None:
    await send(service, await service.make_queue("q", KmsMasterKeyId="k"), "m")
    await destroy(service, "k")
    other = await service.make_queue("other", KmsMasterKeyId=f"{ARN}:key/k")
    answer = await service.json("SendMessage", {"QueueUrl": other, "MessageBody": "m"})
    assert (answer.status, answer.code) == GONE
    assert await listed(service) == [("k", "destroyed", 1)]


async def test_a_queue_with_another_key_is_served_and_leaves_out_what_cannot_be_read(service: FrontendService) -> None:
    url = await service.make_queue("q", KmsMasterKeyId="gone", VisibilityTimeout="30")
    await send(service, url, "unreadable")
    await service.json("SetQueueAttributes", {"QueueUrl": url, "Attributes": {"KmsMasterKeyId": "kept"}})
    await send(service, url, "readable")
    await destroy(service, "gone")
    assert await received(service, url) == ["readable"]
    service.clock.now += 31
    alone = await service.json("ReceiveMessage", {"QueueUrl": url})
    assert (alone.status, alone.code) == GONE
    assert "data key gone was destroyed" in alone.message
    (message, _) = service.backend.partitions[1].messages.values()
    assert message.visible_at == service.clock() + 30, "it is in flight, and comes back"
    assert await received(service, url) == ["readable"]
    service.clock.now += 31
    await service.json("SetQueueAttributes", {"QueueUrl": url, "Attributes": {"KmsMasterKeyId": ""}})
    assert await received(service, url) == ["readable"]
    peeked = (await call(service, "GET", "/v1/queues/q/peek?limit=10", by=ADMIN)).json["messages"]
    assert [one["body"] for one in peeked] == [None, "readable"]


async def test_another_frontend_serves_what_this_one_has_encrypted(service: FrontendService, tmp_path: Path) -> None:
    url = await service.make_queue("q", KmsMasterKeyId="k")
    await send(service, url, "m")
    keyring = service.app.services.keyring
    assert keyring is not None
    elsewhere = Keyring(service.store, keyring.masters)
    (message,) = service.backend.partitions[1].messages.values()
    service.app.sqs.context.seals._keyring = elsewhere
    assert await received(service, url) == ["m"]
    await elsewhere.named.destroy(KEY.account, "k")
    message.visible_at = 0
    answer = await service.json("ReceiveMessage", {"QueueUrl": url})
    assert (answer.status, answer.code) == GONE


@pytest.mark.parametrize("guarantee", ["at-least-once", "at-most-once"])
async def test_what_is_deleted_by_its_receive_is_read_also_while_the_metadata_are_away(
    service: FrontendService, monkeypatch: pytest.MonkeyPatch, guarantee: str
) -> None:
    url = await service.make_queue("q", KmsMasterKeyId="k", HoldfastDeliveryGuarantee=guarantee)
    await send(service, url, "m")
    keyring = service.app.services.keyring
    assert keyring is not None
    clock = Clock(0.0)
    elsewhere = Keyring(service.store, keyring.masters, monotonic=clock)
    await elsewhere.ready(KEY.account)
    service.app.sqs.context.seals._keyring = elsewhere
    claim = service.backend.receive

    async def after_a_while(*arguments: Any) -> Any:
        received = await claim(*arguments)
        clock.now += 20

        async def away(account: str, name: str) -> None:
            raise StoreUnavailable("the store is away")

        monkeypatch.setattr(service.store, "get_named_key", away)
        return received

    monkeypatch.setattr(service.backend, "receive", after_a_while)
    answer = await service.json("ReceiveMessage", {"QueueUrl": url})
    if guarantee == "at-least-once":
        assert answer.status == 503
    else:
        assert [message["Body"] for message in answer.json["Messages"]] == ["m"]


# --- REST ---


async def test_what_is_shown_of_a_key(service: FrontendService) -> None:
    await send(service, await service.make_queue("q", KmsMasterKeyId="k"), "m")
    now = int(service.clock())
    shown = {
        "name": "k",
        "account": KEY.account,
        "state": "active",
        "versions": 1,
        "created": now,
        "rotated": None,
        "destroyed": None,
    }
    assert (await call(service, "GET", "/v1/data-keys", by=ADMIN)).json == {"data_keys": [shown]}
    service.clock.now += 10
    rotated = (await manage(service, "rotate", name="k")).json
    assert rotated == shown | {"versions": 2, "rotated": now + 10}
    service.clock.now += 10
    destroyed = (await manage(service, "destroy", name="k", confirm="k")).json
    assert destroyed == rotated | {"state": "destroyed", "destroyed": now + 20}
    service.clock.now += 10
    assert (await manage(service, "destroy", name="k", confirm="k")).json == destroyed
    assert problem(await manage(service, "rotate", name="k")) == (409, "DataKeyDestroyed")


async def test_what_is_refused_changes_nothing(service: FrontendService) -> None:
    await send(service, await service.make_queue("q", KmsMasterKeyId="k"), "m")
    assert problem(await manage(service, "destroy", name="k")) == (400, "InvalidRequest")
    assert problem(await manage(service, "destroy", name="k", confirm="yes")) == (400, "InvalidRequest")
    assert problem(await manage(service, "destroy", name="other", confirm="other")) == (404, "NotFound")
    assert problem(await manage(service, "rotate", name="other")) == (404, "NotFound")
    for name in ("alias/aws/sqs", f"{ARN}:alias/aws/sqs"):
        assert problem(await manage(service, "destroy", name=name, confirm=name)) == (400, "InvalidRequest")
    assert problem(await manage(service, "rotate", name="x" * 2049)) == (400, "InvalidRequest")
    assert await listed(service) == [("k", "active", 1)]


async def test_who_may(service: FrontendService) -> None:
    await send(service, await service.make_queue("q", KmsMasterKeyId="k"), "m")
    monitor = key("monitor", role="admin", scopes=("monitor",))
    stranger = key("boss", role="admin", account=OTHER)
    for one in (monitor, stranger):
        await service.store.put_access_key(one)
    for by in (KEY, SENDER, STRANGER, monitor, stranger):
        assert problem(await call(service, "GET", f"/v1/data-keys?account={KEY.account}", by=by))[0] == 403
        refused = 404 if by is stranger else 403
        assert problem(await manage(service, "rotate", by, name="k"))[0] == refused
        assert problem(await manage(service, "destroy", by, name="k", confirm="k"))[0] == refused
    theirs = f"/v1/data-keys/destroy?account={OTHER}"
    answer = await call(service, "POST", theirs, b'{"name":"k","confirm":"k"}', by=OPERATOR)
    assert problem(answer) == (404, "NotFound"), "each tenant has keys of its own"
    assert await listed(service) == [("k", "active", 1)]


async def test_what_the_audit_log_says(service: FrontendService) -> None:
    await send(service, await service.make_queue("q", KmsMasterKeyId="k"), "m")
    await listed(service)
    await manage(service, "rotate", name="k")
    await manage(service, "destroy", name="k", confirm="no")
    await destroy(service, f"{ARN}:key/k")
    target = f"data key k of {KEY.account}"
    assert [(line["action"], line["target"], line["outcome"]) for line in service.audited()] == [
        ("data_key.rotate", target, "done"),
        ("data_key.destroy", target, "refused"),
        ("data_key.destroy", target, "done"),
    ]


async def test_a_deleted_tenants_keys_are_gone(service: FrontendService) -> None:
    await send(service, await service.make_queue("q", KmsMasterKeyId="k"), "m")
    tenant = await service.store.get_tenant(KEY.account)
    assert tenant is not None
    await delete_tenant(service.app.services, tenant)
    assert await service.store.named_keys() == []


async def test_a_service_that_does_not_encrypt_takes_no_key(tmp_path: Path) -> None:
    async with running(tmp_path, FrontendSettings(encryption=False)) as service:
        refused = await service.json("CreateQueue", {"QueueName": "q", "Attributes": {"KmsMasterKeyId": "k"}})
        assert (refused.status, refused.code) == (400, "InvalidAttributeValue")
