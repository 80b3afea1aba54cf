"""What an heir reads of shards before they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from unittest.mock import AsyncMock

import msgspec
import pytest

from backend import ownership
from backend.ahead import ReadAhead
from backend.api import SHARDS, NewMessage, Receive, Target, Unavailable
from backend.engine.blocks import Ref
from backend.engine.snapshot import ReadyBlock
from backend.journal.checkpoints import PieceDamaged, PieceReader
from backend.node import Node
from backend.replay import Replay
from backend.shards import shard_of
from backend.tasks import Tasks
from metadata_service.models import LogEntry, PieceRef, ShardEntry
from tests.backend.nodes import Machine

PARTITION = 7
SHARD = shard_of(PARTITION)
MESSAGES = 3000
"""In three blocks."""


class Counting:
    """Implements :class:`PieceReader`; counts what is asked of another."""

    def __init__(self, pieces: PieceReader) -> None:
        self._pieces = pieces
        self.asked: list[PieceRef] = []
        self.damaged: set[PieceRef] = set()
        self.away: set[PieceRef] = set()

    async def get(self, ref: PieceRef) -> bytes:
        return (await self.get_many([ref]))[0]

    async def get_many(self, refs: Sequence[PieceRef]) -> list[bytes]:
        self.asked += refs
        if self.damaged & set(refs):
            raise PieceDamaged("a file", 0, "the piece is missing")
        if self.away & set(refs):
            raise Unavailable("no quorum")
        return await self._pieces.get_many(refs)


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    await machine.close()


@pytest.fixture
async def owner(machine: Machine) -> Node:
    node = await machine.start("a", range(SHARDS))
    await node.configure(machine.settings(PARTITION))
    await send(node, MESSAGES)
    await node.checkpoint()
    return node


async def send(node: Node, count: int) -> None:
    target = Target(PARTITION, PARTITION, 1)
    for start in range(0, count, 10):
        await node.send(target, [NewMessage(b"%d" % number) for number in range(start, start + 10)])


async def entry_of(machine: Machine) -> ShardEntry:
    return next(entry for entry in await machine.store.shards() if entry.shard == SHARD)


def pieces_of(node: Node) -> PieceReader:
    assert node._checkpointer is not None
    return node._checkpointer._pieces


@pytest.fixture
async def pieces(owner: Node) -> Counting:
    """Those of the owner."""
    return Counting(pieces_of(owner))


@pytest.fixture
async def ahead(pieces: Counting) -> ReadAhead:
    """Of another node."""
    return ReadAhead(nothing, pieces, Tasks(never).start)


def never(error: BaseException) -> None:
    raise AssertionError("a task has failed") from error


async def nothing(logs: Iterable[LogEntry]) -> None:
    """The owner knows them."""


async def all_read(ahead: ReadAhead) -> None:
    await asyncio.wait([read.task for read in ahead._reads.values() if read.task is not None])


def sizes_of(ahead: ReadAhead) -> list[int]:
    """The bytes of the pieces that were read."""
    reads = ahead._reads.values()
    kept = [len(piece) for read in reads for piece in read.pieces.values()]
    return kept + [length for read in reads for _, _, _, length, _ in read.ready]


async def read_whole(come: tuple[PieceReader, Mapping[Ref, ReadyBlock]], entry: ShardEntry) -> None:
    pieces, ready = come
    replay = Replay({SHARD: entry})
    await replay.load_checkpoints(pieces, ready)
    assert replay.folds[PARTITION].visible == MESSAGES
    assert not replay.shard_harm
    assert not replay.partition_harm


async def test_what_was_read_ahead_is_not_read_again(machine: Machine, pieces: Counting, ahead: ReadAhead) -> None:
    entry = await entry_of(machine)
    ahead.expect([entry], ())
    await all_read(ahead)
    assert len(set(pieces.asked)) == 1 + 1 + 3, "the manifest, the partition and its blocks"
    pieces.asked.clear()
    ahead.expect([entry], ())  # nothing new
    await all_read(ahead)
    assert pieces.asked == []
    ahead.expect([], (), {SHARD})
    await read_whole(ahead.come([SHARD]), entry)
    assert pieces.asked == [entry.checkpoint]


async def test_of_a_later_checkpoint_only_what_is_new_is_read(
    machine: Machine, owner: Node, pieces: Counting, ahead: ReadAhead
) -> None:
    ahead.expect([await entry_of(machine)], ())
    await all_read(ahead)
    await send(owner, 10)
    await owner.receive(Target(PARTITION, PARTITION, 1), Receive(10, 0))
    await owner.checkpoint()
    pieces.asked.clear()
    ahead.expect([await entry_of(machine)], ())
    await all_read(ahead)
    assert len(pieces.asked) == 4, "the manifest, the partition, its first block and its last"


async def test_what_is_expected_no_more_is_let_go_of(machine: Machine, pieces: Counting, ahead: ReadAhead) -> None:
    entry = await entry_of(machine)
    ahead.expect([entry], ())
    await all_read(ahead)
    ahead.expect([], ())
    pieces.asked.clear()
    await read_whole(ahead.come([SHARD]), entry)
    assert len(set(pieces.asked)) == 5


async def test_a_piece_that_is_gone_is_no_news(machine: Machine, pieces: Counting, ahead: ReadAhead) -> None:
    entry = await entry_of(machine)
    assert entry.checkpoint is not None
    pieces.damaged = {entry.checkpoint}
    ahead.expect([entry], ())
    await all_read(ahead)
    pieces.damaged = set()
    await read_whole(ahead.come([SHARD]), entry)


async def test_no_more_than_so_much_is_kept(machine: Machine, pieces: Counting, ahead: ReadAhead) -> None:
    entry = await entry_of(machine)
    ahead.expect([entry], ())
    await all_read(ahead)
    sizes = sorted(sizes_of(ahead))
    assert len(sizes) == 4
    ahead.expect([], ())
    ahead = ReadAhead(nothing, pieces, Tasks(never).start, bytes_most=sum(sizes) - 1)
    ahead.expect([entry, msgspec.structs.replace(entry, shard=SHARD + 1)], ())
    await all_read(ahead)
    assert sum(sizes) - max(sizes) <= sum(sizes_of(ahead)) < sum(sizes)
    await read_whole(ahead.come([SHARD]), entry)


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue here is a long one."""
    monkeypatch.setattr(ownership, "LONG_BLOCKS", 3)


