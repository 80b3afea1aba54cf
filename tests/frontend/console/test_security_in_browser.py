"""Rights of keys, texts of others, and attacks on the console."""

import json

import httpx
import pytest
from selenium.webdriver.common.by import By

from tests.browser import ask, logged
from tests.frontend.console.pages import (
    QUEUE_PAGES,
    ConsolePage,
    ConsoleTenant,
    api,
    make_key,
    make_queues,
    make_tenant,
)
from tests.servers.server import Server
from tests.servers.waiting import wait_until

HOSTILE = (
    "<img src=x onerror='window.hacked=1'><script>window.hacked=2</script>\u202egnp.exe\u2066\u0007{{constructor}}"
)
HOSTILE_SHOWN = HOSTILE.replace("\u202e", "⟨U+202E⟩").replace("\u2066", "⟨U+2066⟩").replace("\u0007", "⟨U+0007⟩")


def test_tenants_do_not_see_each_other(console: ConsolePage, server: Server, tenant: ConsoleTenant) -> None:
    make_queues(server, tenant.account)
    other = make_tenant(server)
    api(server, other.key, "POST", "/queues", {"name": "their-own"})
    console.sign_in(other.key)
    wait_until(lambda: [row[0] for row in console.rows()] == ["their-own"], "its own queues are listed")
    assert not console.browser.find_elements(By.ID, "account"), "only operators choose an account"
    for page in QUEUE_PAGES[1:]:
        console.go(page)
        if page.endswith("messages"):
            console.press("Peek")
        wait_until(console.errors, "the queue is not there")
        assert "shop" not in console.text


def test_operators_choose_an_account(console: ConsolePage, server: Server, tenant: ConsoleTenant) -> None:
    make_queues(server, tenant.account)
    operator = make_key(server, server.account, role="operator")
    console.sign_in(operator.key)
    console.fill_in("#account", tenant.account)
    console.press("Show")
    console.wait_for_heading(f"Queues of account {tenant.account}")
    wait_until(lambda: [row[0] for row in console.rows()] == ["dead", "orders"], "the tenant's queues are listed")
    console.go("orders/configuration")
    console.wait_for("Visibility timeout")


def test_texts_of_others_are_shown_and_never_run(console: ConsolePage, server: Server, tenant: ConsoleTenant) -> None:
    make_queues(server, tenant.account)
    api(server, tenant.key, "POST", "/queues/orders/messages", {"body": HOSTILE.replace("\u0007", "")})
    api(
        server,
        tenant.key,
        "POST",
        "/queues/orders/messages",
        {
            "body": json.dumps({HOSTILE: HOSTILE}, ensure_ascii=False),
            "attributes": {"a": {"type": "String", "value": "v"}},
        },
    )
    console.sign_in(tenant.key)
    console.go("orders/messages")
    console.press("Peek")
    console.wait_for("2 of 2 messages.")
    bodies = console.shown_messages()
    assert bodies[0] == HOSTILE_SHOWN.replace("⟨U+0007⟩", "")
    assert HOSTILE_SHOWN.replace("⟨U+0007⟩", "\\u0007") in bodies[1]
    assert not console.browser.find_elements(By.CSS_SELECTOR, "article img, article script, article b")
    console.browser.get(f"{console.url}#/queues/%3Cimg%20src%3Dx%20onerror%3D'window.hacked%3D1'%3E/messages")
    console.wait_for_heading("<img src=x onerror='window.hacked=1'>")
    console.browser.get(f"{console.url}#/queues/%E0%A4%A/messages")
    console.wait_for_heading("%E0%A4%A")
    assert ask(console.browser, "window.hacked") is None


