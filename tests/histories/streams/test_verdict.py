"""The checkers of topics' histories, on constructed histories."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.histories.streams.history import longest_wait
from tests.histories.streams.making import CASES, made_topic
from tests.histories.streams.verdict import judge_topic


def text_of(case: dict[str, Any]) -> str:
    """Return the good history with the changes of the case."""
    lines = str(CASES["good"]).splitlines()
    for beginning, by in case.get("replace", {}).items():
        (at,) = [number for number, line in enumerate(lines) if line.startswith(f"{beginning} ")]
        lines[at] = by
    return "\n".join([*lines, case.get("add", "")])


def made_case(case: dict[str, Any]) -> Any:
    history = made_topic(text_of(case))
    history.reads.sort(key=lambda read: read.at)
    return history


@pytest.mark.parametrize("case", CASES["possible"], ids=lambda case: str(case["name"]))
def test_possible(case: dict[str, Any]) -> None:
    judge_topic(made_case(case)).check()


@pytest.mark.parametrize("case", CASES["impossible"], ids=lambda case: str(case["name"]))
def test_impossible(case: dict[str, Any]) -> None:
    verdict = judge_topic(made_case(case))
    says = case["says"] if isinstance(case["says"], list) else [case["says"]]
    assert len(verdict.broken) == len(says), verdict.broken
    for found, said in zip(verdict.broken, says, strict=True):
        assert said in found
    assert (len(verdict.lost), len(verdict.doubled)) == (case.get("lost", 0), case.get("doubled", 0))
    with pytest.raises(AssertionError, match="promises were broken"):
        verdict.check()


def test_a_record_that_changes_is_noticed() -> None:
    history = made_topic(CASES["good"])
    history.store(1, 0, "a3")
    assert judge_topic(history).broken == []
    history.store(1, 0, "a4")
    assert judge_topic(history).broken == ["a4 is at 1:0, where a3 was read earlier"]


# --- waiting times ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("waits", "seconds"),
    [
        ([], 0.0),
        ([(0, 1), (1, 2), (2, 3)], 1.0),
        ([(0, 1), (5, 6)], 1.0),  # in between, nothing waited
        ([(0, 10), (9, 9.5)], 9.5),  # something waited, whatever was done first
        ([(0, 1), (1, 5), (1, 5), (1, 5)], 4.0),
        ([(2, 9), (2, 9.5)], 7.0),
        ([(-50, 4)], 4.0),  # from the beginning of the time
        ([(9, 60)], 51.0),  # it overlaps the time
        ([(30, 60)], 0.0),
        ([(5, math.inf)], 15.0),
        ([(5, math.inf), (6, math.inf)], 15.0),
    ],
)
def test_longest_wait(waits: list[tuple[float, float]], seconds: float) -> None:
    assert longest_wait(waits, 0, 20) == seconds


def test_waiting_times_of_a_history() -> None:
    history = made_topic(CASES["good"])
    assert history.longest_stall_seconds(0, 10) == 1
    assert history.longest_gap_seconds(0, 10) == 4, "b2 was acknowledged at 2, and read at 6"
    assert history.longest_gap_seconds(5, 10) == 1
    assert (history.rebalances(0, 10), history.rebalances(1, 10)) == (2, 1)
