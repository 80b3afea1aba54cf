"""Days (UTC) of a billed month, and errors when one of them is missing."""

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta

import msgspec
import pytest

from billing.lake.lake import Lake
from billing.lake.months import Month
from billing.lake.tables import DayInput, LakeTables, PublishedDay, days_of
from billing.pricing import billing_days
from billing.pricing.invoices import CannotClose, Invoices
from billing.pricing.plans import Customers, PriceBook
from billing.pricing.rated import FewerHours, Rated, Rating
from tests.billing import books
from tests.billing.rated_lines import Used, rate
from tests.tables import table

A = "000000000001"
NOVEMBER = Month(2026, 11)
DAYS = days_of(date(2026, 11, 1), date(2026, 11, 30))
AFTER = datetime(2026, 12, 2, 6, tzinfo=UTC)
BOOK = books.book("zones")


def customers(default: str, **named: str) -> Customers:
    return books.customers(BOOK, default, {account[1:]: {"plan": plan} for account, plan in named.items()})


def publish(lake: Lake, days: Sequence[date], at: datetime = AFTER) -> None:
    tables = LakeTables(lake)
    for day in days:
        for name in billing_days.TABLES:
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
def test_a_month_needs_the_days_of_all_time_zones_in_use(who: Customers, first: str, last: str) -> None:
    days = days_of(date.fromisoformat(first), date.fromisoformat(last))
    assert billing_days.days_needed(NOVEMBER, BOOK, who, {}) == days
    assert billing_days.days_to_sum_up(NOVEMBER, BOOK, who, {}) == days


def test_a_month_begins_where_the_one_before_was_closed(lake: Lake) -> None:
    rate(lake, "2026-10", BOOK, customers("utc"))
    Invoices(lake).close("2026-10", AFTER)
    closed = Invoices(lake).closed()
    assert billing_days.days_to_sum_up(NOVEMBER, BOOK, customers("berlin"), closed)[0] == date(2026, 11, 1)
    assert billing_days.days_to_sum_up(NOVEMBER.previous, BOOK, customers("berlin"), closed) == days_of(
        date(2026, 10, 1), date(2026, 10, 31)
    ), "a closed month goes by the plans that it was closed by"


@pytest.mark.parametrize(("days", "text", "command"), table(__file__, "days in words"))
def test_days_in_words_and_the_command_that_sums_them_up(days: list[str], text: str, command: str) -> None:
    found = [date.fromisoformat(day) for day in days]
    assert billing_days.days_in_words(found) == text
    assert billing_days.batch_command(found) == f"python -m spark_analytics batch {command}"


def test_a_day_is_complete_when_both_tables_were_made_after_its_end(lake: Lake) -> None:
    day = date(2026, 11, 30)
    tables, noon = LakeTables(lake), datetime(2026, 11, 30, 12, tzinfo=UTC)
    assert billing_days.incomplete_days(tables, [day], AFTER) == [day]
    publish(lake, [day], noon)
    assert billing_days.incomplete_days(tables, [day], AFTER) == [day]
    assert billing_days.incomplete_days(tables, [day], noon) == [], "nothing more could have come"
    publish(lake, [day], datetime(2026, 12, 1, tzinfo=UTC))
    assert billing_days.incomplete_days(tables, [day], AFTER) == []


def rating(lake: Lake, who: Customers, days: Sequence[date], covers: datetime, book: PriceBook = BOOK) -> Rating:
    """Make a rating of November with these days of the tables, and store its lines in the lake."""
    read: Mapping[str, dict[str, str]] = {name: {str(day): "run" for day in days} for name in billing_days.TABLES}
    spare = Lake(f"{lake.url}-spare")
    made = rate(spare, "2026-11", book, who, Used(A, 10**6))
    for path in made.files:
        data = spare.read_bytes(path)
        assert data is not None
        lake.write_bytes(path, data)
    return msgspec.structs.replace(made, read=dict(read), covers=covers)


def test_a_rating_is_not_replaced_by_one_of_fewer_hours(lake: Lake) -> None:
    rated = Rated(lake)
    full = rating(lake, customers("berlin"), [date(2026, 10, 31), *DAYS], datetime(2026, 11, 30, 23, tzinfo=UTC))
    rated.publish(full, None)
    short = rating(lake, customers("berlin"), DAYS, datetime(2026, 10, 31, tzinfo=UTC))
    with pytest.raises(FewerHours, match=r"usage of 2026-10-31 is not summed up.*`python .* batch --day 2026-10-31`"):
        rated.publish(short, full)
    assert rated.rating(NOVEMBER) == full
    early = rating(lake, customers("berlin"), [date(2026, 10, 31), *DAYS], datetime(2026, 11, 30, 22, tzinfo=UTC))
    with pytest.raises(FewerHours, match=r"usage of 2026-11-30 is not summed up"):
        rated.publish(early, full)
    again = msgspec.structs.replace(full, run="20300102T000000-00000000")
    rated.publish(again, full)
    assert rated.rating(NOVEMBER) == again


def test_a_plan_of_another_time_zone_does_not_make_a_rating_smaller(lake: Lake) -> None:
    rated = Rated(lake)
    in_utc = rating(lake, customers("utc"), DAYS, datetime(2026, 12, 1, tzinfo=UTC))
    rated.publish(in_utc, None)
    in_berlin = rating(lake, customers("berlin"), DAYS, datetime(2026, 10, 31, tzinfo=UTC))
    with pytest.raises(FewerHours, match="2026-10-31"):
        rated.publish(in_berlin, in_utc)
    in_york = rating(lake, customers("york"), DAYS, datetime(2026, 12, 1, tzinfo=UTC))
    rated.publish(in_york, in_utc)
    assert rated.rating(NOVEMBER) == in_york, "what it needs beside is still to come, and nothing is lost"


def test_a_rating_knows_the_days_that_it_skipped(lake: Lake) -> None:
    half = rating(lake, customers("berlin"), days_of(date(2026, 11, 1), date(2026, 11, 10)), AFTER)
    assert half.skipped() == [date(2026, 10, 31)]
    assert half.missing() == [date(2026, 10, 31), *days_of(date(2026, 11, 11), date(2026, 11, 30))]


def test_closing_names_the_day_that_is_missing_and_what_brings_it(lake: Lake) -> None:
    who, rated = customers("berlin"), Rated(lake)
    publish(lake, DAYS)
    rated.publish(rating(lake, who, DAYS, datetime(2026, 10, 31, tzinfo=UTC)), None)
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
    days = [date(2026, 10, 31), *DAYS]
    rated.publish(rating(lake, who, days, datetime(2026, 11, 30, 12, tzinfo=UTC)), rated.rating(NOVEMBER))
    publish(lake, [date(2026, 11, 30)], datetime(2026, 11, 30, 12, tzinfo=UTC))
    with pytest.raises(CannotClose, match=r"all usage of 2026-11-30: run `python -m spark_analytics batch --day 2026-"):
        Invoices(lake).close("2026-11", AFTER)
    rated.publish(rating(lake, who, days, AFTER), rated.rating(NOVEMBER))
    assert Invoices(lake).close("2026-11", AFTER).invoices == 1
    assert AFTER - timedelta(days=1) > rated.rating(NOVEMBER).ends  # type: ignore[union-attr]
