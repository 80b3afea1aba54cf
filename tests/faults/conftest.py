"""Fixtures of the fault tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.tools.process import FaultyServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FaultyServer]:
    """Make a server that is not started yet, and is removed after the test."""
    faulty = FaultyServer(tmp_path)
    try:
        yield faulty
    finally:
        faulty.kill()
