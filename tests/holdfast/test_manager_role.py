"""``holdfast manager`` over a real backend: from the messages that a partition gets to the split of its queue."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from backend import load
from backend import manager as members
from backend.address import Address
from backend.api import MapStale, NewMessage, Target
from backend.cluster import ClusterBackend
from holdfast.backend_role import alone
from holdfast.manager_role import Managing
from holdfast.peers import NO_TLS
from metadata_service import manager as managers
from metadata_service.clusters import SplitRule
from metadata_service.partitions import changing
from tests.holdfast.test_backend_role import SECRET, Folder


async def send_on(backend: ClusterBackend, target: Target) -> None:
    """A hundred messages a second at the most, until one is refused."""
    while True:
        await backend.send(target, [NewMessage(b"x")])
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
    folder, stop = Folder(tmp_path), asyncio.Event()
    await folder.start(alone(Address(path=str(tmp_path / "backend.sock"))))
    rule = SplitRule(partition_rate=5, hot_seconds=1)
    managing = Managing(folder.store, folder.settings, SECRET, NO_TLS, "m1", rule)
    running = asyncio.create_task(managing.run(stop))
    backend = await folder.connect()
    try:
        target = await folder.queue(backend, "orders")
        await folder.queue(backend, "idle")
        async with asyncio.timeout(60):
            with pytest.raises(MapStale):  # a frontend reads the new map then
                await send_on(backend, target)
            while True:
                queue = await folder.store.get_queue_by_id(target.queue_id)
                assert queue is not None
                if not changing(queue.partitions):
                    break
                await asyncio.sleep(0.05)
            while not (await folder.store.manager()).decisions:
                await asyncio.sleep(0.05)
        assert len(queue.partitions) > 4
        idle = await folder.store.get_queue("000000000000", "idle")
        assert len(idle.partitions) == 1
        (decision,) = (await folder.store.manager()).decisions
        assert f"/orders is split from 1 to {len(queue.partitions)} partitions: " in decision.text
    finally:
        stop.set()
        await running
        await backend.close()
        await folder.close()
