"""Keys with the scope ``monitor``: permitted routes among all, by role."""

import uuid
from collections.abc import AsyncIterator
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio

from auth.credentials import Tenant
from auth.grants import narrowed
from auth.principal import SCOPES, Role
from frontend.alarms.alarms import Alarms
from frontend.alarms.webhooks import Webhooks
from metadata_service.topics import NewTopic
from tests.frontend.cases import OTHER, key
from tests.frontend.hooks import Hook
from tests.frontend.lake import AnsweringReader
from tests.frontend.service import KEY, FrontendService, running
from tests.tables import beside

LOOKS = {
    "GET /v1/queues/{name}/metrics",
    "GET /v1/topics/{name}/metrics",
    "GET /v1/metrics",
    "GET /v1/queue-metrics",
    "GET /v1/alarms",
    "GET /v1/alarms/{name}",
    "GET /v1/caller",
    "GET /v1/queue-attributes",
    "POST /v1/token",
}
"""Routes permitted to all such keys."""
OF_ALL = {"GET /v1/availability"}
"""Routes about an account as a whole, which need one of its administrators."""
TABLE: dict[Role, set[str]] = {"user": LOOKS, "admin": LOOKS | OF_ALL, "operator": LOOKS | OF_ALL}

REQUESTS = beside(__file__, "requests.yaml")
BODIES, QUERIES = REQUESTS["bodies"], REQUESTS["queries"]


@pytest_asyncio.fixture
async def service(tmp_path: Path, listening: Hook) -> AsyncIterator[FrontendService]:
    """A service with a queue ``q``, a topic of this name, an alarm ``q`` on it, and metered usage."""
    async with running(tmp_path) as made:
        await made.store.credentials.put_tenant(Tenant(OTHER, "others"))
        services = made.app.services
        services.lake = lake = AnsweringReader()
        lake.answer = orjson.dumps({"lines": [], "missing": [], "currency": "USD"})
        assert services.keyring is not None
        services.alarms = Alarms(made.store.alarms, services.keyring, Webhooks([ip_network("127.0.0.0/8")]), made.clock)
        await made.make_queue("q")
        await made.store.topics.create_topic(NewTopic(KEY.account, "q", {}, {}, now_ms=1, queue_attributes={}))
        given = BODIES["PUT /v1/alarms/{name}"] | {"webhook": listening.url}
        assert (await made.rest("PUT", "/alarms/q", given)).status == 201
        yield made
        await services.alarms.close()


@pytest.mark.parametrize("role", TABLE)
async def test_answered_routes_by_role(service: FrontendService, role: Role) -> None:
    by = key(f"mon{role}", role=role, scopes=("monitor",))
    await service.store.credentials.put_access_key(by)
    documented = (await service.unsigned("GET", "/openapi.json", b"", {})).json["paths"]
    requests = {f"{method.upper()} {path}" for path, of in documented.items() for method in of if path > "/v1/"}
    assert BODIES.keys() | QUERIES.keys() <= requests
    answered = set()
    for request in sorted(requests):
        method, path = request.format(
            name="q",
            account=KEY.account,
            key_id="A" * 16,
            node="b1",
            period="2026-11",
            job_id="1",
            group="g",
            subscription=uuid.UUID(int=0),
        ).split()
        answer = await service.rest(
            method, path.removeprefix("/v1") + QUERIES.get(request, ""), BODIES.get(request), by=by
        )
        if answer.status in (200, 201):
            answered.add(request)
        else:
            assert answer.problem == (403, "AccessDenied"), (request, answer.content)
    assert answered == TABLE[role]


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
