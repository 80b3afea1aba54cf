"""Transfers between partitions of different nodes: a message is in exactly one of them, despite faults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backend.api import (
    SHARDS,
    DeadLetter,
    NewMessage,
    PartitionSettings,
    Receive,
    StorageFull,
    Target,
    Transfer,
    Unavailable,
)
from backend.node import Node
from backend.rpc.client import RemoteBackend
from backend.rpc.server import BackendServer, serve_backend
from backend.serving import transfers
from backend.serving.shards import shard_of
from tests.backend.nodes import NodeMachine, disk_of
from tests.backend.test_node import until
from tests.backend.wired import SECRET

HERE, THERE = Target(1, 1), Target(2, 2)


class _FaultyConnection(RemoteBackend):
    """Connection to the other node, with faults made by the test."""

    lose_answers = 0
    """Number of transfers whose answers will be lost: the call has taken effect, and the caller does not know."""
    refuse_with: Exception | None = None
    asked: int = 0

    async def _lossy(self, answer: Any) -> Any:
        self.asked += 1
        if self.refuse_with is not None:
            answer.close()
            raise self.refuse_with
        found = await answer
        if self.lose_answers:
            self.lose_answers -= 1
            raise Unavailable("the answer got lost")
        return found

    def take(self, target: Target, source: int, below: int, transfers: Sequence[Transfer]) -> Any:
        return self._lossy(super().take(target, source, below, transfers))

    def never(self, target: Target, source: int, below: int, numbers: Sequence[int]) -> Any:
        return self._lossy(super().never(target, source, below, numbers))


class Two:
    """Two nodes; the first owns partition 1, the second owns partition 2."""

    def __init__(self, machine: NodeMachine) -> None:
        self.machine = machine
        self.way: _FaultyConnection
        self.server: BackendServer
        for partition in (1, 2):
            machine.settings(partition)

    @property
    def one(self) -> Node:
        return self.machine.nodes["one"]

    @property
    def two(self) -> Node:
        return self.machine.nodes["two"]

    async def start(self) -> None:
        theirs = shard_of(2)
        two = await self.machine.start("two", [theirs])
        self.server = await serve_backend(two, secret=SECRET, host="127.0.0.1")
        self.way = await _FaultyConnection.connect(self.server.address, secret=SECRET)  # type: ignore[assignment]
        await self.machine.start("one", [shard for shard in range(SHARDS) if shard != theirs], self.way)
        await self.one.configure(self.machine.resolver.known[1])

    async def restart(self, name: str) -> None:
        """Restart the first node, or the second one with its server."""
        await self.machine.stop(name)
        if name == "one":
            await self.machine.start("one", elsewhere=self.way)
        else:
            two = await self.machine.start("two")
            port = self.server.address.port
            await self.server.close()
            self.server = await serve_backend(two, secret=SECRET, host="127.0.0.1", port=port)

    async def close(self) -> None:
        await self.machine.close()
        await self.way.close()
        await self.server.close()

    async def send_dead(self, number: int) -> None:
        """Send this number of messages, which become dead letters for partition 2."""
        await self.one.send(HERE, [NewMessage(f"message {place}".encode()) for place in range(number)])
        while (await self.one.counters(HERE)).visible:
            await self.one.receive(HERE, Receive(10, 0, 0, DeadLetter(1, THERE)))

    async def stored(self) -> tuple[int, int]:
        """Return the number of messages in both; those being transferred count for the source."""
        here, there = await self.one.counters(HERE), await self.two.counters(THERE)
        return here.visible + here.in_flight, there.visible + there.in_flight

    async def arrived(self, here: int, there: int) -> None:
        async def so() -> bool:
            try:
                return await self.stored() == (here, there)
            except Exception:
                return False

        await until(so)


@pytest.fixture
async def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Two]:
    monkeypatch.setattr(transfers, "RETRY_SECONDS", 0.01)
    two = Two(NodeMachine(tmp_path))
    await two.start()
    yield two
    await two.close()


async def test_a_dead_letter_arrives_at_another_node_as_it_was(nodes: Two) -> None:
    (stored,) = await nodes.one.send(HERE, [NewMessage(b"poison")])
    (before,) = await nodes.one.receive(HERE, Receive(1, 0))
    await nodes.one.receive(HERE, Receive(1, 0, 0, DeadLetter(1, THERE)))
    await nodes.arrived(0, 1)
    (letter,) = await nodes.two.receive(THERE, Receive(1, 30, 20))
    assert (letter.message_id, letter.payload, letter.sent_ms) == (stored.message_id, b"poison", before.sent_ms)
    assert letter.origin == nodes.machine.resolver.known[1].arn
    assert (letter.receives, letter.first_received_ms) == (2, before.first_received_ms)


async def test_the_answer_may_get_lost_as_often_as_it_likes(nodes: Two) -> None:
    nodes.way.lose_answers = 3
    await nodes.send_dead(150)
    await nodes.arrived(0, 150)
    assert nodes.way.asked >= 5
    bodies = set()
    while messages := await nodes.two.receive(THERE, Receive(10, 600)):
        bodies |= {message.payload for message in messages}
    assert bodies == {f"message {place}".encode() for place in range(150)}


@pytest.mark.parametrize("who", ["one", "two"])
async def test_a_node_that_begins_anew_between_the_steps_changes_nothing(nodes: Two, who: str) -> None:
    nodes.way.lose_answers = 1_000_000
    await nodes.send_dead(20)

    await nodes.arrived(20, 20)  # taken by the destination, and not yet removed from the source
    await nodes.restart(who)
    nodes.way.lose_answers = 0
    await nodes.arrived(0, 20)
    await nodes.restart("two")
    assert await nodes.stored() == (0, 20)


async def test_the_source_moves_to_the_destinations_node_between_the_steps(nodes: Two) -> None:
    nodes.way.lose_answers = 1_000_000
    await nodes.send_dead(20)

    await nodes.arrived(20, 20)
    await nodes.machine.stop()
    two = await nodes.machine.start("two", range(SHARDS))

    async def settled() -> bool:
        here, there = await two.counters(HERE), await two.counters(THERE)
        return (here.visible + here.in_flight, there.visible) == (0, 20)

    await until(settled)


async def test_a_node_that_cannot_be_reached_keeps_nothing_but_its_transfers_waiting(nodes: Two) -> None:
    await nodes.server.close()
    await nodes.send_dead(5)
    await nodes.one.send(HERE, [NewMessage(b"alive")])
    (message,) = await nodes.one.receive(HERE, Receive(1, 600))
    assert message.payload == b"alive"
    nodes.server = await serve_backend(nodes.two, secret=SECRET, host="127.0.0.1", port=nodes.server.address.port)
    await nodes.arrived(1, 5)


async def test_a_full_destination_is_asked_again(nodes: Two) -> None:
    nodes.way.refuse_with = StorageFull("there is no room")
    await nodes.send_dead(5)
    while nodes.way.asked < 3:
        await asyncio.sleep(0.005)
    nodes.way.refuse_with = None
    await nodes.arrived(0, 5)


async def test_messages_whose_destination_is_deleted_come_back(nodes: Two) -> None:
    nodes.way.refuse_with = Unavailable("away")
    await nodes.send_dead(5)
    while nodes.way.asked < 1:
        await asyncio.sleep(0.005)
    del nodes.machine.resolver.known[2]

    async def back() -> bool:
        return (await nodes.one.counters(HERE)).visible == 5

    await until(back)


async def test_a_message_leaves_only_when_it_is_durable_that_it_does(
    nodes: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    await nodes.one.send(HERE, [NewMessage(b"a")])
    await nodes.one.receive(HERE, Receive(10, 0))
    disk, held = disk_of(nodes.one), []
    monkeypatch.setattr(disk, "commit", lambda *commit: held.append(commit))
    leaving = asyncio.create_task(nodes.one.receive(HERE, Receive(10, 0, 0, DeadLetter(1, THERE))))
    while not held:
        await asyncio.sleep(0.005)
    # Meanwhile the transfer task has had enough time.
    await nodes.two.configure(nodes.machine.resolver.known[2])
    for _ in range(20):
        await nodes.two.send(THERE, [NewMessage(b"another")])
    assert not nodes.way.asked
    monkeypatch.undo()
    for commit in held:
        disk.commit(*commit)
    await leaving
    await nodes.arrived(0, 21)


# --- a cancelled move task ------------------------------------------------------------------------------


async def start_move(nodes: Two) -> str:
    """Start a move task that cannot deliver its messages."""
    await nodes.one.send(HERE, [NewMessage(f"message {place}".encode()) for place in range(30)])
    task = await nodes.one.start_move(HERE, nodes.machine.resolver.known[2].arn, 100)
    while not nodes.way.asked:
        await asyncio.sleep(0.005)
    return task.task_id


async def ended(nodes: Two, task_id: str) -> int:
    async def so() -> bool:
        return (await nodes.one.list_moves(HERE))[0].status == "CANCELLED"

    await nodes.one.cancel_move(HERE, task_id)
    await until(so)
    return (await nodes.one.list_moves(HERE))[0].moved


async def test_a_cancelled_task_keeps_what_has_not_arrived(nodes: Two) -> None:
    nodes.way.refuse_with = StorageFull("there is no room")
    task_id = await start_move(nodes)
    nodes.way.refuse_with = None
    real = nodes.way.take
    nodes.way.take = lambda *_: nodes.way._lossy(_full())  # type: ignore[method-assign]
    assert await ended(nodes, task_id) == 0
    assert (await nodes.one.counters(HERE)).visible == 30, "they can be received again"
    nodes.way.take = real  # type: ignore[method-assign]
    await nodes.one.start_move(HERE, nodes.machine.resolver.known[2].arn, 0)
    await nodes.arrived(0, 30)


async def _full() -> list[int]:
    raise StorageFull("there is no room")


@pytest.mark.parametrize("redrive", [False, True])
async def test_messages_of_a_group_arrive_in_order_though_they_do_not_go_at_once(
    nodes: Two, redrive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that does not fit into a batch holds back those behind it, however short they are."""
    monkeypatch.setattr(transfers, "CARRY_BYTES", 4096)
    resolver = nodes.machine.resolver
    resolver.known[2] = msgspec.structs.replace(resolver.known[2], fifo=True)
    await nodes.two.configure(resolver.known[2])
    fifo = Target(next(number for number in range(3, 99) if shard_of(number) != shard_of(2)), 50)
    arn = "arn:aws:sqs:us-east-1:000000000000:queue.fifo"
    await nodes.one.configure(PartitionSettings(fifo.partition, 50, 1, arn, b"k" * 16, fifo=True))
    sizes = [1000] * 5 + [10] * 5 + [1000] * 3 + [10] * 7
    for place, size in enumerate(sizes):
        await nodes.one.send(fifo, [NewMessage(b"%02d" % place + bytes(size), group="g")])
    if redrive:
        await nodes.one.start_move(fifo, resolver.known[2].arn, 0)
    else:
        for _ in range(2):
            claims = await nodes.one.receive(fifo, Receive(10, 0, 0))
            assert len(claims) == 10
            await nodes.one.receive(fifo, Receive(10, 0, 0, DeadLetter(1, THERE)))

    arrived: list[int] = []
    while len(arrived) < len(sizes):
        got = await nodes.two.receive(THERE, Receive(10, 30, 20))
        assert got
        arrived += [int(one.payload[:2]) for one in got]
        await nodes.two.delete(THERE, [one.handle for one in got])
    assert arrived == list(range(len(sizes)))


