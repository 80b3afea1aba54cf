"""Lines of a month's charges: usage with its cost, and the lines that an invoice adds.

A line belongs to one account and one month.  The rating makes *usage* lines: one for each meter, tier, version of the
plan, queue and set of tags.  :func:`statement` adds the others, so that the lines of an account and a month sum up to
the charged total: the *rounding* difference, the amount that fills up to the *minimum*, and the *tax*.

The charge for a closed month is the sum of all its lines on all invoices.  :func:`differences` returns the lines that
change it to the correct charge.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from billing.lake.months import Month
from billing.pricing.invoice_rows import Charge
from billing.pricing.money import LINE_PLACES, PRICE_PLACES, add, share, to_minor
from billing.pricing.plans import Customers, Meter, PriceBook

Category = Literal["usage", "rounding", "minimum", "tax"]

_AMOUNT: Final = pa.decimal128(38, LINE_PLACES)
_UNITS: Final = pa.decimal128(38, 0)
_EDGE: Final = pa.decimal128(38, 9)
_TIME: Final = pa.timestamp("us", tz="UTC")

RATED: Final = pa.schema(
    [
        pa.field("account", pa.string(), nullable=False),
        pa.field("plan", pa.string(), nullable=False),
        pa.field("version", pa.date32(), nullable=False),  # the day from which it applies
        pa.field("starts", _TIME, nullable=False),
        pa.field("ends", _TIME, nullable=False),  # of the part of the month in which it applies
        pa.field("meter", pa.string(), nullable=False),
        pa.field("tier", pa.int32(), nullable=False),  # from 1
        pa.field("tier_starts", _EDGE, nullable=False),  # in requests, GB-months or GB
        pa.field("tier_ends", _EDGE),  # null: no upper limit
        pa.field("queue", pa.string(), nullable=False),
        pa.field("queue_id", pa.int64(), nullable=False),
        pa.field("tags", pa.string(), nullable=False),  # JSON, by name
        pa.field("units", _UNITS, nullable=False),
        pa.field("price", pa.decimal128(12, PRICE_PLACES), nullable=False),
        pa.field("per", _UNITS, nullable=False),  # number of units that the price is for
        pa.field("discount", pa.int32(), nullable=False),  # basis points
        pa.field("list", _AMOUNT, nullable=False),  # before the discount
        pa.field("amount", _AMOUNT, nullable=False),
    ]
)
"""Columns of the rating's result for a month."""

CHARGED: Final = pa.schema(
    [
        pa.field("month", pa.string(), nullable=False),
        pa.field("category", pa.string(), nullable=False),
        pa.field("name", pa.string(), nullable=False),  # display name of a line that is not usage
        *RATED,
    ]
)
"""Columns of charged lines."""

_SUMS: Final = ("units", "list", "amount")
_KEY: Final = tuple(name for name in CHARGED.names if name not in _SUMS)


class ChargeLine(msgspec.Struct, frozen=True):
    """A line of an invoice."""

    month: str
    """Month that the line charges or corrects."""
    category: Category
    name: str
    meter: Meter | Literal[""]
    """Meter; empty for a line that is not usage."""
    plan: str
    version: str
    """First day of this version of the plan."""
    starts: datetime
    ends: datetime
    """End of the part of the month in which the version applies; of the whole month for a line that is not usage."""
    tier: int
    """Tier, from 1; 0 for a line that is not usage."""
    tier_starts: Decimal
    tier_ends: Decimal | None
    """Upper edge of the tier in requests, GB-months or GB; None: no upper limit."""
    queue: str
    """Queue; also empty for calls that concern no queue."""
    queue_id: int
    tags: dict[str, str]
    units: Decimal
    """Number of units: 64 KiB requests, bytes, or byte-milliseconds; a whole number."""
    price: Decimal
    per: Decimal
    """Number of units that the price is for."""
    discount: int
    """Discount in basis points."""
    list: Decimal
    """Amount before the discount."""
    amount: Decimal

    @property
    def charge(self) -> Charge:
        """Numbers of a usage line, for readers who recompute them."""
        return Charge(self.meter, self.units, self.per, self.price, self.discount, self.amount)


def charged(rated: pa.Table, month: Month) -> pa.Table:
    """Convert the lines of a rating to charged lines."""
    count = rated.num_rows
    columns = {
        "month": pa.repeat(pa.scalar(str(month)), count),
        "category": pa.repeat(pa.scalar("usage"), count),
        "name": pa.repeat(pa.scalar(""), count),
    }
    return pa.table([columns.get(name) if name in columns else rated[name] for name in CHARGED.names], schema=CHARGED)


def statement(
    usage: pa.Table, month: Month, book: PriceBook, customers: Customers, accounts: Iterable[str]
) -> pa.Table:
    """Return the month's lines of usage and the lines that are added for each account.

    ``accounts``: further accounts, which are charged although they used nothing.
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
    """Return the lines that correct the amounts charged before to those due now.

    Lines that are the same in both are left out.  ``before`` and these sum up to ``now``, line by line, exactly.
    """
    negated = before
    for name in _SUMS:
        at = negated.schema.get_field_index(name)
        negated = negated.set_column(at, CHARGED.field(name), pc.negate(negated[name]))
    return _nonzero(summed(pa.concat_tables([now, negated])))


def summed(lines: pa.Table) -> pa.Table:
    """Merge lines that differ only in units and amount."""
    found = lines.group_by(list(_KEY), use_threads=False).aggregate([(name, "sum") for name in _SUMS])
    found = found.rename_columns([name.removesuffix("_sum") for name in found.column_names])
    return found.select(CHARGED.names).cast(CHARGED)


def ordered(lines: pa.Table) -> pa.Table:
    """Sort lines as on invoices: by account, latest month first, then in reading order."""
    rank = pc.index_in(lines["category"], value_set=pa.array(["usage", "rounding", "minimum", "tax"]))
    keys = [("account", "ascending"), ("month", "descending"), ("rank", "ascending")]
    keys += [(name, "ascending") for name in ("version", "meter", "tier", "queue", "queue_id", "tags")]
    return lines.append_column("rank", rank).sort_by(keys).drop_columns("rank")


def lines_of(table: pa.Table) -> list[ChargeLine]:
    """Convert the lines of one account to structs."""
    return [
        msgspec.convert(
            {**row, "version": row["version"].isoformat(), "tags": msgspec.json.decode(row["tags"])},
            ChargeLine,
        )
        for row in table.to_pylist()
    ]


def total(lines: Iterable[ChargeLine]) -> Decimal:
    """Return the exact sum of the lines' amounts."""
    return add([line.amount for line in lines])


def _nonzero(lines: pa.Table) -> pa.Table:
    zero = [pc.equal(lines[name], pa.scalar(Decimal(0), type=CHARGED.field(name).type)) for name in _SUMS]
    return lines.filter(pc.invert(pc.and_(pc.and_(zero[0], zero[1]), zero[2])))


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=CHARGED)
