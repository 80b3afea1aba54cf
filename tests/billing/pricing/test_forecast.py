"""Forecasts of series with known results."""

import random
from datetime import date, timedelta

import pytest

from billing.pricing.forecast import outlook

FIRST, LAST = date(2026, 11, 1), date(2026, 11, 30)


def forecast_days(series: dict[date, int], first: date = FIRST, last: date = LAST) -> list[int] | None:
    """Return the total so far, low, likely, high, and the number of days used."""
    found = outlook(series, first, last)
    return None if found is None else [int(number) for number in found]


def days(values: list[int], first: date = FIRST) -> dict[date, int]:
    return {first + timedelta(at): value for at, value in enumerate(values)}


@pytest.mark.parametrize("known", [3, 10, 29])
def test_days_that_are_all_the_same_leave_no_doubt(known: int) -> None:
    assert forecast_days(days([100] * known)) == [100 * known, 3000, 3000, 3000, min(known, 28)]


def test_weeks_repeat_themselves() -> None:
    week = [10, 20, 30, 40, 50, 0, 0]  # starts on a Sunday
    assert forecast_days(days(week * 2)) == [300, 630, 630, 630, 14]  # four weeks, and 10 + 20
    one = outlook(days(week), FIRST, LAST)
    assert one is not None
    assert one.likely == round(150 / 7 * 30)
    assert one.low < 630 < one.high


def test_the_interval_of_four_days_by_hand() -> None:
    # Mean 20, deviation sqrt(200 / 3) = 8.165, two days to come: 2.353 * 8.165 * sqrt(2 + 4 / 4) = 33.28.
    assert forecast_days(days([10, 20, 20, 30]), last=FIRST + timedelta(5)) == [80, 80 + 7, 80 + 40, 80 + 73, 4]


def test_two_days_have_no_forecast() -> None:
    assert forecast_days(days([1, 2])) is None
    assert forecast_days({}) is None


def test_days_before_the_month_improve_the_forecast_and_count_nothing() -> None:
    assert forecast_days(days([100] * 10, FIRST - timedelta(10))) == [0, 3000, 3000, 3000, 10]


def test_a_month_that_is_over_is_what_it_was() -> None:
    assert forecast_days(days(list(range(30)))) == [435, 435, 435, 435, 28]


def test_it_is_never_below_what_there_is() -> None:
    found = outlook(days([0, 0, 0, 1000]), FIRST, LAST)
    assert found is not None
    assert found.low == found.so_far == 1000


def test_nine_of_ten_months_end_within_the_interval() -> None:
    chance = random.Random(11)
    within = 0
    for _ in range(1000):
        values = [round(chance.gauss(10_000, 2_000)) for _ in range(30)]
        found = outlook(days(values[:12]), FIRST, LAST)
        assert found is not None
        within += found.low <= sum(values) <= found.high
    assert 870 <= within <= 930
