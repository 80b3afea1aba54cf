"""Stored bytes of streams, recorded minute by minute beside those of queues."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backend import api
from backend.stream_api import GroupSettings
from backend.stream_commands import ConfigureGroup, DeleteRecords, DropStream
from tests.backend.cluster.meter_world import HOUR, MeterWorld, append, spans, store
from tests.simulator.world.fleet import partition_of


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[MeterWorld]:
    world = MeterWorld(tmp_path)
    yield world
    await world.close()


async def test_bytes_of_batches_times_milliseconds_are_exact(world: MeterWorld) -> None:
    node = await world.node("a", range(api.SHARDS))
    meter, target = world.meter(node), await world.stream(node, 1)
    world.tags[1] = {"team": "a"}
    await world.until(meter, 15)
    await append(node, target, 1000, records=3)
    await world.until(meter, 100)
    await append(node, target, 500)
    await world.until(meter, 130)
    await node.call(DeleteRecords(target, 3))
    await world.until(meter, 200)
    await node.call(DeleteRecords(target, 4))
    records = await world.recorded(meter, 500)
    assert spans(records) == [
        (0, 1, 1000 * 45_000),
        (1, 1, 1000 * 60_000 + 500 * 20_000),
        (2, 1, 1000 * 10_000 + 500 * 60_000),
        (3, 1, 500 * 20_000),
    ]
    key = records[0].key
    assert (key.account, key.queue, key.queue_id, key.kind) == ("123456789012", "topic-1", 1, "stream")
    assert {one.key.tags for one in records} == {(("team", "a"),)}
    by_minute = {(one.minute_s - HOUR) // 60: one for one in records}
    assert [(by_minute[at].messages, by_minute[at].messages_max) for at in range(4)] == [(3, 3), (4, 4), (1, 4), (0, 1)]
    assert by_minute[0].oldest_age_ms == 45_000
    assert by_minute[2].oldest_age_ms == 80_000


async def test_queues_and_streams_are_metered_side_by_side_and_groups_are_not(world: MeterWorld) -> None:
    node, meter, queue = await world.metered(100)
    stream = await world.stream(node, 2)
    await node.call(ConfigureGroup(GroupSettings(3, 3, 1, "123456789012", "readers")))
    await append(node, stream, 70)
    await world.until(meter, 60)
    await store(node, queue, 30)
    sums: dict[tuple[str, str], int] = {}
    for one in await world.recorded(meter, 180):
        name = (one.key.kind, one.key.queue)
        sums[name] = sums.get(name, 0) + one.byte_milliseconds
    assert sums == {("standard", "queue-1"): 100 * 180_000 + 30 * 120_000, ("stream", "topic-2"): 70 * 180_000}


async def test_an_idle_stream_costs_one_record_an_hour(world: MeterWorld) -> None:
    node = await world.node("a", range(api.SHARDS))
    meter, target = world.meter(node), await world.stream(node, 1)
    await append(node, target, 100)
    assert spans(await world.recorded(meter, 3 * 3600)) == [
        (0, 1, 6_000_000),
        (1, 59, 59 * 6_000_000),
        (60, 1, 6_000_000),
        (61, 59, 59 * 6_000_000),
        (120, 1, 6_000_000),
        (121, 59, 59 * 6_000_000),
        (180, 1, 0),
    ]


async def test_a_deleted_stream_has_a_last_record(world: MeterWorld) -> None:
    node = await world.node("a", range(api.SHARDS))
    meter, target = world.meter(node), await world.stream(node, 1)
    await append(node, target, 100)
    await world.until(meter, 75)
    await node.call(DropStream(target))
    assert spans(await world.recorded(meter, 300)) == [(0, 1, 6_000_000), (1, 1, 1_500_000)]


async def test_a_hand_over_of_a_stream_loses_nothing_and_counts_nothing_twice(world: MeterWorld) -> None:
    target = await world.stream(await world.node("a", range(api.SHARDS)), partition_of(5))
    records = await world.hand_over(target, append, 5)
    assert sum(one.byte_milliseconds for one in records) == 1000 * 400_000 + 500 * 75_000


async def test_a_restart_continues_with_what_a_stream_stores(world: MeterWorld) -> None:
    node = await world.node("a", range(api.SHARDS))
    meter, target = world.meter(node), await world.stream(node, 1)
    await append(node, target, 100)
    records = await world.restart(node, meter)
    assert sum(one.byte_milliseconds for one in records) == 100 * 295_000, "it was down for 5 s"
