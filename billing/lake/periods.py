"""Periods and groupings of questions about usage.

A period is a month, a day, or a range of days; days are UTC.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Iterator
from datetime import date, timedelta
from typing import Final, Literal, Self, get_args

import msgspec

By = Literal["account", "queue", "tag", "action", "hour", "day"]
"""Grouping of a summary's lines."""
BYS: Final[tuple[By, ...]] = get_args(By)

DAYS_MAX: Final = 400
"""Maximum length of a period in days: a year and a month."""
_YEARS: Final = range(1970, 9999)
_MONTH = re.compile(r"\d{4}-\d{2}\Z", re.ASCII)
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}\Z", re.ASCII)


class Period(msgspec.Struct, frozen=True):
    """Range of whole days, both ends included."""

    first: date
    last: date

    @classmethod
    def of_month(cls, text: str) -> Self:
        """Period of a month such as ``2026-11``.  Raises :class:`ValueError`."""
        if not _MONTH.match(text):
            raise ValueError(f"{text!r} is not a month, such as 2026-11")
        first = _date(f"{text}-01", text, "month")
        return cls(first, first.replace(day=monthrange(first.year, first.month)[1]))

    @classmethod
    def of_day(cls, text: str) -> Self:
        """Period of a day such as ``2026-11-21``.  Raises :class:`ValueError`."""
        day = parse_day(text)
        return cls(day, day)

    @classmethod
    def between(cls, first: str, last: str) -> Self:
        """Period from one day to another, both included.  Raises :class:`ValueError`."""
        made = cls(parse_day(first), parse_day(last))
        if made.last < made.first:
            raise ValueError(f"{last} is before {first}")
        if (made.last - made.first).days >= DAYS_MAX:
            raise ValueError(f"a period has at most {DAYS_MAX} days")
        return made

    @classmethod
    def asked(cls, month: str | None, day: str | None, first: str | None, last: str | None, *, today: date) -> Self:
        """Return the period given in one of these ways, else the month of ``today``.  Raises :class:`ValueError`."""
        if (first is None) != (last is None):
            raise ValueError("from and to go together")
        if sum(one is not None for one in (month, day, first)) > 1:
            raise ValueError("give one of: a month, a day, or from and to")
        if day is not None:
            return cls.of_day(day)
        if first is not None and last is not None:
            return cls.between(first, last)
        return cls.of_month(today.strftime("%Y-%m") if month is None else month)

    def days(self) -> Iterator[date]:
        for number in range((self.last - self.first).days + 1):
            yield self.first + timedelta(days=number)


def parse_day(text: str) -> date:
    """Parse a day such as ``2026-11-21``.  Raises :class:`ValueError`."""
    if not _DAY.match(text):
        raise ValueError(f"{text!r} is not a day, such as 2026-11-21")
    return _date(text, text, "day")


def _date(iso: str, text: str, what: str) -> date:
    try:
        found = date.fromisoformat(iso)
    except ValueError:
        raise ValueError(f"there is no {what} {text}") from None
    if found.year not in _YEARS:
        raise ValueError(f"no usage was recorded in {text}")
    return found
