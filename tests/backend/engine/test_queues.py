"""Queues command by command: effects that no case of ``cases/*.yaml`` can express."""

from backend.api import DeadLetter, HandleOutcome, Target
from backend.engine.records import MoveTaskEnded, TransferDone
from backend.engine.snapshot import describe
from tests.backend.engine.machine import OTHER, PartitionMachine, holding


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


def test_deleting_what_has_just_expired_makes_the_time_durable() -> None:
    queue = holding("a", retention_seconds=60)
    (claim,) = queue.claim()
    queue.pass_time(61)
    assert queue.delete(claim) == [HandleOutcome.DONE]
    fold = queue.replayed()
    assert not fold.blocks, "also for a replay that knows no later time than the records'"
    assert queue.journal[-1][1] == queue.now


def test_a_dead_letter_has_its_source_and_its_times_of_send_and_receive() -> None:
    queue, dead, last = PartitionMachine(), PartitionMachine(partition=9), PartitionMachine(partition=10)
    (sent,) = queue.send("a")
    sent_ms = queue.now
    queue.pass_time(1)
    assert len(queue.claim(visibility=0)) == 1
    received_ms = queue.now
    assert queue.claim(dead_letter=DeadLetter(1, OTHER)) == []
    dead.pass_time(7)
    queue.hand_over(dead)
    (claim,) = dead.claim(visibility=0)
    moved = dead.message(claim.number)
    assert (moved.origin, moved.message_id) == (queue.settings.arn, bytes.fromhex(sent.message_id.replace("-", "")))
    assert claim.sent_ms == sent_ms, "a standard queue's dead letter keeps the time it was sent"
    assert claim.first_received_ms == received_ms
    assert dead.claim(dead_letter=DeadLetter(1, Target(10, 10))) == []
    dead.hand_over(last)
    last.now = dead.now
    (claim,) = last.claim(visibility=0)
    assert (claim.receives, claim.carried, claim.first_received_ms) == (1, 2, received_ms)


def test_a_message_that_a_task_moves_begins_anew() -> None:
    source, other = PartitionMachine(), PartitionMachine(partition=9)
    source.send("a")
    (claim,) = source.claim(visibility=0)
    source.write(source.queue.move_out([(claim.number, OTHER)], source.now))
    source.hand_over(other)
    other.pass_time(5)
    (claim,) = other.claim()
    assert (claim.receives, claim.carried, claim.first_received_ms) == (1, 0, other.now)


def test_a_transfer_is_taken_once() -> None:
    queue, dead = PartitionMachine(), PartitionMachine(partition=2)
    queue.send_dead("a", "b", to=dead.target)
    queue.hand_over(dead)
    queue.hand_over(dead)
    assert dead.counters() == (2, 0, 0)
    queue.write([TransferDone(2, [1, 2])])
    dead.write(dead.queue.purge(1))
    queue.send_dead("c", to=dead.target)
    queue.hand_over(dead)
    assert dead.counters() == (1, 0, 0)
    taken = dead.fold.incoming[1]
    assert (taken.acked_below, taken.above) == (3, {3}), "the source's mark frees the older ones, not the purge"


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


def test_a_dead_letter_of_a_group_lets_the_next_one_through() -> None:
    queue, dead = PartitionMachine(fifo=True), PartitionMachine(partition=2, fifo=True)
    queue.send("poison", "good", group="g")
    dead_letter = DeadLetter(1, dead.target, True)
    (claim,) = queue.claim(messages_max=1)
    queue.change(claim, 0)
    assert [queue.payloads[claim.number] for claim in queue.claim(dead_letter=dead_letter)] == [b"good"]
    dead.pass_time(60)
    queue.hand_over(dead)
    (claim,) = dead.claim()
    assert claim.sent_ms == dead.now, "a FIFO queue's dead letter begins its retention anew"
    assert dead.message(claim.number).group == "g"
