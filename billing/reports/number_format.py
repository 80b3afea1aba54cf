"""Formats of numbers, sizes and days for people."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from decimal import Decimal
from typing import Final

_LETTERS: Final = ("", "k", "M", "G", "T", "P")
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")


def full(number: int | Decimal) -> str:
    """All digits, such as ``1,234,567``."""
    return f"{number:,}"


def short(number: float) -> str:
    """Three digits, such as ``1.2 M``."""
    return _scaled(number, 1000, _LETTERS)


def size(count: float) -> str:
    """Binary size, such as ``1.2 MiB``."""
    return _scaled(count, 1024, _UNITS)


def gb_months(byte_milliseconds: float | Decimal, month_ms: int) -> str:
    """Stored bytes over time in the unit of invoices, scaled: ``1.2 MB-months``."""
    if not byte_milliseconds:
        return "0"
    text = _scaled(float(byte_milliseconds) / month_ms, 1000, _DECIMAL_UNITS)
    return f"{text}-month" if text.startswith("1 ") else f"{text}-months"


def percent(share: float) -> str:
    """Percentage, such as ``9.5%`` or ``56%``; only exact 0 is shown as 0%, and only exact 1 as 100%."""
    if 0 < share < 0.0005:
        return "< 0.1%"
    if 0.995 <= share < 1:
        return f"{min(share, 0.999):.1%}"
    return f"{share:.1%}" if 0 < share < 0.0995 else f"{share:.0%}"


def day_of(day: date) -> str:
    """Day and month, such as ``3 Nov``."""
    return f"{day.day} {_MONTHS[day.month - 1][:3]}"


def days_of_month(days: Sequence[date]) -> str:
    """Sorted days, consecutive ones as ranges: ``3 Nov, 5 to 9 Nov``."""
    spans: list[list[date]] = []
    for day in days:
        if spans and day == spans[-1][-1] + timedelta(days=1):
            spans[-1].append(day)
        else:
            spans.append([day])
    return ", ".join(day_of(one[0]) if len(one) == 1 else f"{one[0].day} to {day_of(one[-1])}" for one in spans)


def month_of(day: date) -> str:
    """Month and year, such as ``November 2026``."""
    return f"{_MONTHS[day.month - 1]} {day.year}"


_MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
"""English names, independent of the machine's locale."""


def _scaled(number: float, base: int, units: tuple[str, ...]) -> str:
    at = 0
    while abs(number) >= base * 0.9995 and at < len(units) - 1:
        number /= base
        at += 1
    digits = 0 if at == 0 and float(number).is_integer() else max(0, 2 - len(str(int(abs(number)))) + 1)
    text = f"{number:.{digits}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return f"{text} {units[at]}".rstrip()
