"""Closing of months, their charges, and usage that arrives late."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest

from billing.lake.lake import Lake, LakeUnavailable
from billing.lake.months import Month
from billing.lake.tables import Outrun
from billing.pricing.billing_days import begins
from billing.pricing.charges import ChargeLine
from billing.pricing.estimate import Prices
from billing.pricing.invoices import CannotClose, Invoice, InvoiceHeader, Invoices, NoInvoice
from billing.pricing.plans import Customers, PriceBook, book_of, customers_of
from billing.pricing.rated import Rated
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
          requests_standard: {free: 1000, tiers: [{price: 0.40}]}
          requests_fair: {tiers: [{price: 0.50}]}
          requests_fifo: {tiers: [{price: 0.60}]}
          storage: {tiers: [{price: 0.10}]}
          bytes_out: {tiers: [{price: 0.09}]}
        tax: {name: VAT, percent: 19}
  large:
    currency: EUR
    minor_places: 2
    versions:
      - from: 2026-01-01
        prices: *prices
        discount: 10
        minimum: 100
  yen:
    currency: JPY
    minor_places: 0
    versions:
      - from: 2026-01-01
        prices: *prices
"""
END = datetime(2026, 12, 1, tzinfo=UTC)
MILLION = 10**6
D = Decimal


def book() -> PriceBook:
    return book_of(BOOK, "prices.yaml")


def customers(text: str = "default: plain") -> Customers:
    return customers_of(text, "accounts.yaml", book())


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


def amounts(lines: tuple[ChargeLine, ...]) -> list[tuple[str, str, str, Decimal]]:
    return [(line.month, line.category, line.queue, line.amount.normalize()) for line in lines]


def snapshot(lake: Lake) -> dict[str, bytes]:
    root = Path(lake.url)
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_month_becomes_invoices(lake: Lake) -> None:
    rate(
        lake,
        "2026-11",
        book(),
        customers(),
        Used(A, 1000),
        Used(A, 3 * MILLION, tier=2),
        Used(A, 12_345, tier=2, queue="mails", tags={"team": "b", "env": "x"}),
        Used(B, 10, "requests_fifo"),
    )
    closed = Invoices(lake).close("2026-11", END)
    assert (closed.invoices, closed.next_number, closed.totals) == (2, 3, {"EUR": Decimal("1.43")})
    invoice = Invoices(lake).get(A, "2026-11")
    assert amounts(invoice.lines) == [
        ("2026-11", "usage", "orders", Decimal("0")),
        ("2026-11", "usage", "mails", Decimal("0.004938")),
        ("2026-11", "usage", "orders", Decimal("1.2")),
        ("2026-11", "rounding", "", Decimal("-0.004938")),
        ("2026-11", "tax", "", Decimal("0.23")),  # 0.228
    ]
    assert (invoice.number, invoice.net, invoice.tax, invoice.total) == (
        "X-000001",
        Decimal("1.20"),
        Decimal("0.23"),
        Decimal("1.43"),
    )
    assert invoice.lines[1].tags == {"env": "x", "team": "b"}
    assert invoice.lines[1].charge.quantity == 12_345
    assert (invoice.lines[1].tier, invoice.lines[1].tier_starts, invoice.lines[1].tier_ends) == (2, D(1000), None)
    assert (invoice.starts, invoice.ends) == (datetime(2026, 11, 1, tzinfo=UTC), END)
    small = Invoices(lake).get(B, "2026-11")
    assert (small.number, small.total) == ("X-000002", D(0))
    assert amounts(small.lines)[1:] == [("2026-11", "rounding", "", Decimal("-0.000006"))]


