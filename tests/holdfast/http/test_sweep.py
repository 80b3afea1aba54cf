"""The sweep over the connections' deadlines: all of them in a round, a part at each tick."""

from collections import Counter

from holdfast.http.sweep import DeadlineSweep, WithDeadline

TICKS = 10


class SweptConnection:
    """Implements :class:`holdfast.http.sweep.WithDeadline`."""

    def __init__(self, deadline: float, swept: Counter[int]) -> None:
        self.deadline = deadline
        self._swept = swept

    def sweep(self, now: float) -> None:
        self._swept[id(self)] += 1


def test_each_overdue_connection_is_swept_once_in_a_round_and_the_others_are_not() -> None:
    swept: Counter[int] = Counter()
    overdue = [SweptConnection(1.0, swept) for _ in range(23)]
    in_time = [SweptConnection(3.0, swept) for _ in range(40)]
    sweep = DeadlineSweep({*overdue, *in_time}, TICKS)
    for tick in range(TICKS):
        sweep.tick(tick, 2.0)
    assert swept == {id(connection): 1 for connection in overdue}
    sweep.tick(TICKS, 3.0)
    assert swept.total() > len(overdue)


def test_a_tick_checks_a_part_of_the_connections() -> None:
    swept: Counter[int] = Counter()
    sweep = DeadlineSweep({SweptConnection(1.0, swept) for _ in range(95)}, TICKS)
    counts = []
    for tick in range(2 * TICKS):
        sweep.tick(tick, 2.0)
        counts.append(swept.total())
    assert counts[:TICKS] == [10, 20, 30, 40, 50, 60, 70, 80, 90, 95]
    assert counts[-1] == 2 * 95


def test_a_connection_that_was_closed_during_the_round_is_not_swept() -> None:
    swept: Counter[int] = Counter()
    connections: set[WithDeadline] = {SweptConnection(1.0, swept) for _ in range(TICKS)}
    sweep = DeadlineSweep(connections, TICKS)
    sweep.tick(0, 2.0)
    connections.clear()
    for tick in range(1, TICKS):
        sweep.tick(tick, 2.0)
    assert swept.total() == 1
