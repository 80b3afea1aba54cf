"""Keys with the scope ``monitor``: permitted routes among all, by role."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest
import pytest_asyncio

from auth.credentials import AccessKey, Tenant
from auth.grants import narrowed
from auth.principal import SCOPES, Role
from frontend.alarms.alarms import Alarms
from frontend.alarms.webhooks import Webhooks
from tests.frontend.fakes import KEY, FrontendAnswer, FrontendService, running
from tests.frontend.hooks import Hook, hook
from tests.frontend.rest.resources.test_usage import Answering
from tests.frontend.rest.test_app import OTHER, key, problem

LOOKS = {"GET /v1/queues/{name}/metrics", "GET /v1/metrics", "GET /v1/alarms", "GET /v1/alarms/{name}"}
"""Routes permitted to all such keys."""
OF_ALL = {"GET /v1/availability"}
"""Routes about an account as a whole, which need one of its administrators."""
TABLE: dict[Role, set[str]] = {"user": LOOKS, "admin": LOOKS | OF_ALL, "operator": LOOKS | OF_ALL}

BODIES: dict[str, dict[str, Any]] = {
    "POST /v1/tenants": {"name": "Acme"},
    "PATCH /v1/tenants/{account}/limits": {"queues": 3},
    "POST /v1/keys": {"name": "worker", "scopes": ["monitor"]},
    "POST /v1/keys/{key_id}/rotate": {},
    "POST /v1/data-keys/rotate": {"name": "k"},
    "POST /v1/data-keys/destroy": {"name": "k", "confirm": "k"},
    "PUT /v1/roles/{name}": {"scopes": ["monitor"]},
    "POST /v1/token": {},
    "PUT /v1/clusters/{name}/weight": {"weight": 2},
    "PUT /v1/queues/{name}/partitions": {"partitions": 2},
    "POST /v1/queues/{name}/move": {},
    "POST /v1/invoices/{period}/documents": {"kind": "pdf"},
    "POST /v1/queues/{name}/messages": {"body": "b"},
    "PUT /v1/alarms/{name}": {
        "queue": "q",
        "metric": "NumberOfMessagesSent",
        "comparison": "GreaterThanThreshold",
        "threshold": 1,
        "webhook": "https://example.com/",
    },
}
"""Valid bodies of requests, so that a refusal depends only on the caller."""
QUERIES = {"DELETE /v1/queues/{name}/messages": "?receipt_handle=h"}


def monitor(role: Role, **changes: Any) -> AccessKey:
    return key(f"mon{role}{len(changes)}", role=role, scopes=("monitor",), **changes)


@pytest.fixture(scope="module")
def listening() -> Iterator[Hook]:
    with hook() as made:
        yield made


@pytest_asyncio.fixture
async def service(tmp_path: Path, listening: Hook) -> AsyncIterator[FrontendService]:
    """A service with a queue ``q``, an alarm ``q`` on it, and metered usage."""
    async with running(tmp_path) as made:
        await made.store.put_tenant(Tenant(OTHER, "others"))
        services = made.app.services
        services.lake = lake = Answering()
        lake.answer = orjson.dumps({"lines": [], "missing": [], "currency": "USD"})
        assert services.keyring is not None
        services.alarms = Alarms(made.store, services.keyring, Webhooks([ip_network("127.0.0.0/8")]), made.clock)
        await made.make_queue("q")
        given = BODIES["PUT /v1/alarms/{name}"] | {"webhook": listening.url}
        assert (await call(made, "PUT", "/v1/alarms/q", given, KEY)).status == 201
        yield made
        await services.alarms.close()


async def call(service: FrontendService, method: str, path: str, body: Any, by: AccessKey) -> FrontendAnswer:
    headers = {} if body is None else {"Content-Type": "application/json"}
    return await service.signed(method, path, b"" if body is None else orjson.dumps(body), headers, by)


@pytest.mark.parametrize("role", TABLE)
async def test_of_all_requests_these_are_answered(service: FrontendService, role: Role) -> None:
    by = monitor(role)
    await service.store.put_access_key(by)
    documented = (await service.unsigned("GET", "/openapi.json", b"", {})).json["paths"]
    requests = {f"{method.upper()} {path}" for path, of in documented.items() for method in of if path > "/v1/"}
    assert BODIES.keys() | QUERIES.keys() <= requests
    answered = set()
    for request in sorted(requests):
        method, path = request.format(
            name="q", account=KEY.account, key_id="A" * 16, node="b1", period="2026-11", job_id="1"
        ).split()
        answer = await call(service, method, path + QUERIES.get(request, ""), BODIES.get(request), by)
        if answer.status == 200:
            answered.add(request)
        else:
            assert problem(answer) == (403, "AccessDenied"), (request, answer.content)
    assert answered == TABLE[role]


async def test_the_whole_account_is_seen_without_prefixes_and_its_part_with_them(service: FrontendService) -> None:
    for name in ("orders", "bills"):
        url = await service.make_queue(name)
        await service.json("SendMessage", {"QueueUrl": url, "MessageBody": "b"})
    all_, some = monitor("user"), monitor("user", prefixes=("ord",))
    for one in (all_, some):
        await service.store.put_access_key(one)
    page = (await call(service, "GET", "/v1/metrics", None, all_)).content
    assert b'{queue="orders"} 1.0' in page
    assert b'{queue="bills"} 1.0' in page
    page = (await call(service, "GET", "/v1/metrics", None, some)).content
    assert b'{queue="orders"} 1.0' in page
    assert b'"bills"' not in page
    assert problem(await call(service, "GET", "/v1/queues/bills/metrics", None, some))[0] == 403
    assert (await call(service, "GET", "/v1/alarms", None, some)).json["alarms"] == []
    assert problem(await call(service, "GET", "/v1/alarms/q", None, some))[0] == 403


async def test_another_account_is_seen_by_operators_alone(service: FrontendService) -> None:
    theirs = f"/v1/metrics?account={OTHER}"
    for role, status in (("admin", 403), ("operator", 200)):
        by = monitor(role)  # type: ignore[arg-type]
        await service.store.put_access_key(by)
        assert (await call(service, "GET", theirs, None, by)).status == status


async def test_a_policy_that_denies_hides_the_metrics_too(service: FrontendService) -> None:
    by = monitor("user")
    await service.store.put_access_key(by)
    deny = {"Effect": "Deny", "Principal": {"AWS": by.principal.arn}, "Action": "sqs:GetQueueAttributes"}
    policy = orjson.dumps({"Version": "2012-10-17", "Statement": [deny]}).decode()
    url = f"https://queue.example.com/{KEY.account}/q"
    done = await service.json("SetQueueAttributes", {"QueueUrl": url, "Attributes": {"Policy": policy}})
    assert done.status == 200, done.content
    assert problem(await call(service, "GET", "/v1/queues/q/metrics", None, by))[0] == 403
    assert (await call(service, "GET", "/v1/queues/q/metrics", None, KEY)).status == 200


async def test_who_manages_can_make_such_keys_and_who_only_sends_cannot(service: FrontendService) -> None:
    for scopes, status in ((("manage",), 201), (SCOPES, 201)):
        by = msgspec.structs.replace(key(f"boss{len(scopes)}", role="admin"), scopes=scopes)
        await service.store.put_access_key(by)
        made = await call(service, "POST", "/v1/keys", {"name": "prometheus", "scopes": ["monitor"]}, by)
        assert made.status == status, made.content
        assert made.json["scopes"] == ["monitor"]
        assert (await call(service, "DELETE", f"/v1/keys/{made.json['id']}", None, by)).status == 200


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (SCOPES, ("monitor",), ("monitor",)),
        (("monitor", "send"), ("manage", "receive"), ("monitor",)),
        (("manage", "monitor"), SCOPES, ("manage",)),
        (SCOPES, SCOPES, SCOPES),
    ],
)
def test_monitor_is_a_part_of_manage(one: Any, other: Any, both: Any) -> None:
    assert narrowed(one, (), other, ()) == narrowed(other, (), one, ()) == (both, ())
