"""Conformance tests of journals (:mod:`backend.journal.interface`), for files and tables alike."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from itertools import pairwise
from random import Random
from typing import Any, ParamSpec, Protocol

import msgspec
import pytest

from backend.api import SHARDS, StorageFull, Unavailable, shard_of
from backend.extent_ids import ExtentId
from backend.journal.checkpoints import ChunkDamaged
from backend.journal.extents import ExtentStore
from backend.journal.interface import Cut, Journal, Log
from backend.journal.types import LogEnd, LogInUse, Row
from metadata_service.models import LogEntry
from tests.backend.journal.support import Failures, a_record, durable, number_of, numbers_in

P = ParamSpec("P")


class LogStorage(Protocol):
    """Storage of logs, which survives the processes that write them."""

    def run(self, main: Coroutine[Any, Any, None]) -> None: ...

    def journal(self) -> Journal:
        """Make a journal as another process would.  Segments hold about ten records of 1000 bytes."""

    async def set_state(self, entry: LogEntry, state: str) -> None:
        """Set the state in the entry of a log, as a transaction."""

    async def kill(self) -> None:
        """Kill the writing process."""


class Writer:
    def __init__(self, world: LogStorage, log_id: int = 9) -> None:
        self.world = world
        self.journal = world.journal()
        self.entry = LogEntry(log_id=log_id, node="n", incarnation=log_id)
        self.failures = Failures()
        self.log: Log

    async def begin(self) -> Log:
        await self.journal.prepare()
        await self.world.set_state(self.entry, "open")
        self.log = await self.journal.create(self.entry, clock_ms=lambda: 77, on_failure=self.failures)
        return self.log


async def append(log: Log, number: int, size_bytes: int = 100) -> int:
    await log.wait_for_space(size_bytes + 200)
    return log.append(a_record(number, size_bytes))


async def everywhere(log: Log, positions: list[int]) -> None:
    """Wait for all replicas, with retries as a client makes them."""
    for _ in range(20):
        try:
            log.check_replicas()
            return await log.on_all_replicas(positions)
        except Unavailable:
            await asyncio.sleep(1)
    raise AssertionError("some replica never has them")


async def appended(log: Log, number: int) -> None:
    await append(log, number)
    await durable(log)


async def begin(world: LogStorage) -> tuple[Writer, Log]:
    writer = Writer(world)
    return writer, await writer.begin()


async def stored_extents(extents: ExtentStore, shards: set[int]) -> list[ExtentId]:
    return sorted([extent async for part in extents.list_extents(shards) for extent in part])


def in_world(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Decorate a test that its fixture ``world`` runs."""

    @wraps(test)
    def run(*arguments: P.args, **options: P.kwargs) -> None:
        world: Any = options["world"]
        world.run(test(*arguments, **options))

    return run


async def taken_over(world: LogStorage, entry: LogEntry) -> tuple[Journal, list[Row], LogEnd]:
    """Take a log over as a successor does, up to the seal."""
    await world.set_state(entry, "recovering")
    journal = world.journal()
    await journal.prepare()
    assert await journal.find([entry]) == {entry.log_id}
    rows, end = await read(journal, entry, 0)
    await journal.finalize(entry, end)
    await world.set_state(entry, "sealed")
    sealed = sealed_at(entry, end)
    await journal.trim(sealed, end)
    again, _ = await read(journal, sealed, end.seq)
    assert [row.seq for row in again] == [row.seq for row in rows]
    return journal, rows, end


def sealed_at(entry: LogEntry, end: LogEnd, segment: int = 1, seq: int = 1) -> LogEntry:
    """Return the entry of a log that ends there, and is read from this segment and row on."""
    return msgspec.structs.replace(entry, state="sealed", sealed_seq=end.seq, floor_segment=segment, floor_seq=seq)


async def read(journal: Journal, entry: LogEntry, known_seq: int) -> tuple[list[Row], LogEnd]:
    """Read a log without damage."""
    scan = journal.scan(entry, known_seq)
    rows = [row async for row in scan.rows()]
    assert not scan.end.damage
    return rows, scan.end