def test_invoices_are_listed_and_read_all_at_once(lake: Lake) -> None:
    rate(lake, "2026-11", book(), customers(), Used(A, MILLION, tier=2), Used(B, MILLION, "storage"))
    rate(lake, "2026-12", book(), customers(), Used(A, MILLION, tier=2))
    invoices = Invoices(lake)
    invoices.close("2026-11", END)
    invoices.close("2026-12", datetime(2027, 1, 1, tzinfo=UTC))
    assert [(head.number, head.account, head.period) for head in invoices.list()] == [
        ("X-000001", A, "2026-11"),
        ("X-000002", B, "2026-11"),
        ("X-000003", A, "2026-12"),
    ]
    assert [head.number for head in invoices.list(A)] == ["X-000001", "X-000003"]
    assert [head.number for head in invoices.list(A, "2026-12")] == ["X-000003"]
    assert type(invoices.list(A)[0]) is InvoiceHeader
    assert list(invoices.all_of("2026-11")) == [invoices.get(A, "2026-11"), invoices.get(B, "2026-11")]
    assert list(invoices.all_of("2026-10")) == []


def test_an_invoice_is_the_same_when_it_was_kept_as_json(lake: Lake) -> None:
    rate(lake, "2026-11", book(), customers(), Used(A, 7 * MILLION, tier=2))
    Invoices(lake).close("2026-11", END)
    invoice = Invoices(lake).get(A, "2026-11")
    assert msgspec.json.decode(msgspec.json.encode(invoice), type=Invoice) == invoice


def test_what_is_not_there(lake: Lake) -> None:
    with pytest.raises(NoInvoice, match="2026-11 is not closed yet"):
        Invoices(lake).get(A, "2026-11")
    with pytest.raises(NoInvoice, match="nothing of 2026-11 is rated yet"):
        Invoices(lake).draft(A, "2026-11")
    rate(lake, "2026-11", book(), customers(), Used(A, 1))
    Invoices(lake).close("2026-11", END)
    with pytest.raises(NoInvoice, match=f"account {B} has no invoice for 2026-11"):
        Invoices(lake).get(B, "2026-11")
    with pytest.raises(ValueError, match="write it like 2026-11"):
        Invoices(lake).get(B, "november")


def test_a_closed_month_never_changes(lake: Lake) -> None:
    rate(lake, "2026-11", book(), customers(), Used(A, 5 * MILLION, tier=2))
    first = Invoices(lake).close("2026-11", END)
    rate(lake, "2026-11", book(), customers(), Used(A, 9 * MILLION, tier=2))
    before = snapshot(lake)
    assert Invoices(lake).close("2026-11", datetime(2027, 1, 1, tzinfo=UTC)) == first
    assert snapshot(lake) == before


def test_discounts_and_minimum(lake: Lake) -> None:
    who = customers(f"default: large\naccounts: {{'{A}': {{plan: large, discount: 2.5}}}}")
    rate(lake, "2026-11", book(), who, Used(A, 400 * MILLION, tier=2), Used(B, MILLION, tier=2))
    Invoices(lake).close("2026-11", END)
    large, small = Invoices(lake).get(A, "2026-11"), Invoices(lake).get(B, "2026-11")
    assert [(line.list, line.discount, line.amount) for line in large.lines] == [(D(160), 1250, D(140))]
    assert amounts(small.lines) == [
        ("2026-11", "usage", "orders", Decimal("0.36")),
        ("2026-11", "minimum", "", Decimal("99.64")),
    ]
    assert (large.total, small.total, small.tax) == (D(140), D(100), D(0))


def test_who_used_nothing_gets_an_invoice_for_the_minimum_or_as_the_last_one(lake: Lake) -> None:
    who = customers(
        f"""
default: plain
accounts:
  "{A}": {{plan: large}}
  "{B}": {{plan: plain}}
  "{C}": {{plan: plain, deleted: 2026-11-30}}
  "000000000004": {{plan: large, deleted: 2026-10-31}}
"""
    )
    rate(lake, "2026-11", book(), who)
    Invoices(lake).close("2026-11", END)
    assert [(head.account, head.total, head.final) for head in Invoices(lake).list()] == [
        (A, D(100), False),
        (C, D(0), True),
    ]
    assert Invoices(lake).get(C, "2026-11").lines == ()