async def test_a_cancelled_task_of_a_fifo_queue_lets_go_on_what_has_left(nodes: Two) -> None:
    """Later messages of a group may have been received since: returned to the queue, they would be out of order."""
    fifo = Target(next(number for number in range(3, 99) if shard_of(number) != shard_of(2)), 50)
    arn = "arn:aws:sqs:us-east-1:000000000000:queue.fifo"
    await nodes.one.configure(PartitionSettings(fifo.partition, 50, 1, arn, b"k" * 16, fifo=True))
    await nodes.one.send(fifo, [NewMessage(b"a", group="g"), NewMessage(b"b", group="g")])
    nodes.way.refuse_with = StorageFull("there is no room")
    task = await nodes.one.start_move(fifo, nodes.machine.resolver.known[2].arn, 0)
    while not nodes.way.asked:
        await asyncio.sleep(0.005)
    await nodes.one.cancel_move(fifo, task.task_id)
    nodes.way.refuse_with = None

    async def ended() -> bool:
        return (await nodes.one.list_moves(fifo))[0].status == "CANCELLED"

    await until(ended)
    assert (await nodes.two.counters(THERE)).visible == 2
    assert (await nodes.one.counters(fifo)).visible == 0


async def test_a_cancelled_task_gives_up_what_has_arrived(nodes: Two) -> None:
    nodes.way.lose_answers = 5
    task_id = await start_move(nodes)
    moved = await ended(nodes, task_id)
    assert 0 < moved < 30
    assert await nodes.stored() == (30 - moved, moved)


