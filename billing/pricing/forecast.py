"""Forecast of a month's total from its days so far.

Method: the remaining days are assumed to be distributed like the past ones, without a trend.  With two whole weeks or
more each weekday has its own mean, with less data all days share one.  The past days are known, so only the sum of the
remaining days is uncertain.  Its interval is Student's prediction interval for the sum of that many new draws, which
covers both the variance between days and the error of the estimated mean.  The days are those of the measure's own
series: a day without usage is a zero, not a gap.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from datetime import date, timedelta
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Final, NamedTuple, TypeVar

_Name = TypeVar("_Name", bound=str)

METHOD: Final = (
    "The forecast assumes that coming days are like the last 28, by weekday once there are two whole weeks, "
    "without a trend; then the month ends between low and high in nine of ten cases."
)
DAYS_MIN: Final = 3
"""Minimum number of days for a forecast."""
DAYS_MAX: Final = 28
"""Maximum number of days used; older ones are not representative."""
WEEKS_MIN: Final = 2
_WEEK: Final = 7

# fmt: off
_STUDENT: Final = (
    6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771, 1.761, 1.753,
    1.746, 1.740, 1.734, 1.729, 1.725, 1.721, 1.717, 1.714, 1.711, 1.708, 1.706, 1.703, 1.701,
)
# fmt: on
"""Two-sided 90% quantiles of Student's t distribution, by degrees of freedom from 1."""


class Outlook(NamedTuple):
    """Forecast of a month's total."""

    so_far: Decimal
    low: Decimal
    likely: Decimal
    high: Decimal
    days: int
    """Number of days that the forecast is computed from."""


def since_first_use(series: Mapping[_Name, Mapping[date, int]]) -> dict[_Name, dict[date, int]]:
    """Cut several series of the same user to start on the first day on which any of them is not zero.

    Earlier days say nothing about the remaining ones.
    """
    first = min((day for days in series.values() for day, count in days.items() if count), default=date.max)
    return {name: {day: count for day, count in days.items() if day >= first} for name, days in series.items()}


def outlook(series: Mapping[date, Decimal | int], first: date, last: date) -> Outlook | None:
    """Forecast the total of the days ``first`` to ``last``.

    ``series`` has complete days without gaps; days before ``first`` are used too.  Returns None if there are too few.
    The results are whole numbers, as they are estimates.
    """
    behind = sorted(series)[-DAYS_MAX:]
    if len(behind) < DAYS_MIN:
        return None
    so_far = sum((Decimal(series[day]) for day in series if first <= day <= last), Decimal(0))
    ahead = [day for at in range((last - first).days + 1) if (day := first + timedelta(at)) > behind[-1]]
    if not ahead:
        return Outlook(so_far, so_far, so_far, so_far, len(behind))
    weekly = len(behind) >= WEEKS_MIN * _WEEK
    of_kind: defaultdict[int, list[float]] = defaultdict(list)
    for day in behind:
        of_kind[day.weekday() if weekly else 0].append(float(series[day]))
    means = {kind: math.fsum(values) / len(values) for kind, values in of_kind.items()}
    squares = math.fsum((value - means[kind]) ** 2 for kind, values in of_kind.items() for value in values)
    freedom = len(behind) - len(means)
    deviation = math.sqrt(squares / freedom)
    new: defaultdict[int, int] = defaultdict(int)
    for day in ahead:
        new[day.weekday() if weekly else 0] += 1
    expected = math.fsum(count * means[kind] for kind, count in new.items())
    # Deviation of the sum: each new day contributes the deviation of a day, and the estimated mean of its kind of day
    # contributes the deviation divided by the root of the number of days it is estimated from.
    spread = deviation * math.sqrt(sum(count + count**2 / len(of_kind[kind]) for kind, count in new.items()))
    within = _STUDENT[min(freedom, len(_STUDENT)) - 1] * spread
    return Outlook(
        so_far,
        so_far + _whole(max(0.0, expected - within)),
        so_far + _whole(expected),
        so_far + _whole(expected + within),
        len(behind),
    )


def _whole(value: float) -> Decimal:
    return Decimal(value).quantize(Decimal(1), rounding=ROUND_HALF_EVEN)
