"""Tenants and keys: what becomes of a deletion, and of keys of one user."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from auth.credentials import AccessKey, Tenant
from backend.api import Drop, Unavailable
from backend.stream_commands import DropStream
from frontend.rest.tenant_removal import delete_tenant, finish_deletions
from metadata_service.store import StoreUnavailable
from metadata_service.streams import NewStream, Stream
from metadata_service.topics import NewSubscription, NewTopic
from tests.frontend.cases import CALLERS, OTHER, add_callers
from tests.frontend.service import KEY, FrontendAnswer, FrontendService, running

OPERATOR, ADMIN, USER = (CALLERS[name] for name in ("operator", "admin", "user"))


@pytest_asyncio.fixture
async def service(tmp_path: Path) -> AsyncIterator[FrontendService]:
    async with running(tmp_path) as made:
        await add_callers(made)
        yield made


async def works(service: FrontendService, key: AccessKey) -> int:
    return (await service.json("ListQueues", by=key)).status


async def create_stream(service: FrontendService) -> Stream:
    assert service.app.services.streams is not None
    return await service.app.services.streams.create(NewStream(OTHER, "logs", {}, {}, now_ms=0))


def made_key(answer: FrontendAnswer) -> AccessKey:
    assert answer.status == 201, answer.content
    return AccessKey(answer.json["id"], answer.json["secret"], answer.json["account"], "")


async def gone(*_: Any, **__: Any) -> list[str]:
    raise StoreUnavailable("the disk is gone")


# --- tenants --------------------------------------------------------------------------------------------------


async def test_deleting_a_tenant_leaves_its_record_alone(service: FrontendService) -> None:
    for number in range(3):
        await service.json("CreateQueue", {"QueueName": f"q{number}"}, by=USER)
    stream = await create_stream(service)
    deleted = (await service.rest("DELETE", f"/tenants/{OTHER}", by=OPERATOR)).json
    assert (deleted["state"], deleted["created"]) == ("deleted", 1_700_000_000)
    assert deleted["deleted"] == int(service.clock())
    assert await service.store.queues.list_queues(OTHER, limit=10) == []
    assert len(service.backend.calls_of(Drop)) == 3
    assert [one.partition for one in service.backend.calls_of(DropStream)] == list(stream.partition_ids)
    assert await service.store.credentials.list_access_keys(OTHER) == []


async def test_a_deletion_that_was_cut_off_is_finished(
    service: FrontendService, monkeypatch: pytest.MonkeyPatch
) -> None:
    await service.json("CreateQueue", {"QueueName": "q"}, by=USER)
    await create_stream(service)
    services = service.app.services

    with monkeypatch.context() as patch:
        patch.setattr(services.metadata, "list_queues", gone)
        assert (await service.rest("DELETE", f"/tenants/{OTHER}", by=OPERATOR)).problem == (503, "ServiceUnavailable")
    assert await works(service, USER) == 403
    assert (await service.rest("GET", f"/tenants/{OTHER}", by=OPERATOR)).json["state"] == "deleting"
    assert (await service.rest("POST", f"/tenants/{OTHER}/resume", by=OPERATOR)).problem == (409, "TenantDeleted")
    with pytest.raises(ValueError, match="no tenant"):
        await service.store.credentials.put_access_key(USER)
    started_at = (await service.rest("GET", f"/tenants/{OTHER}", by=OPERATOR)).json["deleted"]
    service.clock.now += 1000
    await finish_deletions(services)
    tenant = await service.tenant(OTHER)
    assert (tenant.state, tenant.deleted_s) == ("deleted", started_at)
    assert await service.store.queues.list_queues(OTHER, limit=10) == []
    assert await service.store.streams.list_streams(OTHER, limit=10) == []


async def test_topics_and_subscriptions_are_deleted_with_their_account(service: FrontendService) -> None:
    store, client = service.store.topics, service.app.services.topics
    assert client is not None
    theirs = await client.create(NewTopic(OTHER, "t", {}, {}, 0, {}))
    ours = await client.create(NewTopic(KEY.account, "t", {}, {}, 0, {}))
    await client.create_subscription(ours, NewSubscription(ours.topic_id, OTHER, "sqs", "arn:q", {}, 0))
    kept = await client.create_subscription(ours, NewSubscription(ours.topic_id, KEY.account, "sqs", "arn:r", {}, 0))
    assert (await delete_tenant(service.app.services, await service.tenant(OTHER))).state == "deleted"
    assert await store.list_topics(OTHER, limit=10) == []
    assert await service.store.queues.get_queue_by_id(theirs.topic_id) is None
    assert [command.target.queue_id for command in service.backend.calls_of(Drop)] == [theirs.topic_id]
    assert await store.topic_subscriptions(ours.topic_id, limit=10) == [kept]
    assert await service.store.queues.get_queue_by_id(ours.topic_id) is not None


async def test_a_queue_that_is_created_during_the_deletion_is_not_left_behind(
    service: FrontendService, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = service.app.services
    tenant = await service.tenant(OTHER)
    create = services.metadata.create

    async def deleted_first(*arguments: Any, **named: Any) -> Any:
        assert (await delete_tenant(services, tenant)).state == "deleted"
        return await create(*arguments, **named)

    monkeypatch.setattr(services.metadata, "create", deleted_first)
    answer = await service.json("CreateQueue", {"QueueName": "q"}, by=USER)
    assert (answer.status, answer.code) == (403, "OptInRequired")
    assert answer.message == f"The account {OTHER} is deleted."
    assert await service.store.queues.list_queues(OTHER, limit=10) == []


async def test_a_start_deletes_what_was_created_at_the_end_of_a_deletion(service: FrontendService) -> None:
    await service.json("CreateQueue", {"QueueName": "q"}, by=USER)
    stream = await create_stream(service)
    await service.store.credentials.put_tenant(Tenant(OTHER, "others", "deleted", deleted_s=5))
    assert await service.store.queues.list_queues(OTHER, limit=10) == ["q"]
    assert await service.store.streams.list_streams(OTHER, limit=10) == [stream]
    await finish_deletions(service.app.services)
    assert await service.store.queues.list_queues(OTHER, limit=10) == []
    assert await service.store.streams.list_streams(OTHER, limit=10) == []
    assert service.app.services.streams is not None
    assert service.app.services.streams.cached(OTHER, "logs") is None


async def test_a_deletion_that_cannot_be_finished_does_not_prevent_a_start(
    service: FrontendService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await service.store.credentials.put_tenant(Tenant(OTHER, "others", "deleting", deleted_s=5))

    monkeypatch.setattr(service.app.services.metadata, "list_queues", gone)
    await finish_deletions(service.app.services)
    assert OTHER in caplog.text
    tenant = await service.tenant(OTHER)
    assert tenant.state == "deleting"


async def test_messages_that_the_backend_keeps_for_now_do_not_stop_a_deletion(service: FrontendService) -> None:
    await service.json("CreateQueue", {"QueueName": "q"}, by=USER)

    service.backend.fail_with = Unavailable("starting over")
    tenant = await service.tenant(OTHER)
    assert (await delete_tenant(service.app.services, tenant)).state == "deleted"


async def test_twins_do_not_exceed_the_quota_of_keys(service: FrontendService) -> None:
    await service.rest("PATCH", f"/tenants/{OTHER}/limits", {"keys": 6}, by=OPERATOR)
    twins = (service.rest("POST", "/keys", {"name": f"twin-{number}"}, by=ADMIN) for number in range(8))
    assert sorted(answer.status for answer in await asyncio.gather(*twins)) == [201] * 3 + [409] * 5


async def test_keys_of_a_user_share_its_principal_and_secrets_are_not_audited(service: FrontendService) -> None:
    made = made_key(await service.rest("POST", "/keys", {"name": USER.name}, by=ADMIN))
    rotated = made_key(await service.rest("POST", f"/keys/{USER.access_key_id}/rotate", {}, by=ADMIN))
    for key in (made, rotated):
        stored = await service.store.credentials.get_access_key(key.access_key_id)
        assert stored is not None
        assert (stored.name, stored.principal_id) == (USER.name, USER.principal_id)
        assert key.secret not in service.audit_file.read_text()
