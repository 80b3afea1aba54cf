"""Failed reads are retried: damage is only wrong bytes that were read, or bytes that the disk has lost."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from backend.api import PartitionDamaged, Unavailable
from backend.cluster import metrics
from backend.journal.cassandra.table_interface import Unanswered
from backend.journal.local.extents import LocalExtents
from backend.journal.local.journal import LocalJournal
from backend.journal.rows import RECORD_HEADER_BYTES, place_of
from backend.recovery.damage import survey
from backend.recovery.offline_stats import count
from backend.serving.partition import OpenPartition
from metadata_service.sqlite.store import SQLiteStore
from telemetry.metrics import Registry
from tests.backend.faulty_disk import BLOCK_BYTES, FaultyDisk
from tests.backend.nodes import RestartableNode
from tests.backend.out_of_files import MESSAGES
from tests.backend.quorum_node import OpenTables, QuorumNode

HEAD_BYTES_MAX = 64
PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN, errno.ETIMEDOUT, errno.ESTALE)


class _Filled(RestartableNode):
    """A node with one queue, whose messages are numbered."""

    @property
    def partition(self) -> OpenPartition:
        return self.incarnation.partitions[1]

    @property
    def quarantined(self) -> int:
        return self.partition.fold.quarantined

    async def filled(self, messages: int = 200, size_bytes: int = 1000) -> None:
        queue = await self.queue(1)
        for start in range(0, messages, 10):
            await self.send(queue, *(f"{number} ".ljust(size_bytes, "x") for number in range(start, start + 10)))

    async def received(self) -> list[int]:
        """Numbers of all messages that can be received now."""
        queue, found = await self.queue(1), []
        while self.partition.fold.visible:
            for message in await self.receive(queue):
                assert message.receives == 1, "what nobody got counts as not received"
                found.append(int(message.payload.split()[0]))
        return sorted(found)


class _Faulty(_Filled):
    """A node whose messages are only on the disk, which fails."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.settings = self.settings._replace(payload_cache_bytes=0)
        self.disk = self.faults = FaultyDisk()

    def places(self) -> list[tuple[str, int, int]]:
        """File of each message in order, with approximate start and end of its record."""
        files = self.incarnation.log._files  # type: ignore[attr-defined]
        found = []
        for block in self.partition.fold.blocks.values():
            for position, size_bytes in zip(block.positions, block.sizes, strict=True):
                place = place_of(position)
                path = files.path(place.log_id, place.segment)
                found.append((path, place.offset, place.offset + size_bytes + RECORD_HEADER_BYTES + HEAD_BYTES_MAX))
        return found


class _OnTables(QuorumNode, _Filled):
    """A node whose messages are only in tables."""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[_Faulty]:
    cluster = _Faulty(tmp_path)
    await cluster.start()
    yield cluster
    await cluster.stop()


