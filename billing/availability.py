"""How available the service was to a tenant in a month, by what it was answered.

The error rate of an hour is the calls of that hour that were answered with an error of the service (5xx), as a part of
all that were answered; that of an hour without calls is nought.  The availability of a month is one less the mean of
the error rates of all its hours, as far as they are over and summed up by the batch.  So an hour at night counts as
much as one at noon, which is how service-level agreements of clouds mostly count.  Calls that were refused for a reason
of the caller's, by a limit too, were answered as they should be.

What nobody could count is not in it: calls that never came to the service, and answers that were lost on their way.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import msgspec

from billing.periods import Period

WORST_MOST: Final = 24
"""Hours that are named."""


class BadHour(msgspec.Struct, frozen=True):
    """An hour in which calls failed."""

    hour: str
    """Such as ``2026-11-21T07:00Z``."""
    calls: int
    failed: int


class Availability(msgspec.Struct, frozen=True):
    """A tenant's month.  All parts are percent."""

    month: str
    account: str
    objective: float
    availability: float | None
    """None: no hour of it is known yet."""
    met: bool | None
    """Whether it is as the objective says; so far, where ``final`` is false."""
    budget_left: float | None
    """Of the errors that the objective leaves room for in the hours so far; less than 0 if there were more."""
    calls: int
    """All that were answered."""
    failed: int
    hours: int
    """Of which this tells."""
    hours_with_failures: int
    worst: list[BadHour]
    """Those with the highest error rates, the worst first."""
    missing: list[date]
    """Days of which it tells nothing, for they are not summed up."""
    final: bool
    """The month is over, and all of it is known."""


def availability(
    summary: Mapping[str, Any], period: Period, account: str, objective: float, now: datetime
) -> Availability:
    """From a summary of the account's calls in a month by hour (:class:`billing.summary.Summary`, as JSON)."""
    missing = [date.fromisoformat(day) for day in summary["missing"]]
    hours = sum(_hours(day, now) for day in period.days() if day not in missing)
    calls = failed = 0
    errors = 0.0
    bad: list[tuple[float, BadHour]] = []
    for line in summary["lines"]:
        answered = line["calls"] + line["refused"] + line["throttled"] + line["failed"]
        calls += answered
        failed += line["failed"]
        if line["failed"]:
            rate = line["failed"] / answered
            errors += rate
            bad.append((rate, BadHour(line["name"], answered, line["failed"])))
    bad.sort(key=lambda one: (-one[0], one[1].hour))
    # An hour under way may have been summed up in part: then it is one of those that are told of.
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
        worst=[one for _, one in bad[:WORST_MOST]],
        missing=missing,
        final=over and not missing,
    )


def _hours(day: date, now: datetime) -> int:
    """Of a day, those that are over."""
    began = datetime.combine(day, datetime.min.time(), UTC)
    return max(0, min(24, int((now - began) / timedelta(hours=1))))
