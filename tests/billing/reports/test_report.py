"""The report: its tables have the numbers, its sentences are true, and it is self-contained."""

import io
import re
from dataclasses import replace
from datetime import date
from decimal import Decimal

import pytest
from pypdf import PdfReader

from billing.pricing.money import to_minor
from billing.reports.documents import pdf_of
from billing.reports.report import report_of
from billing.reports.report_sections import account_text
from tests.billing.months import ACCOUNTS, MADE_AT, analysis_of, costs_of, overview_of, report
from tests.billing.parsed_page import ParsedPage
from tests.tables import table


def number(text: str) -> int:
    return int(text.replace(",", ""))


def test_the_tables_have_the_numbers() -> None:
    overview = overview_of(None)
    table = ParsedPage(report().html()).table
    _, *days, month = table("Calls by day")
    assert len(days) == len(overview.days) == 21
    for row, day in zip(days, overview.days, strict=True):
        counts = [day.sends, day.receives, day.deletes, day.others, day.calls, day.refused, day.throttled, day.failed]
        assert list(map(number, row[1:])) == counts
    assert number(month[5]) == overview.calls
    _, *queues = table("Cost by queue")
    for row, queue in zip(queues, costs_of(None).queues, strict=False):
        assert row[:3] == [account_text(queue.account, costs_of(None)), queue.queue, queue.tags or "–"]
        assert row[-1] == f"{to_minor(queue.total, 2)} EUR"
    _, *tenants = table("Top tenants")
    assert [(row[0], number(row[1])) for row in tenants] == [
        (account_text(one.account, costs_of(None)), one.calls) for one in overview.tenants[:15]
    ]
    assert tenants[1][0] == f"Shop Ltd ({ACCOUNTS[1]})"
    _, *waste = table("Receives that found nothing")
    lines = analysis_of(None).empty_receives
    assert [(row[1], number(row[2]), number(row[3])) for row in waste] == [
        (line.queue, line.receives, line.empty) for line in lines
    ]
    assert {row[5] for row in waste} == {"3.46 EUR"}
    _, requests, *_, bills = table("Sums of the month")
    assert number(requests[1]) == overview.calls
    assert [number(cell) for cell in requests[2:]] == [int(value) for value in overview.requests.ahead[-1][1:4]]
    assert bills == [
        "Bills of 1 tenant in EUR, up to 21 Nov",
        "812.30 EUR",
        "1,000.00 EUR",
        "1,100.00 EUR",
        "1,200.00 EUR",
    ]


def test_a_tenants_report_has_no_other_tenants_data() -> None:
    own = report(ACCOUNTS[3])
    assert [one.name for one in own.sections] == ["calls", "cost", "forecast", "waste"]
    html = own.html()
    assert f"Twin Ltd (account {ACCOUNTS[3]})" in html
    assert not any(account in html for account in ACCOUNTS if account != ACCOUNTS[3])
    assert "Account" not in ParsedPage(html).table("Cost by queue")[0]


def test_days_that_are_missing_are_named() -> None:
    assert report().remarks == []
    missing = tuple(date(2026, 11, day) for day in (3, 9, 20))
    assert report(missing=missing).remarks == ["Not summed up yet, and not in these numbers: 3 Nov, 9 Nov, 20 Nov."]


def test_missing_figures_are_reported_and_not_shown_as_zero() -> None:
    made = report_of(overview_of(None), None, None, made_at=MADE_AT)
    says = {one.name: one.says for one in made.sections}
    notes = {one.name: one.note for one in made.sections}
    assert "rated" in says["cost"]
    assert "cost is not known yet" in notes["waste"]
    assert "EUR" not in made.html()


def test_an_empty_month_is_a_page() -> None:
    overview = overview_of(None)
    overview.days, overview.tenants, overview.receives = [], [], 0
    costs = replace(costs_of(None), queues=[], totals={})
    made = report_of(overview, costs, analysis_of(None), made_at=MADE_AT)
    assert made.sections[0].says == "No call was answered in this month."
    assert "No tenant" in made.html()


@pytest.mark.parametrize("account", [None, ACCOUNTS[0]])
def test_the_page_needs_nothing_but_itself(account: str | None) -> None:
    page = ParsedPage(report(account).html())
    assert page.tags.isdisjoint({"script", "iframe", "object", "embed", "form"})
    assert {one for one in page.references if not one.startswith("#")} <= {"data:,"}
    assert len(page.ids) == len(set(page.ids))
    assert not re.search(r"@import|url\((?!#)", report(account).html())


def test_names_are_text_and_nothing_else() -> None:
    costs = costs_of(None)
    evil = replace(costs.queues[0], queue="<script>alert(1)</script>", tags="a=<b>&\"'")
    html = report_of(overview_of(None), replace(costs, queues=[evil]), None, made_at=MADE_AT).html()
    assert "script" not in ParsedPage(html).tags
    assert "<script>alert(1)</script>" in ParsedPage(html).table("Cost by queue")[1][1]


def test_the_same_as_pdf() -> None:
    overview = overview_of(None)
    pages = PdfReader(io.BytesIO(pdf_of(report().for_print()))).pages
    text = "\n".join(page.extract_text() for page in pages)
    for expected in (
        "Usage in November 2026",
        f"{overview.calls:,} calls were answered",
        "Cost by queue",
        "Top tenants",
        "Receives that found nothing",
        f"{overview.days[-1].sends:,}",
        "21 Nov",
        "224.45 EUR",
        "likely",
    ):
        assert expected in text, expected
    assert 2 <= len(pages) <= 12


@pytest.mark.parametrize(("amount", "currency", "shown"), table(__file__, "amounts are in the minor unit"))
def test_amounts_are_in_the_minor_unit(amount: str, currency: str, shown: str) -> None:
    costs = costs_of(None)
    queue = replace(costs.queues[0], total=Decimal(amount), currency=currency)
    costs = replace(costs, queues=[queue], totals={currency: Decimal(amount)}, places={"EUR": 2, "JPY": 0})
    made = report_of(overview_of(None), costs, None, made_at=MADE_AT)
    (cost,) = [one for one in made.sections if one.name == "cost"]
    assert cost.tables[0].rows[0][-1] == shown
