"""Alarms over REST: permissions, and representations."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from auth.credentials import Tenant
from frontend.alarms.alarms import Alarms
from frontend.alarms.webhooks import Webhooks
from frontend.rest.resources import alarms as routes
from frontend.rest.tenant_removal import delete_tenant
from metadata_service.alarms import AlarmStatus
from tests.frontend.fakes import KEY, FrontendAnswer, FrontendService, running
from tests.frontend.hooks import Hook, hook
from tests.frontend.rest.test_app import OPERATOR, ORDERS, OTHER, SENDER, STRANGER, call, problem

GIVEN: dict[str, Any] = {
    "queue": "orders-1",
    "metric": "ApproximateAgeOfOldestMessage",
    "comparison": "GreaterThanOrEqualToThreshold",
    "threshold": 300,
    "minutes": 5,
}


@pytest.fixture
def listening() -> Iterator[Hook]:
    with hook() as made:
        yield made


@pytest_asyncio.fixture
async def service(tmp_path: Path) -> AsyncIterator[FrontendService]:
    async with running(tmp_path) as made:
        await made.store.put_tenant(Tenant(OTHER, "others"))
        for one in (OPERATOR, SENDER, ORDERS, STRANGER):
            await made.store.put_access_key(one)
        services = made.app.services
        assert services.keyring is not None
        services.alarms = Alarms(made.store, services.keyring, Webhooks([ip_network("127.0.0.0/8")]), made.clock)
        for name in ("orders-1", "secret"):
            await made.make_queue(name)
        yield made
        await services.alarms.close()


async def put(service: FrontendService, name: str, url: str, by: Any = KEY, **changes: Any) -> FrontendAnswer:
    body = json.dumps({**GIVEN, "webhook": url, **changes}).encode()
    return await call(service, "PUT", f"/v1/alarms/{name}", body, by=by)


async def test_the_life_of_an_alarm(service: FrontendService, listening: Hook) -> None:
    made = await put(service, "slow", listening.url)
    assert made.status == 201, made.content
    secret = made.json["secret"]
    assert secret.startswith("hfwh_")
    shown = (await call(service, "GET", "/v1/alarms/slow")).json
    assert shown == {key: value for key, value in made.json.items() if key != "secret"}
    assert (shown["state"], shown["webhook_host"], shown["minutes"]) == ("INSUFFICIENT_DATA", "127.0.0.1", 5)
    assert (await call(service, "GET", "/v1/alarms")).json == {"alarms": [shown]}
    assert (await call(service, "GET", "/v1/alarms?queue=secret")).json == {"alarms": []}
    tested = (await call(service, "POST", "/v1/alarms/slow/test")).json
    assert tested == {"delivered": True, "detail": "The webhook at 127.0.0.1 has heard it."}
    (told,) = listening.told
    assert told.is_signed_by(secret)
    assert (told.json["type"], told.json["state"]) == ("alarm.test", "ALARM")
    listening.statuses = [500]
    tested = (await call(service, "POST", "/v1/alarms/slow/test")).json
    assert tested == {"delivered": False, "detail": "The webhook at 127.0.0.1 has answered 500."}
    again = await put(service, "slow", listening.url, minutes=1)
    assert again.json["secret"] != secret
    assert (await call(service, "GET", "/v1/alarms/slow")).json["minutes"] == 1
    assert (await call(service, "DELETE", "/v1/alarms/slow")).status == 204
    assert problem(await call(service, "DELETE", "/v1/alarms/slow"))[0] == 404
    assert [(line["action"], line["target"]) for line in service.audited() if line["outcome"] == "done"] == [
        (f"alarm.{act}", f"alarm slow of {KEY.account}") for act in ("create", "test", "test", "create", "delete")
    ]


async def test_no_secret_is_stored_in_clear_or_shown(service: FrontendService, listening: Hook, tmp_path: Path) -> None:
    secret = (await put(service, "slow", listening.url)).json["secret"]
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("metadata.sqlite*"))
    assert b"slow" in stored
    for hidden in (secret.encode(), b"hush", b"token="):
        assert hidden not in stored
        assert hidden not in service.audit_file.read_bytes()


async def test_how_an_alarm_stands_is_shown(service: FrontendService, listening: Hook) -> None:
    await put(service, "slow", listening.url)
    found = await service.store.get_alarm(KEY.account, "slow")
    assert found is not None
    await service.store.update_alarm_status(
        found.alarm, AlarmStatus("ALARM", 100, 301.5, 90, told_s=110, trouble="away", lost=2)
    )
    shown = (await call(service, "GET", "/v1/alarms/slow")).json
    assert (shown["state"], shown["since"], shown["value"]) == ("ALARM", 100, 301.5)
    assert (shown["breaching_since"], shown["told"], shown["trouble"], shown["lost"]) == (90, 110, "away", 2)


async def test_who_may(service: FrontendService, listening: Hook) -> None:
    url = listening.url
    assert problem(await put(service, "a", url, SENDER))[0] == 403
    assert problem(await put(service, "a", url, ORDERS, queue="secret"))[0] == 403
    assert problem(await put(service, "a", url, STRANGER))[0] == 404, "it is their own queue that is meant"
    assert (await put(service, "hidden", url, queue="secret")).status == 201
    assert (await put(service, "mine", url, ORDERS)).status == 201
    listed = (await call(service, "GET", "/v1/alarms", by=ORDERS)).json["alarms"]
    assert [one["name"] for one in listed] == ["mine"]
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/test")):
        assert problem(await call(service, method, f"/v1/alarms/hidden{path}", by=ORDERS))[0] == 403
        assert problem(await call(service, method, f"/v1/alarms/hidden{path}", by=STRANGER))[0] == 404
        other = await call(service, method, f"/v1/alarms/hidden{path}?account={KEY.account}", by=STRANGER)
        assert problem(other)[0] == 403
    assert problem(await put(service, "hidden", url, ORDERS))[0] == 403, "one on another queue would go"
    assert problem(await call(service, "GET", "/v1/alarms", by=SENDER))[0] == 403
    theirs = await call(service, "GET", f"/v1/alarms/hidden?account={KEY.account}", by=OPERATOR)
    assert theirs.json["queue"] == "secret"
    assert not listening.told


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"metric": "Depth"}, "There is no metric 'Depth'; there are Approx"),
        ({"comparison": ">"}, "comparison"),
        ({"threshold": "3"}, "threshold"),
        ({"minutes": 0}, "minutes"),
        ({"minutes": 1441}, "minutes"),
        ({"webhook": "ftp://example.com"}, "The URL of a webhook begins with https"),
        ({"webhook": "https://me:pass@example.com"}, "cannot have a user name"),
        ({"treshold": 3}, "treshold"),
    ],
)
async def test_what_is_no_alarm(service: FrontendService, changes: dict[str, Any], said: str) -> None:
    answer = await put(service, "a", "https://example.com/", **changes)
    assert problem(answer) == (400, "InvalidRequest")
    assert said in answer.json["detail"]
    assert "pass@" not in answer.json["detail"]
    assert (await call(service, "GET", "/v1/alarms")).json == {"alarms": []}


async def test_names_queues_and_numbers(service: FrontendService, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "https://example.com/"
    assert problem(await put(service, "a.b", url)) == (400, "InvalidRequest")
    assert problem(await put(service, "a", url, queue="none"))[0] == 404
    monkeypatch.setattr(routes, "ALARMS_MOST", 2)
    assert [(await put(service, name, url)).status for name in ("a", "b", "a")] == [201] * 3
    assert problem(await put(service, "c", url)) == (409, "TooManyAlarms")


async def test_a_webhook_inside_is_refused_when_it_is_called(service: FrontendService) -> None:
    assert (await put(service, "inside", "https://169.254.169.254/latest/meta-data")).status == 201
    tested = (await call(service, "POST", "/v1/alarms/inside/test")).json
    assert not tested["delivered"]
    assert "not at a public address" in tested["detail"]


async def test_a_service_without_alarms_says_so(service: FrontendService, listening: Hook) -> None:
    await put(service, "slow", listening.url)
    kept, service.app.services.alarms = service.app.services.alarms, None
    for method, path in (("GET", "/v1/alarms"), ("GET", "/v1/alarms/slow"), ("POST", "/v1/alarms/slow/test")):
        assert problem(await call(service, method, path)) == (409, "AlarmsOff")
    service.app.services.alarms = kept


async def test_the_alarms_of_a_tenant_end_with_it(service: FrontendService, listening: Hook) -> None:
    await put(service, "slow", listening.url)
    tenant = await service.store.get_tenant(KEY.account)
    assert tenant is not None
    await delete_tenant(service.app.services, msgspec.structs.replace(tenant))
    assert await service.store.list_alarms(KEY.account) == []
