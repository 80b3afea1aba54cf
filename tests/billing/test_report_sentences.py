"""Sentences of a report, for lakes of the first hour, the first day, a month, one tenant and a thousand."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from billing.lake.lake import Lake
from billing.lake.months import Month
from billing.lake.periods import Period
from billing.lake.tables import LakeTables, days_of
from billing.pricing.billing_days import TABLES
from billing.pricing.costs import Costs, read_costs
from billing.pricing.plans import book_of, customers_of
from billing.pricing.rated import Rated
from billing.reports.analysis import Analysis, EmptyReceives, Forecast
from billing.reports.number_format import days_of_month, gb_months, percent
from billing.reports.overview import read_overview
from billing.reports.report import report_of
from billing.reports.report_page import Section, UsageReport
from tests.billing.pricing.test_costs import BOOK
from tests.billing.published import calls, publish_calls, publish_storage
from tests.billing.rated_lines import LATER, Used, rate

NOVEMBER = Period.of_month("2026-11")
NOVEMBER_MONTH = Month(2026, 11)
SHOP, OTHER, YEN = "000000000042", "000000000043", "000000000044"
TODAY = date(2026, 11, 22)
NOW = datetime(2026, 11, 22, 14, 5, tzinfo=UTC)
GB_HOUR = 10**9 * 3_600_000


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


def used(account: str, queue: str, sends: int = 0, receives: int = 0, empty: int = 0) -> list[dict[str, Any]]:
    """Make rows of a queue's calls, each billed as one request, none refused."""
    plain = dict.fromkeys(("refused", "throttled", "failed", "bytes_in", "bytes_out", "messages", "empty"), 0)
    rows = []
    if sends:
        rows.append(calls(account, queue, "SendMessage", sends, **plain | {"chunks": sends}))
    if receives:
        counts = plain | {"chunks": receives, "empty": empty}
        rows.append(calls(account, queue, "ReceiveMessage", receives, **counts))
    return rows


def summed_up(lake: Lake, first: date, last: date) -> None:
    """Publish these days without any usage."""
    for day in days_of(first, last):
        publish_calls(lake, day)
        publish_storage(lake, day)


def report(
    lake: Lake, now: datetime = NOW, account: str | None = None, costs: Costs | None = None, analysis: Any = None
) -> UsageReport:
    overview = read_overview(LakeTables(lake), NOVEMBER, account=account, today=now.date(), progress=lambda text: None)
    return report_of(overview, costs, analysis, made_at=now)


def says(made: UsageReport) -> dict[str, str]:
    return {one.name: one.says for one in made.sections}


def section(made: UsageReport, name: str) -> Section:
    (found,) = [one for one in made.sections if one.name == name]
    return found


def analysed(days: Iterable[date] = (), **given: Any) -> Analysis:
    empty: dict[str, Any] = {name: [] for name in Analysis.__struct_fields__}
    plain = {"month": "2026-11", "made_at": NOW, "days": list(days), "forecast_method": ""}
    return Analysis(**empty | plain | given)


def test_the_first_hour(lake: Lake) -> None:
    now = datetime(2026, 11, 1, 0, 40, tzinfo=UTC)
    publish_calls(lake, now.date(), *used(SHOP, "orders", sends=1), at=now - timedelta(minutes=10))
    made = report(lake, now)
    assert says(made) == {
        "calls": "1 call was answered, on 1 Nov.",
        "cost": "This month was not rated yet, so there are no costs to show.",
        "tenants": f"One tenant used the service: {SHOP}.",
        "forecast": "1 billed request so far. A forecast needs 3 days of use, and none is over yet.",
        "waste": "There were no receives in this month.",
    }
    assert made.known_until == "1 Nov, 00:30 UTC"
    assert made.remarks == []


def test_the_first_day_of_use_is_late_in_the_month(lake: Lake) -> None:
    summed_up(lake, date(2026, 10, 25), date(2026, 11, 21))
    publish_calls(lake, TODAY, *used(SHOP, "orders", sends=5_343, receives=200, empty=111), at=NOW)
    made = report(lake, analysis=analysed(days_of(date(2026, 11, 1), date(2026, 11, 21))))
    assert says(made) == {
        "calls": "5,543 calls were answered, all on 22 Nov.",
        "cost": "This month was not rated yet, so there are no costs to show.",
        "tenants": f"One tenant used the service: {SHOP}.",
        "forecast": "5,543 billed requests so far. A forecast needs 3 days of use, and none is over yet.",
        "waste": "111 of 200 receives found no message (56%), and each of them is billed as a request.",
    }
    assert [row[0] for row in section(made, "calls").tables[0].rows] == ["22 Nov"]
    assert section(made, "forecast").tables[0].rows[0] == ("Billed requests", "5,543", "–", "–", "–")
    assert section(made, "waste").tables[0].rows == [(SHOP, "orders", "200", "111", "56%", "–", "–")]
    tiles = {one.name: one.value for one in made.tiles}
    assert tiles["Billed requests"] == "5.54 k"


