"""Push by the frontends of a cluster on Cassandra, through metadata nodes."""

import secrets
from collections import Counter
from typing import Any

import pytest
from botocore.config import Config

from tests.frontend.hooks import hook
from tests.servers.cassandra_server import CassandraCluster
from tests.servers.local_cluster import LocalCluster
from tests.servers.server import REGION, aws_client
from tests.servers.waiting import wait_until

pytestmark = pytest.mark.long

QUEUES = 6


def client_of_first(cluster: LocalCluster) -> Any:
    return aws_client(
        "sqs",
        endpoint_url=cluster.endpoints[0],
        region_name=REGION,
        aws_access_key_id=cluster.key.access_key_id,
        aws_secret_access_key=cluster.key.secret,
        config=Config(retries={"mode": "standard", "total_max_attempts": 10}, read_timeout=40),
    )


def test_frontends_share_the_queues_and_replace_each_other(cassandra: CassandraCluster) -> None:
    with (
        hook() as listening,
        LocalCluster(
            cassandra=cassandra,
            metadata=2,
            backends=1,
            frontends=2,
            redis=False,
            settings={"WEBHOOK_NETWORKS": "127.0.0.0/8"},
            keyspace=f"test_{secrets.token_hex(6)}",
        ) as cluster,
    ):
        client = client_of_first(cluster)
        urls = []
        for number in range(QUEUES):
            attributes = {"HoldfastPushUrl": listening.url, "HoldfastPushTimeoutSeconds": "5"}
            urls.append(client.create_queue(QueueName=f"q{number}", Attributes=attributes)["QueueUrl"])
        sent: Counter[str] = Counter()

        def send(first: int) -> None:
            for number in range(first, first + 5):
                for url in urls:
                    body = f"{url.rpartition('/')[2]} {number}"
                    client.send_message(QueueUrl=url, MessageBody=body)
                    sent[body] += 1

        def pushed() -> Counter[str]:
            return Counter(call.body.decode() for call in listening.calls)

        send(0)
        wait_until(lambda: pushed() == sent, "each message is pushed once")
        first, second = cluster.of("frontend")
        second.kill()
        send(5)
        wait_until(lambda: set(pushed()) == set(sent), "the other frontend pushes the queues of the killed one")
        assert first.running
