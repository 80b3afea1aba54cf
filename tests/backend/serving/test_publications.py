"""Publications: each delivery is made once, whatever crashes, and no destination delays another."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import msgspec
import pytest

from backend import api, instruments
from backend.api import shard_of
from backend.engine import records
from backend.node import Node
from backend.serving.publications import fanout, immediate
from tests.backend.calls import delete
from tests.backend.nodes import RestartableNode, incarnation_of, restart
from tests.servers.waiting import until
from tests.simulator.test_found import VirtualNode
from tests.simulator.world.fleet import Fleet, partition_of

TOPIC = 100
QUEUES = (1, 2, 3)


def publication(body: bytes, *targets: api.Target, group: str | None = None) -> api.Publication:
    """Publish to these queues, each by a subscription of its number; odd ones are raw."""
    token = body.rjust(16, b".") if group else None
    deliveries = [
        api.Delivery(one, one.partition.to_bytes(16, "big"), bool(one.partition % 2), token) for one in targets
    ]
    return api.Publication(body, None, group, token, deliveries=deliveries)


def quiet(service: VirtualNode) -> bool:
    return not any(part.fanout_task for part in service.incarnation.partitions.values())


def publish(service: VirtualNode, topic: api.Target, *new: api.Publication) -> list[api.SendResult]:
    return service.call(api.Publish(topic, new))


def by_transfers() -> Any:
    """Make no deliveries together with their publications."""
    return mock.patch.object(immediate, "IMMEDIATE_MAX", 0)


@contextmanager
def held_back(node: Node) -> Iterator[None]:
    """Begin no deliveries."""
    with (
        by_transfers(),
        mock.patch.object(fanout.Fanout, "wake"),
        mock.patch.object(incarnation_of(node).commands, "_wake_fanout"),
    ):
        yield


async def wake(node: Node, topic: api.Target) -> None:
    """Begin deliveries that a test has held back."""
    incarnation = incarnation_of(node)
    incarnation.fanout.wake(incarnation.partitions[topic.partition])


def bodies(service: VirtualNode, target: api.Target) -> list[bytes]:
    """Receive everything, once."""
    found: list[bytes] = []
    while received := service.receive(target, 6000):
        found += [one.payload for one in received]
    return found


# --- one node -------------------------------------------------------------------------------------------


def test_a_publication_arrives_at_each_queue_with_its_subscription(service: VirtualNode) -> None:
    topic, targets = service.queue(TOPIC), [service.queue(number) for number in QUEUES]
    other = service.queue(9)
    answers = publish(service, topic, publication(b"news", *targets, group="g"), publication(b"none"))
    assert len({answer.message_id for answer in answers}) == 2
    service.loop.until(lambda: quiet(service), 10)
    ids = {answers[0].message_id}
    for target in targets:
        (peeked,) = service.call(api.PeekMessages(target, 10))
        (message,) = service.receive(target)
        assert (message.payload, message.group) == (b"news", "g")
        for seen in (peeked, message):
            assert (seen.subscription, seen.raw) == (target.partition.to_bytes(16, "big"), bool(target.partition % 2))
            assert seen.publication_number == 0
        assert message.origin is None
        ids.add(message.message_id)
    assert len(ids) == 1 + len(targets)
    assert service.receive(other) == []
    assert service.call(api.CountMessages(topic)) == api.Counters()


def test_a_publication_waits_hidden_and_counted_until_it_is_delivered(service: VirtualNode) -> None:
    topic, target = service.queue(TOPIC), service.queue(1)
    with held_back(service.node):
        publish(service, topic, publication(b"news", target))
    assert service.call(api.CountMessages(topic)) == api.Counters(0, 1, 0, 4)
    assert service.call(api.PeekMessages(topic, 10)) == []
    assert service.receive(topic) == []
    (measures,) = service.call(api.QueueMeasures(topic))
    assert (measures.sent, measures.pending_deliveries, measures.dropped_deliveries) == (1, 1, 0)
    restart(service)
    service.loop.until(lambda: quiet(service), 10)
    assert bodies(service, target) == [b"news"]
    (measures,) = service.call(api.QueueMeasures(topic))
    assert measures.pending_deliveries == 0


def test_a_repeated_publish_is_answered_like_the_first(service: VirtualNode) -> None:
    topic, target = service.queue(TOPIC), service.queue(1)
    new = publication(b"news", target)
    new.retry = b"r" * 32
    first, again = publish(service, topic, new), publish(service, topic, new)
    assert (again[0].message_id, again[0].duplicate) == (first[0].message_id, True)
    service.loop.until(lambda: quiet(service), 10)
    restart(service)
    assert publish(service, topic, new)[0].message_id == first[0].message_id
    service.loop.run_for(1)
    assert bodies(service, target) == [b"news"]


def test_a_full_topic_refuses_publications(service: VirtualNode) -> None:
    topic, target = service.queue(TOPIC, messages_max=2), service.queue(1)
    with held_back(service.node):
        publish(service, topic, publication(b"a", target), publication(b"b", target))
        with pytest.raises(api.QueueFull):
            publish(service, topic, publication(b"c", target))
    service.run(wake(service.node, topic))
    service.loop.until(lambda: quiet(service), 10)
    publish(service, topic, publication(b"c", target))


def test_deliveries_to_a_deleted_queue_are_dropped(service: VirtualNode) -> None:
    topic, gone, kept = service.queue(TOPIC), service.queue(1), service.queue(2)
    del service.store.queues[1]
    service.call(api.Drop(gone))
    with by_transfers():
        publish(service, topic, publication(b"news", gone, kept), publication(b"more", gone))
        service.loop.until(lambda: quiet(service), 10)
    fold = service.incarnation.partitions[TOPIC].fold
    assert not fold.publications
    assert fold.outgoing.keys() == {2}
    assert fold.dropped_deliveries == 0
    assert bodies(service, kept) == [b"news"]


def test_a_publication_past_the_retention_is_dropped(service: VirtualNode, caplog: pytest.LogCaptureFixture) -> None:
    expired = instruments.EXPIRED_DELIVERIES.counts[0]
    topic, kept = service.queue(TOPIC, retention_seconds=60), service.queue(2)
    away = api.Target(1, 1)  # its settings cannot be read
    service.store.settings = mock.AsyncMock(side_effect=api.Unavailable("away"))  # type: ignore[method-assign]
    publish(service, topic, publication(b"news", away, kept))
    service.loop.run_for(70)
    assert bodies(service, kept) == [b"news"]
    (measures,) = service.call(api.QueueMeasures(topic))
    assert (measures.pending_deliveries, measures.dropped_deliveries) == (0, 1)
    assert measures.notifications == api.NotificationCounts(expired=1)
    assert instruments.EXPIRED_DELIVERIES.counts[0] - expired == 1
    (line,) = [text for text in caplog.messages if "given up" in text]
    assert line.startswith(f"deliveries from partition {TOPIC} (")
    assert line.endswith(": 1")
    assert service.call(api.CountMessages(topic)) == api.Counters()
    restart(service)
    (measures,) = service.call(api.QueueMeasures(topic))
    assert (measures.dropped_deliveries, measures.notifications) == (1, None)


def test_a_stuck_destination_delays_no_other(service: VirtualNode) -> None:
    topic, kept = service.queue(TOPIC), service.queue(2)
    known = service.store.settings
    service.store.queues[1] = api.PartitionSettings(1, 1, 1, "queue1", bytes(16))
    blocked = asyncio.Event()

    async def settings(target: api.Target) -> api.PartitionSettings | None:
        if target.partition == 1:
            await blocked.wait()
        return await known(target)

    service.store.settings = settings  # type: ignore[method-assign]
    for number in range(5):
        publish(service, topic, publication(b"%d" % number, api.Target(1, 1), kept))
        service.loop.run_for(0.1)
        assert [one.payload for one in service.receive(kept)] == [b"%d" % number]
    service.loop.call_soon(blocked.set)
    service.loop.until(lambda: quiet(service), 10)
    assert bodies(service, api.Target(1, 1, 1)) == [b"%d" % number for number in range(5)]


def test_a_lookup_of_a_draining_destination_delays_no_other(service: VirtualNode) -> None:
    topic, draining, kept = (service.queue(number, fifo=True) for number in (TOPIC, 1, 2))
    known = service.store.settings
    before = service.store.queues[1]
    assert before is not None
    drained = msgspec.structs.replace(before, version=2, routing=api.Routing(2, 0, (0,), api.PartitionState.DRAINING))
    service.store.queues[1] = drained
    service.call(api.Configure(drained))
    found = asyncio.Event()

    async def settings(target: api.Target) -> api.PartitionSettings | None:
        if target.partition == 1:
            await found.wait()
        return await known(target)

    service.store.settings = settings  # type: ignore[method-assign]
    publish(service, topic, publication(b"news", draining, kept, group="g"))
    service.loop.run_for(5)
    assert bodies(service, kept) == [b"news"]
    del service.store.queues[1]
    service.loop.call_soon(found.set)
    service.loop.until(lambda: quiet(service), 10)


def test_a_full_disk_is_not_read_until_there_is_room(service: VirtualNode) -> None:
    topic, targets = service.queue(TOPIC), [service.queue(number) for number in range(1, 21)]
    with held_back(service.node):
        publish(service, topic, *(publication(b"%d" % number, *targets) for number in range(3)))
    restart(service)  # the cache is empty
    log, reads = service.incarnation.log, Counter[str]()
    real = log.read_many

    async def read_many(positions: Any) -> Any:
        reads["now"] += 1
        return await real(positions)

    with mock.patch.object(log, "read_many", read_many):
        with mock.patch.object(log, "check_space", side_effect=api.StorageFull("the disk is full")):
            service.loop.run_for(20)
            assert service.incarnation.partitions[TOPIC].fold.pending_deliveries == 60
            assert reads["now"] <= 1  # begun by the restart
        service.loop.until(lambda: quiet(service), 10)
    assert [bodies(service, target) for target in targets] == [[b"0", b"1", b"2"]] * 20


def test_a_payload_is_read_once_for_all_queues_of_a_node(service: VirtualNode) -> None:
    topic, targets = service.queue(TOPIC), [service.queue(number) for number in range(1, 21)]
    with held_back(service.node):
        publish(service, topic, *(publication(b"%d" % number, *targets) for number in range(3)))
    restart(service)  # the cache is empty
    log, read = service.incarnation.log, Counter[int]()
    real = log.read_many

    async def read_many(positions: Any) -> Any:
        read.update(positions)
        return await real(positions)

    with mock.patch.object(log, "read_many", read_many):
        service.loop.until(lambda: quiet(service), 10)
    assert sorted(read.values()) == [1, 1, 1]
    assert all(len(bodies(service, target)) == 3 for target in targets)
    assert not service.incarnation.partitions[TOPIC].cached


async def test_publications_survive_compaction_and_checkpoints(cluster: RestartableNode) -> None:
    """They wait for a destination while their segment is compacted and deleted, and are delivered afterwards."""
    topic, queue, filler = await cluster.queue(TOPIC), await cluster.queue(1), await cluster.queue(2)
    with held_back(cluster.node):
        new = [publication(b"%d" % number, queue) for number in range(5)]
        new[0].deliveries.append(api.Delivery(queue, b"s" * 16, True))
        await cluster.node.call(api.Publish(topic, new))
        first = cluster.incarnation.partitions[TOPIC].fold.segments.copy()
        while first.keys() & cluster.incarnation.partitions[TOPIC].fold.segments.keys():
            await cluster.send(filler, *["x" * 200_000] * 4)
            await cluster.take_all(filler)
            await cluster.node.checkpoint()
            log = cluster.incarnation.log
            await cluster.node._checkpointer._compaction.run(log.log_id, log.next_segment, eager=True)  # type: ignore[union-attr]
        await cluster.node.checkpoint()
        await cluster.restart()
    await wake(cluster.node, topic)
    await until(lambda: not cluster.incarnation.partitions[TOPIC].fold.publications)
    received = await cluster.receive(queue)
    assert sorted(one.payload for one in received) == [b"0", b"0", b"1", b"2", b"3", b"4"]
    own = ((1).to_bytes(16, "big"), True)
    assert Counter((one.subscription, one.raw) for one in received) == {own: 5, (b"s" * 16, True): 1}


def test_a_delivered_message_keeps_its_subscription_and_number_through_dead_letters_and_restarts(
    service: VirtualNode,
) -> None:
    topic, queue, dead = service.queue(TOPIC, fifo=True), service.queue(1), service.queue(2)
    (_, answer) = publish(service, topic, publication(b"unseen", group="g"), publication(b"bad", queue, group="g"))
    service.loop.until(lambda: quiet(service), 10)
    restart(service)
    service.receive(queue, 0)
    service.receive(queue, dead_letter=api.DeadLetter(1, dead))
    service.loop.until(service.quiet, 10)
    restart(service)
    (message,) = service.receive(dead)
    assert (message.subscription, message.raw, message.origin) == ((1).to_bytes(16, "big"), True, "queue1")
    assert message.publication_number == answer.number != message.number


async def test_a_delivered_message_keeps_the_number_of_its_publication_through_compaction(
    cluster: RestartableNode,
) -> None:
    topic, queue, filler = await cluster.queue(TOPIC, fifo=True), await cluster.queue(1), await cluster.queue(2)
    new = [publication(b"unseen", group="g"), *(publication(b"%d" % number, queue, group="g") for number in range(3))]
    answers = await cluster.node.call(api.Publish(topic, new))
    await until(lambda: not cluster.incarnation.partitions[TOPIC].fold.publications)
    first = cluster.incarnation.partitions[queue.partition].fold.segments.copy()
    while first.keys() & cluster.incarnation.partitions[queue.partition].fold.segments.keys():
        await cluster.send(filler, *["x" * 200_000] * 4)
        await cluster.take_all(filler)
        await cluster.node.checkpoint()
        log = cluster.incarnation.log
        await cluster.node._checkpointer._compaction.run(log.log_id, log.next_segment, eager=True)  # type: ignore[union-attr]
    await cluster.node.checkpoint()
    await cluster.restart()
    peeked = await cluster.node.call(api.PeekMessages(queue, 10))
    numbers = {one.payload: one.publication_number for one in peeked}
    assert numbers == {b"%d" % place: answer.number for place, answer in enumerate(answers[1:])}


# --- crashes --------------------------------------------------------------------------------------------


class _Route:
    """Calls of the other nodes, directly.  A dead one does not answer."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.calls = 0
        self.lose_answers = 0
        self.down: set[int] = set()
        """Partitions that cannot be reached."""

    def call(self, command: api.Command[api.Answer]) -> Coroutine[Any, Any, api.Answer]:
        return self._call(command)

    async def _call(self, command: api.Command[Any]) -> Any:
        self.calls += 1
        shard = shard_of(command.partition)
        if command.partition in self.down:
            raise api.Unavailable("it cannot be reached")
        for name, node in self.fleet.nodes.items():
            if self.fleet.processes[name].alive and shard in node.owned:
                try:
                    async with asyncio.timeout(5):
                        answer = await node.call(command)
                except TimeoutError:
                    raise api.Unavailable("no answer") from None
                if self.lose_answers:
                    self.lose_answers -= 1
                    raise api.Unavailable("the answer was lost")
                return answer
        raise api.NotOwner(shard, None)


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    fleet = Fleet()
    yield fleet
    fleet.close()


