"""Invoices for people, and for other programs."""

import csv
import io
import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from email import message_from_bytes, policy
from pathlib import Path
from unittest import mock

import msgspec
import pyarrow.parquet as pq
import pytest
from pypdf import PdfReader

from billing.lake.lake import Lake
from billing.pricing.invoices import Invoice, Invoices
from billing.reports import focus, invoice_pages
from billing.reports.invoice_pages import email_of, html_of, json_of, pdf_page_of, text_of
from tests.billing import books
from tests.billing.focus_columns import TABLES
from tests.billing.parsed_page import ParsedPage
from tests.billing.rated_lines import Used, rate

ACCOUNT = "000000000042"
NAME = "Shop <script>alert(1)</script>"
GB_MONTH = 10**9 * 30 * 24 * 3_600_000


@pytest.fixture(scope="module")
def invoices(tmp_path_factory: pytest.TempPathFactory) -> list[Invoice]:
    """Invoices of November, and of December with a correction."""
    lake = Lake(str(tmp_path_factory.mktemp("lake")))
    book = books.book("pages")
    shop = {"plan": "plain", "name": NAME, "email": "a@b.example", "discount": 2.5}
    who = books.customers(book, accounts={ACCOUNT: shop})
    used = [
        Used(ACCOUNT, 1_000_000),
        Used(ACCOUNT, 1_000_000, tier=2, queue="mails", tags={"team": "größe", "env": "x"}),
        Used(ACCOUNT, 2_345_678, tier=3),
        Used(ACCOUNT, GB_MONTH // 2, "storage"),
        Used(ACCOUNT, GB_MONTH * 3, "storage", tier=2),
        Used(ACCOUNT, 12 * 10**9, "bytes_out", queue=""),
    ]
    rate(lake, "2026-11", book, who, *used)
    Invoices(lake).close("2026-11", datetime(2026, 12, 2, tzinfo=UTC))
    rate(lake, "2026-11", book, who, *used, Used(ACCOUNT, 1_000_000, tier=3, queue="late"))
    rate(lake, "2026-12", book, who, Used(ACCOUNT, 10, queue="<b>"))
    Invoices(lake).close("2026-12", datetime(2027, 1, 2, tzinfo=UTC))
    return [Invoices(lake).get(ACCOUNT, period) for period in ("2026-11", "2026-12")]


def test_the_page_lists_the_charges(invoices: list[Invoice]) -> None:
    page = ParsedPage(html_of(invoices[0]))
    for text in (
        "Invoice X-000001",
        "We & Co",
        NAME,
        "Account 000000000042",
        "2026-10-31 23:00 UTC",
        "the first 1,000,000 free",
        "Issued 2026-12-02 Due 2027-01-01 From 2026-10-31 23:00 UTC",
        "1,000,000 to 2,000,000, prices of 2026-01-01 1,000,000 requests 0.40 1,000,000 2.5 % 0.39",
        "above 2,000,000, prices of 2026-01-01 2,345,678 requests 0.30 1,000,000 2.5 % 0.686110815",
        "Requests to standard queues, 1,000,000 to 2,000,000; env=x, team=größe 1,000,000 requests",
        "3 GB-months 0.10 1 2.5 % 0.2925",
        "12 GB 0.09 1 2.5 % 1.053",
        "(no queue)",
        "Net 2.42 EUR",
        "VAT 19.00 % for 2026-11 0.46 EUR",
        "Total 2.88 EUR",
    ):
        assert text in page.text
    assert page.references == [], "an e-mail's page loads nothing"
    assert "script" not in page.tags


def test_each_row_of_the_page_can_be_recomputed_and_they_sum_up_to_the_net(invoices: list[Invoice]) -> None:
    """Compute quantity × price ÷ per, less the discount, as a reader with a calculator does."""
    tables = ParsedPage(html_of(invoices[0])).tables
    of_tiers, of_queues = [rows_of(table) for table in tables if table and table[0][:2] == ["Quantity", "Unit"]]
    for table in (of_tiers, of_queues):
        for _, quantity, _, price, per, discount, amount in table:
            if quantity:
                off = 1 - Decimal(discount.removesuffix(" %") or 0) / 100
                again = number(quantity) * number(price) / number(per) * off
                assert abs(again - number(amount)) <= Decimal("0.000000001")
    assert sum(number(row[-1]) for row in of_tiers) == invoices[0].net
    assert [row[-1] for row in of_tiers][-1] == "-0.001610815", "the rounding is a row"


def rows_of(table: list[list[str]]) -> list[list[str]]:
    """Lines of a table: a row with the charge, and one with its numbers."""
    _, *rows = table
    return [charge + numbers for charge, numbers in zip(rows[::2], rows[1::2], strict=True)]


def number(text: str) -> Decimal:
    return Decimal(text.replace(",", ""))


@pytest.mark.parametrize("form", [html_of, text_of])
def test_a_draft_is_not_issued_and_lists_its_content(tmp_path: Path, form: Callable[[Invoice], str]) -> None:
    lake, book = Lake(str(tmp_path)), books.book("pages", {"prefix: X-": "prefix: X-, due_days: 14"})
    who, noon = books.customers(book), datetime(2026, 11, 20, 12, tzinfo=UTC)
    rate(lake, "2026-11", book, who, Used(ACCOUNT, 64), covers=noon)
    draft = re.sub(r"(?s)<[^>]*>", " ", form(Invoices(lake).draft(ACCOUNT, "2026-11")))
    draft = re.sub(r"\s+", " ", draft.replace(":", ""))
    assert "Draft of an invoice" in draft
    assert "Issued" not in draft
    assert "Not issued; rated 2030-01-01 0000 UTC" in draft
    assert "Usage before 2026-11-20 1200 UTC" in draft
    assert "Due 14 days after it is issued" in draft
    assert "64 requests 0.00 1,000,000 " in draft
    assert "million" not in draft


def test_a_correction_is_a_part_of_its_own(invoices: list[Invoice]) -> None:
    text = ParsedPage(html_of(invoices[1])).text
    assert "corrects 2026-11" in text
    assert "Correction of 2026-11, 0.29 EUR" in text
    assert "Up to the minimum of 2 2.00" in text
    assert "<b>" in text


def test_a_text_has_the_same_meaning(invoices: list[Invoice]) -> None:
    text = text_of(invoices[0])
    assert "Total                    2.88 EUR" in text
    lines = text.splitlines()
    at = lines.index("Message storage (above 0.5 GB-months, prices of 2026-01-01)")
    heading = next(line for line in lines if line.split()[:2] == ["Quantity", "Unit"])
    assert lines[at + 1].split() == ["3", "GB-months", "0.10", "1", "2.5", "%", "0.2925"]
    assert heading.split()[-1] == "Amount"
    points = {line.rindex(".") for line in lines if line.startswith("  ") and "." in line}
    assert len(points) == 1, "amounts stand below each other"
    assert NAME in text


def test_the_page_as_pdf(invoices: list[Invoice]) -> None:
    text = " ".join(page.extract_text() for page in PdfReader(io.BytesIO(pdf_page_of(invoices[0]))).pages)
    assert "Invoice X-000001" in text
    assert "2.88 EUR" in text


def large_invoice(folder: Path) -> Invoice:
    """An invoice with long names and numbers of many digits."""
    lake = Lake(str(folder))
    book = books.book("pages")
    who = books.customers(book, accounts={ACCOUNT: {"plan": "plain", "discount": 12.75}})
    used = [
        Used(ACCOUNT, 123_456_789_012, tier=2, queue="q" * 80, tags={"team": "größe", "k" * 100: "v\u00a0" * 100}),
        Used(ACCOUNT, 987_654_321_098_765_432_109, "storage", tier=2),
        Used(ACCOUNT, 12_345_678_901_234_567, "bytes_out", queue=""),
        *(Used(ACCOUNT, 1_234_567, tier=3, queue=f"queue-{at}") for at in range(40)),
    ]
    rate(lake, "2026-11", book, who, *used)
    Invoices(lake).close("2026-11", datetime(2026, 12, 2, tzinfo=UTC))
    return Invoices(lake).get(ACCOUNT, "2026-11")


def test_nothing_of_the_pdf_is_outside_its_margins(tmp_path: Path) -> None:
    from weasyprint import HTML

    pages = HTML(string=html_of(large_invoice(tmp_path))).render().pages
    seen = 0
    for page in pages:
        paper = page._page_box
        left, right = paper.content_box_x(), paper.content_box_x() + paper.width
        cells = [box for box in paper.descendants() if box.element_tag in ("table", "td", "th")]
        seen += len(cells)
        for box in cells:
            assert left - 0.5 <= box.border_box_x() <= box.border_box_x() + box.border_width() <= right + 0.5
    assert len(pages) > 1
    assert seen > 200


@mock.patch.object(invoice_pages, "LINES_SHOWN", 2)
def test_a_page_shows_some_lines_and_the_sum_of_the_others(invoices: list[Invoice]) -> None:
    text = ParsedPage(html_of(invoices[0])).text
    assert "And 4 smaller lines, together 0.6825." in text  # 0.39 and 0.2925, and two that cost nothing


def test_an_email_has_everything(invoices: list[Invoice]) -> None:
    message = message_from_bytes(email_of(invoices[0]).as_bytes(), policy=policy.default)
    assert message["Subject"] == "Invoice X-000001 of We & Co for 2026-11"
    assert (message["From"], message["To"]) == ("us@we.example", "a@b.example")
    assert message["Message-ID"] == f"<invoice-X-000001-{invoices[0].account}@we.example>", "the same of all copies"
    assert message.get_body(("plain",)).get_content().replace("\r\n", "\n") == text_of(invoices[0])  # type: ignore[union-attr]
    assert "Total" in message.get_body(("html",)).get_content()  # type: ignore[union-attr]
    attached = {part.get_filename(): part.get_content() for part in message.iter_attachments()}
    assert set(attached) == {"X-000001.json", "X-000001.pdf"}
    assert attached["X-000001.pdf"].startswith(b"%PDF-")
    assert msgspec.json.decode(attached["X-000001.json"], type=Invoice) == invoices[0]
    without = message_from_bytes(email_of(invoices[0], pdf=False).as_bytes(), policy=policy.default)
    assert [part.get_filename() for part in without.iter_attachments()] == ["X-000001.json"]


def test_json_has_amounts_as_text(invoices: list[Invoice]) -> None:
    found = msgspec.json.decode(json_of(invoices[0]))
    assert (found["total"], found["lines"][2]["price"]) == ("2.88", "0.400000")


def test_a_focus_row(invoices: list[Invoice]) -> None:
    rows = list(csv.DictReader(io.StringIO(focus.csv_of(invoices).decode())))
    (row,) = [row for row in rows if row["ResourceName"] == "mails"]
    assert row == TABLES["row"]
    (late,) = [row for row in rows if row["ResourceName"] == "late"]
    assert (late["ChargeClass"], late["InvoiceId"]) == ("Correction", "X-000002")
    assert (late["BillingPeriodStart"], late["ChargePeriodStart"]) == ("2026-11-30T23:00:00Z", "2026-10-31T23:00:00Z")


def test_focus_as_parquet_is_the_same(invoices: list[Invoice], tmp_path: Path) -> None:
    (tmp_path / "focus.parquet").write_bytes(focus.parquet_of(invoices))
    table = pq.read_table(tmp_path / "focus.parquet")
    assert table.equals(focus.table_of(invoices))
    assert sum(table["BilledCost"].to_pylist()) == sum(invoice.total for invoice in invoices)