def test_an_account_has_its_own_tax(lake: Lake) -> None:
    who = customers(f"default: plain\naccounts: {{'{A}': {{plan: plain, tax: {{name: GST, percent: 7}}}}}}")
    rate(lake, "2026-11", book(), who, Used(A, 10, "bytes_out"), Used(A, 10**11, "bytes_out"))
    Invoices(lake).close("2026-11", END)
    invoice = Invoices(lake).get(A, "2026-11")
    assert (invoice.lines[-1].name, invoice.lines[-1].amount) == ("GST 7.00 %", Decimal("0.63"))
    assert (invoice.net, invoice.total) == (D(9), D("9.63"))


def test_a_currency_without_a_minor_unit(lake: Lake) -> None:
    rate(lake, "2026-11", book(), customers("default: yen"), Used(A, 5 * 10**9 + 5 * 10**8, "bytes_out"))
    Invoices(lake).close("2026-11", END)
    assert str(Invoices(lake).get(A, "2026-11").total) == "0"  # 0.495
    rate(lake, "2026-12", book(), customers("default: yen"), Used(A, 50 * 10**9, "bytes_out"))
    Invoices(lake).close("2026-12", datetime(2027, 1, 1, tzinfo=UTC))
    assert str(Invoices(lake).get(A, "2026-12").total) == "5"  # 4.5


def test_late_usage_is_a_correction_on_the_next_invoice(lake: Lake) -> None:
    rate(lake, "2026-11", book(), customers(), Used(A, 5 * MILLION, tier=2), Used(B, 10 * MILLION, tier=2))
    Invoices(lake).close("2026-11", END)
    rate(
        lake,
        "2026-11",
        book(),
        customers(),
        Used(A, 5 * MILLION, tier=2),
        Used(A, 2 * MILLION, tier=2, queue="late"),
        Used(B, 9 * MILLION, tier=2),
        Used(C, 3 * MILLION, tier=2),
    )
    rate(lake, "2026-12", book(), customers(), Used(A, 1000))
    closed = Invoices(lake).close("2026-12", datetime(2027, 1, 1, tzinfo=UTC))
    assert [head.corrects for head in Invoices(lake).list(period="2026-12")] == [("2026-11",)] * 3
    assert amounts(Invoices(lake).get(A, "2026-12").lines) == [
        ("2026-12", "usage", "orders", Decimal(0)),
        ("2026-11", "usage", "late", Decimal("0.8")),
        ("2026-11", "tax", "", Decimal("0.15")),  # 19 % of 2.80 is 0.53, and 0.38 was charged
    ]
    fewer = Invoices(lake).get(B, "2026-12")
    assert [(line.units, line.amount) for line in fewer.lines] == [
        (D(-MILLION), D("-0.4")),
        (D(0), D("-0.08")),  # 0.684 instead of 0.76
    ]
    assert (fewer.net, fewer.tax, fewer.total) == (Decimal("-0.40"), Decimal("-0.08"), Decimal("-0.48"))
    assert Invoices(lake).get(C, "2026-12").total == Decimal("1.43")
    assert closed.totals == {"EUR": Decimal("0.95") - Decimal("0.48") + Decimal("1.43")}


def test_what_is_charged_for_a_month_is_what_it_comes_to_in_the_end(lake: Lake) -> None:
    """Check that all lines about a month, on all invoices, equal its last rating, however often late usage arrives."""
    units = [3_333_333, 3_333_334, 7_654_321, 1, 123_456_789]
    period, invoices = "2026-11", Invoices(lake)
    for at, late in enumerate(units):
        rate(lake, "2026-11", book(), customers(), Used(A, late, tier=2), Used(A, late, "storage"))
        if at:
            rate(lake, period, book(), customers())
        year, number = Month.parse(period).next
        invoices.close(period, datetime(year, number, 1, tzinfo=UTC))
        about = [
            line for head in invoices.list(A) for line in invoices.get(A, head.period).lines if line.month == "2026-11"
        ]
        assert sum(line.units for line in about if line.category == "usage") == 2 * late
        alone = invoices.draft(A, "2026-11")
        assert sum(line.amount for line in about) == alone.total
        assert sum(line.amount for line in about if line.category == "tax") == alone.tax
        period = str(Month.parse(period).next)
    assert invoices.list(A)[-1].corrects == ("2026-11",)


