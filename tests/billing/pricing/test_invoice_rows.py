"""Numbers of an invoice's lines, as people recompute them."""

from decimal import Decimal

import pytest

from billing.pricing.invoice_rows import METER_TITLES, Charge, aligned, plain, tier_text, written
from billing.pricing.money import line_amount
from billing.pricing.plans import BYTES_METERS, METERS, STORAGE_METERS
from tests.tables import table

D = Decimal
GB_MONTH = 10**9 * 744 * 3_600_000


@pytest.mark.parametrize(
    ("number", "text"),
    [("1234567.500", "1,234,567.5"), ("0E-15", "0"), ("1E+3", "1,000"), ("-0.4000", "-0.4"), ("-0.000000", "0")],
)
def test_numbers_are_written_in_full(number: str, text: str) -> None:
    assert plain(D(number)) == text


@pytest.mark.parametrize(("number", "places", "text"), table(__file__, "what is not nothing is not shown as nothing"))
def test_small_amounts_are_not_shown_as_zero(number: str, places: int, text: str) -> None:
    assert written(D(number), places) == text


def test_points_stand_below_each_other() -> None:
    assert aligned(["1,000", "2.5", "", "< 0.001"]) == ["1,000    ", "    2.5  ", "         ", "  < 0.001"]
    assert aligned(["12", "3"]) == ["12", " 3"]
    assert aligned([]) == []


@pytest.mark.parametrize(
    ("meter", "units", "quantity", "unit", "price_for"),
    [
        ("requests_standard", 64, "64", "requests", "1,000,000"),
        ("requests_fifo", 12_345_678, "12,345,678", "requests", "1,000,000"),
        ("storage", GB_MONTH * 3, "3", "GB-months", "1"),
        ("requests_stream", 64, "64", "requests", "1,000,000"),
        ("stream_storage", GB_MONTH * 3, "3", "GB-months", "1"),
        ("stream_bytes_in", 1_500_000_000, "1.5", "GB", "1"),
        ("stream_bytes_out", 1_500_000_000, "1.5", "GB", "1"),
        ("requests_topic", 64, "64", "requests", "1,000,000"),
        ("deliveries_sqs", 1_234_567, "1,234,567", "deliveries", "1,000,000"),
        ("deliveries_http", 1_234_567, "1,234,567", "deliveries", "100,000"),
        ("storage", GB_MONTH // 15_625, "0.000064", "GB-months", "1"),
        ("storage", 1, "< 0.000000001", "GB-months", "1"),
        ("bytes_out", 1, "0.000000001", "GB", "1"),
    ],
)
def test_quantities(meter: str, units: int, quantity: str, unit: str, price_for: str) -> None:
    charge = Charge(meter, D(units), D(per_of(meter)), D("0.40"), 250, D(0))
    assert (written(charge.quantity), charge.unit, charge.price_for, charge.percent_off) == (
        quantity,
        unit,
        price_for,
        "2.5 %",
    )


def per_of(meter: str) -> int:
    """Units of measurement that a price of this meter is for."""
    if meter in STORAGE_METERS:
        return GB_MONTH
    if meter in BYTES_METERS:
        return 10**9
    return 10**5 if meter == "deliveries_http" else 10**6


@pytest.mark.parametrize("units", [1, 64, 999_999, 123_456_789_123, 10**18 + 7])
def test_each_amount_can_be_recomputed_from_what_is_shown(units: int) -> None:
    for meter in METERS:
        per = per_of(meter)
        price, discount = D("0.41"), 1250
        charge = Charge(meter, D(units), D(per), price, discount, line_amount(units, price, per, discount))
        shown = written(charge.quantity).replace(",", "")
        if "<" in shown:
            continue
        again = D(shown) * price / D(charge.price_for.replace(",", "")) * (1 - D(charge.percent_off[:-2]) / 100)
        assert abs(again - charge.amount) <= D("0.000000001"), meter


@pytest.mark.parametrize(("meter", "price", "starts", "ends", "text"), table(__file__, "tiers"))
def test_tiers(meter: str, price: str, starts: str, ends: str | None, text: str) -> None:
    assert tier_text(meter, D(price), D(starts), None if ends is None else D(ends)) == text


def test_each_meter_has_a_title() -> None:
    assert set(METER_TITLES) == set(METERS)
