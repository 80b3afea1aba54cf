"""The console in a browser, on a real service with several tenants."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest
from axe_core_python.selenium import Axe
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from tests.browser import LOOPBACK_ONLY, ask, emulate, logged, set_width, started_browser
from tests.servers.server import Server
from tests.servers.waiting import wait_until

HOSTILE = (
    "<img src=x onerror='window.hacked=1'><script>window.hacked=2</script>\u202egnp.exe\u2066\u0007{{constructor}}"
)
HOSTILE_SHOWN = HOSTILE.replace("\u202e", "⟨U+202E⟩").replace("\u2066", "⟨U+2066⟩").replace("\u0007", "⟨U+0007⟩")
PAGES = ("", "orders", "orders/messages", "orders/configuration", "orders/dead-letters")


class ConsoleTenant(NamedTuple):
    """A tenant, with an API key of its administrator."""

    account: str
    key_id: str
    key: str


class ConsolePage:
    """The console in a browser, as a user sees it."""

    def __init__(self, browser: webdriver.Chrome, server: Server) -> None:
        self.browser = browser
        self.url = f"{server.endpoint}/console"

    def open(self) -> None:
        """Load the page anew: no session is left."""
        self.browser.get("about:blank")
        self.browser.get(self.url)
        self.wait_for_heading("Sign in to Holdfast")

    def sign_in(self, key: str) -> None:
        self.open()
        self.fill("bearer", key)
        self.press("Sign in")
        self.wait_for_heading("Queues")

    def go(self, page: str) -> None:
        """Go to a page by its address, within the session."""
        self.browser.get(f"{self.url}#/queues{page and f'/{page}'}")
        self.wait_for_heading(page.partition("/")[0] or "Queues")

    # --- what is seen ---

    @property
    def text(self) -> str:
        return str(ask(self.browser, "document.body.innerText"))

    def wait_for(self, text: str) -> None:
        wait_until(lambda: text in self.text, f"the page says {text!r}")

    def wait_for_heading(self, text: str) -> None:
        heading = "document.querySelector('h1') && document.querySelector('h1').innerText"
        wait_until(lambda: ask(self.browser, heading) == text, f"the heading is {text!r}")

    def rows(self) -> list[list[str]]:
        """Texts of the cells of the page's table."""
        script = "[...document.querySelectorAll('tbody tr')].map(row => [...row.children].map(cell => cell.innerText))"
        found: list[list[str]] = ask(self.browser, script)
        return found

    def shown_messages(self) -> list[str]:
        """Texts of bodies and attributes."""
        found: list[str] = ask(
            self.browser, "[...document.querySelectorAll('article pre')].map(one => one.textContent)"
        )
        return found

    def errors(self) -> str:
        """Texts of all errors on the page."""
        return str(ask(self.browser, "[...document.querySelectorAll('.error')].map(one => one.textContent).join('')"))

    # --- what is done ---

    def find(self, selector: str) -> WebElement:
        found = wait_until(lambda: self.browser.find_elements(By.CSS_SELECTOR, selector), f"there is {selector}")
        return found[-1]

    def fill(self, name: str, text: str) -> None:
        """Fill in a field, of the open dialog if there is one."""
        field = self.find(f"[name='{name}']")
        if field.tag_name == "select":
            field.find_element(By.CSS_SELECTOR, f"option[value='{text}']").click()
        else:
            field.send_keys(Keys.CONTROL, "a", Keys.NULL, text or Keys.BACKSPACE)

    def press(self, label: str) -> None:
        """Press the button with this label, once it can be pressed; of several, the last: dialogs come last."""

        def enabled() -> list[WebElement]:
            buttons = self.browser.find_elements(By.XPATH, f"//button[normalize-space()='{label}']")
            return [one for one in buttons if one.is_enabled()]

        button = wait_until(enabled, f"the button {label!r} can be pressed")[-1]
        self.browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
        button.click()


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    with started_browser(LOOPBACK_ONLY) as started:
        yield started


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = {"PURGE_INTERVAL_SECONDS": "0", "QUEUE_NAME_HOLD_SECONDS": "0"}
    with Server(tmp_path_factory.mktemp("console"), settings) as started:
        yield started


@pytest.fixture
def tenant(server: Server) -> ConsoleTenant:
    return make_tenant(server)


def make_tenant(server: Server, **rights: Any) -> ConsoleTenant:
    account = server.rest("POST", "/v1/tenants", {"name": "Acme"})["account"]
    return make_key(server, account, **{"role": "admin", **rights})


def make_key(server: Server, account: str, **rights: Any) -> ConsoleTenant:
    made = server.rest("POST", f"/v1/keys?account={account}", {"name": "boss", "kind": "api", **rights})
    return ConsoleTenant(account, made["id"], made["secret"])


