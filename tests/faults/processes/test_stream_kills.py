"""Idempotent producers and a consumer group of Kafka's protocol beside one process that is killed, or loses power."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.tools.process import FaultyServer
from tests.faults.tools.stream_traffic import SESSION_MS, StreamEndpoint, StreamTraffic
from tests.servers.server import free_port

RECORDS = 15
"""Records of each partition that are acknowledged, read and committed between two faults."""
SHORT_SESSION_MS = 6_000
"""Session timeout of members in the test of their ends: the group waits so long for a killed one."""

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture
def streams(tmp_path: Path) -> Iterator[FaultyServer]:
    """Make a server with Kafka's protocol that is not started yet."""
    faulty = FaultyServer(tmp_path, {"KAFKA_PORT": str(free_port())})
    try:
        yield faulty
    finally:
        faulty.kill()


def traffic_of(server: FaultyServer, folder: Path, *, session_ms: int = SESSION_MS) -> StreamTraffic:
    port = int(server.settings["HOLDFAST_KAFKA_PORT"])
    endpoint = StreamEndpoint(port, server.access_key_id, server.secret_access_key)
    return StreamTraffic(endpoint, folder / "clients", session_ms=session_ms)


@pytest.mark.parametrize("how", ["kill", "lose_power"])
async def test_nothing_is_lost_or_stored_twice_and_the_group_goes_on(
    streams: FaultyServer, how: str, tmp_path: Path
) -> None:
    await streams.start_with()
    traffic = traffic_of(streams, tmp_path)
    async with traffic.running():
        for _ in range(3):
            await traffic.committed(RECORDS)
            getattr(streams, how)()
            await streams.start_with()
        await traffic.committed(RECORDS)
        await traffic.check()
    rebalances = len({(start.assignment.member, start.assignment.number) for start in traffic.history.starts})
    assert rebalances <= 2 * 2, "a restart of the server is no reason for a rebalance"


async def test_a_group_goes_on_when_members_end_or_stand_still(streams: FaultyServer, tmp_path: Path) -> None:
    await streams.start_with()
    traffic = traffic_of(streams, tmp_path, session_ms=SHORT_SESSION_MS)
    async with traffic.running():
        await traffic.committed(RECORDS)
        await traffic.kill_member()
        await traffic.committed(RECORDS)
        await traffic.add_member()
        await traffic.committed(RECORDS)
        traffic.pause_member()  # until the group has given its partitions to the other one, and beyond a restart
        await traffic.committed(RECORDS)
        streams.kill()
        await streams.start_with()
        await traffic.committed(RECORDS)
        traffic.resume_member()
        await traffic.committed(RECORDS)
        await traffic.check()
