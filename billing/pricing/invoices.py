"""Invoices: a month is closed once, and its invoices never change afterwards.

In the lake, ``invoices/period=2026-11/`` has, once the month is closed:

* ``closed.json``: the time of closing, the price book that was used, and the folder of the files below;
* ``<run>/heads.parquet``: the invoices without their lines;
* ``<run>/lines.parquet``: their lines.

A month is a :class:`~billing.lake.snapshot.Snapshot` that is never replaced: its pointer ``closed.json`` closes the
month and assigns the invoices' numbers.  So a process killed while closing leaves at most an unreferenced folder, which
the closing of a later month removes; numbers have no gaps.

Usage that arrives after its month was closed is charged with a later month's invoices.  Their correction lines are the
difference between the month's current charge, at the prices of its closing, and what was charged.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from billing.lake.lake import Lake
from billing.lake.months import Month
from billing.lake.snapshot import Snapshot, remove_unnamed
from billing.lake.tables import LakeTables
from billing.pricing.billing_days import batch_command, begins, days_in_words, incomplete_days, month_hours
from billing.pricing.charges import (
    CHARGED,
    ChargeLine,
    charged,
    differences,
    lines_of,
    ordered,
    statement,
    summed,
    total,
)
from billing.pricing.closing import Closed
from billing.pricing.money import to_minor
from billing.pricing.plans import Customer, Customers, Issuer, PriceBook
from billing.pricing.rated import Rated, Rating

FOLDER: Final = "invoices"
_POINTER: Final = "closed.json"
_HEADS: Final = pa.schema(
    [
        pa.field("account", pa.string(), nullable=False),
        pa.field("number", pa.string(), nullable=False),
        pa.field("head", pa.string(), nullable=False),  # JSON
    ]
)


class CannotClose(Exception):
    """The month cannot be closed now; the text says why and what to do.  Nothing was changed."""


class NoInvoice(LookupError):
    """The invoice does not exist."""


class InvoiceHeader(msgspec.Struct, frozen=True):
    """An invoice without its lines."""

    number: str
    """Number; empty for a draft, which belongs to a month that is not closed."""
    account: str
    period: str
    """Month, such as ``2026-11``."""
    starts: datetime
    ends: datetime
    """End of the month in UTC, exclusive."""
    time_zone: str
    closed_at: datetime
    final: bool
    """True for the tenant's last invoice: it was deleted in this month.  Only late usage makes another one."""
    corrects: tuple[str, ...]
    """Earlier months that this invoice corrects."""
    issuer: Issuer
    customer: Customer
    plan_title: str
    currency: str
    minor_places: int
    net: Decimal
    tax: Decimal
    total: Decimal
    due: date | None = None
    """Date of payment; None for a draft, or if nothing is to be paid."""
    covers: datetime | None = None
    """Time (UTC) up to which a draft includes usage; None: it is not a draft."""
    skipped: tuple[str, ...] = ()
    """Earlier days (UTC) that were not summed up, and are missing in a draft."""


class Invoice(InvoiceHeader, frozen=True):
    """An invoice.  Its lines sum up to its total, exactly."""

    lines: tuple[ChargeLine, ...] = ()


Heads = list[InvoiceHeader]