def test_no_news_is_no_correction(lake: Lake) -> None:
    rate(lake, "2026-11", book(), customers(), Used(A, 5 * MILLION, tier=2))
    Invoices(lake).close("2026-11", END)
    rate(lake, "2026-11", book(), customers(), Used(A, 5 * MILLION, tier=2))
    rate(lake, "2026-12", book(), customers(), Used(B, MILLION))
    Invoices(lake).close("2026-12", datetime(2027, 1, 1, tzinfo=UTC))
    assert [head.account for head in Invoices(lake).list(period="2026-12")] == [B]


def test_corrections_go_by_the_prices_of_then(lake: Lake) -> None:
    rate(lake, "2026-11", book(), customers(), Used(A, 5 * MILLION, tier=2))
    Invoices(lake).close("2026-11", END)
    dearer = book_of(BOOK.replace("price: 0.40", "price: 4").replace("19", "20"), "prices.yaml")
    rate(lake, "2026-11", book(), customers(), Used(A, 6 * MILLION, tier=2))  # like the rating of closed months
    rate(lake, "2026-12", dearer, customers(), Used(A, MILLION, tier=2))
    Invoices(lake).close("2026-12", datetime(2027, 1, 1, tzinfo=UTC))
    assert amounts(Invoices(lake).get(A, "2026-12").lines) == [
        ("2026-12", "usage", "orders", Decimal(4)),
        ("2026-12", "tax", "", Decimal("0.8")),
        ("2026-11", "usage", "orders", Decimal("0.4")),
        ("2026-11", "tax", "", Decimal("0.08")),  # 0.456 instead of 0.38
    ]


def test_a_correction_in_another_currency_is_refused(lake: Lake) -> None:
    rate(lake, "2026-11", book(), customers(), Used(A, 5 * MILLION, tier=2))
    Invoices(lake).close("2026-11", END)
    rate(lake, "2026-12", book(), customers("default: yen"), Used(A, 10 * MILLION, tier=2))
    later = datetime(2027, 1, 1, tzinfo=UTC)
    rate(lake, "2026-11", book(), customers(), Used(A, 6 * MILLION, tier=2))
    before = snapshot(lake)
    with pytest.raises(
        CannotClose, match=f"account {A} was charged for 2026-11 in EUR, .* in JPY now: let it have a plan"
    ):
        Invoices(lake).close("2026-12", later)
    assert snapshot(lake) == before
    rate(lake, "2026-11", book(), customers(), Used(A, 5 * MILLION, tier=2))
    Invoices(lake).close("2026-12", later)
    assert Invoices(lake).get(A, "2026-12").currency == "JPY"


def test_a_correction_in_another_minor_unit_is_refused(lake: Lake) -> None:
    """An invoice cannot represent the exact sum of such lines."""
    finer = book_of(BOOK.replace("minor_places: 2", "minor_places: 4", 1), "prices.yaml")
    rate(lake, "2026-11", finer, customers(), Used(A, 5 * MILLION, tier=2))
    Invoices(lake).close("2026-11", END)
    rate(lake, "2026-11", finer, customers(), Used(A, 5_001_234, tier=2))
    rate(lake, "2026-12", book(), customers(), Used(A, MILLION, tier=2))
    with pytest.raises(CannotClose, match=r"charged for 2026-11 with 4 decimal places, .* has minor_places 2 now"):
        Invoices(lake).close("2026-12", LATE)
    rate(lake, "2026-12", finer, customers(), Used(A, MILLION, tier=2))
    Invoices(lake).close("2026-12", LATE)
    assert Invoices(lake).get(A, "2026-12").net == Decimal("0.4005")  # 0.4 and 2.0004936 instead of 2


