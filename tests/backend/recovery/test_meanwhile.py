"""Concurrent operations of a node, and failures beside an operation."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backend.api import DeadLetter, Receive, StorageFull, Target, Unavailable
from backend.journal.local.log import LocalLog
from backend.recovery import checkpointer
from backend.serving.incarnation import Incarnation
from tests.backend.nodes import RestartableNode, disk_of
from tests.backend.test_node import until


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[RestartableNode]:
    cluster = RestartableNode(tmp_path)
    await cluster.start()
    yield cluster
    await cluster.stop()


def serving(cluster: RestartableNode) -> Incarnation:
    assert cluster.node._incarnation is not None
    return cluster.node._incarnation


async def test_settings_that_wait_for_room_do_not_replace_newer_ones(
    cluster: RestartableNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.queue(1)
    older = msgspec.structs.replace(cluster.resolver.known[1], version=2, purge_id=1, delay_seconds=2)
    newer = msgspec.structs.replace(older, version=3, delay_seconds=3)
    log = serving(cluster).log

    def full(size_bytes: int, reserve: bool = False) -> None:
        raise StorageFull

    async def wait_room(size_bytes: int, reserve: bool = False) -> None:
        monkeypatch.undo()
        await cluster.node.configure(newer)

    monkeypatch.setattr(log, "check_room", full)
    monkeypatch.setattr(log, "wait_room", wait_room)
    await cluster.node.configure(older)
    assert serving(cluster).partitions[1].fold.settings == newer


async def test_a_checkpoint_rests_on_no_row_that_is_not_durable(
    cluster: RestartableNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even on the empty row that is written when the log is idle."""
    await cluster.queue(1)
    disk, log = disk_of(cluster.node), serving(cluster).log
    held: list[tuple[Any, ...]] = []
    monkeypatch.setattr(disk, "commit", lambda *commit: held.append(commit))
    while not held:
        await asyncio.sleep(0.005)
    await cluster.node.checkpoint()
    durable = log.durable_seq
    monkeypatch.undo()
    for commit in held:
        disk.commit(*commit)
    assert durable == 1
    assert all(entry.checkpoint_seq <= 1 for entry in await cluster.store.shards())
    assert [entry.floor_seq for entry in await cluster.store.logs()] == [2]


async def test_checkpoints_go_on_after_the_disk_has_failed_one(
    cluster: RestartableNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointer, "LOOK_SECONDS", 0.01)
    queue = await cluster.queue(1)
    disk = disk_of(cluster.node)
    tries = []

    def fail(path: str) -> list[str]:
        tries.append(path)
        raise OSError(errno.EIO, "cannot be read")

    monkeypatch.setattr(disk, "listdir", fail)
    with pytest.raises(Unavailable):
        await cluster.node.checkpoint()
    for _ in range(4):
        await cluster.send(queue, *["x" * 100_000] * 9)
    while len(tries) < 5:
        await asyncio.sleep(0.005)
    monkeypatch.undo()

    async def checkpointed() -> bool:
        return any(entry.checkpoint is not None for entry in await cluster.store.shards())

    await until(checkpointed)


async def test_alarms_that_were_set_anew_are_not_kept(
    cluster: RestartableNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await cluster.queue(1)
    node = serving(cluster)
    await cluster.send(queue, "a")
    partition = node.partitions[queue.partition]
    real, passed = partition.clock, 0
    monkeypatch.setattr(partition, "clock", lambda: real() + passed)
    loop = asyncio.get_running_loop()
    time = loop.time
    monkeypatch.setattr(loop, "time", lambda: time() + passed / 1000)
    for _ in range(200):
        assert await cluster.receive(queue, visibility=1)
        passed += 2500
        node._ring()
    assert len(node._alarms) < 100
    monkeypatch.undo()


async def test_a_destination_that_cannot_be_reached_keeps_no_other_waiting(cluster: RestartableNode) -> None:
    queue, dead, _ = await cluster.queue(1), await cluster.queue(2), await cluster.queue(9)
    await cluster.node.drop(Target(9, 9))
    serving(cluster).shards.damage[9] = "rotten"
    for target in (Target(9, 9), dead):
        await cluster.send(queue, "poison")
        await cluster.receive(queue, visibility=0)
        assert await cluster.node.receive(queue, Receive(10, 0, 0, DeadLetter(1, target))) == []
    assert len(await cluster.receive(dead, wait=20)) == 1
    assert (await cluster.node.counters(queue)).in_flight == 1


async def test_a_stopped_node_has_no_segment_open(cluster: RestartableNode) -> None:
    queue = await cluster.queue(1)
    await cluster.send(queue, "a")
    await cluster.restart()
    log = serving(cluster).log
    assert isinstance(log, LocalLog)
    files = log._files
    assert await cluster.receive(queue)
    assert files._open
    await cluster.restart()
    assert not files._open


async def test_a_log_that_fails_while_the_node_closes_starts_nothing_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = RestartableNode(tmp_path)
    await cluster.start()
    queue = await cluster.queue(1)
    disk, loop = disk_of(cluster.node), asyncio.get_running_loop()
    monkeypatch.setattr(disk, "commit", lambda *commit: loop.call_soon(commit[-1], OSError(errno.EIO, "failed")))
    sending = asyncio.create_task(cluster.send(queue, "a"))
    await asyncio.sleep(0)
    await cluster.stop()
    with pytest.raises(Unavailable):
        await sending
    assert cluster.node._restart is not None
    assert cluster.node._restart.done()
    assert not cluster.node.ready
    monkeypatch.undo()
    await cluster.start()
    assert (await cluster.node.counters(queue)).visible == 0
    await cluster.stop()
