"""A node, for the tests that want an ordinary one: with a real disk, or in virtual time."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.backend.nodes import RestartableNode
from tests.simulator.test_found import VirtualNode


@pytest.fixture
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RestartableNode]:
    cluster = RestartableNode(tmp_path, **getattr(request, "param", {}))
    await cluster.start()
    yield cluster
    await cluster.stop()


@pytest.fixture
def service() -> Iterator[VirtualNode]:
    made = VirtualNode()
    yield made
    made.close()
