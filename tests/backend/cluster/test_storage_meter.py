"""Stored bytes of partitions, recorded minute by minute, compared with a test's own sums."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from backend.api import SHARDS, NewMessage, PartitionSettings, Receive, Target, Unavailable
from backend.cluster.storage_meter import StorageMeter
from backend.journal.local.disk import RealDisk
from backend.node import Node, NodeSettings
from backend.serving.node_clock import SteadyClock
from billing.metering.storage import StorageRecord
from billing.metering.storage_file import finished_storage
from metadata_service.sqlite.store import SQLiteStore
from metadata_service.store import StoreError
from tests.backend.nodes import FakeResolver
from tests.simulator.world.fleet import partition_of

HOUR = 1_763_726_400
"""2025-11-21T12:00:00Z"""


class _World:
    """Nodes of one machine in virtual time, with the files that their meters write."""

    def __init__(self, folder: Path) -> None:
        self.now = float(HOUR)
        self.folder = folder
        self.spool = folder / "usage"
        self.store = SQLiteStore(folder / "metadata.db")
        self.resolver = FakeResolver()
        self.nodes: dict[str, Node] = {}
        self.tags: dict[int, Mapping[str, str] | None] = {}

    async def node(self, name: str, shards: Any = ()) -> Node:
        clock = SteadyClock(lambda: self.now, lambda: self.now, lambda: self.now)
        settings = NodeSettings(name, shards=shards)
        node = self.nodes[name] = await Node.start(
            RealDisk(), str(self.folder / "journal"), self.store, self.resolver, clock=clock, settings=settings
        )
        return node

    def meter(self, node: Node) -> StorageMeter:
        return StorageMeter(node, self.spool, "host-1", self._tags, wall=lambda: self.now)

    async def _tags(self, queue_id: int) -> Mapping[str, str] | None:
        if queue_id not in self.tags:
            raise StoreError("away")
        return self.tags[queue_id]

    async def queue(self, node: Node, partition: int, **values: Any) -> Target:
        arn = f"arn:aws:sqs:us-east-1:123456789012:queue-{partition}"
        settings = PartitionSettings(partition, partition, 1, arn, b"k" * 16, **values)
        self.resolver.known[partition] = settings
        await node.configure(settings)
        return Target(partition, partition, 1)

    async def until(self, meter: StorageMeter, second: float) -> None:
        """Advance the time to this second after the hour's start, as the meter's own loop would."""
        while True:
            turn = (self.now // 10 + 1) * 10
            if turn > HOUR + second:
                break
            self.now = turn
            await meter.turn()
        self.now = HOUR + second

    def records(self) -> list[StorageRecord]:
        found: list[StorageRecord] = []
        for file in finished_storage(self.spool):
            found += file.records()
            assert file.lost == []
            file.close()
        return found

    async def close(self) -> None:
        for node in self.nodes.values():
            await node.close()
        await self.store.close()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[_World]:
    world = _World(tmp_path)
    yield world
    await world.close()


async def send(node: Node, target: Target, size: int, count: int = 1) -> None:
    await node.send(target, [NewMessage(b"x" * size) for _ in range(count)])


async def take(node: Node, target: Target, count: int = 1) -> None:
    """Receive and delete."""
    received = await node.receive(target, Receive(count, 30, 0))
    assert len(received) == count
    await node.delete(target, [one.handle for one in received])


def spans(records: list[StorageRecord]) -> list[tuple[int, int, int]]:
    """Return minute of the hour, minutes and byte-milliseconds of each record."""
    return sorted(((one.minute_s - HOUR) // 60, one.minutes, one.byte_milliseconds) for one in records)


def counted_once(records: list[StorageRecord]) -> list[StorageRecord]:
    """Deduplicate as a reader does: of each id the record with the latest epoch."""
    by_id: dict[tuple[int, int], StorageRecord] = {}
    for record in sorted(records, key=lambda one: (one.epoch, one.sequence)):
        by_id[record.partition, record.minute_s] = record
    return list(by_id.values())


def minutes_of(records: list[StorageRecord]) -> list[tuple[int, int]]:
    """Return (partition, minute) of all minutes that the records cover."""
    return [(one.partition, one.minute_s + 60 * at) for one in records for at in range(one.minutes)]


async def test_bytes_times_milliseconds_are_exact(world: _World) -> None:
    node = await world.node("a", range(SHARDS))
    meter = world.meter(node)
    target = await world.queue(node, 1)
    await world.until(meter, 10)
    await send(node, target, 100)
    await world.until(meter, 25)
    await send(node, target, 50)
    await world.until(meter, 40)
    await take(node, target)  # the one of 100 bytes
    await world.until(meter, 200)
    await take(node, target)
    await world.until(meter, 400)
    await meter.close()
    found = world.records()
    assert spans(found) == [
        (0, 1, 100 * 30_000 + 50 * 35_000),
        (1, 2, 50 * 120_000),
        (3, 1, 50 * 20_000),
    ]
    assert [one.messages_most for one in found] == [2, 1, 1]
    assert [(one.key.account, one.key.queue, one.key.kind) for one in found[:1]] == [
        ("123456789012", "queue-1", "standard")
    ]


async def test_random_traffic_of_many_queues_adds_up(world: _World) -> None:
    """Both the sum of all records and each minute equal the test's own sums."""
    node = await world.node("a", range(SHARDS))
    meter = world.meter(node)
    chance = random.Random(7)
    targets = [await world.queue(node, number) for number in range(1, 6)]
    await meter.turn()
    stored: dict[int, list[int]] = {target.partition: [] for target in targets}
    expected: dict[tuple[int, int], int] = {}
    at = 0.0
    while at < 4000:
        step = chance.choice([0.25, 1.0, 7.5, 31.0, 200.0])
        end = min(at + step, 4000.0)
        for partition, sizes in stored.items():
            moment = at
            while moment < end:
                minute = int(moment // 60)
                until = min(end, (minute + 1) * 60.0)
                expected[partition, minute] = expected.get((partition, minute), 0) + round(
                    sum(sizes) * (until - moment) * 1000
                )
                moment = until
        await world.until(meter, end)
        at = end
        target = chance.choice(targets)
        sizes = stored[target.partition]
        if at == 4000.0:
            break
        if sizes and chance.random() < 0.4:
            await take(node, target)
            sizes.pop(0)
        elif sizes and chance.random() < 0.1:
            await node.purge(target, int(at * 100) + 1)
            sizes.clear()
        else:
            sizes.append(chance.randrange(1, 5000))
            await send(node, target, sizes[-1])
    await meter.close()
    found: dict[tuple[int, int], int] = {}
    records = world.records()
    assert len(minutes_of(records)) == len(set(minutes_of(records))), "no minute twice"
    for one in records:
        for minute in range(one.minutes):
            key = one.partition, (one.minute_s - HOUR) // 60 + minute
            found[key] = one.byte_milliseconds // one.minutes
    assert found == {key: byte_ms for key, byte_ms in expected.items() if byte_ms}
    assert any(one.minutes > 3 for one in records)


async def test_a_look_that_comes_late_shifts_what_changed_meanwhile_and_loses_nothing(world: _World) -> None:
    node = await world.node("a", range(SHARDS))
    meter = world.meter(node)
    target = await world.queue(node, 1)
    await world.until(meter, 50)
    world.now = HOUR + 61  # the loop was busy at the minute's end
    await send(node, target, 100)
    world.now = HOUR + 63
    await meter.turn()
    world.now = HOUR + 121
    await take(node, target)
    world.now = HOUR + 122
    await meter.turn()
    await world.until(meter, 400)
    await meter.close()
    records = world.records()
    assert all(one.byte_milliseconds >= 0 for one in records)
    assert sum(one.byte_milliseconds for one in records) == 100 * 60_000


async def test_a_backlog_that_nobody_touches_costs_one_record_an_hour(world: _World) -> None:
    node = await world.node("a", range(SHARDS))
    meter = world.meter(node)
    full, _ = await world.queue(node, 1), await world.queue(node, 2)
    await send(node, full, 1000, 10)
    await world.until(meter, 3 * 3600 + 30)
    await meter.close()
    found = world.records()
    assert spans(found) == [
        (0, 1, 600_000_000),
        (1, 59, 59 * 600_000_000),
        (60, 1, 600_000_000),
        (61, 59, 59 * 600_000_000),
        (120, 1, 600_000_000),
        (121, 59, 59 * 600_000_000),
        (180, 1, 300_000_000),
    ]
    assert {one.partition for one in found} == {1}, "an empty queue has no record"
    assert found[1].oldest_age_ms == 3_600_000


async def test_what_is_in_flight_and_delayed_is_told(world: _World) -> None:
    node = await world.node("a", range(SHARDS))
    meter = world.meter(node)
    target = await world.queue(node, 1)
    await meter.turn()
    await send(node, target, 10, 3)
    await node.send(target, [NewMessage(b"later", delay_seconds=300)])
    await node.receive(target, Receive(2, 120, 0))
    await world.until(meter, 60)
    await meter.close()
    (one, _) = sorted(world.records(), key=lambda record: record.minute_s)
    assert (one.messages, one.in_flight, one.delayed, one.messages_most) == (4, 2, 1, 4)
    assert one.oldest_age_ms == 60_000


async def test_a_deleted_queue_has_a_last_record(world: _World) -> None:
    node = await world.node("a", range(SHARDS))
    meter = world.meter(node)
    target = await world.queue(node, 1)
    await send(node, target, 100)
    await world.until(meter, 75)
    await node.drop(target)
    await world.until(meter, 300)
    await meter.close()
    assert spans(world.records()) == [(0, 1, 6_000_000), (1, 1, 1_500_000)]


async def test_tags_are_asked_for_and_stand_in_all_records_of_the_hour(world: _World) -> None:
    node = await world.node("a", range(SHARDS))
    meter = world.meter(node)
    target = await world.queue(node, 1)
    await send(node, target, 100)
    await world.until(meter, 130)  # the metadata are unavailable
    world.tags[1] = {"team": "b", "app": "x"}
    await world.until(meter, 3500)
    world.tags[1] = {"team": "c"}
    await world.until(meter, 3800)
    world.tags[1] = None  # the queue is deleted from the metadata
    await world.until(meter, 7300)
    await meter.close()
    by_hour = {(one.minute_s // 3600, one.key.tags) for one in world.records()}
    assert by_hour == {
        (HOUR // 3600, (("app", "x"), ("team", "b"))),
        (HOUR // 3600 + 1, (("team", "c"),)),
        (HOUR // 3600 + 2, (("team", "c"),)),
    }


# --- owners that change -------------------------------------------------------------------------------------


async def test_a_hand_over_loses_nothing_and_counts_nothing_twice(world: _World) -> None:
    first, second = await world.node("a", range(SHARDS)), await world.node("b")
    meters = world.meter(first), world.meter(second)
    partition = partition_of(5)
    target = await world.queue(first, partition)
    await send(first, target, 1000)

    async def until(second: float) -> None:
        while world.now < HOUR + second:
            world.now = min(HOUR + second, (world.now // 10 + 1) * 10)
            for meter in meters:
                await meter.turn()

    await until(133)
    await first.ownership.hand_over({5}, second.ownership.log_id)
    await second.ownership.take({5})
    await until(325)
    await send(second, target, 500)
    await until(400)
    for meter in meters:
        await meter.close()
    records = counted_once(world.records())
    assert sum(one.byte_milliseconds for one in records) == 1000 * 400_000 + 500 * 75_000
    assert len(minutes_of(records)) == len(set(minutes_of(records)))
    epochs = {one.minute_s: one.epoch for one in records}
    assert epochs[HOUR] == epochs[HOUR + 120] < epochs[HOUR + 180]


async def test_a_shard_that_stays_after_all_is_counted_on(world: _World) -> None:
    node = await world.node("a", range(SHARDS))
    meter = world.meter(node)
    target = await world.queue(node, partition_of(5))
    await send(node, target, 100)
    await world.until(meter, 70)
    incarnation = node._incarnation
    assert incarnation is not None
    incarnation.close_shard(incarnation.shards.owned[5])
    await world.until(meter, 95)
    incarnation.reopen_shard(incarnation.shards.owned[5])
    await world.until(meter, 250)
    incarnation.close_shard(incarnation.shards.owned[5])
    await world.until(meter, 370)
    incarnation.reopen_shard(incarnation.shards.owned[5])
    await world.until(meter, 600)
    await meter.close()
    records = world.records()
    assert sum(one.byte_milliseconds for one in records) == 100 * 600_000
    assert len(minutes_of(records)) == len(set(minutes_of(records)))


async def test_a_restart_goes_on_where_the_last_one_ended(world: _World) -> None:
    node = await world.node("a", range(SHARDS))
    meter = world.meter(node)
    target = await world.queue(node, 1)
    await send(node, target, 100)
    await world.until(meter, 90)
    await meter.close()
    await node.close()
    world.now += 5
    node = await world.node("a", range(SHARDS))
    meter = world.meter(node)
    await world.until(meter, 300)
    await meter.close()
    records = world.records()
    assert sum(one.byte_milliseconds for one in counted_once(records)) == 100 * 295_000, "it was down for 5 s"
    assert len(minutes_of(records)) == len(set(minutes_of(records)))


async def test_a_killed_node_leaves_its_minutes_and_its_successor_takes_none_of_them(world: _World) -> None:
    node = await world.node("a", range(SHARDS))
    meter = world.meter(node)
    target = await world.queue(node, 1)
    await send(node, target, 100)
    await world.until(meter, 200)
    # It is killed: nothing more is written, and the kernel releases its locks.
    assert meter._file is not None
    meter._file.close()
    await node.close()
    world.now += 4
    successor = await world.node("b", range(SHARDS))
    following = world.meter(successor)
    await world.until(following, 400)
    await following.close()
    records = world.records()
    assert len(minutes_of(records)) == len(set(minutes_of(records)))
    assert {one.minute_s for one in records} >= {HOUR, HOUR + 60, HOUR + 240}
    lost = 100 * 400_000 - sum(one.byte_milliseconds for one in records)
    assert lost == 100 * 24_000, "from the last minute's end until the other had it"


@contextmanager
def unconfirmed(node: Node, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    async def nobody_knows() -> None:
        raise Unavailable("no quorum")

    with monkeypatch.context() as patched:
        patched.setattr(node, "confirm", nobody_knows)
        yield


async def test_who_cannot_confirm_writes_nothing_and_makes_up_for_it_later(
    world: _World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node = await world.node("a", range(SHARDS))
    meter = world.meter(node)
    target = await world.queue(node, 1)
    await send(node, target, 100)
    await world.until(meter, 130)
    with unconfirmed(node, monkeypatch):
        await world.until(meter, 200)
        await send(node, target, 10)
        await world.until(meter, 315)
    await world.until(meter, 500)
    await meter.close()
    records = world.records()
    assert sum(one.byte_milliseconds for one in records) == 100 * 500_000 + 10 * 300_000
    assert len(minutes_of(records)) == len(set(minutes_of(records)))
    assert {(one.minute_s - HOUR) // 60 for one in records} == {0, 1, 4, 5, 8}
    assert [record.levelname for record in caplog.records if "recorded" in record.message] == ["ERROR", "WARNING"]


async def test_an_owner_that_is_one_no_more_writes_nothing(world: _World, monkeypatch: pytest.MonkeyPatch) -> None:
    node = await world.node("a", range(SHARDS))
    meter = world.meter(node)
    target = await world.queue(node, 1)
    await send(node, target, 100)
    await world.until(meter, 70)
    with unconfirmed(node, monkeypatch):
        await world.until(meter, 300)
        await meter.close()
    assert spans(world.records()) == [(0, 1, 6_000_000)]


async def test_a_full_disk_delays_and_loses_nothing(world: _World, monkeypatch: pytest.MonkeyPatch) -> None:
    node = await world.node("a", range(SHARDS))
    meter = world.meter(node)
    target = await world.queue(node, 1)
    await send(node, target, 100)
    await world.until(meter, 70)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("billing.metering.storage_file.StorageFile.append", full)
        await world.until(meter, 205)
    await world.until(meter, 400)
    await meter.close()
    records = world.records()
    assert sum(one.byte_milliseconds for one in records) == 100 * 400_000
    assert len(minutes_of(records)) == len(set(minutes_of(records)))


@pytest.mark.parametrize("forward", [300, 86_400])
async def test_a_clock_that_is_stepped_bills_the_time_that_has_passed(world: _World, forward: int) -> None:
    node = await world.node("a", range(SHARDS))
    meter = StorageMeter(node, world.spool, "host-1", world._tags, wall=lambda: world.now + stepped)
    stepped = 0
    target = await world.queue(node, 1)
    await send(node, target, 100)
    await world.until(meter, 70)
    stepped = forward  # and back again
    await world.until(meter, 190)
    stepped = 0
    await world.until(meter, 900)
    await meter.close()
    records = world.records()
    assert sum(one.byte_milliseconds for one in records) == 100 * 900_000
    assert max(one.minutes for one in records) < 15


async def test_its_own_loop_turns_and_ends(world: _World) -> None:
    node = await world.node("a", range(SHARDS))
    world.now = HOUR + 9.99
    meter = world.meter(node)
    target = await world.queue(node, 1)
    await send(node, target, 100)
    meter.run()
    world.now += 2
    await meter.close()
    assert spans(world.records()) == [(0, 1, 200_000)]
