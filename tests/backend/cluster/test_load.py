"""Load of a node, as it measures it."""

from contextlib import suppress
from pathlib import Path

import pytest

from backend.api import StorageFull
from backend.cluster import load
from backend.cluster.load import Load
from tests.backend.nodes import RestartableNode, node_with


class _Meter:
    now = 100.0
    cpu = 7.0


@pytest.fixture
def meter() -> _Meter:
    return _Meter()


def load_of(cluster: RestartableNode, meter: _Meter, folder: Path | None = None) -> Load:
    return Load(cluster.node, folder, clock=lambda: meter.now, cpu=lambda: meter.cpu)


async def test_busiest_partitions(cluster: RestartableNode, meter: _Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "BUSY_RATE", 2.0)
    monkeypatch.setattr(load, "BUSY_MAX", 2)
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
    await cluster.delete(queues[1], *received)
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


@node_with(memory_bytes=100_000)
async def test_a_node_without_space_is_full(cluster: RestartableNode, meter: _Meter) -> None:
    target = await cluster.queue(1)
    await cluster.send(target, "a")
    await cluster.incarnation.memory.refresh()
    measured = load_of(cluster, meter)
    await measured.measure()
    assert 0 < measured.storage < 0.5
    with suppress(StorageFull):  # the node checks by itself too, once a second
        for number in range(2, 40):
            await cluster.send(await cluster.queue(number), "a")
    await cluster.incarnation.memory.refresh()
    await measured.measure()
    assert measured.storage == 1
