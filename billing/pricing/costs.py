"""Costs of a month by queue, computed from its rating."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

import pyarrow.compute as pc

from billing.lake.lake import Lake
from billing.lake.months import Month
from billing.pricing.billing_days import days_in_words
from billing.pricing.invoices import Invoices
from billing.pricing.money import to_minor
from billing.pricing.plans import Meter
from billing.pricing.rated import Rated, Rating

CHARGES: Final[Mapping[Meter, str]] = {
    "requests_standard": "Requests",
    "requests_fair": "Requests",
    "requests_fifo": "Requests",
    "storage": "Storage",
    "bytes_out": "Bytes out",
    "requests_stream": "Stream requests",
    "stream_storage": "Stream storage",
    "stream_bytes_in": "Bytes produced",
    "stream_bytes_out": "Bytes fetched",
    "requests_topic": "Topic requests",
    "deliveries_sqs": "Deliveries",
    "deliveries_http": "Deliveries",
}


@dataclass(frozen=True, slots=True)
class QueueCost:
    """Cost of a queue."""

    account: str
    queue: str
    """Queue; empty: calls that concern no queue, and charges that belong to none."""
    tags: str
    charges: Mapping[str, Decimal]
    """Amounts by category, such as ``Requests``."""
    total: Decimal
    currency: str


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of a month, of one account or of all."""

    account: str | None
    name: str
    """Meaning of the sum: invoiced, or accrued so far."""
    note: str
    queues: Sequence[QueueCost]
    """Costs of queues, by currency and then highest first."""
    totals: Mapping[str, Decimal]
    """Totals by currency, with the meaning that ``name`` states."""
    explained: str
    """Explanation for readers: the parts of a bill that queues' costs include and exclude."""
    accounts: Mapping[str, tuple[Decimal, str]]
    """Total of each account's queues in the currency's minor unit, rounded once as on its invoice; its currency."""
    places: Mapping[str, int]
    """Decimal places of each currency's minor unit."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Names of the accounts that have one in the file of accounts."""
    month_ms: int | None = None
    """Length of the billed month; None: it differs between the plans' time zones."""


def read_costs(lake: Lake, period: str, account: str | None) -> Costs | None:
    """Return the costs of a month for one account or for all; None: the month was not rated yet.

    Raises :class:`~billing.lake.lake.LakeUnavailable`, and :class:`ValueError` if ``period`` is not a month.
    """
    month = Month.parse(period)
    found = Rated(lake).of(month)
    if found is None:
        return None
    rating, lines = found.rating, found.lines
    if account is not None:
        lines = lines.filter(pc.equal(lines["account"], account))
    summed = lines.group_by(["account", "queue", "tags", "meter"]).aggregate([("amount", "sum")])
    parts: defaultdict[tuple[str, str, str], dict[str, Decimal]] = defaultdict(dict)
    for row in summed.to_pylist():
        charges = parts[row["account"], row["queue"], row["tags"]]
        name = CHARGES[row["meter"]]
        charges[name] = charges.get(name, Decimal(0)) + row["amount_sum"]
    queues = [
        QueueCost(
            whose,
            queue,
            ", ".join(f"{key}={value}" for key, value in json.loads(tags).items()),
            {name: charges[name] for name in dict.fromkeys(CHARGES.values()) if name in charges},
            sum(charges.values(), Decimal(0)),
            _currency(rating, whose),
        )
        for (whose, queue, tags), charges in parts.items()
    ]
    queues.sort(key=lambda one: (one.currency, -one.total, one.account, one.queue, one.tags))
    accounts, so_far = _summed(queues, rating)
    name, note = "Cost so far", "before tax and minimums"
    if month in Invoices(lake).closed():
        name, note, so_far = "Invoiced", "with tax and corrections", {}
        for head in Invoices(lake).list(account, period):
            so_far[head.currency] = so_far.get(head.currency, Decimal(0)) + head.total
        so_far = dict(sorted(so_far.items()))
    places = {plan.currency: plan.minor_places for plan in rating.book.plans.values()}
    names = {
        whose: customer.name
        for whose, customer in rating.customers.named.items()
        if customer.name and account in (None, whose)
    }
    edges = [rating.book.plan(plan).edges(month) for plan in rating.customers.plans()]
    lengths = {int((ends - starts).total_seconds()) * 1000 for starts, ends in edges}
    month_ms = lengths.pop() if len(lengths) == 1 else None
    return Costs(account, name, note, queues, so_far, _explained(rating), accounts, places, names, month_ms)


def _summed(queues: Sequence[QueueCost], rating: Rating) -> tuple[dict[str, tuple[Decimal, str]], dict[str, Decimal]]:
    """Sum up by account, and by currency."""
    exact: defaultdict[str, Decimal] = defaultdict(Decimal)
    for one in queues:
        exact[one.account] += one.total
    accounts: dict[str, tuple[Decimal, str]] = {}
    totals: defaultdict[str, Decimal] = defaultdict(Decimal)
    for account, amount in exact.items():
        plan = rating.book.plan(rating.customers.of(account).plan)
        accounts[account] = to_minor(amount, plan.minor_places), plan.currency
        totals[plan.currency] += accounts[account][0]
    return accounts, dict(totals)


def _currency(rating: Rating, account: str) -> str:
    return rating.book.plan(rating.customers.of(account).plan).currency


def _explained(rating: Rating) -> str:
    skipped = rating.skipped()
    if skipped:
        usage = f"the usage that was summed up by then, without {days_in_words(skipped)} (UTC)"
    elif rating.covers >= rating.ends:
        usage = "all usage of the month recorded by then"
    else:
        usage = f"the usage before {rating.covers:%Y-%m-%d %H:%M} UTC"
    return (
        f"As rated on {rating.rated_at:%Y-%m-%d at %H:%M} UTC, by the prices at that time and {usage}; costs of "
        "queues are "
        "before rounding, minimums and tax."
    )
