"""A whole node: its answers, and its state after a restart."""

import asyncio
from collections import Counter
from contextlib import suppress
from itertools import count
from unittest import mock

import pytest
from msgspec.structs import replace

from backend import api
from backend.journal.local.log import LogSettings
from backend.recovery import checkpointer
from backend.serving import queue_stats
from tests.backend.calls import until_equal, until_move
from tests.backend.nodes import RestartableNode, node_with
from tests.servers.waiting import until


async def test_messages_survive_a_restart_with_their_state(cluster: RestartableNode) -> None:
    queue = await cluster.queue(1)
    await cluster.send(queue, "a", "b", "c")
    first, second = await cluster.receive(queue, messages_max=2, visibility=600)
    await cluster.delete(queue, first)
    await cluster.restart()
    counters = await cluster.count(queue)
    assert (counters.visible, counters.in_flight) == (1, 1)
    assert await cluster.delete(queue, second) == [api.HandleOutcome.DONE]
    (third,) = await cluster.receive(queue)
    assert third.payload == b"c"
    assert third.number > second.number


async def test_the_bytes_that_are_stored_are_counted_and_survive_a_restart(cluster: RestartableNode) -> None:
    dead, queue = await cluster.queue(2), await cluster.queue(1)
    dead_letter = api.DeadLetter(1, dead)

    async def stored_bytes() -> tuple[int, int]:
        return (await cluster.count(queue)).stored_bytes, (await cluster.count(dead)).stored_bytes

    await cluster.send(queue, "a" * 1000, "b" * 200, "c" * 30)
    assert await stored_bytes() == (1230, 0)
    first, _ = await cluster.receive(queue, messages_max=2, visibility=0)
    assert first.payload == b"a" * 1000
    await cluster.delete(queue, first)
    assert await stored_bytes() == (230, 0)
    await cluster.restart()
    assert await stored_bytes() == (230, 0)
    await cluster.receive(queue, 10, 30, 0, dead_letter)
    await until_equal(stored_bytes, (30, 200))
    await cluster.restart()
    assert await stored_bytes() == (30, 200)
    await cluster.node.call(api.Purge(queue, 1))
    assert await stored_bytes() == (0, 200)


async def test_bytes_of_an_account(cluster: RestartableNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_stats, "SUMMED_AT_ONCE", 2)
    for partition in range(1, 6):
        await cluster.send(await cluster.queue(partition), "x" * partition)
    stranger = api.PartitionSettings(9, 9, 1, "arn:aws:sqs:us-east-1:111111111111:queue", b"k" * 16)
    await cluster.node.call(api.Configure(stranger))
    await cluster.send(api.Target(9, 9, 1), "y" * 1000)
    assert await cluster.node.call(api.AccountBytes("000000000000")) == 15
    assert await cluster.node.call(api.AccountBytes("111111111111")) == 1000
    assert await cluster.node.call(api.AccountBytes("222222222222")) == 0
    await cluster.node.call(api.Drop(api.Target(5, 5, 1)))
    await until_equal(lambda: cluster.node.call(api.AccountBytes("000000000000")), 10)


async def test_a_dropped_partition_is_gone_and_stays_so_after_a_restart(cluster: RestartableNode) -> None:
    queue = await cluster.queue(1)
    await cluster.send(queue, "a")
    await cluster.node.call(api.Drop(queue))
    await cluster.node.call(api.Drop(queue))
    with pytest.raises(api.PartitionUnknown):
        await cluster.receive(queue)
    with pytest.raises(api.PartitionGone):
        await cluster.queue(1)
    await cluster.restart()
    with pytest.raises(api.PartitionUnknown):
        await cluster.receive(queue)


async def test_options_of_the_service_reach_queues_that_exist(cluster: RestartableNode) -> None:
    queue = await cluster.queue(1)
    await cluster.send(queue, "a", "b")
    cluster.resolver.known[1] = replace(cluster.resolver.known[1], in_flight_limit=1)
    await cluster.restart()

    async def limited() -> bool:
        messages = await cluster.receive(queue, visibility=0)
        return len(messages) == 1

    await until(limited)


async def test_a_partition_whose_queue_is_gone_is_collected_at_the_start(cluster: RestartableNode) -> None:
    queue = await cluster.queue(1)
    await cluster.send(queue, "a")
    del cluster.resolver.known[1]
    await cluster.restart()

    async def gone() -> bool:
        try:
            await cluster.count(queue)
        except api.PartitionUnknown:
            return True
        return False

    await until(gone)


