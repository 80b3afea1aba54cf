"""The scenarios.  A scenario is a coroutine that loads one server and adds its results to the run's book."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from bench.run import BenchRun
from bench.scenarios import (
    backlog,
    console,
    core,
    everything,
    frontends,
    generator,
    hop,
    idle,
    limits,
    observed,
    peers,
    streams,
    topics,
)
from bench.scenarios.clusters import cluster, price, rows, takeover
from bench.servers.servers import ServerProcess

HOLDFAST = frozenset({"holdfast"})
PEERS = frozenset({"rabbitmq", "nats"})
CLUSTER = frozenset({"cluster"})
CLUSTERS = frozenset({"cluster", "cluster-1"})
STREAMS = frozenset({"holdfast-streams", "kafka", "kafka-unsynced"})
BOTH = frozenset({"holdfast", "elasticmq"})


class Scenario(NamedTuple):
    """One measurement.  Scenarios that share a server run one after the other on the same process."""

    name: str
    measure: Callable[[BenchRun, ServerProcess], Awaitable[None]]
    servers: frozenset[str] = BOTH
    shares_server: bool = False
    environment: Mapping[str, str] = MappingProxyType({})
    """Settings of the server, for scenarios that have one to themselves."""
    group: str = "one"
    """``one``: one process of Holdfast, with ElasticMQ; ``peers``: other brokers that write to the disk;
    ``cluster``; ``streams``: brokers of Kafka's protocol.
    """


SCENARIOS = [
    Scenario("generator", generator.ceiling, frozenset({"nothing"})),
    Scenario("trivial", generator.trivial, frozenset({"uvicorn"})),
    Scenario("trivial-half-load", generator.trivial_half_load, frozenset({"uvicorn"})),
    Scenario("hop", hop.hop, frozenset({"nothing"})),
    Scenario("limits", limits.decide, frozenset({"nothing"})),
    Scenario("shared-limit", limits.accuracy, frozenset({"nothing"})),
    Scenario("send", core.send, shares_server=True),
    Scenario("half-load", core.half_load, shares_server=True),
    Scenario("send-batch", core.send_batch, shares_server=True),
    Scenario("receive", core.receive, shares_server=True),
    Scenario("mixed", core.mixed, shares_server=True),
    Scenario("fifo-send", core.fifo_send, shares_server=True),
    Scenario("fifo-receive", core.fifo_receive, shares_server=True),
    Scenario("send-1000-queues", core.send_many_queues, shares_server=True),
    Scenario("send-guarded", everything.send_guarded, HOLDFAST, environment=everything.SETTINGS),
    Scenario("send-observed", observed.send, HOLDFAST),
    Scenario("send-everything", everything.send, HOLDFAST),
    Scenario("send-frontends", frontends.send, HOLDFAST),
    Scenario("publish", topics.publish, HOLDFAST),
    Scenario("backlog-standard", backlog.standard),
    Scenario("backlog-fifo", backlog.fifo, HOLDFAST, environment={"HOLDFAST_DEDUPLICATION_WINDOW_SECONDS": "5"}),
    Scenario("idle-connections", idle.connections, HOLDFAST, environment=idle.MANY_CONNECTIONS),
    Scenario("long-polls", idle.long_polls, environment=idle.MANY_CONNECTIONS),
    Scenario("empty-queues", idle.empty_queues),
    Scenario("console", console.console, HOLDFAST),
    Scenario("peer-publish", peers.publish, PEERS, shares_server=True, group="peers"),
    Scenario("peer-consume", peers.consume, PEERS, shares_server=True, group="peers"),
    Scenario("produce", streams.produce, STREAMS, shares_server=True, group="streams"),
    Scenario("fetch", streams.fetch, STREAMS, shares_server=True, group="streams"),
    Scenario("limit-frontends", cluster.limit, frozenset({"nothing"}), group="cluster"),
    Scenario("backends", cluster.backends, HOLDFAST, environment=cluster.SEVERAL, group="cluster"),
    Scenario("takeover-backends", takeover.local, HOLDFAST, environment=cluster.SEVERAL, group="cluster"),
    Scenario("cluster", cluster.cassandra, CLUSTER, shares_server=True, group="cluster"),
    Scenario("rows", rows.rows, CLUSTER, shares_server=True, group="cluster"),
    Scenario("cluster-price", price.price, CLUSTERS, shares_server=True, group="cluster"),
    Scenario("takeover-cluster", takeover.cassandra, CLUSTER, shares_server=True, group="cluster"),
]
"""All scenarios in the order in which they run."""

SCALED = frozenset({"backlog-standard", "idle-connections", "long-polls", "empty-queues"})
"""Scenarios of the plan of large sizes, :data:`bench.plan.SCALE`."""
