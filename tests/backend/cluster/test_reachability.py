"""Reachability of a cluster's nodes from their callers, as heartbeats report it."""

from __future__ import annotations

from collections.abc import Collection

from backend.cluster.reachability import BACK_SECONDS, CUT_OFF_SECONDS, SAMPLE_MOST, Reach, missed, sample
from metadata_service.models import Heartbeat

LOOK_SECONDS = 0.5


def beats(**callers: Collection[str]) -> list[Heartbeat]:
    return [
        Heartbeat(name, number, 1, 1, 0, callers=sample(names)) for number, (name, names) in enumerate(callers.items())
    ]


def test_a_node_is_missed_by_most_of_those_who_reach_another() -> None:
    two = ["f1", "f2"]
    assert missed(beats(a=two, b=two, c=two)) == set()
    assert missed(beats(a=two, b=two, c=[])) == {"c"}
    assert missed(beats(a=two, b=two, c=["f1"])) == set(), "half of them are not most"
    assert missed(beats(a=["f1"], b=[])) == {"b"}
    assert missed(beats(a=[], b=[], c=[])) == set(), "nobody calls"
    assert missed(beats(a=two)) == set(), "there is no other"


def test_nodes_that_call_each_other_are_not_asked() -> None:
    assert missed(beats(a=["b", "c", "f"], b=["a", "c", "f"], c=["a", "b"])) == {"c"}
    assert missed(beats(a=["b", "c", "f"], b=["a", "c", "f"], c=["f"])) == set()


def test_of_many_callers_a_sample_tells_as_much() -> None:
    many = [f"frontend {number}" for number in range(10 * SAMPLE_MOST)]
    (beat,) = beats(a=many)
    assert len(beat.callers) == SAMPLE_MOST
    assert missed(beats(a=many, b=many, c=many[::-1])) == set()
    assert missed(beats(a=many, b=many, c=many[: len(many) // 4])) == {"c"}
    assert missed(beats(a=many, b=many, c=many[len(many) // 4 :])) == set()
    assert missed(beats(a=many, b=many[:3], c=many)) == {"b"}


def test_a_node_is_cut_off_when_it_has_been_missed_for_a_while_and_back_when_it_has_been_reached_for_longer() -> None:
    reach, now = Reach(), 0.0

    def until(reached: bool, changed: bool) -> float:
        nonlocal now
        started_at = now
        while (reach.cut_off == {"b"}) != changed:
            now += LOOK_SECONDS
            reach.update(beats(a=["f"], b=["f"] if reached else []), now)
            assert reach.cut_off <= {"b"}
            assert now - started_at < 60
        return now - started_at

    reach.update(beats(a=["f"], b=["f"]), now)
    for _ in range(2):
        assert CUT_OFF_SECONDS <= until(False, True) <= CUT_OFF_SECONDS + 2 * LOOK_SECONDS
        assert BACK_SECONDS <= until(True, False) <= BACK_SECONDS + 2 * LOOK_SECONDS
    for tick in range(100):  # intermittent
        now += LOOK_SECONDS
        reach.update(beats(a=["f"], b=["f"] if tick % 5 == 0 else []), now)
    assert not reach.cut_off


def test_a_node_that_its_callers_come_to_late_is_back_as_soon_as_they_have() -> None:
    reach, now = Reach(), 0.0
    while "b" not in reach.cut_off:
        now += LOOK_SECONDS
        reach.update(beats(a=["f"], b=[]), now)
    reach.update(beats(a=["f"], b=["f"]), now + LOOK_SECONDS)
    assert not reach.cut_off


def test_time_in_which_nobody_looked_does_not_count() -> None:
    reach = Reach()
    for tick in range(3):
        reach.update(beats(a=["f"], b=[]), tick * 100 * CUT_OFF_SECONDS)
    assert not reach.cut_off
