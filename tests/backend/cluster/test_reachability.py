"""Reachability of a cluster's nodes from their callers, as heartbeats report it."""

from collections.abc import Collection

from backend.cluster.reachability import BACK_SECONDS, SAMPLE_MAX, UNREACHABLE_SECONDS, Reachability, missed, sample
from metadata_service.models import Heartbeat

POLL_SECONDS = 0.5


def beats(**callers: Collection[str]) -> list[Heartbeat]:
    return [
        Heartbeat(name, number, 1, 1, 0, callers=sample(names)) for number, (name, names) in enumerate(callers.items())
    ]


def test_a_node_is_dead_if_most_peers_reach_another_but_not_it() -> None:
    two = ["f1", "f2"]
    assert missed(beats(a=two, b=two, c=two)) == set()
    assert missed(beats(a=two, b=two, c=[])) == {"c"}
    assert missed(beats(a=two, b=two, c=["f1"])) == set(), "half of them are not most"
    assert missed(beats(a=["f1"], b=[])) == {"b"}
    assert missed(beats(a=[], b=[], c=[])) == set(), "nobody calls"
    assert missed(beats(a=two)) == set(), "there is no other"


def test_connected_nodes_are_not_probed() -> None:
    assert missed(beats(a=["b", "c", "f"], b=["a", "c", "f"], c=["a", "b"])) == {"c"}
    assert missed(beats(a=["b", "c", "f"], b=["a", "c", "f"], c=["f"])) == set()


def test_a_sample_of_many_callers_is_enough() -> None:
    many = [f"frontend {number}" for number in range(10 * SAMPLE_MAX)]
    (beat,) = beats(a=many)
    assert len(beat.callers) == SAMPLE_MAX
    assert missed(beats(a=many, b=many, c=many[::-1])) == set()
    assert missed(beats(a=many, b=many, c=many[: len(many) // 4])) == {"c"}
    assert missed(beats(a=many, b=many, c=many[len(many) // 4 :])) == set()
    assert missed(beats(a=many, b=many[:3], c=many)) == {"b"}


def test_a_node_is_cut_off_when_it_has_been_missed_for_a_while_and_back_when_it_has_been_reached_for_longer() -> None:
    reach, now = Reachability(), 0.0

    def until(reached: bool, changed: bool) -> float:
        nonlocal now
        started_at = now
        while (reach.unreachable == {"b"}) != changed:
            now += POLL_SECONDS
            reach.update(beats(a=["f"], b=["f"] if reached else []), now)
            assert reach.unreachable <= {"b"}
            assert now - started_at < 60
        return now - started_at

    reach.update(beats(a=["f"], b=["f"]), now)
    for _ in range(2):
        assert UNREACHABLE_SECONDS <= until(False, True) <= UNREACHABLE_SECONDS + 2 * POLL_SECONDS
        assert BACK_SECONDS <= until(True, False) <= BACK_SECONDS + 2 * POLL_SECONDS
    for tick in range(100):  # intermittent
        now += POLL_SECONDS
        reach.update(beats(a=["f"], b=["f"] if tick % 5 == 0 else []), now)
    assert not reach.unreachable


def test_a_node_is_reachable_again_once_its_callers_have_connected() -> None:
    reach, now = Reachability(), 0.0
    while "b" not in reach.unreachable:
        now += POLL_SECONDS
        reach.update(beats(a=["f"], b=[]), now)
    reach.update(beats(a=["f"], b=["f"]), now + POLL_SECONDS)
    assert not reach.unreachable


def test_unobserved_time_does_not_count() -> None:
    reach = Reachability()
    for tick in range(3):
        reach.update(beats(a=["f"], b=[]), tick * 100 * UNREACHABLE_SECONDS)
    assert not reach.unreachable