SHARD = 5
HERE, THERE = partition_of(6), partition_of(SHARD)
"""Destinations on the topic's node and on the other one."""


def two_nodes(fleet: Fleet, *, fifo: bool = False) -> tuple[_Route, api.Target, list[api.Target]]:
    """Two nodes, a topic on the first, and queues: two on its node, and two on the other."""
    route = _Route(fleet)
    one = fleet.start("one", [shard for shard in range(api.SHARDS) if shard != SHARD], route)
    two = fleet.start("two", [SHARD], route)
    topic = fleet.queue(one, partition_of(7), fifo=fifo)
    here = [fleet.queue(one, number, fifo=fifo) for number in (HERE, partition_of(6, 1))]
    return route, topic, [*here, *(fleet.queue(two, number, fifo=fifo) for number in (THERE, partition_of(SHARD, 1)))]


def owner_of(fleet: Fleet, target: api.Target) -> Node:
    return fleet.nodes["two" if shard_of(target.partition) == SHARD else "one"]


def delivered(fleet: Fleet) -> bool:
    topics = [one for node in fleet.nodes.values() for one in incarnation_of(node).partitions.values()]
    return not any(one.fold.publications for one in topics)


def in_queues(fleet: Fleet, targets: list[api.Target]) -> list[list[bytes]]:
    return [fleet.all_bodies(owner_of(fleet, target), target) for target in targets]


