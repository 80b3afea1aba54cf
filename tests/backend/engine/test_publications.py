"""Publications in the engine alone: their deliveries are numbered transfers, and each is accepted once."""

from __future__ import annotations

import random
import tracemalloc
from array import array
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import msgspec
import pytest

from backend import api
from backend.engine import records
from backend.engine.records import decode_head, encode_head
from backend.engine.snapshot import describe
from backend.engine.transfers import DELIVERY_BYTES, OUTGOING_BYTES, PendingDeliveries
from backend.recovery.compaction import _copy_of
from tests.backend.engine.machine import MemoryChunks, PartitionMachine

CHUNKS: WeakKeyDictionary[PartitionMachine, MemoryChunks] = WeakKeyDictionary()
"""Checkpoints of each machine: a later one refers to unchanged chunks of those before."""
TOKENS = [bytes([number]) * 16 for number in range(1, 9)]


def to(partition: int, raw: bool = False, **more: Any) -> api.Delivery:
    return api.Delivery(api.Target(partition, partition), partition.to_bytes(16, "big"), raw, **more)


def publish(machine: PartitionMachine, body: str, *deliveries: api.Delivery, **more: Any) -> api.SendResult:
    publication = api.Publication(body.encode(), deliveries=list(deliveries), **more)
    written, answers = machine.queue.publish([publication], [publication.deliveries], machine.now)
    for record, payload in written:
        if isinstance(record, records.Message):
            machine.store(record, payload)
        else:
            machine.write([record])
    return answers[0]


def carry(source: PartitionMachine, destination: PartitionMachine, *, done: bool = True) -> list[int]:
    """Deliver what is pending for a destination; return the transfers that it has rejected."""
    number = destination.fold.partition
    out = source.fold.outgoing[number]
    refused = []
    for delivery in list(out.deliveries or ()):
        head, payload = source.message(delivery.number), source.payloads[delivery.number]
        assert isinstance(head, records.MessagePublished)
        moved = source.queue.delivery(delivery, head, payload)
        record = destination.queue.transfer_in(source.fold.partition, out.acked_below, moved, destination.now)
        if isinstance(record, records.Message):
            destination.store(record, payload)
        elif record is not None:
            destination.write([record])
        elif destination.queue.refused(source.fold.partition, [delivery.transfer]):
            refused.append(delivery.transfer)
            continue
        if done:
            source.write([records.TransferDone(number, [delivery.transfer])])
    return refused


async def check(machine: PartitionMachine) -> None:
    """Check that a replay and a checkpoint give the live state."""
    machine.fold.advance(machine.now)
    assert describe(machine.replayed()) == describe(machine.fold)
    copy = await CHUNKS.setdefault(machine, MemoryChunks()).copy(machine.fold)
    copy.advance(machine.now)
    assert describe(copy) == describe(machine.fold)


async def test_a_publication_stays_until_its_last_delivery_is_done() -> None:
    topic, one, two = PartitionMachine(), PartitionMachine(partition=2), PartitionMachine(partition=3)
    answer = publish(topic, "news", to(2), to(3, raw=True))
    assert topic.counters() == (0, 1, 0)
    assert topic.fold.stored_bytes == 4
    assert topic.claim() == []
    await check(topic)
    assert carry(topic, one) == []
    assert topic.fold.publications == {answer.number: 1}
    assert topic.fold.stored_bytes == 4
    await check(topic)
    assert carry(topic, two) == []
    assert topic.counters() == (0, 0, 0)
    assert not topic.fold.blocks
    assert not topic.fold.segments
    assert topic.fold.pending_deliveries == 0
    assert one.receive() == two.receive() == ["news"]
    for machine, raw in ((one, False), (two, True)):
        (head,) = [record for record, *_ in machine.journal if isinstance(record, records.Delivered)]
        assert records.subscription_of(head) == (machine.fold.partition.to_bytes(16, "big"), raw, 0)
        assert head.message_id is None
        await check(machine)
    await check(topic)


async def test_a_delivery_is_accepted_once_whatever_the_source_knows() -> None:
    topic, queue = PartitionMachine(), PartitionMachine(partition=2)
    publish(topic, "one", to(2))
    carry(topic, queue, done=False)
    carry(topic, queue)
    publish(topic, "two", to(2))
    carry(topic, queue, done=False)
    carry(topic, queue)
    assert queue.receive() == ["one", "two"]
    assert topic.fold.outgoing[2].acked_below == 3
    await check(queue)


async def test_several_deliveries_to_one_partition_each_count() -> None:
    topic, dead = PartitionMachine(), PartitionMachine(partition=2)
    publish(topic, "lost", to(2), msgspec.structs.replace(to(2), subscription=b"s" * 16))
    carry(topic, dead)
    assert dead.receive() == ["lost", "lost"]
    assert not topic.fold.publications


