"""Functions of the console's scripts that tests have called, counted by the browser."""

from collections.abc import Collection
from typing import NamedTuple

from selenium import webdriver

from frontend.console import files
from tests.servers.server import REPOSITORY

PAGE = REPOSITORY / "frontend" / "console" / "page"


class ScriptFunction(NamedTuple):
    """A function of a script below ``frontend/console/page``."""

    script: str
    start: int
    end: int
    name: str

    def __str__(self) -> str:
        text = (PAGE / self.script).read_text()
        line = text.count("\n", 0, self.start) + 1
        return f"{self.script}:{line} {self.name} {' '.join(text[self.start : self.end].split())[:80]}"


class ScriptCoverage:
    """Functions that were called since this was made, over all loads of the page."""

    def __init__(self, browser: webdriver.Chrome) -> None:
        self._browser = browser
        self._called: dict[ScriptFunction, bool] = {}
        browser.execute_cdp_cmd("Profiler.enable", {})
        browser.execute_cdp_cmd("Profiler.startPreciseCoverage", {"callCount": True, "detailed": False})

    def collect(self) -> None:
        """Add what was called since the last time."""
        for script in self._browser.execute_cdp_cmd("Profiler.takePreciseCoverage", {})["result"]:
            path = script["url"].partition(f"{files.PATH}/")[2]
            if not (PAGE / path).is_file():
                continue
            for function in script["functions"]:
                extent = function["ranges"][0]
                one = ScriptFunction(path, extent["startOffset"], extent["endOffset"], function["functionName"])
                self._called[one] = self._called.get(one, False) or extent["count"] > 0

    def uncalled(self, *scripts: str, but: Collection[str] = ()) -> str:
        """Lines that name the functions in these scripts, or folders of scripts, that no test has called.

        Functions within them are not named, and neither are those whose line has one of the texts ``but``.
        """
        wanted = [one for one in PAGE.rglob("*.js") if any(one.is_relative_to(PAGE / script) for script in scripts)]
        names = {str(one.relative_to(PAGE)) for one in wanted}
        missing = names - {one.script for one in self._called}
        uncalled = sorted(one for one, called in self._called.items() if one.script in names and not called)
        lines = [*sorted(missing), *map(str, uncalled)]
        return "\n".join(line for line in lines if not any(text in line for text in but))