def make_queues(server: Server, account: str) -> None:
    """Make the queue ``orders`` with a message, and its dead-letter queue ``dead``."""
    policy = json.dumps({"deadLetterTargetArn": f"arn:aws:sqs:{server.region}:{account}:dead", "maxReceiveCount": 3})
    queues: list[dict[str, Any]] = [
        {"name": "dead"},
        {"name": "orders", "attributes": {"RedrivePolicy": policy}, "tags": {"team": "shop"}},
    ]
    for queue in queues:
        server.rest("POST", f"/v1/queues?account={account}", queue)


def api(server: Server, key: str, method: str, path: str, body: Any = None) -> Any:
    """Answer of a call with an API key, which succeeds."""
    answer = httpx.request(
        method, f"{server.endpoint}/v1{path}", json=body, headers={"authorization": f"Bearer {key}"}, trust_env=False
    )
    assert answer.is_success, answer.content
    return answer.json() if answer.content else None


@pytest.fixture
def console(browser: webdriver.Chrome, server: Server) -> Iterator[ConsolePage]:
    """The console, of which the browser reports neither an error nor a violation of the policy."""
    emulate(browser, "light")
    set_width(browser, 1200)
    for log in ("browser", "performance"):
        logged(browser, log)  # discards earlier entries
    console = ConsolePage(browser, server)
    console.open()
    yield console
    refused = "Failed to load resource: the server responded with a status of"  # tests provoke refusals
    assert [one for one in logged(browser, "browser") if refused not in one] == []
    assert ask(browser, "window.hacked") is None


# --- signing in ---


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
    console.find("input[value='access']").click()
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


def test_a_revoked_key_ends_the_session(console: ConsolePage, server: Server, tenant: ConsoleTenant) -> None:
    make_queues(server, tenant.account)
    console.sign_in(tenant.key)
    console.wait_for("orders")
    server.rest("DELETE", f"/v1/keys/{tenant.key_id}?account={tenant.account}")
    console.wait_for("Your session has ended. Sign in again.")
    assert "orders" not in console.text, "nothing of the tenant is left on the page"


# --- queues and messages ---


def test_the_way_to_the_first_message(console: ConsolePage, tenant: ConsoleTenant) -> None:
    console.sign_in(tenant.key)
    console.wait_for("No queues yet")
    console.press("Create the first queue")
    console.fill("name", "first")
    console.press("Create")
    console.wait_for_heading("first")
    console.go("first/messages")
    console.press("Look")
    console.wait_for("The queue is empty.")
    console.fill("body", '{"order":12345678901234567890,"lines":[]}')
    console.press("Send")
    console.wait_for("Sent: ")
    console.press("Look")
    console.wait_for("1 of 1 messages.")
    assert console.shown_messages() == ['{\n  "order": 12345678901234567890,\n  "lines": []\n}']
    console.press("Receive")
    console.wait_for("Received: 1")
    console.press("Delete")
    console.wait_for("Deleted: ")
    console.press("Look")
    console.wait_for("The queue is empty.")
    console.go("")
    wait_until(lambda: [row[:4] for row in console.rows()] == [["first", "0", "0", "0"]], "the list shows the queue")


def test_the_keyboard_suffices(console: ConsolePage, tenant: ConsoleTenant) -> None:
    keys = webdriver.ActionChains(console.browser)

    def tab_to(text: str) -> None:
        focused = "(document.activeElement.innerText || document.activeElement.name || '').trim()"
        for _ in range(20):
            if ask(console.browser, focused) == text:
                return
            keys.send_keys(Keys.TAB).perform()
        raise AssertionError(f"{text!r} is not reached with the tab key")

    tab_to("bearer")
    keys.send_keys(tenant.key, Keys.ENTER).perform()
    console.wait_for("No queues yet")
    tab_to("Create the first queue")
    keys.send_keys(Keys.ENTER).perform()
    wait_until(lambda: ask(console.browser, "document.activeElement.name") == "name", "the dialog has the focus")
    keys.send_keys(Keys.ESCAPE).perform()
    wait_until(lambda: not ask(console.browser, "document.querySelector('dialog')"), "the dialog is closed")
    assert ask(console.browser, "document.activeElement.innerText") == "Create the first queue"
    keys.send_keys(Keys.ENTER).perform()
    wait_until(lambda: ask(console.browser, "document.activeElement.name") == "name", "the dialog has the focus")
    keys.send_keys("typed", Keys.ENTER).perform()
    console.wait_for_heading("typed")
    wait_until(lambda: ask(console.browser, "document.activeElement.tagName") == "H1", "the heading has the focus")


