"""Fixtures: a service over a backend in memory, and one over a real journal."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.behaviour.world import World
from tests.frontend.hooks import Hook, hook
from tests.frontend.service import FrontendService, running


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """One service over the real journal for all tests of a module, each with its own accounts."""
    with World() as made:
        yield made


@pytest.fixture
def listening() -> Iterator[Hook]:
    with hook() as made:
        yield made


@pytest_asyncio.fixture
async def service(tmp_path: Path) -> AsyncIterator[FrontendService]:
    async with running(tmp_path) as made:
        yield made