async def test_a_long_poll_wakes_when_a_claim_or_a_delay_ends(cluster: RestartableNode) -> None:
    queue = await cluster.queue(1)
    await cluster.send(queue, "a")
    await cluster.receive(queue, visibility=1)
    (again,) = await cluster.receive(queue, wait=20)
    assert again.receives == 2
    await cluster.node.call(api.Send(queue, [api.NewMessage(b"later", 1)]))
    (later,) = await cluster.receive(queue, wait=20)
    assert later.payload == b"later"


async def test_a_cancelled_long_poll_claims_nothing_and_passes_its_turn_on(cluster: RestartableNode) -> None:
    queue = await cluster.queue(1)
    leaver = asyncio.create_task(cluster.receive(queue, wait=20))
    await asyncio.sleep(0)
    stayer = asyncio.create_task(cluster.receive(queue, wait=20))
    await asyncio.sleep(0)
    sent = asyncio.create_task(cluster.send(queue, "a"))
    await asyncio.sleep(0)
    leaver.cancel()
    (message,) = await stayer
    await sent
    assert message.receives == 1
    with pytest.raises(asyncio.CancelledError):
        await leaver


async def test_a_client_that_leaves_while_another_reads_ahead_disturbs_no_other(cluster: RestartableNode) -> None:
    queue = await cluster.queue(1)
    await cluster.send(queue, *(str(place) for place in range(300)))
    await cluster.restart()
    reader, leaver, stayer = (asyncio.create_task(cluster.receive(queue)) for _ in range(3))
    await asyncio.sleep(0)
    leaver.cancel()
    assert len(await reader) == len(await stayer) == len(await cluster.receive(queue)) == 10
    with pytest.raises(asyncio.CancelledError):
        await leaver


@pytest.mark.parametrize("fifo", [False, True])
async def test_a_dead_letter_is_there_when_the_receive_is_answered(cluster: RestartableNode, fifo: bool) -> None:
    """Includes a dead-letter queue that was never used before, and a receive that returns other messages."""
    queue, dead = await cluster.queue(1, fifo=fifo), api.Target(2, 2, 1)
    arn = "arn:aws:sqs:us-east-1:000000000000:queue-2"
    settings = api.PartitionSettings(2, 2, 1, arn, b"k" * 16, fifo=fifo)
    cluster.resolver.known[2] = settings
    command = api.ReceiveOptions(10, 0, 0, api.DeadLetter(1, dead))
    for place in range(3):
        body = f"letter {place}"
        await cluster.send(queue, body, group="g" if fifo else None)
        (before,) = await cluster.node.call(api.Receive(queue, command))
        if place == 2:
            await cluster.send(queue, "next", group="other" if fifo else None)
        assert [one.payload for one in await cluster.node.call(api.Receive(queue, command))] == [b"next"] * (place == 2)
        if not place:
            await cluster.node.call(api.Configure(settings))
        (letter,) = await cluster.receive(dead, 10, 30, 0)
        assert (letter.payload, letter.receives) == (body.encode(), 2)
        assert letter.first_received_ms == before.first_received_ms
        await cluster.delete(dead, letter)


async def test_dead_letters_return_when_their_queue_is_gone(cluster: RestartableNode) -> None:
    queue = await cluster.queue(1)
    await cluster.send(queue, "again")
    await cluster.receive(queue, visibility=0)
    assert await cluster.receive(queue, 10, 0, 0, api.DeadLetter(1, api.Target(9, 9))) == []
    (back,) = await cluster.receive(queue, wait=20)
    assert back.payload == b"again"


async def test_a_move_task_brings_messages_home(cluster: RestartableNode) -> None:
    queue, dead = await cluster.queue(1), await cluster.queue(2)
    for place in range(250):
        await cluster.send(queue, str(place))
    command = api.ReceiveOptions(10, 0, 0, api.DeadLetter(1, dead))
    while (await cluster.count(dead)).visible < 250:
        await cluster.node.call(api.Receive(queue, command))
    task = await cluster.node.call(api.StartMove(dead, None, 0))
    assert (task.status, task.total) == ("RUNNING", 250)
    with pytest.raises(api.MoveTaskRefused):
        await cluster.node.call(api.StartMove(dead, None, 0))
    await until_move(cluster.node, dead, "COMPLETED")
    assert (await cluster.node.call(api.ListMoves(dead)))[0].moved == 250
    assert (await cluster.count(queue)).visible == 250
    with pytest.raises(api.MoveTaskUnknown):
        await cluster.node.call(api.CancelMove(dead, task.task_id))


