"""Queues that are split, drained and moved: no message is lost, and no retried send is stored twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest

from backend import api
from backend.api import shard_of
from backend.cluster.repartition import Splits
from backend.engine.token_slots import is_slot_of_token, slot_of_name, slot_of_token
from backend.node import Node
from backend.partition_settings import settings_of_partition
from backend.rpc.client import RemoteBackend
from backend.rpc.server import BackendServer, serve_backend
from backend.serving import token_import
from holdfast.settings import Settings
from metadata_service.clusters.partition_map import NotPossible, changing, open_ones, received_from, split
from metadata_service.models import SERIAL_BITS, NewQueue, Partition, Queue
from metadata_service.store import ConditionFailed
from tests.backend.calls import count_messages, receive, send, until_equal, until_visible
from tests.backend.nodes import NodeMachine, incarnation_of, waiters
from tests.backend.wired import SECRET
from tests.closing import closing
from tests.servers.waiting import until

ACCOUNT = "000000000000"
NOW_MS = 1_700_000_000_000


class _Maps:
    """Settings of partitions, as the metadata have their queues now."""

    def __init__(self, machine: NodeMachine) -> None:
        self.store = machine.store
        self.routed: dict[str, api.Target] = {}
        """Targets of messages for other queues, by ARN."""

    async def settings(self, target: api.Target) -> api.PartitionSettings | None:
        queue = await self.store.queues.get_queue_by_id(target.queue_id)
        return None if queue is None else settings_of(queue, target.partition)

    async def target(self, arn: str, group: str | None = None) -> api.Target | None:
        return self.routed.get(arn)


def settings_of(queue: Queue, partition: int) -> api.PartitionSettings:
    return settings_of_partition(queue, partition, Settings())


class Everywhere:
    """Backend that routes each call to the partition's node."""

    def __init__(self, world: _World) -> None:
        self._world = world

    def call(self, command: api.Command[api.Answer]) -> Coroutine[Any, Any, api.Answer]:
        return self._world.node(command.partition).call(command)


