"""The Cassandra of other tests: it can be ended, suspended and restarted, and ends with its owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cassandra.cluster import Cluster

from bench.servers.cassandra_server import CassandraCluster

PATIENT: Final = {"connect_timeout": 60, "control_connection_timeout": 60}
"""Timeouts for a node that has just started, on a busy machine."""


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # a zombie that was not reaped yet


def test_what_was_acknowledged_is_there_after_a_kill(cassandra: CassandraCluster, keyspace: str) -> None:
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
    assert not is_running(earlier)
    node.start()
    assert node.pid != earlier
    with Cluster(cassandra.contact_points, port=cassandra.port, **PATIENT) as cluster:
        assert {k for (k,) in cluster.connect().execute(f"SELECT k FROM {keyspace}.t", timeout=60)} == set(range(50))


def test_a_node_does_not_outlive_who_started_it() -> None:
    program = """
from bench.servers.cassandra_server import QUICK_START, CassandraCluster
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
    assert is_running(pid)
    starter.send_signal(signal.SIGKILL)
    starter.communicate()
    until(lambda: not is_running(pid))
    until(lambda: not Path(folder).exists())