async def test_a_move_task_continues_after_a_restart_and_can_be_cancelled(cluster: RestartableNode) -> None:
    queue, dead = await cluster.queue(1), await cluster.queue(2)
    await cluster.send(dead, *(str(place) for place in range(100)))
    arn = cluster.resolver.known[1].arn
    task = await cluster.node.call(api.StartMove(dead, arn, 20))

    async def moved() -> bool:
        return (await cluster.count(queue)).visible > 0

    await until(moved)
    await cluster.restart()
    before = (await cluster.node.call(api.ListMoves(dead)))[0].moved

    async def moved_more() -> bool:
        return (await cluster.node.call(api.ListMoves(dead)))[0].moved > before

    await until(moved_more)
    await cluster.node.call(api.CancelMove(dead, task.task_id))
    await until_move(cluster.node, dead, "CANCELLED")
    there, here = ((await cluster.count(queue)).visible, (await cluster.count(dead)).visible)
    assert there + here == 100
    assert here > 0


async def test_a_move_task_without_a_source_queue_fails_with_the_reason(cluster: RestartableNode) -> None:
    dead = await cluster.queue(2)
    await cluster.send(dead, "sent here directly")
    await cluster.node.call(api.StartMove(dead, None, 0))
    await until_move(cluster.node, dead, "FAILED")
    assert (await cluster.node.call(api.ListMoves(dead)))[0].failure == "CouldNotDetermineMessageSource"
    assert (await cluster.count(dead)).visible == 1


@node_with(checkpoint_segments=1000)
@mock.patch.object(checkpointer, "CHECK_SECONDS", 3600.0)
async def test_segments_go_when_nothing_in_them_lives(cluster: RestartableNode) -> None:
    queue = await cluster.queue(1)
    payload = "x" * 50_000
    journal = cluster.folder / "journal" / "node-1"
    for _ in range(10):
        await cluster.send(queue, *[payload] * 10)
        await cluster.delete(queue, *(await cluster.receive(queue)))
    assert len(list(journal.glob("*.log"))) > 6
    await cluster.node.checkpoint()
    assert len(list(journal.glob("*.log"))) <= 4
    await cluster.restart()
    assert (await cluster.count(queue)).visible == 0
    await cluster.node.checkpoint()
    assert not list(journal.glob("*.log")), "nothing needs the log of the first start any more"


@node_with(log=LogSettings(segment_bytes=1 << 20, segments=6))
async def test_a_log_without_further_segment_numbers_is_followed_by_another(cluster: RestartableNode) -> None:
    queue = await cluster.queue(1)
    stored: list[int] = []
    for number in count():
        with suppress(api.Unavailable):  # while the other log is started
            await cluster.send(queue, *[f"{number} " + "x" * 50_000] * 10)
            stored.append(number)
            if (cluster.folder / "journal" / "node-2").exists():
                break
        await asyncio.sleep(0.005)
    found: list[api.Peeked] = []
    while page := await cluster.peek(queue, 100, found[-1].number if found else 0):
        found += page
    numbers = Counter(int((message.payload or b"").split()[0]) for message in found)
    assert dict.fromkeys(stored, 10).items() <= numbers.items()


@node_with(checkpoint_segments=1)
async def test_stragglers_are_copied_so_that_their_segments_may_go(cluster: RestartableNode) -> None:
    queue, slow = await cluster.queue(1), await cluster.queue(2)
    payload = "x" * 10_000
    for place in range(40):
        await cluster.send(slow, f"straggler {place}")
        await cluster.send(queue, *[payload] * 10)
    journal = cluster.folder / "journal" / "node-1"
    await cluster.take_all(queue)
    await until(lambda: len(list(journal.glob("*.log"))) <= 5)
    assert set(await cluster.take_all(slow)) == {f"straggler {place}".encode() for place in range(40)}


async def test_a_backlog_is_read_from_the_disk_in_order(cluster: RestartableNode) -> None:
    queue = await cluster.queue(1, fifo=True)
    for start in range(0, 3000, 10):
        await cluster.send(queue, *(str(place) for place in range(start, start + 10)), group="g")
    await cluster.restart()
    assert [int(payload) for payload in await cluster.take_all(queue)] == list(range(3000))


async def test_counting_begins_anew_with_a_restart(cluster: RestartableNode) -> None:
    queue = await cluster.queue(1)
    await cluster.send(queue, "12345")
    (before,) = await cluster.node.call(api.QueueMeasures(queue))
    await cluster.restart()
    (measures,) = await cluster.node.call(api.QueueMeasures(queue))
    assert (measures.sent, measures.visible, measures.oldest_ms) == (0, 1, before.oldest_ms)
    assert measures.since_ms > before.since_ms
