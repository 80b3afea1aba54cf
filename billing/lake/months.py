"""Billed months: calendar months of a time zone."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from typing import Final, NamedTuple, Self
from zoneinfo import ZoneInfo

_WRITTEN: Final = re.compile(r"(\d{4})-(0[1-9]|1[0-2])\Z", re.ASCII)


class Month(NamedTuple):
    """A calendar month.  Its hours depend on the time zone."""

    year: int
    number: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a month such as ``2026-11``.  Raises :class:`ValueError`."""
        found = _WRITTEN.match(text)
        if not found or found[1] == "0000":
            raise ValueError(f"{text!r} is not a month, such as 2026-11")
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.year:04}-{self.number:02}"

    @property
    def first(self) -> date:
        """First day."""
        return date(self.year, self.number, 1)

    @property
    def next(self) -> Month:
        return Month(self.year + self.number // 12, self.number % 12 + 1)

    @property
    def previous(self) -> Month:
        return Month(self.year - (self.number == 1), (self.number - 2) % 12 + 1)


def midnight(day: date, zone: str) -> datetime:
    """Return the start of the day in a time zone, as a UTC time."""
    return datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(zone)).astimezone(UTC)
