"""Removal of the remains of deleted queues."""

from __future__ import annotations

import pytest

from backend.api import DeadLetter, NewMessage, Target
from backend.serving.orphan_collector import OrphanCollector
from tests.simulator.test_found import VirtualNode


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
    return {peer for fold in folds for peer in (*fold.outgoing, *fold.taken)}


def drop(service: VirtualNode, target: Target) -> None:
    del service.store.queues[target.partition]
    service.run(service.node.drop(target))
    service.loop.run_for(1)


@pytest.mark.parametrize("gone", ["source", "dead letter queue"])
@pytest.mark.parametrize("restart", [False, True])
def test_who_exchanged_messages_with_a_deleted_queue_forgets_it(gone: str, restart: bool) -> None:
    """Otherwise a service that creates and deletes queues with a dead-letter queue would leak some bytes of each."""
    service = VirtualNode()
    lasting = service.queue(1)
    for number in range(2, 12):
        other = service.queue(number)
        source, dead = (other, lasting) if gone == "source" else (lasting, other)
        exchange(service, source, dead)
        assert other.partition in known(service)
        drop(service, other)
    assert known(service) == set()
    if restart:
        service.close()
        service.disk.kill()
        service.start()
        assert known(service) == set()
    for message in service.receive(lasting, 0):
        assert message.payload == b"body"
    service.close()


def test_what_a_crash_left_between_is_found_at_the_next_start(monkeypatch: pytest.MonkeyPatch) -> None:
    service = VirtualNode()
    source, dead = service.queue(1), service.queue(2)
    exchange(service, source, dead)

    async def not_yet(*_: object) -> None:
        pass

    with monkeypatch.context() as patch:
        patch.setattr(OrphanCollector, "forget", not_yet)
        drop(service, dead)
    assert known(service) == {2}
    service.close()
    service.disk.kill()
    service.start()
    service.loop.until(lambda: not known(service), 60)
    service.close()


def test_what_is_under_way_to_a_deleted_queue_comes_back_and_then_it_is_forgotten() -> None:
    service = VirtualNode()
    source, dead = service.queue(1), service.queue(2)
    exchange(service, source, dead)
    service.run(service.node.send(source, [NewMessage(b"second")]))
    policy = DeadLetter(1, dead)
    service.receive(source, 0, dead_letter=policy)
    service.loop.run_for(1)
    del service.store.queues[2]
    service.run(service.node.drop(dead))
    service.receive(source, 0, dead_letter=policy)  # by a frontend with an outdated cache
    service.loop.until(lambda: not known(service), 60)
    assert [message.payload for message in service.receive(source)] == [b"second"]
    service.close()


def test_a_living_peer_is_not_forgotten() -> None:
    """Otherwise its transfers could be taken twice."""
    service = VirtualNode()
    source, dead, third = service.queue(1), service.queue(2), service.queue(3)
    exchange(service, source, dead)
    exchange(service, third, dead)
    drop(service, third)
    service.close()
    service.disk.kill()
    service.start()
    service.loop.run_for(30)
    assert known(service) == {1, 2}
    service.close()


def test_the_collector_asks_again_when_the_metadata_are_back() -> None:
    service = VirtualNode()
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
    service.close()
