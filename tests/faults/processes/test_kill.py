"""kill -9 and power loss under load: nothing acknowledged is lost, nothing deleted reappears."""

from random import Random

import pytest

from tests.faults.tools.process import FaultyServer
from tests.faults.tools.traffic import Traffic
from tests.runner.long import all_but


@pytest.mark.parametrize("how", all_but(["kill"], ["kill", "lose_power"]))
async def test_at_random_moments(server: FaultyServer, how: str) -> None:
    random = Random(how)
    await server.start_with()
    async with Traffic(server, 1).running() as traffic:
        for _ in range(3):
            await traffic.answered(random.randrange(300))
            getattr(server, how)()
            await server.start_with()
        await traffic.answered(100)
        await traffic.check()
    assert traffic.counts["in doubt"] > 0
