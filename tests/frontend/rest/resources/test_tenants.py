"""Tenants, limits and keys over REST: permissions and effects."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest
import pytest_asyncio

from auth.credentials import AccessKey, Tenant
from backend.api import Unavailable
from frontend.rest.models import PREFIXES_MOST
from frontend.rest.tenant_removal import delete_tenant, finish_deletions
from metadata_service.store import StoreUnavailable
from tests.frontend.fakes import KEY, FrontendAnswer, FrontendService, running
from tests.frontend.rest.test_app import OTHER, problem

OPERATOR = msgspec.structs.replace(
    KEY, access_key_id="AKIAOPERATOR00000000", secret="operators-secret", role="operator"
)
ADMIN = AccessKey("AKIAADMIN00000000000", "admins-secret", OTHER, "AIDAADMIN", name="boss", role="admin")
USER = AccessKey("AKIAUSER000000000000", "users-secret", OTHER, "AIDAUSER", name="worker")


@pytest_asyncio.fixture
async def service(tmp_path: Path) -> AsyncIterator[FrontendService]:
    async with running(tmp_path) as made:
        await made.store.put_tenant(Tenant(OTHER, "others", created_s=1_700_000_000))
        for key in (OPERATOR, ADMIN, USER):
            await made.store.put_access_key(key)
        yield made


async def call(
    service: FrontendService, method: str, path: str, body: Any = None, *, by: AccessKey = OPERATOR
) -> FrontendAnswer:
    content = b"" if body is None else orjson.dumps(body)
    headers = {"Content-Type": "application/json"} if content else {}
    return await service.signed(method, f"/v1{path}", content, headers, by)


async def works(service: FrontendService, key: AccessKey) -> int:
    headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": "AmazonSQS.ListQueues"}
    return (await service.signed("POST", "/", b"{}", headers, key)).status


def made_key(answer: FrontendAnswer) -> AccessKey:
    assert answer.status == 201, answer.content
    return AccessKey(answer.json["id"], answer.json["secret"], answer.json["account"], "")


# --- tenants --------------------------------------------------------------------------------------------------


async def test_create_show_and_list(service: FrontendService) -> None:
    made = await call(service, "POST", "/tenants", {"name": "Acme"})
    assert made.status == 201
    account = made.json["account"]
    assert len(account) == 12
    assert (await call(service, "GET", f"/tenants/{account}")).json == {**made.json, "stored_bytes": 0}
    assert made.json["state"] == "active"
    assert made.json["created"] == int(service.clock())
    first = (await call(service, "GET", "/tenants?limit=1")).json
    assert first["next"] == first["tenants"][0]["account"]
    everybody = (await call(service, "GET", "/tenants")).json["tenants"]
    assert {tenant["account"] for tenant in everybody} == {KEY.account, OTHER, account}


async def test_an_account_is_given_out_once(service: FrontendService) -> None:
    given = {"name": "x", "account": "333333333333"}
    assert (await call(service, "POST", "/tenants", given)).status == 201
    assert problem(await call(service, "POST", "/tenants", given)) == (409, "TenantExists")
    assert (await call(service, "DELETE", "/tenants/333333333333")).json["state"] == "deleted"
    assert problem(await call(service, "POST", "/tenants", given)) == (409, "TenantExists")
    for wrong in ({"name": "x", "account": "12"}, {"name": ""}, {"name": "a\nb"}, {}, {"name": "x", "state": "active"}):
        assert problem(await call(service, "POST", "/tenants", wrong))[0] == 400


async def test_a_suspended_tenant_is_refused_until_it_is_resumed(service: FrontendService) -> None:
    assert await works(service, USER) == 200
    assert (await call(service, "POST", f"/tenants/{OTHER}/suspend")).json["state"] == "suspended"
    assert await works(service, USER) == 403
    assert (await call(service, "POST", f"/tenants/{OTHER}/resume")).json["state"] == "active"
    assert await works(service, USER) == 200


async def test_an_operator_does_not_shut_itself_out(service: FrontendService) -> None:
    for method, path in (("POST", "/suspend"), ("DELETE", "")):
        assert problem(await call(service, method, f"/tenants/{KEY.account}{path}")) == (409, "OwnTenant")
    answer = await call(service, "DELETE", f"/keys/{OPERATOR.access_key_id}")
    assert problem(answer) == (409, "LastOperator")
    another = await call(service, "POST", "/keys", {"name": "second", "role": "operator"})
    assert another.status == 201
    assert (await call(service, "DELETE", f"/keys/{OPERATOR.access_key_id}")).json["state"] == "revoked"


async def test_deleting_a_tenant_leaves_its_record_alone(service: FrontendService) -> None:
    for number in range(3):
        headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": "AmazonSQS.CreateQueue"}
        await service.signed("POST", "/", orjson.dumps({"QueueName": f"q{number}"}), headers, USER)
    deleted = (await call(service, "DELETE", f"/tenants/{OTHER}")).json
    assert (deleted["state"], deleted["created"]) == ("deleted", 1_700_000_000)
    assert deleted["deleted"] == int(service.clock())
    assert await service.store.list_queues(OTHER, limit=10) == []
    assert len(service.backend.dropped) == 3
    assert await service.store.list_access_keys(OTHER) == []
    assert await works(service, USER) == 403
    assert (await call(service, "DELETE", f"/tenants/{OTHER}")).json == deleted
    for path in ("suspend", "resume"):
        assert problem(await call(service, "POST", f"/tenants/{OTHER}/{path}")) == (409, "TenantDeleted")
    assert problem(await call(service, "POST", f"/keys?account={OTHER}", {"name": "x"})) == (404, "NotFound")


async def test_a_deletion_that_was_cut_off_is_finished(
    service: FrontendService, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": "AmazonSQS.CreateQueue"}
    await service.signed("POST", "/", b'{"QueueName":"q"}', headers, USER)
    services = service.app.services

    async def gone(*_: Any, **__: Any) -> list[str]:
        raise StoreUnavailable("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(services.metadata, "list_queues", gone)
        assert problem(await call(service, "DELETE", f"/tenants/{OTHER}")) == (503, "ServiceUnavailable")
    assert await works(service, USER) == 403
    assert (await call(service, "GET", f"/tenants/{OTHER}")).json["state"] == "deleting"
    assert problem(await call(service, "POST", f"/tenants/{OTHER}/resume")) == (409, "TenantDeleted")
    with pytest.raises(ValueError, match="no tenant"):
        await service.store.put_access_key(USER)
    started_at = (await call(service, "GET", f"/tenants/{OTHER}")).json["deleted"]
    service.clock.now += 1000
    await finish_deletions(services)
    tenant = await service.store.get_tenant(OTHER)
    assert tenant is not None
    assert (tenant.state, tenant.deleted_s) == ("deleted", started_at)
    assert await service.store.list_queues(OTHER, limit=10) == []


CREATE = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": "AmazonSQS.CreateQueue"}


async def test_a_queue_that_is_created_during_the_deletion_is_not_left_behind(
    service: FrontendService, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = service.app.services
    tenant = await service.store.get_tenant(OTHER)
    assert tenant is not None
    create = services.metadata.create

    async def deleted_first(*arguments: Any, **named: Any) -> Any:
        assert (await delete_tenant(services, tenant)).state == "deleted"
        return await create(*arguments, **named)

    monkeypatch.setattr(services.metadata, "create", deleted_first)
    answer = await service.signed("POST", "/", b'{"QueueName":"q"}', CREATE, USER)
    assert (answer.status, answer.code) == (403, "OptInRequired")
    assert answer.message == f"The account {OTHER} is deleted."
    assert await service.store.list_queues(OTHER, limit=10) == []


async def test_a_start_deletes_what_was_created_at_the_end_of_a_deletion(service: FrontendService) -> None:
    await service.signed("POST", "/", b'{"QueueName":"q"}', CREATE, USER)
    await service.store.put_tenant(Tenant(OTHER, "others", "deleted", deleted_s=5))
    assert await service.store.list_queues(OTHER, limit=10) == ["q"]
    await finish_deletions(service.app.services)
    assert await service.store.list_queues(OTHER, limit=10) == []


async def test_what_cannot_be_finished_at_a_start_does_not_keep_it_from_starting(
    service: FrontendService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await service.store.put_tenant(Tenant(OTHER, "others", "deleting", deleted_s=5))

    async def gone(*_: Any, **__: Any) -> list[str]:
        raise StoreUnavailable("the disk is gone")

    monkeypatch.setattr(service.app.services.metadata, "list_queues", gone)
    await finish_deletions(service.app.services)
    assert OTHER in caplog.text
    tenant = await service.store.get_tenant(OTHER)
    assert tenant is not None
    assert tenant.state == "deleting"


async def test_messages_that_the_backend_keeps_for_now_do_not_stop_a_deletion(
    service: FrontendService, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": "AmazonSQS.CreateQueue"}
    await service.signed("POST", "/", b'{"QueueName":"q"}', headers, USER)

    async def refuse(*_: Any) -> None:
        raise Unavailable("starting over")

    monkeypatch.setattr(service.backend, "drop", refuse)
    tenant = await service.store.get_tenant(OTHER)
    assert tenant is not None
    assert (await delete_tenant(service.app.services, tenant)).state == "deleted"


async def test_tenants_are_for_operators(service: FrontendService) -> None:
    for by in (ADMIN, USER):
        for method, path, body in (
            ("GET", "/tenants", None),
            ("POST", "/tenants", {"name": "x"}),
            ("POST", f"/tenants/{OTHER}/suspend", None),
            ("DELETE", f"/tenants/{OTHER}", None),
            ("PATCH", f"/tenants/{OTHER}/limits", {"queues": None}),
            ("GET", f"/tenants/{KEY.account}", None),
        ):
            assert problem(await call(service, method, path, body, by=by)) == (403, "AccessDenied"), (method, path)
    assert (await call(service, "GET", f"/tenants/{OTHER}", by=ADMIN)).json["name"] == "others"
    assert (await call(service, "GET", f"/tenants/{OTHER}/limits", by=ADMIN)).status == 200
    assert problem(await call(service, "GET", f"/tenants/{OTHER}", by=USER)) == (403, "AccessDenied")
    assert problem(await call(service, "GET", "/tenants/999999999999")) == (404, "NotFound")


# --- limits ---------------------------------------------------------------------------------------------------


async def test_limits_are_set_one_by_one(service: FrontendService) -> None:
    path = f"/tenants/{OTHER}/limits"
    assert set((await call(service, "GET", path)).json.values()) == {None}
    await call(service, "PATCH", path, {"calls": {"per_second": 50, "burst": 200}, "queues": 10})
    assert (await call(service, "PATCH", path, {"queues": None, "long_polls": 0})).json == {
        "calls": {"per_second": 50.0, "burst": 200},
        "send": None,
        "receive": None,
        "manage": None,
        "each_queue": None,
        "queues": None,
        "keys": None,
        "stored_bytes": None,
        "connections": None,
        "long_polls": 0,
    }
    for wrong in ({"queues": -1}, {"queues": "10"}, {"calls": {"per_second": 0, "burst": 1}}, {"speed": 1}):
        assert problem(await call(service, "PATCH", path, wrong))[0] == 400
    assert (await call(service, "GET", path)).json["long_polls"] == 0


# --- keys -----------------------------------------------------------------------------------------------------


async def test_a_key_is_made_shown_once_and_works(service: FrontendService) -> None:
    made = await call(
        service, "POST", "/keys", {"name": "worker", "scopes": ["manage"], "expires_in_seconds": 60}, by=ADMIN
    )
    key = made_key(made)
    assert key.account == OTHER
    assert await works(service, key) == 200
    listed = (await call(service, "GET", "/keys", by=ADMIN)).json["keys"]
    (found,) = [one for one in listed if one["id"] == key.access_key_id]
    assert (found["state"], found["scopes"], found["expires"]) == ("active", ["manage"], int(service.clock()) + 60)
    assert "secret" not in found
    assert made.json["secret"] not in str(listed)
    stored = await service.store.get_access_key(key.access_key_id)
    assert stored is not None
    assert stored.principal_id == USER.principal_id  # the same user's
    service.clock.now += 61
    assert await works(service, key) == 403
    listed = (await call(service, "GET", "/keys", by=ADMIN)).json["keys"]
    assert {one["state"] for one in listed if one["id"] == key.access_key_id} == {"expired"}


async def test_rotation_leaves_time_to_change_over(service: FrontendService) -> None:
    new = made_key(await call(service, "POST", f"/keys/{USER.access_key_id}/rotate", {"keep_seconds": 100}, by=ADMIN))
    assert (await works(service, new), await works(service, USER)) == (200, 200)
    service.clock.now += 101
    assert (await works(service, new), await works(service, USER)) == (200, 403)
    stored = await service.store.get_access_key(new.access_key_id)
    assert stored is not None
    assert (stored.name, stored.principal_id) == (USER.name, USER.principal_id)


@pytest.mark.parametrize(
    ("by", "old", "status"),
    [
        (ADMIN, USER, 201),
        (ADMIN, ADMIN, 201),
        (ADMIN, msgspec.structs.replace(USER, name="root"), 403),
        (msgspec.structs.replace(ADMIN, name="root"), msgspec.structs.replace(USER, name="root"), 201),
        (msgspec.structs.replace(ADMIN, scopes=("manage",)), USER, 403),
        (
            msgspec.structs.replace(ADMIN, scopes=("manage",)),
            msgspec.structs.replace(USER, scopes=("manage",)),
            201,
        ),
        (msgspec.structs.replace(ADMIN, prefixes=("a-",)), USER, 403),
        (msgspec.structs.replace(ADMIN, prefixes=("a-",)), msgspec.structs.replace(USER, prefixes=("b-",)), 403),
        (msgspec.structs.replace(ADMIN, prefixes=("a-",)), msgspec.structs.replace(USER, prefixes=("a-b",)), 201),
    ],
)
async def test_rotation_gives_nobody_a_key_that_may_do_more(
    service: FrontendService, by: AccessKey, old: AccessKey, status: int
) -> None:
    for key in (old, by):
        await service.store.put_access_key(key)
    before = await service.store.list_access_keys(OTHER)
    answer = await call(service, "POST", f"/keys/{old.access_key_id}/rotate", {}, by=by)
    assert answer.status == status, answer.content
    if status != 201:
        assert await service.store.list_access_keys(OTHER) == before


@pytest.mark.parametrize(
    ("by", "old", "status"),
    [
        (msgspec.structs.replace(ADMIN, scopes=("manage",)), USER, 403),
        (msgspec.structs.replace(ADMIN, prefixes=("a-",)), USER, 403),
        (msgspec.structs.replace(ADMIN, prefixes=("a-",)), msgspec.structs.replace(USER, prefixes=("b-",)), 403),
        (msgspec.structs.replace(ADMIN, prefixes=("a-",)), msgspec.structs.replace(USER, prefixes=("a-b",)), 200),
        (msgspec.structs.replace(ADMIN, prefixes=("a-",)), msgspec.structs.replace(ADMIN, prefixes=("a-",)), 200),
    ],
)
async def test_who_has_less_than_a_key_may_not_revoke_it(
    service: FrontendService, by: AccessKey, old: AccessKey, status: int
) -> None:
    for key in (old, by):
        await service.store.put_access_key(key)
    answer = await call(service, "DELETE", f"/keys/{old.access_key_id}", by=by)
    assert answer.status == status, answer.content
    known = await service.store.get_access_key(old.access_key_id)
    assert known is not None
    assert known.active == (status == 403)


async def test_a_rotated_key_lives_as_long_as_the_old_one_did(service: FrontendService) -> None:
    given = {"name": "contractor", "expires_in_seconds": 1000}
    old = await call(service, "POST", "/keys", given, by=ADMIN)
    service.clock.now += 900
    new = await call(service, "POST", f"/keys/{old.json['id']}/rotate", {}, by=ADMIN)
    assert new.status == 201
    assert new.json["expires"] == int(service.clock()) + 1000


async def test_a_revoked_key_is_refused_at_once_and_stays_so(service: FrontendService) -> None:
    assert await works(service, USER) == 200
    assert (await call(service, "DELETE", f"/keys/{USER.access_key_id}", by=ADMIN)).json["state"] == "revoked"
    assert await works(service, USER) == 403
    answer = await call(service, "POST", f"/keys/{USER.access_key_id}/rotate", {}, by=ADMIN)
    assert problem(answer) == (409, "KeyRevoked")


async def test_an_api_key(service: FrontendService) -> None:
    made = await call(service, "POST", "/keys", {"name": "curl", "kind": "api", "scopes": ["send"]}, by=ADMIN)
    assert made.json["id"].startswith("hf_")
    assert made.json["secret"].startswith(made.json["id"])
    assert (await call(service, "DELETE", f"/keys/{made.json['id']}", by=ADMIN)).json["state"] == "revoked"
    new = await call(service, "POST", f"/keys/{made.json['id']}/rotate", {}, by=ADMIN)
    assert problem(new) == (409, "KeyRevoked")


@pytest.mark.parametrize(
    ("by", "given", "status"),
    [
        (USER, {"name": "x"}, 403),
        (ADMIN, {"name": "x", "role": "operator"}, 403),
        (ADMIN, {"name": "root"}, 403),
        (msgspec.structs.replace(ADMIN, scopes=("send", "receive")), {"name": "x"}, 403),
        (msgspec.structs.replace(ADMIN, scopes=("manage",)), {"name": "x"}, 403),
        (msgspec.structs.replace(ADMIN, scopes=("manage",)), {"name": "x", "scopes": ["manage"]}, 201),
        (msgspec.structs.replace(ADMIN, prefixes=("a-",)), {"name": "x"}, 403),
        (msgspec.structs.replace(ADMIN, prefixes=("a-",)), {"name": "x", "prefixes": ["b"]}, 403),
        (msgspec.structs.replace(ADMIN, prefixes=("a-",)), {"name": "x", "prefixes": ["a-b"]}, 201),
        (ADMIN, {"name": "x", "role": "admin"}, 201),
        (ADMIN, {"name": "x y"}, 400),
        (ADMIN, {"name": "x", "scopes": []}, 400),
        (ADMIN, {"name": "x", "scopes": ["all"]}, 400),
        (ADMIN, {"name": "x", "prefixes": ["a/b"]}, 400),
        (ADMIN, {"name": "x", "prefixes": ["a"] * (PREFIXES_MOST + 1)}, 400),
        (ADMIN, {"name": "x", "expires_in_seconds": 0}, 400),
        (ADMIN, {"name": "x", "expires_in_seconds": 10**15}, 400),
    ],
)
async def test_nobody_makes_a_key_that_may_do_more(
    service: FrontendService, by: AccessKey, given: dict[str, Any], status: int
) -> None:
    await service.store.put_access_key(by)
    before = len(await service.store.list_access_keys(OTHER))
    answer = await call(service, "POST", "/keys", given, by=by)
    assert answer.status == status, answer.content
    assert len(await service.store.list_access_keys(OTHER)) - before == (status == 201)


async def test_keys_of_others_are_out_of_reach(service: FrontendService) -> None:
    assert problem(await call(service, "DELETE", f"/keys/{OPERATOR.access_key_id}", by=ADMIN)) == (404, "NotFound")
    path = f"/keys/{KEY.access_key_id}?account={KEY.account}"
    assert problem(await call(service, "DELETE", path, by=ADMIN)) == (403, "AccessDenied")
    boss = msgspec.structs.replace(ADMIN, access_key_id="AKIAADMINOFOPERATORS", account=KEY.account)
    await service.store.put_access_key(boss)
    assert problem(await call(service, "DELETE", f"/keys/{OPERATOR.access_key_id}", by=boss)) == (403, "AccessDenied")
    wrong = {"name": "x", "role": "operator"}
    assert problem(await call(service, "POST", f"/keys?account={OTHER}", wrong)) == (403, "AccessDenied")
    assert (await call(service, "DELETE", f"/keys/{USER.access_key_id}?account={OTHER}")).status == 200


async def test_acts_are_audited_without_secrets(service: FrontendService) -> None:
    made = await call(service, "POST", "/keys", {"name": "x"}, by=ADMIN)
    await call(service, "POST", "/keys", {"name": "x", "role": "operator"}, by=ADMIN)
    await call(service, "DELETE", f"/keys/{made.json['id']}", by=ADMIN)
    await call(service, "POST", f"/tenants/{OTHER}/suspend")
    await call(service, "GET", "/tenants")
    assert [(line["action"], line["target"], line["outcome"]) for line in service.audited()] == [
        ("key.create", made.json["id"], "done"),
        ("key.create", f"arn:aws:iam::{OTHER}:user/x", "refused"),
        ("key.revoke", made.json["id"], "done"),
        ("tenant.suspend", OTHER, "done"),
    ]
    assert [line.get("made") for line in service.audited()] == [made.json["id"], None, None, None]
    assert made.json["secret"] not in service.audit_file.read_text()
    keeps = await call(service, "POST", f"/keys/{USER.access_key_id}/rotate?account={OTHER}", {})
    line = service.audited()[-1]
    assert (line["target"], line["made"]) == (USER.access_key_id, keeps.json["id"])
