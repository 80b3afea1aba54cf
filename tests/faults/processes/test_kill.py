"""kill -9 and power loss under load: nothing acknowledged is lost, nothing deleted reappears."""

from __future__ import annotations

from random import Random

import pytest

from tests.faults.tools.process import FaultyServer
from tests.faults.tools.traffic import Traffic


@pytest.mark.parametrize("how", ["kill", "lose_power"])
async def test_at_random_moments(server: FaultyServer, how: str) -> None:
    random = Random(how)
    await server.start_with()
    async with Traffic(server, 1).running() as traffic:
        for _ in range(3):
            await traffic.answered(random.randrange(300))
            getattr(server, how)()
            await server.start_with()
        await traffic.answered(100)
        await traffic.verify()
    traffic.ledger.check()
    assert traffic.counts["in doubt"] > 0
