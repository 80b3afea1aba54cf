"""FIFO queues: order, groups, attempts."""

from __future__ import annotations

import msgspec
import pytest

from backend.api import AttemptExpired, DeadLetter, HandleOutcome, Target
from backend.engine.records import Quarantined
from backend.engine.snapshot import describe
from tests.backend.engine.machine import PartitionMachine


def test_a_group_in_flight_delivers_nothing_more() -> None:
    queue = PartitionMachine(fifo=True)
    queue.send("a1", "a2", "a3", group="a")
    assert queue.receive(most=2) == ["a1", "a2"]
    queue.send("a4", group="a")
    assert queue.receive() == []
    queue.send("b1", group="b")
    assert queue.receive() == ["b1"]


def test_one_receive_takes_several_of_a_group_then_of_the_next() -> None:
    queue = PartitionMachine(fifo=True)
    queue.send("a1", "a2", group="a")
    queue.send("b1", group="b")
    queue.send("a3", group="a")
    assert queue.receive(most=10) == ["a1", "a2", "a3", "b1"]


def test_an_emptied_group_is_free_again() -> None:
    queue = PartitionMachine(fifo=True)
    queue.send("a1", group="a")
    queue.delete(*queue.claim())
    assert not queue.fold.lane_names
    queue.send("a2", group="a")
    assert queue.receive() == ["a2"]


def test_what_is_before_the_first_hidden_message_comes_back_alone() -> None:
    queue = PartitionMachine(fifo=True)
    queue.send("1", "2", "3", "4", "5", group="g")
    claims = queue.claim(most=5, visibility=10)
    queue.change(claims[2], 100)
    queue.pass_time(10)
    assert queue.receive() == ["1", "2"]
    queue.pass_time(100)
    assert queue.receive() == ["1", "2", "3", "4", "5"]


def test_deleting_what_blocks_frees_the_rest() -> None:
    queue = PartitionMachine(fifo=True)
    queue.send("1", "2", "3", group="g")
    claims = queue.claim(most=2, visibility=30)
    queue.delete(claims[0])
    assert queue.receive() == []
    queue.delete(claims[1])
    assert queue.receive() == ["3"]


def test_a_claim_that_has_ended_deletes_nothing() -> None:
    queue = PartitionMachine(fifo=True)
    queue.send("a", group="g")
    (claim,) = queue.claim(visibility=5)
    queue.pass_time(5)
    assert queue.delete(claim) == [HandleOutcome.EXPIRED]
    assert queue.change(claim, 10) == HandleOutcome.EXPIRED
    (claim,) = queue.claim(visibility=5)
    queue.change(claim, 60)
    queue.pass_time(30)
    assert queue.delete(claim) == [HandleOutcome.DONE]
    assert queue.delete(claim) == [HandleOutcome.DONE]


def test_a_handle_of_an_earlier_receive_does_nothing() -> None:
    queue = PartitionMachine(fifo=True)
    queue.send("a", group="g")
    (first,) = queue.claim(visibility=0)
    (later,) = queue.claim()
    assert queue.delete(first) == [HandleOutcome.EXPIRED]
    assert queue.change(first, 10) == HandleOutcome.GONE
    assert queue.delete(first, later, first) == [HandleOutcome.EXPIRED, HandleOutcome.DONE, HandleOutcome.DONE]


def test_the_queues_delay_holds_for_what_is_stored() -> None:
    queue = PartitionMachine(fifo=True, delay_seconds=10)
    queue.send("a", group="g")
    queue.pass_time(5)
    queue.send("b", group="g")
    assert queue.counters() == (0, 0, 2)
    queue.pass_time(5)
    assert queue.counters() == (1, 0, 1)
    queue.write(queue.queue.configure(msgspec.structs.replace(queue.settings, version=2, delay_seconds=0)))
    assert queue.counters() == (2, 0, 0)
    assert queue.receive() == ["a", "b"]


def test_a_delayed_group_is_ready_when_its_first_message_is_due() -> None:
    queue = PartitionMachine(fifo=True, delay_seconds=10)
    queue.send("a", group="g")
    queue.pass_time(9.999)
    assert queue.receive() == []
    assert queue.fold.due == queue.now + 1
    queue.pass_time(0.001)
    assert queue.receive() == ["a"]


