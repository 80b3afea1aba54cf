"""Expiry of keys made with an expiring credential; the quota of keys; the removal of ended ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest
import pytest_asyncio

from auth.credentials import Tenant
from auth.tokens.api_keys import new_api_key
from auth.tokens.oidc import Oidc, OidcSettings
from frontend.app import create_app
from frontend.rest import key_records
from frontend.rest.resources import roles
from tests.auth.outside import AUDIENCE, ISSUER, OidcIssuer
from tests.frontend.fakes import FrontendAnswer, FrontendService, running
from tests.frontend.rest.resources.test_tenants import ADMIN, OPERATOR, USER, call
from tests.frontend.rest.test_app import OTHER, problem

REFUSED = (403, "AccessDenied")


@pytest_asyncio.fixture
async def service(tmp_path: Path) -> AsyncIterator[FrontendService]:
    async with running(tmp_path) as made:
        await made.store.put_tenant(Tenant(OTHER, "others", created_s=1_700_000_000))
        for key in (OPERATOR, ADMIN, USER):
            await made.store.put_access_key(key)
        yield made


async def by_bearer(
    service: FrontendService, bearer: str, method: str, path: str, body: Mapping[str, Any]
) -> FrontendAnswer:
    headers = {"Authorization": f"Bearer {bearer}", "Content-Type": "application/json"}
    return await service.unsigned(method, f"/v1{path}", orjson.dumps(body), headers)


async def token_of(service: FrontendService, *, expires_s: int | None = None) -> tuple[str, str]:
    """Id of an administrator's API key, and a token bought with it, for 600 seconds."""
    record, secret = new_api_key(OTHER, name="boss", role="admin", expires_s=expires_s)
    await service.store.put_api_key(record)
    bought = await by_bearer(service, secret, "POST", "/token", {"seconds": 600})
    assert bought.status == 201, bought.content
    return f"hf_{record.key_id}", bought.json["token"]


# --- an expiring credential -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "may"),
    [
        ({"role": "admin"}, False),
        ({"role": "admin", "expires_in_seconds": 601}, False),
        ({"role": "admin", "expires_in_seconds": 600}, True),
        ({"role": "user"}, True),
        ({"role": "user", "expires_in_seconds": 100_000}, True),
    ],
)
async def test_a_token_makes_no_equal_that_lasts_longer(
    service: FrontendService, given: dict[str, Any], may: bool
) -> None:
    _, token = await token_of(service)
    answer = await by_bearer(service, token, "POST", "/keys", {"name": "x", **given})
    assert (answer.status == 201) == may, answer.content
    if not may:
        assert problem(answer) == REFUSED
        assert "ends in 600 seconds" in answer.json["detail"]
        assert len(await service.store.list_access_keys(OTHER)) == 2


async def test_a_token_cannot_rotate_its_way_out(service: FrontendService) -> None:
    key_id, token = await token_of(service)
    for rotated in (key_id, ADMIN.access_key_id):
        assert problem(await by_bearer(service, token, "POST", f"/keys/{rotated}/rotate", {})) == REFUSED
    assert (await by_bearer(service, token, "POST", f"/keys/{USER.access_key_id}/rotate", {})).status == 201


async def test_a_token_of_a_key_that_ends_sooner_ends_with_that(service: FrontendService) -> None:
    _, token = await token_of(service, expires_s=int(service.clock()) + 300)
    for seconds, status in ((301, 403), (300, 201)):
        given = {"name": "x", "role": "admin", "expires_in_seconds": seconds}
        assert (await by_bearer(service, token, "POST", "/keys", given)).status == status


@pytest.mark.parametrize("name", ["boss", "root"])
async def test_a_key_that_ends_prolongs_neither_itself_nor_its_equals(service: FrontendService, name: str) -> None:
    """Also for the root, whose keys have the role that they were given."""
    ends_s = int(service.clock()) + 1000
    contractor = msgspec.structs.replace(
        ADMIN, access_key_id="AKIACONTRACTOR000000", name=name, created_s=int(service.clock()) - 9000, expires_s=ends_s
    )
    await service.store.put_access_key(contractor)
    for given in ({"role": "admin"}, {"role": "admin", "expires_in_seconds": 1001}):
        assert problem(await call(service, "POST", "/keys", {"name": "x", **given}, by=contractor)) == REFUSED
    if name == "root":
        assert problem(await call(service, "POST", "/keys", {"name": "root"}, by=contractor)) == REFUSED
    assert problem(await call(service, "POST", f"/keys/{ADMIN.access_key_id}/rotate", {}, by=contractor)) == REFUSED
    rotated = await call(service, "POST", f"/keys/{contractor.access_key_id}/rotate", {}, by=contractor)
    assert (rotated.status, rotated.json["expires"]) == (201, ends_s), "another secret, not another end"
    lasting = await call(service, "POST", f"/keys/{contractor.access_key_id}/rotate?account={OTHER}", {})
    assert lasting.json["expires"] == int(service.clock()) + 10_000, "whoever lasts can prolong it"


async def test_an_outside_administrator_makes_keys_for_others(service: FrontendService) -> None:
    issuer = OidcIssuer()
    services = service.app.services
    settings = OidcSettings(ISSUER, AUDIENCE, role_claim="holdfast_role")
    services.oidc = Oidc(settings, issuer.client, clock=service.clock)
    service.app.admin = create_app(services).admin
    token = issuer.token(holdfast_account=OTHER, holdfast_role="admin", exp=service.clock() + 600).decode()
    assert (await by_bearer(service, token, "POST", "/keys", {"name": "worker"})).json["expires"] is None
    answer = await by_bearer(service, token, "POST", "/keys", {"name": "boss", "role": "admin"})
    assert problem(answer) == REFUSED
    assert "ends in 600 seconds" in answer.json["detail"]


