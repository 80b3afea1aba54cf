"""A backend node on three real Cassandra nodes: acknowledged messages survive their deaths.

The campaign runs all of :mod:`tests.faults.campaign.quorum`; here are one kill and then another, which share a start.
"""

from __future__ import annotations

import re

import pytest

from bench.servers.cassandra_server import QUICK_START, CassandraCluster
from tests.faults.campaign.quorum import Rig, two_are_killed


@pytest.mark.slow
async def test_one_cassandra_node_may_die_and_without_a_second_one_sends_wait_for_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with CassandraCluster(3, heap="256m", java_options=QUICK_START) as cassandra:
        async with Rig(cassandra, "faults", 7) as rig:
            seen = await two_are_killed(rig)
            assert seen.kept, seen
            assert seen.refused > 0
    # The node that took over connected, with strict settings, while one was down.
    assert re.search(r"the node of Cassandra at 127\.0\.0\.\d is away", caplog.text)
