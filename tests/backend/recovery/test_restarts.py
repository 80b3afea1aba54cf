"""A service that is repeatedly killed and restarted leaves nothing but entries."""

from unittest import mock

import pytest

from backend.api import CountMessages
from backend.recovery import startup, takeover
from backend.recovery.checkpointer import CHAIN_MAX
from backend.recovery.replay import JournalDamaged
from tests.backend.nodes import restart
from tests.simulator.test_found import VirtualNode


def folders(service: VirtualNode) -> set[str]:
    return {path.split("/")[2] for path in service.disk.paths()}


def test_starts_that_nothing_follows_leave_no_folders(service: VirtualNode) -> None:
    target = service.queue(7)
    service.send(target, b"body")
    incarnations = set()
    for _ in range(60):
        restart(service)
        incarnations.add(service.node._checkpointer.entry.incarnation)  # type: ignore[union-attr]
    assert len(incarnations) == 60
    assert len(folders(service)) <= 3
    assert max(len(entry.chain) for entry in service.store._shards.values()) <= 2
    assert [message.payload for message in service.receive(target)] == [b"body"]


def test_starts_that_fail_leave_no_folders(service: VirtualNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Like a container with a damaged journal, which restarts every few seconds until an operator acts."""
    target = service.queue(7)
    service.send(target, b"body")
    service.close()
    service.disk.kill()
    with monkeypatch.context() as patch:

        async def damaged(*_: object) -> None:
            raise JournalDamaged(1, "as ever")

        patch.setattr(takeover, "replay_log", damaged)
        for _ in range(60):
            with pytest.raises(JournalDamaged):
                service.start()
            service.close()
            service.disk.kill()
    assert len(folders(service)) <= 3
    service.start()
    assert [message.payload for message in service.receive(target)] == [b"body"]


def test_starts_that_live_shortly_make_no_chain_that_grows(service: VirtualNode) -> None:
    """Each of them takes messages, and dies before its first checkpoint is due."""
    target = service.queue(7)
    for number in range(40):
        service.send(target, b"body %d" % number)
        service.loop.run_for(0.5)
        assert max(len(entry.chain) for entry in service.store._shards.values()) <= CHAIN_MAX + 1
        restart(service)
    assert len(service.receive(target)) == 10
    assert service.call(CountMessages(target)).visible == 30


@mock.patch.object(startup, "LOG_ID_LIMIT", 100)
@mock.patch.object(startup, "LOG_IDS_RESERVED", 90)
def test_few_remaining_log_ids_are_reported(service: VirtualNode, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(8):
        restart(service)
    assert "log id" not in caplog.text
    restart(service)
    assert "log id 10, and after 89 more starts" in caplog.text