def in_order(fleet: Fleet, target: api.Target) -> list[bytes]:
    """Receive and delete all messages of a FIFO queue."""
    node, found = owner_of(fleet, target), []
    while received := fleet.receive(node, target):
        found += [one.payload for one in received]
        fleet.run(delete(node, target, *received))
    return found


@pytest.mark.parametrize("name", ["one", "two"])
@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("deliveries_max", [0, 100], ids=["by transfers", "some at once"])
def test_a_crash_at_any_step_changes_nothing(name: str, power: bool, deliveries_max: int) -> None:
    """The node of the topic, or that of two destinations, dies before each of its changes of the disk."""
    with mock.patch.object(immediate, "IMMEDIATE_MAX", deliveries_max):
        crash_at_each_step(name, power)


def crash_at_each_step(name: str, power: bool) -> None:
    step, died = 0, True
    while died:
        fleet = Fleet()
        route, topic, targets = two_nodes(fleet)
        process = fleet.processes[name]
        process.kill_at = process.steps + step
        work = fleet.nodes["one"].call(api.Publish(topic, [publication(b"%d" % n, *targets) for n in range(3)]))
        answered = True
        if name == "one":
            answered = fleet.unless_killed("one", work)
        else:
            fleet.run(work)
        if answered:
            fleet.loop.until(lambda: not process.alive or delivered(fleet), 60)  # noqa: B023
        process.kill_at, died = None, not process.alive
        if died and power:
            for each in fleet.processes.values():
                each.kill()
            fleet.disk.crash()
        for other in fleet.processes if power else (name,):
            if not fleet.processes[other].alive:
                fleet.start(other, peers=route)
        fleet.loop.until(lambda: delivered(fleet), 60)  # noqa: B023
        found = in_queues(fleet, targets)
        assert all(one == found[0] for one in found)
        assert found[0] == [b"0", b"1", b"2"][: 3 if answered else len(found[0])]
        fleet.close()
        step += 1
    assert step > 3


