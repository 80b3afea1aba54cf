"""Metrics of a node: current values, over all its queues."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backend.api import SHARDS
from backend.cluster import metrics
from backend.recovery import checkpointer
from telemetry.metrics import Registry
from tests.backend.nodes import RestartableNode


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RestartableNode]:
    """Make a node that takes no checkpoint and compacts nothing by itself, however long a test lasts."""
    monkeypatch.setattr(checkpointer, "LOOK_SECONDS", 1000)
    cluster = RestartableNode(tmp_path, segment_bytes=1 << 18)
    await cluster.start()
    yield cluster
    await cluster.stop()


async def told(registry: Registry) -> dict[str, float]:
    """Return values by name and labels, without counters shared by all nodes of a process."""
    return {
        " ".join((family.name, *one.labels)): one.value
        for family in await registry.read()
        if family.kind == "gauge"
        for one in family.series
    }


async def test_it_tells_what_it_has(cluster: RestartableNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "LOOK_SECONDS", -1)
    registry = Registry()
    wall = [cluster.node.clock() / 1000 - 7]
    metrics.register(registry, cluster.node, tmp_path, low_water_bytes=5, wall=lambda: wall[0])
    empty = await told(registry)
    assert empty["holdfast_oldest_message_seconds"] == empty["holdfast_stored_bytes"] == 0
    assert empty["holdfast_shards"] == SHARDS
    assert empty["holdfast_serving"] == empty["holdfast_storing"] == 1
    assert empty["holdfast_clock_offset_seconds"] == pytest.approx(7, abs=2)
    assert empty["holdfast_disk_low_water_bytes"] == 5
    assert 0 < empty["holdfast_disk_free_bytes"] <= empty["holdfast_disk_size_bytes"]
    first, second = await cluster.queue(1), await cluster.queue(2)
    await cluster.send(first, "a", "bc", "def")
    await cluster.send(second, "g")
    await cluster.receive(first, 2)
    full = await told(registry)
    assert full["holdfast_messages visible"] == 2
    assert full["holdfast_messages in flight"] == 2
    assert full["holdfast_messages delayed"] == 0
    assert full["holdfast_partitions"] == 2
    assert full["holdfast_stored_bytes"] >= 7
    assert 0 <= full["holdfast_oldest_message_seconds"] < 60


async def test_sums_are_kept_for_a_moment(cluster: RestartableNode) -> None:
    now = [100.0]
    sums = metrics.Sums(cluster.node, clock=lambda: now[0])
    target = await cluster.queue(1)
    await sums.refresh()
    await cluster.send(target, "a")
    await sums.refresh()
    assert sums.visible == 0, "somebody has just asked"
    now[0] += metrics.LOOK_SECONDS
    await sums.refresh()
    assert sums.visible == 1


async def test_it_tells_what_holds_segments(cluster: RestartableNode) -> None:
    registry = Registry()
    metrics.register(registry, cluster.node)
    assert "holdfast_journal_bytes" not in await told(registry), "no checkpoint was taken yet"
    target = await cluster.queue(1)
    await cluster.send(target, "the one that stays")
    for _ in range(20):  # several full segments, all deleted except the first
        await cluster.send(target, *("x" * 10_000 for _ in range(10)))
        received = await cluster.receive(target, 10)
        await cluster.node.delete(target, [one.handle for one in received if len(one.payload) > 100])
    await cluster.node.checkpoint()
    found = await told(registry)
    assert found["holdfast_journal_pinned_segments messages"] >= 1
    assert found["holdfast_journal_oldest_pinned_segments messages"] > 2
    assert found["holdfast_journal_bytes"] >= 1 << 18
    assert found["holdfast_journal_sealed_logs"] == 0


async def test_a_node_that_starts_over_tells_that(cluster: RestartableNode) -> None:
    registry = Registry()
    metrics.register(registry, cluster.node)
    await cluster.node.close()
    found = await told(registry)
    assert found["holdfast_serving"] == found["holdfast_storing"] == found["holdfast_shards"] == 0
