"""Transfers between partitions of different nodes: a message is in exactly one of them, despite faults."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backend import api
from backend.api import shard_of
from backend.node import Node
from backend.rpc.client import RemoteBackend
from backend.rpc.server import BackendServer, serve_backend
from backend.serving import transfers
from tests.backend.calls import count_messages, delete, receive, send, until_move, until_visible
from tests.backend.nodes import NodeMachine, disk_of
from tests.backend.wired import SECRET
from tests.servers.waiting import until

HERE, THERE = api.Target(1, 1), api.Target(2, 2)


class _FaultyConnection(RemoteBackend):
    """Connection to the other node, with faults made by the test."""

    lose_answers = 0
    """Number of transfers whose answers will be lost: the call has taken effect, and the caller does not know."""
    refuse_with: Exception | None = None
    full = False
    """The destination accepts no transfers."""
    asked: int = 0

    async def _lossy(self, answer: Any) -> Any:
        self.asked += 1
        if self.refuse_with is not None:
            answer.close()
            raise self.refuse_with
        found = await answer
        if self.lose_answers:
            self.lose_answers -= 1
            raise api.Unavailable("the answer got lost")
        return found

    def call(self, command: api.Command[api.Answer]) -> Coroutine[Any, Any, api.Answer]:
        full = self.full and isinstance(command, api.AcceptTransfers)
        answer: Coroutine[Any, Any, Any] = _full() if full else super().call(command)
        return self._lossy(answer) if isinstance(command, api.AcceptTransfers | api.RejectTransfers) else answer


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
        other_shard = shard_of(2)
        two = await self.machine.start("two", [other_shard])
        self.server = await serve_backend(two, secret=SECRET, host="127.0.0.1")
        self.way = await _FaultyConnection.connect(self.server.address, secret=SECRET)  # type: ignore[assignment]
        await self.machine.start("one", [shard for shard in range(api.SHARDS) if shard != other_shard], self.way)
        await self.one.call(api.Configure(self.machine.resolver.known[1]))

    async def restart(self, name: str) -> None:
        """Restart the first node, or the second one with its server."""
        await self.machine.stop(name)
        if name == "one":
            await self.machine.start("one", peers=self.way)
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
        await send(self.one, HERE, *(f"message {place}".encode() for place in range(number)))
        while (await count_messages(self.one, HERE)).visible:
            await receive(self.one, HERE, 10, 0, 0, api.DeadLetter(1, THERE))

    async def stored(self) -> tuple[int, int]:
        """Return the number of messages in both; those being transferred count for the source."""
        here, there = await count_messages(self.one, HERE), await count_messages(self.two, THERE)
        return here.visible + here.in_flight, there.visible + there.in_flight

    async def called(self, times: int = 1) -> None:
        """Wait until the other node was called so often."""
        await until(lambda: self.way.asked >= times)

    async def arrived(self, here: int, there: int) -> None:
        async def so() -> bool:
            try:
                return await self.stored() == (here, there)
            except Exception:
                return False

        await until(so)


FIFO = api.Target(next(number for number in range(3, 99) if shard_of(number) != shard_of(2)), 50)
"""A FIFO queue of the first node."""


async def add_fifo_queue(nodes: Two) -> None:
    arn = "arn:aws:sqs:us-east-1:000000000000:queue.fifo"
    await nodes.one.call(
        api.Configure(api.PartitionSettings(FIFO.partition, FIFO.queue_id, 1, arn, b"k" * 16, fifo=True))
    )


@pytest.fixture
async def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Two]:
    monkeypatch.setattr(transfers, "RETRY_SECONDS", 0.01)
    two = Two(NodeMachine(tmp_path))
    await two.start()
    yield two
    await two.close()


async def test_a_dead_letter_arrives_at_another_node_as_it_was(nodes: Two) -> None:
    (stored,) = await send(nodes.one, HERE, b"poison")
    (before,) = await receive(nodes.one, HERE, 1, 0)
    await receive(nodes.one, HERE, 1, 0, 0, api.DeadLetter(1, THERE))
    await nodes.arrived(0, 1)
    (letter,) = await receive(nodes.two, THERE, 1, 30, 20)
    assert (letter.message_id, letter.payload, letter.sent_ms) == (stored.message_id, b"poison", before.sent_ms)
    assert letter.origin == nodes.machine.resolver.known[1].arn
    assert (letter.receives, letter.first_received_ms) == (2, before.first_received_ms)


async def test_the_answer_may_get_lost_as_often_as_it_likes(nodes: Two) -> None:
    nodes.way.lose_answers = 3
    await nodes.send_dead(150)
    await nodes.arrived(0, 150)
    assert nodes.way.asked >= 5
    bodies = set()
    while messages := await receive(nodes.two, THERE, 10, 600):
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
    two = await nodes.machine.start("two", range(api.SHARDS))

    async def settled() -> bool:
        here, there = await count_messages(two, HERE), await count_messages(two, THERE)
        return (here.visible + here.in_flight, there.visible) == (0, 20)

    await until(settled)


async def test_a_node_that_cannot_be_reached_keeps_nothing_but_its_transfers_waiting(nodes: Two) -> None:
    await nodes.server.close()
    await nodes.send_dead(5)
    await send(nodes.one, HERE, b"alive")
    (message,) = await receive(nodes.one, HERE, 1, 600)
    assert message.payload == b"alive"
    nodes.server = await serve_backend(nodes.two, secret=SECRET, host="127.0.0.1", port=nodes.server.address.port)
    await nodes.arrived(1, 5)


async def test_a_full_destination_is_retried(nodes: Two) -> None:
    nodes.way.refuse_with = api.StorageFull("there is no room")
    await nodes.send_dead(5)
    await nodes.called(3)
    nodes.way.refuse_with = None
    await nodes.arrived(0, 5)


async def test_messages_whose_destination_is_deleted_return(nodes: Two) -> None:
    nodes.way.refuse_with = api.Unavailable("away")
    await nodes.send_dead(5)
    await nodes.called()
    del nodes.machine.resolver.known[2]

    await until_visible(nodes.one, HERE, 5)


async def test_a_message_leaves_only_durably(nodes: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    await send(nodes.one, HERE, b"a")
    await receive(nodes.one, HERE, 10, 0)
    disk, held = disk_of(nodes.one), []
    monkeypatch.setattr(disk, "commit", lambda *commit: held.append(commit))
    leaving = asyncio.create_task(receive(nodes.one, HERE, 10, 0, 0, api.DeadLetter(1, THERE)))
    await until(lambda: held)
    # Meanwhile the transfer task has had enough time.
    await nodes.two.call(api.Configure(nodes.machine.resolver.known[2]))
    for _ in range(20):
        await send(nodes.two, THERE, b"another")
    assert not nodes.way.asked
    monkeypatch.undo()
    for commit in held:
        disk.commit(*commit)
    await leaving
    await nodes.arrived(0, 21)


# --- a cancelled move task ------------------------------------------------------------------------------


async def start_move(nodes: Two) -> str:
    """Start a move task that cannot deliver its messages."""
    await send(nodes.one, HERE, *(f"message {place}".encode() for place in range(30)))
    task = await nodes.one.call(api.StartMove(HERE, nodes.machine.resolver.known[2].arn, 100))
    await nodes.called()
    return task.task_id


async def ended(nodes: Two, task_id: str, target: api.Target = HERE) -> int:
    """Cancel a task, let calls pass again, wait for its end, and return how many messages it has moved."""
    await nodes.one.call(api.CancelMove(target, task_id))
    nodes.way.refuse_with = None
    return await until_move(nodes.one, target, "CANCELLED")


async def test_a_cancelled_task_keeps_what_has_not_arrived(nodes: Two) -> None:
    nodes.way.refuse_with = api.StorageFull("there is no room")
    task_id = await start_move(nodes)
    nodes.way.refuse_with = None
    nodes.way.full = True
    assert await ended(nodes, task_id) == 0
    assert (await count_messages(nodes.one, HERE)).visible == 30, "they can be received again"
    nodes.way.full = False
    await nodes.one.call(api.StartMove(HERE, nodes.machine.resolver.known[2].arn, 0))
    await nodes.arrived(0, 30)


async def _full() -> list[int]:
    raise api.StorageFull("there is no room")


@pytest.mark.parametrize("redrive", [False, True])
async def test_messages_of_a_group_arrive_in_order(nodes: Two, redrive: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that does not fit into a batch holds back those behind it, however short they are."""
    monkeypatch.setattr(transfers, "CARRY_BYTES", 4096)
    resolver = nodes.machine.resolver
    resolver.known[2] = msgspec.structs.replace(resolver.known[2], fifo=True)
    await nodes.two.call(api.Configure(resolver.known[2]))
    await add_fifo_queue(nodes)
    sizes = [1000] * 5 + [10] * 5 + [1000] * 3 + [10] * 7
    for place, size in enumerate(sizes):
        await nodes.one.call(api.Send(FIFO, [api.NewMessage(b"%02d" % place + bytes(size), group="g")]))
    if redrive:
        await nodes.one.call(api.StartMove(FIFO, resolver.known[2].arn, 0))
    else:
        for _ in range(2):
            claims = await receive(nodes.one, FIFO, 10, 0, 0)
            assert len(claims) == 10
            await receive(nodes.one, FIFO, 10, 0, 0, api.DeadLetter(1, THERE))

    arrived: list[int] = []
    while len(arrived) < len(sizes):
        got = await receive(nodes.two, THERE, 10, 30, 20)
        assert got
        arrived += [int(one.payload[:2]) for one in got]
        await delete(nodes.two, THERE, *got)
    assert arrived == list(range(len(sizes)))


