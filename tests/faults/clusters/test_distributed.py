"""The roles on Cassandra, with clients at both frontends: owners of shards are killed, and become zombies."""

from pathlib import Path

import pytest

from tests.faults.campaign import whole
from tests.faults.campaign.distributed import Distributed
from tests.faults.campaign.plans import killed, zombie
from tests.faults.campaign.whole import Fault
from tests.faults.tools.traffic import WORK
from tests.servers.cassandra_server import CassandraCluster


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_an_owner_is_killed_and_stands_still_past_its_takeover(
    tmp_path: Path, cassandra: CassandraCluster, keyspace: str
) -> None:
    form = Distributed(tmp_path, cassandra=cassandra, keyspace=keyspace[:20], metadata=1, backends=2)
    faults = [
        *[Fault[Distributed](f"kill -9 of {name}", killed(name)) for name in form.backends],
        Fault[Distributed]("a zombie", zombie(WORK)),
    ]
    rows = await whole.run(form, faults, 11)
    assert [row.broken for row in rows] == [[] for _ in faults]
    assert sum(row.lost for row in rows) == 0
    assert all(row.calls > whole.CALLS_BEFORE + whole.CALLS_AFTER for row in rows)
