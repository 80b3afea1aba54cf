"""Deliveries in the row of their publication: made with it or not at all, and only where nothing forbids it."""

from __future__ import annotations

from typing import Any
from unittest import mock

import msgspec
import pytest

from backend import api
from backend.engine import records
from backend.serving.publications import immediate
from tests.backend.nodes import RestartableNode, restart
from tests.backend.serving.test_publications import (
    QUEUES,
    TOPIC,
    bodies,
    by_transfers,
    held_back,
    publication,
    publish,
    quiet,
)
from tests.simulator.test_found import VirtualNode


def written_by(service: VirtualNode, topic: api.Target, *new: api.Publication) -> list[object]:
    """Publish; return the records that are written, with the deliveries that the fan-out makes afterwards."""
    written: list[object] = []
    real = service.incarnation.writer.write

    def write(partition: Any, record: Any, *more: Any, **named: Any) -> None:
        written.append(record)
        real(partition, record, *more, **named)

    with mock.patch.object(service.incarnation.writer, "write", write):
        publish(service, topic, *new)
        service.loop.until(lambda: quiet(service), 10)
    return written


def made_at_once(written: list[object]) -> int:
    """Count the deliveries without a transfer."""
    return sum(isinstance(one, records.Delivered) and not one.source for one in written)


def test_a_publication_and_its_deliveries_are_one_row(service: VirtualNode) -> None:
    topic, targets = service.queue(TOPIC), [service.queue(number) for number in QUEUES]
    fold = service.incarnation.partitions[TOPIC].fold
    row = service.incarnation.log.next_seq
    written = written_by(service, topic, publication(b"news", *targets, group="g"))
    assert made_at_once(written) == len(written) - 1 == 3
    assert service.incarnation.log.next_seq == row + 1
    assert (fold.stored_bytes, fold.stored_messages, fold.publications, fold.outgoing) == (0, 0, {}, {})
    (measures,) = service.call(api.QueueMeasures(topic))
    assert (measures.sent, measures.sent_bytes) == (1, 4)
    restart(service)
    for target in targets:
        (message,) = service.receive(target)
        assert (message.payload, message.group) == (b"news", "g")
        assert (message.subscription, message.raw) == (target.partition.to_bytes(16, "big"), bool(target.partition % 2))


def test_a_message_delivered_at_once_is_received_without_a_read(service: VirtualNode) -> None:
    topic, target = service.queue(TOPIC), service.queue(1)
    publish(service, topic, publication(b"news", target))
    partitions = service.incarnation.partitions
    assert not partitions[TOPIC].cached
    with mock.patch.object(service.incarnation.log, "read_many", side_effect=AssertionError("nothing is to be read")):
        assert bodies(service, target) == [b"news"]
    assert not partitions[1].cached


def test_a_repeated_publish_delivers_nothing_again(service: VirtualNode) -> None:
    topic, target, other = service.queue(TOPIC), service.queue(1), service.queue(2)
    new, again = publication(b"news", target), publication(b"news", target, other)
    new.retry = again.retry = b"r" * 32
    (first,) = publish(service, topic, new)
    assert not made_at_once(written_by(service, topic, again))
    restart(service)
    (answer,) = publish(service, topic, again)
    assert (answer.message_id, answer.duplicate) == (first.message_id, True)
    assert (bodies(service, target), bodies(service, other)) == ([b"news"], [])


def test_deliveries_wait_for_the_delay_of_their_queue(service: VirtualNode) -> None:
    topic, target = service.queue(TOPIC), service.queue(1, delay_seconds=5)
    assert made_at_once(written_by(service, topic, publication(b"news", target))) == 1
    assert bodies(service, target) == []
    service.loop.run_for(5)
    assert bodies(service, target) == [b"news"]


def test_some_deliveries_are_left_to_the_fanout(service: VirtualNode) -> None:
    """A queue of another id, one that drains, and one that is not open are not delivered to at once."""
    topic, here = service.queue(TOPIC), service.queue(1)
    before = service.store.queues[1]
    assert before is not None
    drained = service.queue(2)
    draining = msgspec.structs.replace(
        before, partition=2, queue_id=2, version=2, routing=api.Routing(2, 0, (0,), api.PartitionState.DRAINING)
    )
    service.store.queues[2] = draining
    service.call(api.Configure(draining))
    other = api.Target(service.queue(3).partition, 33)
    closed = api.Target(4, 4)
    service.store.queues[4] = msgspec.structs.replace(before, partition=4, queue_id=4)
    with held_back(service.node), mock.patch.object(immediate, "IMMEDIATE_MAX", 100):
        publish(service, topic, publication(b"news", drained, here, other, closed))
    fold = service.incarnation.partitions[TOPIC].fold
    assert fold.outgoing.keys() == {2, 3, 4}
    assert (fold.pending_deliveries, fold.stored_bytes) == (3, 4)
    assert bodies(service, here) == [b"news"]
    restart(service)
    service.loop.until(lambda: quiet(service), 10)
    assert bodies(service, api.Target(2, 2, 2)) == [b"news"]
    assert bodies(service, api.Target(4, 4, 1)) == [b"news"]
    assert bodies(service, here) == []


@pytest.mark.parametrize("reason", ["fifo", "all", "many", "row"])
def test_a_call_is_left_to_the_fanout(service: VirtualNode, reason: str) -> None:
    fifo, level = reason == "fifo", api.AckLevel.ALL if reason == "all" else api.AckLevel.QUORUM
    topic, target = service.queue(TOPIC, fifo=fifo, ack_level=level), service.queue(1, fifo=fifo)
    payload = b"x" * (service.settings.log.segment_bytes // 2 - 512 if reason == "row" else 4)
    new = [publication(payload, target, group="g" if fifo else None)]
    if reason == "many":
        new = [publication(b"%d" % number, target) for number in range(4)]
    with mock.patch.object(immediate, "IMMEDIATE_MAX", 3):
        written = written_by(service, topic, *new)
    assert made_at_once(written) == 0
    assert sum(isinstance(one, records.Delivered) for one in written) == len(new)
    assert sorted(bodies(service, target)) == sorted(one.payload for one in new)


def test_no_delivery_overtakes_the_memory_limit_or_a_full_log(service: VirtualNode) -> None:
    topic, target = service.queue(TOPIC), service.queue(1)
    with (
        mock.patch.object(service.incarnation.memory, "full", True),
        pytest.raises(api.StorageFull),
    ):
        publish(service, topic, publication(b"news", target))
    publish(service, topic, publication(b"more", target))
    assert bodies(service, target) == [b"more"]


async def test_messages_delivered_at_once_survive_checkpoints(cluster: RestartableNode) -> None:
    topic, queue = await cluster.queue(TOPIC), await cluster.queue(1)
    for number in range(3):
        await cluster.node.call(api.Publish(topic, [publication(b"%d" % number, queue)]))
        await cluster.node.checkpoint()
        await cluster.restart()
    with by_transfers():
        await cluster.node.call(api.Publish(topic, [publication(b"last", queue)]))
    await cluster.restart()
    received = await cluster.receive(queue)
    assert sorted(one.payload for one in received) == [b"0", b"1", b"2", b"last"]
