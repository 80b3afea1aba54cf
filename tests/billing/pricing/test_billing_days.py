"""Days (UTC) of a billed month, and errors when one of them is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from billing.lake.lake import Lake
from billing.lake.months import Month
from billing.lake.tables import DayInput, LakeTables, PublishedDay, days_of
from billing.pricing.billing_days import (
    TABLES,
    batch_command,
    days_in_words,
    days_needed,
    days_to_sum_up,
    incomplete_days,
)
from billing.pricing.invoices import CannotClose, Invoices
from billing.pricing.plans import Customers, PriceBook, book_of, customers_of
from billing.pricing.rated import FewerHours, Rated, Rating
from tests.billing.rated_lines import Used, rate

A = "000000000001"
NOVEMBER = Month(2026, 11)
AFTER = datetime(2026, 12, 2, 6, tzinfo=UTC)
ZONES = {"utc": "UTC", "berlin": "Europe/Berlin", "york": "America/New_York", "tokyo": "Asia/Tokyo"}
_PLAN = """
  {name}:
    currency: EUR
    minor_places: 2
    time_zone: {zone}
    versions:
      - from: 2026-01-01
        prices: {{requests_standard: {t}, requests_fair: {t}, requests_fifo: {t}, storage: {t}, bytes_out: {t}}}