def test_the_list_is_searched_and_paged_by_the_service(
    console: ConsolePage, server: Server, tenant: ConsoleTenant
) -> None:
    for number in range(60):
        api(server, tenant.key, "POST", "/queues", {"name": f"q-{number:02}"})
    api(server, tenant.key, "POST", "/queues", {"name": "other"})
    console.sign_in(tenant.key)
    names = [f"q-{number:02}" for number in range(60)]

    def wait_for_names(wanted: list[str]) -> None:
        wait_until(lambda: [row[0] for row in console.rows()] == wanted, f"{len(wanted)} queues are listed")

    wait_for_names(["other", *names[:49]])
    console.press("Next")
    wait_for_names(names[49:])
    console.press("Previous")
    wait_for_names(["other", *names[:49]])
    search = console.find("#search")
    search.send_keys("q-5")
    wait_for_names(names[50:])
    search.send_keys("x")
    console.wait_for("No queue’s name begins like this.")


def test_numbers_are_live(console: ConsolePage, server: Server, tenant: ConsoleTenant) -> None:
    make_queues(server, tenant.account)
    console.sign_in(tenant.key)
    wait_until(lambda: [row[:2] for row in console.rows()] == [["dead", "0"], ["orders", "0"]], "the list is shown")
    assert [row[6] for row in console.rows()] == ["–", "dead"], "dead-letter queues are shown"
    for _ in range(3):
        api(server, tenant.key, "POST", "/queues/orders/messages", {"body": "b"})
    wait_until(lambda: [row[1] for row in console.rows()] == ["0", "3"], "the list shows the messages")
    console.go("orders")
    console.wait_for("Oldest message")
    chart = "[...document.querySelectorAll('canvas')].map(one => one.getAttribute('aria-label'))"
    wait_until(lambda: ask(console.browser, chart), "the charts are there")
    assert ask(console.browser, chart)[0] == "Messages. Now: Available 3, In flight 0, Delayed 0 messages"
    api(server, tenant.key, "POST", "/queues/orders/messages", {"body": "b"})
    wait_until(lambda: ", Delayed 0" in ask(console.browser, chart)[0].replace("Available 4", ""), "the chart follows")
    wait_until(lambda: ask(console.browser, chart)[1].startswith("Messages per second. Now: Sent "), "rates are shown")


def test_configuration_and_tags(console: ConsolePage, server: Server, tenant: ConsoleTenant) -> None:
    make_queues(server, tenant.account)
    console.sign_in(tenant.key)
    console.go("orders/configuration")
    timeout = console.find("[name='VisibilityTimeout']")
    assert (timeout.get_attribute("min"), timeout.get_attribute("max")) == ("0", "43200")
    console.fill("VisibilityTimeout", "77")
    console.press("Save attributes")
    console.wait_for("Saved.")
    console.fill("Policy", "{")
    console.press("Save attributes")
    wait_until(lambda: "olicy" in console.errors(), "the policy is refused")
    console.fill("Policy", "")
    console.press("Add a tag")
    console.fill("key", "stage")
    console.fill("value", "test")
    console.press("Save tags")
    wait_until(
        lambda: api(server, tenant.key, "GET", "/queues/orders")["tags"] == {"team": "shop", "stage": "test"}, "tagged"
    )
    wait_until(lambda: console.find("section[aria-labelledby=tags] .done").text == "Saved.", "it says so")
    console.find("[aria-label='Remove tag 1']").click()
    console.press("Save tags")
    wait_until(lambda: len(api(server, tenant.key, "GET", "/queues/orders")["tags"]) == 1, "a tag is removed")
    shown = api(server, tenant.key, "GET", "/queues/orders")
    assert shown["attributes"]["VisibilityTimeout"] == "77"
    assert "RedrivePolicy" in shown["attributes"], "what was not changed stays"


def test_dead_letters_move_back_and_moves_are_cancelled(
    console: ConsolePage, server: Server, tenant: ConsoleTenant
) -> None:
    make_queues(server, tenant.account)
    for number in range(20):
        api(server, tenant.key, "POST", "/queues/dead/messages", {"body": str(number)})
    console.sign_in(tenant.key)
    console.go("orders/dead-letters")
    console.wait_for("After 3 receives a message is moved to dead.")
    console.go("dead/dead-letters")
    console.fill("destination", "orders")
    console.fill("rate", "1")
    console.press("Start")
    console.wait_for("The move has started.")
    wait_until(lambda: console.rows()[0][1] == "running", "the move is shown")
    console.press("Cancel")
    console.wait_for("The move was cancelled after ")
    wait_until(lambda: console.rows()[0][1] == "cancelled", "the move is over")
    console.fill("rate", "")
    console.press("Start")
    wait_until(lambda: console.rows()[0][1] == "completed", "the rest is moved, and shown")
    counted = api(server, tenant.key, "GET", "/queues?counters=true")["queues"]
    assert [one["messages"]["visible"] for one in counted] == [0, 20]


