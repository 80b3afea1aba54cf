"""Nodes that each own some of the shards, in one folder."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest

from backend.api import SHARDS, NewMessage, NotOwner, PartitionUnknown, Receive, Target
from backend.cluster.member import Member
from backend.journal.interface import Journal
from backend.journal.local.scan import LogEnd
from backend.journal.local.segments import LogInUse
from backend.node import Node
from backend.recovery import takeover
from backend.recovery.replay import JournalDamaged, Replay, replay_log
from backend.serving.shards import shard_of
from metadata_service.models import BackupPin, LogEntry
from metadata_service.store import ConditionFailed
from tests.backend.nodes import NodeMachine

EVEN = range(0, SHARDS, 2)
ODD = range(1, SHARDS, 2)


def partition_in(shards: range, nth: int = 0) -> int:
    """Return a partition in one of these shards."""
    return [number for number in range(1, 10_000) if shard_of(number) in shards][nth]


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[NodeMachine]:
    machine = NodeMachine(tmp_path)
    yield machine
    await machine.close()


async def open_queue(machine: NodeMachine, node: Node, partition: int) -> Target:
    await node.configure(machine.settings(partition))
    return Target(partition, partition, 1)


async def bodies(node: Node, target: Target, seconds: int = 0) -> list[bytes]:
    return sorted(one.payload for one in await node.receive(target, Receive(10, seconds)))


async def test_a_node_serves_its_shards_and_says_whose_the_others_are(machine: NodeMachine) -> None:
    first = await machine.start("a", EVEN)
    second = await machine.start("b", ODD)
    even, odd = partition_in(EVEN), partition_in(ODD)
    target = await open_queue(machine, first, even)
    await first.send(target, [NewMessage(b"one")])
    for refused in (
        second.send(target, [NewMessage(b"two")]),
        second.receive(target, Receive(1, 1)),
        second.delete(target, ["x"]),
        second.counters(target),
        second.purge(target, 1),
        second.drop(target),
        second.configure(machine.settings(even)),
    ):
        with pytest.raises(NotOwner) as caught:
            await refused
        assert (caught.value.shard, caught.value.owner, caught.value.retryable) == (shard_of(even), "a", True)
    with pytest.raises(NotOwner) as caught:  # these had no owner when it started
        await first.configure(machine.settings(odd))
    assert caught.value.owner is None
    with pytest.raises(PartitionUnknown):
        await second.counters(Target(odd, odd, 1))
    assert await bodies(first, target) == [b"one"]


async def test_a_restart_brings_back_what_the_node_had_and_needs_nobody_elses_logs(machine: NodeMachine) -> None:
    first = await machine.start("a", EVEN)
    second = await machine.start("b", ODD)
    kept = await open_queue(machine, first, partition_in(EVEN))
    await first.send(kept, [NewMessage(b"kept")])
    other = await open_queue(machine, second, partition_in(ODD))
    await second.send(other, [NewMessage(b"other")])
    await machine.stop("a")
    shutil.move(machine.folder / "journal" / "b-1", machine.folder / "away")
    first = await machine.start("a")
    assert await bodies(first, kept) == [b"kept"]
    assert first.owned == set(EVEN)
    shutil.move(machine.folder / "away", machine.folder / "journal" / "b-1")
    assert await bodies(second, other) == [b"other"]
    entries = await machine.store.shards()
    assert {entry.epoch for entry in entries if entry.shard in EVEN} == {2}
    assert {entry.epoch for entry in entries if entry.shard in ODD} == {1}


async def test_what_a_living_node_owns_is_not_taken(machine: NodeMachine) -> None:
    first = await machine.start("a", EVEN)
    target = await open_queue(machine, first, partition_in(EVEN))
    with pytest.raises(LogInUse):
        await machine.start("b", range(SHARDS))
    await first.send(target, [NewMessage(b"one")])
    assert await bodies(first, target) == [b"one"]
    (log,) = await machine.store.logs("a")
    assert log.state == "open"


async def test_one_node_takes_over_what_several_have_left(machine: NodeMachine) -> None:
    targets = []
    for name, shards in (("a", EVEN), ("b", ODD)):
        node = await machine.start(name, shards)
        targets.append(await open_queue(machine, node, partition_in(shards)))
        await node.send(targets[-1], [NewMessage(name.encode())])
    await machine.nodes["a"].checkpoint()
    await machine.stop()
    node = await machine.start("node", range(SHARDS))
    assert [await bodies(node, target) for target in targets] == [[b"a"], [b"b"]]
    assert node.owned == set(range(SHARDS))


async def test_what_another_has_taken_and_swept_meanwhile_is_not_called_damaged(machine: NodeMachine) -> None:
    first, second, third = [await machine.start(name, shards) for name, shards in (("a", EVEN), ("b", ()), ("c", ()))]
    await open_queue(machine, first, partition_in(EVEN))
    log_id = first.ownership.log_id
    await machine.stop("a")
    await second.ownership.seal(log_id)
    faster, load = [True], Replay.load_checkpoints

    async def slowly(*_: object) -> None:
        if faster.pop():
            with mock.patch.object(Replay, "load_checkpoints", load):
                assert await third.ownership.take(EVEN) == set(EVEN)
        raise JournalDamaged(log_id, "what it reads is missing")

    with mock.patch.object(Replay, "load_checkpoints", slowly):
        with pytest.raises(ConditionFailed):
            await second.ownership.take(EVEN)
        faster.append(False)
        await third.ownership.hand_over(EVEN, second.ownership.log_id)
        with pytest.raises(JournalDamaged):
            await second.ownership.take(EVEN)


async def test_a_log_that_is_let_go_of_while_it_is_read_is_not_called_damaged(machine: NodeMachine) -> None:
    first, second = await machine.start("a", EVEN), await machine.start("b")
    log_id = first.ownership.log_id
    await machine.stop("a")
    await second.ownership.seal(log_id)

    async def meanwhile(*_: object) -> None:
        (log,) = await machine.store.logs("a")
        await machine.store.update_log(msgspec.structs.replace(log, floor_seq=log.floor_seq + 1))
        raise JournalDamaged(log_id, "what it reads is missing")

    with mock.patch.object(takeover, "replay_log", meanwhile), pytest.raises(ConditionFailed, match="let go of"):
        await second.ownership.take(EVEN)


async def test_a_damaged_log_keeps_nobody_from_shards_that_do_not_need_it(machine: NodeMachine) -> None:
    first, other, successor = [
        await machine.start(name, shards) for name, shards in (("a", EVEN), ("b", ODD), ("c", ()))
    ]
    logs = first.ownership.log_id, other.ownership.log_id
    for name in "ab":
        await machine.stop(name)
    for log_id in logs:
        await successor.ownership.seal(log_id)

    async def damaged(journal: Journal, entry: LogEntry, *rest: Any) -> LogEnd | None:
        if entry.log_id == logs[0]:
            raise JournalDamaged(logs[0], "rows are missing")
        return await replay_log(journal, entry, *rest)

    with mock.patch.object(takeover, "replay_log", damaged):
        assert await successor.ownership.take(range(SHARDS)) == set(ODD)
        with pytest.raises(JournalDamaged):
            await successor.ownership.take(range(SHARDS))
    assert await successor.ownership.take(range(SHARDS)) == set(EVEN)


async def test_each_node_sweeps_what_nothing_names_and_nothing_else(tmp_path: Path) -> None:
    machine = NodeMachine(tmp_path, segment_bytes=64 << 10)
    first = await machine.start("a", EVEN)
    target = await open_queue(machine, first, partition_in(EVEN))
    await first.send(target, [NewMessage(b"the oldest")])
    for _ in range(20):
        await first.send(target, [NewMessage(bytes(20_000))])
    await machine.stop("a")
    second = await machine.start("b", ODD)
    await open_queue(machine, second, partition_in(ODD))
    await second.checkpoint()  # it sweeps, and finds an unsealed log of another node
    folder = tmp_path / "journal" / "a-1"
    assert len(list(folder.glob("*.log"))) >= 7
    first = await machine.start("a")
    await second.checkpoint()  # the log is sealed now, and a-2 has its messages there
    assert len(await bodies(first, target)) == 10
    assert len(list(folder.glob("*.log"))) >= 7
    await first.purge(target, 1)
    await first.checkpoint()
    await second.checkpoint()
    assert not folder.exists()
    await machine.close()


async def test_a_backup_holds_what_it_copies_until_it_ends_or_was_killed_or_there_is_no_room(tmp_path: Path) -> None:
    machine = NodeMachine(tmp_path, segment_bytes=64 << 10)
    node = await machine.start("a", range(SHARDS))
    target = await open_queue(machine, node, partition_in(EVEN))
    folder = tmp_path / "journal" / "a-1"
    incarnation, checkpointer = node._incarnation, node._checkpointer
    assert incarnation is not None
    assert checkpointer is not None

    purges = itertools.count(1)

    async def use_up() -> None:
        for _ in range(10):
            await node.send(target, [NewMessage(bytes(20_000))])
        await node.purge(target, next(purges))

    async def pin(until_ms: int, segment: int, file: int) -> None:
        pins = (BackupPin("nightly", until_ms, ((1, segment, file),)),) if until_ms else ()
        await machine.store.update_cluster(msgspec.structs.replace(await machine.store.cluster(), pins=pins))

    def there() -> tuple[int, int]:
        """Return the first existing segment, and the first existing checkpoint file."""
        names = sorted(path.name for path in folder.iterdir())
        pieces = [name for name in names if name.startswith("ckpt-")]
        return int(min(name for name in names if name.endswith(".log"))[:8]), int(pieces[0][5:-4])

    await use_up()
    await node.checkpoint()
    segment, file = there()
    await pin(time.time_ns() // 1_000_000 + 60_000, segment, file)
    await use_up()
    await node.checkpoint()
    await use_up()
    await node.checkpoint()
    assert there() == (segment, file)
    assert not (folder / f"{segment + 1:08d}.log").exists(), "what came later is not held"

    with mock.patch.object(type(incarnation.log), "short", return_value=True):
        await checkpointer.checkpoint()
    assert there()[0] > segment, "the service goes before its backup"

    for until_ms in (time.time_ns() // 1_000_000 - 1, 0):
        segment, file = there()
        await pin(time.time_ns() // 1_000_000 + 60_000, segment, file)
        await use_up()
        await node.checkpoint()
        assert there() == (segment, file)
        await pin(until_ms, segment, file)
        await node.checkpoint()
        assert there()[0] > segment
        assert there()[1] > file
    await machine.close()


async def test_members_on_a_real_disk_and_a_real_store(machine: NodeMachine) -> None:
    members: dict[str, Member] = {}

    async def join(name: str) -> None:
        node = await machine.start(name)
        members[name] = Member(name, node, machine.store, lambda: time.time_ns() // 1_000_000)
        members[name].start()

    async def until(reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not reached():
                await asyncio.sleep(0.02)

    await join("a")
    await until(lambda: machine.nodes["a"].owned == set(range(SHARDS)))
    first = machine.nodes["a"]
    targets = [await open_queue(machine, first, partition_in(range(shard, shard + 1))) for shard in range(0, 256, 8)]
    for target in targets:
        await first.send(target, [NewMessage(b"%d" % target.partition)])
    await join("b")
    second = machine.nodes["b"]
    await until(lambda: len(second.owned) >= 115 and len(first.owned) + len(second.owned) == SHARDS)
    assert await members["a"].leave(20)
    await until(lambda: second.owned == set(range(SHARDS)))
    assert [await bodies(second, target) for target in targets] == [[b"%d" % target.partition] for target in targets]
    for member in members.values():
        await member.stop()
