"""The directory of backend clusters in one process."""

import asyncio
from functools import partial
from typing import Any

import msgspec
import pytest

from metadata_service.clusters.directory import GONE_SECONDS, ClusterDirectory, change_cluster
from metadata_service.clusters.policy import SILENT_SECONDS, NoCluster
from metadata_service.models import ClusterReport, ReportedNode
from metadata_service.sqlite.store import SQLiteStore
from tests.metadata_service.faulty import Faults
from tests.servers.waiting import until


class _Clock:
    def __init__(self) -> None:
        self.now = 500.0

    def __call__(self) -> float:
        return self.now


WALL_S = 1_800_000_000.0


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


@pytest.fixture
def fleet(store: SQLiteStore, clock: _Clock) -> ClusterDirectory:
    return ClusterDirectory(store.clusters, clock=clock, wall=lambda: WALL_S)


def report(cluster: int, count: int = 1, utilisation: float = 0.1, **more: Any) -> ClusterReport:
    return ClusterReport(cluster, 1, count, **{"time_ms": int(WALL_S * 1000), "utilisation": utilisation, **more})


async def test_without_clusters_all_queues_go_to_the_first(fleet: ClusterDirectory) -> None:
    await fleet.refresh()
    assert fleet.assign("a/b") == 0
    assert fleet.known() == []
    assert fleet.nodes(0) == {}


async def test_the_only_cluster_takes_all_whatever_it_reports(
    store: SQLiteStore, fleet: ClusterDirectory, clock: _Clock
) -> None:
    await store.clusters.register_cluster("east")
    await fleet.refresh()
    assert fleet.assign("a/b") == 1
    await store.clusters.report_cluster(report(1, utilisation=0.99))
    clock.now += 1000
    await fleet.refresh()
    assert fleet.assign("a/b") == 1


async def test_a_cluster_that_was_emptied_and_turned_off_is_not_among_the_clusters(
    store: SQLiteStore, fleet: ClusterDirectory, clock: _Clock
) -> None:
    def names() -> list[str]:
        return [known.cluster.name for known in fleet.known()]

    for name in ("local", "east", "west"):
        await store.clusters.report_cluster(report((await store.clusters.register_cluster(name)).number))
    await fleet.refresh()
    for name, emptied in (("east", True), ("west", False)):
        await change_cluster(store.clusters, name, partial(msgspec.structs.replace, state="retiring", emptied=emptied))
    await store.clusters.report_cluster(report(0, 2))
    await fleet.refresh()
    assert names() == ["local", "east", "west"]
    clock.now += GONE_SECONDS + 1
    await fleet.refresh()
    assert names() == ["local", "west"]
    gone = fleet.numbered(1)
    assert gone is not None
    assert gone.cluster.name == "east", "ids still name it"
    await store.clusters.report_cluster(report(1, 2))  # it is started again
    await fleet.refresh()
    assert names() == ["local", "east", "west"]


async def test_several_clusters_share_new_queues(store: SQLiteStore, fleet: ClusterDirectory, clock: _Clock) -> None:
    for name in ("local", "east", "west"):
        await store.clusters.report_cluster(report((await store.clusters.register_cluster(name)).number))
    await fleet.refresh()
    assert {fleet.assign(f"a/{number}") for number in range(50)} == {0, 1, 2}
    await store.clusters.report_cluster(report(2, 2, utilisation=0.9))
    await fleet.refresh()
    assert {fleet.assign(f"a/{number}") for number in range(50)} == {0, 1}
    await change_cluster(store.clusters, "local", lambda cluster: msgspec.structs.replace(cluster, state="retiring"))
    await fleet.refresh()
    assert {fleet.assign(f"a/{number}") for number in range(50)} == {1}
    clock.now += SILENT_SECONDS + 1
    with pytest.raises(NoCluster, match="east has not reported for 16 s; local is being retired; west"):
        fleet.assign("a/b")
    await store.clusters.report_cluster(report(1, 2))
    await fleet.refresh()
    assert fleet.assign("a/b") == 1


async def test_the_age_of_a_report_counts_from_when_it_was_seen(
    store: SQLiteStore, fleet: ClusterDirectory, clock: _Clock
) -> None:
    await store.clusters.register_cluster("east")
    await fleet.refresh()
    (east,) = fleet.known()
    assert east.report is None
    assert fleet.silent_s(east) == float("inf")
    await store.clusters.report_cluster(report(1, time_ms=int(WALL_S * 1000) - 7000))
    await fleet.refresh()
    (east,) = fleet.known()
    assert fleet.silent_s(east) == 7.0  # at the first poll nothing else is known
    clock.now += 2
    await fleet.refresh()
    assert fleet.silent_s(fleet.known()[0]) == 9.0
    await store.clusters.report_cluster(
        report(1, 2, time_ms=int(WALL_S * 1000) - 3_600_000)
    )  # from a clock that is an hour off
    await fleet.refresh()
    (east,) = fleet.known()
    assert fleet.silent_s(east) == 0.0
    assert east == fleet.numbered(1)


async def test_the_nodes_of_a_cluster_are_those_that_live(store: SQLiteStore, fleet: ClusterDirectory) -> None:
    await store.clusters.register_cluster("east")
    nodes = (
        ReportedNode("b1", "10.0.0.1:9400"),
        ReportedNode("b2", "10.0.0.2:9400", live=False),
        ReportedNode("b3", ""),
    )
    await store.clusters.report_cluster(report(1, nodes=nodes))
    await fleet.refresh()
    assert fleet.nodes(1) == {"b1": "10.0.0.1:9400"}


async def test_it_looks_by_itself_and_lives_through_an_outage(
    store: SQLiteStore, caplog: pytest.LogCaptureFixture
) -> None:
    faults = Faults(store)
    fleet = ClusterDirectory(faults.store.clusters, poll_seconds=0.01)
    await store.clusters.register_cluster("east")
    await fleet.start()
    faults.fail("backend_clusters")
    await until(lambda: "cannot be refreshed" in caplog.text)
    assert [known.cluster.name for known in fleet.known()] == ["east"]
    await store.clusters.register_cluster("west")
    faults.heal()
    await until(lambda: len(fleet.known()) == 2)
    await fleet.close()


async def test_a_change_of_a_cluster_is_made_again_when_another_was_faster(store: SQLiteStore) -> None:
    assert await change_cluster(store.clusters, "east", lambda cluster: cluster) is None
    await store.clusters.register_cluster("east")

    def add(node: str) -> Any:
        return lambda cluster: msgspec.structs.replace(cluster, drained=(*cluster.drained, node))

    await asyncio.gather(*(change_cluster(store.clusters, "east", add(f"b{number}")) for number in range(5)))
    (east,) = await store.clusters.backend_clusters()
    assert sorted(east.drained) == ["b0", "b1", "b2", "b3", "b4"]
    assert await change_cluster(store.clusters, "east", lambda cluster: cluster) == east
