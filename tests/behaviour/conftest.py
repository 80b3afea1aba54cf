from collections.abc import Iterator

import pytest

from tests.behaviour.world import World


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    """Service for all cases: each has accounts of its own."""
    with World() as made:
        yield made
