"""Conformance of :class:`backend.api.Backend`: a node in this process, one behind a connection, and a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from backend.api import (
    WAIT_ENDS,
    AckLevel,
    AttemptExpired,
    Backend,
    Counters,
    DeadLetter,
    HandleOutcome,
    Measures,
    MoveTaskRefused,
    MoveTaskUnknown,
    NewMessage,
    OverLimit,
    PartitionDamaged,
    PartitionGone,
    PartitionSettings,
    PartitionUnknown,
    PeekState,
    QueueFull,
    Receive,
    ReceivedMessage,
    SettingsStale,
    Target,
    TokenReused,
    Unavailable,
)
from tests.backend.nodes import RestartableNode
from tests.backend.test_node import until
from tests.backend.wired import WiredCluster


@pytest.fixture(params=["in the process", "over a connection", "a cluster"])
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RestartableNode]:
    cluster = RestartableNode(tmp_path) if request.param == "in the process" else WiredCluster(tmp_path)
    if isinstance(cluster, WiredCluster):
        cluster.as_cluster = request.param == "a cluster"
    await cluster.start()
    yield cluster
    await cluster.stop()


@pytest.fixture
def backend(cluster: RestartableNode) -> Backend:
    return cluster.backend if isinstance(cluster, WiredCluster) else cluster.node


def settings_of(partition: int, *, fifo: bool = False, **values: Any) -> PartitionSettings:
    arn = f"arn:aws:sqs:us-east-1:000000000000:queue-{partition}"
    return PartitionSettings(partition, partition, 1, arn, b"k" * 16, fifo=fifo, **values)


async def opened(
    cluster: RestartableNode, backend: Backend, partition: int, *, fifo: bool = False, **values: Any
) -> Target:
    settings = settings_of(partition, fifo=fifo, **values)
    cluster.resolver.known[partition] = settings
    await backend.configure(settings)
    return Target(partition, partition, 1)


async def receive(backend: Backend, target: Target, *, visibility: int = 30, wait: float = 0) -> list[ReceivedMessage]:
    return await backend.receive(target, Receive(10, visibility, wait))


async def test_a_message_comes_back_as_it_was_sent(cluster: RestartableNode, backend: Backend) -> None:
    queue = await opened(cluster, backend, 1, fifo=True)
    payload = bytes(range(256)) * 100
    (stored,) = await backend.send(queue, [NewMessage(payload, group="gruppe ☃", token=b"t" * 16)])
    (again,) = await backend.send(queue, [NewMessage(b"other", group="g", token=b"t" * 16)])
    assert (again.message_id, again.number, again.duplicate) == (stored.message_id, stored.number, True)
    (message,) = await receive(backend, queue)
    assert (message.message_id, message.number) == (stored.message_id, stored.number)
    assert (message.payload, message.group, message.receives, message.origin) == (payload, "gruppe ☃", 1, None)
    assert await backend.delete(queue, [message.handle, "nonsense"]) == [HandleOutcome.DONE, HandleOutcome.MALFORMED]
    assert await backend.counters(queue) == Counters(0, 0, 0)


async def test_large_messages_come_back(cluster: RestartableNode, backend: Backend) -> None:
    queue = await opened(cluster, backend, 1)
    for _ in range(4):
        await backend.send(queue, [NewMessage(b"x" * 250_000), NewMessage(b"y" * 250_000)])
    messages = await receive(backend, queue)
    assert sorted(message.payload[:1] for message in messages) == [b"x"] * 4 + [b"y"] * 4
    assert {len(message.payload) for message in messages} == {250_000}


async def test_what_is_refused_says_why(cluster: RestartableNode, backend: Backend) -> None:
    with pytest.raises(PartitionUnknown, match="partition 1 is not open"):
        await backend.send(Target(1, 1), [NewMessage(b"a")])
    queue = await opened(cluster, backend, 1, in_flight_limit=1)
    with pytest.raises(SettingsStale, match="the caller 9"):
        await backend.counters(replace(queue, version=9))
    with pytest.raises(PartitionGone):
        await backend.counters(Target(1, 99))
    await backend.send(queue, [NewMessage(b"a", retry=b"r" * 32), NewMessage(b"b")])
    with pytest.raises(TokenReused):
        await backend.send(queue, [NewMessage(b"c", retry=b"r" * 16 + b"s" * 16)])
    assert len(await receive(backend, queue)) == 1
    with pytest.raises(OverLimit, match="the limit is 1"):
        await receive(backend, queue)
    incarnation = cluster.node._incarnation
    assert incarnation is not None
    incarnation.shards.damage[5] = "rotten at offset 12"
    with pytest.raises(PartitionDamaged, match="rotten at offset 12"):
        await backend.configure(settings_of(5))
    del incarnation.shards.damage[5]


async def test_an_attempt_is_repeated_until_its_messages_are_gone(cluster: RestartableNode, backend: Backend) -> None:
    queue = await opened(cluster, backend, 1, fifo=True)
    await backend.send(queue, [NewMessage(b"a", group="g")])
    command = Receive(10, 30, 0, None, "attempt")
    (first,) = await backend.receive(queue, command)
    (again,) = await backend.receive(queue, command)
    assert again == first
    await backend.delete(queue, [first.handle])
    with pytest.raises(AttemptExpired):
        await backend.receive(queue, command)


async def test_claims_are_changed_and_released(cluster: RestartableNode, backend: Backend) -> None:
    queue = await opened(cluster, backend, 1)
    await backend.send(queue, [NewMessage(b"a")])
    (first,) = await receive(backend, queue)
    assert await backend.change_visibility(queue, [(first.handle, 0)]) == [HandleOutcome.DONE]
    (second,) = await receive(backend, queue)
    assert second.receives == 2
    await backend.release(queue, [first.handle, "nonsense"])
    assert await receive(backend, queue) == [], "only the claim of this handle ends"
    await backend.release(queue, [second.handle])
    (third,) = await receive(backend, queue)
    assert third.receives == 2, "a receive that nobody saw does not count"


async def test_a_long_poll_gets_the_first_message(cluster: RestartableNode, backend: Backend) -> None:
    queue = await opened(cluster, backend, 1)
    poll = asyncio.create_task(receive(backend, queue, wait=20))
    await waiting(cluster, 1)
    await backend.send(queue, [NewMessage(b"a")])
    assert [message.payload for message in await poll] == [b"a"]


async def test_a_cancelled_receive_has_claimed_nothing(cluster: RestartableNode, backend: Backend) -> None:
    queue = await opened(cluster, backend, 1)
    leaver = asyncio.create_task(receive(backend, queue, wait=20, visibility=600))
    await waiting(cluster, 1)
    leaver.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaver
    await waiting(cluster, 0)
    await backend.send(queue, [NewMessage(b"a")])
    assert (await receive(backend, queue))[0].receives == 1


@pytest.mark.parametrize("wait", [0, 20])
@pytest.mark.parametrize("turns", range(8))
async def test_whenever_a_receive_is_cancelled_its_message_is_seen_by_the_next(
    cluster: RestartableNode, backend: Backend, turns: int, wait: float
) -> None:
    """Includes cancellations while the answer is under way, or has just arrived."""
    queue = await opened(cluster, backend, 1)
    await backend.send(queue, [NewMessage(b"a")])
    leaver = asyncio.create_task(receive(backend, queue, wait=wait, visibility=600))
    for _ in range(turns):
        await asyncio.sleep(0.0003)
    leaver.cancel()
    try:
        messages = await leaver
    except asyncio.CancelledError:
        messages = await receive(backend, queue, wait=20)
    assert [(message.payload, message.receives) for message in messages] == [(b"a", 1)]


async def test_the_end_of_the_backend_ends_long_polls(cluster: RestartableNode, backend: Backend) -> None:
    queue = await opened(cluster, backend, 1)
    poll = asyncio.create_task(receive(backend, queue, wait=20))
    await waiting(cluster, 1)
    cluster.node.drain()
    assert await poll == []


async def test_a_dropped_queue_ends_its_long_polls(cluster: RestartableNode, backend: Backend) -> None:
    queue = await opened(cluster, backend, 1)
    poll = asyncio.create_task(receive(backend, queue, wait=20))
    await waiting(cluster, 1)
    await backend.drop(queue)
    with pytest.raises(PartitionGone):
        await poll
    await backend.drop(queue)


async def test_purge_and_peek(cluster: RestartableNode, backend: Backend) -> None:
    queue = await opened(cluster, backend, 1)
    await backend.send(queue, [NewMessage(b"a", 600), NewMessage(b"b")])
    await receive(backend, queue)
    first, second = await backend.peek(queue, 10)
    assert (first.payload, first.state, second.payload, second.state) == (
        b"a",
        PeekState.DELAYED,
        b"b",
        PeekState.IN_FLIGHT,
    )
    await backend.purge(queue, 1)
    assert await backend.counters(queue) == Counters(0, 0, 0)
    assert await backend.peek(queue, 10) == []


async def test_stored_bytes_are_told(cluster: RestartableNode, backend: Backend) -> None:
    queue = await opened(cluster, backend, 1)
    await backend.send(queue, [NewMessage(b"x" * 100)])
    assert (await backend.counters(queue)).stored_bytes == 100

    async def told() -> bool:
        return await backend.stored_bytes("000000000000") == 100

    await until(told)
    assert await backend.stored_bytes("111111111111") == 0


async def test_dead_letters_and_move_tasks(cluster: RestartableNode, backend: Backend) -> None:
    queue, dead = await opened(cluster, backend, 1), await opened(cluster, backend, 2)
    (stored,) = await backend.send(queue, [NewMessage(b"poison")])
    await receive(backend, queue, visibility=0)
    assert await backend.receive(queue, Receive(10, 30, 0, DeadLetter(1, dead))) == []
    (letter,) = await receive(backend, dead, visibility=0, wait=20)
    assert (letter.message_id, letter.origin) == (stored.message_id, settings_of(1).arn)
    with pytest.raises(MoveTaskUnknown):
        await backend.cancel_move(dead, "nothing")
    task = await backend.start_move(dead, None, 0)

    async def ended() -> bool:
        return (await backend.list_moves(dead))[0].status == "COMPLETED"

    await until(ended)
    assert [(one.task_id, one.moved) for one in await backend.list_moves(dead)] == [(task.task_id, 1)]
    assert (await backend.counters(queue)).visible == 1


async def test_one_move_task_at_a_time(cluster: RestartableNode, backend: Backend) -> None:
    dead = await opened(cluster, backend, 2)
    await opened(cluster, backend, 1)
    await backend.send(dead, [NewMessage(str(place).encode()) for place in range(10)])
    task = await backend.start_move(dead, settings_of(1).arn, 1)
    with pytest.raises(MoveTaskRefused, match="already a task running"):
        await backend.start_move(dead, settings_of(1).arn, 1)
    assert (await backend.cancel_move(dead, task.task_id)).status in ("CANCELLING", "CANCELLED")


async def test_a_closed_node_refuses_with_an_error_that_may_be_retried(
    cluster: RestartableNode, backend: Backend
) -> None:
    queue = await opened(cluster, backend, 1)
    await cluster.node.close()
    with pytest.raises(Unavailable, match="the node is closed"):
        await backend.send(queue, [NewMessage(b"a")])


async def waiting(cluster: RestartableNode, number: int) -> None:
    """Wait until this many long polls wait at partition 1."""

    async def there() -> bool:
        assert cluster.node._incarnation is not None
        return len(cluster.node._incarnation.partitions[1].waiters) == number

    await until(there)


async def test_a_full_queue_says_so(backend: Backend) -> None:
    await backend.configure(settings_of(1, messages_most=2))
    await backend.send(Target(1, 1, 1), [NewMessage(b"a")])
    with pytest.raises(QueueFull, match=r"^The queue stores 1 messages, and its HoldfastMaximumMessages is 2\.$"):
        await backend.send(Target(1, 1, 1), [NewMessage(b"b"), NewMessage(b"c")])
    assert await backend.counters(Target(1, 1, 1)) == Counters(1, 0, 0, 1)


async def test_a_receive_deletes_what_is_delivered_at_most_once(backend: Backend) -> None:
    await backend.configure(settings_of(1, at_most_once=True))
    await backend.send(Target(1, 1, 1), [NewMessage(b"a")])
    (message,) = await backend.receive(Target(1, 1, 1), Receive(10, 30))
    assert message.payload == b"a"
    assert await backend.counters(Target(1, 1, 1)) == Counters()


@pytest.mark.parametrize("turns", range(12))
async def test_a_wait_that_ends_loses_nothing_that_is_delivered_at_most_once(backend: Backend, turns: int) -> None:
    """Includes ends of the wait while the deletion is written, or the answer is under way."""
    await backend.configure(settings_of(1, at_most_once=True))
    for _ in range(10):
        await backend.send(Target(1, 1, 1), [NewMessage(b"a")])
        poll = asyncio.create_task(receive(backend, Target(1, 1, 1), wait=20, visibility=600))
        for _ in range(turns):
            await asyncio.sleep(0.0001)
        poll.cancel(WAIT_ENDS)
        try:
            messages = await poll
        except asyncio.CancelledError:
            messages = await receive(backend, Target(1, 1, 1), wait=20)
        assert [message.payload for message in messages] == [b"a"]


async def test_a_wait_that_ends_has_claimed_nothing(cluster: RestartableNode, backend: Backend) -> None:
    queue = await opened(cluster, backend, 1)
    poll = asyncio.create_task(receive(backend, queue, wait=20, visibility=600))
    await waiting(cluster, 1)
    poll.cancel(WAIT_ENDS)
    with pytest.raises(asyncio.CancelledError):
        await poll
    await waiting(cluster, 0)
    await backend.send(queue, [NewMessage(b"a")])
    assert (await receive(backend, queue))[0].receives == 1


@pytest.mark.parametrize("level", list(AckLevel))
async def test_a_queue_says_when_sends_are_answered(backend: Backend, level: AckLevel) -> None:
    target = Target(1, 1, 1)
    await backend.configure(settings_of(1, ack_level=level))
    message = NewMessage(b"a", retry=b"r" * 32, message_id=b"i" * 16)
    first = await backend.send(target, [message])
    again = await backend.send(target, [message])
    assert ([one.number for one in again], again[0].duplicate) == ([one.number for one in first], True)
    (received,) = await receive(backend, target)
    assert received.message_id == "69696969-6969-6969-6969-696969696969"
    assert await backend.delete(target, [received.handle]) == [HandleOutcome.DONE]
    again = await backend.send(target, [message])
    assert again[0].number == received.number
    assert await backend.counters(target) == Counters()


async def measured(backend: Backend, target: Target) -> Measures:
    (measures,) = await backend.measures(target)
    return measures


async def test_what_a_queue_tells_of_itself(cluster: RestartableNode, backend: Backend) -> None:
    queue = await opened(cluster, backend, 7)
    assert await receive(backend, queue) == []
    assert await backend.receive(queue, Receive(1, 30, 0, partial=True)) == []
    (first,) = await backend.send(queue, [NewMessage(b"12345", retry=b"r" * 32)])
    assert (await backend.send(queue, [NewMessage(b"12345", retry=b"r" * 32)]))[0].duplicate
    await backend.send(queue, [NewMessage(b"1"), NewMessage(b"22", delay_seconds=600)])
    before_ms = cluster.node.clock()
    (message, other) = await receive(backend, queue)
    assert message.message_id == first.message_id
    await backend.delete(queue, [message.handle])
    await backend.delete(queue, [message.handle])
    await backend.change_visibility(queue, [(other.handle, 60)])
    told = await measured(backend, queue)
    assert (told.partition, told.queue) == (7, "queue-7")
    assert (told.visible, told.in_flight, told.delayed, told.stored_bytes) == (0, 1, 1, 3)
    assert (told.sent, told.sent_bytes, told.deduplicated) == (3, 8, 1)
    assert (told.received, told.empty_receives, told.deleted) == (2, 1, 2)
    assert 0 < told.since_ms <= told.oldest_ms <= before_ms
    assert (told.groups_in_flight, told.noisy_groups, told.visible_quiet) == (None, None, None)
    with pytest.raises(PartitionUnknown):
        await backend.measures(Target(8, 8, 1))


async def test_groups_are_told_of_where_there_are_some(cluster: RestartableNode, backend: Backend) -> None:
    fifo = await opened(cluster, backend, 1, fifo=True)
    await backend.send(fifo, [NewMessage(b"", group=f"g{place % 3}", token=bytes([place]) * 16) for place in range(6)])
    assert len(await backend.receive(fifo, Receive(2, 30, 0))) == 2
    told = await measured(backend, fifo)
    assert told.groups_in_flight in (1, 2), "one receive may take several of a group"
    assert told.noisy_groups is None
    fair = await opened(cluster, backend, 2)
    await backend.send(fair, [NewMessage(b"", group="noisy") for _ in range(60)])
    await backend.send(fair, [NewMessage(b"", group="quiet")])
    assert (await measured(backend, fair)).noisy_groups == 0
    for _ in range(4):
        await backend.receive(fair, Receive(10, 30, 0))
    told = await measured(backend, fair)
    assert (told.noisy_groups, told.visible_quiet) == (1, 0), "the quiet group's was received among the first"


async def test_an_accounts_queues_are_told_of_by_name(cluster: RestartableNode, backend: Backend) -> None:
    async def names(*prefixes: str, after: str = "", most: int = 100, account: str = "0" * 12) -> list[str]:
        return [one.queue for one in await backend.measures_of(account, prefixes, after, most)]

    for partition in (3, 21, 1, 20):
        await opened(cluster, backend, partition)
    assert await names() == ["queue-1", "queue-20", "queue-21", "queue-3"]
    assert await names(most=2) == ["queue-1", "queue-20"]
    assert await names("queue-2", "queue-3") == ["queue-20", "queue-21", "queue-3"]
    assert await names(after="queue-20", most=1) == ["queue-21"]
    assert await names(account="1" * 12) == []
    settings = replace(settings_of(30), arn=settings_of(20).arn)
    cluster.resolver.known[30] = settings
    await backend.configure(settings)
    several = await backend.measures_of("0" * 12, [], "queue-1", 1)
    assert [(one.queue, one.partition) for one in several] == [("queue-20", 20), ("queue-20", 30)], "all its partitions"
    await backend.drop(Target(20, 20, 1))
    await backend.drop(Target(30, 30, 1))
    assert await names() == ["queue-1", "queue-21", "queue-3"]


async def test_counting_begins_anew_with_a_node(cluster: RestartableNode, backend: Backend) -> None:
    queue = await opened(cluster, backend, 1)
    await backend.send(queue, [NewMessage(b"12345")])
    before = await measured(backend, queue)
    await cluster.restart()
    (told,) = await cluster.node.measures(queue)
    assert (told.sent, told.visible, told.oldest_ms) == (0, 1, before.oldest_ms)
    assert told.since_ms > before.since_ms
