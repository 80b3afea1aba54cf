"""Signing in to the console through the OIDC issuer, by redirect."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from tests.auth.code_issuer import CLIENT, CodeIssuer, served
from tests.auth.outside import AUDIENCE
from tests.browser import ask, logged
from tests.frontend.console.checking.appearance import check_everywhere
from tests.frontend.console.checking.coverage import ScriptCoverage
from tests.frontend.console.pages import ConsolePage, make_queues, make_tenant
from tests.servers.server import Server
from tests.servers.waiting import wait_until

STORED = "[document.cookie, JSON.stringify(localStorage), JSON.stringify(sessionStorage)].join()"
NOTHING_STORED = ",{},{}"


@pytest.fixture(scope="module")
def serving() -> Iterator[CodeIssuer]:
    with served(lambda url: CodeIssuer(url, time.time)) as issuer:
        yield issuer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, serving: CodeIssuer) -> Iterator[Server]:
    settings = {"OIDC_ISSUER": serving.url, "OIDC_AUDIENCE": AUDIENCE, "OIDC_CONSOLE_CLIENT_ID": CLIENT}
    with Server(tmp_path_factory.mktemp("issuer"), settings) as started:
        yield started


@pytest.fixture
def issuer(serving: CodeIssuer, server: Server) -> CodeIssuer:
    """The issuer, with a user of a new tenant that has queues."""
    tenant = make_tenant(server)
    make_queues(server, tenant.account)
    serving.asks, serving.redirect, serving.added, serving.id_claims = False, {}, {}, {}
    serving.claims = {"holdfast_account": tenant.account}
    return serving


def button(issuer: CodeIssuer) -> str:
    return f"Sign in with {issuer.url.removeprefix('http://')}"


def requested(browser: webdriver.Chrome) -> list[dict[str, Any]]:
    """Requests of the browser since the last call."""
    events = [json.loads(one)["message"] for one in logged(browser, "performance")]
    return [one["params"]["request"] for one in events if one["method"] == "Network.requestWillBeSent"]


def history_entries(browser: webdriver.Chrome) -> list[str]:
    return [entry["url"] for entry in browser.execute_cdp_cmd("Page.getNavigationHistory", {})["entries"]]


def test_a_user_of_the_issuer_sees_the_queues_of_its_tenant(
    console: ConsolePage, server: Server, issuer: CodeIssuer
) -> None:
    browser = console.browser
    browser.get(f"{console.url}#/queues/orders")
    console.press(button(issuer))
    console.wait_for_heading("orders")
    console.visit("queues", "Queues")
    wait_until(lambda: [row[0] for row in console.rows()] == ["dead", "orders"], "its own queues are listed")
    assert "Acme" in console.text

    secrets = [*issuer.issued[-4:], *(issuer.forms[-1][name] for name in ("code", "code_verifier"))]
    secrets += [issuer.requests[-1][name] for name in ("state", "nonce")]
    assert len(set(secrets)) == 7
    assert ask(browser, STORED) == NOTHING_STORED
    for place in (browser.current_url, *history_entries(browser), ask(browser, "document.documentElement.outerHTML")):
        assert not [secret for secret in secrets[:4] if secret in place], place
    assert console.url + "#/queues/orders" in history_entries(browser)
    sent = requested(browser)
    tokens = issuer.issued[-3:]
    assert not [one["url"] for one in sent if any(secret in one["url"] for secret in tokens)]
    fetched = [one for one in sent if one["url"].startswith(issuer.url)]
    assert len(fetched) == 1, "the page leaves for the issuer, and never connects to it"
    assert "Referer" not in issuer.request_headers[-1]
    log = server.log_text() + (server.data / "audit.jsonl").read_text()
    assert not [secret for secret in secrets if secret in log]

    begun, form = issuer.requests[-1], issuer.forms[-1]
    assert begun["redirect_uri"] == form["redirect_uri"] == console.url
    assert begun["code_challenge_method"] == "S256"
    assert min(len(begun[name]) for name in ("state", "nonce", "code_challenge")) == 43

    console.press("Sign out")
    console.wait_for_heading("Sign in to Holdfast")
    console.wait_for("goes on")
    console.find(".issuer a").click()
    wait_until(lambda: browser.current_url == f"{issuer.url}/goodbye?client_id={CLIENT}", "the issuer says goodbye")


def test_each_sign_in_has_values_of_its_own(console: ConsolePage, issuer: CodeIssuer) -> None:
    for _ in range(2):
        console.open()
        console.press(button(issuer))
        console.wait_for_heading("Queues")
    first, second = issuer.requests[-2:]
    assert not [name for name in ("state", "nonce", "code_challenge") if first[name] == second[name]]


def test_the_way_back_without_signing_in(console: ConsolePage, issuer: CodeIssuer) -> None:
    issuer.asks = True
    console.press(button(issuer))
    wait_until(lambda: console.browser.current_url.startswith(issuer.url), "the issuer's page is shown")
    console.browser.back()
    console.wait_for_heading("Sign in to Holdfast")
    wait_until(lambda: ask(console.browser, STORED) == NOTHING_STORED, "nothing is stored")
    console.press(button(issuer))
    console.find("a").click()
    console.wait_for_heading("Queues")


def test_a_sign_in_that_another_page_began_is_refused(console: ConsolePage, issuer: CodeIssuer) -> None:
    """An attacker sends the victim a link with the attacker's own code: the victim would work in its account."""
    begun = {"redirect_uri": console.url, "state": "s" * 43, "nonce": "n", "code_challenge": "c", "client_id": CLIENT}
    link = issuer.authorize(begun)
    forms = len(issuer.forms)
    console.browser.get(link)
    console.wait_for("was not begun in this tab")
    assert console.browser.current_url == console.url
    assert len(issuer.forms) == forms, "the code is not exchanged"