class Invoices:
    """The invoices in a lake.  All methods raise :class:`~billing.lake.lake.LakeUnavailable`."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._rated = Rated(lake)

    def closed(self) -> dict[Month, Closed]:
        """Return the closed months, in their order."""
        found = {}
        for path in self._lake.paths(FOLDER):
            folder, _, name = path.rpartition("/")
            month = Month.parse(folder.rpartition("period=")[2]) if name == _POINTER else None
            closed = None if month is None else self._snapshot(month).current()
            if month is not None and closed is not None:
                found[month] = closed
        return dict(sorted(found.items()))

    def list(self, account: str | None = None, period: str | None = None) -> Heads:
        """List invoices of an account, or all; of a month, or all.  In the order of their numbers."""
        return [
            head
            for month, closed in self.closed().items()
            if period is None or period == str(month)
            for head in self._heads(month, closed, account)
        ]

    def get(self, account: str, period: str) -> Invoice:
        """Return an invoice.  Raises :class:`NoInvoice`, and :class:`ValueError` if ``period`` is not a month."""
        month = Month.parse(period)
        closed = self._snapshot(month).current()
        if closed is None:
            raise NoInvoice(f"{period} is not closed yet: there is no invoice, but there may be a draft")
        for head in self._heads(month, closed, account):
            lines = self._lines(month, closed)
            own = lines.filter(pc.equal(lines["account"], account))
            return _invoice(head, lines_of(own.select(CHARGED.names)))
        raise NoInvoice(f"account {account} has no invoice for {period}")

    def all_of(self, period: str) -> Iterator[Invoice]:
        """Iterate over the invoices of a month, in the order of their numbers; none if it is not closed."""
        month = Month.parse(period)
        closed = self.closed().get(month)
        if closed is not None:
            yield from _with_lines(self._heads(month, closed, None), self._lines(month, closed))

    def draft(self, account: str, period: str) -> Invoice:
        """Return the invoice as it would be if the month ended with the usage rated now.

        For the month that is closed next it includes the corrections known now.  Raises :class:`NoInvoice` if there can
        be none yet, and :class:`ValueError` if ``period`` is not a month.
        """
        month = Month.parse(period)
        rated = self._rated.of(month)
        if rated is None:
            raise NoInvoice(f"nothing of {period} is rated yet")
        usage = charged(rated.lines.filter(pc.equal(rated.lines["account"], account)), month)
        book, customers = rated.rating.book, rated.rating.customers
        lines = statement(usage, month, book, customers, [account])
        closed = self.closed()
        if closed and month == list(closed)[-1].next:
            try:
                corrections, _ = self._corrections(closed, account)
                lines = pa.concat_tables([lines, corrections])
                _in_one_currency(lines, book, customers, closed)
            except CannotClose as error:
                raise NoInvoice(f"there is no draft for {period} now: {error}") from None
        lines = ordered(lines)
        head = _head(account, month, lines, rated.rating, rated.rating.rated_at, None)
        return _invoice(head, lines_of(lines.select(CHARGED.names)))

    def close(self, period: str, now: datetime) -> Closed:
        """Write the month's invoices from its rating.  A month that is already closed stays as it is, and is returned.

        Only one process at a time may close months of a lake.  Raises :class:`CannotClose`, and :class:`ValueError` if
        ``period`` is not a month.
        """
        month = Month.parse(period)
        before = self.closed()
        if month in before:
            return before[month]
        rated = self._rated.of(month)
        if rated is None:
            check_turn(month, list(before))
            raise CannotClose(
                f"nothing of {month} is rated: close it with --plan, which first sums it up and rates it, or run "
                f"`python -m spark_analytics batch --month {month}` and then "
                f"`python -m spark_analytics rate --period {month}`, both with --plan and --accounts"
            )
        rating = rated.rating
        check_over(month, list(before), rating.book, rating.customers, now)
        _check_whole(month, rating, LakeTables(self._lake), now)
        others = _without_usage(month, rating.book, rating.customers)
        if rating.begins != begins(month, rating.book, rating.customers, before.get(month.previous)):
            raise CannotClose(
                f"{month} was rated before {month.previous} was closed, and some account's plan has another time zone "
                f"now: run the rating for {month} again"
            )
        corrections, ratings = self._corrections(before)
        own = statement(charged(rated.lines, month), month, rating.book, rating.customers, others)
        table = ordered(pa.concat_tables([own, corrections]))
        _in_one_currency(table, rating.book, rating.customers, before)
        slices = dict(_slices(table["account"].to_pylist()))
        number = _next_number(rating.book.issuer, before)
        heads = [
            _head(account, month, table.slice(*slices.get(account, (0, 0))), rating, now, at)
            for at, account in enumerate(sorted({*slices, *others}), number)
        ]
        run = now.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ-") + secrets.token_hex(4)
        self._lake.write_table(_lines_path(month, run), table)
        self._lake.write_table(_heads_path(month, run), _heads_table(heads))
        totals: defaultdict[str, Decimal] = defaultdict(Decimal)
        for head in heads:
            totals[head.currency] += head.total
        closed = Closed(
            str(month),
            now.astimezone(UTC),
            run,
            {**ratings, str(month): rating.run},
            number + len(heads),
            len(heads),
            dict(totals),
            rating.book,
            rating.customers,
        )
        try:
            self._snapshot(month).create(closed)
        except FileExistsError:
            raise CannotClose(f"{month} was closed by another process meanwhile; its invoices are valid") from None
        self._forget_unfinished(before)
        return closed

    def _corrections(self, before: dict[Month, Closed], account: str | None = None) -> tuple[pa.Table, dict[str, str]]:
        """Return the correction lines of closed months and the ratings they come from, of one account or of all.

        Raises :class:`CannotClose`.
        """
        last: dict[str, str] = {}
        for closed in before.values():
            last.update(closed.rated)
        lines, ratings = CHARGED.empty_table(), {}
        for month, closed in before.items():
            rating = self._rated.rating(month)
            if rating is None or rating.run == last[str(month)]:
                continue
            rated = self._rated.of(month)
            assert rated is not None
            if (rated.rating.book, rated.rating.customers) != (closed.book, closed.customers):
                raise CannotClose(
                    f"{month} is closed, and was rated since with other prices or customers than those of its "
                    "closing: run the rating again, which uses those stored with the closing"
                )
            charged_before, usage = self._charged(month, before), charged(rated.lines, month)
            if account is not None:
                charged_before = charged_before.filter(pc.equal(charged_before["account"], account))
                usage = usage.filter(pc.equal(usage["account"], account))
            accounts = set(charged_before["account"].to_pylist())
            now = statement(usage, month, closed.book, closed.customers, accounts)
            lines = pa.concat_tables([lines, differences(now, charged_before)])
            ratings[str(month)] = rated.rating.run
        return lines, ratings

    def charged(self, month: Month) -> pa.Table | None:
        """Sum up all lines about a month, on its invoices and on those that corrected them; None: it is not closed."""
        closed = self.closed()
        return self._charged(month, closed) if month in closed else None

    def _charged(self, month: Month, closed: dict[Month, Closed]) -> pa.Table:
        """Sum up all lines about a month, on its invoices and on those that corrected them."""
        found = []
        for when, one in closed.items():
            if str(month) in one.rated:
                lines = self._lines(when, one).select(CHARGED.names)
                found.append(lines.filter(pc.equal(lines["month"], str(month))))
        return summed(pa.concat_tables(found))

    def _heads(self, month: Month, closed: Closed, account: str | None) -> Heads:
        table = self._lake.read_table(_heads_path(month, closed.run))
        if account is not None:
            table = table.filter(pc.equal(table["account"], account))
        return [msgspec.json.decode(head, type=InvoiceHeader) for head in table["head"].to_pylist()]

    def _lines(self, month: Month, closed: Closed) -> pa.Table:
        return self._lake.read_table(_lines_path(month, closed.run))

    def _forget_unfinished(self, closed: dict[Month, Closed]) -> None:
        """Remove the run folders of processes that were killed while closing these months."""
        for month, one in closed.items():
            named = (f"{_folder(month)}/{_POINTER}", _heads_path(month, one.run), _lines_path(month, one.run))
            remove_unnamed(self._lake, _folder(month), named)

    def _snapshot(self, month: Month) -> Snapshot[Closed]:
        path = f"{_folder(month)}/{_POINTER}"
        repair = "restore it from a backup"
        return Snapshot(self._lake, path, Closed, published=f"{month} was closed", repair=repair)


def check_turn(month: Month, closed: list[Month]) -> None:
    """Raises :class:`CannotClose` unless this is the next month to be closed."""
    if closed and month != closed[-1].next:
        raise CannotClose(f"months are closed in order: after {closed[-1]} comes {closed[-1].next}")


def check_over(month: Month, closed: list[Month], book: PriceBook, customers: Customers, now: datetime) -> None:
    """Raises :class:`CannotClose` unless it is the month's turn, and it is over in the time zones of all used plans."""
    check_turn(month, closed)
    ends = _ends(month, book, customers)
    if now < ends:
        raise CannotClose(f"{month} ends at {ends:%Y-%m-%d %H:%M} UTC: close it after that")


