"""Amounts of money: decimals, and the two places where they are rounded.

1. What a line costs is its units times the price, exactly, and then rounded half up at the 15th decimal place
   (:data:`LINE_PLACES`).  Requests and bytes need no more places; only of stored bytes, whose unit is divided by the
   length of the month, and of discounts is anything cut off.
2. The sum of an invoice's lines is rounded half up to the currency's minor unit, and so is the tax
   (:func:`to_minor`).  The difference that this makes is a line of its own, so that the lines of an invoice always sum
   up to its total, exactly.

Nothing else is rounded, and nothing is ever a float.
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Final

LINE_PLACES: Final = 15
"""Decimal places of what a line costs."""
PRICE_PLACES: Final = 6
"""Decimal places that a price may have."""
PRICE_BELOW: Final = 10**6
"""A price is less than this."""
BASIS_POINTS: Final = 10_000
"""A percentage is kept in hundredths of a percent: so many are all of it."""

_CONTEXT: Final = Context(prec=76, rounding=ROUND_HALF_UP)
"""Room for what is multiplied: 38 digits with 38."""


def line_amount(units: int, price: Decimal, per: int, discount: int = 0) -> Decimal:
    """What so many units cost at ``price`` for ``per`` of them, less ``discount`` basis points.

    The same is calculated in Spark by ``spark_analytics.rating``.
    """
    exact = units * int(price.scaleb(LINE_PLACES, _CONTEXT)) * (BASIS_POINTS - discount)
    whole, rest = divmod(exact, per * BASIS_POINTS)
    return Decimal(whole + (2 * rest >= per * BASIS_POINTS)).scaleb(-LINE_PLACES, _CONTEXT)


def to_minor(amount: Decimal, minor_places: int) -> Decimal:
    """The amount in the currency's minor unit: with so many decimal places."""
    return amount.quantize(Decimal(1).scaleb(-minor_places), context=_CONTEXT)


def share(amount: Decimal, basis_points: int, minor_places: int) -> Decimal:
    """So many basis points of an amount, in the currency's minor unit."""
    return to_minor(_CONTEXT.multiply(amount, Decimal(basis_points).scaleb(-4)), minor_places)


def add(amounts: list[Decimal]) -> Decimal:
    """The exact sum."""
    total = Decimal(0)
    for amount in amounts:
        total = _CONTEXT.add(total, amount)
    return total
