"""What a month's usage of an account costs, from sums: for budgets, forecasts and what waste comes to.

An invoice is made of every queue's lines in every segment of the month (``spark_analytics.rating``).  This is the same
tiers, discounts, minimum and tax over the account's sums, all at the prices that hold at the month's end: the same
amount as the invoice's but for a change of prices within the month, for the hours at its edges where a plan has another
time zone than UTC, and for rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Final

from billing.money import BASIS_POINTS, add, line_amount, share, to_minor
from billing.months import Month
from billing.plans import Book, Customers, Meter, Plan, Version, load_book, load_customers

METER_OF: Final[Mapping[str, Meter]] = {
    "": "requests_standard",
    "standard": "requests_standard",
    "fair": "requests_fair",
    "fifo": "requests_fifo",
}
"""What is measured of requests, by the kind of the call."""


class Prices:
    """What usage costs, by a price book and who has which plan."""

    def __init__(self, book: Book, customers: Customers) -> None:
        self._book = book
        self._customers = customers

    @classmethod
    def load(cls, book: Path, customers: Path | None) -> Prices:
        """As they are written in files.  Raises :class:`ValueError`."""
        try:
            loaded = load_book(book)
            return cls(loaded, load_customers(customers, loaded))
        except OSError as error:
            raise ValueError(f"{error.filename} cannot be read: {error.strerror}") from None

    def cost(self, account: str, month: Month, units: Mapping[Meter, int]) -> Decimal:
        """What the account is charged if this is all that it uses in the month, with tax.

        ``units`` are those of the meters: chunks of 64 KiB, bytes, and byte-milliseconds.  Raises
        :class:`~billing.plans.NoPrice`.
        """
        customer = self._customers.of(account)
        plan = self._book.plan(customer.plan)
        version = plan.segments(month)[-1].version
        exact = add([_meter_cost(plan, version, customer.discount, month, meter, n) for meter, n in units.items()])
        net = to_minor(exact, plan.minor_places)
        if customer.owes_minimum(month):
            net = max(net, version.minimum)
        tax = version.tax if customer.tax is None else customer.tax
        return net + share(net, tax, plan.minor_places)

    def currency(self, account: str) -> str:
        """In which its costs are."""
        return self._book.plan(self._customers.of(account).plan).currency


def _meter_cost(plan: Plan, version: Version, discount: int, month: Month, meter: Meter, units: int) -> Decimal:
    """What so many units of one meter cost, tier by tier, before tax.

    ``discount``: basis points, on top of those of the version.
    """
    off = min(BASIS_POINTS, version.discounts[meter] + discount)
    per = plan.units_per(meter, month)
    amounts = []
    for tier in version.prices[meter]:
        starts = plan.edge_units(meter, month, tier.starts)
        ends = units if tier.ends is None else min(units, plan.edge_units(meter, month, tier.ends))
        if ends > starts:
            amounts.append(line_amount(ends - starts, tier.price, per, off))
    return add(amounts)
