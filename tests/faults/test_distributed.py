"""The roles on Cassandra, with clients at both frontends: an owner of shards is killed, and one becomes a zombie."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.cassandra_server import CassandraCluster
from tests.faults import whole
from tests.faults.distributed import Distributed
from tests.faults.whole import Fault


@pytest.mark.slow
async def test_an_owner_is_killed_and_one_stands_still_past_its_takeover(
    tmp_path: Path, cassandra: CassandraCluster, keyspace: str
) -> None:
    form = Distributed(tmp_path, cassandra=cassandra, keyspace=keyspace[:20], metadata=1, backends=2)
    faults = [
        Fault[Distributed]("kill -9", lambda form: form.kill("b1")),
        Fault[Distributed]("a zombie", lambda form: form.wait_for_zombie("b2")),
    ]
    rows = await whole.run(form, faults, 11)
    assert [row.fault for row in rows] == ["kill -9", "a zombie"]
    assert [broken for row in rows for broken in row.broken] == []
    assert all(row.calls > whole.CALLS_BEFORE + whole.CALLS_AFTER for row in rows)
