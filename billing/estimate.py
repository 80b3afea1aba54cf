"""What a month's usage of an account costs, from sums: for budgets, forecasts and what waste comes to.

An invoice is made of every queue's lines in every segment of the month (``spark_analytics.rating``).  This is the same
tiers, discounts, minimum and tax over the account's sums, all at the prices that hold at the month's end: the same
amount as the invoice's but for a change of prices within the month and for rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import NamedTuple

from billing.money import BASIS_POINTS, add, line_amount, share, to_minor
from billing.months import Month
from billing.plans import Book, Customers, Meter, Plan, Version


class Cost(NamedTuple):
    """An amount of money."""

    amount: Decimal
    currency: str


def month_cost(book: Book, customers: Customers, account: str, month: Month, units: Mapping[Meter, int]) -> Cost:
    """What the account is charged if this is all that it uses in the month, with tax.

    ``units`` are those of the meters: chunks of 64 KiB, bytes, and byte-milliseconds.  Raises
    :class:`~billing.plans.NoPrice`.
    """
    customer = customers.of(account)
    plan = book.plan(customer.plan)
    version = plan.segments(month)[-1].version
    exact = add([meter_cost(plan, version, customer.discount, month, meter, count) for meter, count in units.items()])
    net = max(to_minor(exact, plan.minor_places), version.minimum)
    tax = version.tax if customer.tax is None else customer.tax
    return Cost(net + share(net, tax, plan.minor_places), plan.currency)


def meter_cost(plan: Plan, version: Version, discount: int, month: Month, meter: Meter, units: int) -> Decimal:
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
