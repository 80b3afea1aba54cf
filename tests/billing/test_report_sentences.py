"""Sentences of a report, for which no case of ``tests/billing/cases`` can be written."""

import re
from datetime import UTC, date, datetime
from decimal import Decimal

import msgspec
import pytest

from billing.lake.lake import Lake
from billing.lake.months import Month
from billing.lake.tables import days_of
from billing.pricing.billing_days import TABLES
from billing.pricing.costs import read_costs
from billing.pricing.rated import Rated
from billing.reports.analysis import EmptyReceives, Forecast
from billing.reports.number_format import days_of_month, gb_months, percent
from billing.reports.report_page import Section, UsageReport
from tests.billing import books
from tests.billing.cases import analysed, calls_in, report
from tests.billing.published import publish_calls
from tests.billing.rated_lines import LATER, Used, rate
from tests.tables import table

SHOP, OTHER, YEN = "000000000042", "000000000043", "000000000044"
TODAY = date(2026, 11, 22)
NOW = datetime(2026, 11, 22, 14, 5, tzinfo=UTC)
GB_HOUR = 10**9 * 3_600_000


def says(made: UsageReport) -> dict[str, str]:
    return {one.name: one.says for one in made.sections}


def section(made: UsageReport, name: str) -> Section:
    (found,) = [one for one in made.sections if one.name == name]
    return found


def test_a_forecast_has_a_range_where_days_differ(lake: Lake) -> None:
    for day in days_of(date(2026, 11, 1), date(2026, 11, 20)):
        sends = f"sends={10 * day.day}"
        publish_calls(lake, day, *calls_in(f"{SHOP} orders {sends}"), *calls_in(f"{OTHER} mail {sends}"))
    made = report(lake, NOW)
    assert says(made)["calls"] == "4,200 calls were answered on 20 days; most on 20 Nov, 400."
    assert says(made)["tenants"] == "2 tenants used the service, none with more than 50% of all calls."
    low, likely, high = section(made, "forecast").tables[0].rows[0][2:]
    assert int(low.replace(",", "")) < int(likely.replace(",", "")) < int(high.replace(",", ""))
    assert ", between " in says(made)["forecast"]


def test_a_thousand_tenants(lake: Lake) -> None:
    rows = [row for n in range(1, 1001) for row in calls_in(f"{n:012} q sends=1 receives=1 empty=1")]
    publish_calls(lake, TODAY, *rows, *calls_in(f"{1:012} q sends=2"), *calls_in(f"{2:012} r receives=3"))
    made = report(lake, NOW)
    assert says(made)["tenants"] == f"1,000 tenants used the service; {2:012} most, with 0.2% of all calls."
    tenants = section(made, "tenants").tables[0]
    assert (len(tenants.rows), tenants.more) == (15, "and 985 more tenants")
    waste = section(made, "waste").tables[0]
    assert (len(waste.rows), waste.more) == (15, "and 985 more queues")
    assert says(made)["waste"].startswith("1,000 of 1,003 receives found no message (99.7%)")


def rated(lake: Lake, *found: Used, covers: datetime = LATER) -> None:
    book = books.book("costs")
    named = ((SHOP, "plain", "Shop Ltd"), (OTHER, "plain", "Other Ltd"), (YEN, "yen", "Yen Ltd"))
    who = books.customers(book, accounts={account: {"plan": plan, "name": name} for account, plan, name in named})
    rate(lake, "2026-11", book, who, *found, covers=covers)


def test_each_chart_share_and_ranking_of_costs_is_in_one_currency(lake: Lake) -> None:
    publish_calls(lake, TODAY, *calls_in(f"{SHOP} orders sends=5"), *calls_in(f"{YEN} mail receives=2000 empty=1500"))
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
    made = report(lake, NOW, costs=read_costs(lake, "2026-11", None), analysis=analysis)
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
    publish_calls(lake, TODAY, *calls_in(f"{SHOP} orders sends=5"))
    teams: list[dict[str, str]] = [{"team": "a"}, {"team": "b"}, {}]
    rated(lake, *(Used(SHOP, 10**6 * (5 - at), tags=tags) for at, tags in enumerate(teams)), Used(OTHER, 10**6))
    chart = section(report(lake, NOW, costs=read_costs(lake, "2026-11", None)), "cost").chart
    assert chart is not None
    tips = re.findall(r"<title>([^<]*EUR)</title>", chart.drawn)
    assert tips == [
        *("Shop Ltd orders (team=a): 2.00 EUR", "Shop Ltd orders (team=b): 1.60 EUR"),
        *("Shop Ltd orders (no tags): 1.20 EUR", "Other Ltd orders: 0.40 EUR"),
    ]


_STARTS, _ENDS = datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("read", "covers", "text"),
    [
        ([TODAY], _STARTS, "by then, without 2026-11-01 to 2026-11-21 (UTC); costs of"),
        (
            days_of(date(2026, 11, 1), TODAY),
            NOW,
            "the prices at that time and the usage before 2026-11-22 14:05 UTC; costs",
        ),
        (days_of(date(2026, 11, 1), date(2026, 11, 30)), _ENDS, "time and all usage of the month recorded by then"),
    ],
)
def test_costs_name_the_usage_that_they_include(lake: Lake, read: list[date], covers: datetime, text: str) -> None:
    rated(lake, Used(SHOP, 10**6), covers=covers)
    rating = Rated(lake).rating(Month(2026, 11))
    assert rating is not None
    runs = {name: {str(day): "run" for day in read} for name in TABLES}
    Rated(lake).publish(msgspec.structs.replace(rating, read=runs), rating)
    costs = read_costs(lake, "2026-11", None)
    assert costs is not None
    assert text in costs.explained
    assert ("usage before" in costs.explained) == (covers == NOW)


@pytest.mark.parametrize(("share", "text"), table(__file__, "shares"))
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
