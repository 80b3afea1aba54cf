"""A headless Chromium for tests."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
NO_NETWORK = "MAP * ~NOTFOUND"
LOOPBACK_ONLY = "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"


@contextmanager
def started_browser(hosts: str = NO_NETWORK) -> Iterator[webdriver.Chrome]:
    """Start a browser that finds only these hosts."""
    found = next(filter(None, map(shutil.which, _BROWSERS)), None)
    driver = shutil.which("chromedriver")
    assert found, "this test needs Chromium: scripts/need chromium"
    assert driver, "this test needs chromedriver: scripts/need chromedriver"
    options = webdriver.ChromeOptions()
    options.binary_location = found
    for argument in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "window-size=1200,900"):
        options.add_argument(f"--{argument}")
    options.add_argument(f"--host-resolver-rules={hosts}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    made = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield made
    finally:
        made.quit()


def emulate(browser: webdriver.Chrome, scheme: str, media: str = "") -> None:
    """Prefer this colour scheme; ``media``: another than the screen."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})


def set_width(browser: webdriver.Chrome, width: int) -> None:
    """Set the width of the window, in pixels."""
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def logged(browser: webdriver.Chrome, kind: str) -> list[str]:
    """Entries logged since the last call."""
    return [entry["message"] for entry in browser.get_log(kind)]  # type: ignore[no-untyped-call]


def ask(browser: webdriver.Chrome, script: str) -> Any:
    """Value of an expression."""
    return browser.execute_script(f"return {script}")