def test_purge_and_delete_ask_for_the_name(console: ConsolePage, server: Server, tenant: ConsoleTenant) -> None:
    make_queues(server, tenant.account)
    api(server, tenant.key, "POST", "/queues/orders/messages", {"body": "b"})
    console.sign_in(tenant.key)
    console.go("orders")
    console.press("Purge…")
    console.fill("name", "order")
    assert not console.find("dialog button[type=submit]").is_enabled()
    console.fill("name", "orders")
    console.press("Delete all messages")
    console.wait_for("The queue was purged.")
    assert api(server, tenant.key, "GET", "/queues/orders")["messages"]["visible"] == 0
    console.press("Delete…")
    console.fill("name", "orders")
    console.press("Delete the queue")
    console.wait_for_heading("Queues")
    wait_until(lambda: [row[0] for row in console.rows()] == ["dead"], "the queue is gone")


# --- rights, and texts of others ---


def test_a_key_is_offered_what_it_may_do(console: ConsolePage, server: Server, tenant: ConsoleTenant) -> None:
    make_queues(server, tenant.account)
    sender = make_key(server, tenant.account, scopes=["send"])
    console.sign_in(sender.key)
    console.wait_for("Your key cannot list queues")
    console.fill("name", "orders")
    console.press("Open")
    console.wait_for_heading("orders")
    assert "Purge" not in console.text
    assert "Configuration" not in console.text
    console.go("orders/messages")
    headings = "[...document.querySelectorAll('h2')].map(one => one.innerText)"
    wait_until(lambda: ask(console.browser, headings) == ["Send"], "only sending is offered")
    console.fill("body", "hello")
    console.press("Send")
    console.wait_for("Sent: ")


def test_tenants_do_not_see_each_other(console: ConsolePage, server: Server, tenant: ConsoleTenant) -> None:
    make_queues(server, tenant.account)
    other = make_tenant(server)
    api(server, other.key, "POST", "/queues", {"name": "their-own"})
    console.sign_in(other.key)
    wait_until(lambda: [row[0] for row in console.rows()] == ["their-own"], "its own queues are listed")
    assert not console.browser.find_elements(By.ID, "account"), "only operators choose an account"
    for page in PAGES[1:]:
        console.go(page)
        if page.endswith("messages"):
            console.press("Look")
        wait_until(console.errors, "the queue is not there")
        assert "shop" not in console.text


def test_operators_choose_an_account(console: ConsolePage, server: Server, tenant: ConsoleTenant) -> None:
    make_queues(server, tenant.account)
    operator = make_key(server, server.account, role="operator")
    console.sign_in(operator.key)
    console.find("#account").send_keys(Keys.CONTROL, "a", Keys.NULL, tenant.account, Keys.ENTER)
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
    console.press("Look")
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
    console.press("Look")
    wait_until(console.shown_messages, "the body is shown")
    assert len(console.shown_messages()[0]) == 20_000
    console.browser.find_element(By.XPATH, "//button[starts-with(., 'Show all')]").click()
    wait_until(lambda: len(console.shown_messages()[0]) >= len(body), "all of it is shown")


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


# --- looks ---


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_pages_fit_and_pass_the_accessibility_checker(
    console: ConsolePage, server: Server, tenant: ConsoleTenant, scheme: str
) -> None:
    make_queues(server, tenant.account)
    for body in ("text", '{"order": 1}', "AAECAwQFBgc="):
        api(server, tenant.key, "POST", "/queues/orders/messages", {"body": body})
    emulate(console.browser, scheme)
    check(console)
    console.sign_in(tenant.key)
    for width in (360, 800, 1600):
        set_width(console.browser, width)
        for page in PAGES:
            console.go(page)
            console.wait_for("orders")
            if page == "orders/messages":
                console.press("Look")
                console.wait_for("3 of 3 messages.")
            if page == "orders":
                wait_until(lambda: console.browser.find_elements(By.TAG_NAME, "canvas"), "the charts are there")
            if page == "orders/configuration":
                console.wait_for("Visibility timeout")
            assert ask(console.browser, "document.documentElement.scrollWidth") <= width, page
            check(console)
        console.go("")
        console.press("Create a queue")
        check(console)
        console.press("Cancel")
    colour = ask(console.browser, "getComputedStyle(document.body).backgroundColor")
    assert colour == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}[scheme]


def check(console: ConsolePage) -> None:
    """Check the page by the rules of WCAG that a program can check."""
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
    results = Axe().run(console.browser, options={"runOnly": {"type": "tag", "values": tags}})
    found = [(one["id"], [node["html"] for node in one["nodes"]]) for one in results["violations"]]
    assert found == []
    assert len(results["passes"]) > 10
