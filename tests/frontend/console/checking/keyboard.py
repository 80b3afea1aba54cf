"""The keyboard, as the only means to use a page."""

import json

from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from tests.browser import ask
from tests.frontend.console.checking.appearance import check_everywhere, prepare
from tests.servers.waiting import wait_until

ROUNDS_MAX = 20
"""Maximum number of tries to reach an element: lists move meanwhile, and a field for a date has several stops."""


class Keyboard:
    """Moves the focus with the tab key, and checks that it is never lost."""

    def __init__(self, browser: webdriver.Chrome) -> None:
        self.browser = browser

    def type(self, *keys: str) -> None:
        """Press keys, wherever the focus is."""
        webdriver.ActionChains(self.browser).send_keys(*keys).perform()

    def focus_button(self, label: str) -> None:
        """Move the focus to the button or link with this label, once it can be pressed."""
        self._focus(f"keyboard.button({json.dumps(label)})", f"the button {label!r}")

    def focus_field(self, selector: str) -> None:
        """Move the focus to the last such field, of the open dialog if there is one."""
        self._focus(f"keyboard.field({json.dumps(selector)})", f"the field {selector!r}")

    def _focus(self, found: str, what: str) -> None:
        if prepare(self.browser):
            wait_until(lambda: ask(self.browser, "document.activeElement !== document.body"), "the focus is not lost")
        wait_until(lambda: ask(self.browser, f"{found} !== undefined"), f"there is {what}")
        for _ in range(ROUNDS_MAX):
            distance: int = ask(self.browser, f"keyboard.distance({found})")
            if not distance:
                return
            self._tab(distance)
        raise AssertionError(f"{what} is not reached with the tab key")

    def _tab(self, times: int) -> None:
        """Press the tab key so many times; negative: with the shift key."""
        actions = webdriver.ActionChains(self.browser)
        if times < 0:
            actions.key_down(Keys.SHIFT).send_keys(*[Keys.TAB] * -times).key_up(Keys.SHIFT).perform()
        else:
            actions.send_keys(*[Keys.TAB] * times).perform()

    def fill(self, text: str) -> None:
        """Fill in the field that has the focus."""
        if ask(self.browser, "document.activeElement.localName") != "select":
            actions = webdriver.ActionChains(self.browser)
            actions.key_down(Keys.CONTROL).send_keys("a").key_up(Keys.CONTROL).send_keys(
                text or Keys.BACKSPACE
            ).perform()
            return
        options = "[...document.activeElement.options].map(one => one.value)"
        steps = ask(self.browser, options).index(text) - ask(self.browser, "document.activeElement.selectedIndex")
        self.type(*[Keys.DOWN if steps > 0 else Keys.UP] * abs(steps))
        assert ask(self.browser, "document.activeElement.value") == text

    def walk(self) -> None:
        """Check that the tab key reaches all of the page, or of its open dialog, in order, and that this is seen."""
        prepare(self.browser)
        left: int = ask(self.browser, "keyboard.start()") + 1  # once the focus leaves the page for the browser
        for _ in range(ROUNDS_MAX):
            self._tab(left)
            left = ask(self.browser, "keyboard.left()")
            if not left:
                break
        flaws = ask(self.browser, "keyboard.end()")
        assert flaws == [], f"{self.browser.current_url}: {flaws}"

    def open_dialog(self, label: str) -> None:
        """Open a dialog with the button of this label; check its looks and the way of the focus into it and back."""
        dialog = "document.querySelector('dialog[open]')"
        self.focus_button(label)
        self.browser.execute_script("keyboard.opener = document.activeElement")
        self.type(Keys.ENTER)
        within = f"{dialog} && {dialog}.contains(document.activeElement)"
        wait_until(lambda: ask(self.browser, within), f"the dialog of {label!r} has the focus")
        wait_until(lambda: ask(self.browser, "keyboard.field('dialog[open] button') !== undefined"), "it is complete")
        check_everywhere(self.browser)
        self.walk()
        self.type(Keys.ESCAPE)
        wait_until(lambda: not ask(self.browser, f"Boolean({dialog})"), f"the dialog of {label!r} is closed")
        wait_until(lambda: ask(self.browser, "document.activeElement === keyboard.opener"), "the focus is back")
        self.type(Keys.ENTER)
        wait_until(lambda: ask(self.browser, within), f"the dialog of {label!r} has the focus again")
