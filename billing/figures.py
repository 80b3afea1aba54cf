"""Numbers, sizes and days as people read them."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Final

_LETTERS: Final = ("", "k", "M", "G", "T", "P")
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def full(number: int | Decimal) -> str:
    """``1,234,567``."""
    return f"{number:,}"


def short(number: float) -> str:
    """``1.2 M``: three digits."""
    return _scaled(number, 1000, _LETTERS)


def size(count: float) -> str:
    """``1.2 MiB``."""
    return _scaled(count, 1024, _UNITS)


def percent(share: float) -> str:
    return f"{share:.1%}" if 0 < share < 0.0995 else f"{share:.0%}"


def day_of(day: date) -> str:
    """``3 Nov``."""
    return f"{day.day} {_MONTHS[day.month - 1][:3]}"


def month_of(day: date) -> str:
    """``November 2026``."""
    return f"{_MONTHS[day.month - 1]} {day.year}"


_MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
"""In English, whatever the machine speaks."""


def _scaled(number: float, base: int, units: tuple[str, ...]) -> str:
    at = 0
    while abs(number) >= base * 0.9995 and at < len(units) - 1:
        number /= base
        at += 1
    digits = 0 if at == 0 and float(number).is_integer() else max(0, 2 - len(str(int(abs(number)))) + 1)
    text = f"{number:.{digits}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return f"{text} {units[at]}".rstrip()
