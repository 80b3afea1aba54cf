"""The search, compared with one that tries every order, on a register that forgets its value after a while."""

import itertools
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

import pytest

from tests.histories import wing_gong
from tests.histories.history import Kind, Operation, Outcome
from tests.histories.wing_gong import Undecided, linearizable


class _RegisterValue(NamedTuple):
    """Value of the register, and the time until which it cannot be read."""

    value: str = ""
    hidden_until: float = 0.0


def step(held: _RegisterValue, operation: Operation, not_before: float) -> Iterator[tuple[_RegisterValue, float]]:
    """A send writes; a receive reads the value once it is visible, and hides it."""
    if operation.kind is Kind.SEND:
        yield _RegisterValue(operation.key, not_before + operation.seconds), not_before
    elif held.value == operation.key:
        moment = max(not_before, held.hidden_until)
        yield _RegisterValue(held.value, moment + operation.seconds), moment


def by_trying_all(operations: list[Operation]) -> bool:
    """True if some order of all the answered and some of the other operations fits."""
    must = [one for one in operations if one.outcome is Outcome.DONE]
    may = [one for one in operations if one.outcome is Outcome.UNKNOWN]
    chosen = itertools.chain.from_iterable(itertools.combinations(may, size) for size in range(len(may) + 1))
    return any(_fits(order) for some in chosen for order in itertools.permutations([*must, *some]))


def _fits(order: tuple[Operation, ...]) -> bool:
    held, now = _RegisterValue(), 0.0
    for operation in order:
        after = list(step(held, operation, max(now, operation.called)))
        if not after or after[0][1] > operation.answered:
            return False
        held, now = after[0]
    return True


def made_up(random: Random) -> list[Operation]:
    operations = []
    for _ in range(random.randrange(1, 6)):
        called = random.randrange(8)
        unknown = random.random() < 0.3
        answered = float("inf") if unknown else called + random.randrange(1, 6)
        operations.append(
            Operation(
                random.choice((Kind.SEND, Kind.RECEIVE)),
                "q",
                float(called),
                float(answered),
                Outcome.UNKNOWN if unknown else Outcome.DONE,
                random.choice("ab"),
                seconds=float(random.randrange(4)),
            )
        )
    return operations


def test_it_agrees_with_trying_all_orders() -> None:
    random = Random(4)
    answers = {True: 0, False: 0}
    for _ in range(3000):
        operations = made_up(random)
        expected = by_trying_all(operations)
        answers[expected] += 1
        assert (linearizable(operations, _RegisterValue(), step) is None) == expected, [str(one) for one in operations]
    assert min(answers.values()) > 500


def test_refused_operations_did_nothing() -> None:
    refused = Operation(Kind.RECEIVE, "q", 1.0, 2.0, Outcome.REFUSED, "a")
    assert linearizable([refused], _RegisterValue(), step) is None


def test_it_shows_what_fits_nowhere() -> None:
    write = Operation(Kind.SEND, "q", 0.0, 1.0, key="a")
    read = Operation(Kind.RECEIVE, "q", 2.0, 3.0, key="b")
    assert linearizable([write, read], _RegisterValue(), step) == [write, read]


def test_its_end_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wing_gong, "TRIED_MAX", 100)
    writes = [Operation(Kind.SEND, "q", 0.0, 9.0, key=f"k{number}") for number in range(8)]
    read = Operation(Kind.RECEIVE, "q", 10.0, 11.0, key="nobody wrote this")
    with pytest.raises(Undecided, match="more than 100 tried"):
        linearizable([*writes, read], _RegisterValue(), step)
