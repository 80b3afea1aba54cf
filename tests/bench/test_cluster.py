"""The launcher of clusters, where something is wrong; that they run ``tests/system/test_distributed.py`` shows."""

from __future__ import annotations

from contextlib import closing

import pytest

from bench.cassandra_server import CassandraCluster
from bench.cluster import ClusterFailed, LocalCluster


def test_a_process_with_wrong_settings_is_not_started_again(cassandra: CassandraCluster) -> None:
    wrong = {"CASSANDRA_REPLICATION": "three"}
    cluster = LocalCluster(
        cassandra=cassandra, metadata=1, backends=0, frontends=0, managers=0, redis=False, settings=wrong
    )
    with closing(cluster):
        with pytest.raises(ClusterFailed, match=r"m1 has ended with 2:\n.*cassandra_replication has to be like"):
            cluster.start()
        assert cluster["m1"].log().count("cassandra_replication") == 1
    assert not cluster.folder.exists()
