"""Amounts of money: decimals, and the two places where they are rounded.

1. The cost of a line is its units times the price, exact, then rounded half up at the 15th decimal place
   (:data:`LINE_PLACES`).  Requests and bytes need no more places.  Only stored bytes, whose unit is divided by the
   length of the month, and discounts are ever rounded here.
2. The sum of an invoice's lines is rounded half up to the currency's minor unit, and so is the tax (:func:`to_minor`).
   The difference is a line of its own, so that the lines of an invoice always sum up to its total, exactly.

Nothing else is rounded, and nothing is ever a float.
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Final

LINE_PLACES: Final = 15
"""Decimal places of a line's cost."""
PRICE_PLACES: Final = 6
"""Maximum decimal places of a price."""
PRICE_BELOW: Final = 10**6
"""Exclusive upper limit of a price."""
BASIS_POINTS: Final = 10_000
"""Basis points in 100 percent."""

_CONTEXT: Final = Context(prec=76, rounding=ROUND_HALF_UP)
"""Decimal context with room for the product of two 38-digit numbers."""


def line_amount(units: int, price: Decimal, per: int, discount: int = 0) -> Decimal:
    """Return the cost of units at ``price`` for each ``per`` of them, less ``discount`` basis points.

    ``spark_analytics.rating`` implements the same calculation in Spark.
    """
    exact = units * int(price.scaleb(LINE_PLACES, _CONTEXT)) * (BASIS_POINTS - discount)
    whole, rest = divmod(exact, per * BASIS_POINTS)
    return Decimal(whole + (2 * rest >= per * BASIS_POINTS)).scaleb(-LINE_PLACES, _CONTEXT)


def to_minor(amount: Decimal, minor_places: int) -> Decimal:
    """Round an amount to the currency's minor unit, which has this number of decimal places."""
    return amount.quantize(Decimal(1).scaleb(-minor_places), context=_CONTEXT)


def share(amount: Decimal, basis_points: int, minor_places: int) -> Decimal:
    """Return a share of an amount, given in basis points, in the currency's minor unit."""
    return to_minor(_CONTEXT.multiply(amount, Decimal(basis_points).scaleb(-4)), minor_places)


def add(amounts: list[Decimal]) -> Decimal:
    """Return the exact sum."""
    total = Decimal(0)
    for amount in amounts:
        total = _CONTEXT.add(total, amount)
    return total
