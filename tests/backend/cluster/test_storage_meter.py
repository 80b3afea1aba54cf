"""Stored bytes of partitions, recorded minute by minute, compared with a test's own sums."""

import random
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from backend import api
from backend.cluster.storage_meter import StorageMeter
from backend.node import Node
from tests.backend.calls import delete, receive
from tests.backend.cluster.meter_world import HOUR, MeterWorld, check_minutes, spans, store
from tests.simulator.world.fleet import partition_of


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[MeterWorld]:
    world = MeterWorld(tmp_path)
    yield world
    await world.close()


async def take(node: Node, target: api.Target, count: int = 1) -> None:
    received = await receive(node, target, count, 30, 0)
    assert len(received) == count
    await delete(node, target, *received)


async def test_bytes_times_milliseconds_are_exact(world: MeterWorld) -> None:
    node, meter, target = await world.metered()
    await world.until(meter, 10)
    await store(node, target, 100)
    await world.until(meter, 25)
    await store(node, target, 50)
    await world.until(meter, 40)
    await take(node, target)  # the one of 100 bytes
    await world.until(meter, 200)
    await take(node, target)
    found = await world.recorded(meter, 400)
    assert spans(found) == [(0, 1, 100 * 30_000 + 50 * 35_000), (1, 2, 50 * 120_000), (3, 1, 50 * 20_000)]
    assert [one.messages_max for one in found] == [2, 1, 1]
    assert [(one.key.account, one.key.queue, one.key.kind) for one in found[:1]] == [
        ("123456789012", "queue-1", "standard")
    ]


async def test_random_traffic_of_many_queues_adds_up(world: MeterWorld) -> None:
    """Both the sum of all records and each minute equal the test's own sums."""
    node = await world.node("a", range(api.SHARDS))
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
            await node.call(api.Purge(target, int(at * 100) + 1))
            sizes.clear()
        else:
            sizes.append(chance.randrange(1, 5000))
            await store(node, target, sizes[-1])
    await meter.close()
    found: dict[tuple[int, int], int] = {}
    records = world.records()
    check_minutes(records)
    for one in records:
        for minute in range(one.minutes):
            key = one.partition, (one.minute_s - HOUR) // 60 + minute
            found[key] = one.byte_milliseconds // one.minutes
    assert found == {key: byte_ms for key, byte_ms in expected.items() if byte_ms}
    assert any(one.minutes > 3 for one in records)


async def test_a_late_scan_shifts_intermediate_changes_and_loses_nothing(world: MeterWorld) -> None:
    node, meter, target = await world.metered()
    await world.until(meter, 50)
    world.now = HOUR + 61  # the loop was busy at the minute's end
    await store(node, target, 100)
    world.now = HOUR + 63
    await meter.turn()
    world.now = HOUR + 121
    await take(node, target)
    world.now = HOUR + 122
    await meter.turn()
    records = await world.recorded(meter, 400)
    assert all(one.byte_milliseconds >= 0 for one in records)
    assert sum(one.byte_milliseconds for one in records) == 100 * 60_000


async def test_an_unused_backlog_costs_one_record_an_hour(world: MeterWorld) -> None:
    node = await world.node("a", range(api.SHARDS))
    meter = world.meter(node)
    full, _ = await world.queue(node, 1), await world.queue(node, 2)
    await store(node, full, 1000, 10)
    found = await world.recorded(meter, 3 * 3600 + 30)
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


async def test_in_flight_and_delayed_counts_are_reported(world: MeterWorld) -> None:
    node, meter, target = await world.metered()
    await meter.turn()
    await store(node, target, 10, 3)
    await node.call(api.Send(target, [api.NewMessage(b"later", delay_seconds=300)]))
    await receive(node, target, 2, 120, 0)
    (one, _) = sorted(await world.recorded(meter, 60), key=lambda record: record.minute_s)
    assert (one.messages, one.in_flight, one.delayed, one.messages_max) == (4, 2, 1, 4)
    assert one.oldest_age_ms == 60_000


async def test_a_deleted_queue_has_a_last_record(world: MeterWorld) -> None:
    node, meter, target = await world.metered(100)
    await world.until(meter, 75)
    await node.call(api.Drop(target))
    assert spans(await world.recorded(meter, 300)) == [(0, 1, 6_000_000), (1, 1, 1_500_000)]


async def test_publications_are_storage_of_their_topic(world: MeterWorld) -> None:
    node = await world.node("a", range(api.SHARDS))
    meter = world.meter(node)
    target = await world.queue(node, 1, "~topic")
    world.tags[1] = {"team": "b"}
    await world.until(meter, 10)
    await store(node, target, 100)
    (one, *_) = await world.recorded(meter, 100)
    assert (one.key.queue, one.key.queue_id, one.key.kind, one.key.tags) == ("topic-1", 1, "topic", (("team", "b"),))