@pytest.mark.usefixtures("long")
async def test_a_long_queue_is_given_when_its_heir_has_read_what_there_was(machine: Machine, owner: Node) -> None:
    heir = await machine.start("b")
    await send(owner, 10)
    before = await entry_of(machine)
    log_id = heir.ownership.log_id

    assert not await owner.ownership.hand_over([SHARD], log_id, {})
    fresh = await entry_of(machine)
    assert fresh.checkpoint != before.checkpoint
    assert not await owner.ownership.hand_over([SHARD], log_id, {SHARD: before.version}), "it has read an older one"
    heir.ownership.expect([fresh], await machine.store.logs(), ())
    await all_read(heir.ownership._ahead)
    assert len(sizes_of(heir.ownership._ahead)) == 4
    assert await entry_of(machine) == fresh, "one checkpoint is enough, and it is served on"

    assert await owner.ownership.hand_over([SHARD], log_id, heir.ownership.read_ahead())
    assert await heir.ownership.take([SHARD]) == {SHARD}
    assert not heir.ownership._ahead._reads
    assert not heir.ownership.read_ahead()
    counted = await heir.counters(Target(PARTITION, PARTITION, 1))
    assert counted.visible == MESSAGES + 10


@pytest.mark.usefixtures("long")
async def test_an_heir_that_reads_nothing_gets_it_nevertheless(
    machine: Machine, owner: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "HEAD_START_SECONDS_MOST", 0.0)
    heir = await machine.start("b")
    assert await owner.ownership.hand_over([SHARD], heir.ownership.log_id, {SHARD + 1: 1000})
    assert (await entry_of(machine)).owner_log == heir.ownership.log_id


