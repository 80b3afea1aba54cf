"""Roles over REST, and tokens bought there with API keys."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest
import pytest_asyncio

from auth.credentials import Tenant
from auth.tokens.api_keys import new_api_key
from frontend.rest.models import PREFIXES_MOST, TRUSTED_MOST
from tests.frontend.fakes import FrontendAnswer, FrontendService, running
from tests.frontend.rest.resources.test_tenants import ADMIN, OPERATOR, USER, call
from tests.frontend.rest.test_app import OTHER, problem


@pytest_asyncio.fixture
async def service(tmp_path: Path) -> AsyncIterator[FrontendService]:
    async with running(tmp_path) as made:
        await made.store.put_tenant(Tenant(OTHER, "others", created_s=1_700_000_000))
        for key in (OPERATOR, ADMIN, USER):
            await made.store.put_access_key(key)
        yield made


async def test_a_role_is_made_changed_listed_and_deleted(service: FrontendService) -> None:
    given = {"scopes": ["send"], "prefixes": ["a-"], "trusted_accounts": ["222222222222"], "trusted_subjects": ["ci"]}
    made = await call(service, "PUT", "/roles/worker", given, by=ADMIN)
    assert made.status == 200
    assert made.json["arn"] == f"arn:aws:iam::{OTHER}:role/worker"
    assert {name: made.json[name] for name in given} == given
    first = await service.store.get_role(OTHER, "worker")
    changed = await call(service, "PUT", "/roles/worker", {"session_seconds_most": 900}, by=ADMIN)
    assert (changed.json["scopes"], changed.json["session_seconds_most"]) == (["send", "receive", "manage"], 900)
    second = await service.store.get_role(OTHER, "worker")
    assert first is not None
    assert second is not None
    assert (second.role_id, second.version) == (first.role_id, first.version + 1)
    for by, path in ((ADMIN, "/roles"), (OPERATOR, f"/roles?account={OTHER}")):
        assert (await call(service, "GET", path, by=by)).json["roles"] == [changed.json]
    assert (await call(service, "GET", "/roles")).json["roles"] == []
    assert (await call(service, "DELETE", "/roles/worker", by=ADMIN)).status == 204
    assert problem(await call(service, "DELETE", "/roles/worker", by=ADMIN)) == (404, "NotFound")
    acts = [(line["action"], line["target"]) for line in service.audited() if line["outcome"] == "done"]
    arn = f"arn:aws:iam::{OTHER}:role/worker"
    assert acts == [("role.set", arn), ("role.set", arn), ("role.delete", arn)]


async def test_what_a_role_carries_is_bounded(service: FrontendService) -> None:
    """Roles of unbounded length would delay all other tenants."""
    for given in (
        {"prefixes": ["a"] * (PREFIXES_MOST + 1)},
        {"trusted_accounts": [OTHER] * (TRUSTED_MOST + 1)},
        {"trusted_subjects": ["ci"] * (TRUSTED_MOST + 1)},
    ):
        assert problem(await call(service, "PUT", "/roles/worker", given, by=ADMIN)) == (400, "InvalidRequest")
    assert await service.store.get_role(OTHER, "worker") is None


async def test_who_may_not(service: FrontendService) -> None:
    await call(service, "PUT", "/roles/worker", {})
    for method, path in (("PUT", "/roles/mine"), ("GET", "/roles"), ("DELETE", "/roles/mine")):
        body: dict[str, Any] | None = {} if method == "PUT" else None
        assert problem(await call(service, method, path, body, by=USER)) == (403, "AccessDenied")
        foreign = f"{path}?account={OPERATOR.account}"
        assert problem(await call(service, method, foreign, body, by=ADMIN)) == (403, "AccessDenied")
    assert problem(await call(service, "DELETE", "/roles/worker", by=ADMIN)) == (404, "NotFound")
    narrow = msgspec.structs.replace(ADMIN, access_key_id="AKIANARROW0000000000", prefixes=("a-",))
    await service.store.put_access_key(narrow)
    for given in ({}, {"prefixes": ["b"]}, {"prefixes": ["a-1", "a"]}):
        assert problem(await call(service, "PUT", "/roles/wide", given, by=narrow)) == (403, "AccessDenied")
    assert (await call(service, "PUT", "/roles/narrow", {"prefixes": ["a-1"]}, by=narrow)).status == 200
    assert await service.store.list_roles(OTHER) != []


@pytest.mark.parametrize("theirs", [{"prefixes": ["b-"]}, {}, {"prefixes": ["a-1"], "scopes": ["send"]}])
async def test_who_has_less_than_a_role_may_neither_change_nor_delete_it(
    service: FrontendService, theirs: dict[str, Any]
) -> None:
    narrow = msgspec.structs.replace(
        ADMIN, access_key_id="AKIANARROW0000000000", prefixes=("a-",), scopes=("receive", "manage")
    )
    await service.store.put_access_key(narrow)
    ours = {"prefixes": ["a-1"], "scopes": ["receive"]}
    assert (await call(service, "PUT", "/roles/theirs", theirs, by=ADMIN)).status == 200
    before = await service.store.get_role(OTHER, "theirs")
    for method, body in (("PUT", ours), ("DELETE", None)):
        assert problem(await call(service, method, "/roles/theirs", body, by=narrow)) == (403, "AccessDenied")
    assert await service.store.get_role(OTHER, "theirs") == before
    for method, body, status in (("PUT", ours, 200), ("PUT", ours, 200), ("DELETE", None, 204)):
        assert (await call(service, method, "/roles/ours", body, by=narrow)).status == status


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("a!b", {}),
        ("x" * 65, {}),
        ("worker", {"scopes": []}),
        ("worker", {"scopes": ["all"]}),
        ("worker", {"prefixes": ["a/b"]}),
        ("worker", {"trusted_accounts": ["*"]}),
        ("worker", {"trusted_subjects": ["a b"]}),
        ("worker", {"session_seconds_most": 899}),
        ("worker", {"unknown": 1}),
    ],
)
async def test_what_is_no_role(service: FrontendService, name: str, given: dict[str, Any]) -> None:
    assert (await call(service, "PUT", f"/roles/{name}", given)).status == 400
    assert await service.store.list_roles(OPERATOR.account) == []


# --- tokens ----------------------------------------------------------------------------------------------------


async def by_bearer(service: FrontendService, token: str, path: str, body: Any) -> FrontendAnswer:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    return await service.unsigned("POST", f"/v1{path}", orjson.dumps(body), headers)


async def test_an_api_key_buys_a_token(service: FrontendService) -> None:
    record, key = new_api_key(OTHER, scopes=["send", "manage"])
    await service.store.put_api_key(record)
    bought = await by_bearer(service, key, "/token", {"seconds": 60, "scopes": ["manage"]})
    assert bought.status == 201
    assert bought.json["expires"] == int(service.clock()) + 60
    token = bought.json["token"]
    headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": "AmazonSQS.ListQueues"}
    listed = await service.unsigned("POST", "/", b"{}", {**headers, "Authorization": f"Bearer {token}"})
    assert listed.status == 200
    assert problem(await by_bearer(service, token, "/token", {})) == (403, "AccessDenied")
    assert problem(await call(service, "POST", "/token", {})) == (403, "AccessDenied")
    for body in ({"seconds": 59}, {"seconds": 3601}, {"scopes": ["receive"]}):
        assert problem(await by_bearer(service, key, "/token", body))[0] == 400
    assert token not in str(service.audited())
    bought_line, by_token, *_ = [line for line in service.audited() if line["action"] == "token.buy"]
    assert (bought_line["outcome"], bought_line["target"]) == ("done", f"hf_{record.key_id}")
    assert bought_line["made"] == by_token["credential"], "what is done with the token is told from the rest"
    assert "made" not in by_token
