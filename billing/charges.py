"""The lines of months: what was used and what it costs, and what an invoice adds to that.

A line is about one account and one month.  *Usage* lines are made by the rating: for each meter, tier, version of the
plan, queue and set of tags.  :func:`statement` adds the others, so that the lines of an account and a month sum up to
what is charged: what *rounding* makes, what fills up to the *minimum*, and the *tax*.

What is charged for a month that was closed is what all its lines on all invoices sum up to.  :func:`differences` are
the lines that take it from there to what it should be now.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from billing.invoice_rows import Charge
from billing.money import LINE_PLACES, PRICE_PLACES, add, share, to_minor
from billing.months import Month
from billing.plans import Book, Customers, Meter

Category = Literal["usage", "rounding", "minimum", "tax"]

_AMOUNT: Final = pa.decimal128(38, LINE_PLACES)
_UNITS: Final = pa.decimal128(38, 0)
_EDGE: Final = pa.decimal128(38, 9)
_TIME: Final = pa.timestamp("us", tz="UTC")

RATED: Final = pa.schema(
    [
        pa.field("account", pa.string(), nullable=False),
        pa.field("plan", pa.string(), nullable=False),
        pa.field("version", pa.date32(), nullable=False),  # the day from which it holds
        pa.field("starts", _TIME, nullable=False),
        pa.field("ends", _TIME, nullable=False),  # of the part of the month in which it does
        pa.field("meter", pa.string(), nullable=False),
        pa.field("tier", pa.int32(), nullable=False),  # from 1
        pa.field("tier_starts", _EDGE, nullable=False),  # in requests, GB-months or GB
        pa.field("tier_ends", _EDGE),  # null: nothing is more
        pa.field("queue", pa.string(), nullable=False),
        pa.field("queue_id", pa.int64(), nullable=False),
        pa.field("tags", pa.string(), nullable=False),  # JSON, by name
        pa.field("units", _UNITS, nullable=False),
        pa.field("price", pa.decimal128(12, PRICE_PLACES), nullable=False),
        pa.field("per", _UNITS, nullable=False),  # so many units cost the price
        pa.field("discount", pa.int32(), nullable=False),  # basis points
        pa.field("list", _AMOUNT, nullable=False),  # before the discount
        pa.field("amount", _AMOUNT, nullable=False),
    ]
)
"""What the rating makes for a month."""

CHARGED: Final = pa.schema(
    [
        pa.field("month", pa.string(), nullable=False),
        pa.field("category", pa.string(), nullable=False),
        pa.field("name", pa.string(), nullable=False),  # for people, where it is no usage
        *RATED,
    ]
)
"""Lines as they are charged."""

_SUMS: Final = ("units", "list", "amount")
_KEY: Final = tuple(name for name in CHARGED.names if name not in _SUMS)


class Line(msgspec.Struct, frozen=True):
    """A line of an invoice."""

    month: str
    """That it charges or corrects."""
    category: Category
    name: str
    meter: Meter | Literal[""]
    """Empty where it is no usage."""
    plan: str
    version: str
    """The day from which this version of the plan holds."""
    starts: datetime
    ends: datetime
    """The part of the month in which it does; of what is no usage, all of the month."""
    tier: int
    """From 1; 0 where it is no usage."""
    tier_starts: Decimal
    tier_ends: Decimal | None
    """The tier in requests, GB-months or GB."""
    queue: str
    """Empty for calls that are about no queue, too."""
    queue_id: int
    tags: dict[str, str]
    units: Decimal
    """64 KiB requests, bytes, or byte-milliseconds: a whole number."""
    price: Decimal
    per: Decimal
    """So many units cost the price."""
    discount: int
    """Basis points."""
    list: Decimal
    """What it would cost without the discount."""
    amount: Decimal

    @property
    def charge(self) -> Charge:
        """Its numbers, as people recompute them.  Of a line of usage."""
        return Charge(self.meter, self.units, self.per, self.price, self.discount, self.amount)


def charged(rated: pa.Table, month: Month) -> pa.Table:
    """The lines of a rating as they are charged."""
    count = rated.num_rows
    columns = {
        "month": pa.repeat(pa.scalar(str(month)), count),
        "category": pa.repeat(pa.scalar("usage"), count),
        "name": pa.repeat(pa.scalar(""), count),
    }
    return pa.table([columns.get(name) if name in columns else rated[name] for name in CHARGED.names], schema=CHARGED)


def statement(usage: pa.Table, month: Month, book: Book, customers: Customers, accounts: Iterable[str]) -> pa.Table:
    """All that the month's lines of usage charge: they, and what is added for each account.

    ``accounts``: others that are charged something although they used nothing.
    """
    summed = usage.group_by("account", use_threads=False).aggregate([("amount", "sum")])
    sums = dict.fromkeys(accounts, Decimal(0))
    sums.update(zip(summed["account"].to_pylist(), summed["amount_sum"].to_pylist(), strict=True))
    added: list[dict[str, object]] = []
    for account, exact in sorted(sums.items()):
        customer = customers.of(account)
        plan = book.plan(customer.plan)
        version = plan.segments(month)[-1].version
        starts, ends = plan.edges(month)
        places = plan.minor_places
        net = to_minor(exact, places)
        tax = version.tax if customer.tax is None else customer.tax
        tax_name = version.tax_name if customer.tax_name is None else customer.tax_name
        amounts: list[tuple[Category, str, Decimal]] = [("rounding", "Rounding to the minor unit", net - exact)]
        if net < version.minimum and customer.owes_minimum(month):
            amounts.append(("minimum", f"Up to the minimum of {version.minimum}", version.minimum - net))
            net = version.minimum
        amounts.append(("tax", f"{tax_name} {Decimal(tax).scaleb(-2):f} %", share(net, tax, places)))
        added += [
            {
                "month": str(month),
                "category": category,
                "name": name,
                "account": account,
                "plan": plan.name,
                "version": version.starts,
                "starts": starts,
                "ends": ends,
                "meter": "",
                "tier": 0,
                "tier_starts": 0,
                "queue": "",
                "queue_id": 0,
                "tags": "{}",
                "units": 0,
                "price": 0,
                "per": 1,
                "discount": 0,
                "list": amount,
                "amount": amount,
            }
            for category, name, amount in amounts
            if amount
        ]
    return pa.concat_tables([usage, _table(added)])


def differences(now: pa.Table, before: pa.Table) -> pa.Table:
    """The lines that take what was charged before to what is to be charged now.

    Lines that are the same in both are not among them.  ``before`` and these sum up to ``now``, line by line, exactly.
    """
    negated = before
    for name in _SUMS:
        at = negated.schema.get_field_index(name)
        negated = negated.set_column(at, CHARGED.field(name), pc.negate(negated[name]))
    return _nonzero(summed(pa.concat_tables([now, negated])))


def summed(lines: pa.Table) -> pa.Table:
    """Lines that differ in nothing but what they count and cost, as one."""
    found = lines.group_by(list(_KEY), use_threads=False).aggregate([(name, "sum") for name in _SUMS])
    found = found.rename_columns([name.removesuffix("_sum") for name in found.column_names])
    return found.select(CHARGED.names).cast(CHARGED)


def ordered(lines: pa.Table) -> pa.Table:
    """Lines in the order of invoices: by account, the months from the latest, and then as people read them."""
    rank = pc.index_in(lines["category"], value_set=pa.array(["usage", "rounding", "minimum", "tax"]))
    keys = [("account", "ascending"), ("month", "descending"), ("rank", "ascending")]
    keys += [(name, "ascending") for name in ("version", "meter", "tier", "queue", "queue_id", "tags")]
    return lines.append_column("rank", rank).sort_by(keys).drop_columns("rank")


def lines_of(table: pa.Table) -> list[Line]:
    """The lines of one account, as they are shown."""
    return [
        msgspec.convert(
            {**row, "version": row["version"].isoformat(), "tags": msgspec.json.decode(row["tags"])},
            Line,
        )
        for row in table.to_pylist()
    ]


def total(lines: Iterable[Line]) -> Decimal:
    """What lines sum up to, exactly."""
    return add([line.amount for line in lines])


def _nonzero(lines: pa.Table) -> pa.Table:
    zero = [pc.equal(lines[name], pa.scalar(Decimal(0), type=CHARGED.field(name).type)) for name in _SUMS]
    return lines.filter(pc.invert(pc.and_(pc.and_(zero[0], zero[1]), zero[2])))


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=CHARGED)
