"""A whole node: its answers, and its state after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from backend.api import (
    DeadLetter,
    HandleOutcome,
    MoveTaskRefused,
    MoveTaskUnknown,
    NewMessage,
    PartitionGone,
    PartitionSettings,
    PartitionUnknown,
    Receive,
    SettingsStale,
    Target,
    Unavailable,
)
from backend.serving import account_usage
from tests.backend.nodes import RestartableNode


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[RestartableNode]:
    cluster = RestartableNode(tmp_path)
    await cluster.start()
    yield cluster
    await cluster.stop()


async def until(condition: object) -> None:
    """Wait until a coroutine function returns something true."""
    while not await condition():  # type: ignore[operator]
        await asyncio.sleep(0.005)


async def test_messages_survive_a_restart_with_their_state(cluster: RestartableNode) -> None:
    queue = await cluster.queue(1)
    await cluster.send(queue, "a", "b", "c")
    first, second = await cluster.receive(queue, most=2, visibility=600)
    await cluster.node.delete(queue, [first.handle])
    await cluster.restart()
    counters = await cluster.node.counters(queue)
    assert (counters.visible, counters.in_flight) == (1, 1)
    assert await cluster.node.delete(queue, [second.handle]) == [HandleOutcome.DONE]
    (third,) = await cluster.receive(queue)
    assert third.payload == b"c"
    assert third.number > second.number


async def test_the_bytes_that_are_stored_are_counted_and_survive_a_restart(cluster: RestartableNode) -> None:
    dead, queue = await cluster.queue(2), await cluster.queue(1)
    dead_letter = DeadLetter(1, dead)

    async def stored_bytes() -> tuple[int, int]:
        return (await cluster.node.counters(queue)).stored_bytes, (await cluster.node.counters(dead)).stored_bytes

    await cluster.send(queue, "a" * 1000, "b" * 200, "c" * 30)
    assert await stored_bytes() == (1230, 0)
    first, _ = await cluster.receive(queue, most=2, visibility=0)
    assert first.payload == b"a" * 1000
    await cluster.node.delete(queue, [first.handle])
    assert await stored_bytes() == (230, 0)
    await cluster.restart()
    assert await stored_bytes() == (230, 0)
    await cluster.node.receive(queue, Receive(10, 30, 0, dead_letter))

    async def moved() -> bool:
        return await stored_bytes() == (30, 200)

    await until(moved)
    await cluster.restart()
    assert await stored_bytes() == (30, 200)
    await cluster.node.purge(queue, 1)
    assert await stored_bytes() == (0, 200)


async def test_the_bytes_of_an_account_are_those_of_its_queues(
    cluster: RestartableNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(account_usage, "AT_ONCE", 2)
    for partition in range(1, 6):
        await cluster.send(await cluster.queue(partition), "x" * partition)
    stranger = PartitionSettings(9, 9, 1, "arn:aws:sqs:us-east-1:111111111111:queue", b"k" * 16)
    await cluster.node.configure(stranger)
    await cluster.send(Target(9, 9, 1), "y" * 1000)
    assert await cluster.node.stored_bytes("000000000000") == 15
    assert await cluster.node.stored_bytes("111111111111") == 1000
    assert await cluster.node.stored_bytes("222222222222") == 0
    await cluster.node.drop(Target(5, 5, 1))

    async def ten() -> bool:
        return await cluster.node.stored_bytes("000000000000") == 10

    await until(ten)


async def test_a_partition_has_to_be_opened_and_a_dropped_one_is_gone(cluster: RestartableNode) -> None:
    with pytest.raises(PartitionUnknown):
        await cluster.send(Target(1, 1), "a")
    queue = await cluster.queue(1)
    with pytest.raises(SettingsStale):
        await cluster.send(Target(1, 1, 2), "a")
    with pytest.raises(PartitionGone):
        await cluster.send(Target(1, 99), "a")
    await cluster.send(queue, "a")
    await cluster.node.drop(queue)
    await cluster.node.drop(queue)
    with pytest.raises(PartitionUnknown):
        await cluster.receive(queue)
    with pytest.raises(PartitionGone):
        await cluster.queue(1)
    await cluster.restart()
    with pytest.raises(PartitionUnknown):
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
            await cluster.node.counters(queue)
        except PartitionUnknown:
            return True
        return False

    await until(gone)


async def test_a_long_poll_gets_the_first_message(cluster: RestartableNode) -> None:
    queue = await cluster.queue(1)
    polls = [asyncio.create_task(cluster.receive(queue, wait=20)) for _ in range(3)]
    await asyncio.sleep(0)
    await cluster.send(queue, "a")
    done, waiting = await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED)
    assert [message.payload for message in done.pop().result()] == [b"a"]
    await cluster.send(queue, "b")
    done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert [message.payload for message in done.pop().result()] == [b"b"]
    cluster.node.drain()
    assert await waiting.pop() == []


async def test_a_long_poll_wakes_when_a_claim_or_a_delay_ends(cluster: RestartableNode) -> None:
    queue = await cluster.queue(1)
    await cluster.send(queue, "a")
    await cluster.receive(queue, visibility=1)
    (again,) = await cluster.receive(queue, wait=20)
    assert again.receives == 2
    await cluster.node.send(queue, [NewMessage(b"later", 1)])
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


async def test_a_client_that_leaves_between_claim_and_answer_releases_it(cluster: RestartableNode) -> None:
    queue = await cluster.queue(1)
    await cluster.send(queue, "a")
    leaver = asyncio.create_task(cluster.receive(queue, wait=20, visibility=600))
    await asyncio.sleep(0)
    leaver.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaver
    (message,) = await cluster.node.receive(queue, Receive(10, 30, 0, DeadLetter(1, Target(9, 9))))
    assert (message.payload, message.receives) == (b"a", 1), "a receive that nobody saw does not count"


async def test_a_client_that_leaves_while_another_reads_ahead_harms_nobody(cluster: RestartableNode) -> None:
    queue = await cluster.queue(1)
    await cluster.send(queue, *(str(place) for place in range(300)))
    await cluster.restart()
    reader, leaver, stayer = (asyncio.create_task(cluster.receive(queue)) for _ in range(3))
    await asyncio.sleep(0)
    leaver.cancel()
    assert len(await reader) == len(await stayer) == len(await cluster.receive(queue)) == 10
    with pytest.raises(asyncio.CancelledError):
        await leaver


async def test_a_dropped_queue_ends_its_long_polls(cluster: RestartableNode) -> None:
    queue = await cluster.queue(1)
    poll = asyncio.create_task(cluster.receive(queue, wait=20))
    await asyncio.sleep(0)
    await cluster.node.drop(queue)
    with pytest.raises(PartitionGone):
        await poll


@pytest.mark.parametrize("fifo", [False, True])
async def test_a_dead_letter_is_there_as_soon_as_the_receive_that_moved_it_is_answered(
    cluster: RestartableNode, fifo: bool
) -> None:
    """Includes a dead-letter queue that was never used before, and a receive that returns other messages."""
    queue, dead = await cluster.queue(1, fifo=fifo), Target(2, 2, 1)
    arn = "arn:aws:sqs:us-east-1:000000000000:queue-2"
    settings = PartitionSettings(2, 2, 1, arn, b"k" * 16, fifo=fifo)
    cluster.resolver.known[2] = settings
    command = Receive(10, 0, 0, DeadLetter(1, dead))
    for place in range(3):
        body = f"letter {place}"
        await cluster.send(queue, body, group="g" if fifo else None)
        (before,) = await cluster.node.receive(queue, command)
        if place == 2:
            await cluster.send(queue, "next", group="other" if fifo else None)
        assert [one.payload for one in await cluster.node.receive(queue, command)] == [b"next"] * (place == 2)
        if not place:
            await cluster.node.configure(settings)
        (letter,) = await cluster.node.receive(dead, Receive(10, 30, 0))
        assert (letter.payload, letter.receives) == (body.encode(), 2)
        assert letter.first_received_ms == before.first_received_ms
        await cluster.node.delete(dead, [letter.handle])


async def test_dead_letters_move_and_come_back_when_their_queue_is_gone(cluster: RestartableNode) -> None:
    queue, dead = await cluster.queue(1), await cluster.queue(2)
    await cluster.send(queue, "poison")
    (message,) = await cluster.receive(queue, visibility=0)
    command = Receive(10, 0, 0, DeadLetter(1, dead))
    assert await cluster.node.receive(queue, command) == []
    (letter,) = await cluster.receive(dead, wait=20)
    assert (letter.message_id, letter.payload) == (message.message_id, b"poison")
    assert letter.origin == "arn:aws:sqs:us-east-1:000000000000:queue-1"
    await cluster.send(queue, "again")
    await cluster.receive(queue, visibility=0)
    assert await cluster.node.receive(queue, Receive(10, 0, 0, DeadLetter(1, Target(9, 9)))) == []
    (back,) = await cluster.receive(queue, wait=20)
    assert back.payload == b"again"


async def test_a_move_task_brings_messages_home(cluster: RestartableNode) -> None:
    queue, dead = await cluster.queue(1), await cluster.queue(2)
    for place in range(250):
        await cluster.send(queue, str(place))
    command = Receive(10, 0, 0, DeadLetter(1, dead))
    while (await cluster.node.counters(dead)).visible < 250:
        await cluster.node.receive(queue, command)
    task = await cluster.node.start_move(dead, None, 0)
    assert (task.status, task.total) == ("RUNNING", 250)
    with pytest.raises(MoveTaskRefused):
        await cluster.node.start_move(dead, None, 0)

    async def ended() -> bool:
        return (await cluster.node.list_moves(dead))[0].status == "COMPLETED"

    await until(ended)
    assert (await cluster.node.list_moves(dead))[0].moved == 250
    assert (await cluster.node.counters(queue)).visible == 250
    with pytest.raises(MoveTaskUnknown):
        await cluster.node.cancel_move(dead, task.task_id)


async def test_a_move_task_goes_on_after_a_restart_and_can_be_cancelled(cluster: RestartableNode) -> None:
    queue, dead = await cluster.queue(1), await cluster.queue(2)
    await cluster.send(dead, *(str(place) for place in range(100)))
    arn = cluster.resolver.known[1].arn
    task = await cluster.node.start_move(dead, arn, 20)

    async def moved() -> bool:
        return (await cluster.node.counters(queue)).visible > 0

    await until(moved)
    await cluster.restart()
    before = (await cluster.node.list_moves(dead))[0].moved

    async def moved_more() -> bool:
        return (await cluster.node.list_moves(dead))[0].moved > before

    await until(moved_more)
    await cluster.node.cancel_move(dead, task.task_id)

    async def cancelled() -> bool:
        return (await cluster.node.list_moves(dead))[0].status == "CANCELLED"

    await until(cancelled)
    there, here = (await cluster.node.counters(queue)).visible, (await cluster.node.counters(dead)).visible
    assert there + here == 100
    assert here > 0


async def test_a_move_task_without_a_way_home_fails_and_says_why(cluster: RestartableNode) -> None:
    dead = await cluster.queue(2)
    await cluster.send(dead, "sent here directly")
    await cluster.node.start_move(dead, None, 0)

    async def failed() -> bool:
        return (await cluster.node.list_moves(dead))[0].status == "FAILED"

    await until(failed)
    assert (await cluster.node.list_moves(dead))[0].failure == "CouldNotDetermineMessageSource"
    assert (await cluster.node.counters(dead)).visible == 1


async def test_segments_go_when_nothing_in_them_lives(tmp_path: Path) -> None:
    cluster = RestartableNode(tmp_path, checkpoint_segments=1000)
    await cluster.start()
    queue = await cluster.queue(1)
    payload = "x" * 50_000
    journal = cluster.folder / "journal" / "node-1"
    for _ in range(10):
        await cluster.send(queue, *[payload] * 10)
        await cluster.node.delete(queue, [message.handle for message in await cluster.receive(queue)])
    assert len(list(journal.glob("*.log"))) > 6
    await cluster.node.checkpoint()
    assert len(list(journal.glob("*.log"))) <= 4
    await cluster.restart()
    assert (await cluster.node.counters(queue)).visible == 0
    await cluster.node.checkpoint()
    assert not list(journal.glob("*.log")), "nothing needs the log of the first start any more"
    await cluster.stop()


async def test_stragglers_are_copied_so_that_their_segments_may_go(tmp_path: Path) -> None:
    cluster = RestartableNode(tmp_path, checkpoint_segments=1)
    await cluster.start()
    queue, slow = await cluster.queue(1), await cluster.queue(2)
    payload = "x" * 10_000
    for place in range(40):
        await cluster.send(slow, f"straggler {place}")
        await cluster.send(queue, *[payload] * 10)
    journal = cluster.folder / "journal" / "node-1"
    while messages := await cluster.receive(queue):
        await cluster.node.delete(queue, [message.handle for message in messages])

    async def cleaned() -> bool:
        return len(list(journal.glob("*.log"))) <= 5

    await until(cleaned)
    received = set()
    while messages := await cluster.receive(slow):
        received |= {message.payload for message in messages}
    assert received == {f"straggler {place}".encode() for place in range(40)}
    await cluster.stop()


async def test_a_backlog_is_read_from_the_disk_in_order(cluster: RestartableNode) -> None:
    queue = await cluster.queue(1, fifo=True)
    for start in range(0, 3000, 10):
        await cluster.send(queue, *(str(place) for place in range(start, start + 10)), group="g")
    await cluster.restart()
    received = []
    while messages := await cluster.receive(queue):
        received += [int(message.payload) for message in messages]
        await cluster.node.delete(queue, [message.handle for message in messages])
    assert received == list(range(3000))


async def test_a_closed_node_refuses_with_an_error_that_may_be_retried(tmp_path: Path) -> None:
    cluster = RestartableNode(tmp_path)
    await cluster.start()
    queue = await cluster.queue(1)
    await cluster.stop()
    with pytest.raises(Unavailable):
        await cluster.send(queue, "a")
    assert Unavailable.retryable
