"""Lists of queues by numbers: what cannot be counted is not shown as nothing."""

from typing import Any

from backend.api import AccountMeasures, CountMessages, Measures, Unavailable
from tests.frontend.service import FrontendService


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