def test_lost_answers_deliver_nothing_twice(fleet: Fleet) -> None:
    route, topic, targets = two_nodes(fleet)
    route.lose_answers = 5
    fleet.run(fleet.nodes["one"].call(api.Publish(topic, [publication(b"%d" % n, *targets) for n in range(9)])))
    fleet.loop.until(lambda: delivered(fleet), 60)
    assert not route.lose_answers
    assert in_queues(fleet, targets) == [[b"%d" % n for n in range(9)]] * 4


def test_a_publication_leaves_only_durably(fleet: Fleet) -> None:
    route, topic, targets = two_nodes(fleet)
    fleet.processes["one"].latency_seconds = (10.0, 10.0)
    before = route.calls
    publishing = fleet.loop.create_task(fleet.nodes["one"].call(api.Publish(topic, [publication(b"news", *targets)])))
    fleet.loop.run_for(5)
    assert not publishing.done()
    assert route.calls == before
    fleet.processes["one"].latency_seconds = (0.0001, 0.0002)
    fleet.loop.until(lambda: publishing.done() and delivered(fleet), 60)
    assert in_queues(fleet, targets) == [[b"news"]] * 4


def test_a_node_that_does_not_answer_holds_no_payloads(fleet: Fleet) -> None:
    """Whatever the number of its destinations: one batch is under way."""
    route, topic, _ = two_nodes(fleet)
    one, two = fleet.nodes["one"], fleet.nodes["two"]
    targets = [fleet.queue(two, partition_of(SHARD, number)) for number in range(10, 40)]
    payloads = [b"%d" % number + bytes(2_000) for number in range(4)]
    held: Counter[int] = Counter()
    calls = 0
    hanging = True
    real = route._call

    async def call(command: api.Command[Any]) -> Any:
        if not hanging or not isinstance(command, api.AcceptTransfers):
            return await real(command)
        nonlocal calls
        calls += 1
        held[calls] = sum(len(moved.payload) for moved in command.transfers)
        number = calls
        await asyncio.sleep(3)
        del held[number]
        raise api.Unavailable("no answer")

    most = 0
    with mock.patch.object(route, "_call", call), mock.patch.object(fanout, "BATCH_BYTES", 5_000):
        fleet.run(one.call(api.Publish(topic, [publication(payload, *targets) for payload in payloads])))
        for _ in range(300):
            fleet.loop.run_for(0.5)
            most = max(most, held.total())
        assert len(held) > 20  # each destination is tried by itself
        hanging = False
        fleet.loop.until(lambda: delivered(fleet), 60)
    assert 0 < most <= 5_000
    assert all(fleet.all_bodies(two, target) == payloads for target in targets)


