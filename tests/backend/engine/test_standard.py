"""Standard queues, command by command."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from backend.api import DeadLetter, HandleOutcome, OverLimit, Target
from backend.engine.records import MoveTaskEnded, TransferBack, TransferDone
from backend.engine.snapshot import describe
from tests.backend.engine.machine import PartitionMachine
from tests.backend.engine.test_handover import copied


def test_a_message_is_invisible_until_its_claim_ends() -> None:
    queue = PartitionMachine()
    queue.send("a")
    assert queue.receive(visibility=30) == ["a"]
    queue.pass_time(29.999)
    assert queue.receive() == []
    queue.pass_time(0.001)
    assert queue.receive() == ["a"]


def test_a_deleted_message_is_gone_and_deleting_it_again_succeeds() -> None:
    queue = PartitionMachine()
    queue.send("a")
    (claim,) = queue.claim()
    assert queue.delete(claim, claim) == [HandleOutcome.DONE, HandleOutcome.DONE]
    assert queue.delete(claim) == [HandleOutcome.DONE]
    queue.pass_time(100)
    assert queue.receive() == []
    assert queue.counters() == (0, 0, 0)
    assert not queue.fold.blocks
    assert not queue.fold.segments


def test_every_handle_of_a_message_deletes_it() -> None:
    queue = PartitionMachine()
    queue.send("a", "b", "c")
    first, second, third = queue.claim(visibility=5)
    queue.pass_time(6)
    assert queue.delete(first) == [HandleOutcome.DONE], "its claim has ended"
    assert queue.counters() == (2, 0, 0)
    again, still = queue.claim()
    assert again.receives == 2
    assert queue.delete(second) == [HandleOutcome.DONE], "a later receive has claimed it"
    assert queue.counters() == (0, 1, 0)
    assert queue.delete(again, second) == [HandleOutcome.DONE] * 2, "it is gone"
    queue.change(still, 0)
    assert queue.delete(third) == [HandleOutcome.DONE]
    assert queue.counters() == (0, 0, 0)
    assert describe(queue.replayed()) == describe(queue.fold)


def test_a_handle_of_an_earlier_receive_changes_the_visibility_of_the_later_one() -> None:
    queue = PartitionMachine()
    queue.send("a")
    (first,) = queue.claim(visibility=5)
    queue.pass_time(6)
    (later,) = queue.claim(visibility=30)
    assert queue.change(first, 100) == HandleOutcome.DONE
    queue.pass_time(99)
    assert queue.receive() == []
    assert queue.change(first, 0) == HandleOutcome.DONE
    assert queue.receive(visibility=0) == ["a"]
    assert queue.change(later, 10) == HandleOutcome.DONE, "the claim of the third receive has just ended"
    assert queue.receive() == []
    assert describe(queue.replayed()) == describe(queue.fold)
    assert queue.delete(first) == [HandleOutcome.DONE]
    assert [queue.change(one, 10) for one in (first, later)] == [HandleOutcome.GONE] * 2


def test_the_twelve_hours_count_from_the_latest_receive_whichever_handle_is_used() -> None:
    queue = PartitionMachine()
    queue.send("a")
    (first,) = queue.claim(visibility=5)
    queue.pass_time(3600)
    queue.claim(visibility=30)
    assert queue.change(first, 43_200) == HandleOutcome.DONE
    queue.pass_time(10)
    assert queue.change(first, 43_200) == HandleOutcome.BEYOND_LIMIT
    assert queue.change(first, 43_190) == HandleOutcome.DONE


def test_a_message_that_was_deleted_on_its_way_elsewhere_does_not_come_back() -> None:
    queue = PartitionMachine()
    queue.send("a", "b")
    first, _ = queue.claim(visibility=0)
    queue.claim(dead_letter=DeadLetter(1, Target(9, 9)))
    assert queue.change(first, 10) == HandleOutcome.GONE
    assert queue.delete(first) == [HandleOutcome.DONE]
    assert queue.counters() == (0, 1, 0)
    queue.write([TransferBack(9, [1, 2])])
    assert queue.receive() == ["b"]
    assert describe(queue.replayed()) == describe(queue.fold)


def test_a_claim_that_is_given_back_is_one_by_its_own_handle_only() -> None:
    queue = PartitionMachine()
    queue.send("a")
    (first,) = queue.claim(visibility=0)
    (later,) = queue.claim()
    assert queue.queue.release([queue.handle(first)], queue.now) == []
    assert len(queue.queue.release([queue.handle(later)], queue.now)) == 1
    assert queue.change(first, 60) == HandleOutcome.DONE
    assert queue.queue.release([queue.handle(later)], queue.now) == [], "a client wants it to last"


def test_handles_that_were_never_issued_or_are_of_another_queue() -> None:
    queue, other = PartitionMachine(), PartitionMachine(partition=2)
    other.send("x")
    (foreign,) = other.claim()
    assert queue.queue.delete([other.handle(foreign), "garbage", "AAAA", ""], queue.now)[1] == [
        HandleOutcome.OTHER_QUEUE,
        HandleOutcome.MALFORMED,
        HandleOutcome.MALFORMED,
        HandleOutcome.MALFORMED,
    ]
    forged = queue.queue.handles.issue(foreign.number + 10, 1, queue.now)
    assert queue.queue.delete([forged], queue.now)[1] == [HandleOutcome.MALFORMED]


def test_visibility_can_be_extended_shortened_and_ended() -> None:
    queue = PartitionMachine()
    queue.send("a")
    (claim,) = queue.claim(visibility=10)
    assert queue.change(claim, 60) == HandleOutcome.DONE
    queue.pass_time(59)
    assert queue.receive() == []
    assert queue.change(claim, 1) == HandleOutcome.DONE
    queue.pass_time(1)
    (claim,) = queue.claim(visibility=10)
    assert claim.receives == 2
    assert queue.change(claim, 0) == HandleOutcome.DONE
    (claim,) = queue.claim(visibility=10)
    assert claim.receives == 3, "a change is no receive"


def test_a_claim_lasts_twelve_hours_at_most() -> None:
    queue = PartitionMachine()
    queue.send("a")
    (claim,) = queue.claim(visibility=43_200)
    queue.pass_time(10)
    assert queue.change(claim, 43_200) == HandleOutcome.BEYOND_LIMIT
    assert queue.change(claim, 43_190) == HandleOutcome.DONE


def test_a_handle_that_has_just_expired_takes_its_message_back() -> None:
    queue = PartitionMachine()
    queue.send("a")
    (claim,) = queue.claim(visibility=5)
    queue.pass_time(6)
    assert queue.change(claim, 30) == HandleOutcome.DONE
    assert queue.receive() == []
    queue.delete(claim)
    assert queue.change(claim, 30) == HandleOutcome.GONE


def test_delays_of_message_and_queue() -> None:
    queue = PartitionMachine(delay_seconds=10)
    queue.send("queue's")
    queue.send("none", delay=0)
    queue.send("own", delay=20)
    assert queue.counters() == (1, 0, 2)
    assert queue.receive() == ["none"]
    queue.pass_time(10)
    assert queue.receive() == ["queue's"]
    queue.pass_time(9.999)
    assert queue.receive() == []
    queue.pass_time(0.001)
    assert queue.receive() == ["own"]


def test_a_new_delay_does_not_reach_messages_already_sent() -> None:
    queue = PartitionMachine()
    queue.send("a")
    queue.write(queue.queue.configure(replace(queue.settings, version=2, delay_seconds=60)))
    queue.send("b")
    assert queue.receive() == ["a"]
    assert queue.counters() == (0, 1, 1)


def test_retention_ends_messages_in_any_state() -> None:
    queue = PartitionMachine(retention_seconds=60)
    queue.send("waits", "flies")
    queue.send("delayed", delay=600)
    queue.claim(most=1, visibility=600)
    queue.pass_time(59)
    assert sum(queue.counters()) == 3
    queue.pass_time(1.2)
    assert queue.counters() == (0, 0, 0)
    assert not queue.fold.in_flight
    assert not queue.fold.blocks


def test_deleting_what_has_just_expired_makes_the_time_durable() -> None:
    queue = PartitionMachine(retention_seconds=60)
    queue.send("a")
    (claim,) = queue.claim()
    queue.pass_time(61)
    assert queue.delete(claim) == [HandleOutcome.DONE]
    fold = queue.replayed()
    assert not fold.blocks, "also for a replay that knows no later time than the records'"
    assert queue.journal[-1][1] == queue.now


def test_a_changed_retention_holds_for_what_is_stored() -> None:
    queue = PartitionMachine()
    queue.send("a")
    queue.pass_time(120)
    queue.write(queue.queue.configure(replace(queue.settings, version=2, retention_seconds=60)))
    assert queue.counters() == (0, 0, 0)


def test_older_settings_are_ignored() -> None:
    queue = PartitionMachine()
    queue.write(queue.queue.configure(replace(queue.settings, version=3, delay_seconds=5)))
    assert queue.queue.configure(replace(queue.settings, version=2, delay_seconds=9)) == []


def test_the_in_flight_limit() -> None:
    queue = PartitionMachine(in_flight_limit=3)
    queue.send("a", "b", "c", "d")
    assert len(queue.claim(most=10, visibility=30)) == 3
    with pytest.raises(OverLimit):
        queue.claim()
    assert queue.claim(wait=1) == []
    queue.pass_time(30)
    assert len(queue.claim(most=10)) == 3


def test_tokens_answer_twins_with_the_first_answer() -> None:
    queue = PartitionMachine()
    (first,) = queue.send("a", token=b"t" * 16)
    (twin,) = queue.send("b", token=b"t" * 16)
    assert (twin.message_id, twin.duplicate) == (first.message_id, True)
    (other,) = queue.send("c", token=b"u" * 16, also=b"t" * 16)
    assert other.message_id == first.message_id
    queue.pass_time(300)
    (later,) = queue.send("d", token=b"t" * 16)
    assert not later.duplicate
    both = queue.send("e", "f", token=b"v" * 16)
    assert both[0].message_id == both[1].message_id, "twins in one batch"


def test_purge_takes_everything_and_tokens_too() -> None:
    queue = PartitionMachine()
    queue.send("a", "b", token=None)
    queue.send("c", token=b"t" * 16)
    queue.send("d", delay=60)
    queue.claim(most=1)
    queue.write(queue.queue.purge(1))
    assert queue.counters() == (0, 0, 0)
    assert queue.queue.purge(1) == [], "repeatable"
    (again,) = queue.send("e", token=b"t" * 16)
    assert not again.duplicate
    queue.pass_time(100)
    assert queue.receive() == ["e"]


def test_what_came_back_and_what_is_new_take_turns() -> None:
    queue = PartitionMachine()
    queue.send(*"abcdef")
    for claim in queue.claim(most=3):
        queue.change(claim, 0)
    received = queue.receive(most=4)
    assert sorted(received) == ["a", "b", "d", "e"]


def test_a_dead_letter_leaves_at_the_receive_after_the_last() -> None:
    queue, dead = PartitionMachine(), PartitionMachine(partition=2)
    dead_letter = DeadLetter(2, dead.target)
    (sent,) = queue.send("a")
    for receives in (1, 2):
        (claim,) = queue.claim(visibility=0, dead_letter=dead_letter)
        assert claim.receives == receives
    assert queue.claim(dead_letter=dead_letter) == []
    assert queue.counters() == (0, 1, 0), "under way: hidden here, and counted here"
    dead.pass_time(7)
    queue.hand_over(dead)
    queue.write([TransferDone(2, [1])])
    assert queue.counters() == (0, 0, 0)
    (claim,) = dead.claim()
    moved = dead.message(claim.number)
    assert moved.origin == queue.settings.arn
    assert moved.message_id is not None
    assert moved.message_id.hex() == sent.message_id.replace("-", "")
    assert claim.sent_ms == queue.now, "a standard queue's dead letter keeps the time it was sent"
    assert claim.receives == 1


async def test_a_dead_letter_keeps_the_count_of_its_receives() -> None:
    source, dead, last = PartitionMachine(), PartitionMachine(partition=9), PartitionMachine(partition=10)
    source.send("a")
    first = source.now
    for _ in range(2):
        assert len(source.claim(visibility=0)) == 1
        source.pass_time(1)
    source.claim(dead_letter=DeadLetter(2, Target(9, 9)))
    source.hand_over(dead)
    dead.pass_time(5)
    (claim,) = dead.claim(visibility=0, dead_letter=DeadLetter(2, Target(10, 10)))
    assert (claim.receives, claim.carried, claim.first_received_ms) == (1, 2, first)
    (claim,) = dead.claim(visibility=0, dead_letter=DeadLetter(2, Target(10, 10)))
    assert (claim.receives, claim.carried, claim.first_received_ms) == (2, 2, first), "its own policy counts"
    dead.counters()
    assert describe(dead.replayed()) == describe(dead.fold)
    assert describe(await copied(dead.fold)) == describe(dead.fold)
    assert dead.delete(claim) == [HandleOutcome.DONE]
    dead.send("b")
    dead.claim(visibility=0)
    assert dead.claim(dead_letter=DeadLetter(1, Target(10, 10))) == []
    dead.hand_over(last)
    last.now = dead.now
    (claim,) = last.claim(visibility=0)
    assert (claim.receives, claim.carried) == (1, 1)


def test_a_message_that_a_task_moves_begins_anew() -> None:
    source, other = PartitionMachine(), PartitionMachine(partition=9)
    source.send("a")
    (claim,) = source.claim(visibility=0)
    source.write(source.queue.move_out([(claim.number, Target(9, 9))], source.now))
    source.hand_over(other)
    other.pass_time(5)
    (claim,) = other.claim()
    assert (claim.receives, claim.carried, claim.first_received_ms) == (1, 0, other.now)


def test_the_count_survives_a_purge_while_the_message_is_under_way() -> None:
    source, dead = PartitionMachine(), PartitionMachine(partition=9)
    source.send("a")
    source.claim(visibility=0)
    source.claim(dead_letter=DeadLetter(1, Target(9, 9)))
    source.write(source.queue.purge(1))
    source.hand_over(dead)
    (claim,) = dead.claim()
    assert (claim.receives, claim.carried) == (1, 1)


def test_a_transfer_is_taken_once() -> None:
    queue, dead = PartitionMachine(), PartitionMachine(partition=2)
    queue.send("a", "b")
    queue.claim(visibility=0)
    queue.claim(dead_letter=DeadLetter(1, dead.target))
    queue.hand_over(dead)
    queue.hand_over(dead)
    assert dead.counters() == (2, 0, 0)
    queue.write([TransferDone(2, [1, 2])])
    dead.write(dead.queue.purge(1))
    queue.send("c")
    queue.claim(visibility=0)
    queue.claim(dead_letter=DeadLetter(1, dead.target))
    queue.hand_over(dead)
    assert dead.counters() == (1, 0, 0)
    taken = dead.fold.taken[1]
    assert (taken.below, taken.above) == (3, {3}), "the source's mark let the older ones be forgotten, not the purge"


def test_a_message_whose_destination_is_gone_comes_back() -> None:
    queue = PartitionMachine()
    queue.send("a")
    queue.claim(visibility=0)
    queue.claim(dead_letter=DeadLetter(1, Target(9, 9)))
    queue.write([TransferBack(9, [1])])
    assert queue.receive() == ["a"]


def test_purge_while_a_message_is_under_way() -> None:
    queue = PartitionMachine()
    queue.send("a", "b")
    queue.claim(most=1, visibility=0)
    queue.claim(most=1, dead_letter=DeadLetter(1, Target(9, 9)))
    queue.write(queue.queue.purge(1))
    assert queue.counters() == (0, 1, 0), "its transfer is to be settled first"
    assert describe(queue.replayed()) == describe(queue.fold)
    queue.write([TransferBack(9, [1])])
    assert queue.counters() == (0, 0, 0), "it was purged when it was under way"


def test_what_is_sent_after_a_purge_beside_a_message_under_way_expires() -> None:
    queue = PartitionMachine(retention_seconds=60)
    queue.send("a")
    queue.claim(visibility=0)
    queue.claim(dead_letter=DeadLetter(1, Target(9, 9)))
    queue.write(queue.queue.purge(1))
    queue.send("b")
    queue.pass_time(61)
    assert queue.counters() == (0, 1, 0)
    assert describe(queue.replayed()) == describe(queue.fold)


def test_a_handle_from_before_a_purge_beside_a_message_under_way_deletes_nothing() -> None:
    queue = PartitionMachine()
    queue.send("a")
    queue.claim(visibility=0)
    queue.claim(dead_letter=DeadLetter(1, Target(9, 9)))
    queue.send("b")
    claims = queue.claim()
    queue.write(queue.queue.purge(1))
    assert queue.delete(*claims) == [HandleOutcome.DONE]
    assert queue.change(claims[0], 9) == HandleOutcome.GONE


def test_a_queue_that_is_kept_empty_remembers_no_ages() -> None:
    queue = PartitionMachine()
    for _ in range(300):
        queue.send(*"abcdefghij" * 103)
        while claims := queue.claim():
            queue.delete(*claims)
    assert len(queue.fold._ages) < 100


def test_move_tasks() -> None:
    queue, other = PartitionMachine(), PartitionMachine(partition=2)
    queue.send("a", "b", "c")
    queue.write(queue.queue.start_move("task", None, 0, queue.now))
    chosen = queue.queue.movable(2, queue.now)
    queue.write(queue.queue.move_out([(number, other.target) for number, _ in chosen], queue.now))
    queue.hand_over(other)
    queue.write([TransferDone(2, [1, 2])])
    task = queue.fold.tasks[0]
    assert (task.status, task.total, task.moved) == ("RUNNING", 3, 2)
    (first, _) = other.claim()
    assert other.message(first.number).message_id is None, "a moved message gets a new id"
    queue.write([MoveTaskEnded("task", "COMPLETED")])
    assert queue.fold.running_task is None
    assert describe(queue.replayed()) == describe(queue.fold)
