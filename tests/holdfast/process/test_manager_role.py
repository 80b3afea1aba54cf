"""The out-cluster manager over real backends of one machine: from the messages of a partition to its queue's split."""

import asyncio
from pathlib import Path

import pytest

from backend.api import MapStale, NewMessage, Send, Target, shard_of
from backend.cluster import load
from backend.cluster import member as members
from backend.rpc.cluster_client import ClusterBackend
from holdfast.process import backend as backend_role
from holdfast.process.backend import in_folder
from metadata_service.clusters import manager as managers
from metadata_service.clusters.partition_map import changing
from metadata_service.clusters.policy import SplitRule
from tests.closing import closing
from tests.holdfast.process.test_backend import TWO, Folder


async def send_on(backend: ClusterBackend, target: Target) -> None:
    """Send at most a hundred messages per second, until one is refused."""
    while True:
        await backend.call(Send(target, [NewMessage(b"x")]))
        await asyncio.sleep(0.01)


async def test_a_queue_with_much_to_do_is_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in [
        (load, "BUSY_RATE", 1.0),
        (members, "LOAD_SECONDS", 0.3),
        (members, "BEAT_SECONDS", 0.3),
        (members, "REPORT_SECONDS", 0.3),
        (managers, "TICK_SECONDS", 0.2),
    ]:
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(backend_role, "rule_of", lambda _: SplitRule(partition_rate=5, hot_seconds=1))
    folder = Folder(tmp_path)
    running = await folder.start(*(in_folder(tmp_path, name, name, TWO) for name in TWO))
    await folder.settled(*running)
    backend = await folder.connect()
    async with closing(folder), closing(backend):
        target = await folder.queue(backend, "orders")
        await folder.queue(backend, "idle")
        async with asyncio.timeout(60):
            with pytest.raises(MapStale):  # a frontend then reads the new map
                await send_on(backend, target)
            while True:
                queue = await folder.store.queues.get_queue_by_id(target.queue_id)
                assert queue is not None
                if not changing(queue.partitions):
                    break
                await asyncio.sleep(0.05)
            while not (await folder.store.clusters.manager()).decisions:
                await asyncio.sleep(0.05)
        assert len(queue.partitions) > 4
        owned = [(await each.ready()).node.owned for each in running]
        shards = {shard_of(one.id) for one in queue.partitions}
        assert all(shards & of_one for of_one in owned), "both have a part of it"
        idle = await folder.store.queues.get_queue("000000000000", "idle")
        assert len(idle.partitions) == 1
        (decision,) = (await folder.store.clusters.manager()).decisions
        assert f"/orders is split from 1 to {len(queue.partitions)} partitions: " in decision.text
