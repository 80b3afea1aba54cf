"""Linearizability of single messages, on constructed histories."""

import pytest

from tests.histories import visibility
from tests.histories.history import History, Rules
from tests.histories.making import CASES, made

PLAIN = Rules()
MOVING = Rules(moves=frozenset({("q", "dead"), ("dead", "q")}))


def found(operations: str, rules: Rules = PLAIN) -> list[str]:
    return list(visibility.check(History(made(operations)), rules))


@pytest.mark.parametrize("name", CASES["visibility"]["possible"])
def test_possible_histories_are_linearizable(name: str) -> None:
    operations = CASES["visibility"]["possible"][name]
    assert found(operations, MOVING if "@dead" in operations else PLAIN) == []


@pytest.mark.parametrize("name", CASES["visibility"]["impossible"])
def test_impossible_histories_are_not(name: str) -> None:
    operations = CASES["visibility"]["impossible"][name]
    (broken,) = found(operations, MOVING if "@dead" in operations else PLAIN)
    assert broken.startswith("a: its visibility is not linearizable")


def test_each_message_is_checked_by_itself() -> None:
    broken = found("0-1 send a; 2-3 receive a; 0-1 send b; 2-3 receive b; 4-5 receive b h2")
    assert [text.split(":")[0] for text in broken] == ["b"]


def test_a_clock_that_is_followed_slowly_may_end_a_timeout_a_little_early() -> None:
    operations = "0-1 send a; 2-2.1 receive a; 11-11.2 receive a h2"
    assert found(operations)
    assert found(operations, Rules(early_share=0.1)) == []
