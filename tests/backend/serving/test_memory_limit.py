"""Limit on the memory of stored messages."""

import asyncio
import tracemalloc
from contextlib import suppress

import pytest

from backend.api import NewMessage, Send, StorageFull
from backend.engine import records
from backend.engine.fold import Fold
from backend.serving import memory_limit
from tests.backend.engine.machine import PartitionMachine
from tests.backend.nodes import RestartableNode, node_with
from tests.servers.waiting import until


def is_full(cluster: RestartableNode) -> bool:
    return cluster.incarnation.memory.full


def test_the_memory_of_a_queue_is_about_its_estimate() -> None:
    settings = PartitionMachine().settings
    tracemalloc.start()
    try:
        fold = Fold(1)
        fold.apply(records.Configured(settings), 1)
        for number in range(1, 40_001):
            retry = number.to_bytes(32, "big") if number <= 10_000 else None
            fold.apply(records.Message(number, 1, retry=retry), 1, 1 << 24, 10)
        for first in range(1, 20_000, 10):
            fold.apply(records.MessagesReceived(list(range(first, first + 10)), 1_000_000), 2)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.8 < fold.memory_bytes() / used < 1.25


@node_with(memory_bytes=100_000)
async def test_beyond_the_bound_nothing_is_sent(cluster: RestartableNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_limit, "CHECK_SECONDS", 0.005)
    monkeypatch.setattr(memory_limit, "AT_ONCE", 1)
    queue, other = await cluster.queue(1, retry_window_seconds=60), await cluster.queue(2)
    before = NewMessage(b"before", retry=b"r" * 32)
    (stored,) = await cluster.node.call(Send(queue, [before]))
    async with asyncio.timeout(60):
        while not is_full(cluster):
            with suppress(StorageFull):
                await cluster.send(queue, *(str(number) for number in range(100)))
    with pytest.raises(StorageFull, match=r"bytes of memory, the limit is 100000"):
        await cluster.send(other, "x")
    (again,) = await cluster.node.call(Send(queue, [before]))
    assert (again.number, again.duplicate) == (stored.number, True), "a repeat of what was stored needs no room"
    assert not cluster.node.accepts_sends
    async with asyncio.timeout(60):
        await cluster.take_all(queue)
        await until(lambda: not is_full(cluster))
    await cluster.send(other, "x")
    assert cluster.node.accepts_sends


async def test_stored_bytes_found_by_a_restart_count(cluster: RestartableNode) -> None:
    queue = await cluster.queue(1)
    for _ in range(30):
        await cluster.send(queue, *(str(number) for number in range(100)))
    assert cluster.incarnation.memory.limit_bytes == 0
    cluster.settings = cluster.settings._replace(memory_bytes=100_000)
    await cluster.restart()
    await until(lambda: is_full(cluster))
    with pytest.raises(StorageFull):
        await cluster.send(queue, "x")
    (message,) = await cluster.receive(queue, messages_max=1)
    assert message.payload == b"0"