def test_a_closed_month_that_was_rated_by_other_prices_corrects_nothing(lake: Lake) -> None:
    """A rating that began before the month was closed may end after that."""
    rate(lake, "2026-11", book(), customers(), Used(A, 5 * MILLION, tier=2))
    Invoices(lake).close("2026-11", END)
    rate(lake, "2026-12", book(), customers(), Used(A, MILLION, tier=2))
    dearer = book_of(BOOK.replace("price: 0.40", "price: 4"), "prices.yaml")
    for whose, who in ((dearer, customers()), (book(), customers("default: large"))):
        rate(lake, "2026-11", whose, who, Used(A, 5 * MILLION, tier=2))
        with pytest.raises(CannotClose, match="2026-11 is closed, and was rated since by other prices or customers"):
            Invoices(lake).close("2026-12", LATE)
    rate(lake, "2026-11", book(), customers(), Used(A, 5 * MILLION, tier=2))
    Invoices(lake).close("2026-12", LATE)
    assert {line.month for line in Invoices(lake).get(A, "2026-12").lines} == {"2026-12"}


ZONES = """
issuer: {name: We}
plans:
  utc: {currency: EUR, minor_places: 2, versions: [&now {from: 2026-01-01, prices: {
    requests_standard: {tiers: [{price: 1}]}, requests_fair: {tiers: [{price: 1}]},
    requests_fifo: {tiers: [{price: 1}]}, storage: {tiers: [{price: 1}]}, bytes_out: {tiers: [{price: 1}]}}}]}
  berlin: {currency: EUR, minor_places: 2, time_zone: Europe/Berlin, versions: [*now]}
"""


def test_a_month_begins_where_the_one_before_has_ended_also_in_another_time_zone(lake: Lake) -> None:
    book = book_of(ZONES, "prices.yaml")
    before = datetime(2026, 11, 30, 23, tzinfo=UTC)  # midnight in Berlin

    def who(text: str) -> Customers:
        return customers_of(text, "accounts.yaml", book)

    rate(lake, "2026-11", book, who(f"default: utc\naccounts: {{'{B}': {{plan: berlin}}}}"), Used(A, 1), Used(B, 1))
    closed = Invoices(lake).close("2026-11", END)
    december = Month(2026, 12)

    def found(text: str) -> dict[str, datetime]:
        return begins(december, book, who(text), closed)

    assert begins(december, book, who("default: berlin"), None) == {}
    assert found(f"default: utc\naccounts: {{'{B}': {{plan: berlin}}}}") == {}
    assert found(f"default: utc\naccounts: {{'{A}': {{plan: berlin}}, '{B}': {{plan: utc}}}}") == {A: END, B: before}
    assert found("default: utc") == {B: before}
    assert found("default: berlin") == {"": END, B: before}
    # A rating made without knowledge of the closing is not charged.
    moved = who(f"default: utc\naccounts: {{'{A}': {{plan: berlin}}, '{B}': {{plan: utc}}}}")
    rate(lake, "2026-12", book, moved, Used(A, 1), Used(B, 1))
    with pytest.raises(CannotClose, match="2026-12 was rated before 2026-11 was closed"):
        Invoices(lake).close("2026-12", LATE)
    rate(lake, "2026-12", book, moved, Used(A, 1), Used(B, 1), begins={A: END, B: before})
    Invoices(lake).close("2026-12", LATE)
    ends = datetime(2026, 12, 31, 23, tzinfo=UTC)
    assert [(head.starts, head.ends) for head in Invoices(lake).list(period="2026-12")] == [
        (END, ends),
        (before, datetime(2027, 1, 1, tzinfo=UTC)),
    ]