@pytest.mark.parametrize(
    "part", ["x", *(pytest.param(one, marks=pytest.mark.long) for one in ("[", '{"a":', "\u202e", "AAAA"))]
)
def test_a_body_of_a_mebibyte_is_shown(console: ConsolePage, server: Server, tenant: ConsoleTenant, part: str) -> None:
    make_queues(server, tenant.account)
    body = part * (1_048_576 // len(part.encode()))
    api(server, tenant.key, "POST", "/queues/orders/messages", {"body": body})
    console.sign_in(tenant.key)
    console.go("orders/messages")
    console.press("Peek")
    wait_until(console.shown_messages, "the body is shown")
    assert len(console.shown_messages()[0]) == 20_000
    console.find(".body > button:last-child").click()
    wait_until(lambda: len(console.shown_messages()[0]) >= len(body), "all of it is shown")


def test_names_of_others_are_shown_and_never_run(console: ConsolePage, server: Server) -> None:
    name = "<img src=x onerror=window.hacked=1>"
    account = server.rest("POST", "/v1/tenants", {"name": name})["account"]
    tenant = make_key(server, account, role="admin")
    make_queues(server, account)
    stream = {"value": HOSTILE, "key": HOSTILE, "headers": [{"name": HOSTILE, "value": HOSTILE}]}
    api(server, tenant.key, "POST", "/streams", {"name": "clicks"})
    api(server, tenant.key, "POST", "/streams/clicks/records", {"records": [stream]})
    api(server, tenant.key, "POST", "/consumer-groups/%3Cb%3Egroup/commit", {"stream": "clicks", "position": "0:1"})
    console.sign_in(tenant.key)
    assert name in console.text
    console.visit("streams/clicks/records", "clicks")
    console.press("Peek")
    wait_until(console.shown_messages, "the record is shown")
    assert console.shown_messages() == [HOSTILE_SHOWN]
    assert console.text.count("⟨U+202E⟩") == 4, "key, value, and the name and value of the header"
    console.visit("groups/%3Cb%3Egroup", "<b>group")
    api(server, tenant.key, "POST", "/topics", {"name": "news"})
    api(server, tenant.key, "PATCH", "/topics/news", {"attributes": {"DisplayName": name}})
    for path, body in (
        ("topics", {"name": "other", "tags": {name: name}}),
        ("topics/news/subscriptions", {"protocol": "http", "endpoint": f"http://127.0.0.1:1/?{HOSTILE}"}),
        ("keys", {"name": name, "kind": "api"}),
    ):
        url, headers = f"{server.endpoint}/v1/{path}", {"authorization": f"Bearer {tenant.key}"}
        refused = httpx.post(url, json=body, headers=headers, trust_env=False)
        assert refused.status_code == 400, f"{path}: these have plain names alone"
    console.visit("topics/news/settings", "news")
    wait_until(lambda: console.find("[name=DisplayName]").get_attribute("value") == name, "it is shown as it is")
    console.visit("account/audit", f"Account {account}")
    wait_until(lambda: any(name in "".join(row) for row in console.rows()), "the refused key is in the log")
    operator = make_key(server, server.account, role="operator")
    console.sign_in(operator.key)
    console.visit("operators/tenants", "Service")
    console.wait_for(name)
    console.visit("account/audit", f"Account {server.account}")
    wait_until(console.rows, "the log is shown")
    assert not console.browser.find_elements("css selector", "main img, main b, main script")


def test_other_pages_cannot_use_a_session(console: ConsolePage, server: Server, tenant: ConsoleTenant) -> None:
    """The browser sends nothing by itself that would authenticate a request forged by another page."""
    console.sign_in(tenant.key)
    answer = console.browser.execute_async_script(
        "const done = arguments[0]; fetch('/v1/queues', {method: 'POST', credentials: 'include', body: '{}'})"
        ".then(answer => done(answer.status), error => done(String(error)))"
    )
    assert answer in (400, 401, 403), "without the header of the session"
    assert api(server, tenant.key, "GET", "/queues")["queues"] == []
    other = httpx.options(
        f"{server.endpoint}/v1/queues",
        headers={"origin": "https://example.com", "access-control-request-method": "POST"},
        trust_env=False,
    )
    assert not [name for name in other.headers if name.startswith("access-control-")], "no other origin is let in"
    refused = console.browser.execute_script(
        "try { document.createElement('script').textContent = 'window.hacked = 1' } catch (error) { return error.name }"
    )
    assert refused == "TypeError", "texts do not become scripts"
    wait_until(lambda: "TrustedScript" in "".join(logged(console.browser, "browser")), "the browser reports it")
    assert ask(console.browser, "window.hacked") is None


def test_no_page_can_frame_it(console: ConsolePage, server: Server) -> None:
    """Clickjacking needs a frame; not even a page of this origin may have the console in one."""
    console.browser.get(f"{server.endpoint}/docs")
    console.browser.execute_script(
        "const frame = document.createElement('iframe'); frame.src = '/console'; document.body.append(frame)"
    )
    said = "".join(wait_until(lambda: logged(console.browser, "browser"), "the browser reports the frame"))
    assert "frame-ancestors" in said or "X-Frame-Options" in said
    console.browser.switch_to.frame(console.find("iframe"))
    try:
        wait_until(lambda: "chrome-error" in ask(console.browser, "location.href"), "the frame shows an error")
    finally:
        console.browser.switch_to.default_content()
    logged(console.browser, "browser")