async def test_a_cancelled_task_of_a_fifo_queue_lets_go_on_what_has_left(nodes: Two) -> None:
    """Later messages of a group may have been received since: returned to the queue, they would be out of order."""
    await add_fifo_queue(nodes)
    await nodes.one.call(api.Send(FIFO, [api.NewMessage(b"a", group="g"), api.NewMessage(b"b", group="g")]))
    nodes.way.refuse_with = api.StorageFull("there is no room")
    task = await nodes.one.call(api.StartMove(FIFO, nodes.machine.resolver.known[2].arn, 0))
    await nodes.called()
    await ended(nodes, task.task_id, FIFO)
    assert (await count_messages(nodes.two, THERE)).visible == 2
    assert (await count_messages(nodes.one, FIFO)).visible == 0


async def test_a_cancelled_task_gives_up_what_has_arrived(nodes: Two) -> None:
    nodes.way.lose_answers = 5
    task_id = await start_move(nodes)
    moved = await ended(nodes, task_id)
    assert 0 < moved < 30
    assert await nodes.stored() == (30 - moved, moved)


@pytest.mark.parametrize("who", ["one", "two"])
async def test_a_message_that_was_called_back_does_not_arrive_late(nodes: Two, who: str) -> None:
    """The call that rejects it takes effect, its answer is lost, and the earlier request arrives last."""
    nodes.way.refuse_with = api.Unavailable("away")
    task_id = await start_move(nodes)
    incarnation = nodes.one._incarnation
    assert incarnation is not None
    pending = list(incarnation.partitions[1].fold.outgoing[2].pending)
    late = [api.Transfer(number, b"late", 1) for number in pending]
    nodes.way.refuse_with = None
    nodes.way.lose_answers = 2
    nodes.way.full = True
    await ended(nodes, task_id)
    await nodes.restart(who)
    assert await nodes.two.call(api.AcceptTransfers(THERE, 1, 1, late)) == pending
    await nodes.two._checkpointer.checkpoint()  # type: ignore[union-attr]
    await nodes.restart("two")
    assert await nodes.two.call(api.AcceptTransfers(THERE, 1, 1, late)) == pending, "a checkpoint remembers it, too"
    assert await nodes.two.call(api.RejectTransfers(THERE, 1, 1, pending)) == pending
    assert await nodes.stored() == (30, 0)
    nodes.way.full = False


async def test_a_cancelled_task_calls_back_within_one_node_too(nodes: Two) -> None:
    nodes.machine.settings(3)
    other = next(number for number in range(3, 99) if shard_of(number) != shard_of(2))
    nodes.machine.settings(other)
    incarnation = nodes.one._incarnation
    assert incarnation is not None
    await nodes.one.call(api.Configure(nodes.machine.resolver.known[other]))
    real = incarnation.transfers._hand_over

    def full(*_: Any) -> None:
        raise api.StorageFull("there is no room")

    incarnation.transfers._hand_over = full  # type: ignore[method-assign,assignment]
    await send(nodes.one, HERE, b"a", b"b")
    task = await nodes.one.call(api.StartMove(HERE, nodes.machine.resolver.known[other].arn, 0))
    await until(lambda: incarnation.partitions[1].fold.outgoing)
    assert await ended(nodes, task.task_id) == 0
    assert (await count_messages(nodes.one, HERE)).visible == 2
    incarnation.transfers._hand_over = real  # type: ignore[method-assign]
    await nodes.one.call(api.StartMove(HERE, nodes.machine.resolver.known[other].arn, 0))
    await until_visible(nodes.one, api.Target(other, other), 2)
