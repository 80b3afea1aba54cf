"""Peek: it returns messages, and changes nothing."""

import asyncio
from unittest import mock

import pytest

from backend import api
from backend.engine.snapshot import describe
from tests.backend.nodes import RestartableNode


def state_of(cluster: RestartableNode, target: api.Target) -> object:
    return describe(cluster.incarnation.partitions[target.partition].fold)


async def shown(
    cluster: RestartableNode, target: api.Target, messages_max: int = 100
) -> list[tuple[str, api.PeekState, int]]:
    peeked = await cluster.peek(target, messages_max)
    return [((one.payload or b"").decode(), one.state, one.receives) for one in peeked]


async def test_messages_in_every_state_in_the_order_of_their_sending(cluster: RestartableNode) -> None:
    queue = await cluster.queue(1)
    await cluster.send(queue, "claimed", "back", "deleted")
    claimed, back, deleted = await cluster.receive(queue, 3)
    await cluster.node.call(api.ChangeVisibility(queue, [(back.handle, 0)]))
    await cluster.delete(queue, deleted)
    await cluster.node.call(api.Send(queue, [api.NewMessage(b"delayed", delay_seconds=900)]))
    await cluster.send(queue, "waiting", group="g")
    assert await shown(cluster, queue) == [
        ("claimed", api.PeekState.IN_FLIGHT, 1),
        ("back", api.PeekState.VISIBLE, 1),
        ("delayed", api.PeekState.DELAYED, 0),
        ("waiting", api.PeekState.VISIBLE, 0),
    ]
    first, _, delayed, waiting = await cluster.peek(queue, 100)
    assert (first.message_id, first.number, first.sent_ms) == (claimed.message_id, claimed.number, claimed.sent_ms)
    assert first.first_received_ms == claimed.first_received_ms
    assert first.due_ms == claimed.first_received_ms + 30_000
    assert delayed.due_ms == delayed.sent_ms + 900_000
    assert (waiting.group, waiting.due_ms) == ("g", 0)


async def test_it_changes_nothing(cluster: RestartableNode) -> None:
    queue = await cluster.queue(1)
    await cluster.send(queue, "a", "b", "c")
    await cluster.receive(queue, 1)
    before = state_of(cluster, queue)
    for _ in range(3):
        await cluster.peek(queue, 2)
    assert state_of(cluster, queue) == before
    assert await cluster.count(queue) == api.Counters(2, 1, 0, 3)
    assert [message.receives for message in await cluster.receive(queue, 10)] == [1, 1]


async def test_at_most_the_requested_number(cluster: RestartableNode) -> None:
    queue = await cluster.queue(1)
    assert await cluster.peek(queue, 5) == []
    await cluster.send(queue, *(str(number) for number in range(3_000)))
    assert [text for text, _, _ in await shown(cluster, queue, 2)] == ["0", "1"]
    received = await cluster.receive(queue, 10)
    await cluster.delete(queue, *received)
    assert [text for text, _, _ in await shown(cluster, queue, 2)] == ["10", "11"]
    assert [text for text, _, _ in await shown(cluster, queue, 5_000)] == [str(number) for number in range(10, 3_000)]


async def test_paging_shows_each_remaining_message_once_during_changes(cluster: RestartableNode) -> None:
    queue = await cluster.queue(1)
    await cluster.send(queue, *(str(number) for number in range(3_000)))
    seen: list[str] = []
    after = 0
    while page := await cluster.peek(queue, 700, after):
        seen += [(one.payload or b"").decode() for one in page]
        after = page[-1].number
        for message in await cluster.receive(queue, 10):
            await cluster.delete(queue, message)
        if len(seen) < 2_000:
            await cluster.send(queue, "later")
    assert seen == [*(str(number) for number in range(3_000)), *["later"] * seen.count("later")]
    assert await cluster.peek(queue, 1, after) == []


async def test_a_look_shows_so_many_bytes(cluster: RestartableNode) -> None:
    queue = await cluster.queue(1)
    await cluster.node.call(api.Send(queue, [api.NewMessage(bytes(500)) for _ in range(10)]))
    with mock.patch("backend.serving.peek.PEEK_BYTES_MAX", 4_000):
        first = await cluster.peek(queue, 100)
        rest = await cluster.peek(queue, 100, first[-1].number)
    assert [len(first), len(rest)] == [8, 2]


async def test_messages_deleted_while_they_are_read_do_not_end_the_pages(cluster: RestartableNode) -> None:
    """A page is empty only if there are no further messages."""
    queue = await cluster.queue(1)
    await cluster.send(queue, "first", "second", "third")
    first, second = await cluster.receive(queue, 2)

    async def read_late(positions: list[int]) -> list[None]:
        await cluster.delete(queue, first, second)
        return [None for _ in positions]

    with mock.patch.object(cluster.incarnation.log, "read_many", read_late):
        assert [one.number for one in await cluster.peek(queue, 2)] == [second.number + 1]


async def test_after_a_restart_bodies_are_read_from_the_disk(cluster: RestartableNode) -> None:
    queue = await cluster.queue(1)
    await cluster.send(queue, *(str(number) for number in range(2_500)))
    await cluster.restart()
    assert [text for text, _, _ in await shown(cluster, queue, 2_500)] == [str(number) for number in range(2_500)]


async def test_fifo_messages_that_are_not_due_are_delayed(cluster: RestartableNode) -> None:
    queue = await cluster.queue(1, fifo=True, delay_seconds=900)
    await cluster.send(queue, "a", group="g")
    (peeked,) = await cluster.peek(queue, 10)
    assert (peeked.state, peeked.due_ms, peeked.group) == (api.PeekState.DELAYED, peeked.sent_ms + 900_000, "g")


async def test_a_dead_letter_keeps_its_id_and_names_its_origin(cluster: RestartableNode) -> None:
    dead = await cluster.queue(2)
    queue = await cluster.queue(1)
    await cluster.send(queue, "poison")
    command = api.ReceiveOptions(1, 0, 0, api.DeadLetter(1, dead))
    (received,) = await cluster.node.call(api.Receive(queue, command))
    assert await cluster.node.call(api.Receive(queue, command)) == []
    peeked: list[api.Peeked] = []
    while not peeked:
        await asyncio.sleep(0)
        peeked = await cluster.peek(dead, 1)
    assert peeked[0].message_id == received.message_id
    assert peeked[0].origin == "arn:aws:sqs:us-east-1:000000000000:queue-1"


async def test_a_rotten_message_is_shown_as_such_and_not_quarantined(cluster: RestartableNode) -> None:
    queue = await cluster.queue(1)
    await cluster.send(queue, "before", "TO-BE-SPOILT", "after")
    await cluster.restart()
    (segment,) = [path for path in cluster.folder.rglob("*") if path.is_file() and b"TO-BE-SPOILT" in path.read_bytes()]
    segment.write_bytes(segment.read_bytes().replace(b"TO-BE-SPOILT", b"TO-BE-SPOILX"))
    before = state_of(cluster, queue)
    assert [peeked.payload for peeked in await cluster.peek(queue, 3)] == [b"before", None, b"after"]
    assert state_of(cluster, queue) == before


async def test_an_old_view_of_the_queue_is_refused(cluster: RestartableNode) -> None:
    await cluster.queue(1)
    with pytest.raises(api.PartitionGone):
        await cluster.peek(api.Target(1, 99, 1), 1)
