"""Signing in to the console, and the end of sessions."""

import json

import pytest
from selenium.webdriver.common.keys import Keys

from tests.browser import ask, logged
from tests.frontend.console.checking.coverage import ScriptCoverage
from tests.frontend.console.pages import ConsolePage, ConsoleTenant, make_queues
from tests.servers.server import Server
from tests.servers.waiting import wait_until


def test_a_session_is_in_the_tab_alone(console: ConsolePage, server: Server, tenant: ConsoleTenant) -> None:
    console.sign_in(tenant.key)
    assert "Acme" in console.text
    kept = "[document.cookie, JSON.stringify(localStorage), JSON.stringify(sessionStorage), location.href].join()"
    assert ask(console.browser, kept) == f",{{}},{{}},{console.url}"
    assert tenant.key not in ask(console.browser, "document.documentElement.outerHTML")
    asked = [json.loads(one)["message"] for one in logged(console.browser, "performance")]
    urls = [one["params"]["request"]["url"] for one in asked if one["method"] == "Network.requestWillBeSent"]
    assert any("/v1/token" in url for url in urls)
    assert all(url.startswith((server.endpoint, "about:")) for url in urls), "no other host is asked"
    secret = tenant.key.rpartition("_")[2]
    assert not any(secret in url or "eyJ" in url for url in urls), "no URL has a secret"
    log = server.log_text() + (server.data / "audit.jsonl").read_text()
    assert tenant.key_id in log
    assert secret not in log
    assert "eyJ" not in log, "no token is logged"
    console.press("Sign out")
    console.wait_for_heading("Sign in to Holdfast")
    console.sign_in(tenant.key)
    console.browser.refresh()
    console.wait_for_heading("Sign in to Holdfast")


def test_an_access_key_signs_in_without_its_secret_being_sent(console: ConsolePage, server: Server) -> None:
    console.keyboard.focus_field("[name='kind']:checked")
    console.keyboard.type(Keys.DOWN)
    console.fill("id", server.access_key_id)
    console.fill("secret", server.secret_access_key)
    console.press("Sign in")
    console.wait_for_heading("Queues")
    sent = "".join(logged(console.browser, "performance"))
    assert server.access_key_id in sent
    assert server.secret_access_key not in sent


@pytest.mark.parametrize("key", ["hf_abcdefghijklmnop_nothing", "eyJhbGciOiJIUzI1NiJ9.e30.x", "none"])
def test_a_wrong_key_is_refused(console: ConsolePage, key: str) -> None:
    console.fill("bearer", key)
    console.press("Sign in")
    wait_until(console.errors, "the refusal is shown")
    console.wait_for_heading("Sign in to Holdfast")


@pytest.mark.parametrize("page", ["queues", pytest.param("queues/orders", marks=pytest.mark.long)])
def test_a_revoked_key_ends_the_session(console: ConsolePage, server: Server, tenant: ConsoleTenant, page: str) -> None:
    """The service ends the connection that the page follows, so the page asks again and clears itself."""
    make_queues(server, tenant.account)
    console.sign_in(tenant.key)
    console.visit(page, page.partition("/")[2] or "Queues")
    wait_until(lambda: "Available" in console.text and "Loading" not in console.text, "numbers are shown")
    labels = "[...document.querySelectorAll('canvas')].map(one => one.getAttribute('aria-label')).join()"
    if page != "queues":
        wait_until(lambda: "Dead letters in dead. Now" in ask(console.browser, labels), "its dead letters are, too")
    asked = "performance.getEntriesByType('resource').filter(one => one.name.includes('/v1/')).length"
    before = ask(console.browser, asked)
    server.rest("DELETE", f"/v1/keys/{tenant.key_id}?account={tenant.account}")
    console.wait_for("Your session has ended. Sign in again.")
    assert "orders" not in console.text, "nothing of the tenant is left on the page"
    connections = 1 if page == "queues" else 2  # a queue's, and its dead-letter queue's
    ended_and_tried_again = 2 * connections + 1  # the session is followed alone as soon as nothing else is
    assert ask(console.browser, asked) - before <= ended_and_tried_again, "their end has told it, not a poll"


def test_a_revoked_key_ends_a_session_that_follows_no_numbers(
    console: ConsolePage, server: Server, tenant: ConsoleTenant
) -> None:
    console.sign_in(tenant.key)
    console.visit("account/keys", f"Account {tenant.account}")
    watch = "/v1/events?session=true"
    wait_until(lambda: watch in "".join(logged(console.browser, "performance")), "the session is followed")
    server.rest("DELETE", f"/v1/keys/{tenant.key_id}?account={tenant.account}")
    console.wait_for("Your session has ended. Sign in again.")
    sent = "".join(logged(console.browser, "performance"))
    assert watch in sent, "the end of the stream has told it"
    assert "/v1/caller" not in sent, "nothing was polled"


def test_a_suspended_tenant_is_shown_why(console: ConsolePage, server: Server, tenant: ConsoleTenant) -> None:
    make_queues(server, tenant.account)
    console.sign_in(tenant.key)
    console.wait_for("orders")
    server.rest("POST", f"/v1/tenants/{tenant.account}/suspend")
    console.wait_for(f"The account {tenant.account} is suspended. Ask the operator of this service.")
    assert "orders" not in console.text, "nothing of the tenant is left on the page"


@pytest.mark.usefixtures("whole_file")
def test_each_act_was_done(coverage: ScriptCoverage) -> None:
    issuer = ["setup() { const act = useAct(); onMounted("]  # in test_issuer_in_browser.py
    assert coverage.uncalled("sign_in.js", "signing.js", but=issuer) == ""
