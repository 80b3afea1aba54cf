"""Price books: parsing, and errors for unusable ones."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest

import billing
from billing.lake.months import Month, midnight
from billing.pricing.plans import Customer, NoPrice, PriceBook, Tier, book_of, customers_of, load_book, load_customers
from billing.pricing.strict_yaml import YamlError

EXAMPLE = Path(billing.__file__).parent / "pricing" / "prices.example.yaml"
PRICES = """
          requests_standard: {free: 10, tiers: [{up_to: 100, price: 0.40}, {price: 0.3}]}
          requests_fair: {tiers: [{price: 0.5}]}
          requests_fifo: {tiers: [{price: 0.5}]}
          storage: {free: 0.5, tiers: [{price: 0.1}]}
          bytes_out: {tiers: [{up_to: 0.000000001, price: 0}, {price: 0.09}]}"""
BOOK = f"""
issuer: {{name: We}}
plans:
  plain:
    currency: EUR
    minor_places: 2
    time_zone: Europe/Berlin
    versions:
      - from: 2026-01-01
        prices: {PRICES}
      - from: 2026-11-15
        prices: {PRICES}
        discount: 5
        discounts: {{storage: 2.5}}
        minimum: 4.99
        tax: {{name: VAT, percent: 19}}
"""


def book() -> PriceBook:
    return book_of(BOOK, "prices.yaml")


def test_the_example_can_be_used() -> None:
    found = load_book(EXAMPLE)
    assert found.issuer.prefix == "EXQ-"
    assert [plan.currency for plan in found.plans.values()] == ["USD", "EUR"]
    first, second = found.plans["standard"].versions
    assert [tier.price for tier in first.prices["requests_standard"]] == [
        0,
        Decimal("0.36"),
        Decimal("0.27"),
        Decimal("0.21"),
    ]
    assert second.starts == date(2026, 12, 1)
    assert found.plans["business"].versions[0].discounts["bytes_out"] == 1500


def test_free_amounts_are_a_tier_that_counts() -> None:
    tiers = book().plans["plain"].versions[0].prices["requests_standard"]
    assert tiers == (
        Tier(Decimal(0), Decimal(10), Decimal(0)),
        Tier(Decimal(10), Decimal(100), Decimal("0.40")),
        Tier(Decimal(100), None, Decimal("0.3")),
    )


def test_prices_are_decimals_as_they_are_written() -> None:
    assert str(book().plans["plain"].versions[0].prices["requests_standard"][1].price) == "0.40"
    version = book().plans["plain"].versions[1]
    assert version.discounts == {
        "requests_standard": 500,
        "requests_fair": 500,
        "requests_fifo": 500,
        "storage": 750,
        "bytes_out": 500,
    }
    assert (version.minimum, version.tax_name, version.tax) == (Decimal("4.99"), "VAT", 1900)


def test_a_book_is_the_same_when_it_was_kept_as_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(book()), type=PriceBook) == book()


def test_a_month_has_a_segment_for_each_version() -> None:
    plan = book().plans["plain"]
    first, second = plan.segments(Month(2026, 11))
    assert (first.starts, first.ends) == (
        datetime(2026, 10, 31, 23, tzinfo=UTC),
        datetime(2026, 11, 14, 23, tzinfo=UTC),
    )
    assert (second.starts, second.ends) == (first.ends, datetime(2026, 11, 30, 23, tzinfo=UTC))
    assert [one.version for one in plan.segments(Month(2026, 10))] == [plan.versions[0]]
    assert [one.version for one in plan.segments(Month(2026, 12))] == [plan.versions[1]]


def test_a_month_before_the_first_version_has_no_prices() -> None:
    with pytest.raises(
        NoPrice, match="no prices for all of 2025-12: its first version is from 2026-01-01; add a version"
    ):
        book().plans["plain"].segments(Month(2025, 12))


@pytest.mark.parametrize(
    ("month", "hours"),
    [
        ("2026-02", 28 * 24),
        ("2028-02", 29 * 24),
        ("2026-03", 31 * 24 - 1),  # daylight saving time starts
        ("2026-10", 31 * 24 + 1),  # daylight saving time ends
        ("2026-11", 30 * 24),
    ],
)
def test_a_gb_month_is_a_gb_for_all_of_the_month(month: str, hours: int) -> None:
    plan = book().plans["plain"]
    assert plan.units_per("storage", Month.parse(month)) == 10**9 * hours * 3_600_000
    assert plan.edge_units("storage", Month.parse(month), Decimal("0.5")) == 10**9 * hours * 1_800_000
    assert plan.edge_units("bytes_out", Month.parse(month), Decimal("0.000000001")) == 1
    assert plan.edge_units("requests_fifo", Month.parse(month), Decimal(7)) == 7
    most = Decimal("999999999999999999.999999999")  # more digits than the default context multiplies exactly
    assert plan.edge_units("storage", Month.parse(month), most) == (10**27 - 1) * hours * 3_600_000


def test_midnight_is_of_the_time_zone() -> None:
    assert midnight(date(2026, 3, 8), "America/New_York") == datetime(2026, 3, 8, 5, tzinfo=UTC)
    assert midnight(date(2026, 3, 9), "America/New_York") == datetime(2026, 3, 9, 4, tzinfo=UTC)
    assert midnight(date(2026, 11, 1), "UTC") == datetime(2026, 11, 1, tzinfo=UTC)


@pytest.mark.parametrize("text", ["2026-13", "2026-1", "2026-00", "0000-01", "202611", "2026-11 ", "٢٠٢٦-11", ""])
def test_what_is_no_month(text: str) -> None:
    with pytest.raises(ValueError, match="write it like 2026-11"):
        Month.parse(text)


def test_months_follow_each_other() -> None:
    assert str(Month(2026, 12).next) == "2027-01"
    assert str(Month(2026, 1).previous) == "2025-12"
    assert str(Month(2026, 11).next.previous) == "2026-11"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("currency: EUR", "currency: euro", r"plans.plain.currency: 'euro' is no currency: three capital letters"),
        (
            "minor_places: 2",
            "minor_places: two",
            r"plans.plain.minor_places: is 'two'; it has to be a whole number from 0 to 4",
        ),
        ("minor_places: 2", "minor_places: yes", r"minor_places: is yes; it has to be a whole number"),
        ("    minor_places: 2\n", "", r"plans.plain: minor_places is missing"),
        ("Europe/Berlin", "Europe/Atlantis", r"time_zone: there is no time zone 'Europe/Atlantis'"),
        (
            "Europe/Berlin",
            "Asia/Kolkata",
            r"time_zone: .*Asia/Kolkata days do not begin with an hour of UTC.*take a time zone",
        ),
        ("from: 2026-11-15", "from: 2026-01-01", r"versions\[1\]: is from 2026-01-01, which is not after 2026-01-01"),
        ("from: 2026-11-15", "from: soon", r"versions\[1\].from: is 'soon'; it has to be a day, such as"),
        ("from: 2026-11-15", "from: 2026-11-15 10:00:00", r"versions\[1\].from: is .*; it has to be a day"),
        (
            "from: 2026-11-15",
            "from: 9999-01-01",
            r"versions\[1\].from: is 9999-01-01; it has to be in the years 2000 to 2199",
        ),
        ("price: 0.40", "price: -1", r"requests_standard.tiers\[0\].price: is -1; it has to be 0 or more"),
        ("price: 0.40", "price: 0.1234567", r"tiers\[0\].price: is 0.1234567; it may have 6 decimal places"),
        ("price: 0.40", "price: 1000000", r"tiers\[0\].price: is 1000000; a price is less than 1000000"),
        ("price: 0.40", "price: .inf", r"line \d+: this is no YAML: .inf is no number"),
        ("price: 0.40", "price: NaN", r"tiers\[0\].price: is NaN; it has to be 0 or more"),
        (
            "price: 0.40",
            "price: 010",
            r"line \d+: this is no YAML: 010 can be read in two ways: write a number in tens",
        ),
        ("price: 0.40", "price: 1:30", r"1:30 can be read in two ways"),
        ("price: 0.40", "price: 0x10", r"0x10 can be read in two ways"),
        ("price: 0.40", "? [a]\n: 1", r"line \d+: this is no YAML"),
        ("price: 0.40", "[a]: 1", r"line \d+: this is no YAML: a key is a name, no list or mapping"),
        ("up_to: 100,", "up_to: 1e+25,", r"up_to: is too large: it may have 18 digits before the point"),
        ("minimum: 4.99", "minimum: 1000000000000000000", r"minimum: is too large: it may have 18 digits"),
        ("{name: We}", '{name: "We\\nand others"}', r"issuer.name: is 'We\\nand others'; it has to be one line"),
        ("price: 0.40", "price: free", r"tiers\[0\].price: is 'free'; it has to be a number"),
        ("price: 0.40", "cost: 0.40", r"tiers\[0\].cost: there is no such field; there are up_to, price"),
        ("up_to: 100,", "up_to: 10,", r"tiers\[0\].up_to: is 10, which is not more than 10, where the tier begins"),
        ("up_to: 100,", "up_to: 100.5,", r"tiers\[0\].up_to: is 100.5; it may have 0 decimal places"),
        ("{price: 0.3}", "{up_to: 1000, price: 0.3}", r"tiers\[1\].up_to: the last tier has no end"),
        ("{tiers: [{price: 0.5}]}", "{tiers: []}", r"requests_fair.tiers: has no tier"),
        ("{tiers: [{price: 0.5}]}", "0.5", r"requests_fair: is the number 0.5; it has to be a mapping"),
        ("          requests_fair: {tiers: [{price: 0.5}]}\n", "", r"versions\[0\].prices: requests_fair is missing"),
        ("free: 10,", "free: 10, free: 11,", r"line \d+: this is no YAML: free is there twice"),
        ("discount: 5", "discount: 101", r"versions\[1\].discount: is 101; it has to be a percentage from 0 to 100"),
        ("storage: 2.5}", "storage: 96}", r"discounts.storage: all discounts together are more than 100 percent"),
        ("{storage: 2.5}", "{store: 2.5}", r"discounts.store: there is no such meter; there are requests_standard"),
        ("minimum: 4.99", "minimum: 4.999", r"versions\[1\].minimum: is 4.999; it may have 2 decimal places"),
        ("percent: 19", "percent: 19.555", r"tax.percent: is 19.555; it may have 2 decimal places"),
        ("{name: We}", "{}", r"issuer: name is missing"),
        ("{name: We}", "{name: We, prefix: 'A/'}", r"issuer.prefix: 'A/' is no prefix"),
        ("{name: We}", "{name: We, address: here}", r"issuer.address: is 'here'; it has to be a list"),
        ("  plain:", "  Plain:", r"plans.Plain: the name of a plan has lower-case letters"),
        ("  plain:", "  7:", r"plans: the key 7 is the number 7; write it in quotes"),
        ("plans:", "plans: [", r"line \d+: this is no YAML"),
        ("issuer:", "\x00", r"this is no YAML"),
        ("{name: We}", "!!python/object:os.system {}", r"this is no YAML"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(old: str, new: str, said: str) -> None:
    assert old in BOOK
    with pytest.raises(YamlError, match=r"^prices.yaml: .*" + said):
        book_of(BOOK.replace(old, new), "prices.yaml")


@pytest.mark.parametrize("text", ["", "[]", "3"])
def test_a_file_of_something_else(text: str) -> None:
    with pytest.raises(YamlError, match=r"^prices.yaml: the file: is .*; it has to be a mapping"):
        book_of(text, "prices.yaml")


def test_no_plan_and_no_version() -> None:
    with pytest.raises(YamlError, match="plans: has no plan"):
        book_of("issuer: {name: We}\nplans: {}", "prices.yaml")
    with pytest.raises(YamlError, match=r"plans\.a\.versions: has no version"):
        book_of("issuer: {name: We}\nplans: {a: {currency: EUR, minor_places: 2, versions: []}}", "prices.yaml")


def test_customers() -> None:
    found = customers_of(
        """
