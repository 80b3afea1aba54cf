"""A node's clock, which follows the machine's clocks."""

import asyncio

import pytest

from backend.clocks.node_clock import DAY_MS, STEADY_SECONDS, SteadyClock
from tests.simulator.test_found import VirtualNode


class MachineClocks:
    def __init__(self) -> None:
        self.wall = 1_000_000.0
        self.monotonic = 500.0
        self.slept = 0.0

    def clock(self) -> SteadyClock:
        return SteadyClock(lambda: self.wall, lambda: self.monotonic, lambda: self.monotonic + self.slept)

    def run(self, seconds: float) -> None:
        self.wall += seconds
        self.monotonic += seconds


def a_machine() -> tuple[MachineClocks, SteadyClock]:
    machine = MachineClocks()
    return machine, machine.clock()


@pytest.mark.parametrize("ahead", [-5.0, -0.001, 0.001, 5.0])
def test_a_slew_does_not_continue_while_the_time_is_not_read(ahead: float) -> None:
    machine, clock = a_machine()
    machine.wall += ahead
    machine.run(1)
    clock()  # starts to slew
    machine.run(3 * 86_400)
    assert abs(clock() - machine.wall * 1000) <= 4_001


def test_a_wall_clock_that_jumps_moves_nothing_at_once() -> None:
    machine, clock = a_machine()
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


def test_the_clusters_time_is_stepped_to_and_small_differences_are_slewed() -> None:
    machine, clock = a_machine()
    clock.follow(3_600_000)
    assert clock() == machine.wall * 1000 + 3_600_000
    machine.run(100)
    assert clock() == machine.wall * 1000 + 3_600_000
    clock.follow(3_600_900)
    before = clock()
    for _ in range(100):
        machine.run(0.5)
        assert 450 <= clock() - before <= 550, "by a tenth at the most"
        before = clock()
    assert abs(clock() - machine.wall * 1000 - 3_600_900) < 10
    machine.wall += 3600  # the wall clock is stepped
    clock.follow(0)
    assert abs(clock() - machine.wall * 1000) < 1000
    for _ in range(100):
        machine.run(0.5)
        clock()
    assert abs(clock() - machine.wall * 1000) < 10


def test_a_suspended_machine_counts_the_time_it_slept() -> None:
    machine, clock = a_machine()
    machine.wall += 3_600
    machine.slept += 3_600
    machine.run(1)
    assert abs(clock() - machine.wall * 1000) <= 1


def test_a_suspended_machine_counts_its_sleep_independently_of_its_clock() -> None:
    machine, clock = a_machine()
    before = clock()
    machine.wall += 10 * 365 * 86_400
    machine.slept += 60
    machine.run(1)
    assert clock() - before == 61_000


def test_a_clock_that_was_far_ahead_makes_no_timeout_longer(caplog: pytest.LogCaptureFixture) -> None:
    """Slewing by a tenth would take decades, during which every timeout was 11% too long."""
    machine, clock = a_machine()
    machine.wall -= 400 * 86_400
    clock()
    machine.run(2)
    before = clock()
    for _ in range(7200):
        machine.run(1)
        assert clock() > before
    assert abs(clock() - before - 7_200_000) <= 2
    logged = [record for record in caplog.records if "400.0 days ahead" in record.getMessage()]
    assert 2 <= len(logged) <= 3, "once an hour"
    machine.wall += 400 * 86_400 - 1
    for _ in range(60):
        machine.run(1)
        clock()
    assert abs(clock() - machine.wall * 1000) <= 100


class Slept:
    """Advances the machine's time instead of sleeping."""

    def __init__(self, machine: MachineClocks, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 0.0
        self.events: dict[int, float] = {}
        """Wall clock settings, by the second at which they take effect."""

        async def sleep(seconds: float) -> None:
            machine.run(seconds)
            self.seconds += seconds
            if self.seconds in self.events:
                machine.wall = self.events[int(self.seconds)]

        monkeypatch.setattr("backend.clocks.node_clock.asyncio.sleep", sleep)


@pytest.mark.parametrize(("gap_days", "waits"), [(0, 0), (20, 0), (399, 0), (401, STEADY_SECONDS), (36_500, 180)])
def test_a_steady_clock_is_believed(gap_days: int, waits: float, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = MachineClocks()
    machine.wall += gap_days * 86_400
    slept = Slept(machine, monkeypatch)
    clock = machine.clock()
    asyncio.run(clock.open(1_000_000_000))
    assert slept.seconds == waits
    assert clock() == machine.wall * 1000
    machine.run(20 * 86_400)
    machine.wall += 2000 * 86_400
    before = clock()
    asyncio.run(clock.open(1_000_000_000))  # the journal is recovered while the service runs
    assert slept.seconds == waits
    assert clock() >= before


def test_a_start_waits_for_a_clock_that_is_years_ahead_to_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = MachineClocks()
    right = machine.wall
    machine.wall += 60 * 365 * 86_400
    slept = Slept(machine, monkeypatch)
    slept.events = {100: right + 50 * 365 * 86_400, 250: right + 250}
    clock = machine.clock()
    asyncio.run(clock.open(int(right - 3600) * 1000))
    assert slept.seconds == 250, "another wrong time is not steadier than the first one"
    assert clock() == (right + 250) * 1000


def test_an_empty_journal_believes_any_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = MachineClocks()
    machine.wall += 10_000 * 86_400
    slept = Slept(machine, monkeypatch)
    asyncio.run(machine.clock().open(0))
    assert not slept.seconds


def test_no_message_expires_by_a_clock_that_is_wrong_while_the_machine_starts() -> None:
    """The clock was years ahead for a minute, and every stored message had expired."""
    service = VirtualNode()
    target = service.queue(7)
    service.send(target, b"body")
    service.close()
    service.disk.kill()
    service.wall_offset = 20 * 365 * 86_400.0
    started_at = service.loop.now
    service.loop.call_later(60, lambda: setattr(service, "wall_offset", 0.0))
    service.start()
    assert 60 <= service.loop.now - started_at < 63
    assert [message.payload for message in service.receive(target)] == [b"body"]
    assert service.clock() < 1_700_000_000_000 + DAY_MS
    service.close()
