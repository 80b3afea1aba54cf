"""Time limit for long tests, with which a run ends in time on a slow machine, too."""

import time
from collections.abc import Callable
from typing import Final

import pytest

OPTION: Final = "--long-minutes"
PLUGIN: Final = "late-files"


class LateFiles:
    """Plugin that skips the long tests of files that begin after some minutes: all of a file, or none."""

    def __init__(self, minutes: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = clock() + 60 * minutes
        self._minutes = minutes
        self._late: dict[str, bool] = {}
        """Files that have begun; True: after the end."""

    def is_late(self, item: pytest.Item) -> bool:
        """Tell if the long tests of this test's file are skipped."""
        return self._late.setdefault(item.nodeid.partition("::")[0], self._clock() > self._end)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if self.is_late(item) and item.get_closest_marker("long") is not None:
            pytest.skip(f"a long test whose file would have begun after {self._minutes:g} minutes ({OPTION})")
