"""The hours of a billed month, and the days (UTC) whose tables contain them.

A plan's time zone determines the start of its months, so a month can need hours of the day before its first one, or of
the day after its last.  Every command that sums up, rates, checks or closes a month takes its days from here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Final

from billing.lake.months import Month
from billing.lake.tables import STORAGE_HOURLY, USAGE_HOURLY, LakeTables, days_of
from billing.pricing.closing import Closed
from billing.pricing.plans import Customers, PriceBook

EVERYBODY_ELSE: Final = ""
"""Key for all accounts that are not named."""
TABLES: Final = (USAGE_HOURLY, STORAGE_HOURLY)
"""Names of the tables that are rated."""


def account_hours(
    month: Month, book: PriceBook, customers: Customers, begins: Mapping[str, datetime], account: str
) -> tuple[datetime, datetime]:
    """Return the start of the month for an account, and the start of its next one (UTC).

    ``begins``: the result of :func:`begins`.
    """
    starts, ends = book.plan(customers.of(account).plan).edges(month)
    return begins.get(account, begins.get(EVERYBODY_ELSE, starts)), ends


def month_hours(
    month: Month, book: PriceBook, customers: Customers, begins: Mapping[str, datetime]
) -> tuple[datetime, datetime]:
    """Return the earliest start and the latest end of the month over all accounts (UTC)."""
    accounts = (EVERYBODY_ELSE, *customers.named, *begins)
    hours = [account_hours(month, book, customers, begins, account) for account in accounts]
    return min(starts for starts, _ in hours), max(ends for _, ends in hours)


def days_needed(month: Month, book: PriceBook, customers: Customers, begins: Mapping[str, datetime]) -> list[date]:
    """Return the days (UTC) that contain the month's hours, in their order.

    ``begins``: the result of :func:`begins`.
    """
    starts, ends = month_hours(month, book, customers, begins)
    return days_of(starts.date(), (ends - timedelta(microseconds=1)).date())


def days_to_sum_up(month: Month, book: PriceBook, customers: Customers, closed: Mapping[Month, Closed]) -> list[date]:
    """Return the days (UTC) that rating a month needs.

    A closed month uses the plans that were stored at its closing.
    """
    there = closed.get(month)
    if there is not None:
        book, customers = there.book, there.customers
    return days_needed(month, book, customers, begins(month, book, customers, closed.get(month.previous)))


def begins(month: Month, book: PriceBook, customers: Customers, before: Closed | None) -> dict[str, datetime]:
    """Return the starts of accounts' months that differ from their plan's: the end of the month before.

    They differ if the account had a plan in another time zone before: each hour is in exactly one month.  Keys are
    accounts, and :data:`EVERYBODY_ELSE` for all that are not named; if that key is present, all named accounts are too.
    ``before``: the closing of the month before; None if there is none, and months start as plans say.
    """
    if before is None:
        return {}
    ended = {
        account: before.book.plan(before.customers.of(account).plan).edges(month.previous)[1]
        for account in (EVERYBODY_ELSE, *sorted({*customers.named, *before.customers.named}))
    }
    other = {
        account: at for account, at in ended.items() if book.plan(customers.of(account).plan).edges(month)[0] != at
    }
    return ended if EVERYBODY_ELSE in other else other


def incomplete_days(tables: LakeTables, days: Sequence[date], now: datetime) -> list[date]:
    """Return the days whose tables are missing, or were made before the day was over.

    ``now``: the time at which they could be made again.
    """
    found = []
    for day in days:
        published = [tables.day(name, day) for name in TABLES]
        ends = datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)
        if any(one is None or one.read.at < min(ends, now) for one in published):
            found.append(day)
    return found


def days_in_words(days: Sequence[date]) -> str:
    """Days in words, consecutive ones as ranges: ``2026-10-31, 2026-11-03 to 2026-11-05``."""
    spans: list[tuple[date, date]] = []
    for day in days:
        if spans and day == spans[-1][1] + timedelta(days=1):
            spans[-1] = spans[-1][0], day
        else:
            spans.append((day, day))
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in spans)


def batch_command(days: Sequence[date]) -> str:
    """Return the command that sums up these days; at least one."""
    first, last = min(days), max(days)
    span = f"--day {first}" if first == last else f"--from {first} --to {last}"
    return f"python -m spark_analytics batch {span}"
