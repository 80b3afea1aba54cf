"""Price books: parsing, and errors for unusable ones."""

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest

import billing
from billing.lake.months import Month, midnight
from billing.pricing.plans import (
    FREE,
    METERS,
    QUEUE_METERS,
    STREAM_METERS,
    TOPIC_METERS,
    Customer,
    NoPrice,
    PriceBook,
    Tier,
    book_of,
    customers_of,
    load_book,
    load_customers,
)
from billing.pricing.strict_yaml import YamlError
from tests.billing import books
from tests.billing.books import text_of
from tests.tables import beside

EXAMPLE = Path(billing.__file__).parent / "pricing" / "prices.example.yaml"
BOOK = text_of("versions")
UNUSABLE = beside(__file__, "unusable.yaml")


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


def test_prices_of_streams_and_topics_may_be_left_out() -> None:
    version = book().plans["plain"].versions[0]
    assert set(version.prices) == set(version.discounts) == set(QUEUE_METERS)
    for meter in (*STREAM_METERS, *TOPIC_METERS):
        assert (version.tiers(meter), version.discount(meter)) == (FREE, 0)
    plain, some = books.book("streams").plans.values()
    assert set(plain.versions[1].prices) == set(METERS)
    assert plain.versions[1].discounts["stream_bytes_in"] == 5000
    assert set(some.versions[0].prices) == {*QUEUE_METERS, "stream_bytes_in"}
    assert some.versions[0].discount("stream_bytes_in") == 2500


def test_a_book_with_streams_is_the_same_when_it_was_kept_as_json() -> None:
    made = books.book("streams")
    assert msgspec.json.decode(msgspec.json.encode(made), type=PriceBook) == made


def test_a_book_without_streams_is_stored_as_before_there_were_any() -> None:
    stored = msgspec.json.encode(book())
    assert b"stream" not in stored
    assert b"topic" not in stored


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
    assert plan.units_per("stream_storage", Month.parse(month)) == plan.units_per("storage", Month.parse(month))
    assert [plan.units_per(one, Month.parse(month)) for one in ("stream_bytes_in", "stream_bytes_out")] == [10**9] * 2
    assert plan.edge_units("requests_stream", Month.parse(month), Decimal(7)) == 7
    counted = {meter: plan.units_per(meter, Month.parse(month)) for meter in TOPIC_METERS}
    assert counted == {"requests_topic": 10**6, "deliveries_sqs": 10**6, "deliveries_http": 10**5}
    assert [plan.edge_units(meter, Month.parse(month), Decimal(7)) for meter in TOPIC_METERS] == [7] * 3
    used = Decimal("999999999999999999.999999999")  # more digits than the default context multiplies exactly
    assert plan.edge_units("storage", Month.parse(month), used) == (10**27 - 1) * hours * 3_600_000


def test_midnight_is_of_the_time_zone() -> None:
    assert midnight(date(2026, 3, 8), "America/New_York") == datetime(2026, 3, 8, 5, tzinfo=UTC)
    assert midnight(date(2026, 3, 9), "America/New_York") == datetime(2026, 3, 9, 4, tzinfo=UTC)
    assert midnight(date(2026, 11, 1), "UTC") == datetime(2026, 11, 1, tzinfo=UTC)


@pytest.mark.parametrize("text", ["2026-13", "2026-1", "2026-00", "0000-01", "202611", "2026-11 ", "٢٠٢٦-11", ""])
def test_a_text_that_is_no_month_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a month, such as 2026-11"):
        Month.parse(text)


def test_months_follow_each_other() -> None:
    assert str(Month(2026, 12).next) == "2027-01"
    assert str(Month(2026, 1).previous) == "2025-12"
    assert str(Month(2026, 11).next.previous) == "2026-11"


@pytest.mark.parametrize(("old", "new", "message"), UNUSABLE["books"])
def test_an_unusable_book_is_refused_with_the_place(old: str, new: str, message: str) -> None:
    assert old in BOOK
    with pytest.raises(YamlError, match=r"^prices.yaml: .*" + message):
        book_of(BOOK.replace(old, new), "prices.yaml")


@pytest.mark.parametrize(("text", "message"), UNUSABLE["files"])
def test_an_unusable_file_is_refused(text: str, message: str) -> None:
    with pytest.raises(YamlError, match=r"^prices.yaml: .*" + message):
        book_of(text, "prices.yaml")


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


@pytest.mark.parametrize(("text", "message"), UNUSABLE["customers"])
def test_unusable_customers_are_refused(text: str, message: str) -> None:
    with pytest.raises(YamlError, match=r"^accounts.yaml: .*" + message):
        customers_of(text, "accounts.yaml", book())


def test_without_a_file_all_accounts_have_the_only_plan(tmp_path: Path) -> None:
    assert load_customers(None, book()).of("000000000009").plan == "plain"
    with pytest.raises(NoPrice, match="the plans business, standard: assign them in a file"):
        load_customers(None, load_book(EXAMPLE))
    (tmp_path / "accounts.yaml").write_text("default: plain")
    assert load_customers(tmp_path / "accounts.yaml", book()).default == "plain"