def test_a_topic_moves_to_another_node_between_the_steps(fleet: Fleet) -> None:
    route, topic, targets = two_nodes(fleet)
    route.lose_answers = 1_000
    fleet.run(fleet.nodes["one"].call(api.Publish(topic, [publication(b"%d" % n, *targets) for n in range(9)])))
    fleet.loop.run_for(3)
    assert not delivered(fleet)
    shard = shard_of(topic.partition)
    fleet.run(fleet.nodes["one"].ownership.hand_over({shard}, fleet.nodes["two"].ownership.log_id))
    assert fleet.run(fleet.nodes["two"].ownership.take({shard})) == {shard}
    fleet.loop.until(lambda: delivered(fleet), 60)
    assert in_queues(fleet, targets) == [[b"%d" % n for n in range(9)]] * 4


# --- partitions that retire -----------------------------------------------------------------------------


class Map:
    """A queue of which one partition replaces another."""

    def __init__(self, fleet: Fleet, old: int, new: int, *, fifo: bool) -> None:
        self.fleet = fleet
        self.old, self.new = api.Target(old, old, 1), api.Target(new, old, 2)
        self.fifo = fifo

    def move(self, state: api.PartitionState) -> None:
        """Let the old partition drain, or leave the map."""
        before = self.fleet.store.queues[self.old.partition]
        assert before is not None
        left = msgspec.structs.replace(before, version=2, routing=api.Routing(2, 0, (0,), state))
        sources = (self.old.partition,) if state == api.PartitionState.DRAINING and self.fifo else ()
        routing = api.Routing(2, 0, (0,), api.PartitionState.OPEN, sources)
        new = msgspec.structs.replace(left, partition=self.new.partition, routing=routing)
        self.fleet.store.queues[self.old.partition] = left
        self.fleet.store.queues[self.new.partition] = new
        for one in (left, new):
            with_owner = api.Target(one.partition, one.queue_id)
            if one.routing is not None and one.routing.state != api.PartitionState.RETIRED:
                self.fleet.run(owner_of(self.fleet, with_owner).call(api.Configure(one)))

    async def target(self, arn: str, group: str | None = None) -> api.Target | None:
        return self.new

    def retire(self) -> None:
        node = owner_of(self.fleet, self.old)
        target = api.Target(self.old.partition, self.old.queue_id)
        assert self.fleet.run(node.call(api.Retire(target, 0)))


