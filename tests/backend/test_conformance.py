"""Conformance of :class:`backend.api.Backend`: a node here, one behind a connection, a cluster, and one in memory."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from backend import api
from backend.engine.ids import message_id, salt_of
from tests.backend.calls import (
    all_payloads,
    count_messages,
    delete,
    peek,
    receive,
    send,
    until_equal,
    until_move,
    until_visible,
)
from tests.backend.memory_backend import MemoryBackend
from tests.backend.nodes import FakeResolver, RestartableNode, incarnation_of, waiters
from tests.backend.wired import WiredCluster


class InMemory:
    """A :class:`MemoryBackend` in place of a node."""

    async def start(self) -> None:
        self.resolver = FakeResolver()
        self.node = MemoryBackend(self.resolver)

    async def stop(self) -> None:
        await self.node.close()


Cluster = RestartableNode | InMemory


@pytest.fixture(params=["in the process", "over a connection", "a cluster", "in memory"])
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster: Cluster = InMemory()
    if request.param != "in memory":
        cluster = RestartableNode(tmp_path) if request.param == "in the process" else WiredCluster(tmp_path)
    if isinstance(cluster, WiredCluster):
        cluster.as_cluster = request.param == "a cluster"
    await cluster.start()
    yield cluster
    await cluster.stop()


@pytest.fixture
def backend(cluster: Cluster) -> api.Backend:
    return cluster.backend if isinstance(cluster, WiredCluster) else cluster.node


def settings_of(partition: int, *, fifo: bool = False, **values: Any) -> api.PartitionSettings:
    arn = f"arn:aws:sqs:us-east-1:000000000000:queue-{partition}"
    return api.PartitionSettings(partition, partition, 1, arn, b"k" * 16, fifo=fifo, **values)


async def opened(
    cluster: Cluster, backend: api.Backend, partition: int, *, fifo: bool = False, **values: Any
) -> api.Target:
    settings = settings_of(partition, fifo=fifo, **values)
    cluster.resolver.known[partition] = settings
    await backend.call(api.Configure(settings))
    return api.Target(partition, partition, 1)


async def test_a_message_is_received_as_it_was_sent(cluster: Cluster, backend: api.Backend) -> None:
    queue = await opened(cluster, backend, 1, fifo=True)
    payload = bytes(range(256)) * 100
    (stored,) = await backend.call(api.Send(queue, [api.NewMessage(payload, group="gruppe ☃", token=b"t" * 16)]))
    (again,) = await backend.call(api.Send(queue, [api.NewMessage(b"other", group="g", token=b"t" * 16)]))
    assert (again.message_id, again.number, again.duplicate) == (stored.message_id, stored.number, True)
    (message,) = await receive(backend, queue)
    assert (message.message_id, message.number) == (stored.message_id, stored.number)
    assert stored.message_id == message_id(1, stored.number, salt_of(settings_of(1).handle_key)), "of the queue's key"
    assert (message.payload, message.group, message.receives, message.origin) == (payload, "gruppe ☃", 1, None)
    assert await backend.call(api.Delete(queue, [message.handle, "nonsense"])) == [
        api.HandleOutcome.DONE,
        api.HandleOutcome.MALFORMED,
    ]
    assert await count_messages(backend, queue) == api.Counters(0, 0, 0)


async def test_large_messages_are_received_as_sent(cluster: Cluster, backend: api.Backend) -> None:
    queue = await opened(cluster, backend, 1)
    for _ in range(4):
        await send(backend, queue, b"x" * 250_000, b"y" * 250_000)
    messages = await receive(backend, queue)
    assert sorted(message.payload[:1] for message in messages) == [b"x"] * 4 + [b"y"] * 4
    assert {len(message.payload) for message in messages} == {250_000}


async def test_a_refusal_has_its_reason(cluster: Cluster, backend: api.Backend) -> None:
    with pytest.raises(api.PartitionUnknown, match="partition 1 is not open"):
        await send(backend, api.Target(1, 1), b"a")
    queue = await opened(cluster, backend, 1, in_flight_limit=1)
    with pytest.raises(api.SettingsStale, match="the caller 9"):
        await count_messages(backend, replace(queue, version=9))
    with pytest.raises(api.PartitionGone):
        await count_messages(backend, api.Target(1, 99))
    await backend.call(api.Send(queue, [api.NewMessage(b"a", retry=b"r" * 32), api.NewMessage(b"b")]))
    with pytest.raises(api.TokenReused):
        await backend.call(api.Send(queue, [api.NewMessage(b"c", retry=b"r" * 16 + b"s" * 16)]))
    assert len(await receive(backend, queue)) == 1
    with pytest.raises(api.OverLimit, match="the limit is 1"):
        await receive(backend, queue)
    damage = incarnation_of(cluster.node).shards.damage
    damage[5] = "rotten at offset 12"
    with pytest.raises(api.PartitionDamaged, match="rotten at offset 12"):
        await backend.call(api.Configure(settings_of(5)))
    del damage[5]


async def test_an_attempt_is_repeated_until_its_messages_are_gone(cluster: Cluster, backend: api.Backend) -> None:
    queue = await opened(cluster, backend, 1, fifo=True)
    await backend.call(api.Send(queue, [api.NewMessage(b"a", group="g")]))
    command = api.ReceiveOptions(10, 30, 0, None, "attempt")
    (first,) = await backend.call(api.Receive(queue, command))
    (again,) = await backend.call(api.Receive(queue, command))
    assert again == first
    await delete(backend, queue, first)
    with pytest.raises(api.AttemptExpired):
        await backend.call(api.Receive(queue, command))


async def test_claims_are_changed_and_released(cluster: Cluster, backend: api.Backend) -> None:
    queue = await opened(cluster, backend, 1)
    await send(backend, queue, b"a")
    (first,) = await receive(backend, queue)
    assert await backend.call(api.ChangeVisibility(queue, [(first.handle, 0)])) == [api.HandleOutcome.DONE]
    (second,) = await receive(backend, queue)
    assert second.receives == 2
    await backend.call(api.Release(queue, [first.handle, "nonsense"]))
    assert await receive(backend, queue) == [], "only the claim of this handle ends"
    await backend.call(api.Release(queue, [second.handle]))
    (third,) = await receive(backend, queue)
    assert third.receives == 2, "a receive that nobody saw does not count"


async def test_each_message_ends_one_long_poll_and_a_drain_the_others(cluster: Cluster, backend: api.Backend) -> None:
    queue = await opened(cluster, backend, 1)
    polls = {asyncio.create_task(receive(backend, queue, wait=20)) for _ in range(3)}
    await waiters(cluster.node, 1, 3)
    for body in (b"a", b"b"):
        await send(backend, queue, body)
        done, polls = await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED)
        assert [message.payload for message in done.pop().result()] == [body]
    cluster.node.drain()
    assert await polls.pop() == []


@pytest.mark.parametrize("message", [None, api.WAIT_ENDS], ids=["cancelled", "the wait ends"])
async def test_a_receive_that_ends_has_claimed_nothing(cluster: Cluster, backend: api.Backend, message: Any) -> None:
    queue = await opened(cluster, backend, 1)
    leaver = asyncio.create_task(receive(backend, queue, wait=20, visibility=600))
    await waiters(cluster.node, 1, 1)
    leaver.cancel(message)
    with pytest.raises(asyncio.CancelledError):
        await leaver
    await waiters(cluster.node, 1, 0)
    await send(backend, queue, b"a")
    assert (await receive(backend, queue))[0].receives == 1


@pytest.mark.parametrize("wait", [0, 20])
@pytest.mark.parametrize("turns", range(8))
async def test_a_cancelled_receive_loses_nothing(
    cluster: Cluster, backend: api.Backend, turns: int, wait: float
) -> None:
    """Includes cancellations while the answer is under way, or has just arrived."""
    queue = await opened(cluster, backend, 1)
    await send(backend, queue, b"a")
    leaver = asyncio.create_task(receive(backend, queue, wait=wait, visibility=600))
    for _ in range(turns):
        await asyncio.sleep(0.0003)
    leaver.cancel()
    try:
        messages = await leaver
    except asyncio.CancelledError:
        messages = await receive(backend, queue, wait=20)
    assert [(message.payload, message.receives) for message in messages] == [(b"a", 1)]


async def test_a_dropped_queue_ends_its_long_polls(cluster: Cluster, backend: api.Backend) -> None:
    queue = await opened(cluster, backend, 1)
    poll = asyncio.create_task(receive(backend, queue, wait=20))
    await waiters(cluster.node, 1, 1)
    await backend.call(api.Drop(queue))
    with pytest.raises(api.PartitionGone):
        await poll
    await backend.call(api.Drop(queue))


async def test_purge_and_peek(cluster: Cluster, backend: api.Backend) -> None:
    queue = await opened(cluster, backend, 1)
    await backend.call(api.Send(queue, [api.NewMessage(b"a", 600), api.NewMessage(b"b")]))
    await receive(backend, queue)
    first, second = await peek(backend, queue, 10)
    assert (first.payload, first.state, second.payload, second.state) == (
        b"a",
        api.PeekState.DELAYED,
        b"b",
        api.PeekState.IN_FLIGHT,
    )
    await backend.call(api.Purge(queue, 1))
    assert await count_messages(backend, queue) == api.Counters(0, 0, 0)
    assert await peek(backend, queue, 10) == []


async def test_stored_bytes_are_reported(cluster: Cluster, backend: api.Backend) -> None:
    queue = await opened(cluster, backend, 1)
    await send(backend, queue, b"x" * 100)
    assert (await count_messages(backend, queue)).stored_bytes == 100
    await until_equal(lambda: backend.call(api.AccountBytes("000000000000")), 100)
    assert await backend.call(api.AccountBytes("111111111111")) == 0


async def test_dead_letters_and_move_tasks(cluster: Cluster, backend: api.Backend) -> None:
    queue, dead = await opened(cluster, backend, 1), await opened(cluster, backend, 2)
    (stored,) = await send(backend, queue, b"poison")
    await receive(backend, queue, visibility=0)
    assert await receive(backend, queue, 10, 30, 0, api.DeadLetter(1, dead)) == []
    (letter,) = await receive(backend, dead, visibility=0, wait=20)
    assert (letter.message_id, letter.origin) == (stored.message_id, settings_of(1).arn)
    with pytest.raises(api.MoveTaskUnknown):
        await backend.call(api.CancelMove(dead, "nothing"))
    task = await backend.call(api.StartMove(dead, None, 0))
    assert await until_move(backend, dead, "COMPLETED") == 1
    assert [one.task_id for one in await backend.call(api.ListMoves(dead))] == [task.task_id]
    assert (await count_messages(backend, queue)).visible == 1


async def test_chosen_messages_are_moved_if_they_can_be_received(cluster: Cluster, backend: api.Backend) -> None:
    queue, dead = await opened(cluster, backend, 1), await opened(cluster, backend, 2)
    sent = await send(backend, dead, *(b"%d" % place for place in range(5)))
    (held,) = await receive(backend, dead, 1)
    asked = [sent[number].number for number in (0, 1, 3)] + [999]
    arn = settings_of(1).arn
    assert await backend.call(api.MoveMessages(dead, asked, None)) == [], "they came from no queue"
    assert await backend.call(api.MoveMessages(dead, asked, "arn:aws:sqs:us-east-1:000000000000:gone")) == []
    assert held.number == sent[0].number
    assert await backend.call(api.MoveMessages(dead, asked, arn)) == [sent[1].number, sent[3].number]
    assert await backend.call(api.MoveMessages(dead, asked, arn)) == [], "a repeated call moves nothing again"
    await until_visible(backend, queue, 2)
    assert sorted(await all_payloads(backend, queue)) == [b"1", b"3"]
    assert sorted(await all_payloads(backend, dead)) == [b"2", b"4"]


async def test_a_dead_letter_is_moved_to_its_original_queue(cluster: Cluster, backend: api.Backend) -> None:
    queue, dead = await opened(cluster, backend, 1), await opened(cluster, backend, 2)
    await send(backend, queue, b"poison")
    await receive(backend, queue, visibility=0)
    assert await receive(backend, queue, 10, 30, 0, api.DeadLetter(1, dead)) == []
    await until_visible(backend, dead, 1)
    (letter,) = await peek(backend, dead, 1)
    assert await backend.call(api.MoveMessages(dead, [letter.number], None)) == [letter.number]
    await until_visible(backend, queue, 1)
    (back,) = await peek(backend, queue, 1)
    assert (back.payload, back.receives, back.origin) == (b"poison", 0, None)


async def test_chosen_messages_are_not_moved_beside_a_task(cluster: Cluster, backend: api.Backend) -> None:
    """The task counts what is moved."""
    dead = await opened(cluster, backend, 2)
    await opened(cluster, backend, 1)
    arn = settings_of(1).arn
    sent = await send(backend, dead, *(str(place).encode() for place in range(10)))
    task = await backend.call(api.StartMove(dead, arn, 1))
    with pytest.raises(api.MoveTaskRefused, match="already a task running"):
        await backend.call(api.MoveMessages(dead, [sent[9].number], arn))
    await backend.call(api.CancelMove(dead, task.task_id))


async def test_one_move_task_at_a_time(cluster: Cluster, backend: api.Backend) -> None:
    dead = await opened(cluster, backend, 2)
    await opened(cluster, backend, 1)
    await send(backend, dead, *(str(place).encode() for place in range(10)))
    task = await backend.call(api.StartMove(dead, settings_of(1).arn, 1))
    with pytest.raises(api.MoveTaskRefused, match="already a task running"):
        await backend.call(api.StartMove(dead, settings_of(1).arn, 1))
    assert (await backend.call(api.CancelMove(dead, task.task_id))).status in ("CANCELLING", "CANCELLED")


async def test_a_closed_node_refuses_with_an_error_that_may_be_retried(cluster: Cluster, backend: api.Backend) -> None:
    queue = await opened(cluster, backend, 1)
    await cluster.node.close()
    with pytest.raises(api.Unavailable, match="the node is closed") as raised:
        await send(backend, queue, b"a")
    assert raised.value.retryable


async def test_the_error_of_a_full_queue(backend: api.Backend) -> None:
    await backend.call(api.Configure(settings_of(1, messages_max=2)))
    await send(backend, api.Target(1, 1, 1), b"a")
    with pytest.raises(api.QueueFull, match=r"^The queue stores 1 messages, and its HoldfastMaximumMessages is 2\.$"):
        await send(backend, api.Target(1, 1, 1), b"b", b"c")
    assert await count_messages(backend, api.Target(1, 1, 1)) == api.Counters(1, 0, 0, 1)


async def test_a_receive_deletes_what_is_delivered_at_most_once(backend: api.Backend) -> None:
    await backend.call(api.Configure(settings_of(1, at_most_once=True)))
    await send(backend, api.Target(1, 1, 1), b"a")
    (message,) = await receive(backend, api.Target(1, 1, 1), 10, 30)
    assert message.payload == b"a"
    assert await count_messages(backend, api.Target(1, 1, 1)) == api.Counters()


@pytest.mark.parametrize("turns", range(12))
async def test_a_wait_that_ends_loses_nothing_that_is_delivered_at_most_once(backend: api.Backend, turns: int) -> None:
    """Includes ends of the wait while the deletion is written, or the answer is under way."""
    await backend.call(api.Configure(settings_of(1, at_most_once=True)))
    for _ in range(10):
        await send(backend, api.Target(1, 1, 1), b"a")
        poll = asyncio.create_task(receive(backend, api.Target(1, 1, 1), wait=20, visibility=600))
        for _ in range(turns):
            await asyncio.sleep(0.0001)
        poll.cancel(api.WAIT_ENDS)
        try:
            messages = await poll
        except asyncio.CancelledError:
            messages = await receive(backend, api.Target(1, 1, 1), wait=20)
        assert [message.payload for message in messages] == [b"a"]


@pytest.mark.parametrize("level", list(api.AckLevel))
async def test_a_queue_shows_its_ack_level(backend: api.Backend, level: api.AckLevel) -> None:
    target = api.Target(1, 1, 1)
    await backend.call(api.Configure(settings_of(1, ack_level=level)))
    message = api.NewMessage(b"a", retry=b"r" * 32, message_id=b"i" * 16)
    first = await backend.call(api.Send(target, [message]))
    again = await backend.call(api.Send(target, [message]))
    assert ([one.number for one in again], again[0].duplicate) == ([one.number for one in first], True)
    (received,) = await receive(backend, target)
    assert received.message_id == "69696969-6969-6969-6969-696969696969"
    assert await delete(backend, target, received) == [api.HandleOutcome.DONE]
    again = await backend.call(api.Send(target, [message]))
    assert again[0].number == received.number
    assert await count_messages(backend, target) == api.Counters()


async def measured(backend: api.Backend, target: api.Target) -> api.Measures:
    (measures,) = await backend.call(api.QueueMeasures(target))
    return measures


async def test_the_measures_of_a_queue(cluster: Cluster, backend: api.Backend) -> None:
    queue = await opened(cluster, backend, 7)
    assert await receive(backend, queue) == []
    assert await receive(backend, queue, 1, 30, 0, partial=True) == []
    (first,) = await backend.call(api.Send(queue, [api.NewMessage(b"12345", retry=b"r" * 32)]))
    assert (await backend.call(api.Send(queue, [api.NewMessage(b"12345", retry=b"r" * 32)])))[0].duplicate
    await backend.call(api.Send(queue, [api.NewMessage(b"1"), api.NewMessage(b"22", delay_seconds=600)]))
    before_ms = cluster.node.clock()
    (message, other) = await receive(backend, queue)
    assert message.message_id == first.message_id
    await delete(backend, queue, message)
    await delete(backend, queue, message)
    await backend.call(api.ChangeVisibility(queue, [(other.handle, 60)]))
    measures = await measured(backend, queue)
    assert (measures.partition, measures.queue) == (7, "queue-7")
    assert (measures.visible, measures.in_flight, measures.delayed, measures.stored_bytes) == (0, 1, 1, 3)
    assert (measures.sent, measures.sent_bytes, measures.deduplicated) == (3, 8, 1)
    assert (measures.received, measures.empty_receives, measures.deleted) == (2, 1, 2)
    assert 0 < measures.since_ms <= measures.oldest_ms <= before_ms
    assert (measures.groups_in_flight, measures.noisy_groups, measures.visible_quiet) == (None, None, None)
    with pytest.raises(api.PartitionUnknown):
        await backend.call(api.QueueMeasures(api.Target(8, 8, 1)))


async def test_groups_are_measured_where_there_are_some(cluster: Cluster, backend: api.Backend) -> None:
    fifo = await opened(cluster, backend, 1, fifo=True)
    await backend.call(
        api.Send(fifo, [api.NewMessage(b"", group=f"g{place % 3}", token=bytes([place]) * 16) for place in range(6)])
    )
    assert len(await receive(backend, fifo, 2, 30, 0)) == 2
    measures = await measured(backend, fifo)
    assert measures.groups_in_flight in (1, 2), "one receive may take several of a group"
    assert measures.noisy_groups is None
    fair = await opened(cluster, backend, 2)
    await backend.call(api.Send(fair, [api.NewMessage(b"", group="noisy") for _ in range(60)]))
    await backend.call(api.Send(fair, [api.NewMessage(b"", group="quiet")]))
    assert (await measured(backend, fair)).noisy_groups == 0
    for _ in range(4):
        await receive(backend, fair, 10, 30, 0)
    measures = await measured(backend, fair)
    assert (measures.noisy_groups, measures.visible_quiet) == (1, 0), "the quiet group's was received among the first"


async def test_an_accounts_queues_are_measured_by_name(cluster: Cluster, backend: api.Backend) -> None:
    async def names(*prefixes: str, after: str = "", queues_max: int = 100, account: str = "0" * 12) -> list[str]:
        return [one.queue for one in await backend.call(api.AccountMeasures(account, prefixes, after, queues_max))]

    for partition in (3, 21, 1, 20):
        await opened(cluster, backend, partition)
    assert await names() == ["queue-1", "queue-20", "queue-21", "queue-3"]
    assert await names(queues_max=2) == ["queue-1", "queue-20"]
    assert await names("queue-2", "queue-3") == ["queue-20", "queue-21", "queue-3"]
    assert await names(after="queue-20", queues_max=1) == ["queue-21"]
    assert await names(account="1" * 12) == []
    settings = replace(settings_of(30), arn=settings_of(20).arn)
    cluster.resolver.known[30] = settings
    await backend.call(api.Configure(settings))
    several = await backend.call(api.AccountMeasures("0" * 12, [], "queue-1", 1))
    assert [(one.queue, one.partition) for one in several] == [("queue-20", 20), ("queue-20", 30)], "all its partitions"
    await backend.call(api.Drop(api.Target(20, 20, 1)))
    await backend.call(api.Drop(api.Target(30, 30, 1)))
    assert await names() == ["queue-1", "queue-21", "queue-3"]
