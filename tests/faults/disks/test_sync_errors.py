"""Failing syncs of the disk: no undurable message is acknowledged, and the service recovers by itself."""

from pathlib import Path

import pytest

from tests.faults.tools.client import CallRefused, Client, url_of
from tests.faults.tools.hooks import PlannedFault
from tests.faults.tools.process import FaultyServer
from tests.faults.tools.traffic import WORK, Traffic

RECOVERED = "the journal has been recovered"
pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize(
    ("step", "action"),
    [
        ("commit.sync", "eio"),
        pytest.param("commit.sync", "eio_lost", marks=pytest.mark.long),
        pytest.param("commit.write", "eio", marks=pytest.mark.long),
    ],
)
async def test_once(server: FaultyServer, step: str, action: str) -> None:
    await server.start_with(
        [PlannedFault(f"{step}.before", action, nth=40), PlannedFault(f"{step}.before", action, nth=100)]
    )
    pid = server.pid
    async with Traffic(server, 4).running() as traffic:
        await traffic.until(lambda: server.log_text().count(RECOVERED) == 2, "the journal was recovered twice")
        await traffic.answered(100)
        await traffic.check()
    assert traffic.counts["refused"] > 0
    assert traffic.counts["in doubt"] == 0, "each call got an answer"
    assert server.log_text().count("starting over: [Errno 5]") == 2
    assert server.running().poll() is None
    assert server.pid == pid


@pytest.mark.long
async def test_for_a_while(server: FaultyServer, tmp_path: Path) -> None:
    flag = tmp_path / "the disk is broken"
    await server.start_with([PlannedFault("*.sync.before", "eio", times=1 << 30, flag=str(flag))])
    async with Traffic(server, 5).running() as traffic:
        await traffic.answered(100)
        flag.touch()
        await traffic.until(lambda: "cannot be recovered yet" in server.log_text(), "starting over has failed")
        refused = traffic.counts["refused"]
        await traffic.until(lambda: traffic.counts["refused"] > refused + 50, "answers from before have been read")
        answered = traffic.counts["answered"]
        await traffic.until(lambda: traffic.counts["refused"] > refused + 150, "calls are refused")
        assert traffic.counts["answered"] == answered, "something was acknowledged that cannot be on the disk"
        assert not server.ready()
        client = Client(server)
        with pytest.raises(CallRefused) as refusal:
            await client.call("SendMessage", QueueUrl=url_of(WORK), MessageBody="no")
        assert (refusal.value.status, refusal.value.code) == (503, "ServiceUnavailable")
        await client.close()
        flag.unlink()
        await traffic.answered(100)
        await traffic.check()
    assert traffic.counts["in doubt"] == 0
    assert server.ready()


@pytest.mark.long
@pytest.mark.parametrize("step", ["piece.sync", "metadata.commit", "folder.sync", "preallocate.sync"])
async def test_beside_the_commits(server: FaultyServer, step: str, tmp_path: Path) -> None:
    """Checkpoints, metadata and new segments fail for a while: calls are served, or refused, and no message is lost."""
    flag = tmp_path / "the disk is broken"
    await server.start_with([PlannedFault(f"{step}.before", "eio", times=1 << 30, flag=str(flag))])
    async with Traffic(server, 6).running() as traffic:
        await traffic.answered(50)
        before = server.log_text()
        flag.touch()
        await traffic.until(lambda: len(server.log_text()) > len(before), "the log tells of it")
        flag.unlink()
        await traffic.answered(100)
        await traffic.check()
    assert server.running().poll() is None