@pytest.mark.parametrize(
    ("days", "text"),
    [
        (2, "30 billed requests so far. A forecast needs 3 days of use, and 2 are over."),
        (1, "20 billed requests so far. A forecast needs 3 days of use, and 1 is over."),
        (3, "40 billed requests so far; the month is likely to come to 120."),
    ],
)
def test_the_forecast_begins_with_the_first_use(lake: Lake, days: int, text: str) -> None:
    first = TODAY - timedelta(days=days)
    summed_up(lake, date(2026, 10, 25), first - timedelta(days=1))
    for day in days_of(first, TODAY):
        publish_calls(lake, day, *used(SHOP, "orders", sends=10))
    assert says(report(lake))["forecast"] == text


def test_today_counts_in_the_forecast_and_a_month_comes_to_no_less_than_that(lake: Lake) -> None:
    for day in days_of(date(2026, 11, 1), date(2026, 11, 21)):
        publish_calls(lake, day, *used(SHOP, "orders", sends=10))
    publish_calls(lake, TODAY, *used(SHOP, "orders", sends=1_000))
    made = report(lake)
    assert says(made)["forecast"].startswith("1,210 billed requests so far; the month is likely to come to 1.21 k")
    row = section(made, "forecast").tables[0].rows[0]
    assert row == ("Billed requests", "1,210", "1,210", "1,210", "1,210")


def test_a_forecast_has_a_range_where_days_differ(lake: Lake) -> None:
    for day in days_of(date(2026, 11, 1), date(2026, 11, 20)):
        publish_calls(lake, day, *used(SHOP, "orders", sends=10 * day.day), *used(OTHER, "mail", sends=10 * day.day))
    made = report(lake)
    assert says(made)["calls"] == "4,200 calls were answered on 20 days; most on 20 Nov, 400."
    assert says(made)["tenants"] == "2 tenants used the service, none with more than 50% of all calls."
    low, likely, high = section(made, "forecast").tables[0].rows[0][2:]
    assert int(low.replace(",", "")) < int(likely.replace(",", "")) < int(high.replace(",", ""))
    assert ", between " in says(made)["forecast"]


def test_an_empty_month(lake: Lake) -> None:
    summed_up(lake, date(2026, 11, 1), TODAY)
    assert says(report(lake)) == {
        "calls": "No call was answered in this month.",
        "cost": "This month was not rated yet, so there are no costs to show.",
        "tenants": "No tenant used anything in this month.",
        "forecast": "No request was billed in this month.",
        "waste": "There were no receives in this month.",
    }


def test_a_month_that_was_rated_and_came_to_nothing(lake: Lake) -> None:
    summed_up(lake, date(2026, 11, 1), date(2026, 11, 30))
    rated(lake)
    costs = read_costs(lake, "2026-11", None)
    text = says(report(lake, datetime(2026, 12, 2, tzinfo=UTC), costs=costs))["cost"]
    assert text.startswith("Nothing was charged for in this month. As rated on 2030-01-01 at 00:00 UTC, by the prices ")


def test_one_tenant_that_stores_and_does_not_call(lake: Lake) -> None:
    summed_up(lake, date(2026, 11, 1), TODAY - timedelta(days=1))
    publish_calls(lake, TODAY)
    publish_storage(lake, TODAY, {"account": SHOP, "queue": "orders", "byte_milliseconds": 72 * GB_HOUR})
    made = report(lake)
    assert says(made)["tenants"] == f"One tenant used the service: {SHOP}."
    assert section(made, "tenants").tables[0].rows[0][4] == "100 MB-months", "72 GB-hours of 720"
    assert section(made, "forecast").tables[0].rows[2][1] == "100 MB-months"
    assert "all 720 hours of the month" in section(made, "tenants").note


def test_calls_that_were_only_refused(lake: Lake) -> None:
    (row,) = used(SHOP, "orders", sends=1)
    publish_calls(lake, TODAY, {**row, "calls": 0, "chunks": 0, "refused": 7})
    made = report(lake)
    assert says(made)["calls"] == "No call was answered with success in this month."
    assert section(made, "calls").tables[0].rows[0][-3] == "7"


@pytest.mark.parametrize(
    ("receives", "empty", "text"),
    [
        (1, 0, "The only receive found a message."),
        (1_234, 0, "All 1,234 receives found a message."),
        (1, 1, "The only receive found no message, and it is billed as a request."),
        (2, 1, "1 of 2 receives found no message (50%), and it is billed as a request."),
        (200_000, 20, "20 of 200,000 receives found no message (< 0.1%), and each of them is billed as a request."),
        (2_000, 1_999, "1,999 of 2,000 receives found no message (99.9%), and each of them is billed as a request."),
    ],
)
def test_receives(lake: Lake, receives: int, empty: int, text: str) -> None:
    publish_calls(lake, TODAY, *used(SHOP, "orders", receives=receives, empty=empty))
    assert says(report(lake))["waste"] == text


