"""Several backends behind two frontends under load: changed in number, and restarted one by one."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.tools.process import SETTINGS
from tests.faults.tools.traffic import Traffic
from tests.servers.several import Several

BACKENDS = ("backend-1", "backend-2", "backend-3")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Several]:
    with Several(tmp_path, {**SETTINGS, "BACKENDS": "3"}) as made:
        yield made


@pytest.mark.long
async def test_the_number_of_backends_changes_at_a_restart(server: Several) -> None:
    async with Traffic(server, 7).running() as traffic:
        await traffic.answered(150)
        server.kill()  # kills the supervisor, and thereby all
        server.settings["HOLDFAST_BACKENDS"] = "2"
        await asyncio.to_thread(server.start)
        assert set(server.children()) == {"frontend-1", "frontend-2", "backend-1", "backend-2"}
        await traffic.answered(150)
        await traffic.check()


async def test_all_are_restarted_one_by_one_and_no_call_fails(server: Several) -> None:
    def restarted() -> bool:
        return "all frontends have been restarted" in server.log_text()

    async with Traffic(server, 8).running() as traffic:
        await traffic.answered(150)
        before = server.children()
        server.running().send_signal(signal.SIGUSR1)
        await traffic.until(restarted, "all processes have been restarted", 100)
        await traffic.check()
    after = server.children()
    assert before.keys() == after.keys() == {*BACKENDS, "frontend-1", "frontend-2"}
    assert [name for name in before if after[name] == before[name]] == []
    traffic.check_no_call_failed()
    assert server.stop() == 0
