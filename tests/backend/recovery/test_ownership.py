"""Nodes that each own some of the shards, in one folder."""

import itertools
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest

from backend import api
from backend.api import shard_of
from backend.cluster.member import Member
from backend.journal.interface import Journal
from backend.journal.types import LogEnd, LogInUse
from backend.node import Node
from backend.recovery import takeover
from backend.recovery.replay import JournalDamaged, Replay, replay_log
from metadata_service.models import BackupPin, LogEntry
from metadata_service.store import ConditionFailed
from tests.backend.calls import count_messages, receive, send
from tests.backend.nodes import NodeMachine
from tests.servers.waiting import until

EVEN = range(0, api.SHARDS, 2)
ODD = range(1, api.SHARDS, 2)


def partition_in(shards: range, nth: int = 0) -> int:
    """Return a partition in one of these shards."""
    return [number for number in range(1, 10_000) if shard_of(number) in shards][nth]


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[NodeMachine]:
    machine = NodeMachine(tmp_path)
    yield machine
    await machine.close()


async def open_queue(machine: NodeMachine, node: Node, partition: int) -> api.Target:
    await node.call(api.Configure(machine.settings(partition)))
    return api.Target(partition, partition, 1)


async def bodies(node: Node, target: api.Target, seconds: int = 0) -> list[bytes]:
    return sorted(one.payload for one in await receive(node, target, 10, seconds))


async def test_a_node_serves_its_shards_and_names_the_owners_of_others(machine: NodeMachine) -> None:
    first = await machine.start("a", EVEN)
    second = await machine.start("b", ODD)
    even, odd = partition_in(EVEN), partition_in(ODD)
    target = await open_queue(machine, first, even)
    await send(first, target, b"one")
    for refused in (
        send(second, target, b"two"),
        receive(second, target, 1, 1),
        second.call(api.Delete(target, ["x"])),
        count_messages(second, target),
        second.call(api.Purge(target, 1)),
        second.call(api.Drop(target)),
        second.call(api.Configure(machine.settings(even))),
    ):
        with pytest.raises(api.NotOwner) as caught:
            await refused
        assert (caught.value.shard, caught.value.owner, caught.value.retryable) == (shard_of(even), "a", True)
    with pytest.raises(api.NotOwner) as caught:  # these had no owner when it started
        await first.call(api.Configure(machine.settings(odd)))
    assert caught.value.owner is None
    with pytest.raises(api.PartitionUnknown):
        await count_messages(second, api.Target(odd, odd, 1))
    assert await bodies(first, target) == [b"one"]


async def test_a_restart_restores_the_nodes_shards_without_other_nodes_logs(machine: NodeMachine) -> None:
    first = await machine.start("a", EVEN)
    second = await machine.start("b", ODD)
    kept = await open_queue(machine, first, partition_in(EVEN))
    await send(first, kept, b"kept")
    other = await open_queue(machine, second, partition_in(ODD))
    await send(second, other, b"other")
    await machine.stop("a")
    shutil.move(machine.folder / "journal" / "b-1", machine.folder / "away")
    first = await machine.start("a")
    assert await bodies(first, kept) == [b"kept"]
    assert first.owned == set(EVEN)
    shutil.move(machine.folder / "away", machine.folder / "journal" / "b-1")
    assert await bodies(second, other) == [b"other"]
    entries = await machine.store.entries.shards()
    assert {entry.epoch for entry in entries if entry.shard in EVEN} == {2}
    assert {entry.epoch for entry in entries if entry.shard in ODD} == {1}


async def test_shards_of_a_live_node_are_not_taken_over(machine: NodeMachine) -> None:
    first = await machine.start("a", EVEN)
    target = await open_queue(machine, first, partition_in(EVEN))
    with pytest.raises(LogInUse):
        await machine.start("b", range(api.SHARDS))
    await send(first, target, b"one")
    assert await bodies(first, target) == [b"one"]
    (log,) = await machine.store.entries.logs("a")
    assert log.state == "open"


