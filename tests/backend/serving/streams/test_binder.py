"""The binder and the retention: what they move and delete, and what a crash at any step leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from backend.api import Unavailable
from backend.cluster.metrics import Sums
from backend.extent_ids import ExtentId
from backend.journal.local.disk import RealDisk
from backend.journal.local.extents import LocalExtents
from backend.serving.streams import binder as binder_module
from backend.stream_api import StreamRefused
from backend.stream_commands import DeleteRecords, DropStream
from backend.streams.binding import BIND_BYTES, SEGMENTS_BACK
from tests.backend.serving.streams.stream_node import OtherExtents, StreamNode, listed
from tests.servers.waiting import until

MANY = 100_000
"""Bytes of a batch of which a bind moves many."""


async def turn(node: StreamNode) -> None:
    await node.incarnation.binder.turn()


@pytest.fixture(autouse=True)
def _only_turns_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binder_module, "CHECK_SECONDS", 3600.0)


on_files_and_tables = pytest.mark.parametrize("node", [{}, {"tables": True}], indirect=True, ids=["files", "tables"])


class FailingExtents(OtherExtents):
    """Extents whose appends fail after they have written some of the bytes."""

    fails = True

    async def append(self, extent: ExtentId, offset: int, data: bytes) -> None:
        if self.fails:
            await super().append(extent, offset, data[: len(data) // 2])
            raise Unavailable("the disk has failed")
        await super().append(extent, offset, data)


@on_files_and_tables
async def test_batches_are_moved_when_there_are_enough(node: StreamNode) -> None:
    target = await node.stream(7)
    payloads = [b"%d" % number * (MANY // 2) for number in range(2 * BIND_BYTES // MANY)]
    for payload in payloads:
        await node.append(target, payload)
        await turn(node)
    fold = node.opened(target).fold
    assert 0 < fold.log_bytes < BIND_BYTES
    assert await node.stored_extents() == [ExtentId(7, 1, 1)]
    assert await node.fetch_all(target) == list(enumerate(payloads))
    assert await node.fetch_all(target, bytes_max=1) == list(enumerate(payloads))
    before = node.state(target)
    await node.crash()
    assert node.state(target) == before
    assert await node.fetch_all(target, 3) == list(enumerate(payloads))[3:]


@on_files_and_tables
async def test_old_batches_are_moved_and_their_segments_are_free(node: StreamNode) -> None:
    queue, target = await node.queue(1), await node.stream(7)
    await node.append(target, b"old")
    first = node.opened(target).fold.tail_line(0).position >> 24
    number = first & 0xFFFFF
    while node.incarnation.log.next_segment < number + SEGMENTS_BACK - 1:
        await node.send(queue, "x" * 200_000)
    await turn(node)
    assert node.opened(target).fold.segments == {first: 1}, "it is not that old yet"
    while node.incarnation.log.next_segment < number + SEGMENTS_BACK:
        await node.send(queue, "x" * 200_000)
    await turn(node)
    assert node.opened(target).fold.segments == {}
    await node.take_all(queue)
    await node.node.checkpoint()
    log_id = node.incarnation.log.log_id
    kept = [one for one, _ in await node.node._checkpointer._segments.segments_of(log_id)]  # type: ignore[union-attr]
    assert min(kept) > number
    assert await node.fetch_all(target) == [(0, b"old")]
    await node.restart()
    assert await node.fetch_all(target) == [(0, b"old")]


@on_files_and_tables
async def test_batches_of_an_earlier_log_are_moved(node: StreamNode) -> None:
    target = await node.stream(7)
    await node.append(target, b"one")
    await turn(node)
    assert await node.stored_extents() == []
    await node.crash()
    await turn(node)
    assert await node.stored_extents() == [ExtentId(7, 2, 1)]
    assert node.opened(target).fold.log_bytes == 0
    assert await node.fetch_all(target) == [(0, b"one")]


@on_files_and_tables
async def test_an_owner_continues_its_extent_and_its_successor_begins_another(node: StreamNode) -> None:
    target = await node.stream(7)
    for _ in range(3):
        await node.append(target)
        await node.bind(target)
    assert len(node.opened(target).fold.extents) == 1
    await node.crash()
    await node.append(target)
    await node.bind(target)
    assert await node.stored_extents() == [ExtentId(7, 1, 1), ExtentId(7, 2, 2)]
    assert await node.fetch_all(target) == [(number, b"payload") for number in range(4)]


@on_files_and_tables
async def test_a_bind_that_fails_loses_nothing_and_leaves_nothing(node: StreamNode) -> None:
    target = await node.stream(7)
    await node.append(target, b"one")
    await node.bind(target)
    binder = node.incarnation.binder
    failing = FailingExtents(node.extents)
    binder._store = failing
    await node.append(target, b"two")
    for _ in range(2):  # one of the extent that exists, and one of a new one
        with pytest.raises(Unavailable):
            await node.bind(target)
    assert await node.fetch_all(target) == [(0, b"one"), (1, b"two")]
    failing.fails = False
    await node.bind(target)
    await turn(node)
    assert await node.stored_extents() == [ExtentId(7, 1, 1), ExtentId(7, 1, 3)]
    assert await node.fetch_all(target) == [(0, b"one"), (1, b"two")]
    await node.crash()
    assert await node.fetch_all(target) == [(0, b"one"), (1, b"two")]


@on_files_and_tables
async def test_an_extent_without_its_record_is_deleted_after_a_crash(node: StreamNode) -> None:
    target = await node.stream(7)
    await node.append(target, b"one")
    await node.bind(target)
    await node.append(target, b"two")
    stream = node.opened(target)
    stray = ExtentId(7, stream.epoch, 2)
    await node.extents.append(stray, 0, b"bytes of a bind")
    await node.extents.append(ExtentId(8, stream.epoch, 1), 0, b"bytes of a topic that was deleted")
    await turn(node)
    assert stray in await node.stored_extents(), "a bind of this epoch may be in progress"
    await node.crash()
    await turn(node)
    assert await node.stored_extents() == [ExtentId(7, 1, 1), ExtentId(7, 2, 2)]
    assert await node.fetch_all(target) == [(0, b"one"), (1, b"two")]


async def test_a_stopped_partition_keeps_its_extents(node: StreamNode) -> None:
    """An operator may still accept its loss, and its extents are then read."""
    target = await node.stream(7)
    await node.append(target, b"one")
    await node.bind(target)
    await node.append(target, b"the second")
    await node.kill()
    for path in (node.folder / "journal").glob("*/*.log"):
        data = bytearray(path.read_bytes())
        if b"the second" in data:
            data[data.index(b"the second") - 12] ^= 0xFF
            path.write_bytes(data)
    await node.start()
    assert len(node.node.damage) == 1
    await turn(node)
    assert await node.stored_extents() == [ExtentId(7, 1, 1)]
    await node.restart()
    await turn(node)
    assert await node.stored_extents() == [ExtentId(7, 1, 1)]


@on_files_and_tables
async def test_extents_below_the_log_start_are_deleted_after_a_checkpoint(node: StreamNode) -> None:
    target = await node.stream(7)
    await node.append(target, b"one")
    await node.bind(target)
    await node.node.call(DeleteRecords(target, 1))
    assert await node.stored_extents() == [ExtentId(7, 1, 1)]
    await node.crash()  # a replay from before the deletion needs it
    await node.append(target, b"two")
    assert await node.stored_extents() == [ExtentId(7, 1, 1)]
    await node.node.checkpoint()
    assert await node.stored_extents() == []
    assert node.opened(target).fold.released == []
    await node.node.checkpoint()
    await node.crash()
    assert node.opened(target).fold.released == []
    assert await node.fetch_all(target, 1) == [(1, b"two")]


@on_files_and_tables
async def test_a_dropped_topic_is_remembered_until_its_extents_are_deleted(node: StreamNode) -> None:
    target, other = await node.stream(7), await node.stream(9)
    for one in (target, other):
        await node.append(one, b"one")
        await node.bind(one)
    await node.node.call(DropStream(target))
    await node.crash()
    assert await node.stored_extents() == [ExtentId(7, 1, 1), ExtentId(9, 1, 1)]
    await node.node.checkpoint()
    assert await node.stored_extents() == [ExtentId(9, 1, 1)]
    assert set(node.incarnation.shards.streams) == {9}
    await node.restart()
    assert set(node.incarnation.shards.streams) == {9}
    assert await node.fetch_all(other) == [(0, b"one")]


@on_files_and_tables
async def test_a_topic_dropped_during_a_bind_leaves_no_extent(node: StreamNode) -> None:
    target = await node.stream(7)
    await node.append(target, b"one")

    class Slow(OtherExtents):
        async def append(self, extent: ExtentId, offset: int, data: bytes) -> None:
            await super().append(extent, offset, data)
            await node.node.call(DropStream(target))

    node.incarnation.binder._store = Slow(node.extents)
    node.opened(target).fold.log_bytes += BIND_BYTES  # it is due
    await turn(node)
    assert await node.stored_extents() == []


@on_files_and_tables
async def test_old_batches_are_removed_by_time_and_by_size(node: StreamNode) -> None:
    now = node.node.clock()
    by_time = await node.stream(7, retention_ms=60_000)
    by_size = await node.stream(8, retention_bytes=8)
    forever = await node.stream(9, retention_ms=-1)
    for target in (by_time, by_size, forever):
        await node.append(target, b"12345678", timestamp=now - 120_000)
        await node.bind(target)
        node.opened(target).binder._failed = ExtentId(target.partition, 1, 1)  # the next bind begins another extent
        await node.append(target, b"12345678", timestamp=now)
        await node.bind(target)
    await node.incarnation.binder.trim()
    for target in (by_time, by_size):
        with pytest.raises(StreamRefused):
            await node.fetch(target, 0)
        assert await node.fetch_all(target, 1) == [(1, b"12345678")]
    assert len(await node.fetch_all(forever)) == 2
    await node.node.checkpoint()
    assert await node.stored_extents() == [
        ExtentId(7, 1, 2), ExtentId(8, 1, 2), ExtentId(9, 1, 1), ExtentId(9, 1, 2)
    ]  # fmt: skip


@on_files_and_tables
async def test_a_fetch_survives_that_its_batches_are_moved_or_deleted_meanwhile(
    node: StreamNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = await node.stream(7)
    await node.append(target, b"one")
    await node.append(target, b"two")
    log = node.incarnation.log
    read = log.read_many

    async def moved(positions: Sequence[int]) -> object:
        monkeypatch.setattr(log, "read_many", read)
        views = await read(positions)
        await node.bind(target)
        return [view._replace(partition=8) for view in views]

    monkeypatch.setattr(log, "read_many", moved)
    assert await node.fetch_all(target) == [(0, b"one"), (1, b"two")]
    extents = node.incarnation.binder._store
    get = extents.read

    async def deleted(*place: object) -> bytes:
        monkeypatch.setattr(extents, "read", get)
        await node.node.call(DeleteRecords(target, 2))
        return b""

    monkeypatch.setattr(extents, "read", deleted)
    with pytest.raises(StreamRefused):
        await node.fetch(target, 0)


async def test_a_fetch_says_that_the_batches_are_durable_which_an_extent_has_got_meanwhile(
    node: StreamNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = await node.stream(7)
    await node.append(target, b"one")
    log = node.incarnation.log
    read = log.read_many

    async def moved(positions: Sequence[int]) -> object:
        monkeypatch.setattr(log, "read_many", read)
        views = await read(positions)
        await node.append(target, b"two")
        await node.bind(target)
        return [view._replace(partition=8) for view in views]

    monkeypatch.setattr(log, "read_many", moved)
    answer = await node.fetch(target)
    assert [batch.payload for batch in answer.batches] == [b"one", b"two"]
    assert answer.durable_end == 2


@pytest.mark.parametrize("is_missing", [False, True], ids=["flipped", "missing"])
async def test_damage_of_an_extent_costs_what_is_damaged(node: StreamNode, is_missing: bool) -> None:
    target = await node.stream(7)
    for name in (b"the first", b"the second", b"the third"):
        await node.append(target, name, 2)
    await node.bind(target)
    await node.append(target, b"the fourth", 2)
    (path,) = (node.folder / "journal" / "extents").glob("*")
    if is_missing:
        path.unlink()
    else:
        data = bytearray(path.read_bytes())
        data[data.index(b"the second")] ^= 0xFF
        path.write_bytes(data)
    found = await node.fetch_all(target)
    if is_missing:
        assert found == [(0, b""), (6, b"the fourth")]
    else:
        assert found == [(0, b"the first"), (2, b""), (4, b"the third"), (6, b"the fourth")]


async def test_a_damaged_header_in_an_extent_costs_the_batches_up_to_the_next_entry_of_the_index(
    node: StreamNode,
) -> None:
    target = await node.stream(7)
    for number in range(8):
        await node.append(target, b"<%d>" % number * 10_000)
    await node.bind(target)
    (path,) = (node.folder / "journal" / "extents").glob("*")
    data = bytearray(path.read_bytes())
    data[data.rindex(b"HfBt", 0, data.index(b"<4>")) + 20] ^= 0xFF  # its header
    path.write_bytes(data)
    found = await node.fetch_all(target, bytes_max=1)
    readable = [offset for offset, payload in found if payload]
    assert 4 not in readable
    assert readable[:4] == [0, 1, 2, 3]
    assert readable[-1] == 7
    assert len(readable) >= 6


async def test_the_binder_works_by_itself(node: StreamNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binder_module, "CHECK_SECONDS", 0.01)
    await node.restart()
    target = await node.stream(7)
    await node.append(target, b"one")
    await node.crash()

    async def is_moved() -> bool:
        return not len(node.opened(target).fold.tail)

    async with asyncio.timeout(20):
        await until(is_moved)
    assert await node.fetch_all(target) == [(0, b"one")]


async def test_only_extents_are_listed(tmp_path: Path) -> None:
    disk = RealDisk()
    extents = LocalExtents(disk, str(tmp_path))
    assert await listed(extents) == []
    await extents.delete([ExtentId(1, 1, 1)])
    await extents.append(ExtentId(1, 2, 3), 0, b"data")
    await extents.append(ExtentId(1, 2, 3), 4, b"more")
    (tmp_path / "extents" / "notes.txt").write_text("")
    (tmp_path / "extents" / "1-2-3.ext").write_text("")
    assert await listed(extents) == [ExtentId(1, 2, 3)]
    assert await extents.read(ExtentId(1, 2, 3), 100, 2) == b"tamore"
    assert await extents.read(ExtentId(1, 2, 4), 100, 2) == b""
    await extents.delete([ExtentId(1, 2, 3), ExtentId(1, 2, 4)])
    assert await listed(extents) == []
    disk.close_workers()


async def test_metrics_say_what_streams_a_node_has(node: StreamNode) -> None:
    target = await node.stream(7)
    await node.group(8)
    await node.append(target, b"one")
    await node.bind(target)
    await node.append(target, b"second")
    sums = Sums(node.node)
    await sums.refresh()
    assert (sums.topic_partitions, sums.groups.total(), sums.batch_bytes) == (1, 1, len("onesecond"))
    assert sums.unbound_bytes == len("second")
