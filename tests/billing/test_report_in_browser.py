"""The report in a browser: it fetches nothing, logs no error, and shows charts and numbers."""

import io
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from pypdf import PdfReader
from selenium import webdriver

from billing.reports.documents import pdf_of
from billing.reports.invoice_pages import html_of
from billing.reports.report import report_of
from billing.reports.report_sections import account_text
from tests.billing.months import ACCOUNTS, MADE_AT, analysis_of, costs_of, overview_of, report
from tests.billing.reports.test_invoice_pages import large_invoice
from tests.browser import ask, emulate, logged, started_browser


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    """Headless browser without any network."""
    with started_browser() as started:
        yield started


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("report") / "report.html"
    file.write_text(report().html())
    return file


@pytest.fixture
def opened(browser: webdriver.Chrome, page: Path) -> webdriver.Chrome:
    for log in ("browser", "performance"):
        logged(browser, log)  # discards earlier entries
    emulate(browser, "light")
    browser.get(page.as_uri())
    return browser


def colour(browser: webdriver.Chrome, selector: str, of: str) -> str:
    return str(ask(browser, f"getComputedStyle(document.querySelector('{selector}')).{of}"))


def test_nothing_is_fetched_and_nothing_is_wrong(opened: webdriver.Chrome, page: Path) -> None:
    assert opened.title == "Usage in November 2026 – All tenants"
    assert logged(opened, "browser") == []
    resources = ask(opened, "performance.getEntriesByType('resource').map(one => one.name)")
    assert [one for one in resources if not one.startswith("data:")] == []
    asked = [message for message in logged(opened, "performance") if 'requestWillBeSent"' in message]
    assert asked, "the page itself was asked for"
    assert all(page.as_uri() in one or '"url":"data:' in one for one in asked)


def test_a_page_that_fetches_is_caught(browser: webdriver.Chrome, page: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.html"
    broken.write_text(page.read_text().replace("<main>", '<main><img src="http://127.0.0.1:9/x.png">'))
    logged(browser, "browser")
    browser.get(broken.as_uri())
    assert "Content Security Policy" in str(logged(browser, "browser")), "what the page may fetch is in the page"


def test_the_charts_are_there(opened: webdriver.Chrome) -> None:
    charts = ask(
        opened,
        """Array.from(document.querySelectorAll('section')).map(section => {
            const svg = section.querySelector('figure > svg'), box = svg.getBoundingClientRect();
            return [section.id, Math.round(box.width), Math.round(box.height),
                    svg.querySelectorAll('path').length, document.getElementById(
                        svg.getAttribute('aria-labelledby').split(' ')[0]).textContent];
        })""",
    )
    assert [name for name, *_ in charts] == ["calls", "cost", "tenants", "forecast", "waste"]
    for name, width, height, paths, title in charts:
        assert width > 800, name
        assert height > 150, name
        assert paths > 3, name
        assert title
    inside = ask(
        opened,
        """Array.from(document.querySelectorAll('figure > svg')).every(svg => {
            const all = svg.getBoundingClientRect();
            return Array.from(svg.querySelectorAll('text')).every(text => {
                const box = text.getBoundingClientRect();
                return box.left >= all.left - 1 && box.right <= all.right + 1 && box.width > 0;
            });
        })""",
    )
    assert inside, "no text is cut off"


def test_a_mark_has_its_number(opened: webdriver.Chrome) -> None:
    tips = ask(opened, "Array.from(document.querySelectorAll('#calls svg g > title')).map(one => one.textContent)")
    first = overview_of(None).days[0]
    assert tips[0] == f"1 Nov: {first.sends:,} sends"
    assert f"21 Nov: {overview_of(None).days[-1].receives:,} receives" in tips


def test_the_tables_have_the_numbers(opened: webdriver.Chrome) -> None:
    def rows(section: str) -> list[list[str]]:
        found: list[list[str]] = ask(
            opened,
            f"Array.from(document.querySelectorAll('#{section} tbody tr'))"
            ".map(row => Array.from(row.cells).map(cell => cell.innerText))",
        )
        return found

    overview = overview_of(None)
    assert [row[5] for row in rows("calls")] == [f"{day.calls:,}" for day in overview.days]
    assert [row[:2] for row in rows("tenants")] == [
        [account_text(one.account, costs_of(None)), f"{one.calls:,}"] for one in overview.tenants[:15]
    ]
    assert [row[3] for row in rows("waste")] == [f"{one.empty:,}" for one in analysis_of(None).empty_receives]
    assert rows("cost")[0][-1] == "224.45 EUR"
    assert rows("forecast")[0][1] == f"{overview.calls:,}"


def test_it_is_read_in_the_dark_and_on_paper(opened: webdriver.Chrome) -> None:
    def seen() -> tuple[str, str, str]:
        bar = colour(opened, "#calls svg g[id$=mark0] path", "fill")
        return colour(opened, "body", "backgroundColor"), colour(opened, "h1", "color"), bar

    light = seen()
    assert light == ("rgb(255, 255, 255)", "rgb(31, 35, 40)", "rgb(42, 111, 219)")
    emulate(opened, "dark")
    dark = seen()
    assert all(one != other for one, other in zip(light, dark, strict=True)), "charts follow, too"
    assert colour(opened, "#calls svg text", "fill") == "rgb(155, 165, 176)"
    emulate(opened, "dark", "print")
    assert seen() == light, "paper is white"


@pytest.mark.parametrize("width", [390, 800, 1600])
def test_it_fits_the_window(opened: webdriver.Chrome, width: int) -> None:
    opened.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    )
    try:
        assert ask(opened, "document.documentElement.scrollWidth") <= width, "nothing is scrolled sideways as a whole"
        assert ask(opened, "document.querySelector('#calls svg').getBoundingClientRect().width") >= 600
    finally:
        opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("width", [340, 390, 600, 700, 1200])
