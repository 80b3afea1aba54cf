"""The operators' pages of the console: clusters, tenants, partitions of queues."""

import re

import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from tests.browser import ask
from tests.frontend.console.checking.coverage import ScriptCoverage
from tests.frontend.console.pages import ConsolePage, ConsoleTenant, api, make_key, make_queues
from tests.servers.server import Server
from tests.servers.several import Several
from tests.servers.waiting import wait_until

PAGES = ("operators", "operators/tenants", "operators/partitions")


@pytest.fixture
def operator(server: Server) -> ConsoleTenant:
    return make_key(server, server.account, role="operator")


def test_a_service_of_one_process_shows_its_node(console: ConsolePage, operator: ConsoleTenant) -> None:
    console.sign_in(operator.key)
    console.visit("operators", "Service")
    wait_until(lambda: [row[2] for row in console.rows()] == ["256"], "its node has all shards")
    assert re.fullmatch(r"\d+\.\d+\.\d+", console.rows()[0][5]), "the release is shown"
    console.wait_for("No takeover, no hand-over and no move is under way.")
    node = console.rows()[0][0].split()[0]
    console.open_dialog("Drain…")
    console.fill("name", node)
    console.press("Drain the node")
    wait_until(lambda: "has no clusters to manage" in console.errors(), "the refusal is shown")


def test_clusters_and_a_manager_of_any_names(console: ConsolePage, server: Server, operator: ConsoleTenant) -> None:
    name = "<img src=x onerror=window.hacked=1>"
    shown = server.rest("GET", "/v1/cluster")
    (cluster,) = shown["clusters"]
    now = cluster["nodes"][0]["since"]
    process = {"name": name, "state": "acting", "since": now, "reported_at": now}
    pin = {"account": server.account, "queue": name, "partitions": 2}
    retiring = {**cluster, "name": f"{name} retiring", "number": 2, "state": "retiring", "nodes": []}
    draining = {**cluster["nodes"][0], "name": name, "address": name, "taken_over_by": [name], "state": "draining"}
    console.sign_in(operator.key)
    console.answer(
        "/v1/cluster",
        {
            **shown,
            "clusters": [{**cluster, "name": name, "nodes": [*cluster["nodes"], draining]}, retiring],
            "manager": {"processes": [process], "decisions": [{"time": now, "text": name}], "pins": [pin]},
            "not_asked": [name],
        },
    )
    console.visit("operators", "Service")
    console.wait_for(f"No answer in time: {name}.")
    assert not console.browser.find_elements("css selector", "main img")
    console.open_dialog(f"Retire… {name}")
    console.fill("name", name)
    console.press("Retire the cluster")
    wait_until(lambda: name in console.errors(), "the service has no such cluster")
    console.press("Cancel")
    console.press(f"Serve again {name} retiring")
    console.press(f"Undrain {name}")


def test_what_is_not_known_is_said(console: ConsolePage, operator: ConsoleTenant) -> None:
    console.sign_in(operator.key)
    console.browser.execute_script(
        """
        const real = window.fetch;
        window.fetch = async (path, asked) => {
            const answer = await real(path, asked);
            if (!path.startsWith("/v1/cluster")) return answer;
            const shown = await answer.json();
            const [cluster] = shown.clusters, [node] = cluster.nodes;
            Object.assign(node, {state: "suspect", cpu: null, storage: null, release: null});
            Object.assign(cluster, {utilisation: null, manager: null, moving: null, unassigned: null});
            Object.assign(shown, {manager: null, damaged: null, not_asked: ["the manager"]});
            return new Response(JSON.stringify(shown));
        };
        """
    )
    console.visit("operators", "Service")
    console.wait_for("has never reported: what is under way in it is not known.")
    assert console.rows()[0][3:6] == ["Not known"] * 3
    facts = dict(
        ask(console.browser, "[...document.querySelectorAll('.facts > div')].map(one => one.innerText.split('\\n'))")
    )
    assert [facts[name] for name in ("Utilisation", "Manager", "Shards on their way", "Shards without an owner")] == (
        ["Not known"] * 4
    )
    assert "Damage of journals is not known here" in console.text
    assert "The out-cluster manager’s state is not known." in console.text
    assert not console.browser.find_elements("css selector", "ul[role=status]"), "a list is not read aloud as a whole"