async def test_one_node_takes_over_what_several_have_left(machine: NodeMachine) -> None:
    targets = []
    for name, shards in (("a", EVEN), ("b", ODD)):
        node = await machine.start(name, shards)
        targets.append(await open_queue(machine, node, partition_in(shards)))
        await send(node, targets[-1], name.encode())
    await machine.nodes["a"].checkpoint()
    await machine.stop()
    node = await machine.start("node", range(api.SHARDS))
    assert [await bodies(node, target) for target in targets] == [[b"a"], [b"b"]]
    assert node.owned == set(range(api.SHARDS))


async def test_logs_taken_over_and_removed_by_another_node_are_no_damage(machine: NodeMachine) -> None:
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
        (log,) = await machine.store.entries.logs("a")
        await machine.store.entries.update_log(msgspec.structs.replace(log, floor_seq=log.floor_seq + 1))
        raise JournalDamaged(log_id, "what it reads is missing")

    with mock.patch.object(takeover, "replay_log", meanwhile), pytest.raises(ConditionFailed, match="released by"):
        await second.ownership.take(EVEN)


async def test_a_damaged_log_does_not_block_shards_that_do_not_need_it(machine: NodeMachine) -> None:
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
        assert await successor.ownership.take(range(api.SHARDS)) == set(ODD)
        with pytest.raises(JournalDamaged):
            await successor.ownership.take(range(api.SHARDS))
    assert await successor.ownership.take(range(api.SHARDS)) == set(EVEN)


async def test_each_node_sweeps_what_nothing_names_and_nothing_else(tmp_path: Path) -> None:
    machine = NodeMachine(tmp_path, segment_bytes=64 << 10)
    first = await machine.start("a", EVEN)
    target = await open_queue(machine, first, partition_in(EVEN))
    await send(first, target, b"the oldest")
    for _ in range(20):
        await send(first, target, bytes(20_000))
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
    await first.call(api.Purge(target, 1))
    await first.checkpoint()
    await second.checkpoint()
    assert not folder.exists()
    await machine.close()


async def test_a_backup_holds_what_it_copies_until_it_ends_or_was_killed_or_there_is_no_room(tmp_path: Path) -> None:
    machine = NodeMachine(tmp_path, segment_bytes=64 << 10)
    node = await machine.start("a", range(api.SHARDS))
    target = await open_queue(machine, node, partition_in(EVEN))
    folder = tmp_path / "journal" / "a-1"
    incarnation, checkpointer = node._incarnation, node._checkpointer
    assert incarnation is not None
    assert checkpointer is not None

    purges = itertools.count(1)

    async def use_up() -> None:
        for _ in range(10):
            await send(node, target, bytes(20_000))
        await node.call(api.Purge(target, next(purges)))

    async def pin(until_ms: int, segment: int, file: int) -> None:
        pins = (BackupPin("nightly", until_ms, ((1, segment, file),)),) if until_ms else ()
        await machine.store.entries.update_cluster(
            msgspec.structs.replace(await machine.store.entries.cluster(), pins=pins)
        )

    def there() -> tuple[int, int]:
        """Return the first existing segment, and the first existing checkpoint file."""
        names = sorted(path.name for path in folder.iterdir())
        chunks = [name for name in names if name.startswith("ckpt-")]
        return int(min(name for name in names if name.endswith(".log"))[:8]), int(chunks[0][5:-4])

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

    with mock.patch.object(type(incarnation.log), "is_nearly_full", return_value=True):
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
        members[name] = Member(name, node, machine.store.entries, lambda: time.time_ns() // 1_000_000)
        members[name].start()

    await join("a")
    await until(lambda: machine.nodes["a"].owned == set(range(api.SHARDS)))
    first = machine.nodes["a"]
    targets = [await open_queue(machine, first, partition_in(range(shard, shard + 1))) for shard in range(0, 256, 8)]
    for target in targets:
        await send(first, target, b"%d" % target.partition)
    await join("b")
    second = machine.nodes["b"]
    await until(lambda: len(second.owned) >= 115 and len(first.owned) + len(second.owned) == api.SHARDS)
    assert await members["a"].leave(20)
    await until(lambda: second.owned == set(range(api.SHARDS)))
    assert [await bodies(second, target) for target in targets] == [[b"%d" % target.partition] for target in targets]
    for member in members.values():
        await member.stop()
