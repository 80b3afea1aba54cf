"""Both themes, all widths, and accessibility of the console's pages."""

import pytest
from selenium.webdriver.common.by import By

from tests.browser import ask, emulate, set_width
from tests.frontend.console.pages import (
    QUEUE_PAGES,
    WIDTHS,
    ConsolePage,
    ConsoleTenant,
    api,
    check,
    check_page,
    make_queues,
)
from tests.servers.server import Server
from tests.servers.waiting import wait_until


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
    for width in WIDTHS:
        set_width(console.browser, width)
        for page in QUEUE_PAGES:
            console.go(page)
            console.wait_for("orders")
            if page == "orders/messages":
                console.press("Peek")
                console.wait_for("3 of 3 messages.")
            if page == "orders":
                wait_until(lambda: console.browser.find_elements(By.TAG_NAME, "canvas"), "the charts are there")
            if page == "orders/configuration":
                console.wait_for("Visibility timeout")
            check_page(console, width)
        console.go("")
        console.press("Create a queue")
        check(console)
        console.press("Cancel")
    colour = ask(console.browser, "getComputedStyle(document.body).backgroundColor")
    assert colour == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}[scheme]