async def test_a_publication_without_deliveries_stores_nothing_but_its_tokens() -> None:
    topic = PartitionMachine(fifo=True)
    first = publish(topic, "unseen", token=TOKENS[0], retry=TOKENS[1] + TOKENS[2], group="g")
    assert topic.fold.stored_messages == topic.fold.stored_bytes == 0
    again = publish(topic, "unseen", to(2), token=TOKENS[0], group="g")
    assert (again.message_id, again.duplicate) == (first.message_id, True)
    assert publish(topic, "unseen", retry=TOKENS[1] + TOKENS[2], group="g").message_id == first.message_id
    assert publish(topic, "other", group="g").message_id != first.message_id
    await check(topic)


async def test_the_delay_of_the_destination_applies() -> None:
    topic, queue = PartitionMachine(delay_seconds=99), PartitionMachine(partition=2, delay_seconds=5)
    publish(topic, "later", to(2), delay_seconds=7)
    carry(topic, queue)
    assert queue.counters() == (0, 0, 1)
    queue.pass_time(5)
    assert queue.receive() == ["later"]
    await check(queue)


@pytest.mark.parametrize("done", [False, True])
async def test_a_fifo_destination_stores_no_duplicate(done: bool) -> None:
    topic, queue = PartitionMachine(fifo=True), PartitionMachine(partition=2, fifo=True)
    queue.send("sent", token=TOKENS[0], group="g")
    publish(topic, "the same", to(2, token=TOKENS[0]), token=TOKENS[3], group="g")
    publish(topic, "under the other scope", to(2, token=TOKENS[1], also=TOKENS[0]), token=TOKENS[4], group="g")
    publish(topic, "another", to(2, token=TOKENS[2]), token=TOKENS[5], group="g")
    publish(topic, "without", to(2), token=TOKENS[6], group="g")
    carry(topic, queue, done=done)
    queue.pass_time(301)  # the window is over, and the transfers are still known
    carry(topic, queue)
    assert queue.receive() == ["sent", "another", "without"]
    assert queue.send_all([api.NewMessage(b"", group="g", token=TOKENS[2])])[0].duplicate is False
    assert not topic.fold.publications
    await check(queue)
    await check(topic)


def test_a_fifo_destination_waits_for_the_tokens_of_its_predecessor_and_refuses_when_it_drains() -> None:
    topic = PartitionMachine(fifo=True)
    publish(topic, "m", to(2, token=TOKENS[0]), token=TOKENS[0], group="g")
    waiting = PartitionMachine(partition=2, fifo=True, routing=api.Routing(2, pending_token_sources=(7,)))
    with pytest.raises(api.PartitionOpening):
        carry(topic, waiting)
    draining = PartitionMachine(partition=2, fifo=True, routing=api.Routing(2, state=api.PartitionState.DRAINING))
    with pytest.raises(api.MapStale):
        carry(topic, draining)
    standard = PartitionMachine(partition=2, routing=api.Routing(2, state=api.PartitionState.DRAINING))
    assert carry(topic, standard) == []


async def test_rejected_deliveries_go_to_another_partition_once() -> None:
    topic, old, new = PartitionMachine(), PartitionMachine(partition=2), PartitionMachine(partition=3)
    for number in range(4):
        publish(topic, f"m{number}", to(2))
    publish(topic, "later", to(3))
    out = topic.fold.outgoing[2]
    pending = list(out.deliveries or ())
    head = topic.message(pending[0].number)
    assert isinstance(head, records.MessagePublished)
    accepted = old.queue.transfer_in(1, 1, topic.queue.delivery(pending[0], head, b"m0"), old.now)
    assert isinstance(accepted, records.Delivered)
    old.store(accepted, b"m0")
    transfers = [one.transfer for one in pending]
    old.write(old.queue.reject_transfers(1, 1, transfers))
    refused = old.queue.refused(1, transfers)
    assert refused == transfers[1:]
    topic.write([records.TransferDone(2, transfers[:1]), records.Rerouted(2, refused, 3, 2)])
    await check(topic)
    assert carry(topic, old) == []
    assert [one.number for one in topic.fold.outgoing[3].deliveries.next(9)] == sorted(  # type: ignore[union-attr]
        topic.fold.publications
    )
    assert carry(topic, new) == []
    assert (old.receive(), sorted(new.receive())) == (["m0"], ["later", "m1", "m2", "m3"])
    assert not topic.fold.publications
    assert not topic.fold.outgoing[2].is_pending