class _World:
    """Two nodes over one store; each owns the partitions of its shards."""

    def __init__(self, folder: Path) -> None:
        self.machine = NodeMachine(folder)
        self.maps = _Maps(self.machine)
        self.machine.resolver = self.maps  # type: ignore[assignment]
        self.store = self.machine.store
        self.way: RemoteBackend
        self.server: BackendServer
        self.nodes = Everywhere(self)
        self.splits = Splits(self.store.queues, self.nodes, self.maps, lambda: NOW_MS)
        self.queue: Queue

    async def start(self, **attributes: str) -> None:
        other_shards = range(0, api.SHARDS, 2)
        two = await self.machine.start("two", other_shards)
        self.server = await serve_backend(two, secret=SECRET, host="127.0.0.1")
        self.way = await RemoteBackend.connect(self.server.address, secret=SECRET)
        one = await self.machine.start("one", range(1, api.SHARDS, 2), self.way)
        incarnation_of(two).peers.remote = two._peers = one
        self.queue = await self.store.queues.create_queue(
            NewQueue(
                ACCOUNT,
                "orders",
                attributes,
                {},
                now_ms=NOW_MS,
                hold_seconds=0,
                clusters=(0,) * (2 if attributes else 1),
            )
        )

    async def restart(self) -> None:
        await self.server.close()
        await self.machine.stop()
        two = await self.machine.start("two")
        port = self.server.address.port
        self.server = await serve_backend(two, secret=SECRET, host="127.0.0.1", port=port)
        one = await self.machine.start("one", peers=self.way)
        incarnation_of(two).peers.remote = two._peers = one
        await self.way.ready(10)

    async def close(self) -> None:
        await self.machine.close()
        await self.way.close()
        await self.server.close()

    def node(self, partition: int) -> Node:
        return self.machine.nodes["two" if shard_of(partition) % 2 == 0 else "one"]

    # --- as a frontend does it ---

    async def fresh(self) -> Queue:
        queue = await self.store.queues.get_queue_by_id(self.queue.queue_id)
        assert queue is not None
        return queue

    async def at(
        self, pick: Callable[[Queue], Partition], make: Callable[[api.Target], api.Command[api.Answer]], *, known: Queue
    ) -> api.Answer:
        """Call the partition that ``pick`` finds in the known map, or in a newer one."""
        for _ in range(20):
            one = pick(known)
            command = make(api.Target(one.id, known.queue_id, known.version))
            try:
                return await self.nodes.call(command)
            except (api.PartitionUnknown, api.SettingsStale, api.MapStale, api.PartitionGone) as error:
                version, known = known.version, await self.fresh()
                if (
                    isinstance(command, api.Receive)
                    and isinstance(error, api.PartitionGone)
                    and known.version == version
                ):
                    return cast(api.Answer, [])  # it has retired, and will soon leave the map
                await self.node(one.id).call(api.Configure(settings_of(known, one.id)))
        raise AssertionError("the map does not come to rest")

    async def send(self, token: int, known: Queue | None = None, group: str | None = None) -> api.SendResult:
        """Send the message with this number as its body and its token."""
        message = api.NewMessage(b"%d" % token, group=group)
        key = token_of(token)
        message.retry = key + b"d" * 16
        if group is not None:
            message.token = key

        return await self.send_to(by_token(key) if group is None else by_group(group), message, known)

    async def send_to(
        self, pick: Callable[[Queue], Partition], message: api.NewMessage, known: Queue | None = None
    ) -> api.SendResult:
        stored = await self.at(pick, lambda target: api.Send(target, [message]), known=known or await self.fresh())
        return stored[0]

    async def _receive_from(self, one: Partition, known: Queue) -> list[api.ReceivedMessage]:
        got = await self.at(lambda _: one, lambda target: api.Receive(target, api.ReceiveOptions(10, 30)), known=known)
        handles = [each.handle for each in got]
        await self.at(lambda _: one, lambda target: api.Delete(target, handles), known=known)
        return got

    async def receive_all(self) -> list[api.ReceivedMessage]:
        received: list[api.ReceivedMessage] = []
        while True:
            queue, found = await self.fresh(), 0
            for one in received_from(queue):
                got = await self._receive_from(one, queue)
                received += got
                found += len(got)
            if not found:
                return received

    async def received_dead(self) -> None:
        while [one.payload for one in await self.receive_all()] != [b"dead"]:
            await asyncio.sleep(0.005)

    async def settled(self) -> None:
        await until_equal(lambda: self.still_changes(linger_seconds=0), False)

    async def still_changes(self, linger_seconds: int) -> bool:
        await self.splits.finish(self.queue.queue_id, linger_seconds=linger_seconds)
        return bool(changing((await self.fresh()).partitions))


def by_token(token: bytes) -> Callable[[Queue], Partition]:
    def pick(queue: Queue) -> Partition:
        slots = {one.slot: one for one in open_ones(queue.partitions)}
        return slots[slot_of_token(token, list(slots))]

    return pick


def by_group(group: str) -> Callable[[Queue], Partition]:
    def pick(queue: Queue) -> Partition:
        slots = {one.slot: one for one in open_ones(queue.partitions)}
        return slots[slot_of_name(group, list(slots))]

    return pick


def token_of(number: int) -> bytes:
    """Make a token; its first 15 bytes are random, as those of calls are."""
    return (number * 0x9E3779B97F4A7C15F39CC0605CEDC835 & (1 << 120) - 1).to_bytes(15, "little") + b"\0"


@pytest.fixture
async def not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[_World]:
    monkeypatch.setattr(token_import, "RETRY_SECONDS", 0.01)
    world = _World(tmp_path)
    yield world
    await world.close()


@pytest.fixture
async def world(not_started: _World) -> _World:
    await not_started.start()
    return not_started


@pytest.fixture
async def fifo(not_started: _World) -> _World:
    await not_started.start(FifoQueue="true", DeduplicationScope="messageGroup")
    return not_started


async def test_a_send_that_is_repeated_after_a_split_is_answered_as_before(world: _World) -> None:
    first = [await world.send(number) for number in range(60)]
    before = await world.fresh()
    await world.splits.split(before, [0, 0, 0])
    again = [await world.send(number) for number in range(30)]
    by_old_map = [await world.send(number, known=before) for number in range(30, 60)]
    assert [stored.message_id for stored in again + by_old_map] == [stored.message_id for stored in first]
    await world.settled()
    assert not changing((await world.fresh()).partitions)
    more = [await world.send(number) for number in range(60, 160)]
    late = [await world.send(number, known=before) for number in range(60, 160)]
    assert [stored.message_id for stored in late] == [stored.message_id for stored in more], "an old map is refused"
    ids = [one.message_id for one in await world.receive_all()]
    assert sorted(ids) == sorted(stored.message_id for stored in first + more)
    counted = Counter(shard_of(one.id) % 2 for one in (await world.fresh()).partitions)
    assert len(counted) == 2, "some partitions are the other node's, or this tests less than it says"


