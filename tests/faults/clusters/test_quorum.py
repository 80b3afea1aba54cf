"""A backend on three real Cassandra nodes: one may be down, and without a second one calls are refused."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from tests.faults.campaign.distributed import Distributed
from tests.faults.tools.traffic import Traffic


@pytest.mark.long
@pytest.mark.timeout(600)  # three nodes of Cassandra start, and two of them again
async def test_acknowledged_messages_survive_and_nothing_is_acknowledged_without_a_quorum(tmp_path: Path) -> None:
    form = Distributed(tmp_path, metadata=1, backends=1)
    (backend,), (_, one, other) = form.backends, form.cluster.cassandra.nodes
    form.cluster[backend].environment["HOLDFAST_CASSANDRA_STRICT"] = "true"
    with contextlib.closing(form):
        await asyncio.to_thread(form.start)
        async with Traffic(form.endpoint, 7, body_bytes=2000, producers=2, groups=3, open_max=300).running() as traffic:
            await traffic.answered(100)
            await asyncio.to_thread(one.kill)
            await traffic.answered(100)
            await asyncio.to_thread(form.kill, backend)  # with strict settings it starts nevertheless
            assert "the Cassandra node at 127.0.1.2 is down" in form.log_of(backend)
            await traffic.answered(100)
            await asyncio.to_thread(other.kill)
            await traffic.until(
                lambda: "has no quorum, calls are refused" in form.log_of(backend), "the quorum is missed"
            )
            refused = traffic.counts["refused"]
            await traffic.until(lambda: traffic.counts["refused"] > refused + 20, "answers from before have been read")
            sent = traffic.counts["sent"]
            await traffic.until(lambda: traffic.counts["refused"] > refused + 50, "calls are refused")
            assert traffic.counts["sent"] == sent
            await asyncio.to_thread(one.start)
            await traffic.answered(100)
            await traffic.check()
