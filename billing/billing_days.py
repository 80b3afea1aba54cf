"""The hours of a month as it is billed, and the days (UTC) whose tables have them.

A plan's time zone says when its months begin, so a month can need hours of the day before its first one, or of the day
after its last.  Every command that sums up, rates, checks or closes a month takes its days from here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Final

from billing.months import Month
from billing.plans import Book, Customers
from billing.tables import STORAGE_HOURLY, USAGE_HOURLY, Tables, days_of

if TYPE_CHECKING:
    from billing.invoices import Closed

EVERYBODY_ELSE: Final = ""
"""In place of an account: all that are not named."""
TABLES: Final = (USAGE_HOURLY, STORAGE_HOURLY)
"""The tables that are rated."""


def account_hours(
    month: Month, book: Book, customers: Customers, begins: Mapping[str, datetime], account: str
) -> tuple[datetime, datetime]:
    """The beginning of the month for an account, and of its next one (UTC).  ``begins``: of :func:`begins`."""
    starts, ends = book.plan(customers.of(account).plan).edges(month)
    return begins.get(account, begins.get(EVERYBODY_ELSE, starts)), ends


def month_hours(
    month: Month, book: Book, customers: Customers, begins: Mapping[str, datetime]
) -> tuple[datetime, datetime]:
    """The beginning of the month for the first account, and its end for the last (UTC)."""
    accounts = (EVERYBODY_ELSE, *customers.named, *begins)
    hours = [account_hours(month, book, customers, begins, account) for account in accounts]
    return min(starts for starts, _ in hours), max(ends for _, ends in hours)


def days_needed(month: Month, book: Book, customers: Customers, begins: Mapping[str, datetime]) -> list[date]:
    """The days (UTC) that have the month's hours, in their order.  ``begins``: of :func:`begins`."""
    starts, ends = month_hours(month, book, customers, begins)
    return days_of(starts.date(), (ends - timedelta(microseconds=1)).date())


def days_to_sum_up(month: Month, book: Book, customers: Customers, closed: Mapping[Month, Closed]) -> list[date]:
    """The days (UTC) that rating a month needs.  A closed month goes by the plans that are kept with its closing."""
    there = closed.get(month)
    if there is not None:
        book, customers = there.book, there.customers
    return days_needed(month, book, customers, begins(month, book, customers, closed.get(month.previous)))


def begins(month: Month, book: Book, customers: Customers, before: Closed | None) -> dict[str, datetime]:
    """The beginnings of accounts' months that do not begin with their plan's month, but where the one before ended.

    An account that had a plan in another time zone then has one: each hour is in one month, and in no other.  By
    account, and for all that are not named (:data:`EVERYBODY_ELSE`); then all that are named are there as well.
    ``before``: the closing of the month before; None: there is none, and months begin as plans say.
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


def incomplete_days(tables: Tables, days: Sequence[date], now: datetime) -> list[date]:
    """Those of these days whose tables are not there, or were made before the day was over (``now``: or could be)."""
    found = []
    for day in days:
        published = [tables.day(name, day) for name in TABLES]
        ends = datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)
        if any(one is None or one.read_at < min(ends, now) for one in published):
            found.append(day)
    return found


def days_in_words(days: Sequence[date]) -> str:
    """Days that follow on each other as spans: ``2026-10-31, 2026-11-03 to 2026-11-05``."""
    spans: list[tuple[date, date]] = []
    for day in days:
        if spans and day == spans[-1][1] + timedelta(days=1):
            spans[-1] = spans[-1][0], day
        else:
            spans.append((day, day))
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in spans)


def batch_command(days: Sequence[date]) -> str:
    """The command that sums up these days; at least one."""
    first, last = min(days), max(days)
    span = f"--day {first}" if first == last else f"--from {first} --to {last}"
    return f"python -m spark_analytics batch {span}"
