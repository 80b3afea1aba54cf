"""Queues whose receives delete the returned messages."""

import asyncio
from collections.abc import Iterator

import pytest

from backend import api
from tests.backend.nodes import restart
from tests.simulator.test_found import VirtualNode


@pytest.fixture(params=[1 << 20, 0])
def service(request: pytest.FixtureRequest) -> Iterator[VirtualNode]:
    """Service with bodies in memory, or on the disk only."""
    made = VirtualNode(payload_cache_bytes=request.param)
    yield made
    made.close()


@pytest.mark.parametrize("fifo", [False, True])
@pytest.mark.parametrize("seconds", [0, 30])
def test_messages_of_an_answer_are_gone(service: VirtualNode, fifo: bool, seconds: int) -> None:
    target = service.queue(7, fifo=fifo, at_most_once=True)
    service.send(target, b"a", b"b", group="g" if fifo else None)
    first = service.receive(target, seconds)
    assert [message.payload for message in first] == [b"a", b"b"]
    counters = service.call(api.CountMessages(target))
    assert (counters.visible, counters.in_flight, counters.stored_bytes) == (0, 0, 0)
    service.loop.run_for(60)
    assert service.receive(target) == []
    assert service.call(api.Delete(target, [first[0].handle])) == [api.HandleOutcome.DONE]
    restart(service, power=True)
    assert service.receive(target) == []


def test_the_next_of_a_group_need_not_wait(service: VirtualNode) -> None:
    target = service.queue(7, fifo=True, at_most_once=True)
    service.send(target, b"a", b"b", group="g")
    answers = [service.call(api.Receive(target, api.ReceiveOptions(1, 30))) for _ in range(3)]
    assert [[message.payload for message in answer] for answer in answers] == [[b"a"], [b"b"], []]


def test_a_repeated_attempt_gets_nothing_twice(service: VirtualNode) -> None:
    target = service.queue(7, fifo=True, at_most_once=True)
    service.send(target, b"a", group="g")
    assert len(service.receive(target, attempt="once")) == 1
    with pytest.raises(api.AttemptExpired):
        service.receive(target, attempt="once")


def test_messages_of_a_receive_that_was_cut_off_are_delivered_once_or_never(service: VirtualNode) -> None:
    """Cut the power at each moment of a receive."""
    target = service.queue(7, at_most_once=True)
    outcomes = set()
    for moment in range(40):
        body = b"m%d" % moment
        service.send(target, body)
        answered: list[bytes] = []

        async def receive(answered: list[bytes] = answered) -> None:
            answered += [
                message.payload for message in await service.node.call(api.Receive(target, api.ReceiveOptions(10, 5)))
            ]

        service.loop.create_task(receive())
        service.loop.run_for(moment * 0.0001)
        restart(service, power=True)
        service.loop.run_for(10)
        later = [message.payload for message in service.receive(target)]
        assert answered + later in ([body], []), "never twice"
        assert service.receive(target) == []
        outcomes.add((bool(answered), bool(later)))
    assert (True, False) in outcomes, "answered"
    assert (False, True) in outcomes, "cut off, and back"


def test_what_a_topic_delivered_is_deleted_after_its_receive_for_one_of_its_receivers(service: VirtualNode) -> None:
    topic, target = service.queue(8), service.queue(7, at_most_once=True)
    service.send(target, b"sent")
    service.call(api.Publish(topic, [api.Publication(b"published", deliveries=[api.Delivery(target, b"s" * 16)])]))
    service.loop.until(lambda: not service.incarnation.partitions[8].fold.publications, 10)
    first = service.receive(target, 1)
    assert [message.payload for message in first] == [b"sent", b"published"]
    service.loop.run_for(2)
    second = service.receive(target, 30)
    assert [message.payload for message in second] == [b"published"], "it was not deleted"
    handles = [first[1].handle, first[1].handle, first[0].handle, "no handle"]
    assert service.call(api.DeleteOnce(target, handles)) == [True, False, False, False]
    assert service.call(api.DeleteOnce(target, [second[0].handle])) == [False]
    restart(service, power=True)
    service.loop.run_for(60)
    assert service.receive(target) == []


def test_what_a_topic_delivered_is_not_deleted_while_it_moves(service: VirtualNode) -> None:
    topic, dead, target = service.queue(8), service.queue(9), service.queue(7, at_most_once=True)
    service.call(api.Publish(topic, [api.Publication(b"published", deliveries=[api.Delivery(target, b"s" * 16)])]))
    service.loop.until(lambda: not service.incarnation.partitions[8].fold.publications, 10)
    letter = api.DeadLetter(1, dead)
    (message,) = service.receive(target, 1, dead_letter=letter)
    service.loop.run_for(2)
    assert service.receive(target, dead_letter=letter) == []
    assert service.call(api.DeleteOnce(target, [message.handle])) == [False]
    assert [moved.payload for moved in service.receive(dead)] == [b"published"]