@pytest.mark.parametrize("who", ["one", "two"])
async def test_a_message_that_was_called_back_does_not_arrive_late(nodes: Two, who: str) -> None:
    """The call that rejects it takes effect, its answer is lost, and the earlier request arrives last."""
    nodes.way.refuse_with = Unavailable("away")
    task_id = await start_move(nodes)
    incarnation = nodes.one._incarnation
    assert incarnation is not None
    pending = list(incarnation.partitions[1].fold.outgoing[2].pending)
    late = [Transfer(number, b"late", 1) for number in pending]
    nodes.way.refuse_with = None
    nodes.way.lose_answers = 2
    real = nodes.way.take
    nodes.way.take = lambda *_: nodes.way._lossy(_full())  # type: ignore[method-assign]
    await ended(nodes, task_id)
    await nodes.restart(who)
    assert await nodes.two.take(THERE, 1, 1, late) == pending
    await nodes.two._checkpointer.checkpoint()  # type: ignore[union-attr]
    await nodes.restart("two")
    assert await nodes.two.take(THERE, 1, 1, late) == pending, "a checkpoint remembers it, too"
    assert await nodes.two.never(THERE, 1, 1, pending) == pending
    assert await nodes.stored() == (30, 0)
    nodes.way.take = real  # type: ignore[method-assign]


async def test_a_cancelled_task_calls_back_within_one_node_too(nodes: Two) -> None:
    nodes.machine.settings(3)
    other = next(number for number in range(3, 99) if shard_of(number) != shard_of(2))
    nodes.machine.settings(other)
    incarnation = nodes.one._incarnation
    assert incarnation is not None
    await nodes.one.configure(nodes.machine.resolver.known[other])
    real = incarnation.transfers._hand_over

    def full(*_: Any) -> None:
        raise StorageFull("there is no room")

    incarnation.transfers._hand_over = full  # type: ignore[method-assign,assignment]
    await nodes.one.send(HERE, [NewMessage(b"a"), NewMessage(b"b")])
    task = await nodes.one.start_move(HERE, nodes.machine.resolver.known[other].arn, 0)
    while not incarnation.partitions[1].fold.outgoing:
        await asyncio.sleep(0.005)
    assert await ended(nodes, task.task_id) == 0
    assert (await nodes.one.counters(HERE)).visible == 2
    incarnation.transfers._hand_over = real  # type: ignore[method-assign]
    await nodes.one.start_move(HERE, nodes.machine.resolver.known[other].arn, 0)

    async def there() -> bool:
        return (await nodes.one.counters(Target(other, other))).visible == 2

    await until(there)