@pytest.mark.long
def test_a_node_is_drained_and_watched(
    browser: webdriver.Chrome, coverage: ScriptCoverage, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("several")
    with Several(folder, arguments=("--backends", "2"), frontends=1) as several:
        console = ConsolePage(browser, several, coverage)
        console.sign_in(make_key(several, several.account, role="operator").key)
        console.visit("operators", "Service")

        def shards() -> list[str]:
            return [row[2] for row in console.rows() if len(row) == 7]

        wait_until(lambda: sum(map(int, shards())) == 256 and "0" not in shards(), "both nodes have shards")
        drained = console.rows()[0][0].split()[0]
        console.open_dialog(f"Drain… {drained}")
        console.fill("name", drained)
        console.press("Drain the node")
        wait_until(lambda: shards() == ["0", "256"], "the other node has all shards")
        console.press(f"Undrain {drained}")
        wait_until(lambda: "0" not in shards(), "it has shards again")
        coverage.collect()


def test_tenants_are_made_limited_suspended_and_deleted(
    console: ConsolePage, server: Server, operator: ConsoleTenant
) -> None:
    account = f"9{operator.key_id.encode().hex()[-11:]}".translate(str.maketrans("abcdef", "123456"))
    console.sign_in(operator.key)
    console.visit("operators/tenants", "Service")
    console.fill("name", "Fresh")
    console.fill("account", account)
    console.press("Create")
    console.wait_for(f"The tenant {account} was made.")

    def state() -> str:
        return next((row[2] for row in console.rows() if row[0] == account), "")

    console.press(f"Stored {account}")
    console.wait_for(f"The queues of {account} store 0 B.")
    console.open_dialog(f"Limits {account}")
    console.press("Cancel")
    console.press(f"Limits {account}")
    console.fill("send", "50:200")
    console.fill("queues", "7")
    console.press("Save limits")
    wait_until(lambda: not console.browser.find_elements("tag name", "dialog"), "the limits are saved")
    limits = server.rest("GET", f"/v1/tenants/{account}/limits")
    assert (limits["send"], limits["queues"], limits["calls"]) == ({"per_second": 50.0, "burst": 200}, 7, None)
    console.open_dialog(f"Suspend… {account}")
    console.fill("name", account)
    console.press("Suspend the tenant")
    wait_until(lambda: state() == "suspended", "the tenant is suspended")
    console.press(f"Resume {account}")
    wait_until(lambda: state() == "active", "the tenant is active")
    console.open_dialog(f"Delete… {account}")
    console.fill("name", account)
    console.press("Delete the tenant")
    wait_until(lambda: state() == "deleted", "the tenant is deleted")


def test_the_pages_of_a_tenant_are_shown_to_operators(
    console: ConsolePage, server: Server, tenant: ConsoleTenant, operator: ConsoleTenant
) -> None:
    make_queues(server, tenant.account)
    console.sign_in(operator.key)
    console.visit("operators/tenants", "Service")
    console.press(f"Show {tenant.account}")
    console.wait_for_heading(f"Queues of account {tenant.account}")
    console.visit("account/keys", f"Account {tenant.account}")
    wait_until(lambda: [row[1] for row in console.rows()] == ["boss"], "the tenant's keys are shown")
    console.visit("operators/partitions", "Service")
    console.fill("queue", "orders")
    console.keyboard.type(Keys.ENTER)
    console.wait_for("The queue has 1 partitions.")
    console.fill("partitions", "1")
    console.press("Set")
    wait_until(console.errors, "a service of one process has no manager")
    console.answer("/v1/queues/orders/partitions", {"partitions": [], "pinned": 2})
    console.press("Let the manager decide")
    wait_until(console.errors, "a service of one process has no manager")


def test_tenants_see_no_pages_of_operators(console: ConsolePage, server: Server, tenant: ConsoleTenant) -> None:
    console.sign_in(tenant.key)
    assert "Operators" not in console.find("nav").text
    for page in PAGES:
        console.visit(page, "Service")
        console.wait_for("These pages are for operators of the service.")
    assert api(server, tenant.key, "GET", "/caller")["role"] == "admin"


@pytest.mark.usefixtures("whole_file")
def test_each_act_was_done(coverage: ScriptCoverage) -> None:
    later = ["state.data.next]", "slice(0, -1)", "turn (pages)"]  # the next hundred tenants
    assert coverage.uncalled("operators", but=later) == ""
