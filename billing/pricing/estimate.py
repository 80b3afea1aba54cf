"""Cost of a month's usage, computed from an account's sums: for budgets, forecasts and the cost of waste.

The rating (``spark_analytics.rating``) computes an invoice from every queue's lines in every segment of the month. This
applies the same tiers, discounts, minimum and tax to the account's sums, at the prices valid at the month's end. The
result equals the invoice except for price changes within the month, for the hours at its edges if the plan's time zone
is not UTC, and for rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Final

from billing.lake.months import Month
from billing.pricing.money import BASIS_POINTS, add, line_amount, share, to_minor
from billing.pricing.plans import Customers, Meter, Plan, PriceBook, Version, load_book, load_customers

METER_OF: Final[Mapping[str, Meter]] = {
    "": "requests_standard",
    "standard": "requests_standard",
    "fair": "requests_fair",
    "fifo": "requests_fifo",
    "stream": "requests_stream",
    "topic": "requests_topic",
    "delivery_sqs": "deliveries_sqs",
    "delivery_http": "deliveries_http",
}
"""Meter of requests, and of deliveries, by the kind of the call."""


class Prices:
    """Prices by account: a price book with the plans of accounts."""

    def __init__(self, book: PriceBook, customers: Customers) -> None:
        self._book = book
        self._customers = customers

    @classmethod
    def load(cls, book: Path, customers: Path | None) -> Prices:
        """Read the price book and the file of customers.  Raises :class:`ValueError`."""
        try:
            loaded = load_book(book)
            return cls(loaded, load_customers(customers, loaded))
        except OSError as error:
            raise ValueError(f"{error.filename} cannot be read: {error.strerror}") from None

    def cost(self, account: str, month: Month, units: Mapping[Meter, int]) -> Decimal:
        """Return the charge, with tax, if this is all that the account uses in the month.

        ``units`` are those of the meters: chunks of 64 KiB, bytes, and byte-milliseconds.  Raises
        :class:`~billing.pricing.plans.NoPrice`.
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
        """Return the currency of the account's plan."""
        return self._book.plan(self._customers.of(account).plan).currency


def _meter_cost(plan: Plan, version: Version, discount: int, month: Month, meter: Meter, units: int) -> Decimal:
    """Return the cost of these units of one meter, tier by tier, before tax.

    ``discount``: basis points, in addition to the version's.
    """
    off = min(BASIS_POINTS, version.discount(meter) + discount)
    per = plan.units_per(meter, month)
    amounts = []
    for tier in version.tiers(meter):
        starts = plan.edge_units(meter, month, tier.starts)
        ends = units if tier.ends is None else min(units, plan.edge_units(meter, month, tier.ends))
        if ends > starts:
            amounts.append(line_amount(ends - starts, tier.price, per, off))
    return add(amounts)