async def test_a_send_that_is_repeated_after_a_drain_is_answered_as_before(world: _World) -> None:
    await world.splits.split(await world.fresh(), [0, 0, 0])
    await world.settled()
    first = [await world.send(number) for number in range(80)]
    before = await world.fresh()
    old = before.partitions[0].id
    await world.splits.drain(before, [old, before.partitions[2].id])
    again = [await world.send(number) for number in range(40)]
    by_old_map = [await world.send(number, known=before) for number in range(40, 80)]
    assert [stored.message_id for stored in again + by_old_map] == [stored.message_id for stored in first]
    assert not await world.splits.finish(before.queue_id, linger_seconds=0), "they are not empty"
    ids = [one.message_id for one in await world.receive_all()]
    assert sorted(ids) == sorted(stored.message_id for stored in first)
    assert not await world.splits.finish(before.queue_id, linger_seconds=3600), "they stay for the handles"
    assert await world.splits.finish(before.queue_id, linger_seconds=0)
    now = await world.fresh()
    assert [one.id for one in now.partitions] == [before.partitions[1].id, before.partitions[3].id]
    # Even now: transferred tokens are transferred again.
    await world.splits.drain(now, [now.partitions[0].id])
    assert [(await world.send(number)).message_id for number in range(80)] == [one.message_id for one in first]
    await until(lambda: finished(world))
    assert await world.receive_all() == [], "nothing was stored twice"
    with pytest.raises((api.PartitionGone, api.PartitionUnknown)):
        await count_messages(world.node(old), api.Target(old, now.queue_id))


async def finished(world: _World) -> bool:
    return await world.splits.finish(world.queue.queue_id, linger_seconds=0)


async def test_a_token_with_another_call_after_a_split_is_refused(world: _World) -> None:
    for number in range(20):
        await world.send(number)
    await world.splits.split(await world.fresh(), [0] * 3)
    await world.settled()
    slots = range(4)
    number = next(n for n in range(20) if slot_of_token(token_of(n), slots) != 0)
    other = api.NewMessage(b"other", retry=token_of(number) + b"x" * 16)
    with pytest.raises(api.TokenReused):
        await world.send_to(by_token(token_of(number)), other)


async def used_and_empty(world: _World) -> tuple[Queue, Node, api.Target]:
    """Send and receive a message; return the queue, the node of its partition, and the partition."""
    await world.send(1)
    await world.receive_all()
    queue = await world.fresh()
    target = api.Target(queue.partitions[0].id, queue.queue_id, queue.version)
    return queue, world.node(target.partition), target


async def test_waiting_callers_with_an_old_map_are_notified(world: _World) -> None:
    queue, node, target = await used_and_empty(world)
    waiting = asyncio.ensure_future(receive(node, target, 1, 30, 20))
    watching = asyncio.ensure_future(node.call(api.Watch(target, 20)))
    await waiters(node, target.partition, 2)
    await world.splits.split(queue, [0])
    for task in (waiting, watching):
        with pytest.raises(api.MapStale):
            await task


async def test_a_watch_claims_nothing_and_takes_no_turn(world: _World) -> None:
    _, node, target = await used_and_empty(world)
    assert not await node.call(api.Watch(target, 0))
    assert not await node.call(api.Watch(target, 0.01))
    watching = [asyncio.ensure_future(node.call(api.Watch(target, 20))) for _ in range(2)]
    await waiters(node, target.partition, 2)
    waiting = asyncio.ensure_future(receive(node, target, 1, 30, 20))
    await waiters(node, target.partition, 3)
    await world.send(2)
    assert await asyncio.gather(*watching) == [True, True]
    assert len(await waiting) == 1
    assert not await node.call(api.Watch(target, 0))


