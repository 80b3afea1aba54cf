"""Short runs of the scenarios with several processes, and their entries in the book."""

import msgspec
import pytest

from bench.plan import QUICK
from bench.report import Book
from bench.run import BenchRun
from bench.scenarios.clusters import cluster, price, rows, takeover
from bench.servers.cluster_server import HoldfastCluster, HoldfastOnOneNode
from bench.servers.servers import WORK, Holdfast, Nothing
from tests.servers.cassandra_server import CassandraCluster

TINY = msgspec.structs.replace(
    QUICK,
    warm_up_s=0.1,
    java_warm_up_s=0.4,
    measure_s=0.3,
    receive_round=400,
    cluster_queues=8,
    takeover_depth=500,
    takeover_fill_s=5,
    rows_measure_s=0.3,
    limit_s=1,
)


@pytest.fixture
def run() -> BenchRun:
    WORK.mkdir(parents=True, exist_ok=True)
    return BenchRun(TINY, Book())


def figures(run: BenchRun, scenario: str, server: str = "holdfast") -> dict[str, float]:
    return {one.name: one.value for one in run.book.figures if (one.scenario, one.server) == (scenario, server)}


async def test_backends_on_local_journals(run: BenchRun) -> None:
    with Holdfast(cluster.SEVERAL) as server:
        await cluster.backends(run, server)
        await takeover.local(run, server)
    for name in ("backends send", "backends send, many queues", "backends receive"):
        row = run.book.row(name)
        assert row is not None
        assert row.messages > 0
        assert (row.errors, row.first_error) == (0, "")
    assert {name.split()[3] for name in figures(run, "backends send")} == {"supervisor,", "frontend,", "backend,"}
    found = figures(run, "takeover-backends")
    assert 400 <= found["messages waiting"] <= 500
    assert found["served again after kill -9 of the owner"] > 0


async def test_a_cluster_on_cassandra(run: BenchRun, cassandra: CassandraCluster, keyspace: str) -> None:
    with HoldfastCluster(cassandra=cassandra, keyspace=keyspace) as server:
        assert set(server.parts()) == {"frontend", "backend", "metadata", "cassandra", "redis"}
        await takeover.cassandra(run, server)
    found = figures(run, "takeover-cluster", "cluster")
    assert found["messages waiting"] > 0
    assert found["served again after kill -9 of the owner"] > 0


async def test_the_price_of_a_message_by_role(
    run: BenchRun, cassandra: CassandraCluster, keyspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(price, "COUNTS", (2,))
    with HoldfastOnOneNode(cassandra=cassandra, keyspace=keyspace) as server:
        await price.price(run, server)
    for work in ("send", "send batch", "receive"):
        name = f"cluster-price {work}, 2"
        row = run.book.row(name, "cluster-1")
        assert row is not None
        assert (row.errors, row.first_error) == (0, "")
        found = figures(run, name, "cluster-1")
        assert 0 < found["driver: sending"] < found["of it the driver"] < found["backends"]
        parts = ("frontends", "backends", "metadata, Redis", "Cassandra")
        assert found["all"] == pytest.approx(sum(found[part] for part in parts), rel=0.01)
        assert found["messages a row"] > 0
        assert found["fence reads a row"] > 0
    assert figures(run, "cluster-price send batch, 2", "cluster-1")["messages a row"] > 2
    (note,) = run.book.notes
    head, _, *lines = note.splitlines()[2:]
    assert [line.split(" | ")[1] for line in lines] == ["send", "send batch", "receive"]
    assert {line.count("|") for line in lines} == {head.count("|")}


async def test_rows_on_cassandra(run: BenchRun, cassandra: CassandraCluster) -> None:
    server = HoldfastCluster(cassandra=cassandra)  # only its Cassandra is used
    try:
        await rows.rows(run, server)
    finally:
        server.kill()
    found = figures(run, "rows", "cluster")
    assert found["one queue: messages in a row"] >= 1
    assert 0 < found["one queue: the read's part of both"] <= 100
    assert found["shards in use"] == 8


async def test_a_limit_over_three_frontends(run: BenchRun) -> None:
    with Nothing() as server:
        await cluster.limit(run, server)
    assert 0 < figures(run, "limit-frontends")["let through, of all calls"] < 100
