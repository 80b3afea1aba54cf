"""The limits of one process, in virtual time."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit.limiter import Limiter
from ratelimit.meter import SLACK, BucketMeter
from tests.auth.clock import Clock

RATES = st.floats(0.01, 10_000)
BURSTS = st.integers(1, 1_000)


@pytest.fixture
def time() -> Clock:
    return Clock()


def admitted(limiter: Limiter, *meters: BucketMeter, calls: int = 1, cost: float = 1.0) -> int:
    return sum(limiter.admit_now(meters, cost) == 0 for _ in range(calls))


@given(RATES, BURSTS, st.lists(st.tuples(st.floats(0, 10), st.integers(1, 50)), max_size=30))
def test_no_stretch_of_time_lets_more_through_than_burst_and_rate(
    rate: float, burst: int, steps: Sequence[tuple[float, int]]
) -> None:
    time = Clock()
    limiter = Limiter(time)
    meter = limiter.meter("m", rate, burst)
    passed: list[tuple[float, int]] = []
    for pause, calls in steps:
        time.now += pause
        passed.append((time.now, admitted(limiter, meter, calls=calls)))
    for i, (begin, _) in enumerate(passed):
        total = 0
        for end, count in passed[i:]:
            total += count
            assert total <= burst + rate * (end - begin) + 1e-3


@given(RATES, BURSTS, st.lists(st.floats(1, 5), min_size=1, max_size=200))
def test_calls_below_the_rate_are_never_refused(rate: float, burst: int, pauses: Sequence[float]) -> None:
    time = Clock()
    limiter = Limiter(time)
    meter = limiter.meter("m", rate, burst)
    for pause in pauses:
        assert limiter.admit_now((meter,)) == 0
        time.now += pause / rate


@given(RATES, BURSTS, st.integers(1, 2_000))
def test_a_call_after_the_announced_wait_is_admitted(rate: float, burst: int, calls: int) -> None:
    time = Clock()
    limiter = Limiter(time)
    meter = limiter.meter("m", rate, burst)
    assert admitted(limiter, meter, calls=calls) == min(calls, burst)
    wait = limiter.admit_now((meter,))
    assert wait is not None
    if calls < burst:
        assert wait == 0
    else:
        assert 0 < wait <= 1 / rate + SLACK
        time.now += wait + SLACK / rate
        assert limiter.admit_now((meter,)) == 0


def test_a_refused_call_drains_no_other_bucket(time: Clock) -> None:
    limiter = Limiter(time)
    wide, narrow = limiter.meter("wide", 1, 10), limiter.meter("narrow", 1, 2)
    assert admitted(limiter, wide, narrow, calls=50) == 2
    assert admitted(limiter, wide, calls=50) == 8


def test_the_longest_wait_is_reported(time: Clock) -> None:
    limiter = Limiter(time)
    quick, slow = limiter.meter("quick", 10, 1), limiter.meter("slow", 0.1, 1)
    assert limiter.admit_now((quick, slow)) == 0
    wait = limiter.admit_now((quick, slow))
    assert wait == pytest.approx(10, rel=1e-3)


def test_a_call_can_weigh_more_than_one(time: Clock) -> None:
    limiter = Limiter(time)
    meter = limiter.meter("m", 1, 10)
    assert admitted(limiter, meter, calls=5, cost=4) == 2
    assert admitted(limiter, meter, calls=5, cost=2) == 1
    assert limiter.admit_now((meter,), 11) == math.inf


def test_returned_units_do_not_count(time: Clock) -> None:
    limiter = Limiter(time)
    meter = limiter.meter("m", 0.001, 1)
    assert limiter.admit_now((meter,)) == 0
    limiter.give_back((meter,))
    assert limiter.admit_now((meter,)) == 0
    limiter.give_back((meter,))
    limiter.give_back((meter,))
    assert admitted(limiter, meter, calls=5) == 1


def test_new_numbers_hold_at_once_for_the_same_bucket(time: Clock) -> None:
    limiter = Limiter(time)
    meter = limiter.meter("m", 0.001, 2)
    assert admitted(limiter, meter, calls=5) == 2
    assert limiter.meter("m", 0.001, 5) is meter
    assert admitted(limiter, meter, calls=9) == 3
    limiter.meter("m", 1, 1)
    time.now += 1
    assert admitted(limiter, meter, calls=9) == 0
    time.now += 4
    assert admitted(limiter, meter, calls=9) == 1


def test_one_of_several_processes_has_its_share(time: Clock) -> None:
    limiter = Limiter(time, processes=4)
    meter, small = limiter.meter("m", 4, 8), limiter.meter("small", 1, 1)
    assert admitted(limiter, meter, calls=9) == 2
    time.now += 3
    assert admitted(limiter, meter, calls=9) == 2
    time.now += 1
    assert admitted(limiter, meter, calls=9) == 1
    limiter.meter("m", 8, 12)
    assert admitted(limiter, meter, calls=9) == 1
    assert admitted(limiter, small, calls=9) == 1, "a burst lets at least one call through"


def test_a_dropped_partition_ends_when_it_has_drained(time: Clock) -> None:
    limiter = Limiter(time)
    slow, quick, kept = limiter.meter("slow", 0.1, 1), limiter.meter("quick", 1, 1), limiter.meter("kept", 1, 1)
    assert limiter.admit_now((slow, quick, kept)) == 0
    time.now += 1
    limiter.drop((slow, quick))
    assert limiter.meter("quick", 1, 1) is not quick
    assert limiter.meter("slow", 0.1, 1) is slow
    limiter.drop((slow,))
    time.now += 9
    limiter.drop(())
    assert limiter.meter("slow", 0.1, 1) is not slow
    assert limiter.meter("kept", 1, 1) is kept


def test_dropped_entries_that_are_read_again_stay(time: Clock) -> None:
    limiter = Limiter(time)
    meter = limiter.meter("m", 1, 1)
    assert limiter.admit_now((meter,)) == 0
    limiter.drop((meter,))
    assert limiter.meter("m", 1, 1) is meter
    time.now += 1
    limiter.drop(())
    assert limiter.meter("m", 1, 1) is meter


def test_a_clock_that_steps_back_lets_nothing_more_through(time: Clock) -> None:
    limiter = Limiter(time)
    meter = limiter.meter("m", 1, 1)
    assert admitted(limiter, meter, calls=2) == 1
    time.now -= 100
    assert admitted(limiter, meter) == 0


async def test_the_slow_way_gives_the_same_answer(time: Clock) -> None:
    limiter = Limiter(time)
    meter = limiter.meter("m", 1, 1)
    assert await limiter.admit((meter,)) == 0
    assert await limiter.admit((meter,)) == pytest.approx(1, rel=1e-3)