def test_a_month_that_is_over(lake: Lake) -> None:
    for day in NOVEMBER.days():
        publish_calls(lake, day, *used(SHOP, "orders", sends=10), at=datetime(2026, 12, 1, 3, tzinfo=UTC))
    made = report(lake, datetime(2026, 12, 1, 4, tzinfo=UTC), SHOP)
    assert says(made)["calls"] == "300 calls were answered on 30 days, 10 on each."
    assert section(made, "forecast").title == "How the month went"
    assert says(made)["forecast"] == "The month is complete: 300 billed requests."
    assert made.known_until == "", "all of the month"


def test_a_thousand_tenants(lake: Lake) -> None:
    rows = [row for n in range(1, 1001) for row in used(f"{n:012}", "q", sends=1, receives=1, empty=1)]
    publish_calls(lake, TODAY, *rows, *used(f"{1:012}", "q", sends=2), *used(f"{2:012}", "r", receives=3))
    made = report(lake)
    assert says(made)["tenants"] == f"1,000 tenants used the service; {2:012} most, with 0.2% of all calls."
    tenants = section(made, "tenants").tables[0]
    assert (len(tenants.rows), tenants.more) == (15, "and 985 more tenants")
    waste = section(made, "waste").tables[0]
    assert (len(waste.rows), waste.more) == (15, "and 985 more queues")
    assert says(made)["waste"].startswith("1,000 of 1,003 receives found no message (99.7%)")


def rated(lake: Lake, *found: Used, covers: datetime = LATER) -> None:
    book = book_of(BOOK, "prices.yaml")
    who = customers_of(
        f"""
default: plain
accounts:
  "{SHOP}": {{plan: plain, name: Shop Ltd}}
  "{OTHER}": {{plan: plain, name: Other Ltd}}
  "{YEN}": {{plan: yen, name: Yen Ltd}}
""",
        "accounts.yaml",
        book,
    )
    rate(lake, "2026-11", book, who, *found, covers=covers)


def test_each_chart_share_and_ranking_of_costs_is_in_one_currency(lake: Lake) -> None:
    publish_calls(lake, TODAY, *used(SHOP, "orders", sends=5), *used(YEN, "mail", receives=2_000, empty=1_500))
    used_by = [
        Used(SHOP, 30 * 10**6),
        Used(OTHER, 10 * 10**6, queue="mail"),
        Used(YEN, 4 * 10**9, queue="mail"),
        Used(YEN, 10**9, queue=""),
    ]
    rated(lake, *used_by)
    empty = EmptyReceives(YEN, "mail", 2_000, 1_500, 0.75, "", Decimal("600"), "JPY")
    amounts = (Decimal("800"), Decimal("900"), Decimal("1000"), Decimal("1100.4"))
    bills = [Forecast(one, "bill", *amounts, 5, currency) for one, currency in ((SHOP, "EUR"), (YEN, "JPY"))]
    analysis = analysed([date(2026, 11, 21)], empty_receives=[empty], forecasts=bills)
    made = report(lake, costs=read_costs(lake, "2026-11", None), analysis=analysis)
    assert [one.name for one in made.sections] == ["calls", "cost-eur", "cost-jpy", "tenants", "forecast", "waste"]
    assert says(made)["cost-eur"] == "Shop Ltd orders costs most: 12.00 EUR, 75% of all usage in EUR."
    assert says(made)["cost-jpy"] == "Yen Ltd mail costs most: 1,600 JPY, 80% of all usage in JPY."
    for name, currency in (("cost-eur", "EUR"), ("cost-jpy", "JPY")):
        one = section(made, name)
        assert one.title == f"Cost by queue, in {currency}"
        assert {row[-1].rpartition(" ")[2] for row in one.tables[0].rows} == {currency}
        assert one.chart is not None
        assert ("EUR" in one.chart.drawn, "JPY" in one.chart.drawn) == (currency == "EUR", currency == "JPY")
    assert section(made, "cost-jpy").tables[0].rows[1][:2] == (f"Yen Ltd ({YEN})", "(no queue)")
    forecast = section(made, "forecast").tables[0].rows
    assert forecast[3] == (
        "Bills of 1 tenant in EUR, up to 21 Nov",
        "800.00 EUR",
        "900.00 EUR",
        "1,000.00 EUR",
        "1,100.40 EUR",
    )
    assert forecast[4] == ("Bills of 1 tenant in JPY, up to 21 Nov", "800 JPY", "900 JPY", "1,000 JPY", "1,100 JPY")
    waste = section(made, "waste")
    assert waste.tables[0].rows[0][:6] == (f"Yen Ltd ({YEN})", "mail", "2,000", "1,500", "75%", "600 JPY")
    assert waste.tables[0].rows[0][6].startswith("1,500 of 2,000 receives found nothing")
    assert waste.note == "Costs are those of the days up to 21 Nov that were over when the month was analysed."
    assert says(made)["tenants"] == "2 tenants used the service; Yen Ltd most, with 99.8% of all calls."
    assert [(one.name, one.value) for one in made.tiles[:2]] == [
        ("Cost so far", "16.00 EUR"),
        ("Cost so far", "2,000 JPY"),
    ]