async def test_tags_are_read_and_are_in_all_records_of_the_hour(world: MeterWorld) -> None:
    _, meter, _ = await world.metered(100)
    await world.until(meter, 130)  # the metadata are unavailable
    world.tags[1] = {"team": "b", "app": "x"}
    await world.until(meter, 3500)
    world.tags[1] = {"team": "c"}
    await world.until(meter, 3800)
    world.tags[1] = None  # the queue is deleted from the metadata
    by_hour = {(one.minute_s // 3600, one.key.tags) for one in await world.recorded(meter, 7300)}
    assert by_hour == {
        (HOUR // 3600, (("app", "x"), ("team", "b"))),
        (HOUR // 3600 + 1, (("team", "c"),)),
        (HOUR // 3600 + 2, (("team", "c"),)),
    }


# --- owners that change -------------------------------------------------------------------------------------


async def test_a_hand_over_loses_nothing_and_counts_nothing_twice(world: MeterWorld) -> None:
    target = await world.queue(await world.node("a", range(api.SHARDS)), partition_of(5))
    records = await world.hand_over(target, store, 5)
    assert sum(one.byte_milliseconds for one in records) == 1000 * 400_000 + 500 * 75_000
    epochs = {one.minute_s: one.epoch for one in records}
    assert epochs[HOUR] == epochs[HOUR + 120] < epochs[HOUR + 180]


async def test_a_shard_that_stays_after_all_is_counted_on(world: MeterWorld) -> None:
    node, meter, _ = await world.metered(100, partition_of(5))
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
    records = await world.recorded(meter, 600)
    assert sum(one.byte_milliseconds for one in records) == 100 * 600_000


async def test_a_restart_continues_where_the_last_one_ended(world: MeterWorld) -> None:
    node, meter, _ = await world.metered(100)
    records = await world.restart(node, meter)
    assert sum(one.byte_milliseconds for one in records) == 100 * 295_000, "it was down for 5 s"


async def test_a_killed_node_leaves_its_minutes_and_its_successor_takes_none_of_them(world: MeterWorld) -> None:
    node, meter, _ = await world.metered(100)
    await world.until(meter, 200)
    # It is killed: nothing more is written, and the kernel releases its locks.
    assert meter._file is not None
    meter._file.close()
    await node.close()
    world.now += 4
    successor = await world.node("b", range(api.SHARDS))
    following = world.meter(successor)
    records = await world.recorded(following, 400)
    assert {one.minute_s for one in records} >= {HOUR, HOUR + 60, HOUR + 240}
    lost = 100 * 400_000 - sum(one.byte_milliseconds for one in records)
    assert lost == 100 * 24_000, "from the last minute's end until the other had it"


@contextmanager
def unconfirmed(node: Node, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    async def nobody_knows() -> None:
        raise api.Unavailable("no quorum")

    with monkeypatch.context() as patched:
        patched.setattr(node, "confirm", nobody_knows)
        yield


async def test_unconfirmed_minutes_are_written_later(
    world: MeterWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node, meter, target = await world.metered(100)
    await world.until(meter, 130)
    with unconfirmed(node, monkeypatch):
        await world.until(meter, 200)
        await store(node, target, 10)
        await world.until(meter, 315)
    records = await world.recorded(meter, 500)
    assert sum(one.byte_milliseconds for one in records) == 100 * 500_000 + 10 * 300_000
    assert {(one.minute_s - HOUR) // 60 for one in records} == {0, 1, 4, 5, 8}
    assert [record.levelname for record in caplog.records if "recorded" in record.message] == ["ERROR", "WARNING"]


async def test_an_owner_that_is_one_no_more_writes_nothing(world: MeterWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    node, meter, _ = await world.metered(100)
    await world.until(meter, 70)
    with unconfirmed(node, monkeypatch):
        await world.until(meter, 300)
        await meter.close()
    assert spans(world.records()) == [(0, 1, 6_000_000)]


async def test_a_full_disk_delays_and_loses_nothing(world: MeterWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    _, meter, _ = await world.metered(100)
    await world.until(meter, 70)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("billing.metering.storage_file.StorageFile.append", full)
        await world.until(meter, 205)
    records = await world.recorded(meter, 400)
    assert sum(one.byte_milliseconds for one in records) == 100 * 400_000


@pytest.mark.parametrize("forward", [300, 86_400])
async def test_a_clock_that_is_stepped_bills_the_time_that_has_passed(world: MeterWorld, forward: int) -> None:
    node = await world.node("a", range(api.SHARDS))
    meter = StorageMeter(node, world.spool, "host-1", world._tags, wall=lambda: world.now + stepped)
    stepped = 0
    target = await world.queue(node, 1)
    await store(node, target, 100)
    await world.until(meter, 70)
    stepped = forward  # and back again
    await world.until(meter, 190)
    stepped = 0
    records = await world.recorded(meter, 900)
    assert sum(one.byte_milliseconds for one in records) == 100 * 900_000
    assert max(one.minutes for one in records) < 15


async def test_its_own_loop_turns_and_ends(world: MeterWorld) -> None:
    node = await world.node("a", range(api.SHARDS))
    world.now = HOUR + 9.99
    meter = world.meter(node)
    target = await world.queue(node, 1)
    await store(node, target, 100)
    meter.run()
    world.now += 2
    await meter.close()
    assert spans(world.records()) == [(0, 1, 200_000)]
