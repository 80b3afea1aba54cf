"""Lists of queues by numbers: what cannot be counted is not shown as nothing."""

import json
from typing import Any

from backend.api import AccountMeasures, CountMessages, Measures, Unavailable
from billing.reports.questions import LINES_MAX, CostsAsked
from tests.frontend.cases import CALLERS, add_callers
from tests.frontend.lake import AnsweringReader
from tests.frontend.service import FrontendService

ADMIN = CALLERS["admin"]


async def test_a_queue_that_cannot_be_counted_has_no_numbers(service: FrontendService) -> None:
    for name in ("served", "lost"):
        await service.json("CreateQueue", {"QueueName": name})
        await service.json("SendMessage", {"QueueUrl": name, "MessageBody": "m"})
    backend = service.backend

    async def measures(command: AccountMeasures) -> list[Measures]:
        return [one for one in await backend.inside.call(command) if one.queue != "lost"]

    async def count(command: CountMessages) -> Any:
        raise Unavailable("the shard has no owner")

    backend.replaced = {AccountMeasures: measures, CountMessages: count}
    listed = (await service.rest("GET", "/queues?sort=depth")).json["queues"]
    assert {one["name"]: one["messages"] and one["messages"]["visible"] for one in listed} == {
        "served": 1,
        "lost": None,
    }


def costs(*lines: tuple[str, str]) -> bytes:
    """Costs of the month by queue, as the lake answers."""
    shown = [
        {"queue": queue, "tags": "", "currency": "EUR", "amount": amount, "charges": {}} for queue, amount in lines
    ]
    texts = dict.fromkeys(("month", "account", "name", "note", "explained"), "")
    return json.dumps({**texts, "totals": [], "lines": shown, "more": 0, "forecast": None}).encode()


async def test_lists_by_cost_read_the_costs_once(service: FrontendService) -> None:
    await add_callers(service)
    for name in ("cheap", "dear", "free"):
        await service.json("CreateQueue", {"QueueName": name}, by=ADMIN)
    lake = service.app.services.lake = AnsweringReader()
    lake.answer = costs(("dear", "0.9"), ("dear", "1.25"), ("gone", "9"), ("cheap", "0.000001"))

    async def listed(query: str) -> Any:
        return (await service.rest("GET", f"/queues?sort=cost{query}", by=ADMIN)).json

    page = await listed("&limit=2")
    assert [(one["name"], one["cost"]) for one in page["queues"]] == [
        ("dear", {"amount": "2.15", "currency": "EUR"}),
        ("cheap", {"amount": "0.000001", "currency": "EUR"}),
    ]
    rest = await listed(f"&after={page['next']}")
    assert [(one["name"], one["cost"], rest["next"]) for one in rest["queues"]] == [("free", None, None)]
    assert [one["name"] for one in (await listed("&prefix=c"))["queues"]] == ["cheap"]
    assert lake.asked == [CostsAsked(ADMIN.account, "2027-01", LINES_MAX)], "it is asked once"


async def test_costs_are_for_administrators_where_usage_is_counted(service: FrontendService) -> None:
    await add_callers(service)
    refused = await service.rest("GET", "/queues?sort=cost")
    assert (refused.status, refused.json["code"]) == (403, "AccessDenied")
    followed = await service.rest("GET", "/events?sort=cost")
    assert (followed.status, followed.json["code"]) == (403, "AccessDenied")
    uncounted = await service.rest("GET", "/queues?sort=cost", by=ADMIN)
    assert (uncounted.status, uncounted.json["code"]) == (409, "UsageNotCounted")
