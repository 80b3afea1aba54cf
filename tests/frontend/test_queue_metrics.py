"""Metrics of queues: permissions, JSON, and pages for Prometheus."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from auth.credentials import Tenant
from backend.api import Measures, StorageFull
from frontend import queue_metrics
from frontend.queue_metrics import METRICS, TRUNCATED, QueueMetrics
from tests.frontend.fakes import KEY, FrontendService, running
from tests.frontend.rest.test_app import OPERATOR, ORDERS, OTHER, SENDER, STRANGER, call, problem

ROOT = Path(__file__).resolve().parents[2]


@pytest_asyncio.fixture
async def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FrontendService]:
    monkeypatch.setattr(queue_metrics, "KEPT_SECONDS", 0.0)
    async with running(tmp_path) as made:
        await made.store.put_tenant(Tenant(OTHER, "others"))
        for one in (OPERATOR, SENDER, ORDERS, STRANGER):
            await made.store.put_access_key(one)
        yield made


def samples(page: bytes) -> dict[tuple[str, str], float]:
    """Samples by name and queue; counters as the sum of a queue's partitions."""
    found: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            key = sample.name, sample.labels.get("queue", "")
            found[key] = found.get(key, 0.0) + sample.value
    return found


async def sent(service: FrontendService, *names: str) -> None:
    for name in names:
        url = await service.make_queue(name)
        await service.json("SendMessage", {"QueueUrl": url, "MessageBody": "b"})


def values(document: Any) -> dict[str, float]:
    return {one["name"]: one["value"] for one in document["metrics"]}


async def test_one_queue(service: FrontendService) -> None:
    await sent(service, "q")
    service.clock.now += 90
    answer = await call(service, "GET", "/v1/queues/q/metrics")
    assert answer.status == 200, answer.content
    assert values(answer.json)["ApproximateNumberOfMessagesVisible"] == 1
    assert values(answer.json)["ApproximateAgeOfOldestMessage"] == 90
    units = {one["name"]: (one["unit"], one["counter"]) for one in answer.json["metrics"]}
    assert units["ApproximateAgeOfOldestMessage"] == ("Seconds", False)
    assert units["SentMessageSize"] == ("Bytes", True)
    assert "ApproximateNumberOfNoisyGroups" not in units
    assert answer.json["time"] == service.clock()
    assert values((await call(service, "GET", "/v1/queues/q/metrics", by=SENDER)).json), "any scope may"
    assert problem(await call(service, "GET", "/v1/queues/none/metrics"))[0] == 404
    assert problem(await call(service, "GET", "/v1/queues/q/metrics", by=ORDERS))[0] == 403
    assert problem(await call(service, "GET", "/v1/queues/q/metrics", by=STRANGER))[0] == 404, (
        "it is their own that is meant"
    )
    assert problem(await call(service, "GET", f"/v1/queues/q/metrics?account={KEY.account}", by=STRANGER))[0] == 403
    theirs = await call(service, "GET", f"/v1/queues/q/metrics?account={KEY.account}", by=OPERATOR)
    assert values(theirs.json)["ApproximateNumberOfMessagesVisible"] == 1


async def test_a_page_has_the_queues_that_the_key_may_be_used_for(service: FrontendService) -> None:
    await sent(service, "orders-1", "orders-2", "bills", "secret")
    visible = "holdfast_queue_messages_visible"

    async def queues(query: str = "", **by: Any) -> set[str]:
        answer = await call(service, "GET", f"/v1/metrics{query}", **by)
        assert answer.status == 200, answer.content
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        return {queue for name, queue in samples(answer.content) if name == visible}

    assert await queues() == {"orders-1", "orders-2", "bills", "secret"}
    assert await queues("?prefix=orders") == {"orders-1", "orders-2"}
    assert await queues(by=ORDERS) == {"orders-1", "orders-2", "bills"}
    assert await queues("?prefix=orders-2", by=ORDERS) == {"orders-2"}
    assert await queues("?prefix=sec", by=ORDERS) == set(), "none, and not all"
    assert await queues(by=STRANGER) == set()
    assert await queues(f"?account={KEY.account}&prefix=sec", by=OPERATOR) == {"secret"}
    assert problem(await call(service, "GET", f"/v1/metrics?account={KEY.account}", by=STRANGER))[0] == 403
    assert problem(await call(service, "GET", "/v1/metrics", by=SENDER))[0] == 403, "it may not list names"
    assert problem(await call(service, "GET", "/v1/metrics?limit=0"))[0] == 400
    assert [line["action"] for line in service.audited()] == ["metrics.scrape"] * 3, "what was refused"


