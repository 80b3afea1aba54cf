"""A server without free file descriptors: calls are refused meanwhile, and nothing is lost or taken for damaged."""

import asyncio

import pytest

from tests.faults.campaign.whole import QUARANTINED
from tests.faults.processes.out_of_files import no_free_files
from tests.faults.tools.client import Client, url_of
from tests.faults.tools.process import FaultyServer
from tests.faults.tools.traffic import WORK, Traffic

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


async def test_calls_are_refused_until_there_are_descriptors_again(server: FaultyServer) -> None:
    await server.start_with()
    pid = server.pid
    async with Traffic(server, 9).running() as traffic:
        await traffic.answered(100)
        with no_free_files(pid):
            stranger = asyncio.create_task(_count(server, url_of(WORK)))  # its connection cannot be accepted
            await traffic.until(lambda: traffic.counts["refused"] > 100, "calls are refused")
            assert not stranger.done()
        await traffic.answered(100)
        await stranger
        await traffic.check()
    assert "Too many open files" in server.log_text()
    assert QUARANTINED not in server.log_text()
    assert server.pid == pid
    assert traffic.counts["in doubt"] == 0, "each call got an answer"


async def _count(server: FaultyServer, url: str) -> None:
    """Make a call over a new connection."""
    client = Client(server)
    await client.call("GetQueueAttributes", QueueUrl=url, AttributeNames=["All"])
    await client.close()