def _check_whole(month: Month, rating: Rating, tables: LakeTables, now: datetime) -> None:
    """Raises :class:`CannotClose` unless all of the month is rated; its text has the missing days, and the remedy."""
    starts, ends = month_hours(month, rating.book, rating.customers, rating.begins)
    if rating.covers >= ends:
        return
    missing = rating.missing() or [rating.covers.date()]
    behind = incomplete_days(tables, missing, now)
    batch = f"`{batch_command(behind)}`, then " if behind else ""
    raise CannotClose(
        f"{month} has the hours from {starts:%Y-%m-%d %H:%M} to {ends:%Y-%m-%d %H:%M} UTC, and was rated without all "
        f"usage of {days_in_words(missing)}: run {batch}`python -m spark_analytics rate --period {month}` with the "
        "same --plan and --accounts, and close it again"
    )


def _ends(month: Month, book: PriceBook, customers: Customers) -> datetime:
    return max(book.plan(name).edges(month)[1] for name in customers.plans())


def _without_usage(month: Month, book: PriceBook, customers: Customers) -> list[str]:
    """Accounts that get an invoice without usage: for a minimum charge, or because it is their last."""
    found = []
    for account, customer in customers.named.items():
        minimum = book.plan(customer.plan).segments(month)[-1].version.minimum
        if _is_final(customer, month) or (minimum and customer.owes_minimum(month)):
            found.append(account)
    return found


def _is_final(customer: Customer, month: Month) -> bool:
    return customer.deleted is not None and month.first <= customer.deleted < month.next.first


