"""Damage is kept small, said with its place, and passed over only when an operator has accepted it."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.api import PartitionDamaged, Unavailable
from backend.damage import accept, survey
from backend.journal.disk import RealDisk
from metadata_service.sqlite import SQLiteStore
from tests.backend.nodes import Cluster


class _Damaged(Cluster):
    """A node that was killed, so to speak: its folder as it was before the last checkpoint."""

    async def kill(self) -> None:
        incarnation = self.node._incarnation
        assert incarnation is not None
        await incarnation.durable()
        incarnation.log.cut()
        assert self.node._checkpoints is not None
        self.node._checkpoints.cancel()
        self.node._end(Unavailable("killed"))
        await incarnation.log.close()
        await self.store.close()

    def flip(self, wanted: bytes, back: int = 0) -> Path:
        """Flip a bit where the first segment that holds ``wanted`` has it, or ``back`` bytes before."""
        for path in sorted((self.folder / "journal").glob("*/*.log")):
            data = bytearray(path.read_bytes())
            at = data.find(wanted)
            if at >= 0:
                data[at - back] ^= 1
                path.write_bytes(data)
                return path
        raise AssertionError("not found")


async def test_a_rotten_body_costs_its_message(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cluster = _Damaged(tmp_path)
    await cluster.start()
    queue = await cluster.queue(1)
    await cluster.send(queue, "first one", "second one", "third one")
    await cluster.kill()
    path = cluster.flip(b"second one")
    await cluster.start()
    received = await cluster.receive(queue)
    assert [message.payload for message in received] == [b"first one", b"third one"]
    assert str(path) in caplog.text
    counters = await cluster.node.counters(queue)
    assert counters.in_flight == 2, "the rotten one is quarantined"
    await cluster.stop()


async def test_a_rotten_record_stops_its_queue_until_its_loss_is_accepted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = _Damaged(tmp_path)
    await cluster.start()
    queue, other = await cluster.queue(1), await cluster.queue(2)
    await cluster.send(queue, "first one", "second one", "third one")
    await cluster.send(other, "untouched")
    await cluster.kill()
    path = cluster.flip(b"second one", back=1)  # the last byte of its head
    await cluster.start()
    with pytest.raises(PartitionDamaged, match=r"00000001\.log"):
        await cluster.receive(queue)
    assert [message.payload for message in await cluster.receive(other, visibility=0)] == [b"untouched"]
    assert len(cluster.node.damage) == 1
    assert str(path) in caplog.text
    await cluster.node.checkpoint()
    await cluster.restart()
    with pytest.raises(PartitionDamaged):
        await cluster.receive(queue)
    await cluster.stop()

    store = SQLiteStore(tmp_path / "metadata.db")
    found = await survey(RealDisk(), str(tmp_path / "journal"), "node", store)
    assert [harm.partition for harm in found.harms] == [1]
    await accept(found, "node", store)
    assert not (await survey(RealDisk(), str(tmp_path / "journal"), "node", store)).harms
    await store.close()

    await cluster.start()
    assert [message.payload for message in await cluster.receive(queue)] == [b"first one", b"third one"]
    assert not cluster.node.damage
    await cluster.stop()


async def test_a_rotten_checkpoint_stops_what_it_is_of(tmp_path: Path) -> None:
    cluster = _Damaged(tmp_path)
    await cluster.start()
    queue, other = await cluster.queue(1), await cluster.queue(2)
    await cluster.send(queue, "a")
    await cluster.send(other, "b")
    await cluster.stop()
    (path,) = (tmp_path / "journal").glob("*/ckpt-*.bin")
    data = bytearray(path.read_bytes())
    data[data.find(b"queue-1")] ^= 1
    path.write_bytes(data)
    await cluster.start()
    with pytest.raises(PartitionDamaged, match="checkpoint"):
        await cluster.receive(queue)
    assert [message.payload for message in await cluster.receive(other)] == [b"b"]
    await cluster.stop()
    store = SQLiteStore(tmp_path / "metadata.db")
    await accept(await survey(RealDisk(), str(tmp_path / "journal"), "node", store), "node", store)
    await store.close()
    await cluster.start()
    queue = await cluster.queue(1)
    assert await cluster.receive(queue) == [], "it begins anew, empty"
    await cluster.send(queue, "c")
    await cluster.restart()
    assert [message.payload for message in await cluster.receive(queue)] == [b"c"]
    await cluster.stop()
