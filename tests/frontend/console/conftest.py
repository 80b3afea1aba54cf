"""A browser, a service and a tenant, for all tests of the console."""

from collections.abc import Iterator

import pytest
from selenium import webdriver

from tests.browser import LOOPBACK_ONLY, ask, emulate, logged, set_width, started_browser
from tests.frontend.console.pages import ConsolePage, ConsoleTenant, make_tenant
from tests.servers.server import Server


@pytest.fixture(scope="package")
def browser() -> Iterator[webdriver.Chrome]:
    with started_browser(LOOPBACK_ONLY) as started:
        yield started


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = {
        "PURGE_INTERVAL_SECONDS": "0",
        "QUEUE_NAME_HOLD_SECONDS": "0",
        "USAGE": "on",
        "SNS": "true",
        "TRACE_URL": "https://traces.example.com/trace/{trace_id}?from=holdfast",
    }
    with Server(tmp_path_factory.mktemp("console"), settings) as started:
        yield started


@pytest.fixture
def tenant(server: Server) -> ConsoleTenant:
    return make_tenant(server)


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
