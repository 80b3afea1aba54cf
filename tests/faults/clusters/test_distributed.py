"""The roles on Cassandra, with clients at both frontends: an owner of shards becomes a zombie."""

from pathlib import Path

import pytest

from tests.faults.campaign import whole
from tests.faults.campaign.distributed import Distributed
from tests.faults.campaign.plans import zombie
from tests.faults.campaign.whole import Fault
from tests.faults.tools.traffic import WORK
from tests.servers.cassandra_server import CassandraCluster


@pytest.mark.long
async def test_an_owner_stands_still_past_its_takeover(
    tmp_path: Path, cassandra: CassandraCluster, keyspace: str
) -> None:
    form = Distributed(tmp_path, cassandra=cassandra, keyspace=keyspace[:20], metadata=1, backends=2)
    (row,) = await whole.run(form, [Fault[Distributed]("a zombie", zombie(WORK))], 11)
    assert row.broken == []
    assert row.lost == 0
    assert row.calls > whole.CALLS_BEFORE + whole.CALLS_AFTER