@pytest.mark.usefixtures("long")
async def test_another_heir_has_a_head_start_of_its_own(machine: Machine, owner: Node) -> None:
    first, second = await machine.start("b"), await machine.start("c")
    assert not await owner.ownership.hand_over([SHARD], first.ownership.log_id, {})
    entry = await entry_of(machine)
    await send(owner, 10)
    assert not await owner.ownership.hand_over([SHARD], second.ownership.log_id, {SHARD: entry.version})
    later = await entry_of(machine)
    assert later.version > entry.version
    owner.ownership.stay(())
    assert not await owner.ownership.hand_over([SHARD], second.ownership.log_id, {SHARD: entry.version - 1})


@pytest.mark.usefixtures("long")
async def test_one_that_does_not_say_what_it_has_read_is_not_waited_for(machine: Machine, owner: Node) -> None:
    """A program of an earlier version."""
    heir = await machine.start("b")
    assert await owner.ownership.hand_over([SHARD], heir.ownership.log_id)
    assert (await entry_of(machine)).owner_log == heir.ownership.log_id


async def test_nothing_waits_for_who_gets_a_short_one(machine: Machine, owner: Node) -> None:
    heir = await machine.start("b")
    before = await entry_of(machine)
    assert await owner.ownership.hand_over([SHARD], heir.ownership.log_id, {})
    assert (await entry_of(machine)).epoch == before.epoch + 1


async def test_a_read_that_failed_is_tried_again(machine: Machine, pieces: Counting, ahead: ReadAhead) -> None:
    entry = await entry_of(machine)
    assert entry.checkpoint is not None
    pieces.away = {entry.checkpoint}
    ahead.expect([entry], ())
    await all_read(ahead)
    assert not ahead.finished()
    pieces.away = set()
    ahead.expect([entry], ())
    await all_read(ahead)
    assert ahead.finished() == {SHARD: entry.version}


async def test_what_there_was_no_room_for_is_read_when_there_is(
    machine: Machine, pieces: Counting, ahead: ReadAhead
) -> None:
    entry = await entry_of(machine)
    other = msgspec.structs.replace(entry, shard=SHARD + 1)
    ahead.expect([other], ())
    await all_read(ahead)
    sizes = sizes_of(ahead)
    ahead._bytes_most = sum(sizes) + 100
    ahead.expect([other, entry], ())
    await all_read(ahead)
    assert ahead.finished().keys() == {SHARD, SHARD + 1}, "nobody need wait for what does not fit"
    assert sizes_of(ahead) != 2 * sizes
    ahead.expect([entry], ())
    await all_read(ahead)
    assert sorted(sizes_of(ahead)) == sorted(sizes)
    assert ahead.finished() == {SHARD: entry.version}


async def test_what_a_later_checkpoint_does_not_name_is_let_go_of(
    machine: Machine, owner: Node, ahead: ReadAhead
) -> None:
    ahead.expect([await entry_of(machine)], ())
    await all_read(ahead)
    await send(owner, 10)
    await owner.checkpoint()
    ahead.expect([await entry_of(machine)], ())
    await all_read(ahead)
    sizes = sizes_of(ahead)
    assert len(sizes) == 4, "the partition and three blocks"
    assert ahead._reads[SHARD].size_bytes == sum(sizes)


async def test_whatever_goes_wrong_in_it_ends_nothing_else(
    machine: Machine, pieces: Counting, ahead: ReadAhead, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "get_many", AsyncMock(side_effect=KeyError))
    ahead.expect([await entry_of(machine)], ())
    await all_read(ahead)
    assert not ahead.finished()


async def test_what_was_read_is_said_with_the_version_that_names_it(
    ahead: ReadAhead, pieces: Counting, owner: Node, machine: Machine
) -> None:
    entry = await entry_of(machine)
    ahead.expect([entry], ())
    assert not ahead.finished()
    await all_read(ahead)
    assert ahead.finished() == {SHARD: entry.version}
    later = msgspec.structs.replace(entry, version=entry.version + 1)
    ahead.expect([later], ())
    assert ahead.finished() == {SHARD: later.version}, "the same checkpoint"
    await owner.checkpoint()
    await send(owner, 10)
    await owner.checkpoint()
    fresh = await entry_of(machine)
    assert fresh.checkpoint is not None
    pieces.damaged = {fresh.checkpoint}
    ahead.expect([fresh], ())
    await all_read(ahead)
    assert not ahead.finished(), "it could not be read"
