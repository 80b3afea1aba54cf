"""Named data keys with several processes; tests/frontend/cases/data_keys.yaml has the rest."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from auth.encryption.keyring import Keyring
from backend.api import Receive, ReceivedMessage
from frontend.rest.tenant_removal import delete_tenant
from metadata_service.store import StoreUnavailable
from tests.auth.clock import Clock
from tests.frontend.cases import key
from tests.frontend.service import KEY, FrontendService, running

ARN = f"arn:aws:kms:us-east-1:{KEY.account}"
ADMIN = key("admin", role="admin")
GONE = (400, "KMS.NotFoundException")


@pytest_asyncio.fixture
async def service(tmp_path: Path) -> AsyncIterator[FrontendService]:
    async with running(tmp_path) as made:
        await made.store.credentials.put_access_key(ADMIN)
        yield made


async def listed(service: FrontendService) -> list[tuple[str, str, int]]:
    answer = await service.rest("GET", "/data-keys", by=ADMIN)
    return [(key["name"], key["state"], key["versions"]) for key in answer.json["data_keys"]]


async def key_ids(service: FrontendService) -> set[int]:
    return {int.from_bytes((message.payload or b"")[1:5], "big") for message in await service.backend.stored()}


async def test_spellings_of_one_key_and_queues_under_it(service: FrontendService) -> None:
    for number, spelling in enumerate(("k", f"{ARN}:key/k", "alias/k", f"{ARN}:alias/k", "alias/aws/sqs")):
        await service.send(await service.make_queue(f"q{number}", KmsMasterKeyId=spelling), "m")
    assert await listed(service) == [("alias/k", "active", 1), ("k", "active", 1)]
    assert len(await key_ids(service)) == 3
    shown = await service.json("GetQueueAttributes", {"QueueUrl": service.url("q1"), "AttributeNames": ["All"]})
    assert shown.json["Attributes"]["KmsMasterKeyId"] == f"{ARN}:key/k", "as it was given"
    assert shown.json["Attributes"]["SqsManagedSseEnabled"] == "false"


async def test_another_frontend_serves_what_this_one_has_encrypted(service: FrontendService, tmp_path: Path) -> None:
    url = await service.make_queue("q", KmsMasterKeyId="k")
    await service.send(url, "m")
    keyring = service.app.services.keyring
    assert keyring is not None
    other_process = Keyring(service.store, keyring.masters)
    service.app.context.encryption._keyring = other_process
    assert await service.received(url) == ["m"]
    await other_process.named.destroy(KEY.account, "k")
    service.clock.now += 31
    answer = await service.json("ReceiveMessage", {"QueueUrl": url})
    assert (answer.status, answer.code) == GONE


@pytest.mark.parametrize("guarantee", ["at-least-once", "at-most-once"])
async def test_messages_deleted_by_their_receive_are_read_while_the_metadata_are_away(
    service: FrontendService, monkeypatch: pytest.MonkeyPatch, guarantee: str
) -> None:
    url = await service.make_queue("q", KmsMasterKeyId="k", HoldfastDeliveryGuarantee=guarantee)
    await service.send(url, "m")
    keyring = service.app.services.keyring
    assert keyring is not None
    clock = Clock(0.0)
    other_process = Keyring(service.store, keyring.masters, monotonic=clock)
    await other_process.ready(KEY.account)
    service.app.context.encryption._keyring = other_process

    async def after_a_while(command: Receive) -> list[ReceivedMessage]:
        received = await service.backend.inside.call(command)
        clock.now += 20

        async def away(account: str, name: str) -> None:
            raise StoreUnavailable("the store is away")

        monkeypatch.setattr(service.store.named_keys, "get_named_key", away)
        return received

    service.backend.replaced[Receive] = after_a_while
    answer = await service.json("ReceiveMessage", {"QueueUrl": url})
    if guarantee == "at-least-once":
        assert answer.status == 503
    else:
        assert [message["Body"] for message in answer.json["Messages"]] == ["m"]


async def test_a_deleted_tenants_keys_are_gone(service: FrontendService) -> None:
    await service.send(await service.make_queue("q", KmsMasterKeyId="k"), "m")
    tenant = await service.tenant()
    await delete_tenant(service.app.services, tenant)
    assert await service.store.named_keys.named_keys() == []
