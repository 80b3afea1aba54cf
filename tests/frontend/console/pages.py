"""The console in a browser, tenants and queues for it."""

import json
from typing import Any, NamedTuple

import httpx
from axe_core_python.selenium import Axe
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from tests.browser import ask
from tests.servers.server import Server
from tests.servers.waiting import wait_until

WIDTHS = (360, 800, 1600)
QUEUE_PAGES = ("", "orders", "orders/messages", "orders/configuration", "orders/dead-letters", "orders/alarms")


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

    def type(self, *keys: str) -> None:
        """Press keys, wherever the focus is."""
        webdriver.ActionChains(self.browser).send_keys(*keys).perform()

    def tab_to(self, text: str) -> None:
        """Move the focus with the tab key to the element with this text, or name."""
        focused = "(document.activeElement.innerText || document.activeElement.name || '').trim()"
        for _ in range(40):
            if ask(self.browser, focused) == text:
                return
            self.type(Keys.TAB)
        raise AssertionError(f"{text!r} is not reached with the tab key")

    def press(self, label: str) -> None:
        """Press the button with this label, once it can be pressed; of several, the last: dialogs come last."""

        def enabled() -> list[WebElement]:
            buttons = self.browser.find_elements(By.XPATH, f"//button[normalize-space()='{label}']")
            return [one for one in buttons if one.is_enabled()]

        button = wait_until(enabled, f"the button {label!r} can be pressed")[-1]
        self.browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
        button.click()


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


def check_page(console: ConsolePage, width: int) -> None:
    """Check that the page is not wider than the window, and :func:`check` it."""
    assert ask(console.browser, "document.documentElement.scrollWidth") <= width, console.browser.current_url
    check(console)


def check(console: ConsolePage) -> None:
    """Check the page by the rules of WCAG that a program can check."""
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
    results = Axe().run(console.browser, options={"runOnly": {"type": "tag", "values": tags}})
    found = [(one["id"], [node["html"] for node in one["nodes"]]) for one in results["violations"]]
    assert found == []
    assert len(results["passes"]) > 10