@pytest.mark.parametrize("old", [HERE, THERE], ids=["here", "there"])
@pytest.mark.parametrize("killed", [None, "one", "two"])
def test_deliveries_to_a_retired_partition_go_to_its_successor_once(fleet: Fleet, old: int, killed: str | None) -> None:
    """Some were accepted before, with a lost answer; the others go elsewhere."""
    route, topic, targets = two_nodes(fleet)
    new = partition_of(8) if old == THERE else partition_of(SHARD, 2)
    moved = Map(fleet, old, new, fifo=False)
    fleet.store.target = moved.target  # type: ignore[method-assign]
    one = fleet.nodes["one"]
    route.lose_answers = 1 if old == THERE else 0
    kept = [target for target in targets if target.partition != old]
    with mock.patch.object(fanout, "BATCH", 2), mock.patch.object(fanout, "RETRY_SECONDS", 5.0):
        fleet.run(one.call(api.Publish(topic, [publication(b"%d" % n, *kept, moved.old) for n in range(2)])))
        fleet.loop.run_for(1)
        first = fleet.all_bodies(owner_of(fleet, moved.old), moved.old)
        assert first == [b"0", b"1"]
        with held_back(one):
            fleet.run(one.call(api.Publish(topic, [publication(b"%d" % n, *kept, moved.old) for n in range(2, 6)])))
        owner = owner_of(fleet, moved.old)
        fleet.run(owner.call(api.Purge(moved.old, 1)))
        moved.move(api.PartitionState.DRAINING)
        moved.retire()
        moved.move(api.PartitionState.RETIRED)
        if killed is not None:
            fleet.kill(killed)
            fleet.start(killed, peers=route)
        if killed != "one":
            fleet.run(wake(one, topic))
        fleet.loop.until(lambda: delivered(fleet), 60)
    after = fleet.all_bodies(owner_of(fleet, moved.new), moved.new)
    assert after == [b"2", b"3", b"4", b"5"]
    assert in_queues(fleet, kept) == [[b"%d" % n for n in range(6)]] * 3


