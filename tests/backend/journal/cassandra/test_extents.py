"""Extents on tables: what is written where, and what is read when machines have lost some of it."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from backend.api import Unavailable, shard_of
from backend.extent_ids import ExtentId
from backend.journal.cassandra import extents as module
from backend.journal.cassandra.extents import CassandraExtents, split_into_blocks
from backend.journal.cassandra.table_interface import EXTENT_BLOCK_BYTES, ExtentBlock
from tests.backend.journal.support import virtually
from tests.simulator.world.quorum import Machines, QuorumTables

EXTENT = ExtentId(7, 1, 1)
SHARD = shard_of(7)
BLOCK = EXTENT_BLOCK_BYTES


class QuorumExtents:
    """Extents on machines that answer always, unless a test takes them down."""

    def __init__(self) -> None:
        self.machines = Machines(Random(1), repairs=False)
        self.extents = CassandraExtents(QuorumTables(self.machines))

    def starts(self) -> list[int]:
        return [start for (start,) in self.machines.cells(("blocks", EXTENT))]

    def lose(self, *machines: int, start: int) -> None:
        """Remove a block from machines, which do not know that they had it."""
        for number in machines:
            del self.machines.machines[number].cells["blocks", EXTENT][start,]

    async def fill(self, *data: bytes) -> bytes:
        written = b""
        for one in data:
            await self.extents.append(EXTENT, len(written), one)
            written += one
        await asyncio.sleep(1)  # on all machines
        return written


def test_blocks_end_at_multiples_of_their_size() -> None:
    data = bytes(2 * BLOCK)
    assert [(one.start, len(one.data)) for one in split_into_blocks(data, 0)] == [(0, BLOCK), (BLOCK, BLOCK)]
    assert [(one.start, len(one.data)) for one in split_into_blocks(data, 5)] == [
        (5, BLOCK - 5), (BLOCK, BLOCK), (2 * BLOCK, 5)
    ]  # fmt: skip
    assert split_into_blocks(b"ab", BLOCK - 1) == [ExtentBlock(BLOCK - 1, b"a"), ExtentBlock(BLOCK, b"b")]
    assert split_into_blocks(b"", 9) == []


@virtually
async def test_an_append_writes_no_block_that_exists() -> None:
    stored = QuorumExtents()
    await stored.fill(b"first")
    before = stored.machines.cells(("blocks", EXTENT))
    await stored.extents.append(EXTENT, 5, b"second" * BLOCK)
    after = stored.machines.cells(("blocks", EXTENT))
    assert after.items() > before.items()
    assert stored.starts() == [0, 5, *range(BLOCK, 6 * BLOCK + 5, BLOCK)]


@virtually
async def test_an_append_repeated_writes_the_same_rows() -> None:
    """As a statement does whose answer was lost."""
    stored = QuorumExtents()
    await stored.fill(b"first", b"second")
    before = stored.machines.cells(("blocks", EXTENT))
    await stored.extents.append(EXTENT, 5, b"second")
    assert stored.machines.cells(("blocks", EXTENT)) == before


@virtually
async def test_many_small_blocks_are_read_in_several_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCKS_PER_READ", 4)
    stored = QuorumExtents()
    written = await stored.fill(*(b"%d" % number * (1 + number % 3) for number in range(30)), bytes(BLOCK))

    class FewAtOnce(QuorumTables):
        async def get_blocks(self, extent: ExtentId, start: int, end: int, blocks_max: int = 4) -> list[ExtentBlock]:
            return await super().get_blocks(extent, start, end, blocks_max)

    extents = CassandraExtents(FewAtOnce(stored.machines))
    assert await extents.read(EXTENT, len(written), 0) == written
    assert await extents.read(EXTENT, 20, 11) == written[11:31]
    assert await extents.read(EXTENT, 9 << 20, BLOCK - 3) == written[BLOCK - 3 :]


@virtually
async def test_a_block_that_one_machine_alone_has_is_found() -> None:
    stored = QuorumExtents()
    written = await stored.fill(b"first", b"second", b"third")
    for start in (0, 5, 11):
        stored.lose(0, 1, start=start)
    assert await stored.extents.read(EXTENT, len(written), 0) == written
    stored.machines.down(2)
    with pytest.raises(Unavailable):
        await stored.extents.read(EXTENT, len(written), 0)


@virtually
async def test_a_block_that_no_machine_has_is_read_as_zeros() -> None:
    """So what lies behind it is at its place, and the checksums of the format show what is lost."""
    stored = QuorumExtents()
    written = await stored.fill(b"first", b"second", b"third")
    stored.lose(0, 1, 2, start=5)
    assert await stored.extents.read(EXTENT, len(written), 0) == b"first" + bytes(6) + b"third"
    assert await stored.extents.read(EXTENT, 4, 7) == bytes(4)
    stored.lose(0, 1, 2, start=11)
    assert await stored.extents.read(EXTENT, len(written), 0) == b"first"


@virtually
async def test_late_writes_of_a_former_owner_do_not_bring_an_extent_back() -> None:
    stored = QuorumExtents()
    late = QuorumTables(stored.machines)
    late.waits_until = asyncio.get_running_loop().time() + 5
    owner = CassandraExtents(late)
    with pytest.raises(Unavailable):
        await owner.append(EXTENT, 0, b"late")
    await stored.extents.delete([EXTENT])
    await asyncio.sleep(10)
    assert [part async for part in stored.extents.list_extents({SHARD})] == []
    assert await stored.extents.read(EXTENT, 4, 0) == b""
    assert stored.starts() == []


@virtually
async def test_without_a_quorum_everything_is_refused() -> None:
    stored = QuorumExtents()
    await stored.fill(b"data")
    stored.machines.down(0, 1)
    with pytest.raises(Unavailable):
        await stored.extents.append(EXTENT, 4, b"more")
    with pytest.raises(Unavailable):
        await stored.extents.read(EXTENT, 4, 0)
    with pytest.raises(Unavailable):
        await stored.extents.delete([EXTENT])
    with pytest.raises(Unavailable):
        async for _ in stored.extents.list_extents({SHARD}):
            pass
    stored.machines.down()
    assert await stored.extents.read(EXTENT, 4, 0) in (b"data", b"")