default: plain
accounts:
  "000000000001":
    plan: plain
    name: Shop
    address: [Road 1, Town]
    discount: 2.5
    tax: {name: reverse charge, percent: 0}
    created: 2026-10-05
    deleted: 2026-11-17
    due_days: 14
""",
        "accounts.yaml",
        book(),
    )
    made, gone = date(2026, 10, 5), date(2026, 11, 17)
    shop = Customer("plain", "Shop", ("Road 1", "Town"), "", "", 250, "reverse charge", 0, gone, made, 14)
    assert found.of("000000000001") == shop
    assert [shop.owes_minimum(Month(2026, number)) for number in (9, 10, 11, 12)] == [False, True, True, False]
    assert found.of("000000000002") == Customer("plain")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("accounts: {}", "the file: default is missing"),
        ("default: other", "default: there is no plan 'other' in the price book; there are plain"),
        (
            "default: plain\naccounts: {000000000001: {plan: plain}}",
            "line 2: this is no YAML: 000000000001 can be read in two ways: .* or it in quotes",
        ),
        (
            "default: plain\naccounts: {123456789012: {plan: plain}}",
            "accounts: the key 123456789012 is the number 123456789012; write it in quotes",
        ),
        (
            "default: plain\naccounts: {'123456789012': {plan: plain, created: 2026-11-02, deleted: 2026-11-01}}",
            "deleted: is 2026-11-01, before 2026-11-02, on which the account was created",
        ),
        (
            "default: plain\naccounts: {'123456789012': {plan: plain, due_days: 400}}",
            "due_days: is the number 400; it has to be a whole number from 0 to 366",
        ),
        ("default: plain\naccounts: {'12': {plan: plain}}", "accounts.12: '12' is no account: 12 digits, in quotes"),
        ("default: plain\naccounts: {'000000000001': {}}", "accounts.000000000001: plan is missing"),
        (
            "default: plain\naccounts: {'000000000001': {plan: plain, discount: 93}}",
            "discount: with the plan's discounts it is more than 100 percent",
        ),
    ],
)
def test_what_is_wrong_with_customers(text: str, said: str) -> None:
    with pytest.raises(YamlError, match=r"^accounts.yaml: .*" + said):
        customers_of(text, "accounts.yaml", book())


def test_without_a_file_everybody_has_the_only_plan(tmp_path: Path) -> None:
    assert load_customers(None, book()).of("000000000009").plan == "plain"
    with pytest.raises(NoPrice, match="the plans business, standard: say in a file who has which"):
        load_customers(None, load_book(EXAMPLE))
    (tmp_path / "accounts.yaml").write_text("default: plain")
    assert load_customers(tmp_path / "accounts.yaml", book()).default == "plain"