def test_a_segment_that_is_just_being_made_is_waited_for(service: VirtualNode, monkeypatch: pytest.MonkeyPatch) -> None:
    target = service.queue(7, at_most_once=True)
    service.send(target, b"a", b"b")
    append, results = service.incarnation.log.append, iter([True, False])

    def full_at_second(record: bytes, *, reserve: bool = False) -> int:
        if not next(results, True):
            raise api.StorageFull("no space in the journal")
        return append(record, reserve=reserve)

    monkeypatch.setattr(service.incarnation.log, "append", full_at_second)
    assert [message.payload for message in service.receive(target)] == [b"a", b"b"]
    assert next(results, None) is None
    service.loop.run_for(60)
    assert service.receive(target) == []


def test_dead_letters_and_other_queues_are_as_ever(service: VirtualNode) -> None:
    dead, target = service.queue(8), service.queue(7, at_most_once=True)
    service.send(target, b"a")
    letter = api.DeadLetter(1, dead)
    assert len(service.receive(target, dead_letter=letter)) == 1
    service.loop.run_for(60)
    assert service.receive(target, dead_letter=letter) == []
    assert service.receive(dead) == []
    service.send(dead, b"b")
    assert len(service.receive(dead, 1)) == 1
    service.loop.run_for(2)
    assert len(service.receive(dead, 1)) == 1


@pytest.mark.parametrize("max_receives", [1, 100])
def test_while_one_still_reads_another_may_receive(service: VirtualNode, max_receives: int) -> None:
    """A visibility timeout ends while the disk is slow: one receive, or the dead-letter queue, gets the message."""
    dead, target = service.queue(8), service.queue(7, at_most_once=True)
    letter = api.DeadLetter(max_receives, dead)
    service.send(target, b"a")
    service.incarnation.payload_cache.clear(service.incarnation.partitions[7])
    service.disk.latency_seconds = (3.0, 3.1)
    answers: list[list[bytes]] = []

    async def receive() -> None:
        answers.append(
            [
                message.payload
                for message in await service.node.call(api.Receive(target, api.ReceiveOptions(1, 1, 0, letter)))
            ]
        )

    first = service.loop.create_task(receive())
    service.loop.run_for(2)
    second = service.loop.create_task(receive())
    service.loop.until(lambda: first.done() and second.done(), 100)
    service.loop.until(service.quiet, 100)
    service.disk.latency_seconds = (0.0001, 0.001)
    moved = [message.payload for message in service.receive(dead)]
    assert sorted([*answers, moved]) == [[], [], [b"a"]]


@pytest.mark.parametrize("attempt", [None, "once"])
def test_a_wait_that_ends_loses_nothing(service: VirtualNode, attempt: str | None) -> None:
    """End the wait at each moment of a receive: it answers, or the message is available to the next one."""
    target = service.queue(7, fifo=True, at_most_once=True)
    outcomes = set()
    for moment in range(40):
        body = b"m%d" % moment
        service.send(target, body, group="g")
        command = api.ReceiveOptions(10, 5, 20, None, attempt and f"{attempt}-{moment}")
        poll = service.loop.create_task(service.node.call(api.Receive(target, command)))
        service.loop.run_for(moment * 0.0001)
        poll.cancel(api.WAIT_ENDS)
        service.loop.until(poll.done, 100)
        answered = [] if poll.cancelled() else [message.payload for message in poll.result()]
        service.loop.run_for(10)
        later = [message.payload for message in service.receive(target)]
        assert sorted([answered, later]) == [[], [body]]
        outcomes.add(bool(answered))
    assert True in outcomes


def test_a_wait_that_ends_gets_the_failure_of_the_log(service: VirtualNode, monkeypatch: pytest.MonkeyPatch) -> None:
    target = service.queue(7, at_most_once=True)
    service.send(target, b"a")
    barrier: asyncio.Future[None] = service.loop.create_future()
    monkeypatch.setattr(service.incarnation.log, "barrier", lambda: barrier)
    poll = service.loop.create_task(service.node.call(api.Receive(target, api.ReceiveOptions(10, 5, 20))))
    service.loop.run_for(0.1)
    for _ in range(2):
        poll.cancel(api.WAIT_ENDS)
        service.loop.run_for(0.1)
        assert not poll.done()
    barrier.set_exception(api.Unavailable("the log has failed"))
    service.loop.until(poll.done, 10)
    with pytest.raises(api.Unavailable, match="the log has failed"):
        poll.result()
