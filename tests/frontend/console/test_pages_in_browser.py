"""All pages of the console: both themes, three widths, the tab key, and an accessibility checker.

The pages are found by their links, from the first page on: a page without a test cannot be linked.  Each is checked at
each width: it is not wider than the window, no control is cut off, covered or too small, and the checker finds nothing;
in the second theme the checker looks at colours alone, because nothing else differs.  The tab key is pressed through
each page: it reaches each control in the order of the page, and the focus is seen there.

Dialogs are checked the same way by the tests of the acts that open them (:meth:`ConsolePage.open_dialog`).  These tests
use the keyboard alone, and each file ends with a check that all acts of its pages were done (:class:`ScriptCoverage`).
"""

from collections.abc import Iterator

import pytest

from tests.browser import ask, emulate
from tests.frontend.console.checking.appearance import check_everywhere
from tests.frontend.console.checking.coverage import ScriptCoverage
from tests.frontend.console.pages import ConsolePage, ConsoleTenant, api, make_key, make_queues, make_tenant
from tests.frontend.console.test_account_in_browser import make_lake
from tests.frontend.console.test_streams_in_browser import make_stream
from tests.frontend.console.test_topics_in_browser import make_topic
from tests.servers.server import Server
from tests.servers.waiting import wait_until

FIRST = ("queues/orders", "topics/news", "queues")
"""Pages with which the search begins, so that of several queues and topics these are looked at."""
PAGES = {
    "queues", "queues/*", "queues/*/messages", "queues/*/configuration", "queues/*/dead-letters",
    "queues/*/alarms",
    "streams", "streams/*", "streams/*/records", "streams/*/groups", "streams/*/settings", "groups/*",
    "topics", "topics/*", "topics/*/subscriptions", "topics/*/subscriptions/*", "topics/*/publish", "topics/*/settings",
    "filters",
    "account", "account/usage", "account/keys", "account/roles", "account/tokens", "account/audit",
    "operators", "operators/tenants", "operators/partitions",
}  # fmt: skip
NAMED = {"queues", "streams", "groups", "topics", "subscriptions"}
"""Parts of an address that are followed by a name."""


def kind(address: str) -> str:
    """Address with ``*`` in place of names."""
    parts = address.split("/")
    return "/".join("*" if at and parts[at - 1] in NAMED and parts[0] in NAMED else one for at, one in enumerate(parts))


def wait_for_value(console: ConsolePage, script: str, what: str) -> None:
    wait_until(lambda: ask(console.browser, script), what)


def linked_pages(console: ConsolePage) -> Iterator[str]:
    """Visit a page of each kind that is linked by another, and yield its kind."""
    waiting, seen = [*FIRST], set[str]()
    while waiting:
        address = waiting.pop(0)
        if kind(address) in seen:
            continue
        seen.add(kind(address))
        console.browser.get(f"{console.url}#/{address}")
        loading = "document.querySelector('h1') && !document.body.innerText.includes('Loading…')"
        wait_for_value(console, loading, f"{address} is loaded")
        yield kind(address)
        waiting += ask(
            console.browser, "[...document.querySelectorAll('a[href^=\"#/\"]')].map(one => one.hash.slice(2))"
        )


def check_page(console: ConsolePage) -> None:
    assert console.errors() == "", console.browser.current_url
    check_everywhere(console.browser)
    console.keyboard.walk()


def test_every_page(console: ConsolePage, server: Server) -> None:
    operator = make_key(server, server.account, role="operator")
    make_queues(server, server.account)
    make_stream(server, operator.key)
    make_topic(server, operator.key)
    make_lake(server, server.account)
    api(server, operator.key, "PUT", "/roles/ci", {"trusted_accounts": [make_tenant(server).account]})
    for body in ("text", '{"order": 1}', "AAECAwQFBgc="):
        api(server, operator.key, "POST", "/queues/orders/messages", {"body": body})
    check_page(console)
    console.sign_in(operator.key)
    visited = set()
    for page in linked_pages(console):
        if page in ("queues/*/messages", "streams/*/records"):
            console.press("Peek")
            wait_until(console.shown_messages, "what was peeked is shown")
        if page in ("queues/*", "topics/*"):
            wait_for_value(console, "document.querySelector('canvas')", "the charts are there")
        check_page(console)
        visited.add(page)
    assert visited == PAGES


def test_pages_for_those_who_may_do_little(console: ConsolePage, server: Server) -> None:
    tenant = make_tenant(server)
    console.sign_in(make_key(server, tenant.account, scopes=["send"], role="user").key)
    for address, heading in (
        ("queues", "Queues"),
        ("topics", "Topics"),
        ("queues/a/messages", "a"),
        ("operators", "Service"),
    ):
        console.visit(address, heading)
        check_page(console)


def test_the_navigation_is_skipped(console: ConsolePage, server: Server) -> None:
    console.sign_in(make_tenant(server).key)
    console.press("Skip to the content")
    assert ask(console.browser, "document.activeElement.innerText") == "Queues"


def test_themes_have_their_colours(console: ConsolePage) -> None:
    colours = []
    for theme in ("light", "dark"):
        emulate(console.browser, theme)
        colours.append(ask(console.browser, "getComputedStyle(document.body).backgroundColor"))
    assert colours == ["rgb(255, 255, 255)", "rgb(20, 23, 27)"]


def test_the_focus_is_kept_while_the_browser_is_busy(console: ConsolePage, tenant: ConsoleTenant) -> None:
    """A control that is disabled has the focus until the next frame, which comes late."""
    console.sign_in(tenant.key)
    console.keyboard.focus_button("Create a queue")
    console.browser.execute_script(
        "document.activeElement.disabled = true;"
        "Promise.resolve().then(() => { const end = Date.now() + 500; while (Date.now() < end); })"
    )
    wait_for_value(console, "document.activeElement.localName !== 'button'", "the focus has gone")
    wait_for_value(console, "document.activeElement !== document.body", "another element has the focus")


@pytest.mark.usefixtures("whole_file")
def test_each_act_was_done(coverage: ScriptCoverage) -> None:
    elsewhere = ["submit (event)", "onInput (event)", "signOut()"]  # tests of operators and of signing in
    assert coverage.uncalled("app.js", "focus.js", but=elsewhere) == ""