async def test_sends_with_tokens_wait_for_the_handover(world: _World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_import, "WAIT_SECONDS", 0.05)
    first = [await world.send(number) for number in range(20)]
    queue = await world.fresh()
    old = queue.partitions[0].id
    holder = world.node(old)
    held = asyncio.Event()
    handlers = cast(dict[Any, Any], incarnation_of(holder).commands._handlers)
    hand_over = incarnation_of(holder).commands.hand_over

    async def later(command: api.HandOverTokens) -> api.Handover:
        await held.wait()
        return await hand_over(command)

    monkeypatch.setitem(handlers, api.HandOverTokens, later)
    after = await world.splits.split(queue, [0])
    new = after.partitions[1]
    number = next(n for n in range(20) if slot_of_token(token_of(n), [0, 1]) == 1)
    with pytest.raises(api.PartitionOpening):
        await world.send(number)
    target = api.Target(new.id, after.queue_id, after.version)
    assert await send(world.node(new.id), target, b"no token")
    assert not await world.splits.finish(after.queue_id)
    monkeypatch.setattr(token_import, "WAIT_SECONDS", 20)
    held.set()
    assert (await world.send(number)).message_id == first[number].message_id


@pytest.mark.parametrize("act", ["split", "drain", "move"])
async def test_a_crash_between_any_two_steps_loses_nothing(world: _World, act: str) -> None:
    """Interrupt the operation, and its completion, after each step in turn, while clients send, retry and receive.

    The nodes restart as well.  Then the operation is completed.
    """
    await world.splits.split(await world.fresh(), [0, 0])
    await world.settled()
    sent: dict[int, str] = {}
    got: list[str] = []
    number = 0
    for steps in range(40):
        before = await world.fresh()
        for _ in range(6):
            number += 1
            sent[number] = (await world.send(number)).message_id
        cut = _Cut(world, steps)
        try:
            if act == "split" and len(open_ones(before.partitions)) < 4:
                await cut.splits.split(before, [0])
            elif act == "move":
                await cut.splits.move(before, {open_ones(before.partitions)[0].id: 0})
            elif len(open_ones(before.partitions)) > 1:
                await cut.splits.drain(before, [open_ones(before.partitions)[0].id])
            else:
                await cut.splits.split(before, [0, 0])
            for _ in range(3):
                await cut.splits.finish(before.queue_id, linger_seconds=0)
                got += [one.message_id for one in await world.receive_all()]
        except api.Unavailable:
            pass
        if steps % 5 == 4:
            await world.restart()
        for retried in range(number - 5, number + 1):
            known = before if retried % 2 else await world.fresh()
            assert (await world.send(retried, known=known)).message_id == sent[retried], (steps, retried)
        got += [one.message_id for one in await world.receive_all()]
        await until(lambda: finished(world))
        if not cut.happened:
            break
    else:
        raise AssertionError("it was cut off each time: it was never seen to end")
    assert steps >= 6, "an act has more steps than that"
    assert sorted(got) == sorted(sent.values())


class _Cut:
    """Operations whose calls of store and nodes fail after a number of them, before or after their effect."""

    def __init__(self, world: _World, calls: int) -> None:
        self.left = calls
        self.happened = False
        self.splits = Splits(
            cast(Any, _Door(self, world.store.queues)), cast(Any, _Door(self, world.nodes)), world.maps, lambda: NOW_MS
        )


class _Door:
    def __init__(self, cut: _Cut, inside: Any) -> None:
        self._cut = cut
        self._inside = inside

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def call(*arguments: Any, **options: Any) -> Any:
            cut = self._cut
            cut.left -= 1
            if cut.left < -1:
                cut.happened = True
                raise api.Unavailable("it has crashed")
            if cut.left == -1 and self._inside is not None and name != "new_partition_ids":
                await getattr(self._inside, name)(*arguments, **options)
                cut.happened = True
                raise api.Unavailable("it has crashed")
            return await getattr(self._inside, name)(*arguments, **options)

        return call


