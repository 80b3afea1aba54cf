"""All checkers on one history."""

from collections.abc import Iterable
from dataclasses import dataclass

from tests.histories import conservation, groups, total_queue, visibility
from tests.histories.history import History, Operation, Rules
from tests.histories.total_queue import TotalQueue


@dataclass(frozen=True)
class Verdict:
    """Result of all checkers."""

    total: TotalQueue
    broken: list[str]
    """All violations, including those of the total queue."""

    def check(self) -> None:
        """Raise AssertionError with the violations, if there are any."""
        assert not self.broken, "\n".join(("promises were broken:", *self.broken[:50]))


def judge(operations: Iterable[Operation], rules: Rules) -> Verdict:
    """Check a history whose queues have been drained."""
    history = History(operations)
    total = total_queue.check(history, rules)
    broken = [
        *total.broken,
        *groups.check(history, rules),
        *conservation.check(history, rules),
        *visibility.check(history, rules),
    ]
    return Verdict(total, broken)