@pytest.mark.parametrize("old", [HERE, THERE], ids=["here", "there"])
def test_a_queue_that_is_created_again_gets_nothing_of_the_one_before(fleet: Fleet, old: int) -> None:
    """The partition has retired, and the name means another queue, before the old one has left the metadata."""
    _, topic, targets = two_nodes(fleet)
    new = partition_of(8) if old == THERE else partition_of(SHARD, 2)
    moved = Map(fleet, old, new, fifo=False)
    again = fleet.queue(owner_of(fleet, moved.new), new)
    assert again.queue_id != moved.old.queue_id
    fleet.store.target = mock.AsyncMock(return_value=again)  # type: ignore[method-assign]
    one = fleet.nodes["one"]
    kept = [target for target in targets if target.partition != old]
    with held_back(one):
        fleet.run(one.call(api.Publish(topic, [publication(b"news", *kept, moved.old)])))
    before = fleet.store.queues[old]
    assert before is not None
    retired = api.Routing(2, 0, (0,), api.PartitionState.DRAINING)
    fleet.store.queues[old] = msgspec.structs.replace(before, version=2, routing=retired)
    fleet.run(owner_of(fleet, moved.old).call(api.Configure(fleet.store.queues[old])))
    moved.retire()
    fleet.run(wake(one, topic))
    fleet.loop.run_for(5)
    assert not delivered(fleet)
    del fleet.store.queues[old]
    fleet.loop.until(lambda: delivered(fleet), 60)
    assert in_queues(fleet, [again, *kept]) == [[], *[[b"news"]] * 3]


