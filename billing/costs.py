"""What a month costs, by queue: what the rating has made of its usage, put together for people."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

import pyarrow.compute as pc

from billing.billing_days import days_in_words
from billing.invoices import Invoices
from billing.lake import Lake
from billing.money import to_minor
from billing.months import Month
from billing.plans import Meter
from billing.rated import Rated, Rating

CHARGES: Final[Mapping[Meter, str]] = {
    "requests_standard": "Requests",
    "requests_fair": "Requests",
    "requests_fifo": "Requests",
    "storage": "Storage",
    "bytes_out": "Bytes out",
}


@dataclass(frozen=True, slots=True)
class QueueCost:
    """What a queue costs."""

    account: str
    queue: str
    """Empty: calls about no queue, and what is charged for none."""
    tags: str
    charges: Mapping[str, Decimal]
    """By what is charged for, such as ``Requests``."""
    total: Decimal
    currency: str


@dataclass(frozen=True, slots=True)
class Costs:
    """What a month costs, of one account or of all."""

    account: str | None
    name: str
    """What the sum is: invoiced, or what has come together so far."""
    note: str
    queues: Sequence[QueueCost]
    """By currency, and in each the dearest first."""
    totals: Mapping[str, Decimal]
    """By currency: what ``name`` says."""
    explained: str
    """What is in the costs of queues and what is not, for people."""
    accounts: Mapping[str, tuple[Decimal, str]]
    """What the queues of each come to, in the currency's minor unit, rounded once as on its invoice; the currency."""
    places: Mapping[str, int]
    """Decimal places of each currency's minor unit."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Names of accounts, of those that have one in the file of accounts."""
    month_ms: int | None = None
    """The length of the month as it is billed; None: plans' time zones differ in it."""


def read_costs(lake: Lake, period: str, account: str | None) -> Costs | None:
    """What the month costs an account, or all; None: it was not rated yet.

    Raises :class:`~billing.lake.LakeUnavailable`, and :class:`ValueError` for what is no month.
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
    """By account, and by currency."""
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
        usage = f"the usage that was summed up by then, without {days_in_words(skipped)} (UTC), which was not"
    elif rating.covers >= rating.ends:
        usage = "all usage of the month that had come by then"
    else:
        usage = f"the usage before {rating.covers:%Y-%m-%d %H:%M} UTC"
    return (
        f"As rated on {rating.rated_at:%Y-%m-%d at %H:%M} UTC, by the prices of then and {usage}; costs of queues are "
        "before rounding, minimums and tax."
    )
