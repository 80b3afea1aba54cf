"""A node's clock: how it follows the machine's clocks."""

from __future__ import annotations

import pytest

from backend.clock import SteadyClock


class Machine:
    """Clocks in the test's hand."""

    def __init__(self) -> None:
        self.wall = 1_000_000.0
        self.monotonic = 500.0
        self.slept = 0.0

    def clock(self) -> SteadyClock:
        return SteadyClock(lambda: self.wall, lambda: self.monotonic, lambda: self.monotonic + self.slept)

    def run(self, seconds: float) -> None:
        self.wall += seconds
        self.monotonic += seconds


@pytest.mark.parametrize("ahead", [-5.0, -0.001, 0.001, 5.0])
def test_a_slew_does_not_go_on_while_nobody_asks(ahead: float) -> None:
    machine = Machine()
    clock = machine.clock()
    machine.wall += ahead
    machine.run(1)
    clock()  # begins to slew
    machine.run(3 * 86_400)
    assert abs(clock() - machine.wall * 1000) <= 4_001


def test_a_wall_clock_that_jumps_moves_nothing_at_once() -> None:
    machine = Machine()
    clock = machine.clock()
    before = clock()
    machine.wall += 3_600
    machine.run(1)
    assert clock() - before <= 1_100
    machine.wall -= 7_200
    for _ in range(100):
        machine.run(0.5)
        later = clock()
        assert before <= later <= before + 60_000
        before = later


def test_a_suspended_machine_counts_the_time_it_slept() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.wall += 3_600
    machine.slept += 3_600
    machine.run(1)
    assert abs(clock() - machine.wall * 1000) <= 1
