"""The account's pages of the console: limits, usage and cost, keys, roles, tokens, audit log."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import httpx
import pytest

from billing.lake.lake import Lake
from billing.lake.months import Month
from billing.pricing.invoices import Invoices
from billing.pricing.plans import book_of, customers_of
from billing.reports.analysis import Forecast, encode, path_of
from tests.billing.books import BOOK
from tests.billing.cases import analysed
from tests.billing.published import calls, publish_calls
from tests.billing.rated_lines import Used, rate
from tests.browser import ask
from tests.frontend.console.checking.coverage import ScriptCoverage
from tests.frontend.console.pages import ConsolePage, ConsoleTenant, api, make_key, make_queues
from tests.servers.server import Server
from tests.servers.waiting import wait_until


def make_lake(server: Server, account: str) -> None:
    """Fill the service's lake: usage of today, the costs of this month with a forecast, an invoice of the last one."""
    lake = Lake(str(server.data / "lake"))
    today = datetime.now(UTC).date()
    publish_calls(lake, today, calls(account, "orders", "SendMessage", 1234))
    month, before = (f"{day:%Y-%m}" for day in (today, date(today.year, today.month, 1) - timedelta(1)))
    book = book_of(BOOK, "prices.yaml")
    customers = customers_of("default: plain", "accounts.yaml", book)
    for one in (before, month):
        rate(lake, one, book, customers, Used(account, 10**7, tier=2))
    if Month.parse(before) not in Invoices(lake).closed():
        Invoices(lake).close(before, datetime.now(UTC))
    bill = Forecast(account, "bill", Decimal("4"), Decimal("5"), Decimal("6"), Decimal("7.5"), 9, "EUR")
    lake.write_bytes(path_of(month), encode(analysed([today], forecasts=[bill])))


def test_limits_are_shown_with_their_use(console: ConsolePage, server: Server, tenant: ConsoleTenant) -> None:
    make_queues(server, tenant.account)
    limits = {"queues": 8, "send": {"per_second": 0.01, "burst": 10}}
    server.rest("PATCH", f"/v1/tenants/{tenant.account}/limits", limits)
    console.sign_in(tenant.key)
    for _ in range(4):
        api(server, tenant.key, "POST", "/queues/orders/messages", {"body": "b"})
    console.visit("account", f"Account {tenant.account}")
    rows = wait_until(lambda: {row[0]: row[1:3] for row in console.rows()}, "the limits are shown")
    assert rows["Queues"] == ["2", "8"]
    assert rows["Calls that send"] in (["4 of the burst", "0/s, 10 at once"], ["3.9 of the burst", "0/s, 10 at once"])
    assert rows["All calls"] == ["–", "no limit"]


def test_usage_cost_and_invoices(console: ConsolePage, server: Server, tenant: ConsoleTenant) -> None:
    make_lake(server, tenant.account)
    console.sign_in(tenant.key)
    console.visit("account/usage", f"Account {tenant.account}")
    console.wait_for("Cost so far")
    console.wait_for("Forecast of the bill")
    console.wait_for("between €5.00 and €7.50, by 9 days")
    console.wait_for("1,234")
    console.fill("by", "queue")
    wait_until(lambda: ["orders", "1,234"] in [row[:2] for row in console.rows()], "usage by queue is shown")
    console.wait_for("X-00000")
    number = console.rows()[-1][0]
    for format in ("JSON", "CSV (FOCUS)", "PDF"):
        console.press(f"{format} of {number}")
        console.wait_for("Saved.")


def test_queues_are_sorted_by_cost(console: ConsolePage, server: Server, tenant: ConsoleTenant) -> None:
    make_lake(server, tenant.account)
    make_queues(server, tenant.account)
    costs = api(server, tenant.key, "GET", "/costs")["lines"]
    dearest = costs[0]["queue"]
    assert dearest, costs
    if dearest not in ("dead", "orders"):
        api(server, tenant.key, "POST", "/queues", {"name": dearest})
    console.sign_in(tenant.key)
    wait_until(console.rows, "the list is shown")
    console.fill("sort", "cost")
    wait_until(lambda: console.rows() and console.rows()[0][0] == dearest, "the queue with the highest cost is first")
    assert "€" in console.rows()[0][7]
    console.go(dearest)
    console.press("Show the cost by month")
    console.wait_for("as last rated.")
    labels = "[...document.querySelectorAll('canvas')].map(one => one.getAttribute('aria-label'))"
    wait_until(lambda: any(one.startswith("Cost by month. Now: ") for one in ask(console.browser, labels)), "the chart")


