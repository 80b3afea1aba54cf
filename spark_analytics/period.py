"""The period and the prices in a job's arguments."""

from __future__ import annotations

import argparse
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from billing.lake.months import Month
from billing.pricing.plans import Customers, PriceBook, load_book, load_customers

DAYS_MAX = 3660
"""Ten years; a larger number is a mistake."""


def add_period(parser: argparse.ArgumentParser) -> None:
    """Options for a day, a month, or any period."""
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--day", type=_day, metavar="2026-11-21", help="a day, UTC")
    which.add_argument("--month", type=_month, metavar="2026-11", help="a month, UTC")
    which.add_argument(
        "--from", type=_day, metavar="2026-11-21", dest="first", help="first day of a period, UTC; with --to"
    )
    which.add_argument(
        "--days",
        type=_count,
        metavar="35",
        help="number of days up to today, UTC, for scheduled jobs: the batch also sums up earlier days with "
        "records that arrived in these",
    )
    parser.add_argument("--to", type=_day, metavar="2026-11-30", dest="last", help="its last day (default: one day)")


def period_of(options: argparse.Namespace) -> tuple[date, date]:
    """The first day and the last, both included.  Raises :class:`ValueError`."""
    if options.last is not None and options.first is None:
        raise ValueError("--to goes with --from")
    if options.day is not None:
        return options.day, options.day
    if options.days is not None:
        today = datetime.now(UTC).date()
        return today - timedelta(days=options.days - 1), today
    if options.month is not None:
        return options.month.first, options.month.next.first - timedelta(days=1)
    last = options.last or options.first
    if last < options.first:
        raise ValueError(f"the period ends on {last}, before it begins on {options.first}")
    return options.first, last


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a day, such as 2026-11-21") from None


def month_of(text: str) -> Month:
    """Parse a month: ``2026-11``, or, for scheduled jobs, ``this`` or ``last`` (UTC)."""
    today = datetime.now(UTC).date()
    this = Month(today.year, today.month)
    if text in ("this", "last"):
        return this if text == "this" else this.previous
    try:
        return Month.parse(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a month: write it like {this}, or this, or last") from None


def load_prices(plan: Path, accounts: Path | None) -> tuple[PriceBook, Customers]:
    """The price book and the customers in these files.  Raises :class:`ValueError`."""
    try:
        book = load_book(plan)
        return book, load_customers(accounts, book)
    except OSError as error:
        raise ValueError(f"{error.filename} cannot be read: {error.strerror}") from None


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) <= DAYS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of days, 1 to {DAYS_MAX}")
    return int(text)


def _month(text: str) -> Month:
    try:
        return Month.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
