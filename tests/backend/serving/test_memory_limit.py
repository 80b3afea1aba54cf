"""Limit on the memory of stored messages."""

from __future__ import annotations

import asyncio
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest

from backend.api import NewMessage, Receive, StorageFull
from backend.engine import records
from backend.engine.fold import Fold
from backend.node import Node
from backend.serving import memory_limit
from backend.serving.memory_limit import Memory
from tests.backend.engine.machine import PartitionMachine
from tests.backend.nodes import RestartableNode


def watched(node: Node) -> Memory:
    incarnation = node._incarnation
    assert incarnation is not None
    return incarnation.memory


def test_what_a_queue_takes_is_about_what_it_says() -> None:
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


async def test_beyond_the_bound_nothing_is_sent_until_messages_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_limit, "LOOK_SECONDS", 0.005)
    monkeypatch.setattr(memory_limit, "AT_ONCE", 1)
    cluster = RestartableNode(tmp_path)
    cluster.settings = cluster.settings._replace(memory_bytes=100_000)
    await cluster.start()
    try:
        queue, other = await cluster.queue(1, retry_window_seconds=60), await cluster.queue(2)
        before = NewMessage(b"before", retry=b"r" * 32)
        (stored,) = await cluster.node.send(queue, [before])
        async with asyncio.timeout(60):
            while not watched(cluster.node).full:
                with suppress(StorageFull):
                    await cluster.send(queue, *(str(number) for number in range(100)))
        with pytest.raises(StorageFull, match=r"bytes of memory, and 100000 are allowed"):
            await cluster.send(other, "x")
        (again,) = await cluster.node.send(queue, [before])
        assert (again.number, again.duplicate) == (stored.number, True), "a repeat of what was stored needs no room"
        assert not cluster.node.room
        async with asyncio.timeout(60):
            while messages := await cluster.node.receive(queue, Receive(10, 60)):
                await cluster.node.delete(queue, [message.handle for message in messages])
            while watched(cluster.node).full:
                await asyncio.sleep(0.005)
        await cluster.send(other, "x")
        assert cluster.node.room
    finally:
        await cluster.stop()


async def test_what_a_restart_finds_counts(tmp_path: Path) -> None:
    cluster = RestartableNode(tmp_path)
    await cluster.start()
    try:
        queue = await cluster.queue(1)
        for _ in range(30):
            await cluster.send(queue, *(str(number) for number in range(100)))
        assert watched(cluster.node).most_bytes == 0
        cluster.settings = cluster.settings._replace(memory_bytes=100_000)
        await cluster.restart()
        async with asyncio.timeout(60):
            while not watched(cluster.node).full:
                await asyncio.sleep(0.005)
        with pytest.raises(StorageFull):
            await cluster.send(queue, "x")
        (message,) = await cluster.receive(queue, most=1)
        assert message.payload == b"0"
    finally:
        await cluster.stop()
