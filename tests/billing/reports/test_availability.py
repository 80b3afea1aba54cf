"""Availability of a month, by the error rates of its hours."""

from datetime import UTC, datetime
from typing import Any

import pytest

from billing.lake.periods import Period
from billing.reports.availability import WORST_MAX, Availability, availability

AFTER = datetime(2026, 12, 5, tzinfo=UTC)


def hour(day: int, at: int, calls: int, failed: int = 0, **more: int) -> dict[str, Any]:
    counts = {"calls": calls, "refused": 0, "throttled": 0, "failed": failed, **more}
    return {"name": f"2026-11-{day:02}T{at:02}:00Z", **counts}


def month(
    *lines: dict[str, Any], now: datetime = AFTER, missing: tuple[str, ...] = (), objective: float = 99.9
) -> Availability:
    summary = {"lines": lines, "missing": missing}
    return availability(summary, Period.of_month("2026-11"), "0" * 12, objective, now)


def test_a_month_without_failures() -> None:
    report = month(hour(1, 0, 100, refused=50, throttled=7))
    assert (report.availability, report.met, report.budget_left) == (100, True, 100)
    assert (report.calls, report.failed, report.hours, report.hours_with_failures) == (157, 0, 720, 0)
    assert report.final


def test_each_hour_counts_the_same() -> None:
    report = month(hour(1, 3, 0, failed=1), hour(1, 12, 999_000, failed=1000))
    assert report.availability == pytest.approx(100 * (1 - (1 + 0.001) / 720))
    assert (report.met, report.calls, report.failed) == (False, 1_000_001, 1001)
    assert report.budget_left == pytest.approx(100 * (1 - (1.001 / 720) / 0.001))
    assert [one.hour for one in report.worst] == ["2026-11-01T03:00Z", "2026-11-01T12:00Z"]


def test_refused_requests_are_answered() -> None:
    report = month(hour(1, 3, 1, failed=1, refused=1, throttled=1))
    assert report.availability == pytest.approx(100 * (1 - 0.25 / 720))


def test_an_unfinished_month_reports_its_complete_hours() -> None:
    report = month(hour(1, 3, 0, failed=1), now=datetime(2026, 11, 2, 12, 30, tzinfo=UTC))
    assert (report.hours, report.final) == (36, False)
    assert report.availability == pytest.approx(100 * (1 - 1 / 36))


def test_days_that_are_not_known_are_left_out_and_named() -> None:
    report = month(hour(1, 3, 0, failed=1), missing=("2026-11-02", "2026-11-30"))
    assert (report.hours, report.final) == (28 * 24, False)
    assert [day.isoformat() for day in report.missing] == ["2026-11-02", "2026-11-30"]


def test_a_month_that_has_just_started_has_no_figures() -> None:
    report = month(now=datetime(2026, 11, 1, 0, 10, tzinfo=UTC))
    assert (report.availability, report.met, report.budget_left, report.hours) == (None, None, None, 0)
    under_way = month(hour(1, 0, 3, failed=1), now=datetime(2026, 11, 1, 0, 10, tzinfo=UTC))
    assert under_way.availability == 75, "there is nothing better to go by"


def test_the_objective_decides() -> None:
    lines = [hour(1, 3, 0, failed=1)]
    assert month(*lines, objective=99.0).met is True
    assert month(*lines, objective=99.99).met is False


def test_the_worst_hours_are_named() -> None:
    report = month(*(hour(day, 0, 100 - day, failed=day) for day in range(1, 31)))
    assert (report.hours_with_failures, len(report.worst)) == (30, WORST_MAX)
    assert (report.worst[0].failed, report.worst[-1].failed) == (30, 7)
