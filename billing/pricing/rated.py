"""Results of the rating: lines of usage with their cost, by month.

In the lake, ``rated/month=2026-11.json`` names the current run of the month's rating and its files, which are in
``rated/month=2026-11/<run>/``: a :class:`~billing.lake.snapshot.Snapshot`.
"""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from billing.lake.lake import Lake, LakeUnavailable
from billing.lake.months import Month
from billing.lake.snapshot import Snapshot, read_named, remove_unnamed
from billing.pricing.billing_days import TABLES, account_hours, batch_command, days_in_words, days_needed, month_hours
from billing.pricing.charges import RATED
from billing.pricing.plans import Customers, PriceBook

FOLDER: Final = "rated"


class Rating(msgspec.Struct, frozen=True):
    """A run of the rating of a month."""

    month: str
    run: str
    rated_at: datetime
    covers: datetime
    """Time (UTC) up to which the batch had summed up usage."""
    read: dict[str, dict[str, str]]
    """Runs of the batch whose sums were rated, by table and day."""
    book: PriceBook
    customers: Customers
    files: tuple[str, ...]
    """Paths in the lake."""
    lines: int
    amount: Decimal
    """Sum of all lines' amounts over all currencies: a checksum for readers."""
    begins: dict[str, datetime] = {}
    """Starts of accounts' months that differ from their plan's (:func:`billing.pricing.billing_days.begins`)."""

    def edges(self, account: str) -> tuple[datetime, datetime]:
        """Return the start of the account's month and of its next one."""
        return account_hours(Month.parse(self.month), self.book, self.customers, self.begins, account)

    @property
    def ends(self) -> datetime:
        """End of the month for the last account (UTC)."""
        return month_hours(Month.parse(self.month), self.book, self.customers, self.begins)[1]

    def days(self) -> list[date]:
        """Days (UTC) that the month needs."""
        return days_needed(Month.parse(self.month), self.book, self.customers, self.begins)

    def missing(self) -> list[date]:
        """Days that the month needs and that were not summed up at the time of the rating."""
        return [day for day in self.days() if any(str(day) not in self.read.get(name, {}) for name in TABLES)]

    def skipped(self) -> list[date]:
        """Missing days that precede summed-up ones: gaps in the usage."""
        read = {day for days in self.read.values() for day in days}
        return [day for day in self.missing() if read and str(day) < max(read)]


class FewerHours(Exception):
    """The rating has less of the month's usage than the current one; nothing was changed."""


class RatedMonth(msgspec.Struct, frozen=True):
    """A rating with its lines, as :data:`~billing.pricing.charges.RATED`."""

    rating: Rating
    lines: pa.Table


class Rated:
    """The ratings in a lake.  All methods raise :class:`~billing.lake.lake.LakeUnavailable`."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def rating(self, month: Month) -> Rating | None:
        """Return the current run; None: the month was not rated yet."""
        return self._snapshot(month).current()

    def of(self, month: Month) -> RatedMonth | None:
        """Return the current run with its lines."""
        missing = f"files of the rating of {month} are missing: rate it again"
        return read_named(self._snapshot(month).current, self._with_lines, missing)

    def publish(self, rating: Rating, over: Rating | None) -> None:
        """Make a run the current one, as :meth:`~billing.lake.snapshot.Snapshot.publish` does.

        Removes the files of the month's other runs.  Raises :class:`~billing.lake.snapshot.Outrun`, and
        :class:`FewerHours` if the current run has more of the month's usage.
        """
        month = Month.parse(rating.month)
        there = self.rating(month)
        if there is not None:
            check_hours(rating, there)
        self._snapshot(month).publish(rating, over, rating.files)
        remove_unnamed(self._lake, f"{FOLDER}/month={month}", rating.files)

    def _snapshot(self, month: Month) -> Snapshot[Rating]:
        path = f"{FOLDER}/month={month}.json"
        return Snapshot(self._lake, path, Rating, published=f"{month} was rated", repair="rate it again")

    def _with_lines(self, rating: Rating | None) -> RatedMonth | None:
        if rating is None:
            return None
        tables = [self._lake.read_table(path, RATED.names).cast(RATED) for path in rating.files]
        lines = pa.concat_tables([RATED.empty_table(), *tables])
        amount = pc.sum(lines["amount"]).as_py() or Decimal(0)
        if (lines.num_rows, amount) != (rating.lines, rating.amount):
            raise LakeUnavailable(
                f"the rating {rating.run} of {rating.month} has {lines.num_rows} lines that cost {amount}, "
                f"but {rating.lines} that cost {rating.amount} were written: its files are damaged; "
                "rate it again"
            )
        return RatedMonth(rating, lines)


def check_hours(rating: Rating, there: Rating) -> None:
    """Raises :class:`FewerHours` if the rating ``there`` has hours of the month that this one lacks."""
    missing = rating.missing()
    lost = [day for day in missing if all(str(day) in there.read.get(name, {}) for name in TABLES)]
    if not lost and rating.covers < min(there.covers, there.ends, rating.ends):
        lost = [day for day in missing if day < there.covers.date()] or [rating.covers.date()]
    if lost:
        raise FewerHours(
            f"{rating.month} was not rated: the usage of {days_in_words(lost)} is not summed up, and the rating of "
            f"{there.rated_at:%Y-%m-%d %H:%M} UTC, which stays, has all before {there.covers:%Y-%m-%d %H:%M} UTC: run "
            f"`{batch_command(lost)}` first"
        )


def folder_of(month: Month, run: str) -> str:
    """Return the folder for the files of a run."""
    return f"{FOLDER}/month={month}/{run}"
