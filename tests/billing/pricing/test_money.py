"""Amounts, and the places where they are rounded."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.pricing.money import add, line_amount, share, to_minor
from tests.tables import table


@pytest.mark.parametrize(("units", "price", "per", "discount", "amount"), table(__file__, "what a line costs"))
def test_the_cost_of_a_line(units: int, price: str, per: int, discount: int, amount: str) -> None:
    assert line_amount(units, Decimal(price), per, discount) == Decimal(amount)


@given(st.integers(0, 10**25), st.decimals(0, 999_999, places=6), st.integers(1, 10**19), st.integers(0, 10_000))
def test_a_line_is_rounded_once(units: int, price: Decimal, per: int, discount: int) -> None:
    exact = units * Fraction(price) / per * (10_000 - discount) / 10_000
    off = Fraction(line_amount(units, price, per, discount)) - exact
    assert -Fraction(1, 2 * 10**15) < off <= Fraction(1, 2 * 10**15)


@pytest.mark.parametrize(("amount", "places", "rounded"), table(__file__, "sums are rounded half up to the minor unit"))
def test_sums_are_rounded_half_up_to_the_minor_unit(amount: str, places: int, rounded: str) -> None:
    assert str(to_minor(Decimal(amount), places)) == rounded


def test_a_share_is_rounded_once() -> None:
    assert share(Decimal("10.03"), 1900, 2) == Decimal("1.91")  # 1.9057
    assert share(Decimal("0.50"), 700, 2) == Decimal("0.04")  # 0.035
    assert share(Decimal("0.49"), 700, 2) == Decimal("0.03")


def test_sums_are_exact() -> None:
    many = [Decimal("12345678901234567890123"), Decimal("0.000000000000001")]
    assert add([*many, -many[0]]) == many[1]