def test_a_queue_with_several_sets_of_tags_has_a_bar_for_each(lake: Lake) -> None:
    publish_calls(lake, TODAY, *used(SHOP, "orders", sends=5))
    teams: list[dict[str, str]] = [{"team": "a"}, {"team": "b"}, {}]
    rated(lake, *(Used(SHOP, 10**6 * (5 - at), tags=tags) for at, tags in enumerate(teams)), Used(OTHER, 10**6))
    chart = section(report(lake, costs=read_costs(lake, "2026-11", None)), "cost").chart
    assert chart is not None
    tips = re.findall(r"<title>([^<]*EUR)</title>", chart.drawn)
    assert tips == [
        *("Shop Ltd orders (team=a): 2.00 EUR", "Shop Ltd orders (team=b): 1.60 EUR"),
        *("Shop Ltd orders (no tags): 1.20 EUR", "Other Ltd orders: 0.40 EUR"),
    ]


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ([Used(SHOP, 10**6)], "Shop Ltd orders costs 0.40 EUR, and nothing else in EUR costs anything."),
        ([Used(SHOP, 0)], "All usage in EUR was free of charge."),
        ([Used(SHOP, 1)], "Shop Ltd orders costs < 0.01 EUR, and nothing else in EUR costs anything."),
    ],
)
def test_costs_of_one_queue(lake: Lake, found: list[Used], text: str) -> None:
    publish_calls(lake, TODAY, *used(SHOP, "orders", sends=5))
    rated(lake, *found)
    made = report(lake, costs=read_costs(lake, "2026-11", None))
    assert says(made)["cost"] == text
    assert (section(made, "cost").chart is None) == ("free" in text)
    own = report(lake, account=SHOP, costs=read_costs(lake, "2026-11", SHOP))
    assert own.whose == f"Shop Ltd (account {SHOP})"
    assert says(own)["cost"] == text.replace("Shop Ltd ", "")


_STARTS, _ENDS = datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("read", "covers", "text"),
    [
        ([TODAY], _STARTS, "by then, without 2026-11-01 to 2026-11-21 (UTC), which was not; costs of"),
        (days_of(date(2026, 11, 1), TODAY), NOW, "the prices of then and the usage before 2026-11-22 14:05 UTC; costs"),
        (
            days_of(date(2026, 11, 1), date(2026, 11, 30)),
            _ENDS,
            "then and all usage of the month that had come by then",
        ),
    ],
)
def test_the_usage_that_costs_are_of_is_said(lake: Lake, read: list[date], covers: datetime, text: str) -> None:
    rated(lake, Used(SHOP, 10**6), covers=covers)
    rating = Rated(lake).rating(NOVEMBER_MONTH)
    assert rating is not None
    runs = {name: {str(day): "run" for day in read} for name in TABLES}
    Rated(lake).publish(msgspec.structs.replace(rating, read=runs), rating)
    costs = read_costs(lake, "2026-11", None)
    assert costs is not None
    assert text in costs.explained
    assert ("usage before" in costs.explained) == (covers == NOW)


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0%"),
        (0.0001, "< 0.1%"),
        (0.0007, "0.1%"),
        (0.0666, "6.7%"),
        (0.12, "12%"),
        (0.9949, "99%"),
        (0.9952, "99.5%"),
        (0.99999, "99.9%"),
        (1.0, "100%"),
    ],
)
def test_shares(share: float, text: str) -> None:
    assert percent(share) == text


def test_spans_of_days() -> None:
    days = [date(2026, 11, day) for day in (3, 5, 6, 7, 30)]
    assert days_of_month(days) == "3 Nov, 5 to 7 Nov, 30 Nov"
    assert days_of_month([]) == ""


@pytest.mark.parametrize(
    ("hours", "text"), [(720, "1 GB-month"), (0, "0"), (0.72, "1 MB-month"), (1.08, "1.5 MB-months")]
)
def test_stored_amounts_are_those_of_invoices(hours: float, text: str) -> None:
    assert gb_months(hours * GB_HOUR, 720 * 3_600_000) == text
