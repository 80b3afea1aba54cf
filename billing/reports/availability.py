"""Availability of the service to a tenant in a month, computed from its answered calls.

The error rate of an hour is the number of calls answered with an error of the service (5xx), divided by all answered
calls; an hour without calls has rate 0.  The availability of a month is one minus the mean error rate of all its hours
that are over and summed up by the batch.  So an hour at night has the same weight as one at noon, as in most
service-level agreements of cloud providers.  Calls refused for a reason of the caller's, limits included, count as
answered correctly.

Calls that never reached the service and answers lost on their way cannot be counted and are not included.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import msgspec

from billing.lake.periods import Period

WORST_MAX: Final = 24
"""Maximum number of hours that are listed."""


class FailedHour(msgspec.Struct, frozen=True):
    """An hour with failed calls."""

    hour: str
    """Start of the hour, such as ``2026-11-21T07:00Z``."""
    calls: int
    failed: int


class Availability(msgspec.Struct, frozen=True):
    """A tenant's availability in a month.  All parts are percent."""

    month: str
    account: str
    objective: float
    availability: float | None
    """Availability; None if no hour of the month is known yet."""
    met: bool | None
    """True if the availability meets the objective; a preliminary result if ``final`` is false."""
    budget_left: float | None
    """Remaining share of the errors that the objective allows in the hours so far; negative if there were more."""
    calls: int
    """Answered calls."""
    failed: int
    hours: int
    """Number of hours that are included."""
    hours_with_failures: int
    worst: list[FailedHour]
    """Hours with the highest error rates, the worst first."""
    missing: list[date]
    """Days that are not included because they are not summed up."""
    final: bool
    """True if the month is over and all of it is known."""


def availability(
    summary: Mapping[str, Any], period: Period, account: str, objective: float, now: datetime
) -> Availability:
    """Compute it from a summary of the account's calls by hour (:class:`billing.lake.summary.Summary`, as JSON)."""
    missing = [date.fromisoformat(day) for day in summary["missing"]]
    hours = sum(_hours(day, now) for day in period.days() if day not in missing)
    calls = failed = 0
    errors = 0.0
    bad: list[tuple[float, FailedHour]] = []
    for line in summary["lines"]:
        answered = line["calls"] + line["refused"] + line["throttled"] + line["failed"]
        calls += answered
        failed += line["failed"]
        if line["failed"]:
            rate = line["failed"] / answered
            errors += rate
            bad.append((rate, FailedHour(line["name"], answered, line["failed"])))
    bad.sort(key=lambda one: (-one[0], one[1].hour))
    # The hour that is not over yet may have been summed up in part.  If it has failures, it is one of the hours.
    hours = max(hours, len(bad))
    part = 100 * (1 - errors / hours) if hours else None
    room = 100 - objective
    over = datetime.combine(period.last + timedelta(days=1), datetime.min.time(), UTC) <= now
    return Availability(
        month=f"{period.first:%Y-%m}",
        account=account,
        objective=objective,
        availability=part,
        met=None if part is None else part >= objective,
        budget_left=None if part is None else 100 * (1 - (100 - part) / room),
        calls=calls,
        failed=failed,
        hours=hours,
        hours_with_failures=len(bad),
        worst=[one for _, one in bad[:WORST_MAX]],
        missing=missing,
        final=over and not missing,
    )


def _hours(day: date, now: datetime) -> int:
    """Number of hours of a day that are over."""
    started_at = datetime.combine(day, datetime.min.time(), UTC)
    return max(0, min(24, int((now - started_at) / timedelta(hours=1))))