async def test_a_page_says_when_it_has_not_all(service: FrontendService) -> None:
    await sent(service, "a", "b", "c")
    short = samples((await call(service, "GET", "/v1/metrics?limit=2")).content)
    assert {queue for _, queue in short} == {"a", "b", ""}
    assert short[TRUNCATED, ""] == 1
    assert samples((await call(service, "GET", "/v1/metrics?limit=3")).content)[TRUNCATED, ""] == 0


async def test_a_backend_that_fails_is_told_and_forgotten(service: FrontendService) -> None:
    await sent(service, "q")
    service.backend.fail_with = StorageFull("full")
    assert problem(await call(service, "GET", "/v1/metrics"))[0] == 503
    service.backend.fail_with = None
    assert (await call(service, "GET", "/v1/metrics")).status == 200


def test_names_are_those_of_cloudwatch_and_good_ones_for_prometheus() -> None:
    assert len({metric.name for metric in METRICS}) == len({metric.family for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert metric.family.startswith("holdfast_queue_")
        assert metric.family.endswith("_total") == metric.counts
        assert ("_bytes" in metric.family, "_seconds" in metric.family) == (
            metric.unit == "Bytes",
            metric.unit == "Seconds",
        )


def test_the_dashboard_for_tenants_shows_what_the_page_has() -> None:
    text = (ROOT / "helm/holdfast/files/customers/holdfast-queues.json").read_text()
    shown = set(re.findall(r"holdfast_queue_\w+", text))
    assert shown == {metric.family for metric in METRICS} | {TRUNCATED}
    for target in (target for panel in json.loads(text)["panels"] for target in panel["targets"]):
        for name in re.findall(r"holdfast_queue_\w+_total", target["expr"]):
            assert f"rate({name}{{" in target["expr"], "partitions count by themselves"


class _Telling:
    """Backend with measures for pages."""

    def __init__(self) -> None:
        self.asked = 0
        self.gate = asyncio.Event()

    async def measures_of(self, account: str, prefixes: list[str], after: str, most: int) -> list[Measures]:
        self.asked += 1
        await self.gate.wait()
        first = Measures(1, "q", 3, 1, 2, oldest_ms=4_000, sent=10, groups_in_flight=1)
        second = Measures(2, "q", 4, 0, 0, oldest_ms=9_000, sent=5, groups_in_flight=2)
        return [first, second, Measures(3, "r")]


async def test_partitions_are_one_queue_but_count_by_themselves() -> None:
    backend = _Telling()
    backend.gate.set()
    page = await QueueMetrics(backend, lambda: 10_000).page("0" * 12, [""], 10)  # type: ignore[arg-type]
    lines = page.decode().splitlines()
    assert 'holdfast_queue_messages_visible{queue="q"} 7.0' in lines
    assert 'holdfast_queue_oldest_message_age_seconds{queue="q"} 6.0' in lines
    assert 'holdfast_queue_oldest_message_age_seconds{queue="r"} 0.0' in lines
    assert 'holdfast_queue_messages_sent_total{partition="1",queue="q"} 10.0' in lines
    assert 'holdfast_queue_messages_sent_total{partition="2",queue="q"} 5.0' in lines
    assert 'holdfast_queue_groups_in_flight{queue="q"} 3.0' in lines
    assert not [line for line in lines if line.startswith("holdfast_queue_groups_in_flight{") and '"r"' in line]
    assert any("CloudWatch: ApproximateAgeOfOldestMessage." in line for line in lines if line.startswith("# HELP"))


async def test_a_page_is_made_once_for_all_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = _Telling()
    pages = QueueMetrics(backend, lambda: 10_000)  # type: ignore[arg-type]
    asking = [asyncio.create_task(pages.page("0" * 12, [""], 10)) for _ in range(5)]
    await asyncio.sleep(0)
    asking[0].cancel()
    backend.gate.set()
    first, *others = await asyncio.gather(*asking, return_exceptions=True)
    assert isinstance(first, asyncio.CancelledError)
    assert len(set(map(id, others))) == backend.asked == 1
    await pages.page("0" * 12, [""], 10)
    assert backend.asked == 1
    await pages.page("0" * 12, ["a"], 10)
    await pages.page("1" * 12, [""], 10)
    assert backend.asked == 3, "nobody sees another's"
    monkeypatch.setattr(queue_metrics, "KEPT_SECONDS", 0.0)
    later = QueueMetrics(backend, lambda: 10_000)  # type: ignore[arg-type]
    await later.page("0" * 12, [""], 10)
    await later.page("0" * 12, [""], 10)
    assert backend.asked == 5, "in time it is made anew"