async def test_a_publication_past_the_retention_is_dropped_with_its_deliveries() -> None:
    topic, queue = PartitionMachine(retention_seconds=60), PartitionMachine(partition=2)
    publish(topic, "old", to(2), to(3))
    topic.pass_time(40)
    publish(topic, "new", to(2), to(3))
    carry(topic, PartitionMachine(partition=3))
    topic.pass_time(21)
    topic.fold.advance(topic.now)
    assert topic.fold.dropped_deliveries == 1
    assert topic.fold.pending_deliveries == 1
    await check(topic)
    carry(topic, queue)
    assert queue.receive() == ["new"]
    assert topic.fold.stored_messages == topic.fold.stored_bytes == 0
    await check(topic)


async def test_a_purge_keeps_publications_and_a_deletion_drops_them() -> None:
    topic, queue = PartitionMachine(), PartitionMachine(partition=2)
    publish(topic, "news", to(2), to(3))
    topic.send("message")
    topic.write(topic.queue.purge(1))
    assert topic.counters() == (0, 1, 0)
    await check(topic)
    carry(topic, queue)
    assert queue.receive() == ["news"]
    topic.write([records.Dropped(1)])
    assert topic.fold.pending_deliveries == topic.fold.stored_messages == topic.fold.stored_bytes == 0
    assert not topic.fold.outgoing[3].is_pending


async def test_a_quarantined_publication_is_dropped_with_its_deliveries() -> None:
    topic = PartitionMachine()
    lost = publish(topic, "lost", to(2), to(3))
    kept = publish(topic, "kept", to(2))
    topic.write([records.Quarantined([lost.number])])
    assert topic.fold.publications == {kept.number: 1}
    assert [one.number for one in topic.fold.outgoing[2].deliveries or ()] == [kept.number]
    assert topic.fold.outgoing[3].acked_below == 2
    await check(topic)


async def test_a_dead_letter_keeps_its_subscription_and_number() -> None:
    topic, queue, dead = PartitionMachine(fifo=True), PartitionMachine(partition=2), PartitionMachine(partition=9)
    publish(topic, "earlier", group="g")
    number = publish(topic, "bad", to(2, raw=True), group="g").number
    carry(topic, queue)
    queue.claim(visibility=0)
    queue.claim(dead_letter=api.DeadLetter(1, api.Target(9, 9)))
    queue.hand_over(dead)
    (head,) = [record for record, *_ in dead.journal if isinstance(record, records.Delivered)]
    assert records.subscription_of(head) == ((2).to_bytes(16, "big"), True, number)
    assert (head.receives, head.origin) == (1, queue.settings.arn)
    dead.claim(visibility=0)
    dead.write(dead.queue.move_out([(head.number, api.Target(2, 2))], dead.now))
    back = PartitionMachine(partition=2)
    dead.hand_over(back)
    (head,) = [record for record, *_ in back.journal if isinstance(record, records.Delivered)]
    assert records.subscription_of(head) == ((2).to_bytes(16, "big"), True, number)
    assert (head.receives, head.origin, head.message_id) == (0, None, None)
    for machine in (queue, dead, back):
        await check(machine)


async def test_a_delivery_has_the_number_of_its_publication_if_the_topic_is_fifo() -> None:
    topic = PartitionMachine(fifo=True)
    queues = [PartitionMachine(partition=2), PartitionMachine(partition=3, fifo=True)]
    for queue in queues:
        queue.send("before", group="g")
        queue.send("before", group="g")
    publish(topic, "unseen", group="g")
    answers = [publish(topic, body, to(2), to(3), group="g") for body in ("one", "two")]
    for queue in queues:
        carry(topic, queue)
        heads = [record for record, *_ in queue.journal if isinstance(record, records.Delivered)]
        assert [head.publication_number for head in heads] == [answer.number for answer in answers]
        assert [head.number for head in heads] != [answer.number for answer in answers]
        await check(queue)


def test_records_of_earlier_releases_have_no_number_of_a_publication() -> None:
    """Heads as they were written before the member was appended."""
    delivered = records.Delivered(7, 1000, group="g", source=1, transfer=3, subscription=b"s" * 16, raw=True)
    copied = records.Copied(7, 1000, group="g", subscription=b"s" * 16, raw=True)
    for record in (delivered, copied):
        before = msgspec.msgpack.encode(msgspec.msgpack.decode(encode_head(record))[:-1])
        assert decode_head(record.KIND, before) == record
        assert records.subscription_of(record) == (b"s" * 16, True, 0)


