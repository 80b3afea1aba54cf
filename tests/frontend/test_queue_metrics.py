"""Metrics of queues: permissions, JSON, and pages for Prometheus."""

import asyncio
import json
import re
from pathlib import Path

import pytest

from backend.api import AccountMeasures, Measures
from frontend import queue_metrics
from frontend.queue_metrics import METRICS, TRUNCATED, QueueMetrics
from frontend.topic_metrics import TOPIC_METRICS

ROOT = Path(__file__).resolve().parents[2]


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


def test_metrics_of_topics_are_named_and_shown_as_those_of_queues_are() -> None:
    assert len({metric.name for metric in TOPIC_METRICS}) == len({metric.family for metric in TOPIC_METRICS})
    for metric in TOPIC_METRICS:
        assert metric.family.startswith("holdfast_topic_")
        assert metric.family.endswith("_total") == metric.counts
    text = (ROOT / "helm/holdfast/files/customers/holdfast-topics.json").read_text()
    assert set(re.findall(r"holdfast_topic_\w+", text)) == {metric.family for metric in TOPIC_METRICS}
    for target in (target for panel in json.loads(text)["panels"] for target in panel["targets"]):
        for name in re.findall(r"holdfast_topic_\w+_total", target["expr"]):
            assert f"rate({name}{{" in target["expr"], "partitions count by themselves"


class _Telling:
    """Backend with measures for pages."""

    def __init__(self) -> None:
        self.asked = 0
        self.gate = asyncio.Event()

    async def call(self, command: AccountMeasures) -> list[Measures]:
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


async def test_concurrent_requests_share_one_page(monkeypatch: pytest.MonkeyPatch) -> None:
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