def test_when_a_month_cannot_be_closed(lake: Lake) -> None:
    invoices = Invoices(lake)
    with pytest.raises(
        CannotClose, match=r"nothing of 2026-11 is rated: close it with --plan, .* batch --month 2026-11`"
    ):
        invoices.close("2026-11", END)
    rate(lake, "2026-11", book(), customers(), Used(A, 1), covers=datetime(2026, 11, 30, 22, tzinfo=UTC))
    with pytest.raises(CannotClose, match="2026-11 ends at 2026-12-01 00:00 UTC: close it after that"):
        invoices.close("2026-11", datetime(2026, 11, 30, 23, 59, 59, tzinfo=UTC))
    with pytest.raises(
        CannotClose,
        match=r"to 2026-12-01 00:00 UTC, and was rated without all usage of 2026-11-01 to 2026-11-30: run `python -m ",
    ):
        invoices.close("2026-11", END)
    rate(lake, "2026-11", book(), customers(), Used(A, 1), covers=END)
    invoices.close("2026-11", END)
    rate(lake, "2027-01", book(), customers(), Used(A, 1))
    with pytest.raises(CannotClose, match="one after the other: after 2026-11 comes 2026-12"):
        invoices.close("2027-01", datetime(2027, 2, 1, tzinfo=UTC))
    assert list(invoices.closed()) == [Month(2026, 11)]


def test_a_draft_is_what_the_invoice_would_be(lake: Lake) -> None:
    rate(lake, "2026-11", book(), customers(), Used(A, 5 * MILLION, tier=2), Used(B, 1))
    draft = Invoices(lake).draft(A, "2026-11")
    assert (draft.number, draft.total) == ("", Decimal("2.38"))
    assert Invoices(lake).draft(C, "2026-11").lines == ()
    Invoices(lake).close("2026-11", END)
    assert Invoices(lake).get(A, "2026-11").lines == draft.lines


def test_a_draft_has_the_corrections_that_are_known(lake: Lake) -> None:
    rate(lake, "2026-11", book(), customers(), Used(A, 5 * MILLION, tier=2), Used(B, 10 * MILLION, tier=2))
    Invoices(lake).close("2026-11", END)
    late = Used(A, 2 * MILLION, tier=2, queue="late")
    rate(lake, "2026-11", book(), customers(), Used(A, 5 * MILLION, tier=2), late, Used(B, 9 * MILLION, tier=2))
    rate(lake, "2026-12", book(), customers(), Used(A, 1000))
    rate(lake, "2027-01", book(), customers(), Used(A, 1000))
    drafts = {account: Invoices(lake).draft(account, "2026-12") for account in (A, B, C)}
    assert (drafts[A].corrects, drafts[A].total) == (("2026-11",), D("0.95"))
    assert (drafts[B].corrects, drafts[B].total) == (("2026-11",), D("-0.48"))
    assert drafts[C].lines == ()
    assert Invoices(lake).draft(A, "2027-01").corrects == (), "they are charged with the month that is closed next"
    Invoices(lake).close("2026-12", datetime(2027, 1, 1, tzinfo=UTC))
    for account in (A, B):
        assert Invoices(lake).get(account, "2026-12").lines == drafts[account].lines


def test_a_draft_that_would_be_in_two_currencies_says_why_there_is_none(lake: Lake) -> None:
    rate(lake, "2026-11", book(), customers(), Used(A, 5 * MILLION, tier=2))
    Invoices(lake).close("2026-11", END)
    rate(lake, "2026-11", book(), customers(), Used(A, 6 * MILLION, tier=2))
    rate(lake, "2026-12", book(), customers("default: yen"), Used(A, MILLION, tier=2))
    with pytest.raises(NoInvoice, match=r"no draft for 2026-12 now: .* was charged for 2026-11 in EUR"):
        Invoices(lake).draft(A, "2026-12")


def test_a_draft_says_what_is_in_it(lake: Lake) -> None:
    noon = datetime(2026, 11, 20, 12, tzinfo=UTC)
    rate(lake, "2026-11", book(), customers(), Used(A, MILLION, tier=2), covers=noon)
    draft = Invoices(lake).draft(A, "2026-11")
    assert (draft.covers, draft.skipped, draft.due) == (noon, (), None)


@pytest.mark.parametrize(
    ("account", "due"),
    [("plan: plain", "2026-12-31"), ("plan: plain, due_days: 0", "2026-12-01")],
)
def test_an_invoice_has_a_due_date(lake: Lake, account: str, due: str) -> None:
    who = customers(f"default: plain\naccounts: {{'{A}': {{{account}}}}}")
    rate(lake, "2026-11", book(), who, Used(A, MILLION, tier=2), Used(B, 1))
    Invoices(lake).close("2026-11", END)
    assert str(Invoices(lake).get(A, "2026-11").due) == due
    assert Invoices(lake).get(B, "2026-11").due is None, "nothing is to be paid"
    assert (Invoices(lake).get(A, "2026-11").covers, Invoices(lake).get(A, "2026-11").skipped) == (None, ())


