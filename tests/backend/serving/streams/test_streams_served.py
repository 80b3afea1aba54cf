"""Streams on a node: append, fetch, restarts, and damage in the log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backend import instruments
from backend.api import (
    AccountBytes,
    AckLevel,
    CountMessages,
    PartitionDamaged,
    PartitionGone,
    PartitionUnknown,
    SettingsStale,
    StorageFull,
    Target,
)
from backend.journal.local.extents import LocalExtents
from backend.journal.local.journal import LocalJournal
from backend.recovery.damage import accept, survey
from backend.recovery.offline_stats import TopicCounters, count
from backend.stream_api import Appended, FoundOffset, StreamError, StreamRefused
from backend.stream_commands import (
    LARGEST_TIMESTAMP,
    DeleteRecords,
    DropStream,
    FetchBatches,
    FindEpochEnd,
    ReadStreamEnds,
    SearchTimestamp,
)
from tests.backend.serving.streams.stream_node import ACCOUNT, WAIT, StreamNode, waiting_fetches

BIG = 100_000


# --- append and fetch -----------------------------------------------------------------------------------


async def test_batches_are_fetched_as_they_were_appended(node: StreamNode) -> None:
    target = await node.stream(7)
    assert await node.append(target, b"one", 3, timestamp=1_000) == Appended(0, -1, 0)
    assert await node.append(target, b"two", 2) == Appended(3, -1, 0)
    found = await node.fetch(target, 1)
    assert [(one.base_offset, one.record_count, one.payload, one.max_timestamp) for one in found.batches] == [
        (0, 3, b"one", 1_000),
        (3, 2, b"two", -1),
    ]
    assert (found.durable_end, found.log_start) == (5, 0)
    assert [one.payload for one in (await node.fetch(target, 3)).batches] == [b"two"]
    assert (await node.fetch(target, 5)).batches == []


async def test_a_fetch_returns_one_batch_however_long_unless_the_caller_has_others(node: StreamNode) -> None:
    target = await node.stream(7)
    for _ in range(3):
        await node.append(target, bytes(BIG))
    assert len((await node.fetch(target, 0, 1)).batches) == 1
    assert len((await node.fetch(target, 0, 2 * BIG)).batches) == 2
    assert (await node.node.call(FetchBatches(target, 0, 1, at_least_one=False))).batches == []


async def test_a_waiting_fetch_gets_the_next_batch(node: StreamNode) -> None:
    target = await node.stream(7)
    waiting = asyncio.create_task(node.fetch(target, 0, wait=WAIT))
    await waiting_fetches(node, target, 1)
    await node.append(target, b"one")
    async with asyncio.timeout(WAIT / 2):
        assert [one.payload for one in (await waiting).batches] == [b"one"]
    assert not node.opened(target).waiters


async def test_a_waiting_fetch_gets_a_batch_that_nobody_waits_for(node: StreamNode) -> None:
    """An append at the level NONE is answered before it is durable, and its fetch is woken nevertheless."""
    target = await node.stream(7)
    waiting = asyncio.create_task(node.fetch(target, 0, wait=WAIT))
    await waiting_fetches(node, target, 1)
    await node.append(target, b"one", level=AckLevel.NONE)
    async with asyncio.timeout(WAIT / 2):
        assert [one.payload for one in (await waiting).batches] == [b"one"]


async def test_nobody_reads_a_batch_before_it_is_durable(node: StreamNode, monkeypatch: pytest.MonkeyPatch) -> None:
    target = await node.stream(7)
    await node.append(target, b"one")
    commit: Callable[..., None] = node.disk.commit
    held: list[tuple[Any, ...]] = []
    monkeypatch.setattr(node.disk, "commit", lambda *write: held.append(write))
    await node.append(target, b"two", level=AckLevel.LEADER)
    seen = await node.fetch(target)
    assert ([one.payload for one in seen.batches], seen.durable_end) == ([b"one"], 1)
    assert (await node.fetch(target, 1)).batches == []
    waiting = asyncio.create_task(node.fetch(target, 1, wait=WAIT))
    await waiting_fetches(node, target, 1)
    monkeypatch.setattr(node.disk, "commit", commit)
    for write in held:
        commit(*write)
    async with asyncio.timeout(WAIT / 2):
        assert [one.payload for one in (await waiting).batches] == [b"two"]


async def test_a_fetch_ends_with_its_time_and_with_the_service(node: StreamNode) -> None:
    target = await node.stream(7)
    assert (await node.fetch(target, 0, wait=0.01)).batches == []
    waiting = asyncio.create_task(node.fetch(target, 0, wait=WAIT))
    await waiting_fetches(node, target, 1)
    node.node.drain()
    async with asyncio.timeout(WAIT / 2):
        assert (await waiting).batches == []


async def test_offsets_that_do_not_exist_are_refused(node: StreamNode) -> None:
    target = await node.stream(7)
    await node.append(target, b"one", 3)
    for offset in (-1, 4):
        with pytest.raises(StreamRefused, match="offsets are 0 to 3") as raised:
            await node.fetch(target, offset, wait=WAIT)
        assert raised.value.error is StreamError.OFFSET_OUT_OF_RANGE


async def test_sequences_of_producers_outlive_a_crash(node: StreamNode) -> None:
    target = await node.stream(7)
    assert await node.append(target, b"one", 3, producer=(9, 0, 0)) == Appended(0, -1, 0)
    await node.crash()
    assert await node.append(target, b"one", 3, producer=(9, 0, 0)) == Appended(0, -1, 0, True)
    with pytest.raises(StreamRefused) as raised:
        await node.append(target, b"three", 3, producer=(9, 0, 6))
    assert raised.value.error is StreamError.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await node.append(target, b"two", 3, producer=(9, 0, 3)) == Appended(3, -1, 0)
    assert await node.fetch_all(target) == [(0, b"one"), (3, b"two")]


# --- restarts -------------------------------------------------------------------------------------------


async def test_a_crash_loses_no_answered_batch_and_no_state(node: StreamNode) -> None:
    target = await node.stream(7)
    for number in range(20):
        await node.append(target, b"%d" % number, 2, timestamp=number, producer=(1, 0, 2 * number))
    before = node.state(target)
    await node.crash()
    assert node.state(target) == before
    assert await node.fetch_all(target) == [(2 * number, b"%d" % number) for number in range(20)]
    assert node.opened(target).fold.epoch == 2
    await node.append(target, b"more")
    assert (await node.fetch(target, 40)).batches[0].leader_epoch == 2
    assert (await node.fetch(target, 0)).batches[0].leader_epoch == 1
    assert await node.node.call(FindEpochEnd(target, 1)) == FoundOffset(40, leader_epoch=1)


async def test_a_checkpoint_and_the_records_after_it_give_the_same_state(node: StreamNode) -> None:
    target = await node.stream(7)
    for number in range(1_500):  # more than one block of the tail
        await node.append(target, b"%d" % number, producer=(number % 300, 0, number // 300), level=AckLevel.LEADER)
    await node.node.checkpoint()
    assert node.incarnation.shards.of(7).chunks[7][1], "blocks are chunks of their own"
    for number in range(1_500, 1_510):
        await node.append(target, b"%d" % number)
    before = node.state(target)
    await node.crash()
    assert node.state(target) == before
    assert await node.fetch_all(target) == [(number, b"%d" % number) for number in range(1_510)]
    await node.restart()
    assert node.state(target) == before


async def test_segments_with_batches_stay(node: StreamNode) -> None:
    """A batch that the binder has not moved yet is read from its segment, however old that is."""
    queue, target = await node.queue(1), await node.stream(7)
    await node.append(target, b"old")
    for _ in range(40):
        await node.send(queue, "x" * BIG)
    await node.take_all(queue)
    await node.node.checkpoint()
    assert node.incarnation.log.next_segment > 2
    await node.restart()
    assert await node.fetch_all(target) == [(0, b"old")]


async def test_the_queues_of_a_node_do_not_notice_its_streams(node: StreamNode) -> None:
    queue, target = await node.queue(1), await node.stream(7)
    await node.append(target, b"batch")
    await node.send(queue, "message")
    await node.crash()
    assert (await node.count(queue)).visible == 1
    assert await node.node.call(AccountBytes(ACCOUNT)) == len("messagebatch")
    with pytest.raises(PartitionUnknown):
        await node.node.call(CountMessages(target))
    with pytest.raises(PartitionUnknown):
        await node.fetch(queue)


# --- offsets --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_bound", [False, True], ids=["in the log", "in an extent"])
async def test_offsets_are_found_by_time(node: StreamNode, is_bound: bool) -> None:
    target = await node.stream(7)
    for number, timestamp in enumerate([100, 300, 200, 400, 350]):
        await node.append(target, b"%d" % number, 2, timestamp=timestamp)
    if is_bound:
        await node.bind(target)
    for timestamp, offset, expected in [(0, 0, 0), (101, 0, 2), (200, 3, 2), (200, 4, 4), (301, 0, 6), (400, 7, 6)]:
        found = await node.node.call(SearchTimestamp(target, timestamp, offset))
        assert found is not None
        assert (found.batch.base_offset, found.timestamp, found.offset) == (expected, timestamp, offset)
    assert await node.node.call(SearchTimestamp(target, 401)) is None
    assert await node.node.call(SearchTimestamp(target, 400, 8)) is None
    largest = await node.node.call(SearchTimestamp(target, LARGEST_TIMESTAMP))
    assert largest is not None
    assert (largest.batch.base_offset, largest.timestamp) == (6, 400)


async def test_the_ends_of_a_partition_are_those_of_durable_batches(node: StreamNode) -> None:
    target = await node.stream(7)
    await node.append(target, b"one", 3)
    ends = await node.node.call(ReadStreamEnds(target))
    assert ends.log_start == FoundOffset(0, leader_epoch=1)
    assert (ends.durable_end, ends.stored_bytes) == (FoundOffset(3, leader_epoch=1), 3)


@pytest.mark.parametrize(
    "command",
    [
        lambda target, epoch: FetchBatches(target, 0, 1, epoch=epoch),
        lambda target, epoch: ReadStreamEnds(target, epoch),
        lambda target, epoch: SearchTimestamp(target, 0, epoch=epoch),
        lambda target, epoch: FindEpochEnd(target, 0, epoch),
    ],
    ids=["fetch", "ends", "search", "epoch"],
)
async def test_an_epoch_that_is_not_the_current_one_is_refused(node: StreamNode, command: Any) -> None:
    target = await node.stream(7)
    await node.append(target)
    await node.node.call(command(target, 1))
    with pytest.raises(StreamRefused) as raised:
        await node.node.call(command(target, 0))
    assert raised.value.error is StreamError.FENCED_LEADER_EPOCH
    with pytest.raises(StreamRefused) as raised:
        await node.node.call(command(target, 2))
    assert raised.value.error is StreamError.UNKNOWN_LEADER_EPOCH


async def test_deleted_records_stay_deleted(node: StreamNode) -> None:
    target = await node.stream(7)
    for number in range(3):
        await node.append(target, b"%d" % number, 2)
    assert await node.node.call(DeleteRecords(target, 2)) == 2
    await node.crash()
    with pytest.raises(StreamRefused):
        await node.fetch(target, 1)
    assert await node.fetch_all(target, 2) == [(2, b"1"), (4, b"2")]
    assert await node.node.call(DeleteRecords(target, -1)) == 6
    assert await node.node.call(DeleteRecords(target, 1)) == 6
    assert (await node.fetch(target, 6)).batches == []


# --- settings, and the end --------------------------------------------------------------------------------


async def test_a_partition_knows_its_settings_at_least_as_well_as_its_caller(node: StreamNode) -> None:
    with pytest.raises(PartitionUnknown):
        await node.fetch(Target(7, 7, 1))
    target = await node.stream(7, batch_bytes_max=5)
    with pytest.raises(StreamRefused) as raised:
        await node.append(target, b"123456")
    assert raised.value.error is StreamError.MESSAGE_TOO_LARGE
    with pytest.raises(SettingsStale):
        await node.append(Target(7, 7, 2), b"123456")
    newer = await node.stream(7, version=2, batch_bytes_max=6)
    await node.stream(7, version=1, batch_bytes_max=5)  # older settings are ignored
    await node.append(newer, b"123456")
    await node.crash()
    await node.append(newer, b"123456")
    with pytest.raises(PartitionGone):
        await node.fetch(Target(7, 8, 1))


async def test_a_dropped_stream_is_gone(node: StreamNode) -> None:
    target = await node.stream(7)
    await node.append(target)
    waiting = asyncio.create_task(node.fetch(target, 1, wait=WAIT))
    await waiting_fetches(node, target, 1)
    await node.node.call(DropStream(target))
    await node.node.call(DropStream(target))
    with pytest.raises(PartitionGone):
        await asyncio.wait_for(waiting, WAIT / 2)
    with pytest.raises(PartitionGone):
        await node.stream(7)
    assert node.incarnation.shards.streams == {}
    for restart in (node.crash, node.restart):
        await restart()
        with pytest.raises(PartitionUnknown):
            await node.fetch(target)


async def test_memory_and_disk_that_are_full_refuse_appends(node: StreamNode, monkeypatch: pytest.MonkeyPatch) -> None:
    target = await node.stream(7)
    await node.append(target, b"one", producer=(1, 0, 0))
    node.incarnation.memory.full = True
    with pytest.raises(StorageFull, match="memory"):
        await node.append(target, b"two", producer=(1, 0, 1))
    assert (await node.append(target, b"one", producer=(1, 0, 0))).duplicate
    node.incarnation.memory.full = False
    assert not (await node.append(target, b"two", producer=(1, 0, 1))).duplicate
    assert await node.fetch_all(target) == [(0, b"one"), (1, b"two")]


async def test_a_short_batch_does_not_overtake_one_that_waits_for_space(
    node: StreamNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, writer, room = await node.stream(7), node.incarnation.writer, asyncio.Event()
    write = writer.write

    def write_short(stream: Any, record: Any, now: int, payload: bytes = b"", **named: Any) -> None:
        if len(payload) >= BIG and not room.is_set():
            raise StorageFull("the next segment is not allocated yet")
        write(stream, record, now, payload, **named)

    async def wait_for_space(*_: Any) -> None:
        await room.wait()

    monkeypatch.setattr(writer, "write", write_short)
    monkeypatch.setattr(node.incarnation.log, "wait_for_space", wait_for_space)
    appends = [asyncio.create_task(node.append(target, payload)) for payload in (bytes(BIG), b"short", b"next")]
    for _ in range(10):
        await asyncio.sleep(0)  # the short ones would be appended now
    room.set()
    assert [one.base_offset for one in await asyncio.gather(*appends)] == [0, 1, 2]
    assert [payload for _, payload in await node.fetch_all(target)] == [bytes(BIG), b"short", b"next"]


async def test_behind_a_batch_without_space_those_that_need_it_are_refused_too(
    node: StreamNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, writer, full = await node.stream(7), node.incarnation.writer, asyncio.Event()
    write = writer.write

    def write_short(stream: Any, record: Any, now: int, payload: bytes = b"", **named: Any) -> None:
        if len(payload) >= BIG:
            raise StorageFull("no space")
        write(stream, record, now, payload, **named)

    async def still_full(*_: Any) -> None:
        await full.wait()
        raise StorageFull("no space")

    monkeypatch.setattr(writer, "write", write_short)
    monkeypatch.setattr(node.incarnation.log, "wait_for_space", still_full)
    sent = [(bytes(BIG), (1, 0, 0)), (b"needs it", (1, 0, 1)), (b"plain", (-1, -1, -1))]
    appends = [asyncio.create_task(node.append(target, payload, producer=one)) for payload, one in sent]
    for _ in range(10):
        await asyncio.sleep(0)
    full.set()
    big, needs_it, plain = await asyncio.gather(*appends, return_exceptions=True)
    assert isinstance(big, StorageFull)
    assert isinstance(needs_it, StorageFull)
    assert not isinstance(plain, BaseException)
    assert await node.fetch_all(target) == [(0, b"plain")]


async def test_the_memory_of_streams_counts(node: StreamNode) -> None:
    await node.incarnation.memory.refresh()
    before = node.incarnation.memory.used_bytes
    target = await node.stream(7)
    await node.append(target)
    await node.incarnation.memory.refresh()
    assert node.incarnation.memory.used_bytes - before == node.opened(target).fold.memory_bytes() > 0


# --- damage ---------------------------------------------------------------------------------------------


def flip(folder: Path, wanted: bytes, back: int = 0, *, files: str = "*/*.log") -> None:
    """Change one byte of the log, or of other files, ``back`` bytes before the place of ``wanted``."""
    for path in (folder / "journal").glob(files):
        data = bytearray(path.read_bytes())
        if wanted in data:
            data[data.index(wanted) - back] ^= 0xFF
            path.write_bytes(data)
            return
    raise AssertionError("it is in none of them")


@pytest.mark.parametrize("is_bound", [False, True], ids=["in the log", "in an extent"])
async def test_a_damaged_payload_costs_one_batch(node: StreamNode, is_bound: bool) -> None:
    target = await node.stream(7)
    for name in (b"the first", b"the second", b"the third"):
        await node.append(target, name, 2, timestamp=5)
    await node.kill()
    flip(node.folder, b"the second")
    await node.start()
    if is_bound:
        (before,) = instruments.LOST_BATCHES.read().series
        await node.bind(target)
        assert node.opened(target).fold.lost == 1
        (after,) = instruments.LOST_BATCHES.read().series
        assert after.value == before.value + 1
    found = (await node.fetch(target)).batches
    assert [(one.base_offset, one.record_count, one.leader_epoch, one.payload) for one in found] == [
        (0, 2, 1, b"the first"),
        (2, 2, 1, None),
        (4, 2, 1, b"the third"),
    ]
    assert await node.append(target) == Appended(6, -1, 0)
    found_at = await node.node.call(SearchTimestamp(target, 5, 2))
    assert found_at is not None
    assert found_at.batch.base_offset == 4


async def test_a_damaged_record_stops_its_partition_until_the_loss_is_accepted(node: StreamNode) -> None:
    target, other = await node.stream(7), await node.stream(8)
    for name in (b"the first", b"the second", b"the third", b"the fourth"):
        await node.append(target, name, 2)
    await node.append(other, b"intact")
    await node.kill()
    flip(node.folder, b"the second", 12)  # in the head
    await node.start()
    with pytest.raises(PartitionDamaged):
        await node.fetch(target)
    assert await node.fetch_all(other) == [(0, b"intact")]
    await node.stop()
    node.store = type(node.store)(node.folder / "metadata.db")
    journal = LocalJournal(node.disk, str(node.folder / "journal"))
    await accept(await survey(journal, node.store.entries), node.store.entries)
    await node.store.close()
    await node.start()
    assert await node.fetch_all(target) == [(0, b"the first"), (2, b""), (4, b"the third"), (6, b"the fourth")]
    await node.bind(target)
    assert await node.fetch_all(target) == [(0, b"the first"), (2, b""), (4, b"the third"), (6, b"the fourth")]
    assert await node.append(target) == Appended(8, -1, 0)


async def test_a_damaged_stream_can_be_dropped(node: StreamNode) -> None:
    target = await node.stream(7)
    await node.append(target, b"the first")
    await node.kill()
    flip(node.folder, b"the first", 12)
    await node.start()
    with pytest.raises(PartitionDamaged):
        await node.stream(7)
    await node.node.call(DropStream(target))
    assert node.node.damage == []
    await node.crash()
    assert node.node.damage == []
    with pytest.raises(PartitionUnknown):
        await node.fetch(target)


@pytest.mark.parametrize("bound", [False, True], ids=["in the log", "in an extent"])
async def test_damage_of_batches_is_found_while_no_node_runs(node: StreamNode, bound: bool) -> None:
    target = await node.stream(7)
    await node.append(target, b"the first", count=3)
    await node.append(target, b"the second")
    await node.group(8)
    if bound:
        await node.bind(target)
    await node.kill()
    flip(node.folder, b"the second", files="extents/*.ext" if bound else "*/*.log")
    node.store = type(node.store)(node.folder / "metadata.db")
    root = str(node.folder / "journal")
    journal, extents = LocalJournal(node.disk, root), LocalExtents(node.disk, root)
    stats = await count(journal, node.store.entries, journal.segments.read_many, extents.read)
    (damage,) = stats.damaged
    if bound:
        assert damage.startswith("partition 7: extent ")
        assert damage.endswith("the payload of a batch is corrupt")
    else:
        assert damage.startswith("partition 7: damaged body")
    assert (stats.topics, stats.groups) == ({7: TopicCounters(4, 19)}, 1)
    await node.store.close()
    await node.start()