@pytest.mark.parametrize("end", ["deleted", "quarantined", "a dead letter", "moved", "expired"])
def test_what_is_behind_a_message_that_is_gone_is_announced_when_it_is_due(end: str) -> None:
    queue = PartitionMachine(fifo=True, delay_seconds=10, retention_seconds=12 if end == "expired" else 60)
    queue.send("a", group="g")
    queue.pass_time(5)
    queue.send("b", group="g")
    queue.pass_time(5.2)
    (first,) = queue.claim(visibility=30 if end in ("deleted", "expired") else 0)
    match end:
        case "deleted":
            queue.delete(first)
        case "quarantined":
            queue.write([Quarantined([first.number])])
        case "a dead letter":
            assert queue.claim(dead_letter=DeadLetter(1, Target(9, 9))) == []
        case "moved":
            queue.write(queue.queue.move_out([(first.number, Target(9, 9))], queue.now))
        case _:
            queue.pass_time(2.3)
            queue.fold.advance(queue.now)
    announced = queue.fold.due
    queue.pass_time(2.5 if end == "expired" else 4.8)
    assert announced <= queue.now
    assert queue.receive() == ["b"]


def test_an_attempt_can_be_repeated() -> None:
    queue = PartitionMachine(fifo=True)
    queue.send("1", "2", group="g")
    first = queue.claim(attempt="x", visibility=30)
    queue.pass_time(20)
    again = queue.claim(attempt="x", visibility=30)
    assert [queue.handle(claim) for claim in again] == [queue.handle(claim) for claim in first]
    queue.pass_time(20)
    assert queue.counters() == (0, 2, 0), "the repetition set the visibility anew"
    queue.delete(first[0])
    with pytest.raises(AttemptExpired):
        queue.claim(attempt="x")


@pytest.mark.parametrize("change", ["delete", "visibility"])
def test_an_attempt_ends_with_any_change(change: str) -> None:
    queue = PartitionMachine(fifo=True)
    queue.send("1", "2", group="g")
    claims = queue.claim(attempt="x")
    if change == "delete":
        queue.delete(claims[1])
    else:
        queue.change(claims[1], 60)
    with pytest.raises(AttemptExpired):
        queue.claim(attempt="x")
    assert describe(queue.replayed()) == describe(queue.fold)


def test_an_attempt_is_forgotten_after_five_minutes() -> None:
    queue = PartitionMachine(fifo=True)
    queue.send("1", group="g")
    queue.claim(attempt="x", visibility=10)
    queue.pass_time(300)
    (claim,) = queue.claim(attempt="x", visibility=10)
    assert claim.receives == 2


def test_a_dead_letter_of_a_group_lets_the_next_one_through() -> None:
    queue, dead = PartitionMachine(fifo=True), PartitionMachine(partition=2, fifo=True)
    queue.send("poison", "good", group="g")
    dead_letter = DeadLetter(1, dead.target, True)
    (claim,) = queue.claim(most=1)
    queue.change(claim, 0)
    assert [queue.payloads[claim.number] for claim in queue.claim(dead_letter=dead_letter)] == [b"good"]
    dead.pass_time(60)
    queue.hand_over(dead)
    (claim,) = dead.claim()
    assert claim.sent_ms == dead.now, "a FIFO queue's dead letter begins its retention anew"
    assert dead.message(claim.number).group == "g"


def test_the_in_flight_limit_is_silent() -> None:
    queue = PartitionMachine(fifo=True, in_flight_limit=1)
    queue.send("1", "2", group="g")
    assert queue.receive() == ["1"]
    assert queue.receive() == []


def test_groups_that_may_deliver_take_turns() -> None:
    queue = PartitionMachine(fifo=True)
    for group in "abc":
        queue.send(f"{group}1", f"{group}2", group=group)
    claims = queue.claim(most=1)
    assert queue.receive(most=1) == ["b1"]
    queue.delete(*claims)
    assert queue.receive(most=1) == ["c1"], "group a has just had its turn"
    assert queue.receive(most=1) == ["a2"]
