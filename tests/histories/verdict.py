"""All checkers on one history."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tests.histories import conservation, groups, total_queue, visibility
from tests.histories.history import History, Operation, Rules
from tests.histories.total_queue import TotalQueue


@dataclass(frozen=True)
class Verdict:
    """What all checkers say."""

    total: TotalQueue
    broken: list[str]
    """Promises that were broken, those of the total queue among them."""

    def check(self) -> None:
        """Raise AssertionError with what was broken, if anything was."""
        assert not self.broken, "\n".join(("promises were broken:", *self.broken[:50]))


def judge(
    operations: Iterable[Operation],
    rules: Rules,
    left: Mapping[str, list[str]] | None = None,
    counted: Mapping[str, int] | None = None,
) -> Verdict:
    """The verdict on a history whose queues have been drained, but for what is ``left``."""
    history = History(operations)
    keys = frozenset(key for there in (left or {}).values() for key in there)
    total = total_queue.check(history, rules, keys)
    broken = [
        *total.broken,
        *groups.check(history, rules),
        *conservation.check(history, rules, left, counted),
        *visibility.check(history, rules),
    ]
    return Verdict(total, broken)
