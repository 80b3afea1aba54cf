"""Costs of a month by queue: the rated lines, each once."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from billing.lake.lake import Lake
from billing.pricing.costs import read_costs
from billing.pricing.invoices import Invoices
from billing.pricing.plans import book_of, customers_of
from tests.billing.rated_lines import Used, rate

A, B, C = "000000000001", "000000000002", "000000000003"
BOOK = """
issuer: {name: We, prefix: X-}
plans:
  plain:
    currency: EUR
    minor_places: 2
    versions:
      - from: 2026-01-01
        prices: &prices
          requests_standard: {tiers: [{price: 0.40}]}
          requests_fair: {tiers: [{price: 0.50}]}
          requests_fifo: {tiers: [{price: 0.60}]}
          storage: {tiers: [{price: 0.10}]}
          bytes_out: {tiers: [{price: 0.09}]}
        tax: {name: VAT, percent: 10}
  yen:
    currency: JPY
    minor_places: 0
    versions:
      - from: 2026-01-01
        prices: *prices
"""
MILLION = 10**6


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(str(tmp_path / "lake"))
    book = book_of(BOOK, "prices.yaml")
    customers = customers_of(f"default: plain\naccounts: {{'{C}': {{plan: yen}}}}", "accounts.yaml", book)
    rate(
        lake,
        "2026-11",
        book,
        customers,
        Used(A, 10 * MILLION, queue="orders", tags={"team": "shop"}),
        Used(A, 5 * MILLION, "requests_fifo", queue="orders", tags={"team": "shop"}),
        Used(A, 100 * 10**9, "bytes_out", queue="orders", tags={"team": "shop"}),
        Used(A, 10 * MILLION, queue="orders"),
        Used(B, 12_345, queue="mail"),
        Used(C, 1000 * MILLION, queue="mail"),
    )
    return lake


def test_a_month_that_is_not_rated_has_no_costs(lake: Lake) -> None:
    assert read_costs(lake, "2026-10", None) is None


def test_costs_are_those_of_the_lines(lake: Lake) -> None:
    costs = read_costs(lake, "2026-11", None)
    assert costs is not None
    assert [(one.account, one.queue, one.tags, one.total.normalize(), one.currency) for one in costs.queues] == [
        (A, "orders", "team=shop", Decimal("16"), "EUR"),
        (A, "orders", "", Decimal("4"), "EUR"),
        (B, "mail", "", Decimal("0.004938"), "EUR"),
        (C, "mail", "", Decimal("4E+2"), "JPY"),
    ]
    assert {name: int(amount) for name, amount in costs.queues[0].charges.items()} == {"Requests": 7, "Bytes out": 9}
    assert (costs.name, costs.totals) == ("Cost so far", {"EUR": Decimal("20.00"), "JPY": Decimal(400)})
    assert costs.accounts == {A: (Decimal(20), "EUR"), B: (Decimal(0), "EUR"), C: (Decimal(400), "JPY")}
    assert costs.places == {"EUR": 2, "JPY": 0}


def test_an_account_sees_its_own(lake: Lake) -> None:
    costs = read_costs(lake, "2026-11", B)
    assert costs is not None
    assert [one.account for one in costs.queues] == [B]
    assert costs.totals == {"EUR": Decimal("0.00")}


def test_a_closed_month_costs_what_was_invoiced(lake: Lake) -> None:
    Invoices(lake).close("2026-11", datetime(2026, 12, 1, tzinfo=UTC))
    costs = read_costs(lake, "2026-11", A)
    assert costs is not None
    assert (costs.name, costs.totals) == ("Invoiced", {"EUR": Decimal("22.00")})
    everybody = read_costs(lake, "2026-11", None)
    assert everybody is not None
    assert everybody.totals["EUR"] == Decimal("22.00")
