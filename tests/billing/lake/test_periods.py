"""Periods of questions."""

from __future__ import annotations

from datetime import date

import pytest

from billing.lake.periods import Period

TODAY = date(2026, 11, 21)


@pytest.mark.parametrize(
    ("month", "last"), [("2026-11", 30), ("2026-12", 31), ("2027-02", 28), ("2028-02", 29), ("2100-02", 28)]
)
def test_a_month_has_all_its_days(month: str, last: int) -> None:
    period = Period.of_month(month)
    assert (period.first.isoformat(), period.last.isoformat()) == (f"{month}-01", f"{month}-{last}")
    assert len(list(period.days())) == last


def test_a_period_is_asked_for_in_one_way() -> None:
    assert Period.asked(None, None, None, None, today=TODAY) == Period.of_month("2026-11")
    assert Period.asked("2026-10", None, None, None, today=TODAY) == Period.of_month("2026-10")
    assert Period.asked(None, "2026-11-03", None, None, today=TODAY) == Period(date(2026, 11, 3), date(2026, 11, 3))
    found = Period.asked(None, None, "2025-12-31", "2026-01-02", today=TODAY)
    assert [day.isoformat() for day in found.days()] == ["2025-12-31", "2026-01-01", "2026-01-02"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("2026-11", "2026-11-01", None, None), "one of them"),
        (("2026-11", None, "2026-11-01", "2026-11-02"), "one of them"),
        ((None, None, "2026-11-01", None), "from and to go together"),
        ((None, None, None, "2026-11-01"), "from and to go together"),
        ((None, None, "2026-11-02", "2026-11-01"), "2026-11-01 is before 2026-11-02"),
        ((None, None, "2024-01-01", "2026-01-01"), "at most 400 days"),
        (("2026-13", None, None, None), "there is no month 2026-13"),
        (("0000-01", None, None, None), "there is no month 0000-01"),
        (("0001-01", None, None, None), "nothing was counted in 0001-01"),
        ((None, "9999-12-31", None, None), "nothing was counted in 9999-12-31"),
        (("November", None, None, None), "'November' is no month: it is written like 2026-11"),
        (("2026-11\n", None, None, None), "is no month"),
        ((None, "2026-02-29", None, None), "there is no day 2026-02-29"),
        ((None, "20260201", None, None), "is no day: it is written like 2026-11-21"),
    ],
)
def test_what_is_no_period_is_refused(asked: tuple[str | None, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Period.asked(*asked, today=TODAY)
