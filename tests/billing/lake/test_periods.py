"""Periods of questions."""

from datetime import date

import pytest

from billing.lake.periods import Period
from tests.tables import table

TODAY = date(2026, 11, 21)


@pytest.mark.parametrize(
    ("month", "last"), [("2026-11", 30), ("2026-12", 31), ("2027-02", 28), ("2028-02", 29), ("2100-02", 28)]
)
def test_a_month_has_all_its_days(month: str, last: int) -> None:
    period = Period.of_month(month)
    assert (period.first.isoformat(), period.last.isoformat()) == (f"{month}-01", f"{month}-{last}")
    assert len(list(period.days())) == last


def test_a_period_can_be_given_in_one_way_only() -> None:
    assert Period.asked(None, None, None, None, today=TODAY) == Period.of_month("2026-11")
    assert Period.asked("2026-10", None, None, None, today=TODAY) == Period.of_month("2026-10")
    assert Period.asked(None, "2026-11-03", None, None, today=TODAY) == Period(date(2026, 11, 3), date(2026, 11, 3))
    found = Period.asked(None, None, "2025-12-31", "2026-01-02", today=TODAY)
    assert [day.isoformat() for day in found.days()] == ["2025-12-31", "2026-01-01", "2026-01-02"]


@pytest.mark.parametrize(("asked", "said"), table(__file__, "what is no period is refused"))
def test_invalid_periods_are_refused(asked: tuple[str | None, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Period.asked(*asked, today=TODAY)