class JournalConformance:
    """Tests for each implementation: its test class has a fixture ``world`` and inherits these."""

    @in_world
    async def test_records_that_fit_the_row_are_in_one_row(self, world: LogStorage) -> None:
        writer, log = await begin(world)
        together = set()
        for number in range(0, 120, 2):
            await log.wait_for_space(2000)
            if log.fits_row(2 * (number + 80)):
                together.add(number)
            log.append(a_record(number, number))
            log.append(a_record(number + 1, number))
            if number % 40 == 0:
                await durable(log)
        await durable(log)
        assert 0 < len(together) < 60
        assert not log.fits_row(1 << 20)
        await world.kill()
        _, rows, _ = await taken_over(world, writer.entry)
        for row in rows:
            found = set(numbers_in([row]))
            assert all((one in found) == (one + 1 in found) for one in together)

    @in_world
    async def test_durable_records_are_read_at_their_positions(self, world: LogStorage) -> None:
        writer, log = await begin(world)
        assert log.log_id == 9
        positions = [await append(log, number) for number in range(30)]
        assert positions == sorted(set(positions))
        assert [number_of(view) for view in await log.read_many(positions[::-1])] == list(range(29, -1, -1))
        await durable(log)
        positions.append(await append(log, 30))
        await durable(log)
        assert log.durable_seq >= 2
        assert [number_of(view) for view in await log.read_many(positions)] == list(range(31))
        assert not writer.failures
        await world.kill()
        journal, rows, end = await taken_over(world, writer.entry)
        assert numbers_in(rows) == list(range(31))
        assert [row.seq for row in rows] == list(range(1, end.seq + 1))
        assert [position for row in rows for position, _ in row.records] == positions
        assert end.time_ms == 77
        journal.release()
        successor = await journal.create(
            LogEntry(log_id=10, node="n", incarnation=10), clock_ms=lambda: 78, on_failure=Failures()
        )
        assert [number_of(view) for view in await successor.read_many(positions)] == list(range(31))
        await successor.close()

    @in_world
    async def test_a_log_that_is_closed_holds_all(self, world: LogStorage) -> None:
        writer, log = await begin(world)
        for number in range(5):
            await append(log, number)
        await log.close()
        with pytest.raises(Unavailable):
            log.append(a_record(6))
        with pytest.raises(Unavailable):
            log.check_space(10)
        assert not log.has_space()
        _, rows, end = await taken_over(world, writer.entry)
        assert numbers_in(rows) == list(range(5))
        assert end.answered >= end.seq - 1, "a last row says what was answered"
        assert not writer.failures

    @in_world
    async def test_a_log_that_was_started_and_never_used_is_empty(self, world: LogStorage) -> None:
        writer = Writer(world)
        await writer.begin()
        await world.kill()
        journal, rows, end = await taken_over(world, writer.entry)
        assert not rows
        assert end.seq == 0
        if await journal.segments.remove_log(9):
            assert 9 not in journal.segments.logs()
        journal.release()

    @in_world
    async def test_a_cut_parts_rows(self, world: LogStorage) -> None:
        writer, log = await begin(world)
        assert log.cut().seq == 0
        await append(log, 0)
        through = log.cut().seq
        assert log.cut().seq == through
        assert log.next_seq == through + 1
        await appended(log, 1)
        await log.close()
        _, rows, _ = await taken_over(world, writer.entry)
        assert numbers_in([row for row in rows if row.seq <= through]) == [0]
        assert numbers_in([row for row in rows if row.seq > through]) == [1]

    @in_world
    async def test_a_log_can_be_read_from_any_cut(self, world: LogStorage) -> None:
        """Includes a cut before an empty row that is the last one of its segment."""
        writer, log = await begin(world)
        cuts: list[Cut] = []
        while log.next_segment < 4:
            await append(log, log.next_seq, len(cuts) % 2 * 400)
            row = log.next_seq
            await durable(log)
            if len(cuts) % 3:
                while log.next_seq < row + 2:  # until the log has marked that it is idle
                    await asyncio.sleep(0.01)
            cuts.append(log.cut())
        await log.close()
        journal, rows, end = await taken_over(world, writer.entry)
        places = {row.seq: row.segment for row in rows}
        for cut in cuts:
            assert cut.floor_seq == cut.seq + 1
            assert cut.floor_segment <= places.get(cut.floor_seq, end.segment)
            found, _ = await read(journal, sealed_at(writer.entry, end, cut.floor_segment, cut.floor_seq), cut.seq)
            assert [row.seq for row in found] == [row.seq for row in rows if row.seq > cut.seq]
        journal.release()

    @in_world
    async def test_space_that_was_checked_can_be_used(self, world: LogStorage) -> None:
        log = await Writer(world).begin()
        random = Random(1)
        refused = 0
        for turn in range(150):
            number, size_bytes = random.randrange(1, 5), random.choice((0, 100, 1000))
            records = [a_record(turn, size_bytes) for _ in range(number)]
            try:
                log.check_space(sum(map(len, records)))
            except StorageFull:
                refused += 1
                await log.wait_for_space(sum(map(len, records)))
                continue
            for record in records:
                log.append(record)
            if not turn % 10:
                await durable(log)
        assert refused < 140
        await log.close()

    @in_world
    async def test_segments_follow_each_other_and_go(self, world: LogStorage) -> None:
        writer, log = await begin(world)
        positions = []
        for number in range(60):
            positions.append(await append(log, number, 1000))
            await durable(log)
        assert log.next_segment >= 3
        assert {position >> 24 & 0xFFFFF for position in positions} == set(range(1, log.next_segment + 1))
        await log.close()
        journal, rows, end = await taken_over(world, writer.entry)
        assert numbers_in(rows) == list(range(60))
        segments = journal.segments
        assert segments.logs() == [9]
        assert [number for number, _ in await segments.segments_of(9)] == list(range(1, end.segment + 1))
        await segments.drop(9, [1])
        assert [number for number, _ in await segments.segments_of(9)] == list(range(2, end.segment + 1))
        assert not await segments.remove_log(9)
        floor = next(row for row in rows if row.segment == 2)
        found, _ = await read(journal, sealed_at(writer.entry, end, 2, floor.seq), floor.seq - 1)
        assert [row.seq for row in found] == [row.seq for row in rows if row.segment > 1]
        await segments.drop(9, range(2, end.segment + 1))
        assert await segments.remove_log(9)
        assert segments.logs() == []
        journal.release()

    @in_world
    async def test_rows_missing_below_the_seal_are_damage(self, world: LogStorage) -> None:
        writer, log = await begin(world)
        for number in range(60):
            await append(log, number, 1000)
            await durable(log)
        await log.close()
        journal, _, end = await taken_over(world, writer.entry)
        await journal.segments.drop(9, [end.segment])
        for _ in range(20):
            scan = journal.scan(sealed_at(writer.entry, end), end.seq)
            try:
                async for _ in scan.rows():
                    pass
            except Unavailable:  # a replica that may have it did not answer
                continue
            break
        assert scan.end.severe
        journal.release()

    @in_world
    async def test_chunks(self, world: LogStorage) -> None:
        writer, log = await begin(world)
        chunks = writer.journal.chunks
        random = Random(2)
        first = await chunks.create_file(9)
        contents = [random.randbytes(size) for size in (0, 1, 7, 70_000, 200_000, 65_536, 3)]
        refs = [first.add(content) for content in contents]
        await first.finish()
        second = await chunks.create_file(9)
        other = second.add(b"other")
        await second.finish()
        await (await chunks.create_file(9)).finish()  # an empty file
        assert await chunks.get_many([other, *reversed(refs)]) == [b"other", *reversed(contents)]
        assert await chunks.get(refs[3]) == contents[3]
        files = {one.file: one.size_bytes for one in await chunks.list_files(9)}
        assert set(files) == {refs[0].file, other.file}
        assert files[refs[0].file] >= sum(map(len, contents))
        with pytest.raises(ChunkDamaged):
            await chunks.get(msgspec.structs.replace(refs[3], crc=refs[3].crc ^ 1))
        await chunks.drop_file(9, refs[0].file)
        await chunks.drop_file(9, refs[0].file)
        with pytest.raises(ChunkDamaged):
            await chunks.get(refs[4])
        assert await chunks.get(other) == b"other"
        assert [one.file for one in await chunks.list_files(9)] == [other.file]
        await log.close()

    @in_world
    async def test_extents(self, world: LogStorage) -> None:
        """Appends of all sizes continue each other, and another process reads them and deletes some."""
        extents = world.journal().extents
        random = Random(3)
        content = random.randbytes(700_000)
        first, other = ExtentId(7, 1, 1), ExtentId(7, 2, 1)
        ends = [0, 1, 2, 262_143, 262_144, 262_145, 530_000, 530_100, len(content)]
        for start, end in pairwise(ends):
            await extents.append(first, start, content[start:end])
            assert await extents.read(first, end - start, start) == content[start:end]
        await extents.append(other, 0, b"other")
        await extents.append(ExtentId(8, 1, 1), 0, b"of another partition")
        another = world.journal().extents
        for _ in range(20):
            start = random.randrange(len(content))
            size_bytes = random.randrange(len(content) - start)
            assert await another.read(first, size_bytes, start) == content[start : start + size_bytes]
        assert await another.read(first, 0, 5) == b""
        assert await another.read(other, 10, 3) == b"er", "it ends before"
        assert await another.read(ExtentId(7, 1, 2), 10, 0) == b"", "there is none"
        shard = shard_of(7)
        assert shard != shard_of(8)
        assert await stored_extents(another, {shard}) == [first, other]
        assert await stored_extents(another, set()) == []
        assert await stored_extents(another, set(range(SHARDS))) == [first, other, ExtentId(8, 1, 1)]
        await another.delete([first, ExtentId(7, 1, 2)])
        await another.delete([first])
        assert await extents.read(first, 10, 0) == b""
        assert await stored_extents(extents, {shard}) == [other]
        assert await extents.read(other, 5, 0) == b"other"

    @in_world
    async def test_what_an_append_of_unknown_outcome_left_is_not_read(self, world: LogStorage) -> None:
        """Its owner continues in another extent, and readers stop at the length that was acknowledged."""
        extents = world.journal().extents
        extent = ExtentId(7, 1, 1)
        await extents.append(extent, 0, b"acknowledged")
        await extents.append(extent, 12, b"perhaps")
        await extents.append(ExtentId(7, 1, 2), 0, b"certainly")
        assert await world.journal().extents.read(extent, 12, 0) == b"acknowledged"
        assert await world.journal().extents.read(ExtentId(7, 1, 2), 9, 0) == b"certainly"

    @in_world
    async def test_a_log_that_was_taken_over_acknowledges_nothing_more(self, world: LogStorage) -> None:
        """Alternatively it cannot be taken over while its writer lives."""
        writer, log = await begin(world)
        await appended(log, 1)
        try:
            _, rows, end = await taken_over(world, writer.entry)
        except LogInUse:
            await log.close()
            return
        assert numbers_in(rows) == [1]
        with pytest.raises(Unavailable):
            await appended(log, 2)
        assert [type(error).__name__ for error in writer.failures] == ["LogFenced"]
        with pytest.raises(Unavailable):
            log.append(a_record(3))
        with pytest.raises(Unavailable):
            await durable(log)
        await log.close()
        sealed = sealed_at(writer.entry, end)
        journal = world.journal()
        await journal.find([sealed])
        assert numbers_in((await read(journal, sealed, end.seq))[0]) == [1]

    @in_world
    async def test_records_reach_all_replicas(self, world: LogStorage) -> None:
        """Covers records just appended, some that were durable before, and some of an earlier log."""
        writer, log = await begin(world)
        positions = [await append(log, number) for number in range(3)]
        await everywhere(log, positions[:2])
        assert log.durable_seq >= 1
        await everywhere(log, positions)
        await log.close()
        journal, _, _ = await taken_over(world, writer.entry)
        journal.release()
        later = LogEntry(log_id=10, node="n", incarnation=10)
        await world.set_state(later, "open")
        successor = await journal.create(later, clock_ms=lambda: 78, on_failure=Failures())
        own = await append(successor, 3)
        await everywhere(successor, [*positions, own])
        await everywhere(successor, [])
        await successor.close()

    @in_world
    async def test_unsynced_bytes_are_counted(self, world: LogStorage) -> None:
        log = await Writer(world).begin()
        assert log.unsynced_bytes == 0
        for number in range(3):
            await append(log, number, 1000)
        assert 3000 <= log.unsynced_bytes <= 4000
        await durable(log)
        assert log.unsynced_bytes == 0
        await log.close()

    @in_world
    async def test_callers_that_leave_disturb_no_other(self, world: LogStorage) -> None:
        log = await Writer(world).begin()
        await append(log, 1)
        first, second = log.barrier(), log.barrier()
        assert first is not None
        assert second is not None
        first.cancel()
        await second
        await asyncio.sleep(0)
        await log.close()
