"""Looks of a page in both themes and at all widths: accessibility, and whether all of it can be reached."""

from functools import partial
from pathlib import Path
from typing import Any

from axe_core_python.selenium import Axe
from selenium import webdriver

from tests.browser import ask, emulate, set_width
from tests.servers.waiting import wait_until

WIDTHS = (1280, 768, 360)
THEMES = ("light", "dark")
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
COLOURS = ["color-contrast", "link-in-text-block"]
"""Rules whose result depends on the theme: in the second theme only these are checked."""
_AXE = Axe().axe_script
_FOCUS = Path(__file__).with_name("keyboard.js").read_text()


def prepare(browser: webdriver.Chrome) -> bool:
    """Load the scripts of these tests into the page; return whether they were there already."""
    prepared = bool(ask(browser, "Boolean(window.keyboard)"))
    if not prepared:
        browser.execute_script(_FOCUS)
    return prepared


def check_everywhere(browser: webdriver.Chrome) -> None:
    """Check the page, or its open dialog, in both themes and at all widths."""
    prepare(browser)
    for width in WIDTHS:
        set_width(browser, width)
        where = f"{browser.current_url} at {width} pixels"
        wait_until(partial(fits, browser, width), f"{where}: the page fits")  # once charts have got their new size
        flaws = ask(browser, "keyboard.unreachable()")
        assert flaws == [], f"{where}: {flaws}"
        for theme in THEMES:
            emulate(browser, theme)
            check(browser, RULES if theme == THEMES[0] else COLOURS)
    set_width(browser, WIDTHS[0])
    emulate(browser, THEMES[0])


def fits(browser: webdriver.Chrome, width: int) -> bool:
    """Return whether the page is not wider than the window."""
    return bool(ask(browser, "document.documentElement.scrollWidth") <= width)


def check(browser: webdriver.Chrome, rules: list[str] = RULES) -> None:
    """Check the page, or its open dialog, by the rules of WCAG that a program can check."""
    if not ask(browser, "Boolean(window.axe)"):
        browser.execute_script(_AXE)
    options = {"runOnly": {"type": "tag" if rules is RULES else "rule", "values": rules}, "resultTypes": ["violations"]}
    found: dict[str, Any] = browser.execute_async_script(
        "const [options, done] = arguments, within = document.querySelector('dialog[open]') || document;"
        "axe.run(within, options).then(({ violations, passes }) => done({ passed: passes.length,"
        "  violations: violations.map(({ id, nodes }) => [id, nodes.map(({ html }) => html)]) }),"
        "error => done({ violations: String(error) }))",
        options,
    )
    assert found["violations"] == [], f"{browser.current_url}: {found['violations']}"
    assert found["passed"] >= (5 if rules is RULES else 1)
