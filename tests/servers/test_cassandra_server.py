"""The Cassandra of other tests: it can be ended, suspended and restarted, and ends with its owner."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from cassandra.cluster import Cluster

from tests.servers import proc
from tests.servers.cassandra_server import CassandraCluster
from tests.servers.waiting import wait_until

PATIENT: Final = {"connect_timeout": 60, "control_connection_timeout": 60}
"""Timeouts for a node that has just started, on a busy machine."""


def test_acknowledged_messages_exist_after_a_kill(cassandra: CassandraCluster, keyspace: str) -> None:
    (node,) = cassandra.nodes
    with Cluster(cassandra.contact_points, port=cassandra.port, **PATIENT) as cluster:
        session = cluster.connect()
        replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
        session.execute(f"CREATE KEYSPACE {keyspace} WITH replication = {replication}", timeout=60)
        session.execute(f"CREATE TABLE {keyspace}.t (k int PRIMARY KEY)", timeout=60)
        for number in range(50):
            session.execute(f"INSERT INTO {keyspace}.t (k) VALUES ({number})", timeout=60)
    earlier = node.pid
    node.kill()
    assert not proc.is_running(earlier)
    node.start()
    assert node.pid != earlier
    with Cluster(cassandra.contact_points, port=cassandra.port, **PATIENT) as cluster:
        assert {k for (k,) in cluster.connect().execute(f"SELECT k FROM {keyspace}.t", timeout=60)} == set(range(50))


def test_a_node_ends_with_its_parent() -> None:
    program = """
from tests.servers.cassandra_server import QUICK_START, CassandraCluster
cluster = CassandraCluster(java_options=QUICK_START)
cluster.nodes[0].start(wait=False)
print(cluster.nodes[0].pid, cluster.folder, flush=True)
input()
"""
    starter = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ
    )
    assert starter.stdout is not None
    number, folder = starter.stdout.readline().split()
    pid = int(number)
    assert proc.is_running(pid)
    starter.send_signal(signal.SIGKILL)
    starter.communicate()
    wait_until(lambda: not proc.is_running(pid), "the node has ended")
    wait_until(lambda: not Path(folder).exists(), "its folder is removed")
