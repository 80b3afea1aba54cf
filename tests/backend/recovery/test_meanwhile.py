"""Concurrent operations of a node, and failures beside an operation."""

import asyncio
import errno
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backend import api
from backend.journal.local.log import LocalLog
from backend.recovery import checkpointer
from tests.backend.nodes import RestartableNode, disk_of
from tests.servers.waiting import until


async def test_settings_that_wait_replace_no_newer_ones(
    cluster: RestartableNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.queue(1)
    older = msgspec.structs.replace(cluster.resolver.known[1], version=2, purge_id=1, delay_seconds=2)
    newer = msgspec.structs.replace(older, version=3, delay_seconds=3)
    log = cluster.incarnation.log

    def full(size_bytes: int, reserve: bool = False) -> None:
        raise api.StorageFull

    async def wait_for_space(size_bytes: int, reserve: bool = False) -> None:
        monkeypatch.undo()
        await cluster.node.call(api.Configure(newer))

    monkeypatch.setattr(log, "check_space", full)
    monkeypatch.setattr(log, "wait_for_space", wait_for_space)
    await cluster.node.call(api.Configure(older))
    assert cluster.incarnation.partitions[1].fold.settings == newer


async def test_a_checkpoint_rests_on_durable_rows(cluster: RestartableNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even on the empty row that is written when the log is idle."""
    await cluster.queue(1)
    disk, log = disk_of(cluster.node), cluster.incarnation.log
    held: list[tuple[Any, ...]] = []
    monkeypatch.setattr(disk, "commit", lambda *commit: held.append(commit))
    await until(lambda: held)
    await cluster.node.checkpoint()
    durable = log.durable_seq
    monkeypatch.undo()
    for commit in held:
        disk.commit(*commit)
    assert durable == 1
    assert all(entry.checkpoint_seq <= 1 for entry in await cluster.store.entries.shards())
    assert [entry.floor_seq for entry in await cluster.store.entries.logs()] == [2]


async def test_checkpoints_go_on_after_a_failure(cluster: RestartableNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointer, "CHECK_SECONDS", 0.01)
    queue = await cluster.queue(1)
    disk = disk_of(cluster.node)
    tries = []

    def fail(path: str) -> list[str]:
        tries.append(path)
        raise OSError(errno.EIO, "cannot be read")

    monkeypatch.setattr(disk, "listdir", fail)
    with pytest.raises(api.Unavailable):
        await cluster.node.checkpoint()
    for _ in range(4):
        await cluster.send(queue, *["x" * 100_000] * 9)
    await until(lambda: len(tries) >= 5)
    monkeypatch.undo()

    async def checkpointed() -> bool:
        return any(entry.checkpoint is not None for entry in await cluster.store.entries.shards())

    await until(checkpointed)


async def test_rescheduled_wakeups_are_not_kept(cluster: RestartableNode, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = await cluster.queue(1)
    node = cluster.incarnation
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
        node.wakeups._on_timer()
    assert len(node.wakeups._heap) < 100
    monkeypatch.undo()


async def test_a_destination_that_cannot_be_reached_keeps_no_other_waiting(cluster: RestartableNode) -> None:
    queue, dead, _ = await cluster.queue(1), await cluster.queue(2), await cluster.queue(9)
    await cluster.node.call(api.Drop(api.Target(9, 9)))
    cluster.incarnation.shards.damage[9] = "rotten"
    for target in (api.Target(9, 9), dead):
        await cluster.send(queue, "poison")
        await cluster.receive(queue, visibility=0)
        assert await cluster.receive(queue, 10, 0, 0, api.DeadLetter(1, target)) == []
    assert len(await cluster.receive(dead, wait=20)) == 1
    assert (await cluster.count(queue)).in_flight == 1


async def test_a_stopped_node_has_no_segment_open(cluster: RestartableNode) -> None:
    queue = await cluster.queue(1)
    await cluster.send(queue, "a")
    await cluster.restart()
    log = cluster.incarnation.log
    assert isinstance(log, LocalLog)
    files = log._files
    assert await cluster.receive(queue)
    assert files._open
    await cluster.restart()
    assert not files._open


async def test_a_log_that_fails_during_a_close_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = RestartableNode(tmp_path)
    await cluster.start()
    queue = await cluster.queue(1)
    disk, loop = disk_of(cluster.node), asyncio.get_running_loop()
    monkeypatch.setattr(disk, "commit", lambda *commit: loop.call_soon(commit[-1], OSError(errno.EIO, "failed")))
    sending = asyncio.create_task(cluster.send(queue, "a"))
    await asyncio.sleep(0)
    await cluster.stop()
    with pytest.raises(api.Unavailable):
        await sending
    assert cluster.node._restart is not None
    assert cluster.node._restart.done()
    assert not cluster.node.ready
    monkeypatch.undo()
    await cluster.start()
    assert (await cluster.count(queue)).visible == 0
    await cluster.stop()
