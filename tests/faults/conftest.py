"""Fixtures of the fault tests."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.tools.process import FaultyServer
from tests.servers.server import show_log_on_failure


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FaultyServer]:
    """Make a server that is not started yet, and is removed after the test."""
    faulty = FaultyServer(tmp_path)
    try:
        yield faulty
    finally:
        faulty.kill()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    outcome = yield
    show_log_on_failure(item, outcome.get_result())
