"""Several backends behind two frontends under load: killed, suspended, restarted one by one, and changed in number."""

from __future__ import annotations

import asyncio
import os
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
    made = Several(tmp_path, {**SETTINGS, "BACKENDS": "3"})
    made.start()
    yield made
    made.kill()


async def test_one_is_killed_and_one_hangs(server: Several) -> None:
    async with Traffic(server, 7).running() as traffic:
        await traffic.answered(150)
        killed = server.kill_child("backend-1")
        await traffic.answered(150)
        await asyncio.to_thread(server.wait_again, "backend-1", killed)
        hanging = server.children()["backend-2"]
        os.kill(hanging, signal.SIGSTOP)
        await asyncio.to_thread(server.wait_again, "backend-2", hanging)
        assert "backend-2 does not answer and is killed" in server.log_text()
        await traffic.answered(150)
        server.kill()  # kills the supervisor, and thereby all
        server.settings["HOLDFAST_BACKENDS"] = "2"
        await asyncio.to_thread(server.start)
        assert set(server.children()) == {"frontend-1", "frontend-2", "backend-1", "backend-2"}
        await traffic.answered(150)
        await traffic.verify()
    traffic.ledger.check()


async def test_all_are_restarted_one_by_one_and_no_call_fails(server: Several) -> None:
    def restarted() -> bool:
        return "all frontends have been restarted" in server.log_text()

    async with Traffic(server, 8).running() as traffic:
        await traffic.answered(150)
        before = server.children()
        server.running().send_signal(signal.SIGUSR1)
        await traffic.until(restarted, "all processes have been restarted", 100)
        await traffic.verify()
    traffic.ledger.check()
    after = server.children()
    assert before.keys() == after.keys() == {*BACKENDS, "frontend-1", "frontend-2"}
    assert [name for name in before if after[name] == before[name]] == []
    assert {what: traffic.counts[what] for what in ("in doubt", "refused", "unreachable")} == {
        "in doubt": 0,
        "refused": 0,
        "unreachable": 0,
    }
    assert server.stop() == 0
