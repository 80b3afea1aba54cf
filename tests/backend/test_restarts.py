"""A service that starts again and again, because something kills it, uses nothing up."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backend import startup, takeover
from backend.checkpointer import CHAIN_MOST
from backend.replay import JournalDamaged
from metadata_service.models import LogEntry, PieceRef, ShardEntry, StoppedPartition
from tests.simulator.test_found import Service


def restart(service: Service) -> None:
    """It is killed, and started again."""
    service.close()
    service.disk.kill()
    service.start()


def folders(service: Service) -> set[str]:
    return {path.split("/")[2] for path in service.disk.paths()}


def test_starts_that_nothing_follows_use_up_no_ids_and_no_folders() -> None:
    service = Service()
    target = service.queue(7)
    service.send(target, b"body")
    incarnations = set()
    for _ in range(60):
        restart(service)
        incarnations.add(service.node._checkpointer.entry.incarnation)  # type: ignore[union-attr]
    assert len(incarnations) == 60
    assert len(service.store._logs) <= 4
    assert len(folders(service)) <= 3
    assert max(len(entry.chain) for entry in service.store._shards.values()) <= 2
    assert [message.payload for message in service.receive(target)] == [b"body"]
    service.close()


def test_starts_that_fail_use_up_no_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a container does whose journal is damaged: it is started every few seconds until somebody has a look."""
    service = Service()
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
    assert len(service.store._logs) <= 4
    service.start()
    assert [message.payload for message in service.receive(target)] == [b"body"]
    service.close()


def test_starts_that_live_shortly_make_no_chain_that_grows() -> None:
    """Each of them takes messages, and none lives until its first checkpoint would be due."""
    service = Service()
    target = service.queue(7)
    for number in range(40):
        service.send(target, b"body %d" % number)
        service.loop.run_for(0.5)
        assert max(len(entry.chain) for entry in service.store._shards.values()) <= CHAIN_MOST + 1
        restart(service)
    assert len(service.receive(target)) == 10
    assert service.run(service.node.counters(target)).visible == 30
    service.close()


def test_ids_that_are_used_again_keep_what_is_stored_apart() -> None:
    """Logs are replayed in the order in which they were written, whatever ids they have."""
    service = Service()
    target = service.queue(7)
    stored: set[bytes] = set()
    reused = 0
    for number in range(60):
        before = set(service.store._logs)
        if number % 3:
            body = b"%d" % number * 500
            service.send(target, body)
            stored.add(body)
            for message in service.receive(target, 600) if number % 7 == 0 else ():
                service.run(service.node.delete(target, [message.handle]))
                stored.discard(message.payload)
        if number % 5 == 0:
            service.run(service.node.checkpoint())
        restart(service)
        reused += set(service.store._logs) == before
    assert reused > 10
    found: set[bytes] = set()
    while answer := service.receive(target, 6000):
        found.update(message.payload for message in answer)
    assert stored <= found
    assert not service.node.damage
    service.close()


def test_a_spare_log_whose_entry_others_have_just_changed_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a node that has let go of what was left of it."""
    service = Service()
    for _ in range(3):
        restart(service)
    before = dict(service.store._logs)
    spare = startup._spare

    def changed(*what: Any) -> LogEntry | None:
        found = spare(*what)
        assert found is not None
        return msgspec.structs.replace(found, version=found.version - 1)

    monkeypatch.setattr(startup, "_spare", changed)
    restart(service)
    (new,) = service.store._logs.keys() - before
    assert service.store._logs[new].state == "open"
    service.close()


def test_a_log_that_anything_mentions_is_not_spare() -> None:
    earlier = LogEntry(log_id=5, node="node", incarnation=9, state="sealed", sealed_seq=4)
    piece = PieceRef(5, 1, 0, 0, 0)
    unrelated = ShardEntry(shard=1, owner_log=6, epoch=3, chain=((6, 3, 1),), live=((4, 1),))

    def spare(entry: LogEntry, begun: set[int], **changes: object) -> bool:
        shard = ShardEntry(**{"shard": 2, "owner_log": 6, "epoch": 1, **changes})  # type: ignore[arg-type]
        return startup._spare([entry], begun, [unrelated, shard]) is entry

    assert spare(earlier, {4})
    assert not spare(earlier, {5})
    for state in ("open", "recovering"):
        assert not spare(LogEntry(log_id=5, node="node", incarnation=9, state=state), set())
    stopped = StoppedPartition(1, 1, None, (), ())
    for changes in (
        {"owner_log": 5},
        {"checkpoint": piece},
        {"checkpoint_log": 5},
        {"chain": ((5, 1, 1), (6, 2, 1))},
        {"live": ((5, 2),)},
        {"files": ((5, 2),)},
        {"accepted": ("checkpoint", "row 5:12")},
        {"stopped": (StoppedPartition(1, 1, piece, (), ()),)},
        {"stopped": (stopped, StoppedPartition(2, 1, None, ((5, 1, 1),), ()))},
        {"stopped": (stopped, StoppedPartition(2, 1, None, (), ((5, 1),)))},
    ):
        assert not spare(earlier, set(), **changes), changes
