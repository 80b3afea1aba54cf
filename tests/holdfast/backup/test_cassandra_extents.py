"""Copies of extents on tables that have lost some of their blocks."""

from __future__ import annotations

import asyncio
from io import BytesIO
from random import Random

import pytest

from backend.extent_ids import ExtentId
from backend.journal.cassandra.extents import CassandraExtents
from backend.journal.cassandra.table_interface import EXTENT_BLOCK_BYTES, Unanswered
from holdfast.backup.cassandra_extents import BLOCKS_AT_ONCE, copy_extent, list_extents
from tests.backend.journal.support import virtually
from tests.simulator.world.quorum import Machines, QuorumTables

EXTENT = ExtentId(7, 1, 1)
BLOCKS = BLOCKS_AT_ONCE * 2


async def filled(machines: Machines) -> bytes:
    """Write an extent that is copied in several queries."""
    extents = CassandraExtents(QuorumTables(machines))
    data = Random(1).randbytes(BLOCKS * EXTENT_BLOCK_BYTES - 10)
    await extents.append(EXTENT, 0, data[:70_000])
    await extents.append(EXTENT, 70_000, data[70_000:])
    await asyncio.sleep(1)  # on all machines
    return data


async def copied(machines: Machines) -> bytes:
    file = BytesIO()
    await copy_extent(QuorumTables(machines), EXTENT, file, no_pause)
    return file.getvalue()


async def no_pause() -> None:
    """Do nothing before a query."""


def lose(machines: Machines, start: int, *numbers: int) -> None:
    for number in numbers:
        del machines.machines[number].cells["blocks", EXTENT][start,]


@virtually
async def test_an_extent_is_copied_whole() -> None:
    machines = Machines(Random(1))
    data = await filled(machines)
    assert await list_extents(QuorumTables(machines)) == [EXTENT]
    assert await copied(machines) == data
    assert not await copy_extent(QuorumTables(machines), ExtentId(7, 1, 2), BytesIO(), no_pause)


@virtually
@pytest.mark.parametrize("start", [0, 70_000, EXTENT_BLOCK_BYTES * BLOCKS_AT_ONCE])
async def test_a_block_that_one_machine_alone_has_is_copied(start: int) -> None:
    machines = Machines(Random(1), repairs=False)
    data = await filled(machines)
    lose(machines, start, 0, 1)
    assert await copied(machines) == data
    machines.down(2)
    with pytest.raises(Unanswered):
        await copied(machines)


@virtually
async def test_a_block_that_no_machine_has_becomes_zeros() -> None:
    machines = Machines(Random(1))
    data = await filled(machines)
    start = EXTENT_BLOCK_BYTES
    lose(machines, start, 0, 1, 2)
    assert await copied(machines) == data[:start] + bytes(EXTENT_BLOCK_BYTES) + data[start + EXTENT_BLOCK_BYTES :]
