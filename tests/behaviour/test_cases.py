"""Every behaviour case, in both protocols, by the real HTTP application in process."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.behaviour import wire
from tests.behaviour.cases import Case, load
from tests.behaviour.runner import CaseRun
from tests.behaviour.world import World


def _parameters() -> Iterator[Any]:
    for case in load():
        for protocol in wire.PROTOCOLS:
            if case.only in (None, protocol):
                yield pytest.param(case, protocol, id=f"{case.name}-{protocol}")


@pytest.mark.parametrize(("case", "protocol"), list(_parameters()))
def test_case(world: World, case: Case, protocol: wire.Protocol) -> None:
    if case.settings:
        with World(**case.settings) as own:
            own.run(_run(own, case, protocol))
    else:
        world.run(_run(world, case, protocol))


async def _run(world: World, case: Case, protocol: wire.Protocol) -> None:
    await CaseRun(world, case, protocol, await world.new_caller(), await world.new_caller()).run()
