"""Damage stays small, is reported with its position, and is skipped only after an operator has accepted it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backend.api import Drop, PartitionDamaged, PartitionUnknown, Target, Unavailable, shard_of
from backend.journal.local.disk import RealDisk
from backend.journal.local.journal import LocalJournal
from backend.recovery.damage import accept, survey
from metadata_service.sqlite.store import SQLiteStore
from tests.backend.nodes import RestartableNode


class _Damaged(RestartableNode):
    """A killed node, simulated by its folder as it was before the last checkpoint."""

    async def kill(self) -> None:
        incarnation = self.incarnation
        await incarnation.writer.durable()
        incarnation.log.cut()
        assert self.node._checkpoints is not None
        self.node._checkpoints.cancel()
        self.node._end(Unavailable("killed"))
        await incarnation.log.close()
        await self.store.close()

    def store_logs(self) -> list[Path]:
        return list((self.folder / "journal").glob("*/*.log"))

    def flip(self, wanted: bytes, back: int = 0) -> Path:
        """Flip a bit in the first segment that contains ``wanted``, there or ``back`` bytes before."""
        for path in sorted((self.folder / "journal").glob("*/*.log")):
            data = bytearray(path.read_bytes())
            at = data.find(wanted)
            if at >= 0:
                data[at - back] ^= 1
                path.write_bytes(data)
                return path
        raise AssertionError("not found")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[_Damaged]:
    cluster = _Damaged(tmp_path)
    await cluster.start()
    yield cluster
    await cluster.stop()


async def test_a_rotten_body_costs_its_message(cluster: _Damaged, caplog: pytest.LogCaptureFixture) -> None:
    queue = await cluster.queue(1)
    await cluster.send(queue, "first one", "second one", "third one")
    await cluster.kill()
    path = cluster.flip(b"second one")
    await cluster.start()
    received = await cluster.receive(queue)
    assert [message.payload for message in received] == [b"first one", b"third one"]
    assert str(path) in caplog.text
    counters = await cluster.count(queue)
    assert counters.in_flight == 2, "the damaged one is quarantined"


async def test_a_rotten_record_stops_its_queue_until_accepted(
    cluster: _Damaged, caplog: pytest.LogCaptureFixture
) -> None:
    queue, other = await cluster.queue(1), await cluster.queue(2)
    await cluster.send(queue, "first one", "second one", "third one")
    await cluster.send(other, "untouched")
    await cluster.kill()
    path = cluster.flip(b"second one", back=1)  # the last byte of its header
    await cluster.start()
    with pytest.raises(PartitionDamaged, match=r"00000001\.log"):
        await cluster.receive(queue)
    assert await cluster.payloads(other, visibility=0) == [b"untouched"]
    assert len(cluster.node.damage) == 1
    assert str(path) in caplog.text
    await cluster.node.checkpoint()
    await cluster.restart()
    with pytest.raises(PartitionDamaged):
        await cluster.receive(queue)
    await cluster.stop()

    assert await accept_all(cluster.folder) == [1]
    assert await accept_all(cluster.folder) == []

    await cluster.start()
    assert await cluster.payloads(queue) == [b"first one", b"third one"]
    assert not cluster.node.damage


async def accept_all(folder: Path) -> list[int | None]:
    """Accept all damage as an operator does; returns the damaged partitions."""
    store = SQLiteStore(folder / "metadata.db")
    found = await survey(LocalJournal(RealDisk(), str(folder / "journal")), store.entries)
    await accept(found, store.entries)
    await store.close()
    return [damage.partition for damage in found.shard_damage]


SAME_SHARD = next(number for number in range(2, 1 << 20) if shard_of(number) == shard_of(1))


async def damaged(cluster: _Damaged) -> tuple[Target, Target]:
    """Make a damaged queue, and an intact one in the same shard."""
    queue, other = await cluster.queue(1), await cluster.queue(SAME_SHARD)
    await cluster.send(queue, "before")
    await cluster.node.checkpoint()
    await cluster.send(queue, "first one", "second one", "third one")
    await cluster.send(other, "untouched")
    await cluster.kill()
    cluster.flip(b"second one", back=1)
    await cluster.start()
    with pytest.raises(PartitionDamaged):
        await cluster.receive(queue)
    return queue, other


async def test_the_others_of_its_shard_have_checkpoints_and_the_log_is_let_go(cluster: _Damaged) -> None:
    queue, other = await damaged(cluster)
    for number in range(3):
        await cluster.send(other, f"more {number}")
        await cluster.node.checkpoint()
        (log, *_) = sorted(await cluster.store.entries.logs("node"), key=lambda entry: -entry.log_id)
        assert log.floor_seq > 1
        entry = (await cluster.store.entries.shards())[shard_of(1)]
        assert [link[0] for link in entry.chain] == [log.log_id], "nothing earlier is replayed for the others"
        assert [one.partition for one in entry.stopped] == [1]
        await cluster.send(other, f"and more {number}")
        await cluster.kill()
        await cluster.start()
        with pytest.raises(PartitionDamaged, match=r"1/00000001\.log"):
            await cluster.receive(queue)
    payloads = {message.payload for message in await cluster.receive(other)}
    assert payloads == {b"untouched", *(b"%smore %d" % (a, n) for a in (b"", b"and ") for n in range(3))}
    await cluster.node.checkpoint()
    entry = (await cluster.store.entries.shards())[shard_of(1)]
    needed = {f"node-{log_id}" for log_id, _ in entry.segments()} | {"node-1", f"node-{log.incarnation + 1}"}
    assert {path.parent.name for path in cluster.store_logs()} == needed
    await cluster.stop()

    await accept_all(cluster.folder)
    for _ in range(2):
        await cluster.start()
        assert not cluster.node.damage
        assert {one.payload for one in await cluster.receive(queue, visibility=0)} == {
            b"before",
            b"first one",
            b"third one",
        }
        assert (await cluster.count(other)).in_flight == 7
        await cluster.send(queue, "after")
        (message,) = [one for one in await cluster.receive(queue, visibility=0) if one.payload == b"after"]
        await cluster.delete(queue, message)
        await cluster.kill()
    await cluster.start()
    await cluster.node.checkpoint()
    assert (await cluster.store.entries.shards())[shard_of(1)].stopped == ()


@pytest.mark.parametrize("checkpoint", ["before", "after", "never"])
@pytest.mark.parametrize("part", ["record", "checkpoint"])
async def test_deleting_a_damaged_queue_settles_its_damage(cluster: _Damaged, checkpoint: str, part: str) -> None:
    queue, other = await damaged(cluster)
    if part == "checkpoint":
        await cluster.node.checkpoint()
        await cluster.kill()
        for path in (cluster.folder / "journal").glob("*/ckpt-*.bin"):
            data = bytearray(path.read_bytes())
            at = data.find(b"queue-1" + bytes([0xC4, 16]))  # its settings: the ARN, and then the handle key
            if at >= 0:
                data[at] ^= 1
                path.write_bytes(data)
        await cluster.start()
        assert "checkpoint" in cluster.node.damage[0]
    if checkpoint == "before":
        await cluster.node.checkpoint()
    del cluster.resolver.known[1]
    await cluster.node.call(Drop(queue))
    await cluster.node.call(Drop(queue))
    assert cluster.node.damage == []
    if checkpoint == "after":
        await cluster.node.checkpoint()
    for _ in range(2):
        await cluster.kill()
        await cluster.start()
        assert cluster.node.damage == []
        with pytest.raises(PartitionUnknown):
            await cluster.receive(queue)
        assert await cluster.payloads(other, visibility=0) == [b"untouched"]
    await cluster.node.checkpoint()
    entry = (await cluster.store.entries.shards())[shard_of(1)]
    assert entry.stopped == ()
    assert entry.accepted == ()
    (last,) = await cluster.receive(other)
    await cluster.delete(other, last)
    await cluster.node.checkpoint()
    assert len({path.parent for path in cluster.store_logs()}) == 1, "nothing holds the damaged log any more"


async def test_a_damaged_queue_that_was_deleted_unnoticed_is_collected(cluster: _Damaged) -> None:
    """The process had ended between the two halves of the deletion."""
    queue, _ = await damaged(cluster)
    await cluster.kill()
    del cluster.resolver.known[queue.partition]
    await cluster.start()
    while cluster.node.damage:
        await asyncio.sleep(0.005)
    await cluster.restart()
    assert cluster.node.damage == []


async def test_a_rotten_checkpoint_stops_what_it_is_of(cluster: _Damaged) -> None:
    queue, other = await cluster.queue(1), await cluster.queue(2)
    await cluster.send(queue, "a")
    await cluster.send(other, "b")
    await cluster.stop()
    (path,) = (cluster.folder / "journal").glob("*/ckpt-*.bin")
    data = bytearray(path.read_bytes())
    data[data.find(b"queue-1")] ^= 1
    path.write_bytes(data)
    await cluster.start()
    with pytest.raises(PartitionDamaged, match="checkpoint"):
        await cluster.receive(queue)
    assert await cluster.payloads(other) == [b"b"]
    await cluster.stop()
    await accept_all(cluster.folder)
    await cluster.start()
    queue = await cluster.queue(1)
    assert await cluster.receive(queue) == [], "it begins anew, empty"
    await cluster.send(queue, "c")
    await cluster.restart()
    assert await cluster.payloads(queue) == [b"c"]