# --- quota ----------------------------------------------------------------------------------------------------


async def make(service: FrontendService, name: str = "x", **given: Any) -> FrontendAnswer:
    return await call(service, "POST", "/keys", {"name": name, **given}, by=ADMIN)


async def ids(service: FrontendService) -> set[str]:
    return {key["id"] for key in (await call(service, "GET", "/keys", by=ADMIN)).json["keys"]}


async def test_the_quota_of_keys(service: FrontendService) -> None:
    limits = f"/tenants/{OTHER}/limits"
    assert (await call(service, "PATCH", limits, {"keys": 4})).json["keys"] == 4
    third, fourth = await make(service), await make(service, kind="api")
    before = await ids(service)
    for refused in (await make(service), await make(service, kind="api")):
        assert problem(refused) == (409, "TooManyKeys")
        assert refused.json["detail"].startswith(f"The account {OTHER} has 4 keys, and its quota 'keys' is 4. Revoke ")
    assert problem(await call(service, "POST", f"/keys/{third.json['id']}/rotate", {}, by=ADMIN))[0] == 409
    assert await ids(service) == before
    stored = await service.store.get_access_key(third.json["id"])
    assert stored is not None
    assert stored.expires_s is None, "what is not replaced goes on"
    await call(service, "DELETE", f"/keys/{fourth.json['id']}", by=ADMIN)
    assert (await make(service, expires_in_seconds=10)).status == 201
    assert (await make(service)).status == 409
    service.clock.now += 10
    assert (await make(service)).status == 201, "neither revoked nor expired ones count"
    await call(service, "PATCH", limits, {"keys": None})
    assert (await make(service)).status == 201


async def test_there_is_a_quota_where_nobody_set_one(service: FrontendService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_records, "KEYS_MOST", 2)
    assert problem(await make(service)) == (409, "TooManyKeys")


async def test_twins_do_not_exceed_the_quota(service: FrontendService) -> None:
    await call(service, "PATCH", f"/tenants/{OTHER}/limits", {"keys": 5})
    answers = await asyncio.gather(*(make(service, f"twin-{n}") for n in range(8)))
    assert sorted(answer.status for answer in answers) == [201] * 3 + [409] * 5


async def test_keys_that_ended_long_ago_are_forgotten(service: FrontendService) -> None:
    revoked, expired = (await make(service)).json["id"], (await make(service, "y", expires_in_seconds=60)).json["id"]
    api = (await make(service, kind="api")).json["id"]
    for key_id in (revoked, api):
        await call(service, "DELETE", f"/keys/{key_id}", by=ADMIN)
    service.clock.now += key_records.ENDED_SECONDS - 1
    await call(service, "DELETE", f"/keys/{revoked}", by=ADMIN)  # a second revocation does not change its end
    kept = (await make(service)).json["id"]
    assert {revoked, expired, api, kept} <= await ids(service)
    service.clock.now += 1
    await make(service)
    assert await ids(service) & {revoked, expired, api, kept} == {expired, kept}
    service.clock.now += 60
    await call(service, "DELETE", f"/keys/{kept}", by=ADMIN)
    assert await ids(service) & {expired, kept} == {kept}
    assert problem(await call(service, "POST", f"/keys/{revoked}/rotate", {}, by=ADMIN)) == (404, "NotFound")


async def test_an_expired_key_that_is_rotated_is_not_forgotten_under_way(service: FrontendService) -> None:
    old = (await make(service, expires_in_seconds=60)).json["id"]
    service.clock.now += 60 + key_records.ENDED_SECONDS
    assert (await call(service, "POST", f"/keys/{old}/rotate", {}, by=ADMIN)).status == 201


async def test_only_so_many_that_ended_are_kept(service: FrontendService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_records, "ENDED_MOST", 2)
    made = [(await make(service)).json["id"] for _ in range(4)]
    for key_id in made:
        service.clock.now += 1
        assert (await call(service, "DELETE", f"/keys/{key_id}", by=ADMIN)).json["state"] == "revoked"
    assert await ids(service) == {ADMIN.access_key_id, USER.access_key_id, *made[2:]}


async def test_keys_of_operators_are_never_forgotten(service: FrontendService) -> None:
    """A key configured in the settings would become valid again at the next start."""
    made = (await call(service, "POST", "/keys", {"name": "boss", "role": "operator"})).json["id"]
    await call(service, "DELETE", f"/keys/{made}")
    service.clock.now += 10 * key_records.ENDED_SECONDS
    await call(service, "POST", "/keys", {"name": "x"})
    stored = await service.store.get_access_key(made)
    assert stored is not None
    assert not stored.active


async def test_a_key_that_an_older_holdfast_revoked(service: FrontendService) -> None:
    long_ago = int(service.clock()) - key_records.ENDED_SECONDS
    await service.store.put_access_key(msgspec.structs.replace(USER, active=False, created_s=long_ago))
    await make(service)
    assert USER.access_key_id not in await ids(service)


async def test_roles_are_bounded_too(service: FrontendService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roles, "ROLES_MOST", 1)
    assert (await call(service, "PUT", "/roles/a", {}, by=ADMIN)).status == 200
    assert problem(await call(service, "PUT", "/roles/b", {}, by=ADMIN)) == (409, "TooManyRoles")
    assert (await call(service, "PUT", "/roles/a", {}, by=ADMIN)).status == 200