@pytest.mark.parametrize(
    ("redirect", "words"),
    [
        ({"state": "another"}, "was not begun in this tab"),
        ({"iss": "https://stranger.example"}, "is not from"),
        ({"iss": None}, "is not from"),
        ({"code": "invented"}, "does not accept the code"),
        ({"code": None, "error": "access_denied", "error_description": "<b>Not today"}, "access_denied: <b>Not today"),
        ({"code": None, "error": "access_denied", "state": "x", "error_description": "Call us"}, "not begun in this"),
    ],
)
def test_an_answer_that_is_not_right(
    console: ConsolePage, issuer: CodeIssuer, redirect: dict[str, str | None], words: str
) -> None:
    issuer.redirect = redirect
    console.press(button(issuer))
    wait_until(lambda: words in console.errors(), f"the page says {words!r}")
    assert "Call us" not in console.text, "texts of strangers are not shown"
    console.wait_for_heading("Sign in to Holdfast")
    assert console.browser.current_url == console.url
    assert ask(console.browser, STORED) == NOTHING_STORED
    issuer.redirect = {}
    console.press(button(issuer))
    console.wait_for_heading("Queues")


def test_a_wrong_verifier_is_refused(console: ConsolePage, issuer: CodeIssuer) -> None:
    issuer.asks = True
    console.press(button(issuer))
    console.find("a")
    issuer.requests[-1]["code_challenge"] = "another"
    console.find("a").click()
    wait_until(lambda: "does not accept the code" in console.errors(), "the refusal is shown")


def test_a_token_that_names_no_account_is_explained(console: ConsolePage, issuer: CodeIssuer) -> None:
    issuer.claims = {"holdfast_account": None}
    console.press(button(issuer))
    wait_until(lambda: "12 digits of an account" in console.errors(), "the reason is shown")


def test_the_session_ends_with_its_token(console: ConsolePage, issuer: CodeIssuer) -> None:
    issuer.claims["exp"] = int(time.time()) + 2
    console.press(button(issuer))
    console.wait_for("Your session has expired. Sign in again.")
    assert "orders" not in console.text


def test_it_is_begun_at_the_address_of_the_service(console: ConsolePage, issuer: CodeIssuer) -> None:
    console.browser.get(f"{console.url}/index.html")
    console.press(button(issuer))
    wait_until(lambda: f"Open the console at {console.url}" in console.errors(), "the right address is named")
    assert ask(console.browser, STORED) == NOTHING_STORED


def test_the_page_is_accessible(console: ConsolePage, issuer: CodeIssuer) -> None:
    console.open()
    assert console.browser.find_elements(By.XPATH, f"//button[.='{button(issuer)}']")
    check_everywhere(console.browser)
    console.keyboard.walk()


@pytest.mark.usefixtures("whole_file")
def test_each_act_was_done(coverage: ScriptCoverage) -> None:
    before_leaving = [" base64url ", " random ", " () => {}", " keep "]  # what is counted is lost with the page
    assert coverage.uncalled("issuer.js", "returned.js", but=before_leaving) == ""
