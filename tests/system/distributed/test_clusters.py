"""Two backend clusters on Cassandra with a manager, as real processes, and an operator's requests."""

from collections import Counter
from collections.abc import Iterator

import pytest

from holdfast.commandline.client import ClientOptions, RestClient
from tests.servers.cassandra_server import CassandraCluster
from tests.servers.local_cluster import LocalCluster
from tests.servers.server import REGION
from tests.servers.waiting import wait_until
from tests.system.distributed.test_distributed import clients, received

QUEUES = 4
POLL_SECONDS = 0.3


@pytest.fixture
def cluster(cassandra: CassandraCluster, keyspace: str) -> Iterator[LocalCluster]:
    made = LocalCluster(
        cassandra=cassandra, metadata=1, backends=1, frontends=1, redis=False, managers=1, keyspace=keyspace[:20]
    )
    made.add_backend("east")
    with made:
        yield made


@pytest.fixture
def operator(cluster: LocalCluster) -> Iterator[RestClient]:
    """REST client as the commands use it."""
    signing = {"AWS_ACCESS_KEY_ID": cluster.key.access_key_id, "AWS_SECRET_ACCESS_KEY": cluster.key.secret}
    client = RestClient(ClientOptions(cluster.endpoints[0], None, None, None, None), {**signing, "AWS_REGION": REGION})
    yield client
    client.close()


def places(operator: RestClient, queue: str) -> list[str]:
    """Return the clusters of the partitions that accept sends."""
    shown = operator.call("GET", "queues", queue, "partitions")["partitions"]
    return [one["cluster"] for one in shown if one["state"] == "open"]


@pytest.mark.long
def test_queues_are_shared_out_split_and_moved_off_a_cluster(cluster: LocalCluster, operator: RestClient) -> None:
    (client,) = clients(cluster)

    def reported() -> bool:
        listed = operator.call("GET", "clusters")["clusters"]
        return len(listed) == 2 and all(one["nodes"] == 1 for one in listed)

    wait_until(reported, "both clusters report", poll_seconds=POLL_SECONDS)
    urls = {f"q{number}": client.create_queue(QueueName=f"q{number}")["QueueUrl"] for number in range(QUEUES)}
    assert {place for name in urls for place in places(operator, name)} == {"local", "east"}
    stored = Counter[str]()

    def store(name: str, text: str) -> None:
        client.send_message(QueueUrl=urls[name], MessageBody=f"{text} {name}")
        stored[f"{text} {name}"] += 1

    for name in urls:
        store(name, "at first")
    operator.call("PUT", "queues", "q0", "partitions", body={"partitions": 3})
    wait_until(lambda: len(places(operator, "q0")) == 3, "q0 is split", poll_seconds=POLL_SECONDS)
    for number in range(12):
        store("q0", f"split {number}")

    operator.call("POST", "clusters", "east", "retire")
    for name in urls:
        store(name, "meanwhile")

    def left() -> bool:
        return all(set(places(operator, name)) == {"local"} for name in urls)

    wait_until(left, "all have left", 60, POLL_SECONDS)
    for name in urls:
        store(name, "at last")
    assert received(client, list(urls.values()), stored.total()) == stored

    def is_logged(what: str) -> bool:
        decisions = operator.call("GET", "cluster")["manager"]["decisions"]
        return any(what in one["text"] for one in decisions)

    wait_until(lambda: is_logged("/q0 is split from 1 to 3 partitions: set by an operator"), "the split is told")
    wait_until(lambda: is_logged("moves off cluster east, which is being retired"), "the moves are told")
