"""Metrics of a node: current values, over all its queues."""

from collections.abc import AsyncIterator
from pathlib import Path
from unittest import mock

import pytest

from backend.api import SHARDS, Delivery, Publication, Publish, Target, Unavailable
from backend.cluster import metrics
from backend.recovery import checkpointer
from backend.serving.peers import Peers
from backend.stream_api import OffsetCommit, StreamError, StreamSettings
from backend.stream_commands import CommitOffsets, ConfigureStream, DeleteRecords
from metadata_service.topics import subscription_queue_name
from telemetry.metrics import Registry
from tests.backend.nodes import RestartableNode
from tests.backend.serving.streams.stream_node import ACCOUNT, TOPIC_ID, StreamNode


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RestartableNode]:
    """Make a node that takes no checkpoint and compacts nothing by itself, however long a test lasts."""
    monkeypatch.setattr(checkpointer, "CHECK_SECONDS", 1000)
    cluster = RestartableNode(tmp_path, segment_bytes=1 << 18)
    await cluster.start()
    yield cluster
    await cluster.stop()


async def metric_values(registry: Registry) -> dict[str, float]:
    """Return values by name and labels, without counters shared by all nodes of a process."""
    return {
        " ".join((family.name, *one.labels)): one.value
        for family in await registry.read()
        if family.kind == "gauge"
        for one in family.series
    }


async def test_it_exports_its_state(cluster: RestartableNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "REFRESH_SECONDS", -1)
    registry = Registry()
    wall = [cluster.node.clock() / 1000 - 7]
    metrics.register(registry, cluster.node, tmp_path, low_water_bytes=5, wall=lambda: wall[0])
    empty = await metric_values(registry)
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
    full = await metric_values(registry)
    assert full["holdfast_messages visible"] == 2
    assert full["holdfast_messages in flight"] == 2
    assert full["holdfast_messages delayed"] == 0
    assert full["holdfast_partitions"] == 2
    assert full["holdfast_stored_bytes"] >= 7
    assert 0 <= full["holdfast_oldest_message_seconds"] < 60


async def test_it_exports_pending_deliveries(cluster: RestartableNode) -> None:
    registry = Registry()
    metrics.register(registry, cluster.node)
    topic = await cluster.queue(1)
    unknown = Target(3, 3)  # it cannot be asked for, so its deliveries wait
    cluster.resolver.settings = mock.AsyncMock(side_effect=Unavailable("away"))  # type: ignore[method-assign]
    await cluster.node.call(Publish(topic, [Publication(b"x", deliveries=[Delivery(unknown, b"s" * 16)] * 3)]))
    found = await metric_values(registry)
    assert found["holdfast_pending_deliveries"] == 3
    assert 0 <= found["holdfast_oldest_pending_delivery_seconds"] < 60


async def test_it_exports_messages_that_wait_for_endpoints_of_subscriptions(cluster: RestartableNode) -> None:
    registry = Registry()
    metrics.register(registry, cluster.node)
    other, hidden = await cluster.queue(1), await cluster.queue(2, name=subscription_queue_name(b"s" * 16))
    await cluster.send(other, "a")
    await cluster.send(hidden, "b", "c")
    await cluster.receive(hidden, 1)
    found = await metric_values(registry)
    assert found["holdfast_waiting_notifications"] == 2
    assert 0 <= found["holdfast_oldest_waiting_notification_seconds"] < 60


async def test_sums_are_kept_for_a_moment(cluster: RestartableNode) -> None:
    now = [100.0]
    sums = metrics.Sums(cluster.node, clock=lambda: now[0])
    target = await cluster.queue(1)
    await sums.refresh()
    await cluster.send(target, "a")
    await sums.refresh()
    assert sums.visible == 0, "somebody has just asked"
    now[0] += metrics.REFRESH_SECONDS
    await sums.refresh()
    assert sums.visible == 1