async def test_compaction_keeps_subscriptions_and_deliveries() -> None:
    topic, queue = PartitionMachine(fifo=True), PartitionMachine(partition=2)
    number = publish(topic, "news", to(2, token=TOKENS[0]), to(3, raw=True), group="g").number
    carry(topic, queue)
    (delivered,) = [record for record, *_ in queue.journal if isinstance(record, records.Delivered)]
    assert delivered.publication_number == number
    for machine in (topic, queue):
        (head,) = [record for record, *_ in machine.journal if isinstance(record, records.Message)]
        copied = decode_head(_copy_of(head).KIND, encode_head(_copy_of(head)))
        assert isinstance(copied, records.Message)
        assert records.subscription_of(copied) == records.subscription_of(head)
        machine.write([copied])
        await check(machine)
        if isinstance(head, records.MessagePublished):
            assert isinstance(copied, records.PublicationCopied)
            assert msgspec.structs.astuple(copied) == msgspec.structs.astuple(head)


async def test_a_random_history_replays_and_reads_back() -> None:
    rng = random.Random(5)
    topic = PartitionMachine(retention_seconds=60)
    queues = {number: PartitionMachine(partition=number) for number in range(2, 7)}
    for step in range(400):
        topic.pass_time(rng.random())
        chosen = rng.sample(sorted(queues), rng.randrange(4))
        choice = rng.random()
        if choice < 0.6:
            publish(topic, f"m{step}", *(to(one) for one in chosen), token=rng.randbytes(16))
        elif choice < 0.7:
            topic.send("beside")
        else:
            for number in set(chosen) & topic.fold.outgoing.keys() - {6}:
                pending = list(topic.fold.outgoing[number].deliveries or ())
                done = [one.transfer for one in rng.sample(pending, rng.randint(0, len(pending)))]
                other = rng.choice([2, 3, 4, 5])
                if rng.random() < 0.3 and other != number:
                    topic.write([records.Rerouted(number, sorted(done), other, other)])
                else:
                    topic.write([records.TransferDone(number, done)])
        if not step % 20:
            await check(topic)
            assert sum(topic.fold.publications.values()) == topic.fold.pending_deliveries
    assert topic.fold.dropped_deliveries


def test_a_backlog_costs_bytes_not_objects() -> None:
    """1,000 publications to 1,000 destinations: a million pending deliveries."""
    topic, destinations, count = PartitionMachine(), 1000, 300
    columns = array("Q", range(2, destinations + 2)).tobytes()
    fold = topic.fold
    tracemalloc.start()
    for _ in range(count):
        record = records.MessagePublished(fold.next_number, topic.now)
        record.partitions = record.queues = columns
        fold.apply(record, topic.now, topic.position, 1000)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert fold.pending_deliveries == destinations * count
    assert used / fold.pending_deliveries < 40
    estimated = destinations * count * DELIVERY_BYTES + destinations * OUTGOING_BYTES
    assert 0.7 < estimated / used < 1.4


def test_pending_deliveries_are_found_in_any_order() -> None:
    pending = PendingDeliveries()
    for transfer in range(1, 2001):
        pending.append(transfer, 10 * transfer, transfer % 7)
    rng = random.Random(1)
    left = set(range(1, 2001))
    for transfer in rng.sample(range(1, 2001), 2000):
        assert pending.first == min(left)
        found = pending.pop(transfer)
        assert found == (transfer, 10 * transfer, transfer % 7)
        assert pending.pop(transfer) is None
        left.discard(transfer)
        assert len(pending) == len(left)
    assert not pending.chunks()


def test_pending_deliveries_out_of_order_are_not_searched_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ones by publication are found among rerouted ones, while others are done and added."""
    rng = random.Random(2)
    pending = PendingDeliveries()
    left: dict[int, int] = {}
    transfer = 0

    def add(number: int) -> None:
        nonlocal transfer
        transfer += 1
        pending.append(transfer, number, 0)
        left[transfer] = number

    for number in rng.sample(range(1, 100_000), 3000):
        add(number)
    expected = sorted((number, transfer) for transfer, number in left.items())
    assert [(one.number, one.transfer) for one in pending.next(50)] == expected[:50]

    def searched(_: PendingDeliveries) -> NoReturn:
        raise AssertionError("all were looked at again")

    monkeypatch.setattr(PendingDeliveries, "__iter__", searched)
    for _ in range(2000):
        if left and rng.random() < 0.6:
            done = rng.choice([one.transfer for one in pending.next(5)] + rng.sample(sorted(left), 1))
            assert pending.pop(done) is not None
            del left[done]
        else:
            add(rng.randrange(1, 100_000))
        expected = sorted((number, transfer) for transfer, number in left.items())
        assert [(one.number, one.transfer) for one in pending.next(3)] == expected[:3]
    for done in list(left):
        pending.pop(done)
    monkeypatch.undo()
    add(5)
    add(6)
    assert [one.number for one in pending.next(9)] == [5, 6], "in order again"