"""
BOOK = book_of(
    "issuer: {name: We}\nplans:"
    + "".join(_PLAN.format(name=name, zone=zone, t="{tiers: [{price: 1}]}") for name, zone in ZONES.items()),
    "prices",
)


def customers(default: str, **named: str) -> Customers:
    accounts = "".join(f"\n  '{account[1:]}': {{plan: {plan}}}" for account, plan in named.items())
    return customers_of(f"default: {default}\naccounts: {accounts or '{}'}", "accounts", BOOK)


def publish(lake: Lake, days: Sequence[date], at: datetime = AFTER) -> None:
    tables = LakeTables(lake)
    for day in days:
        for name in TABLES:
            published = PublishedDay("20261201T000000-00000000", (), 0, {}, DayInput(0, 0, 0, "", at))
            tables.publish(name, day, published, over=tables.day(name, day))


@pytest.mark.parametrize(
    ("who", "first", "last"),
    [
        (customers("utc"), "2026-11-01", "2026-11-30"),
        (customers("berlin"), "2026-10-31", "2026-11-30"),
        (customers("tokyo"), "2026-10-31", "2026-11-30"),
        (customers("york"), "2026-11-01", "2026-12-01"),
        (customers("utc", a000000000001="berlin"), "2026-10-31", "2026-11-30"),
        (customers("york", a000000000001="tokyo"), "2026-10-31", "2026-12-01"),
    ],
)
def test_a_month_needs_the_days_of_all_time_zones_that_somebody_has(who: Customers, first: str, last: str) -> None:
    days = days_of(date.fromisoformat(first), date.fromisoformat(last))
    assert days_needed(NOVEMBER, BOOK, who, {}) == days
    assert days_to_sum_up(NOVEMBER, BOOK, who, {}) == days


def test_a_month_begins_where_the_one_before_was_closed(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    rate(lake, "2026-10", BOOK, customers("utc"))
    Invoices(lake).close("2026-10", AFTER)
    closed = Invoices(lake).closed()
    assert days_to_sum_up(NOVEMBER, BOOK, customers("berlin"), closed)[0] == date(2026, 11, 1)
    assert days_to_sum_up(NOVEMBER.previous, BOOK, customers("berlin"), closed) == days_of(
        date(2026, 10, 1), date(2026, 10, 31)
    ), "a closed month goes by the plans that it was closed by"


@pytest.mark.parametrize(
    ("days", "text", "command"),
    [
        (["2026-10-31"], "2026-10-31", "--day 2026-10-31"),
        (["2026-10-31", "2026-11-01"], "2026-10-31 to 2026-11-01", "--from 2026-10-31 --to 2026-11-01"),
        (
            ["2026-10-31", "2026-11-03", "2026-11-04", "2026-11-05", "2026-11-09"],
            "2026-10-31, 2026-11-03 to 2026-11-05, 2026-11-09",
            "--from 2026-10-31 --to 2026-11-09",
        ),
    ],
)
def test_days_in_words_and_the_command_that_sums_them_up(days: list[str], text: str, command: str) -> None:
    found = [date.fromisoformat(day) for day in days]
    assert days_in_words(found) == text
    assert batch_command(found) == f"python -m spark_analytics batch {command}"


def test_a_day_is_complete_when_both_tables_were_made_after_its_end(tmp_path: Path) -> None:
    lake, day = Lake(str(tmp_path / "lake")), date(2026, 11, 30)
    tables, noon = LakeTables(lake), datetime(2026, 11, 30, 12, tzinfo=UTC)
    assert incomplete_days(tables, [day], AFTER) == [day]
    publish(lake, [day], noon)
    assert incomplete_days(tables, [day], AFTER) == [day]
    assert incomplete_days(tables, [day], noon) == [], "nothing more could have come"
    publish(lake, [day], datetime(2026, 12, 1, tzinfo=UTC))
    assert incomplete_days(tables, [day], AFTER) == []


def rating(lake: Lake, who: Customers, days: Sequence[date], covers: datetime, book: PriceBook = BOOK) -> Rating:
    """Make a rating of November with these days of the tables, and store its lines in the lake."""
    read: Mapping[str, dict[str, str]] = {name: {str(day): "run" for day in days} for name in TABLES}
    spare = Lake(f"{lake.url}-spare")
    made = rate(spare, "2026-11", book, who, Used(A, 10**6))
    for path in made.files:
        data = spare.read_bytes(path)
        assert data is not None
        lake.write_bytes(path, data)
    return msgspec.structs.replace(made, read=dict(read), covers=covers)


def test_a_rating_is_not_replaced_by_one_of_fewer_hours(tmp_path: Path) -> None:
    lake, rated = Lake(str(tmp_path / "lake")), Rated(Lake(str(tmp_path / "lake")))
    november = days_of(date(2026, 11, 1), date(2026, 11, 30))
    full = rating(lake, customers("berlin"), [date(2026, 10, 31), *november], datetime(2026, 11, 30, 23, tzinfo=UTC))
    rated.publish(full, None)
    short = rating(lake, customers("berlin"), november, datetime(2026, 10, 31, tzinfo=UTC))
    with pytest.raises(FewerHours, match=r"usage of 2026-10-31 is not summed up.*`python .* batch --day 2026-10-31`"):
        rated.publish(short, full)
    assert rated.rating(NOVEMBER) == full
    early = rating(lake, customers("berlin"), [date(2026, 10, 31), *november], datetime(2026, 11, 30, 22, tzinfo=UTC))
    with pytest.raises(FewerHours, match=r"usage of 2026-11-30 is not summed up"):
        rated.publish(early, full)
    again = msgspec.structs.replace(full, run="20300102T000000-00000000")
    rated.publish(again, full)
    assert rated.rating(NOVEMBER) == again


def test_a_plan_of_another_time_zone_does_not_make_a_rating_smaller(tmp_path: Path) -> None:
    lake, rated = Lake(str(tmp_path / "lake")), Rated(Lake(str(tmp_path / "lake")))
    november = days_of(date(2026, 11, 1), date(2026, 11, 30))
    in_utc = rating(lake, customers("utc"), november, datetime(2026, 12, 1, tzinfo=UTC))
    rated.publish(in_utc, None)
    in_berlin = rating(lake, customers("berlin"), november, datetime(2026, 10, 31, tzinfo=UTC))
    with pytest.raises(FewerHours, match="2026-10-31"):
        rated.publish(in_berlin, in_utc)
    in_york = rating(lake, customers("york"), november, datetime(2026, 12, 1, tzinfo=UTC))
    rated.publish(in_york, in_utc)
    assert rated.rating(NOVEMBER) == in_york, "what it needs beside is still to come, and nothing is lost"


def test_a_rating_knows_the_days_that_it_skipped(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    half = rating(lake, customers("berlin"), days_of(date(2026, 11, 1), date(2026, 11, 10)), AFTER)
    assert half.skipped() == [date(2026, 10, 31)]
    assert half.missing() == [date(2026, 10, 31), *days_of(date(2026, 11, 11), date(2026, 11, 30))]


def test_closing_names_the_day_that_is_missing_and_what_brings_it(tmp_path: Path) -> None:
    lake, november = Lake(str(tmp_path / "lake")), days_of(date(2026, 11, 1), date(2026, 11, 30))
    who, rated = customers("berlin"), Rated(lake)
    publish(lake, november)
    rated.publish(rating(lake, who, november, datetime(2026, 10, 31, tzinfo=UTC)), None)
    with pytest.raises(CannotClose) as refused:
        Invoices(lake).close("2026-11", AFTER)
    assert str(refused.value) == (
        "2026-11 has the hours from 2026-10-31 23:00 to 2026-11-30 23:00 UTC, and was rated without all usage of "
        "2026-10-31: run `python -m spark_analytics batch --day 2026-10-31`, then "
        "`python -m spark_analytics rate --period 2026-11` with the same --plan and --accounts, and close it again"
    )
    publish(lake, [date(2026, 10, 31)])
    with pytest.raises(CannotClose, match=r"usage of 2026-10-31: run `python -m spark_analytics rate --period"):
        Invoices(lake).close("2026-11", AFTER)
    days = [date(2026, 10, 31), *november]
    rated.publish(rating(lake, who, days, datetime(2026, 11, 30, 12, tzinfo=UTC)), rated.rating(NOVEMBER))
    publish(lake, [date(2026, 11, 30)], datetime(2026, 11, 30, 12, tzinfo=UTC))
    with pytest.raises(CannotClose, match=r"all usage of 2026-11-30: run `python -m spark_analytics batch --day 2026-"):
        Invoices(lake).close("2026-11", AFTER)
    rated.publish(rating(lake, who, days, AFTER), rated.rating(NOVEMBER))
    assert Invoices(lake).close("2026-11", AFTER).invoices == 1
    assert AFTER - timedelta(days=1) > rated.rating(NOVEMBER).ends  # type: ignore[union-attr]