async def test_a_fifo_queue_that_moves_keeps_the_order_of_its_groups(fifo: _World) -> None:
    groups = [f"group {place}" for place in range(6)]
    sent = {group: [] for group in groups}  # type: ignore[var-annotated]
    numbers: dict[str, list[int]] = {group: [] for group in groups}
    number = 0

    async def send_some(count: int) -> None:
        nonlocal number
        for _ in range(count):
            for group in groups:
                number += 1
                stored = await fifo.send(number, group=group)
                sent[group].append(number)
                numbers[group].append(stored.number)

    await send_some(3)
    queue = await fifo.fresh()
    with pytest.raises(NotPossible):
        await fifo.splits.split(queue, [0])
    claimed = await fifo.at(
        lambda known: known.partitions[0], lambda target: api.Receive(target, api.ReceiveOptions(1, 30)), known=queue
    )
    moved = await fifo.splits.move(queue, {one.id: 0 for one in queue.partitions})
    assert (await fifo.send(1, group=groups[0])).message_id == (await fifo.send(1, queue, groups[0])).message_id
    await send_some(2)
    assert [one.id for one in received_from(moved)] == [one.id for one in queue.partitions]
    await fifo.at(lambda _: queue.partitions[0], lambda target: api.Delete(target, [claimed[0].handle]), known=moved)
    received = [*claimed, *await fifo.receive_all()]
    assert len(received) == 18, "the successors deliver nothing yet"
    await until(lambda: finished(fifo))
    assert [one.id for one in (await fifo.fresh()).partitions] == [
        one.id for one in moved.partitions if one.state == "open"
    ]
    await send_some(1)
    received += await fifo.receive_all()
    for group in groups:
        assert [int(one.payload) for one in received if one.group == group] == sent[group]
        assert numbers[group] == sorted(set(numbers[group])), "sequence numbers rise"


async def source_of(world: _World) -> tuple[Node, api.Target]:
    """Create another queue; return its node and its partition."""
    queue = await world.store.queues.create_queue(NewQueue(ACCOUNT, "source", {}, {}, now_ms=NOW_MS, hold_seconds=0))
    here = api.Target(queue.partitions[0].id, queue.queue_id, queue.version)
    node = world.node(here.partition)
    await node.call(api.Configure(settings_of(queue, here.partition)))
    return node, here


async def test_a_queue_moves_to_another_cluster_with_its_tokens(world: _World, tmp_path: Path) -> None:
    """Each cluster has a node for all shards; a shard of the other cluster with the same number is not its own."""
    (tmp_path / "far").mkdir()
    far = NodeMachine(tmp_path / "far")
    far.resolver = world.maps  # type: ignore[assignment]
    node = await far.start("far", range(api.SHARDS), world.nodes, cluster=7)
    near = world.node

    def reached(partition: int) -> Node:
        return node if partition >> SERIAL_BITS == 7 else near(partition)

    world.node = reached  # type: ignore[method-assign]
    for one in world.machine.nodes.values():
        incarnation_of(one).peers.remote = one._peers = world.nodes
    async with closing(far):
        first = [await world.send(number) for number in range(30)]
        queue = await world.fresh()
        await world.splits.move(queue, {queue.partitions[0].id: 7})
        assert [(await world.send(number)).message_id for number in range(30)] == [one.message_id for one in first]
        assert len(await world.receive_all()) == 30
        await until(lambda: finished(world))
        (moved,) = (await world.fresh()).partitions
        assert moved.id >> SERIAL_BITS == 7
        source, here = await source_of(world)
        await send(source, here, b"dead")
        assert len(await receive(source, here, 1, 0)) == 1
        dead = api.DeadLetter(1, api.Target(moved.id, queue.queue_id))
        assert await receive(source, here, 1, 0, 0, dead) == []
        await world.received_dead()
        for one in world.machine.nodes.values():
            with pytest.raises(api.NotOwner):
                await count_messages(one, api.Target(moved.id, queue.queue_id))
        await far.stop()
        node = await far.start("far", (), world.nodes, cluster=7)
        assert (await count_messages(node, api.Target(moved.id, queue.queue_id))).visible == 0, (
            "it is there after a restart"
        )


async def test_dead_letters_under_way_to_a_partition_that_has_retired_return(world: _World) -> None:
    await world.splits.split(await world.fresh(), [0])
    await world.settled()
    queue = await world.fresh()
    gone = queue.partitions[0]
    node, here = await source_of(world)
    await world.splits.drain(queue, [gone.id])
    await until(lambda: finished(world))
    assert gone.id not in [one.id for one in (await world.fresh()).partitions]
    await send(node, here, b"dead")
    assert len(await receive(node, here, 1, 0)) == 1
    old = api.DeadLetter(1, api.Target(gone.id, queue.queue_id, queue.version))
    assert await receive(node, here, 1, 0, 0, old) == []
    await until_visible(node, here, 1)
    there = (await world.fresh()).partitions[0]
    new = api.DeadLetter(1, api.Target(there.id, queue.queue_id, queue.version))
    assert await receive(node, here, 1, 0, 0, new) == []
    await world.received_dead()