def test_keys_are_made_rotated_and_revoked(console: ConsolePage, server: Server, tenant: ConsoleTenant) -> None:
    console.sign_in(tenant.key)
    console.visit("account/keys", f"Account {tenant.account}")
    wait_until(lambda: [row[1] for row in console.rows()] == ["boss"], "the keys are listed")
    console.fill("name", "worker")
    console.fill("prefixes", "shop- mail-")
    console.fill("days", "2")
    console.press("Create")
    console.wait_for("it is never shown again")
    made = console.find("pre").text
    read_aloud = "[...document.querySelectorAll('[role=status], [role=alert]')].map(one => one.textContent).join()"
    assert made not in ask(console.browser, read_aloud)
    caller = api(server, made, "GET", "/caller")
    assert (caller["role"], caller["scopes"], caller["prefixes"]) == ("user", ["send", "receive"], ["shop-", "mail-"])
    worker = caller["credential"]
    console.press(f"Rotate {worker}")
    console.wait_for("stays valid for a day")
    assert console.find("pre").text != made
    console.open_dialog(f"Revoke {worker}")
    console.fill("name", "worker")
    console.press("Revoke the key")

    def state() -> str:
        return next((row[5].split()[0] for row in console.rows() if row[0] == worker), "")

    wait_until(lambda: state() == "revoked", "the key is revoked")
    refused = httpx.get(f"{server.endpoint}/v1/caller", headers={"authorization": f"Bearer {made}"}, trust_env=False)
    assert refused.status_code == 401


def test_roles_are_made_changed_and_deleted(console: ConsolePage, server: Server, tenant: ConsoleTenant) -> None:
    console.sign_in(tenant.key)
    console.visit("account/roles", f"Account {tenant.account}")
    console.wait_for("No roles yet")
    console.fill("name", "ci")
    console.fill("accounts", server.account)
    console.press("Save")
    console.wait_for("Saved.")
    (role,) = api(server, tenant.key, "GET", "/roles")["roles"]
    assert (role["name"], role["scopes"], role["trusted_accounts"]) == ("ci", ["send", "receive"], [server.account])
    console.press("Edit ci")
    console.toggle("scopes-receive")
    console.press("Save")
    wait_until(
        lambda: api(server, tenant.key, "GET", "/roles")["roles"][0]["scopes"] == ["send"], "the role is changed"
    )
    console.open_dialog("Delete ci")
    console.fill("name", "ci")
    console.press("Delete the role")
    console.wait_for("No roles yet")


def test_tokens_are_made_with_a_key(console: ConsolePage, server: Server, tenant: ConsoleTenant) -> None:
    console.sign_in(tenant.key)
    console.visit("account/tokens", f"Account {tenant.account}")
    console.fill("key", tenant.key)
    console.fill("prefixes", "shop-")
    console.fill("minutes", "5")
    console.press("Make a token")
    console.wait_for("The token is valid until")
    caller = api(server, console.find("pre").text, "GET", "/caller")
    assert (caller["scopes"], caller["prefixes"]) == (["send"], ["shop-"])
    assert console.find("[name='key']").get_attribute("value") == "", "the key is not kept"


def test_the_audit_log_is_searched(console: ConsolePage, server: Server, tenant: ConsoleTenant) -> None:
    make_queues(server, tenant.account)
    for number in range(60):
        api(server, tenant.key, "PATCH", "/queues/orders", {"tags": {"n": str(number)}})
    console.sign_in(tenant.key)
    console.visit("account/audit", f"Account {tenant.account}")
    wait_until(lambda: len(console.rows()) == 50, "a page of the log is shown")
    assert console.rows()[0][1] == "token.buy", "signing in was the last act"
    console.press("Older")
    wait_until(lambda: len(console.rows()) > 60, "older lines are added")
    console.fill("containing", "queue.create")
    console.press("Search")
    wait_until(lambda: [row[1] for row in console.rows()] == ["queue.create"] * 2, "lines that contain it are shown")
    assert console.rows()[0][5] == "–", "the address of an operator is not shown to a tenant"


def test_keys_without_rights_see_no_account(console: ConsolePage, server: Server, tenant: ConsoleTenant) -> None:
    console.sign_in(make_key(server, tenant.account, role="user").key)
    assert "Account" not in console.find("nav").text
    console.visit("account/keys", f"Account {tenant.account}")
    console.wait_for("Your key does not administer the account")


@pytest.mark.usefixtures("whole_file")
def test_each_act_was_done(coverage: ScriptCoverage) -> None:
    later = ["../charts.js", "label (one) => one.name"]  # needs usage of two days of this month
    assert coverage.uncalled("account", but=later) == ""
