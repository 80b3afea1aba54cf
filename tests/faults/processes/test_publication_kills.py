"""Publications to subscribed queues beside one process that is killed, or loses power."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.tools.process import FaultyServer
from tests.faults.tools.topic_traffic import TopicTraffic
from tests.runner.long import all_but

ARRIVED = 30
"""Publications of each topic that are acknowledged and arrive between two faults."""

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def topics(tmp_path: Path) -> Iterator[FaultyServer]:
    """Make a server with topics that is not started yet."""
    faulty = FaultyServer(tmp_path)
    try:
        yield faulty
    finally:
        faulty.kill()


@pytest.mark.parametrize("how", all_but(["kill"], ["kill", "lose_power"]))
async def test_each_acknowledged_publication_arrives_once_everywhere(topics: FaultyServer, how: str) -> None:
    await topics.start_with()
    async with TopicTraffic(topics, 1).running() as traffic:
        for _ in range(3):
            await traffic.arrived(ARRIVED)
            getattr(topics, how)()
            await topics.start_with()
        await traffic.arrived(ARRIVED)
        await traffic.check()
    # A call under way at the kill is lost; there may be none.
    assert traffic.errors["connection lost"] + traffic.errors["no connection"] > 0
