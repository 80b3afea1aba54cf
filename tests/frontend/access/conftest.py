from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.behaviour.world import World


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """One service for all tests of a module, each with its own accounts."""
    with World() as made:
        yield made
