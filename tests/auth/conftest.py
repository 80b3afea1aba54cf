"""Fixtures: a store with tenants, and objects over it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.auth.clock import Clock
from tests.auth.credential_world import CredentialWorld, credential_world


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[CredentialWorld]:
    async with credential_world(tmp_path) as world:
        yield world


@pytest.fixture
def clock() -> Clock:
    return Clock()
