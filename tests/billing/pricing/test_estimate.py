"""Costs of a month's sums, compared with a calculation by hand."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import msgspec
import pytest

from billing.lake.months import Month
from billing.pricing.estimate import Prices
from billing.pricing.plans import Customer, Customers, Meter, NoPrice, book_of

MONTH = Month(2026, 11)
GB_MONTH = 10**9 * 30 * 86_400_000
BOOK = book_of(
    """
issuer: {name: Example}
plans:
  standard:
    currency: USD
    minor_places: 2
    versions:
      - from: 2026-01-01
        prices:
          requests_standard:
            free: 1000000
            tiers: [{up_to: 3000000, price: 0.40}, {price: 0.30}]
          requests_fair: {tiers: [{price: 0.42}]}
          requests_fifo: {tiers: [{price: 0.50}]}
          storage: {free: 5, tiers: [{price: 0.10}]}
          bytes_out: {free: 10, tiers: [{price: 0.07}]}
        tax: {name: VAT, percent: 20}
""",
    "prices.yaml",
)


@pytest.mark.parametrize(
    ("units", "net"),
    [
        ({}, "0"),
        ({"requests_standard": 1_000_000}, "0"),
        ({"requests_standard": 2_000_000}, "0.40"),
        ({"requests_standard": 3_000_000}, "0.80"),
        ({"requests_standard": 5_000_000}, "1.40"),  # 2 x 0.40 + 2 x 0.30
        ({"requests_standard": 5_000_000, "requests_fifo": 4_000_000}, "3.40"),
        ({"storage": 6 * GB_MONTH, "bytes_out": 30 * 10**9}, "1.50"),  # 1 x 0.10 + 20 x 0.07
    ],
)
def test_tiers_sum_up_and_tax_comes_on_top(units: dict[Meter, int], net: str) -> None:
    prices = Prices(BOOK, Customers("standard"))
    assert prices.cost("000000000001", MONTH, units) == Decimal(net) * Decimal("1.2")
    assert prices.currency("000000000001") == "USD"


def test_a_customers_discount_and_the_minimum_count() -> None:
    customers = Customers("standard", {"000000000001": Customer("standard", discount=5000, tax=0)})
    units: dict[Meter, int] = {"requests_standard": 5_000_000}
    assert Prices(BOOK, customers).cost("000000000001", MONTH, units) == Decimal("0.70")
    (version,) = BOOK.plans["standard"].versions
    plan = msgspec.structs.replace(
        BOOK.plans["standard"], versions=(msgspec.structs.replace(version, minimum=Decimal(5)),)
    )
    book = msgspec.structs.replace(BOOK, plans={"standard": plan})
    assert Prices(book, customers).cost("000000000001", MONTH, units) == 5


def test_a_month_without_prices_is_told() -> None:
    with pytest.raises(NoPrice, match="has no prices"):
        Prices(BOOK, Customers("standard")).cost("000000000001", Month(2025, 11), {})


def test_files_that_are_not_there_are_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        Prices.load(tmp_path / "prices.yaml", None)
