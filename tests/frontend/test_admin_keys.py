"""How long keys last that are made by a credential that ends; how many an account has; when they are forgotten."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest
import pytest_asyncio

from auth.api_keys import new_api_key
from auth.credentials import Tenant
from auth.oidc import Oidc, OidcSettings
from frontend.app import create_app
from tests.auth.outside import AUDIENCE, ISSUER, Issuer
from tests.frontend.fakes import Answer, Service, running
from tests.frontend.test_admin import OTHER, problem
from tests.frontend.test_admin_tenants import ADMIN, OPERATOR, USER, call

REFUSED = (403, "AccessDenied")


@pytest_asyncio.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    async with running(tmp_path) as made:
        await made.store.put_tenant(Tenant(OTHER, "others", created_s=1_700_000_000))
        for key in (OPERATOR, ADMIN, USER):
            await made.store.put_access_key(key)
        yield made


async def by_bearer(service: Service, bearer: str, method: str, path: str, body: Mapping[str, Any]) -> Answer:
    headers = {"Authorization": f"Bearer {bearer}", "Content-Type": "application/json"}
    return await service.unsigned(method, f"/v1{path}", orjson.dumps(body), headers)


async def token_of(service: Service, *, expires_s: int | None = None) -> tuple[str, str]:
    """The id of an administrator's API key, and a token that it has bought, for 600 seconds."""
    record, secret = new_api_key(OTHER, name="boss", role="admin", expires_s=expires_s)
    await service.store.put_api_key(record)
    bought = await by_bearer(service, secret, "POST", "/token", {"seconds": 600})
    assert bought.status == 201, bought.content
    return f"hf_{record.key_id}", bought.json["token"]


# --- a credential that ends -----------------------------------------------------------------------------------


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
async def test_a_token_makes_no_equal_that_lasts_longer(service: Service, given: dict[str, Any], may: bool) -> None:
    _, token = await token_of(service)
    answer = await by_bearer(service, token, "POST", "/keys", {"name": "x", **given})
    assert (answer.status == 201) == may, answer.content
    if not may:
        assert problem(answer) == REFUSED
        assert "ends in 600 seconds" in answer.json["detail"]
        assert len(await service.store.list_access_keys(OTHER)) == 2


async def test_a_token_cannot_rotate_its_way_out(service: Service) -> None:
    key_id, token = await token_of(service)
    for rotated in (key_id, ADMIN.access_key_id):
        assert problem(await by_bearer(service, token, "POST", f"/keys/{rotated}/rotate", {})) == REFUSED
    assert (await by_bearer(service, token, "POST", f"/keys/{USER.access_key_id}/rotate", {})).status == 201


async def test_a_token_of_a_key_that_ends_sooner_ends_with_that(service: Service) -> None:
    _, token = await token_of(service, expires_s=int(service.clock()) + 300)
    for seconds, status in ((301, 403), (300, 201)):
        given = {"name": "x", "role": "admin", "expires_in_seconds": seconds}
        assert (await by_bearer(service, token, "POST", "/keys", given)).status == status


@pytest.mark.parametrize("name", ["boss", "root"])
async def test_a_key_that_ends_prolongs_neither_itself_nor_its_equals(service: Service, name: str) -> None:
    """Of the root as well, whose keys have the role that they were given."""
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


async def test_an_outside_administrator_makes_keys_for_others(service: Service) -> None:
    issuer = Issuer()
    services = service.app.services
    settings = OidcSettings(ISSUER, AUDIENCE, role_claim="holdfast_role")
    services.oidc = Oidc(settings, issuer.client, clock=service.clock)
    service.app.admin = create_app(services).admin
    token = issuer.token(holdfast_account=OTHER, holdfast_role="admin", exp=service.clock() + 600).decode()
    assert (await by_bearer(service, token, "POST", "/keys", {"name": "worker"})).json["expires"] is None
    answer = await by_bearer(service, token, "POST", "/keys", {"name": "boss", "role": "admin"})
    assert problem(answer) == REFUSED
    assert "ends in 600 seconds" in answer.json["detail"]
