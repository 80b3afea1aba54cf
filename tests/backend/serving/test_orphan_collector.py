"""Removal of the remains of deleted queues."""

import pytest

from backend.api import (
    AcceptTransfers,
    CountMessages,
    DeadLetter,
    Drop,
    NewMessage,
    PartitionSettings,
    Send,
    Target,
    Transfer,
)
from backend.serving import orphan_collector
from backend.serving.orphan_collector import OrphanCollector
from metadata_service.store import StoreUnavailable
from tests.backend.nodes import restart
from tests.simulator.test_found import NOW, VirtualNode


def exchange(service: VirtualNode, source: Target, dead: Target) -> None:
    """Turn a message of ``source`` into a dead letter."""
    service.send(source, b"body")
    policy = DeadLetter(1, dead)
    service.receive(source, 0, dead_letter=policy)
    service.loop.run_for(1)
    service.receive(source, 0, dead_letter=policy)
    service.loop.until(service.quiet, 60)


def known(service: VirtualNode) -> set[int]:
    """Return the peers that open partitions store."""
    folds = [partition.fold for partition in service.incarnation.partitions.values()]
    return {peer for fold in folds for peer in (*fold.outgoing, *fold.incoming)}


def drop(service: VirtualNode, target: Target) -> None:
    del service.store.queues[target.partition]
    service.call(Drop(target))
    service.loop.run_for(orphan_collector.FORGET_SECONDS + 1)


@pytest.mark.parametrize("gone", ["source", "dead letter queue"])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_partner_of_a_deleted_queue_forgets_it(service: VirtualNode, gone: str, restarted: bool) -> None:
    """Otherwise a service that creates and deletes queues with a dead-letter queue would leak some bytes of each."""
    lasting = service.queue(1)
    for number in range(2, 12):
        other = service.queue(number)
        source, dead = (other, lasting) if gone == "source" else (lasting, other)
        exchange(service, source, dead)
        assert other.partition in known(service)
        drop(service, other)
    assert known(service) == set()
    if restarted:
        restart(service)
        service.loop.run_for(orphan_collector.FORGET_SECONDS + 1)
        assert known(service) == set()
    for message in service.receive(lasting, 0):
        assert message.payload == b"body"


@pytest.mark.parametrize("restarted", [False, True])
def test_a_transfer_from_a_dropped_source_is_not_accepted_again(service: VirtualNode, restarted: bool) -> None:
    """A copy of it was still on its way.  (Found by the simulator, cluster seed 467.)"""
    source, dead = service.queue(1), service.queue(2)
    exchange(service, source, dead)
    del service.store.queues[source.partition]
    service.call(Drop(source))
    if restarted:
        restart(service)
    service.loop.run_for(60)
    copy = Transfer(1, b"body", sent_ms=NOW, message_id=bytes(16))
    assert service.call(AcceptTransfers(dead, source.partition, 1, [copy])) == []
    assert len(service.receive(dead, 60)) == 1
    assert service.receive(dead, 60) == []


def test_a_deletion_cut_off_by_a_crash_is_completed(service: VirtualNode, monkeypatch: pytest.MonkeyPatch) -> None:
    source, dead = service.queue(1), service.queue(2)
    exchange(service, source, dead)

    with monkeypatch.context() as patch:
        patch.setattr(OrphanCollector, "forget", lambda *_: None)
        drop(service, dead)
    assert known(service) == {2}
    restart(service)
    service.loop.until(lambda: not known(service), orphan_collector.FORGET_SECONDS + 60)


def test_messages_under_way_to_a_deleted_queue_return_and_then_it_is_forgotten(service: VirtualNode) -> None:
    source, dead = service.queue(1), service.queue(2)
    exchange(service, source, dead)
    service.call(Send(source, [NewMessage(b"second")]))
    policy = DeadLetter(1, dead)
    service.receive(source, 0, dead_letter=policy)
    service.loop.run_for(1)
    del service.store.queues[2]
    service.call(Drop(dead))
    service.receive(source, 0, dead_letter=policy)  # by a frontend with an outdated cache
    service.loop.until(lambda: not known(service), orphan_collector.FORGET_SECONDS + 60)
    assert [message.payload for message in service.receive(source)] == [b"second"]


def test_a_living_peer_is_not_forgotten(service: VirtualNode) -> None:
    """Otherwise its transfers could be taken twice."""
    source, dead, third = service.queue(1), service.queue(2), service.queue(3)
    exchange(service, source, dead)
    exchange(service, third, dead)
    drop(service, third)
    restart(service)
    service.loop.run_for(30)
    assert known(service) == {1, 2}


def test_the_collector_retries_when_the_metadata_are_back(service: VirtualNode) -> None:
    service.queue(1)
    gone = service.queue(2)
    service.run(service.node.close())
    service.disk.kill()
    del service.store.queues[gone.partition]
    service.start()
    service.store.failing = 1.0
    service.loop.run_for(8)
    assert gone.partition in service.incarnation.partitions
    service.store.failing = 0.0
    service.loop.until(lambda: gone.partition not in service.incarnation.partitions, 30)


def test_a_peer_that_was_never_open_is_not_forgotten(service: VirtualNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first transfer to it waits, while the node restarts.  (Found by the simulator, publications of seed 28.)"""
    source = service.queue(1)
    dead = Target(2, 2)
    service.store.queues[2] = PartitionSettings(2, 2, 1, "queue2", bytes(16))
    known_settings, away = service.store.settings, True

    async def settings(target: Target) -> PartitionSettings | None:
        if away and target.partition == 2:
            raise StoreUnavailable("away")
        return await known_settings(target)

    monkeypatch.setattr(service.store, "settings", settings)
    service.send(source, b"first", b"second")
    policy = DeadLetter(1, dead)
    service.receive(source, 0)
    service.receive(source, 0, dead_letter=policy)
    service.call(CountMessages(source))  # answered when the transfer is durable
    restart(service)
    service.loop.run_for(30)
    away = False
    service.loop.until(service.quiet, 60)
    service.loop.run_for(orphan_collector.FORGET_SECONDS + 1)
    exchange(service, source, dead)
    assert sorted(message.payload for message in service.receive(dead, 60)) == [b"body", b"first", b"second"]
