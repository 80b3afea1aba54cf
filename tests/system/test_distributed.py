"""The service in parts on Cassandra, as on many machines: real processes, which speak TLS with each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from bench.cassandra_server import CassandraCluster
from bench.cluster import REGION, LocalCluster
from tests.holdfast.pairs import make_cluster_files
from tests.system.waiting import wait_until

QUEUES = 4
"""With their dead-letter queues twice as many, over both backends."""


@pytest.fixture
def cluster(tmp_path: Path, cassandra: CassandraCluster, keyspace: str) -> Iterator[LocalCluster]:
    made = LocalCluster(
        cassandra=cassandra,
        metadata=1,
        backends=2,
        frontends=2,
        settings=make_cluster_files(tmp_path),
        keyspace=keyspace[:20],
    )
    with made:
        yield made


def clients(cluster: LocalCluster) -> list[Any]:
    """One for each frontend, as patient as SDKs can be told to be."""
    patient = Config(retries={"mode": "standard", "total_max_attempts": 10}, read_timeout=40)
    key = cluster.key
    return [
        boto3.session.Session().client(
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
    """The bodies of what is in these queues, each taken once, as soon as there are so many."""
    found: Counter[str] = Counter()

    def all_there() -> bool:
        for url in urls:
            for message in client.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", []):
                found[message["Body"]] += 1
                client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        return found.total() >= wanted

    wait_until(all_there, f"{wanted} messages are received", 40)
    return found


def test_nothing_is_lost_with_a_backend_nor_with_all_processes(cluster: LocalCluster) -> None:
    one, other = clients(cluster)
    dead = [one.create_queue(QueueName=f"dead-{number}")["QueueUrl"] for number in range(QUEUES)]
    urls = []
    for number, url in enumerate(dead):
        arn = other.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        policy = f'{{"deadLetterTargetArn": "{arn}", "maxReceiveCount": 1}}'
        attributes = {"VisibilityTimeout": "0", "RedrivePolicy": policy}
        urls.append(other.create_queue(QueueName=f"q-{number}", Attributes=attributes)["QueueUrl"])
    # Received once by one frontend, asked for again by the other: a dead letter, on whatever node its queue is.
    for url in urls:
        one.send_message(QueueUrl=url, MessageBody=url)
    for url in urls:
        assert other.receive_message(QueueUrl=url)["Messages"][0]["Body"] == url
        assert "Messages" not in one.receive_message(QueueUrl=url)
    assert received(one, dead, QUEUES) == Counter(urls)

    stored = Counter(f"before {url}" for url in urls)
    for url in urls:
        one.send_message(QueueUrl=url, MessageBody=f"before {url}")
    cluster["b1"].kill()
    for url in urls:
        other.send_message(QueueUrl=url, MessageBody=f"without {url}")
        stored[f"without {url}"] += 1
    for process in cluster:
        process.kill()
    cluster.start_processes()
    assert received(other, urls, stored.total()) == stored
