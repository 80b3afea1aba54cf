"""Load of a node, as it measures it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backend.cluster import load
from backend.cluster.load import Load
from backend.node import NodeSettings
from tests.backend.nodes import RestartableNode


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[RestartableNode]:
    cluster = RestartableNode(tmp_path)
    await cluster.start()
    yield cluster
    await cluster.stop()


class _Meter:
    now = 100.0
    cpu = 7.0


@pytest.fixture
def meter() -> _Meter:
    return _Meter()


def load_of(cluster: RestartableNode, meter: _Meter, folder: Path | None = None) -> Load:
    return Load(cluster.node, folder, clock=lambda: meter.now, cpu=lambda: meter.cpu)


async def test_the_busiest_partitions_are_named_with_what_they_sent_and_received(
    cluster: RestartableNode, meter: _Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "BUSY_RATE", 2.0)
    monkeypatch.setattr(load, "BUSY_MOST", 2)
    queues = [await cluster.queue(number) for number in (1, 2, 3, 4)]
    measured = load_of(cluster, meter)
    for _ in range(10):
        await cluster.send(queues[0], *"0123456789")
    await measured.measure()
    assert not measured.busy, "there is nothing to compare with yet"
    for count, target in zip((2, 3, 1), queues[1:], strict=True):
        for _ in range(count):
            await cluster.send(target, *"0123456789")
    received = await cluster.receive(queues[1], 10)
    await cluster.node.delete(queues[1], [one.handle for one in received])
    await cluster.receive(queues[2], 10)  # messages in flight still count
    meter.now += 10
    await measured.measure()
    assert [(busy.partition, busy.queue_id, busy.rate) for busy in measured.busy] == [(3, 3, 3.0), (2, 2, 3.0)]
    meter.now += 10
    await measured.measure()
    assert not measured.busy
    await cluster.send(queues[0], *"0123456789")
    meter.now += 10
    await measured.measure()
    assert not measured.busy, "one message a second is below the bound"


async def test_a_start_is_not_taken_for_messages(cluster: RestartableNode, meter: _Meter) -> None:
    target = await cluster.queue(1)
    await cluster.send(target, "a")
    measured = load_of(cluster, meter)
    await measured.measure()
    await cluster.restart()  # numbers of the next epoch are larger by 2^40
    measured._node = cluster.node
    meter.now += 10
    await measured.measure()
    assert not measured.busy


async def test_cpu_and_storage(tmp_path: Path, cluster: RestartableNode, meter: _Meter) -> None:
    measured = load_of(cluster, meter, tmp_path)
    await measured.measure()
    assert measured.cpu == 0
    assert 0 < measured.storage < 1
    meter.now, meter.cpu = 110.0, 9.5
    await measured.measure()
    assert measured.cpu == 0.25
    meter.now, meter.cpu = 120.0, 29.5  # CPU time of all threads
    await measured.measure()
    assert measured.cpu == 1
    without_disk = load_of(cluster, meter)
    await without_disk.measure()
    assert without_disk.storage == 0


async def test_what_has_no_room_is_full(tmp_path: Path, meter: _Meter) -> None:
    cluster = RestartableNode(tmp_path)
    cluster.settings = NodeSettings(memory_bytes=100_000)
    await cluster.start()
    target = await cluster.queue(1)
    await cluster.send(target, "a")
    assert cluster.node._incarnation is not None
    await cluster.node._incarnation.memory.refresh()
    measured = load_of(cluster, meter)
    await measured.measure()
    assert 0 < measured.storage < 0.5
    for number in range(2, 40):
        await cluster.send(await cluster.queue(number), "a")
    await cluster.node._incarnation.memory.refresh()
    await measured.measure()
    assert measured.storage == 1
    await cluster.stop()
