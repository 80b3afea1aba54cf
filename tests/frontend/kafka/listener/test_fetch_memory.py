"""Memory of fetches that are being answered, alone and at the listener."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backend.stream_commands import FetchBatches
from frontend.kafka.request.fetch_memory import FetchMemory
from tests.frontend.kafka.listener.kafka_service import CodecClient, running_kafka
from tests.frontend.kafka.listener.test_connections import FETCH, PRODUCE, Held, fetch, produce

LONG = 60.0


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(LONG):
        while not holds():
            await asyncio.sleep(0)


async def test_memory_is_granted_in_the_order_of_the_requests() -> None:
    memory = FetchMemory(100, LONG)
    assert await memory.take(70) == 70
    large, small = asyncio.ensure_future(memory.take(50)), asyncio.ensure_future(memory.take(20))
    await asyncio.sleep(0)
    assert not memory.take_now(1), "a later one does not overtake those that wait"
    assert (large.done(), small.done(), memory.bytes_held) == (False, False, 70)
    memory.give_back(70)
    assert (await large, await small) == (50, 20)
    assert memory.bytes_held == 70
    memory.give_back(50)
    memory.give_back(20)
    assert memory.bytes_held == 0
    assert memory.take_now(100)


async def test_a_request_for_more_than_all_gets_all() -> None:
    memory = FetchMemory(100, LONG)
    assert await memory.take(1 << 40) == 100


async def test_a_request_that_waits_too_long_gets_nothing_and_holds_up_no_other() -> None:
    memory = FetchMemory(100, 0.01)
    assert await memory.take(90) == 90
    assert await memory.take(20) == 0
    assert await memory.take(10) == 10
    memory.give_back(90)
    memory.give_back(10)
    assert memory.bytes_held == 0


@pytest.mark.parametrize("granted", [False, True])
async def test_a_request_that_is_given_up_holds_nothing(granted: bool) -> None:
    memory = FetchMemory(100, LONG)
    assert await memory.take(90) == 90
    first, second = asyncio.ensure_future(memory.take(20)), asyncio.ensure_future(memory.take(10))
    await asyncio.sleep(0)
    if granted:
        memory.give_back(90)
    first.cancel()
    await until(first.done)
    assert first.cancelled()
    assert await second == 10
    assert memory.bytes_held == (10 if granted else 100)


async def test_those_that_wait_share_what_there_is() -> None:
    memory = FetchMemory(100, LONG)
    assert memory.share == 100
    memory.waiting = 4
    assert memory.share == 25


# --- at the listener ----------------------------------------------------------------------------------------


async def records_of(client: CodecClient, request: Any) -> bytes:
    """Records of a fetch's answer."""
    answer = await client.call("Fetch", FETCH, request)
    (partition,) = answer.responses[0].partitions
    assert partition.error_code == 0
    return bytes(partition.records)


async def test_a_fetch_holds_memory_until_it_is_answered(tmp_path: Path) -> None:
    async with running_kafka(tmp_path) as service:
        await service.topic("orders")
        client, other = await service.signed_in(), await service.signed_in()
        await client.call("Produce", PRODUCE, produce())
        memory = service.context.fetch_memory = FetchMemory(1 << 20, LONG)
        held = Held(service, FetchBatches)
        client.send("Fetch", FETCH, fetch())
        await held.until(1)
        assert memory.bytes_held == 1 << 20, "as much as the request asks for"
        other.send("Fetch", FETCH, fetch())
        await until(lambda: memory._turns)
        held.release(0)
        await client.answer()
        await held.until(2)
        held.release(1)
        assert (await other.answer()).responses[0].partitions[0].records
        await until(lambda: memory.bytes_held == 0)


async def test_a_fetch_without_memory_is_answered_with_one_batch(tmp_path: Path) -> None:
    async with running_kafka(tmp_path) as service:
        await service.topic("orders")
        client = await service.signed_in()
        for number in range(3):
            await client.call("Produce", PRODUCE, produce(b"value-%d" % number))
        memory = service.context.fetch_memory = FetchMemory(1 << 20, 0.01)
        assert memory.take_now(1)
        records = await records_of(client, fetch())
        assert [b"value-%d" % number in records for number in range(3)] == [True, False, False]
        memory.give_back(1)
        assert b"value-2" in await records_of(client, fetch())


async def test_a_waiting_fetch_holds_nothing_and_reads_what_is_larger_than_its_share(tmp_path: Path) -> None:
    async with running_kafka(tmp_path) as service:
        await service.topic("orders")
        client, producer = await service.signed_in(), await service.signed_in()
        memory = service.context.fetch_memory = FetchMemory(1_000, LONG)
        client.send("Fetch", FETCH, fetch(wait_ms=20_000))
        await until(lambda: memory.waiting)
        assert memory.bytes_held == 0
        await producer.call("Produce", PRODUCE, produce(b"x" * 2_000))
        (partition,) = (await client.answer()).responses[0].partitions
        assert b"x" * 2_000 in bytes(partition.records)
        assert (memory.waiting, memory.bytes_held) == (0, 0)


async def test_a_fetch_that_waits_for_more_keeps_no_more_than_its_share(tmp_path: Path) -> None:
    async with running_kafka(tmp_path) as service:
        await service.topic("orders")
        client = await service.signed_in()
        await client.call("Produce", PRODUCE, produce(b"x" * 2_000))
        memory = service.context.fetch_memory = FetchMemory(1_000, LONG)
        assert b"x" * 2_000 in await records_of(client, fetch(wait_ms=20_000, min_bytes=100_000))
        assert memory.bytes_held == 0
