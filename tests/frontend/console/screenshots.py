"""``python -m tests.frontend.console.screenshots``: make the pictures of docs/console.md, in docs/images."""

import base64
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from selenium import webdriver

from tests.browser import LOOPBACK_ONLY, emulate, set_width, started_browser
from tests.frontend.console.pages import ConsolePage, ConsoleTenant, api, make_key, make_queues
from tests.frontend.console.test_account_in_browser import make_lake
from tests.frontend.console.test_streams_in_browser import make_stream
from tests.frontend.console.test_topics_in_browser import make_topic
from tests.servers.server import REPOSITORY, Server
from tests.servers.waiting import wait_until

FOLDER = REPOSITORY / "docs" / "images"
HEIGHT = 640


class Picture(NamedTuple):
    """A picture of a page."""

    name: str
    address: str
    heading: str
    shows: str
    """Text that the page has once it is complete."""
    scheme: str = "light"
    width: int = 1100
    press: str = ""
    """Button that is pressed first."""


def pictures(account: str) -> list[Picture]:
    return [
        Picture("console-queues", "queues", "Queues", "dead"),
        Picture("console-queue", "queues/orders", "orders", "Messages per second", "dark"),
        Picture("console-messages", "queues/orders/messages", "orders", "3 of 3 messages.", press="Peek"),
        Picture("console-stream", "streams/clicks/groups", "clicks", "readers"),
        Picture("console-topic", "topics/news", "news", "Published\n3"),
        Picture("console-usage", "account/usage", f"Account {account}", "Forecast of the bill", "dark"),
        Picture("console-phone", "queues", "Queues", "dead", "dark", 360),
        Picture("console-service", "operators", "Service", "Shards on their way"),
    ]


@contextmanager
def started() -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder), {"USAGE": "on"}) as server:
        yield server


def fill(server: Server, tenant: ConsoleTenant) -> None:
    """Make queues, streams and usage to be seen."""
    make_queues(server, tenant.account)
    for name in ("invoices", "mail.fifo"):
        attributes = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
        api(server, tenant.key, "POST", "/queues", {"name": name, "attributes": attributes})
    for number in range(3):
        body = json.dumps({"order": 4711 + number, "items": ["book", "pen"]})
        api(server, tenant.key, "POST", "/queues/orders/messages", {"body": body})
    make_stream(server, tenant.key)
    make_topic(server, tenant.key)
    for kind in ("order", "order", "note"):
        message = {"body": "news", "attributes": {"kind": {"type": "String", "value": kind}}}
        api(server, tenant.key, "POST", "/topics/news/messages", message)
    make_lake(server, tenant.account)


def take(browser: webdriver.Chrome, console: ConsolePage, picture: Picture) -> None:
    console.visit(picture.address, picture.heading)
    if picture.press:
        console.press(picture.press)
    wait_until(lambda: picture.shows in console.text, f"{picture.address} is complete")
    browser.execute_script("window.scrollTo(0, 0); document.activeElement.blur()")
    clip = {"x": 0, "y": 0, "width": picture.width, "height": HEIGHT, "scale": 1}
    shot = browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "png", "clip": clip})
    (FOLDER / f"{picture.name}.png").write_bytes(base64.b64decode(shot["data"]))


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with started() as server, started_browser(LOOPBACK_ONLY) as browser:
        account = server.rest("POST", "/v1/tenants", {"name": "Acme"})["account"]
        tenant = make_key(server, account, role="admin")
        operator = make_key(server, server.account, role="operator")
        fill(server, tenant)
        console = ConsolePage(browser, server)
        signed_in = None
        for picture in pictures(account):
            key = operator if picture.address.startswith("operators") else tenant
            emulate(browser, picture.scheme)
            set_width(browser, picture.width)
            if signed_in is not key:
                console.sign_in(key.key)
                signed_in = key
            take(browser, console, picture)


if __name__ == "__main__":
    main()
