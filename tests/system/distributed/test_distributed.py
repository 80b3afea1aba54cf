"""The service in parts on Cassandra, as on many machines: real processes, which use TLS between each other."""

import json
import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest
from botocore.config import Config
from kafka import KafkaConsumer, OffsetAndMetadata, TopicPartition
from kafka.admin import KafkaAdminClient

from tests.frontend.kafka.kafka_access import KafkaAccess
from tests.holdfast.pairs import make_cluster_files
from tests.holdfast.queues import bodies, redrive
from tests.servers.cassandra_server import CassandraCluster
from tests.servers.local_cluster import LocalCluster
from tests.servers.server import REGION, aws_client, free_port
from tests.servers.started import is_ready
from tests.servers.waiting import wait_until

QUEUES = 6
"""Number of queues; with their dead-letter queues twice as many, over both backends."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, cassandra: CassandraCluster) -> Iterator[LocalCluster]:
    """Cluster whose processes a test may end without restarting them."""
    made = LocalCluster(
        cassandra=cassandra,
        metadata=1,
        backends=2,
        frontends=2,
        managers=0,
        settings=make_cluster_files(tmp_path_factory.mktemp("certificates")),
        keyspace=f"test_{secrets.token_hex(6)}",
    )
    with made:
        yield made


@pytest.fixture
def whole(cluster: LocalCluster) -> LocalCluster:
    """Cluster with all of its processes running."""
    cluster.start_processes()
    return cluster


def clients(cluster: LocalCluster) -> list[Any]:
    """Return a client for each frontend, with the SDK's maximum of retries."""
    patient = Config(retries={"mode": "standard", "total_max_attempts": 10}, read_timeout=40)
    key = cluster.key
    return [
        aws_client(
            "sqs",
            endpoint_url=endpoint,
            region_name=REGION,
            aws_access_key_id=key.access_key_id,
            aws_secret_access_key=key.secret,
            config=patient,
        )
        for endpoint in cluster.endpoints
    ]


def received(client: Any, urls: list[str], wanted: int) -> Counter[str]:
    """Receive and delete this many messages; returns their bodies."""
    found: Counter[str] = Counter()

    def all_there() -> bool:
        for url in urls:
            found.update(bodies(client, url))
        return found.total() >= wanted

    wait_until(all_there, f"{wanted} messages are received")
    return found


def test_a_name_is_for_one_backend(whole: LocalCluster) -> None:
    second = whole.command("backend", "--backend-node", "b2", "--listen", f"127.0.0.1:{free_port()}")
    assert second.returncode == 1
    assert "another process is backend b2 of cluster local, and is live: give each" in second.stderr
    assert f"AWS_SECRET_ACCESS_KEY={whole.key.secret}" in whole.command("key", "show").stdout


def test_the_doctor_reports_each_fault(whole: LocalCluster) -> None:
    """A Cassandra on one machine is a warning, a readable key is repaired, a missing backend is named."""

    def findings(*more: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(whole.command("doctor", "--json", *more).stdout)["findings"]
        return found

    mended = [one["what"] for one in findings("--mend", "--yes") if one["mended"]]
    assert len(mended) == 1
    assert "others may read or write the private key" in mended[0]
    wait_until(lambda: not [one for one in findings() if one["level"] == "wrong"], "nothing is wrong")
    assert len([one for one in findings() if one["level"] == "warning" and "1 replica" in one["what"]]) == 2
    whole["b2"].kill()
    wait_until(lambda: [one for one in findings() if "the node b2 of local" in one["what"]], "it is missed")


def test_the_health_of_a_backend_is_seen_without_a_secret(whole: LocalCluster) -> None:
    port, name = free_port(), "b2"
    health = f"127.0.0.1:{port}"
    assert whole[name].stop() == 0
    whole[name].environment["HOLDFAST_HEALTH_LISTEN"] = health
    whole[name].start()

    wait_until(lambda: is_ready(port), "the backend is ready")
    assert httpx.get(f"http://{health}/health/live").status_code == 200


def test_dead_letters_cross_nodes_and_nothing_is_lost_with_one(whole: LocalCluster) -> None:
    one, other = clients(whole)
    dead = [one.create_queue(QueueName=f"dead-{number}")["QueueUrl"] for number in range(QUEUES)]
    urls = []
    for number, url in enumerate(dead):
        attributes = {"VisibilityTimeout": "0", "RedrivePolicy": redrive(other, url)}
        urls.append(other.create_queue(QueueName=f"q-{number}", Attributes=attributes)["QueueUrl"])
    # Received once by one frontend, requested again by the other: it becomes a dead letter, on any node.
    for url in urls:
        one.send_message(QueueUrl=url, MessageBody=url)
    for url in urls:
        assert other.receive_message(QueueUrl=url)["Messages"][0]["Body"] == url
        assert "Messages" not in one.receive_message(QueueUrl=url)
    assert received(one, dead, QUEUES) == Counter(urls)

    stored = send(one, urls, "before")
    whole["b1"].kill()
    stored += send(other, urls, "without")
    assert received(one, urls, stored.total()) == stored


@pytest.mark.long
def test_nothing_is_lost_with_all_processes(whole: LocalCluster) -> None:
    one, other = clients(whole)
    urls = [one.create_queue(QueueName=f"all-{number}")["QueueUrl"] for number in range(QUEUES)]
    stored = send(one, urls, "before")
    for process in whole:
        process.kill()
    whole.start_processes()
    assert received(other, urls, stored.total()) == stored


def send(client: Any, urls: list[str], text: str) -> Counter[str]:
    """Send a message to each queue; returns their bodies."""
    bodies = [f"{text} {url}" for url in urls]
    for url, body in zip(urls, bodies, strict=True):
        client.send_message(QueueUrl=url, MessageBody=body)
    return Counter(bodies)


class KafkaFrontend(KafkaAccess):
    """One of the frontends, which is started again to serve Kafka's clients."""

    def __init__(self, cluster: LocalCluster, name: str) -> None:
        self.kafka_port = free_port()
        self.access_key_id, self.secret_access_key = cluster.key.access_key_id, cluster.key.secret
        frontend = cluster[name]
        frontend.stop()
        frontend.environment["HOLDFAST_KAFKA_PORT"] = str(self.kafka_port)
        frontend.start()


def test_topics_and_groups_of_kafkas_clients_are_the_same_at_all_frontends(whole: LocalCluster) -> None:
    one, other = (KafkaFrontend(whole, name) for name in ("f1", "f2"))
    one.create("orders", 2)
    with closing(KafkaAdminClient(**other.sign_in)) as admin:
        assert list(admin.list_topics()) == ["orders"]
    places = [TopicPartition("orders", number) for number in range(2)]
    with closing(KafkaConsumer(group_id="readers", enable_auto_commit=False, **one.sign_in)) as consumer:
        consumer.commit({place: OffsetAndMetadata(5 + place.partition, "", -1) for place in places})
    with closing(KafkaConsumer(group_id="readers", **other.sign_in)) as consumer:
        assert [consumer.committed(place) for place in places] == [5, 6]
    with closing(KafkaAdminClient(**other.sign_in)) as admin:
        admin.delete_topics(["orders"])
    one.create("orders", 2)
    with closing(KafkaConsumer(group_id="readers", **one.sign_in)) as consumer:
        assert [consumer.committed(place) for place in places] == [None, None]
