"""Backup, loss and restore of two backend clusters under load, and the comparison of their messages."""

import contextlib
from pathlib import Path
from typing import Any

import pytest

from tests.faults.clusters.restored import MOVED_MESSAGES, Compared, KnownMessage, TwoClusters, compare
from tests.servers.cassandra_server import CassandraCluster
from tests.servers.local_cluster import LocalCluster
from tests.tables import beside

TABLE = beside(__file__, "restored.yaml")
KNOWN = {key: KnownMessage(**known) for key, known in TABLE["known"].items()}


@pytest.mark.parametrize("case", TABLE["cases"], ids=lambda case: str(case["there"]))
def test_lost_and_returned_messages_are_reported(case: dict[str, Any]) -> None:
    seen = Compared()
    compare(KNOWN, {**TABLE["restored"], **case["there"]}, ("source", "target"), 10, 20, seen)
    assert (seen.had_to_be_there, seen.had_to_be_gone) == (4, 2)
    assert seen.broken == case["broken"]


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_a_restore_has_what_was_acknowledged(tmp_path: Path, cassandra: CassandraCluster, keyspace: str) -> None:
    made = LocalCluster(
        cassandra=cassandra, metadata=1, backends=1, frontends=1, redis=False, managers=1, keyspace=keyspace[:20]
    )
    made.add_backend("east")
    with contextlib.closing(made):
        seen = await TwoClusters(made, tmp_path, 1).run()
    assert seen.broken == []
    assert seen.had_to_be_there > MOVED_MESSAGES
    assert seen.had_to_be_gone > 100
