"""Seconds that tests take in ``make test-all RECORD=1``, from two tracked files.

The longest files run first (:mod:`tests.runner.schedule`), and ``make test`` leaves out the long tests, except one
short run of each campaign (:mod:`tests.runner.campaigns`).
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.runner.campaigns import SHORT_RUNS

FILE: Final = Path(__file__).with_name("durations.txt")
SECONDS_MIN: Final = 2.0
"""Shorter files are not recorded."""
LONG_FILE: Final = Path(__file__).with_name("long_tests.txt")
LONG_SECONDS: Final = 1.5
"""Tests that take at least this long are left to ``make test-all``."""


def read() -> dict[str, float]:
    """Return the recorded seconds by file."""
    lines = (line.split() for line in FILE.read_text().splitlines())
    return {file: float(seconds) for seconds, file in lines}


def write(seconds: Mapping[str, float]) -> None:
    """Replace the record of files, the longest first."""
    longest = sorted(seconds.items(), key=lambda item: (-item[1], item[0]))
    FILE.write_text("".join(f"{took:.0f} {file}\n" for file, took in longest if took >= SECONDS_MIN))


def long_tests() -> frozenset[str]:
    """Return the ids of the tests that took long."""
    return frozenset(line.split(" ", 1)[1] for line in LONG_FILE.read_text().splitlines())


def write_long_tests(seconds: Mapping[str, float]) -> None:
    """Replace the record of long tests, in the order of their ids."""
    lines = (f"{took:.1f} {test}\n" for test, took in sorted(seconds.items()) if took >= LONG_SECONDS)
    LONG_FILE.write_text("".join(lines))


def mark_long(items: Iterable[pytest.Item]) -> None:
    """Give the long tests the marker ``long``, except the short runs of campaigns."""
    long = long_tests() - SHORT_RUNS
    for item in items:
        if item.nodeid in long:
            item.add_marker(pytest.mark.long)
