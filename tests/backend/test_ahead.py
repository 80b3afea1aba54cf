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
from backend.api import SHARDS, NewMessage, Receive, Target
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

    async def get(self, ref: PieceRef) -> bytes:
        return (await self.get_many([ref]))[0]

    async def get_many(self, refs: Sequence[PieceRef]) -> list[bytes]:
        self.asked += refs
        if self.damaged & set(refs):
            raise PieceDamaged("a file", 0, "the piece is missing")
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
    """The queue here is a long one, and nobody waits long to ask again."""
    monkeypatch.setattr(ownership, "LONG_BLOCKS", 3)
    monkeypatch.setattr(ownership, "ASK_SECONDS", 0.001)


@pytest.mark.usefixtures("long")
async def test_a_long_queue_is_given_when_its_heir_has_read_what_there_was(machine: Machine, owner: Node) -> None:
    heir = await machine.start("b")
    await send(owner, 10)
    before = await entry_of(machine)
    seen, answers = [], []

    async def has_read() -> Mapping[int, int]:
        """The heir sees the shard coming while its owner waits."""
        entry = await entry_of(machine)
        seen.append(entry)
        heir.ownership.expect([entry], await machine.store.logs(), ())
        if len(seen) == 4:
            await all_read(heir.ownership._ahead)
        answers.append({SHARD: before.version} if len(seen) == 2 else heir.ownership.read_ahead())
        return answers[-1]

    await owner.ownership.hand_over([SHARD], heir.ownership.log_id, has_read)
    fresh = seen[0]
    assert fresh.checkpoint != before.checkpoint
    assert fresh.owner_log == owner.ownership.log_id
    assert seen == [fresh] * len(seen), "it was served on"
    assert len(answers) > 2, "it has read, but an older one"
    assert answers[-1] == {SHARD: fresh.version}
    assert len(sizes_of(heir.ownership._ahead)) == 4
    assert await heir.ownership.take([SHARD]) == {SHARD}
    assert not heir.ownership._ahead._reads
    assert not heir.ownership.read_ahead()
    counted = await heir.counters(Target(PARTITION, PARTITION, 1))
    assert counted.visible == MESSAGES + 10


@pytest.mark.usefixtures("long")
async def test_an_heir_that_reads_nothing_gets_it_nevertheless(
    machine: Machine, owner: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "HEAD_START_SECONDS_MOST", 0.05)
    heir = await machine.start("b")
    asked = 0

    async def has_read() -> Mapping[int, int]:
        nonlocal asked
        asked += 1
        return {SHARD + 1: 1000}

    await owner.ownership.hand_over([SHARD], heir.ownership.log_id, has_read)
    assert asked > 1
    assert (await entry_of(machine)).owner_log == heir.ownership.log_id


async def test_nobody_is_asked_for_a_short_one(machine: Machine, owner: Node) -> None:
    heir = await machine.start("b")
    before = await entry_of(machine)
    has_read = AsyncMock(side_effect=AssertionError)
    await owner.ownership.hand_over([SHARD], heir.ownership.log_id, has_read)
    assert (await entry_of(machine)).epoch == before.epoch + 1


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
