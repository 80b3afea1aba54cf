"""Peek: it returns messages, and changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from unittest import mock

import pytest
import pytest_asyncio

from backend.api import (
    Counters,
    DeadLetter,
    NewMessage,
    PartitionGone,
    Peeked,
    PeekState,
    Receive,
    Target,
)
from backend.engine.snapshot import describe
from backend.node import Node
from tests.backend.nodes import RestartableNode


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[RestartableNode]:
    made = RestartableNode(tmp_path)
    await made.start()
    yield made
    await made.stop()


def state_of(node: Node, target: Target) -> object:
    incarnation = node._incarnation
    assert incarnation is not None
    return describe(incarnation.partitions[target.partition].fold)


async def shown(cluster: RestartableNode, target: Target, most: int = 100) -> list[tuple[str, PeekState, int]]:
    peeked = await cluster.node.peek(target, most)
    return [((one.payload or b"").decode(), one.state, one.receives) for one in peeked]


async def test_messages_in_every_state_in_the_order_of_their_sending(cluster: RestartableNode) -> None:
    queue = await cluster.queue(1)
    await cluster.send(queue, "claimed", "back", "deleted")
    claimed, back, deleted = await cluster.receive(queue, 3)
    await cluster.node.change_visibility(queue, [(back.handle, 0)])
    await cluster.node.delete(queue, [deleted.handle])
    await cluster.node.send(queue, [NewMessage(b"delayed", delay_seconds=900)])
    await cluster.send(queue, "waiting", group="g")
    assert await shown(cluster, queue) == [
        ("claimed", PeekState.IN_FLIGHT, 1),
        ("back", PeekState.VISIBLE, 1),
        ("delayed", PeekState.DELAYED, 0),
        ("waiting", PeekState.VISIBLE, 0),
    ]
    first, _, delayed, waiting = await cluster.node.peek(queue, 100)
    assert (first.message_id, first.number, first.sent_ms) == (claimed.message_id, claimed.number, claimed.sent_ms)
    assert first.first_received_ms == claimed.first_received_ms
    assert first.due_ms == claimed.first_received_ms + 30_000
    assert delayed.due_ms == delayed.sent_ms + 900_000
    assert (waiting.group, waiting.due_ms) == ("g", 0)


async def test_it_changes_nothing(cluster: RestartableNode) -> None:
    queue = await cluster.queue(1)
    await cluster.send(queue, "a", "b", "c")
    await cluster.receive(queue, 1)
    before = state_of(cluster.node, queue)
    for _ in range(3):
        await cluster.node.peek(queue, 2)
    assert state_of(cluster.node, queue) == before
    assert await cluster.node.counters(queue) == Counters(2, 1, 0, 3)
    assert [message.receives for message in await cluster.receive(queue, 10)] == [1, 1]


async def test_only_as_many_as_asked_for(cluster: RestartableNode) -> None:
    queue = await cluster.queue(1)
    assert await cluster.node.peek(queue, 5) == []
    await cluster.send(queue, *(str(number) for number in range(3_000)))
    assert [text for text, _, _ in await shown(cluster, queue, 2)] == ["0", "1"]
    received = await cluster.receive(queue, 10)
    await cluster.node.delete(queue, [message.handle for message in received])
    assert [text for text, _, _ in await shown(cluster, queue, 2)] == ["10", "11"]
    assert [text for text, _, _ in await shown(cluster, queue, 5_000)] == [str(number) for number in range(10, 3_000)]


async def test_page_by_page_all_are_seen_once_while_others_come_and_go(cluster: RestartableNode) -> None:
    queue = await cluster.queue(1)
    await cluster.send(queue, *(str(number) for number in range(3_000)))
    seen: list[str] = []
    after = 0
    while page := await cluster.node.peek(queue, 700, after):
        seen += [(one.payload or b"").decode() for one in page]
        after = page[-1].number
        for message in await cluster.receive(queue, 10):
            await cluster.node.delete(queue, [message.handle])
        if len(seen) < 2_000:
            await cluster.send(queue, "later")
    assert seen == [*(str(number) for number in range(3_000)), *["later"] * seen.count("later")]
    assert await cluster.node.peek(queue, 1, after) == []


async def test_a_look_shows_so_many_bytes(cluster: RestartableNode) -> None:
    queue = await cluster.queue(1)
    await cluster.node.send(queue, [NewMessage(bytes(500)) for _ in range(10)])
    with mock.patch("backend.serving.peek.PEEK_BYTES_MOST", 4_000):
        first = await cluster.node.peek(queue, 100)
        rest = await cluster.node.peek(queue, 100, first[-1].number)
    assert [len(first), len(rest)] == [8, 2]


async def test_what_goes_while_it_is_read_does_not_end_the_look(cluster: RestartableNode) -> None:
    """A page is empty only if there are no further messages."""
    queue = await cluster.queue(1)
    await cluster.send(queue, "first", "second", "third")
    first, second = await cluster.receive(queue, 2)
    node = cluster.node._incarnation
    assert node is not None

    async def read_late(positions: list[int]) -> list[None]:
        await cluster.node.delete(queue, [first.handle, second.handle])
        return [None for _ in positions]

    with mock.patch.object(node.log, "read_many", read_late):
        assert [one.number for one in await cluster.node.peek(queue, 2)] == [second.number + 1]


async def test_after_a_restart_bodies_come_from_the_disk(cluster: RestartableNode) -> None:
    queue = await cluster.queue(1)
    await cluster.send(queue, *(str(number) for number in range(2_500)))
    await cluster.restart()
    assert [text for text, _, _ in await shown(cluster, queue, 2_500)] == [str(number) for number in range(2_500)]


async def test_fifo_messages_that_are_not_due_are_delayed(cluster: RestartableNode) -> None:
    queue = await cluster.queue(1, fifo=True, delay_seconds=900)
    await cluster.send(queue, "a", group="g")
    (peeked,) = await cluster.node.peek(queue, 10)
    assert (peeked.state, peeked.due_ms, peeked.group) == (PeekState.DELAYED, peeked.sent_ms + 900_000, "g")


async def test_a_dead_letter_keeps_its_id_and_names_its_origin(cluster: RestartableNode) -> None:
    dead = await cluster.queue(2)
    queue = await cluster.queue(1)
    await cluster.send(queue, "poison")
    command = Receive(1, 0, 0, DeadLetter(1, dead))
    (received,) = await cluster.node.receive(queue, command)
    assert await cluster.node.receive(queue, command) == []
    peeked: list[Peeked] = []
    while not peeked:
        await asyncio.sleep(0)
        peeked = await cluster.node.peek(dead, 1)
    assert peeked[0].message_id == received.message_id
    assert peeked[0].origin == "arn:aws:sqs:us-east-1:000000000000:queue-1"


async def test_a_rotten_message_is_shown_as_such_and_not_quarantined(cluster: RestartableNode) -> None:
    queue = await cluster.queue(1)
    await cluster.send(queue, "before", "TO-BE-SPOILT", "after")
    await cluster.restart()
    (segment,) = [path for path in cluster.folder.rglob("*") if path.is_file() and b"TO-BE-SPOILT" in path.read_bytes()]
    segment.write_bytes(segment.read_bytes().replace(b"TO-BE-SPOILT", b"TO-BE-SPOILX"))
    before = state_of(cluster.node, queue)
    assert [peeked.payload for peeked in await cluster.node.peek(queue, 3)] == [b"before", None, b"after"]
    assert state_of(cluster.node, queue) == before


async def test_an_old_view_of_the_queue_is_refused(cluster: RestartableNode) -> None:
    await cluster.queue(1)
    with pytest.raises(PartitionGone):
        await cluster.node.peek(Target(1, 99, 1), 1)
