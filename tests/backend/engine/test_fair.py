"""Fair queues: a standard queue whose messages carry a group."""

from tests.backend.engine.machine import PartitionMachine, holding


def test_groups_take_turns() -> None:
    queue = holding(*(f"a{place}" for place in range(20)), group="a")
    queue.send("b0", "b1", group="b")
    queue.send("none")
    received = queue.receive(messages_max=6)
    assert {"b0", "b1", "none"} <= set(received)


def test_a_noisy_group_is_last() -> None:
    queue = holding(*(f"noisy{place}" for place in range(100)), group="noisy")
    for _ in range(4):
        queue.receive(messages_max=10, visibility=600)
    assert queue.fold.lane_names["noisy"].noisy
    queue.send(*(f"quiet{place}" for place in range(8)), group="quiet")
    assert sum(body.startswith("quiet") for body in queue.receive(messages_max=10)) == 8


def test_a_noisy_group_is_served_when_no_other_waits() -> None:
    queue = holding(*(f"noisy{place}" for place in range(60)), group="noisy")
    for _ in range(6):
        assert len(queue.receive(messages_max=10)) == 10


def test_a_group_is_quiet_again_when_its_backlog_is_empty_or_it_sends_no_more() -> None:
    queue = holding(*(f"noisy{place}" for place in range(41)), group="noisy")
    for _ in range(4):
        queue.receive(messages_max=10, visibility=1200)
    lane = queue.fold.lane_names["noisy"]
    assert lane.noisy
    queue.pass_time(301)
    queue.send("quiet", group="quiet")
    assert len(queue.receive(messages_max=2)) == 2
    assert not lane.noisy


def test_one_receive_does_not_look_at_every_group() -> None:
    queue = PartitionMachine()
    for group in range(2000):
        queue.send("x", group=f"g{group}")
    seen: set[str] = set()
    for _ in range(200):
        claims = queue.claim(messages_max=10)
        seen |= {queue.message(claim.number).group or "" for claim in claims[:1]}
        queue.delete(*claims)
    assert len(seen) == 200
    assert queue.counters() == (0, 0, 0)
    assert not queue.fold.lane_names
