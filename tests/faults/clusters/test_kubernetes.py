"""Upgrade of the chart's release, with clients behind a balancer: no call fails.

The chart's command before an upgrade runs first.  Then all parts are upgraded at the same time, each pod by pod, as
Kubernetes does by the chart's hooks and probes.  The pods start with the previous release, if this clone has it
(:mod:`tests.servers.releases`), so that both releases run side by side for a while; else with this one.
"""

import asyncio
import contextlib
import re
from pathlib import Path

import pytest

from tests.faults.campaign.distributed import Doors
from tests.faults.campaign.kubernetes import ProbedPod, ServiceBalancer, read_chart, roll_out
from tests.faults.tools.traffic import Traffic
from tests.servers.cassandra_server import CassandraCluster, free_ports
from tests.servers.local_cluster import HOST, LocalCluster, Process
from tests.servers.releases import before, has_before
from tests.servers.server import REPOSITORY

PRE_STOP_SECONDS = 2
"""Pause of the preStop hook: shorter than the chart's own, set by the chart's value."""
CASSANDRA_IS_SLOW = re.compile(r"the journal has no quorum now|: ReadTimeout")
"""Reasons of frontends for refusals when Cassandra does not answer for 2 s, which a busy machine can cause: the journal
stalls; and a metadata node is slow while the other is replaced, where the release before gave it no more time."""


def refusals(frontends: list[Process]) -> list[str]:
    """Lines of the frontends' logs, which have to be at level debug, of the calls that were refused with 503."""
    return [line for each in frontends for line in each.log().splitlines() if " 503 " in line]


@pytest.mark.long
async def test_no_call_fails_when_pods_are_replaced(cassandra: CassandraCluster, keyspace: str, tmp_path: Path) -> None:
    chart, before_upgrade = read_chart("--set", f"frontend.preStopSeconds={PRE_STOP_SECONDS}")
    assert set(chart) == {"frontend", "backend", "metadata"}
    cluster = LocalCluster(cassandra=cassandra, metadata=2, backends=2, frontends=2, keyspace=keyspace[:20])
    pods: dict[str, list[ProbedPod]] = {}
    for component, of in chart.items():
        pods[component] = []
        for process in cluster.of(component):
            port = int(process.address.rpartition(":")[2])
            if of.ready_port == "health":
                (port,) = free_ports([HOST], 1)
                process.environment["HOLDFAST_HEALTH_LISTEN"] = f"{HOST}:{port}"
            pods[component].append(ProbedPod(process, of, port))
    for process in cluster.of("frontend"):
        process.environment["HOLDFAST_LOG_LEVEL"] = "debug"
    if has_before():
        code = before(tmp_path / "before")
        for process in cluster:
            process.environment["PYTHONPATH"] = str(code)
            process.environment.pop("HOLDFAST_METADATA_INVALIDATION", None)  # that release does not know the name
    with contextlib.closing(cluster):
        await asyncio.to_thread(cluster.start)
        for process in cluster:
            process.environment |= {"PYTHONPATH": str(REPOSITORY), "HOLDFAST_SCHEMA_MIGRATION": "wait"}
        async with ServiceBalancer([pod.ready_at for pod in pods["frontend"]]) as service:
            doors = Doors([service.port], cluster.key.access_key_id, cluster.key.secret)
            async with Traffic(doors, 21, body_bytes=2000, producers=1, groups=3, open_max=100).running() as traffic:
                await traffic.answered(100)
                pids = {process.name: process.pid for process in cluster}
                done = await asyncio.to_thread(cluster.command, *before_upgrade)
                assert done.returncode == 0, done.stderr
                replaced = asyncio.gather(
                    roll_out(pods["metadata"]), roll_out(pods["backend"]), roll_out(pods["frontend"], service)
                )
                await traffic.until(replaced.done, "all pods have been replaced", 100)
                replaced.result()
                await traffic.answered(100)
                await traffic.check()
        reasons = refusals(cluster.of("frontend"))
        new_pids = {process.name: process.pid for process in cluster}
    assert pids.keys() == new_pids.keys()
    assert not pids.items() & new_pids.items()
    is_excused = all(CASSANDRA_IS_SLOW.search(line) for line in reasons)
    traffic.check_no_call_failed(refusals_excused=len(reasons) if is_excused else 0)
