"""The console in a browser, tenants and queues for it."""

import json
from typing import Any, NamedTuple

import httpx
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from tests.browser import ask
from tests.frontend.console.checking.coverage import ScriptCoverage
from tests.frontend.console.checking.keyboard import Keyboard
from tests.servers.server import Server
from tests.servers.waiting import wait_until

QUEUE_PAGES = ("", "orders", "orders/messages", "orders/configuration", "orders/dead-letters", "orders/alarms")


class ConsoleTenant(NamedTuple):
    """A tenant, with an API key of its administrator."""

    account: str
    key_id: str
    key: str


class ConsolePage:
    """The console in a browser, as a user sees it who has a keyboard alone."""

    def __init__(self, browser: webdriver.Chrome, server: Server, coverage: ScriptCoverage | None = None) -> None:
        self.browser = browser
        self._coverage = coverage
        self.url = f"{server.endpoint}/console"
        self.keyboard = Keyboard(browser)
        self.checked: set[str] = set()
        """Titles of dialogs whose looks were checked."""

    def open(self) -> None:
        """Load the page anew: no session is left."""
        if self._coverage:
            self._coverage.collect()  # the browser forgets what a page has called that is left
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

    def visit(self, address: str, heading: str) -> None:
        """Go to a page by its address below the console's, within the session."""
        self.browser.get(f"{self.url}#/{address}")
        self.wait_for_heading(heading)

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

    def answer(self, path: str, content: object) -> None:
        """Have GET requests of a path answered with this in place of the service's answer, until the next load."""
        self.browser.execute_script(
            "const [path, content] = arguments, real = window.fetch;"
            "window.fetch = (url, options) => options.method === 'GET' && url.split('?')[0] === path"
            "  ? Promise.resolve(new Response(content)) : real(url, options)",
            path,
            json.dumps(content),
        )

    def find(self, selector: str) -> WebElement:
        found = wait_until(lambda: self.browser.find_elements(By.CSS_SELECTOR, selector), f"there is {selector}")
        return found[-1]

    def fill(self, name: str, text: str) -> None:
        """Fill in a field, of the open dialog if there is one."""
        self.fill_in(f"[name='{name}']", text)

    def fill_in(self, selector: str, text: str) -> None:
        """Fill in the last such field."""
        self.keyboard.focus_field(selector)
        self.keyboard.fill(text)

    def toggle(self, name: str) -> None:
        """Set or clear a checkbox."""
        self.keyboard.focus_field(f"[name='{name}']")
        self.keyboard.type(Keys.SPACE)

    def press(self, label: str) -> None:
        """Press the button or link with this label, once it can be pressed; of several, the last."""
        self.keyboard.focus_button(label)
        title = ask(self.browser, "document.querySelector('dialog[open] h2')?.innerText")
        assert title is None or title in self.checked, f"open_dialog opens and checks the dialog {title!r}"
        self.keyboard.type(Keys.ENTER)

    def open_dialog(self, label: str) -> None:
        """Press a button that opens a dialog, and check that."""
        self.keyboard.open_dialog(label)
        self.checked.add(ask(self.browser, "document.querySelector('dialog[open] h2').innerText"))


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