async def test_it_exports_the_reasons_that_hold_segments(cluster: RestartableNode) -> None:
    registry = Registry()
    metrics.register(registry, cluster.node)
    assert "holdfast_journal_bytes" not in await metric_values(registry), "no checkpoint was taken yet"
    target = await cluster.queue(1)
    await cluster.send(target, "the one that stays")
    for _ in range(20):  # several full segments, all deleted except the first
        await cluster.send(target, *("x" * 10_000 for _ in range(10)))
        received = await cluster.receive(target, 10)
        await cluster.delete(target, *(one for one in received if len(one.payload) > 100))
    await cluster.node.checkpoint()
    found = await metric_values(registry)
    assert found["holdfast_journal_pinned_segments messages"] >= 1
    assert found["holdfast_journal_oldest_pinned_segments messages"] > 2
    assert found["holdfast_journal_bytes"] >= 1 << 18
    assert found["holdfast_journal_sealed_logs"] == 0


async def test_a_node_that_restarts_reports_it(cluster: RestartableNode) -> None:
    registry = Registry()
    metrics.register(registry, cluster.node)
    await cluster.node.close()
    found = await metric_values(registry)
    assert found["holdfast_serving"] == found["holdfast_storing"] == found["holdfast_shards"] == 0


async def test_it_exports_streams_and_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "REFRESH_SECONDS", -1)
    node = StreamNode(tmp_path)
    await node.start()
    registry = Registry()
    metrics.register(registry, node.node)
    first, second = await node.stream(1), Target(2, 2, 1)
    await node.node.call(ConfigureStream(StreamSettings(2, 2, 1, ACCOUNT, "other", bytes(16), 0)))
    await node.append(first, b"abc", count=5)
    await node.append(second, b"de", count=2)
    group = await node.group(9)
    offsets = [OffsetCommit("topic-1", TOPIC_ID, 0, 1)]
    assert await node.node.call(CommitOffsets(group, "", -1, None, offsets)) == [StreamError.NONE]
    found = await metric_values(registry)
    assert (found["holdfast_topic_partitions"], found["holdfast_batch_bytes"]) == (2, 5)
    assert (found["holdfast_unbound_batch_bytes"], found["holdfast_unbound_batch_bytes_max"]) == (5, 3)
    assert {name: value for name, value in found.items() if name.startswith("holdfast_consumer_groups")} == {
        "holdfast_consumer_groups Empty": 1,
        "holdfast_consumer_groups PreparingRebalance": 0,
        "holdfast_consumer_groups CompletingRebalance": 0,
        "holdfast_consumer_groups Stable": 0,
        "holdfast_consumer_groups Dead": 0,
    }
    assert (found["holdfast_consumer_lag_records"], found["holdfast_consumer_lag_records_max"]) == (4, 4)
    await node.node.call(DeleteRecords(first, 5))
    found = await metric_values(registry)
    assert found["holdfast_consumer_lag_records"] == 0, "what was removed cannot be read any more"
    await node.stop()


async def test_lag_counts_partitions_of_other_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "REFRESH_SECONDS", -1)
    node, other = (StreamNode(folder) for folder in (tmp_path / "node", tmp_path / "other"))
    for each in (node, other):
        each.folder.mkdir()
        await each.start()
    registry = Registry()
    metrics.register(registry, node.node)
    target = await other.stream(1)
    await other.append(target, b"abc", count=5)
    group = await node.group(9)
    offsets = [OffsetCommit("topic-1", TOPIC_ID, 0, 1)]
    assert await node.node.call(CommitOffsets(group, "", -1, None, offsets)) == [StreamError.NONE]

    async def lag() -> tuple[float, float, float]:
        """Return the lag, that of the group with the most, and the number of positions without one."""
        found = await metric_values(registry)
        names = ("records", "records_max", "unknown")
        return tuple(found[f"holdfast_consumer_lag_{name}"] for name in names)  # type: ignore[return-value]

    assert await lag() == (0, 0, 1)
    ends = node.incarnation.remote_ends
    await ends.refresh()
    assert await lag() == (0, 0, 1), "this node has no access to others"
    ends._peers = Peers(node.incarnation.shards, node.incarnation, other.node)
    await ends.refresh()
    assert await lag() == (4, 4, 0)
    await other.append(target, b"d", count=1)
    await ends.refresh()
    assert await lag() == (5, 5, 0)
    await other.kill()
    await ends.refresh()
    assert await lag() == (5, 5, 0), "the last offsets count until the node is back"
    await node.stop()