@pytest.mark.parametrize(
    ("created", "total"),
    [("2026-12-01", None), ("2026-11-30", 100), ("2026-10-05", 100), ("2027-02-01", None)],
)
def test_no_minimum_is_owed_for_months_before_an_account_was_made(lake: Lake, created: str, total: int | None) -> None:
    who = customers(f"default: plain\naccounts: {{'{A}': {{plan: large, created: {created}}}}}")
    rate(lake, "2026-11", book(), who)
    Invoices(lake).close("2026-11", END)
    assert [head.total for head in Invoices(lake).list()] == ([] if total is None else [D(total)])
    assert Prices(book(), who).cost(A, Month(2026, 11), {}) == (total or 0)


def test_numbers_of_an_issuer_have_no_gaps_and_another_has_its_own(lake: Lake) -> None:
    month, found = Month(2026, 1), []
    for at in range(4):
        whose = book() if at != 2 else book_of(BOOK.replace("X-", "Y-"), "prices.yaml")
        rate(lake, str(month), whose, customers(), Used(A, 1), *([Used(B, 1)] if at else []))
        Invoices(lake).close(str(month), LATE)
        month = month.next
    found = [head.number for head in Invoices(lake).list()]
    assert found == ["X-000001", "X-000002", "X-000003", "Y-000001", "Y-000002", "X-000004", "X-000005"]


LATE = datetime(2028, 1, 1, tzinfo=UTC)


class Ended(BaseException):
    """Simulated end of the process."""


