"""Ratings for tests, made without Spark."""

from datetime import UTC, datetime
from decimal import Decimal
from itertools import count

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from billing.lake.lake import Lake
from billing.lake.months import Month
from billing.pricing.charges import RATED
from billing.pricing.money import line_amount
from billing.pricing.plans import Customers, Meter, PriceBook
from billing.pricing.rated import Rated, Rating, folder_of

LATER = datetime(2030, 1, 1, tzinfo=UTC)
_NUMBERS = count()


class Used(msgspec.Struct, frozen=True):
    """Usage of a queue, all in one tier."""

    account: str
    units: int
    meter: Meter = "requests_standard"
    queue: str = "orders"
    tags: dict[str, str] = {}
    tier: int = 1


def lines_of_used(month: Month, book: PriceBook, customers: Customers, used: list[Used]) -> pa.Table:
    rows = []
    for one in used:
        customer = customers.of(one.account)
        plan = book.plan(customer.plan)
        starts, ends, version = plan.segments(month)[0]
        tier = version.tiers(one.meter)[one.tier - 1]
        per = plan.units_per(one.meter, month)
        discount = version.discount(one.meter) + customer.discount
        rows.append(
            {
                "account": one.account,
                "plan": plan.name,
                "version": version.starts,
                "starts": starts,
                "ends": ends,
                "meter": one.meter,
                "tier": one.tier,
                "tier_starts": tier.starts,
                "tier_ends": tier.ends,
                "queue": one.queue,
                "queue_id": 1,
                "tags": msgspec.json.encode(dict(sorted(one.tags.items()))).decode(),
                "units": one.units,
                "price": tier.price,
                "per": per,
                "discount": discount,
                "list": line_amount(one.units, tier.price, per),
                "amount": line_amount(one.units, tier.price, per, discount),
            }
        )
    return pa.Table.from_pylist(rows, schema=RATED)


def rate(
    lake: Lake,
    period: str,
    book: PriceBook,
    customers: Customers,
    *used: Used,
    covers: datetime = LATER,
    begins: dict[str, datetime] | None = None,
) -> Rating:
    """Publish these lines as the month's rating."""
    month = Month.parse(period)
    lines = lines_of_used(month, book, customers, list(used))
    run = f"20300101T000000-{next(_NUMBERS):08x}"
    path = f"{folder_of(month, run)}/part-0.parquet"
    lake.write_table(path, lines)
    amount = pc.sum(lines["amount"]).as_py() or Decimal(0)
    rating = Rating(period, run, LATER, covers, {}, book, customers, (path,), lines.num_rows, amount, begins or {})
    Rated(lake).publish(rating, Rated(lake).rating(month))
    return rating