async def drained_and_not_noted(world: _World) -> tuple[Queue, Node, api.Target]:
    """Make a drained and retired partition that is still in the map, as the process that would remove it has ended."""
    await world.splits.split(await world.fresh(), [0])
    await world.settled()
    first = (await world.fresh()).partitions[0]
    await world.splits.drain(await world.fresh(), [first.id])
    await until_equal(lambda: world.still_changes(linger_seconds=3600), False)
    queue = await world.fresh()
    assert [one.state for one in queue.partitions] == ["draining", "open"]
    gone = api.Target(first.id, queue.queue_id, queue.version)
    assert await world.nodes.call(api.Retire(gone, 0))
    return queue, world.node(first.id), gone


async def test_a_partition_that_the_map_still_has_is_not_forgotten_by_a_node_that_begins(world: _World) -> None:
    """Otherwise no call for all of the queue's partitions would end.  (Found by the simulator.)"""
    queue, node, gone = await drained_and_not_noted(world)
    await incarnation_of(node).orphan_collector.run([gone.partition])
    with pytest.raises(api.PartitionGone, match="has retired"):  # receives continue at the other partitions
        await world.nodes.call(api.Watch(api.Target(gone.partition, queue.queue_id, queue.version), 0))
    counted = await world.at(lambda _: queue.partitions[0], api.CountMessages, known=queue)
    assert (counted.visible, counted.in_flight) == (0, 0)
    await world.send(1)
    assert len(await world.receive_all()) == 1
    assert await finished(world)
    assert len((await world.fresh()).partitions) == 1


async def test_a_partition_that_was_forgotten_before_the_map_changed_is_removed_from_it(world: _World) -> None:
    """Regression test.  (Found by the simulator.)"""
    _, node, gone = await drained_and_not_noted(world)
    await node.call(api.Forget(gone))
    assert await finished(world)
    assert len((await world.fresh()).partitions) == 1


async def test_a_queue_may_be_changed_while_a_partition_that_has_retired_is_in_its_map(world: _World) -> None:
    """Otherwise no call for all partitions would end, nor the drain.  (Found by the simulator.)"""
    queue, _, gone = await drained_and_not_noted(world)
    await world.store.queues.begin_purge(queue.queue_id, now_ms=NOW_MS, interval_seconds=0)
    await world.send(1)
    assert len(await world.receive_all()) == 1
    with pytest.raises(api.PartitionGone, match="has retired"):
        await world.nodes.call(api.Watch(api.Target(gone.partition, queue.queue_id, (await world.fresh()).version), 0))
    assert await finished(world)
    assert len((await world.fresh()).partitions) == 1


async def test_an_act_from_an_old_version_is_refused(world: _World) -> None:
    before = await world.fresh()
    await world.splits.split(before, [0])
    with pytest.raises(ConditionFailed):
        await world.splits.split(before, [0])
    with pytest.raises(NotPossible):
        await world.splits.split(await world.fresh(), [0])
    assert len((await world.fresh()).partitions) == 2
    await world.store.queues.delete_queue(before.queue_id, now_ms=NOW_MS)
    assert await world.splits.finish(before.queue_id)


async def test_an_unannounced_change_is_known_with_the_first_call(world: _World) -> None:
    first = [await world.send(number) for number in range(20)]
    before = await world.fresh()
    ids = await world.store.queues.new_partition_ids(0, 2)
    await world.store.queues.update_queue(before.queue_id, before.version, now_ms=NOW_MS, partitions=split(before, ids))
    assert [(await world.send(number)).message_id for number in range(20)] == [one.message_id for one in first]


def test_slots_are_used_alike_and_move_little() -> None:
    tokens = [token_of(number) for number in range(6000)]
    few, more = [0, 1, 5], [0, 1, 5, 2]
    placed = [slot_of_token(token, few) for token in tokens]
    assert all(1800 < count < 2200 for count in Counter(placed).values())
    for token, slot in zip(tokens, placed, strict=True):
        assert slot_of_token(token, more) in (slot, 2), "a key moves to a new slot only"
        assert [is_slot_of_token(one, token, few) for one in more] == [one == slot for one in more]
    assert len({slot_of_name(f"group {number}", few) for number in range(100)}) == 3
    assert issubclass(api.PartitionOpening, api.BackendError)
    assert api.PartitionOpening.retryable