def test_whoever_is_killed_while_closing_has_closed_nothing(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    rate(lake, "2026-11", book(), customers(), Used(A, 5 * MILLION, tier=2))
    write_table, write_new = Lake.write_table, Lake.write_new
    for steps in range(3):  # killed before the lines, the heads, or closed.json is written
        left = [steps]

        def ended(write: object, left: list[int] = left) -> object:
            def until_then(*arguments: object) -> None:
                if not left[0]:
                    raise Ended
                left[0] -= 1
                write(*arguments)  # type: ignore[operator]

            return until_then

        monkeypatch.setattr(Lake, "write_table", ended(write_table))
        monkeypatch.setattr(Lake, "write_new", ended(write_new))
        with pytest.raises(Ended):
            Invoices(lake).close("2026-11", END)
        monkeypatch.undo()
        assert Invoices(lake).closed() == {}
        assert Invoices(lake).list() == []
    Invoices(lake).close("2026-11", END)
    assert [head.number for head in Invoices(lake).list()] == ["X-000001"]
    rate(lake, "2026-12", book(), customers(), Used(A, 1))
    Invoices(lake).close("2026-12", LATE)
    left_over = [path for path in lake.paths("invoices") if path.endswith("lines.parquet")]
    assert len(left_over) == 2, "what was left of the others is removed when the next month is closed"


def test_whoever_closes_at_the_same_time_does_not_close_it_twice(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    rate(lake, "2026-11", book(), customers(), Used(A, 5 * MILLION, tier=2))
    write_table, winner = Lake.write_table, []

    def meanwhile(*arguments: object) -> None:
        monkeypatch.undo()
        winner.append(Invoices(lake).close("2026-11", END))
        write_table(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Lake, "write_table", meanwhile)
    with pytest.raises(CannotClose, match="closed by another process meanwhile"):
        Invoices(lake).close("2026-11", END)
    assert list(Invoices(lake).closed().values()) == winner
    assert Invoices(lake).get(A, "2026-11").total == Decimal("2.38")


def test_of_two_who_close_at_the_last_moment_one_has_closed_it(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have read that the month is open, and are about to close it."""
    rate(lake, "2026-11", book(), customers(), Used(A, 5 * MILLION, tier=2))
    write_new, winner = Lake.write_new, []

    def meanwhile(*arguments: object) -> None:
        monkeypatch.undo()
        winner.append(Invoices(lake).close("2026-11", END))
        write_new(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Lake, "write_new", meanwhile)
    with pytest.raises(CannotClose, match="closed by another process meanwhile"):
        Invoices(lake).close("2026-11", END)
    assert list(Invoices(lake).closed().values()) == winner
    assert [path for path in Path(lake.url).rglob(".*") if path.is_file()] == []


def test_a_kill_leaves_whole_files_only(lake: Lake, tmp_path: Path) -> None:
    """Kill a real process with SIGKILL while it writes closed.json."""
    rate(lake, "2026-11", book(), customers(), Used(A, 5 * MILLION, tier=2))
    code = """
import os, signal, sys
from datetime import datetime, UTC
from pathlib import Path
from billing.pricing.invoices import Invoices
from billing.lake.lake import Lake
def link(aside, to, link=os.link):
    if Path(to).name == "closed.json":
        os.kill(os.getpid(), signal.SIGKILL)
    return link(aside, to)
os.link = link
Invoices(Lake(sys.argv[1])).close("2026-11", datetime(2026, 12, 1, tzinfo=UTC))
"""
    ended = subprocess.run([sys.executable, "-c", code, lake.url], env=dict(os.environ), check=False, timeout=60)
    assert ended.returncode == -9
    assert Invoices(lake).closed() == {}
    Invoices(lake).close("2026-11", END)
    assert Invoices(lake).get(A, "2026-11").total == Decimal("2.38")


def test_a_rating_whose_files_are_not_what_was_written_is_not_charged(lake: Lake) -> None:
    rating = rate(lake, "2026-11", book(), customers(), Used(A, 5 * MILLION, tier=2), Used(B, 1))
    table = lake.read_table(rating.files[0])
    assert table is not None
    lake.write_table(rating.files[0], table.slice(0, 1))
    with pytest.raises(LakeUnavailable, match=r"has 1 lines that cost 2.0.*, but 2 that cost 2.0.* were made"):
        Invoices(lake).close("2026-11", END)
    lake.remove(rating.files[0])
    with pytest.raises(LakeUnavailable, match=r"files of the rating .* are missing: rate it again"):
        Invoices(lake).close("2026-11", END)


def test_a_month_is_rated_anew(lake: Lake) -> None:
    first = rate(lake, "2026-11", book(), customers(), Used(A, 5 * MILLION, tier=2))
    second = rate(lake, "2026-11", book(), customers(), Used(A, 6 * MILLION, tier=2))
    found = Rated(lake).of(Month(2026, 11))
    assert found is not None
    assert found.rating == second
    assert lake.paths("rated/month=2026-11") == list(second.files)
    assert first.files != second.files


def test_of_two_ratings_at_once_one_counts(lake: Lake) -> None:
    first = rate(lake, "2026-11", book(), customers(), Used(A, 5 * MILLION, tier=2))
    second = rate(lake, "2026-11", book(), customers(), Used(A, 6 * MILLION, tier=2))
    for over in (None, first):
        with pytest.raises(Outrun, match=f"rated meanwhile by the run {second.run}; rate it again"):
            Rated(lake).publish(first, over)
    assert Rated(lake).rating(Month(2026, 11)) == second


def test_what_a_killed_rating_has_left_is_removed_by_the_next(lake: Lake) -> None:
    rate(lake, "2026-11", book(), customers(), Used(A, 1))
    for left in ("20291231T000000-00000000/_temporary/0/part-0.parquet", "20291231T000000-00000000/part-0.parquet"):
        lake.write_bytes(f"rated/month=2026-11/{left}", b"half of it")
    assert Invoices(lake).draft(A, "2026-11").lines[0].units == 1
    second = rate(lake, "2026-11", book(), customers(), Used(A, 2))
    assert [file.path for file in lake.files("rated/month=2026-11", hidden=True)] == list(second.files)