def test_an_invoice_fits_the_window(browser: webdriver.Chrome, tmp_path: Path, width: int) -> None:
    file = tmp_path / "invoice.html"
    file.write_text(html_of(large_invoice(tmp_path / "lake")))
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    )
    try:
        browser.get(file.as_uri())
        assert ask(browser, "document.documentElement.scrollWidth") <= width
        outside = f"[...document.querySelectorAll('td')].filter(e => e.getBoundingClientRect().right > {width}).length"
        assert ask(browser, outside) == 0, "each amount is seen without scrolling"
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_long_names_many_tags_and_large_sums_leave_room_for_the_numbers(
    browser: webdriver.Chrome, tmp_path: Path
) -> None:
    known = costs_of(None)
    tags = ", ".join(f"tag-{at:02}-{'k' * 100}={'v' * 200}" for at in range(20))
    queues = [replace(one, queue="x" * 80, tags=tags) if at < 3 else one for at, one in enumerate(known.queues)]
    totals = {"EUR": Decimal("123456789012.34"), "JPY": Decimal(123456789012)}
    costs = replace(known, queues=queues, totals=totals, places={"EUR": 2, "JPY": 0})
    made = report_of(overview_of(None), costs, analysis_of(None), made_at=MADE_AT)
    file = tmp_path / "long.html"
    file.write_text(made.html())
    browser.get(file.as_uri())
    amount = "document.querySelector('#cost tbody tr').lastElementChild.getBoundingClientRect()"
    assert ask(browser, f"{amount}.right") <= 1200, "what a queue costs is seen without scrolling"
    assert ask(browser, f"{amount}.height") < 150, "and the next queue is"
    assert ask(browser, "document.querySelector('#cost tbody th').getBoundingClientRect().height") > 0
    for width in (390, 1200):
        browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
        )
        assert ask(browser, "document.documentElement.scrollWidth") <= width
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    whole = "".join(page.extract_text() for page in PdfReader(io.BytesIO(pdf_of(made.for_print()))).pages)
    assert "212.35 EUR" in whole


def test_of_one_tenant(browser: webdriver.Chrome, tmp_path: Path) -> None:
    file = tmp_path / "own.html"
    file.write_text(report(ACCOUNTS[2]).html())
    browser.get(file.as_uri())
    assert ask(browser, "document.querySelectorAll('figure > svg').length") == 4
    assert ACCOUNTS[0] not in ask(browser, "document.body.innerText")
