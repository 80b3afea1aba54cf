"""The checker of publications' histories, on constructed histories."""

from __future__ import annotations

from typing import Any

import pytest

from tests.histories.publications.history import FanoutHistory
from tests.histories.publications.making import CASES, made_fanout
from tests.histories.publications.verdict import judge_publications


def made_case(case: dict[str, Any]) -> FanoutHistory:
    """Make the good history with the changes of the case."""
    good = str(CASES["good"]).splitlines()
    lines = list(good)
    for beginning, by in case.get("replace", {}).items():
        (at,) = [number for number, line in enumerate(good) if line.startswith(f"{beginning} ")]
        lines[at] = by
    return made_fanout("\n".join([*lines, case.get("add", "")]))


@pytest.mark.parametrize("case", CASES["possible"], ids=lambda case: str(case["name"]))
def test_possible(case: dict[str, Any]) -> None:
    judge_publications(made_case(case)).check()


@pytest.mark.parametrize("case", CASES["impossible"], ids=lambda case: str(case["name"]))
def test_impossible(case: dict[str, Any]) -> None:
    verdict = judge_publications(made_case(case))
    says = case["says"] if isinstance(case["says"], list) else [case["says"]]
    assert len(verdict.broken) == len(says), verdict.broken
    for found, said in zip(verdict.broken, says, strict=True):
        assert said in found
    assert (len(verdict.lost), len(verdict.doubled)) == (case.get("lost", 0), case.get("doubled", 0))
    with pytest.raises(AssertionError, match="promises were broken"):
        verdict.check()


def test_figures() -> None:
    history = made_case({})
    assert history.longest_stall_seconds(20, 140) == 50
    assert history.longest_delivery_seconds(35) == 40
    assert made_fanout("").longest_delivery_seconds(0) == 0
