"""The server ends at each step of a commit, of a checkpoint, of compaction and of its own recovery."""

from itertools import count
from random import Random

import pytest

from tests.faults.campaign import steps
from tests.faults.tools.process import FaultyServer
from tests.faults.tools.traffic import Traffic
from tests.runner.long import all_but

ACTIONS = ("kill", "power")
pytestmark = pytest.mark.timeout(600)


@pytest.mark.long
@pytest.mark.parametrize("group", list(steps.WHILE_SERVING))
async def test_a_server_at_work_ends_at_each_step(server: FaultyServer, group: str) -> None:
    random = Random(group)
    await server.start_with()
    async with Traffic(server, 2).running() as traffic:
        server.kill()
        for number, moment in zip(count(len(group)), steps.WHILE_SERVING[group], strict=False):
            nth = random.randrange(1, 60) if group == "commit" else 1
            await steps.end_while_serving(server, traffic, moment, nth, ACTIONS[number % 2])
        await server.start_with()
        await traffic.check()


@pytest.mark.parametrize("group", all_but(["claim"], steps.AT_START))
async def test_a_recovering_server_ends_at_each_step(server: FaultyServer, group: str) -> None:
    await server.start_with()
    async with Traffic(server, 3).running() as traffic:
        server.kill()
        for number, moment in zip(count(len(group)), steps.AT_START[group], strict=False):
            if group == "seal" or moment == steps.AT_START[group][0]:
                await steps.serve_and_kill(server, traffic)
            came = await steps.end_at_start(server, moment, 1, ACTIONS[number % 2])
            assert came, f"the start has no {moment}"
        await server.start_with()
        await traffic.check()