def test_a_group_stays_in_order_while_its_queue_moves(fleet: Fleet) -> None:
    """Earlier publications wait for the old partition, and later ones name the new one already."""
    route, topic, _ = two_nodes(fleet, fifo=True)
    moved = Map(fleet, THERE, partition_of(SHARD, 2), fifo=True)
    fleet.store.target = moved.target  # type: ignore[method-assign]
    one = fleet.nodes["one"]
    route.down = {THERE}
    for number in range(3):
        fleet.run(one.call(api.Publish(topic, [publication(b"%d" % number, moved.old, group="g")])))
    moved.move(api.PartitionState.DRAINING)
    for number in range(3, 6):
        fleet.run(one.call(api.Publish(topic, [publication(b"%d" % number, moved.new, group="g")])))
    fleet.run(one.call(api.Publish(topic, [publication(b"6", moved.old, group="g")])))  # by an old map
    fleet.loop.run_for(5)
    assert fleet.receive(fleet.nodes["two"], moved.new) == []
    route.down = set()
    fleet.loop.until(lambda: delivered(fleet), 60)
    assert in_order(fleet, msgspec.structs.replace(moved.old, version=2)) == []
    assert in_order(fleet, moved.new) == [b"%d" % number for number in range(7)]


def test_a_fifo_topic_that_moves_delivers_what_was_published_before_first(fleet: Fleet) -> None:
    route, topic, targets = two_nodes(fleet, fifo=True)
    target = targets[2]
    route.down = {target.partition}
    moved = Map(fleet, topic.partition, partition_of(9), fifo=True)
    one = fleet.nodes["one"]
    for number in range(3):
        fleet.run(one.call(api.Publish(topic, [publication(b"%d" % number, target, group="g")])))
    moved.move(api.PartitionState.DRAINING)
    successor = incarnation_of(one).partitions[moved.new.partition]
    fleet.loop.until(lambda: not successor.fold.pending_token_sources, 60)
    for number in range(3, 6):
        fleet.run(one.call(api.Publish(moved.new, [publication(b"%d" % number, target, group="g")])))
    with pytest.raises(api.MapStale):
        fleet.run(one.call(api.Publish(topic, [publication(b"late", target, group="g")])))
    route.down = set()
    fleet.loop.until(lambda: not incarnation_of(one).partitions[topic.partition].fold.publications, 60)
    assert successor.fold.publications
    moved.retire()
    moved.move(api.PartitionState.RETIRED)
    fleet.loop.until(lambda: delivered(fleet), 60)
    assert in_order(fleet, target) == [b"%d" % number for number in range(6)]


def test_records_of_deliveries_are_few(service: VirtualNode) -> None:
    """A batch of deliveries to one destination is done by one record."""
    topic, target = service.queue(TOPIC), service.queue(1)
    written: list[object] = []
    real = service.incarnation.writer.write

    def write(partition: Any, record: Any, *more: Any, **named: Any) -> None:
        written.append(record)
        real(partition, record, *more, **named)

    with by_transfers(), mock.patch.object(service.incarnation.writer, "write", write):
        publish(service, topic, *(publication(b"%d" % number, target) for number in range(20)))
        service.loop.until(lambda: quiet(service), 10)
    assert sum(isinstance(one, records.Delivered) for one in written) == 20
    assert sum(isinstance(one, records.TransferDone) for one in written) == 1
