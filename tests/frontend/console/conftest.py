"""A browser, a service and a tenant, for all tests of the console."""

from collections.abc import Iterator

import pytest
from selenium import webdriver

from tests.browser import LOOPBACK_ONLY, ask, emulate, logged, set_width, started_browser
from tests.frontend.console.checking.appearance import THEMES, WIDTHS
from tests.frontend.console.checking.coverage import ScriptCoverage
from tests.frontend.console.pages import ConsolePage, ConsoleTenant, make_tenant
from tests.runner.late import PLUGIN
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
        "WEBHOOK_NETWORKS": "127.0.0.0/8",
        "TRACE_URL": "https://traces.example.com/trace/{trace_id}?from=holdfast",
    }
    server = Server(tmp_path_factory.mktemp("console"), settings)
    server.settings["HOLDFAST_EXTERNAL_URL"] = server.endpoint  # subscriptions of HTTP endpoints need it
    with server:
        yield server


@pytest.fixture
def tenant(server: Server) -> ConsoleTenant:
    return make_tenant(server)


@pytest.fixture(scope="module")
def coverage(browser: webdriver.Chrome) -> ScriptCoverage:
    """Functions of the console's scripts that the tests of a file have called."""
    return ScriptCoverage(browser)


@pytest.fixture
def whole_file(request: pytest.FixtureRequest) -> None:
    """Skip a test that needs all tests before it in its file."""
    named = {name for name in vars(request.module) if name.startswith("test_")}
    run = {
        one.originalname
        for one in request.session.items
        if isinstance(one, pytest.Function) and one.module is request.module
    }
    late = request.config.pluginmanager.get_plugin(PLUGIN)
    if named - run or (late is not None and late.is_late(request.node)):
        pytest.skip("only some tests of the file are run")


@pytest.fixture
def console(browser: webdriver.Chrome, server: Server, coverage: ScriptCoverage) -> Iterator[ConsolePage]:
    """The console, of which the browser reports neither an error nor a violation of the policy."""
    emulate(browser, THEMES[0])
    set_width(browser, WIDTHS[0])
    browser.get("about:blank")  # a page that was left open by another test may still ask a server that is gone
    for log in ("browser", "performance"):
        logged(browser, log)  # discards earlier entries
    console = ConsolePage(browser, server, coverage)
    console.open()
    yield console
    coverage.collect()
    refused = "Failed to load resource: the server responded with a status of"  # tests provoke refusals
    assert [one for one in logged(browser, "browser") if refused not in one] == []
    assert ask(browser, "window.hacked") is None