def _next_number(issuer: Issuer, closed: dict[Month, Closed]) -> int:
    """Next invoice number.  Numbers are consecutive as long as the issuer's prefix stays the same."""
    return max((one.next_number for one in closed.values() if one.book.issuer.prefix == issuer.prefix), default=1)


def _in_one_currency(lines: pa.Table, book: PriceBook, customers: Customers, closed: dict[Month, Closed]) -> None:
    """Raises :class:`CannotClose` if a correction would be in another currency, or minor unit, than its invoice."""
    kinds = lines.group_by(["account", "month", "plan"], use_threads=False).aggregate([])
    for account, when, plan in zip(*(kinds[name].to_pylist() for name in ("account", "month", "plan")), strict=True):
        earlier = closed.get(Month.parse(when))
        if earlier is None:
            continue
        was, now = earlier.book.plan(plan), book.plan(customers.of(account).plan)
        if was.currency != now.currency:
            raise CannotClose(
                f"account {account} was charged for {when} in {was.currency}, and has late usage there, but its "
                f"plan is now in {now.currency}: give it a plan in {was.currency} until this month is closed"
            )
        if was.minor_places != now.minor_places:
            raise CannotClose(
                f"account {account} was charged for {when} with {was.minor_places} decimal places, and has late usage "
                f"there, but its plan has minor_places {now.minor_places} now: give it one with "
                f"{was.minor_places} until this month is closed"
            )


def _slices(sorted_names: list[str]) -> Iterator[tuple[str, tuple[int, int]]]:
    """For each name, its first index and its number of occurrences."""
    first = 0
    for at, name in enumerate(sorted_names, 1):
        if at == len(sorted_names) or sorted_names[at] != name:
            yield name, (first, at - first)
            first = at


def _head(
    account: str, month: Month, lines: pa.Table, rating: Rating, now: datetime, number: int | None
) -> InvoiceHeader:
    """Make the head of the invoice with these lines.  ``number``: None for a draft."""
    customer = rating.customers.of(account)
    plan = rating.book.plan(customer.plan)
    everything = tax = Decimal(0)
    sums = lines.group_by("category", use_threads=False).aggregate([("amount", "sum")])
    for category, amount in zip(sums["category"].to_pylist(), sums["amount_sum"].to_pylist(), strict=True):
        everything += amount
        tax += amount if category == "tax" else 0
    net, tax, everything = (to_minor(one, plan.minor_places) for one in (everything - tax, tax, everything))
    starts, ends = rating.edges(account)
    return InvoiceHeader(
        "" if number is None else f"{rating.book.issuer.prefix}{number:06}",
        account,
        str(month),
        starts,
        ends,
        plan.time_zone,
        now.astimezone(UTC),
        _is_final(customer, month),
        tuple(sorted(set(lines["month"].to_pylist()) - {str(month)})),
        rating.book.issuer,
        customer,
        plan.title,
        plan.currency,
        plan.minor_places,
        net,
        tax,
        everything,
        None if number is None or everything <= 0 else _due(rating.book.issuer, customer, now),
        rating.covers if number is None else None,
        tuple(map(str, rating.skipped())) if number is None else (),
    )


def _due(issuer: Issuer, customer: Customer, now: datetime) -> date:
    days = issuer.due_days if customer.due_days is None else customer.due_days
    return now.astimezone(UTC).date() + timedelta(days=days)


def _invoice(head: InvoiceHeader, lines: list[ChargeLine]) -> Invoice:
    assert total(lines) == head.total, "the lines of an invoice sum up to its total"
    return Invoice(**{name: getattr(head, name) for name in head.__struct_fields__}, lines=tuple(lines))


def _with_lines(heads: list[InvoiceHeader], lines: pa.Table) -> Iterator[Invoice]:
    slices = dict(_slices(lines["account"].to_pylist()))
    for head in heads:
        first, count = slices.get(head.account, (0, 0))
        yield _invoice(head, lines_of(lines.slice(first, count).select(CHARGED.names)))


def _heads_table(heads: list[InvoiceHeader]) -> pa.Table:
    columns = [
        [head.account for head in heads],
        [head.number for head in heads],
        [msgspec.json.encode(head).decode() for head in heads],
    ]
    return pa.table([pa.array(one, pa.string()) for one in columns], schema=_HEADS)


def _folder(month: Month) -> str:
    return f"{FOLDER}/period={month}"


def _heads_path(month: Month, run: str) -> str:
    return f"{_folder(month)}/{run}/heads.parquet"


def _lines_path(month: Month, run: str) -> str:
    return f"{_folder(month)}/{run}/lines.parquet"