def test_a_process_without_a_free_file_descriptor_loses_nothing(tmp_path: Path) -> None:
    child = subprocess.run(
        [sys.executable, "-m", "tests.backend.out_of_files", str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert child.returncode == 0, child.stderr
    assert json.loads(child.stdout) == {"refused": 5, "received": MESSAGES, "quarantined": 0}


@pytest.mark.parametrize("opens", [True, False], ids=["open", "read"])
@pytest.mark.parametrize("error", PASSING, ids=errno.errorcode.get)
async def test_an_error_that_may_pass_costs_nothing(cluster: _Faulty, error: int, opens: bool) -> None:
    await cluster.filled(50)
    queue = await cluster.queue(1)
    cluster.faults.error, cluster.faults.error_opens = error, opens
    for _ in range(3):
        with pytest.raises(Unavailable):
            await cluster.receive(queue)
    with pytest.raises(Unavailable):
        await cluster.peek(queue, 10, 0)
    assert cluster.faults.errors
    cluster.faults.error = None
    assert await cluster.received() == list(range(50))
    assert not cluster.partition.fold.quarantined


async def test_a_bad_block_costs_the_messages_in_it_and_no_neighbour(cluster: _Faulty) -> None:
    await cluster.filled()
    places = cluster.places()
    path, offset, _ = places[100]
    block = offset // BLOCK_BYTES + 1
    start, end = block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES
    cluster.faults.bad = {path: {block}}
    hit = {number for number, (_, first, last) in enumerate(places) if first < end and last > start}
    received = await cluster.received()
    lost = set(range(200)) - set(received)
    assert 3 <= len(lost) <= 6
    assert lost <= hit
    assert cluster.partition.fold.quarantined == len(lost)
    registry = Registry()
    metrics.register(registry, cluster.node)
    (quarantined,) = [one for one in await registry.read() if one.name == "holdfast_quarantined_messages"]
    assert [one.value for one in quarantined.series] == [len(lost)]


class _Silent(OpenTables):
    """Tables that accept rows and, at times, return none."""

    silent = False

    def at_consistency_all(self) -> _Silent:
        return self

    async def get_rows(self, log_id: int, segment: int, rows: Sequence[int]) -> dict[int, bytes]:
        if self.silent:
            raise Unanswered("nobody answers")
        return await super().get_rows(log_id, segment, rows)


async def test_a_cassandra_that_does_not_answer_costs_nothing(tmp_path: Path) -> None:
    tables = _Silent()
    cluster = _OnTables(tmp_path, tables)
    cluster.settings = cluster.settings._replace(payload_cache_bytes=0)
    await cluster.start()
    await cluster.filled(50)
    queue = await cluster.queue(1)
    tables.silent = True
    for _ in range(2):
        with pytest.raises(Unavailable):
            await cluster.receive(queue)
    assert (await cluster.count(queue)).in_flight == 0, "they need not wait for their visibility timeouts"
    tables.silent = False
    assert await cluster.received() == list(range(50))
    assert not cluster.partition.fold.quarantined
    await cluster.stop()


async def test_a_start_that_cannot_read_is_tried_again_and_accepts_no_loss(cluster: _Faulty, tmp_path: Path) -> None:
    await cluster.filled(50)
    await cluster.stop()
    store = SQLiteStore(tmp_path / "metadata.db")
    shards = await store.entries.shards()
    for error in PASSING:
        for opens in (True, False):
            cluster.faults.error, cluster.faults.error_opens = error, opens
            with pytest.raises((OSError, Unavailable)):
                await survey(LocalJournal(cluster.faults, str(tmp_path / "journal")), store.entries)
            with pytest.raises((OSError, Unavailable)):
                await cluster.start()
            await cluster.store.close()
    cluster.faults.error = None
    assert await store.entries.shards() == shards
    await store.close()
    await cluster.start()
    assert not cluster.node.damage
    assert await cluster.received() == list(range(50))


async def test_a_census_that_cannot_read_calls_nothing_rotten(tmp_path: Path) -> None:
    cluster = _Faulty(tmp_path)
    await cluster.start()
    await cluster.filled(50)
    await cluster.stop()
    store = SQLiteStore(tmp_path / "metadata.db")
    journal = LocalJournal(cluster.faults, str(tmp_path / "journal"))
    extents = LocalExtents(cluster.faults, str(tmp_path / "journal"))

    async def read_many(positions: list[int]) -> object:
        cluster.faults.error = errno.EMFILE
        return await journal.segments.read_many(positions)

    with pytest.raises(Unavailable):
        await count(journal, store.entries, read_many, extents.read)  # type: ignore[arg-type]
    cluster.faults.error = None
    assert not (await count(journal, store.entries, journal.segments.read_many, extents.read)).damaged
    await store.close()


async def test_a_bad_block_in_a_checkpoint_stops_what_it_is_of(cluster: _Faulty, tmp_path: Path) -> None:
    """Detected at once; other shards are served."""
    await cluster.filled(50)
    other = await cluster.queue(2)
    await cluster.send(other, "b")
    await cluster.stop()
    (path,) = (tmp_path / "journal").glob("*/ckpt-*.bin")
    assert path.stat().st_size < BLOCK_BYTES, "both queues are in one block"
    cluster.faults.bad = {str(path): {0}}
    await cluster.start()
    assert cluster.node.damage
    with pytest.raises(PartitionDamaged, match="checkpoint"):
        await cluster.receive(other)
    await cluster.send(await cluster.queue(3), "c")


async def test_a_file_that_is_gone_is_damage_and_a_disk_that_is_gone_is_not(cluster: _Faulty, tmp_path: Path) -> None:
    await cluster.filled(20)
    queue = await cluster.queue(1)
    (path,) = (tmp_path / "journal").glob("*/00000001.log")
    away = tmp_path / "away"
    (tmp_path / "journal").rename(away)
    with pytest.raises(Unavailable):
        await cluster.receive(queue)
    assert cluster.quarantined == 0
    away.rename(tmp_path / "journal")
    path.rename(tmp_path / "moved.log")
    assert await cluster.receive(queue) == []
    assert cluster.quarantined == 10
    (tmp_path / "moved.log").rename(path)
